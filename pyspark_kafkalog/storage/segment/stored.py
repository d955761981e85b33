"""A partition's segments as stored on disk: offsets, sizes and times, cheap for thousands of segments.

Names come from one listing of the directory, sizes and modification times from one call each. The largest timestamp of
a closed segment is the last entry of its time index, as every roll and every rebuild writes it. Without a valid last
entry, the headers of the batches are read instead.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.artefacts.index_file import TimeIndex
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import pread
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offset_file_name, segment_file
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader
from pyspark_kafkalog.units import NS_PER_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.log_state import LogState


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment with offsets in [base_offset, end_offset), and the sizes of its files in bytes.

    `modified_ns` is the modification time of the `.log` file. Sizes of indexes are 0 unless they were requested.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    modified_ns: int

    @property
    def modified_ms(self) -> int:
        """Modification time of the `.log` file."""
        return self.modified_ns // NS_PER_MS

    def largest_timestamp_ms(self, directory: Path) -> int:
        """See the function of this name; for a closed segment."""
        return largest_timestamp_ms(directory, self.base_offset)

    def first_timestamp_ms(self, directory: Path) -> int:
        """The largest timestamp of the first batch; -1 without a batch. Raises DiskFormatError, FileNotFoundError."""
        with SegmentReader(LocalExtent(directory, self.base_offset)) as reader:
            for _, header in reader.headers(0):
                return header.max_timestamp_ms
        return NO_TIMESTAMP


def local_extent(directory: Path, segment: StoredSegment) -> LocalExtent:
    """A segment of the partition in `directory`, for reading it alone."""
    return LocalExtent(directory, segment.base_offset)


def closed_segments(
    directory: Path,
    active_base_offset: int,
    *,
    with_index_sizes: bool = False,
    listing: PartitionListing | None = None,
) -> list[StoredSegment]:
    """The segments below the active one, in order; empty for a partition without a directory.

    `listing` is that of the directory, if the caller has it.
    """
    try:
        files = (PartitionListing.read(directory) if listing is None else listing).files
    except FileNotFoundError:
        return []
    found: dict[int, tuple[int, int, int, int]] = {}
    prefix = f"{directory}{os.sep}"  # building a Path for each file would take longer than its stat
    for base_offset in sorted(base for base in files[LOG_SUFFIX] if base < active_base_offset):
        name = prefix + offset_file_name(base_offset, "")
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            status = os.stat(name + LOG_SUFFIX)
            index_bytes = time_index_bytes = 0
            if with_index_sizes:
                index_bytes = _size_bytes(name + INDEX_SUFFIX)
                time_index_bytes = _size_bytes(name + TIME_INDEX_SUFFIX)
            found[base_offset] = (status.st_size, index_bytes, time_index_bytes, status.st_mtime_ns)
    return [
        StoredSegment(base_offset, end_offset, *found[base_offset])
        for base_offset, end_offset in itertools.pairwise((*found, active_base_offset))
    ]


def stored_segments(
    directory: Path, state: LogState, *, listing: PartitionListing | None = None
) -> list[StoredSegment]:
    """The segments of the log as of `state`, in order, the active one last; later ones are omitted.

    The size of the active segment is that of `state`. A partition that was never written to may have no directory yet:
    then the active segment is the only one. `listing` is that of the directory, if the caller has it.
    """
    modified_ns = 0
    with contextlib.suppress(FileNotFoundError):
        modified_ns = segment_file(directory, state.active_base_offset, LOG_SUFFIX).stat().st_mtime_ns
    active = StoredSegment(state.active_base_offset, state.log_end_offset, state.active_size_bytes, 0, 0, modified_ns)
    return [*closed_segments(directory, state.active_base_offset, listing=listing), active]


def largest_timestamp_ms(directory: Path, base_offset: int) -> int:
    """The largest timestamp of the batches of the closed segment at `base_offset`; -1 if none has one.

    Raises DiskFormatError if neither the time index nor the `.log` can be read, FileNotFoundError.
    """
    indexed_ms = _last_indexed_timestamp_ms(segment_file(directory, base_offset, TIME_INDEX_SUFFIX))
    if indexed_ms is not None:
        return indexed_ms
    largest_ms = NO_TIMESTAMP
    with SegmentReader(LocalExtent(directory, base_offset)) as reader:
        for _, header in reader.headers(0):
            largest_ms = max(largest_ms, header.max_timestamp_ms)
    return largest_ms


def _size_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _last_indexed_timestamp_ms(path: Path) -> int | None:
    """The last entry's timestamp, -1 for an empty index; None without an index or a valid last entry."""
    entry_bytes = TimeIndex.entry_struct.size
    try:
        fd = open_file(path)
    except FileNotFoundError:
        return None
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes == 0:
            return NO_TIMESTAMP
        if size_bytes % entry_bytes:
            return None
        data = pread(fd, entry_bytes, size_bytes - entry_bytes)
    finally:
        os.close(fd)
    if len(data) < entry_bytes:
        return None
    timestamp_ms, relative_offset = TimeIndex.entry_struct.unpack(data)
    # Zeros are a preallocated tail that was never trimmed, or an entry for timestamp 0, which counts as none.
    if timestamp_ms <= 0 or relative_offset < 0:
        return None
    return int(timestamp_ms)
