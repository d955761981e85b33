"""Copies what of a log is in remote storage only back to local segments, so that a copy of the log is whole.

A segment's objects are the files that it had: `.log`, indexes, and the producer snapshot at its end. They get their old
names, and the log begins at its start again. The objects stay where they are, and stay the log directory's.

Nothing keeps retention from deleting them meanwhile; then the export ends with an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, LogDirError
from pyspark_kafkalog.metadata.image import ALL_BROKERS, MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.tiered.byte_source import WINDOW_BYTES
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import SegmentObjectExtent
from pyspark_kafkalog.tiered.own_storage import LAYOUT_CONFIG, LOCATION_CONFIG, OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition

#: Each with a few windows of its object in memory.
_SEGMENTS_AT_ONCE: Final = 4
_SUFFIXES: Final[Mapping[IndexKind, str]] = {
    IndexKind.OFFSET: INDEX_SUFFIX,
    IndexKind.TIMESTAMP: TIME_INDEX_SUFFIX,
    IndexKind.TRANSACTION: TXN_INDEX_SUFFIX,
}


def copy_remote_part(
    storage: OwnStorage,
    of: TopicIdPartition,
    segments: Sequence[SegmentObject],
    directory: Path,
    local_start: int,
    fs: FileSystem,
) -> int:
    """Copy the segments that begin below `local_start`, where the local ones in `directory` begin; returns the bytes.

    They are then on disk. Raises LogDirError for objects that were deleted, ObjectStoreError, and CorruptRecordError
    for objects of other sizes than the commit said or segments that do not end where the local ones begin,
    CorruptIndexError for a transaction index that lacks an abort marker.
    """
    remote = [each for each in segments if each.base_offset < local_start]
    if not remote or remote[-1].end_offset != local_start:
        raise CorruptRecordError(
            file=str(directory),
            position=0,
            expected=f"remote segments that end at offset {local_start}, where the local ones begin",
            found=f"the end {remote[-1].end_offset}" if remote else "none",
        )
    pool = Workers(_SEGMENTS_AT_ONCE, thread_name_prefix="kafkalog-export")
    try:
        copied_bytes = sum(pool.map(lambda each: _copy_segment(storage.extent(of, each), directory, fs), remote))
    except FileNotFoundError as error:
        raise LogDirError(
            f"records of {of.topic_partition} were deleted before they were copied ({error}): run the export again, or "
            "without this topic"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
    for each in remote:
        LocalExtents(directory).check_transaction_index(each.base_offset, each.end_offset)
    return copied_bytes


def _copy_segment(extent: SegmentObjectExtent, directory: Path, fs: FileSystem) -> int:
    segment = extent.segment
    copied_bytes = _copy_log(extent, segment_file(directory, segment.base_offset, LOG_SUFFIX), fs)
    for kind, suffix in _SUFFIXES.items():
        data = bytes(extent.index(kind))
        if data or kind is not IndexKind.TRANSACTION:
            fs.write_file_atomic(segment_file(directory, segment.base_offset, suffix), data)
            copied_bytes += len(data)
    snapshot = segment_file(directory, segment.end_offset, PRODUCER_SNAPSHOT_SUFFIX)
    if not snapshot.exists():
        data = bytes(extent.index(IndexKind.PRODUCER_SNAPSHOT))
        fs.write_file_atomic(snapshot, data)
        copied_bytes += len(data)
    return copied_bytes


def _copy_log(extent: SegmentObjectExtent, path: Path, fs: FileSystem) -> int:
    size_bytes = extent.known_size_bytes
    window = memoryview(bytearray(min(WINDOW_BYTES, size_bytes)))
    with contextlib.closing(extent.open()) as source:
        fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for start in range(0, size_bytes, WINDOW_BYTES):
                read = source.read_into(start, window[: size_bytes - start])
                fs.pwrite_all(fd, window[:read], start)
            fs.fsync(fd)
        finally:
            fs.close(fd)
    return size_bytes


def without_remote_part(image: MetadataImage) -> MetadataImage:
    """The image of a copy whose logs are whole: nothing of it is in remote storage.

    It names no remote storage either. The topics and ids are those of the original, and two log directories that copy
    to one place would delete each other's segments.
    """
    topics = {
        name: replace(
            topic,
            partitions=tuple(
                replace(each, segments=(), state=replace(each.state, local_log_start_offset=-1))
                for each in topic.partitions
            ),
        )
        for name, topic in image.topics.items()
    }
    settings = {
        name: value
        for name, value in image.broker_configs.get(ALL_BROKERS, {}).items()
        if name not in (LOCATION_CONFIG, LAYOUT_CONFIG)
    }
    return replace(image, topics=topics, dropped=(), broker_configs={**image.broker_configs, ALL_BROKERS: settings})
