"""A partition's segments as stored on disk, with the timestamps in their time indexes: cheap for thousands of segments.

Names, sizes and modification times come from one directory listing; the size of the active segment is the image's. A
closed segment's largest timestamp is the last entry of its time index, as every roll and every rebuild writes it.
Without a valid last entry, the headers of the batches are read instead.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.retention.plan import StoredSegment
from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.storage.artefacts.time_index import TimeIndex
from pyspark_kafkalog.storage.filesystem import READ_FLAGS, pread
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.units import NS_PER_MS

_TIME_ENTRY: Final = TimeIndex.entry_struct


def has_directory(root: NativeRoot, where: TopicPartition) -> bool:
    """Whether the partition has a directory, as of the root's last refresh; before the first write it may not.

    Raises LogDirError when it has records but no directory.
    """
    if (root.path / str(where)).is_dir():
        return True
    if root.store.image.partition(where.topic, where.partition).state.log_end_offset:
        raise LogDirError(f"the directory of {where} is gone with all its records: restore it from a copy")
    return False


def stored_segments(directory: Path, state: LogState) -> list[StoredSegment]:
    """The segments of the log as of `state`, in order, the active one last; later ones are omitted.

    A partition that was never written to may have no directory yet: then the active segment is the only one.
    """
    closed: list[StoredSegment] = []
    active = StoredSegment(state.active_base_offset, state.active_size_bytes, 0)
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file(entry.name)
            if parsed is None or parsed[1] != LOG_SUFFIX or parsed[0] > state.active_base_offset:
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                modified_ms = status.st_mtime_ns // NS_PER_MS
                if parsed[0] == state.active_base_offset:
                    active = StoredSegment(parsed[0], state.active_size_bytes, modified_ms)
                else:
                    closed.append(StoredSegment(parsed[0], status.st_size, modified_ms))
    closed.sort(key=lambda each: each.base_offset)
    return [*closed, active]


def largest_timestamp_ms(directory: Path, segment: StoredSegment, state: LogState) -> int:
    """The largest timestamp of the segment's batches, -1 when none has one.

    Raises DiskFormatError when neither the time index nor the `.log` can be read.
    """
    if segment.base_offset == state.active_base_offset:
        return state.active_max_timestamp_ms
    return closed_largest_timestamp_ms(directory, segment)


def closed_largest_timestamp_ms(directory: Path, segment: StoredSegment) -> int:
    """As `largest_timestamp_ms`, for a closed segment."""
    entry = _last_entry(segment_file(directory, segment.base_offset, TIME_INDEX_SUFFIX))
    if entry is None:
        return _largest_in_headers(directory, segment.base_offset)
    return entry


def _last_entry(path: Path) -> int | None:
    """The last entry's timestamp, -1 for an empty index; None without an index or a valid last entry."""
    try:
        fd = os.open(path, READ_FLAGS)
    except FileNotFoundError:
        return None
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes == 0:
            return NO_TIMESTAMP
        if size_bytes % _TIME_ENTRY.size:
            return None
        data = pread(fd, _TIME_ENTRY.size, size_bytes - _TIME_ENTRY.size)
    finally:
        os.close(fd)
    if len(data) < _TIME_ENTRY.size:
        return None
    timestamp_ms, relative_offset = _TIME_ENTRY.unpack(data)
    # Zeros are a preallocated tail that was never trimmed, or an entry for timestamp 0, which counts as none.
    if timestamp_ms <= 0 or relative_offset < 0:
        return None
    return int(timestamp_ms)


def _largest_in_headers(directory: Path, base_offset: int) -> int:
    largest_ms = NO_TIMESTAMP
    with SegmentReader(directory, base_offset) as segment:
        for _, header in segment.headers(0):
            largest_ms = max(largest_ms, header.max_timestamp_ms)
    return largest_ms
