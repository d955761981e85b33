"""A partition's segments as stored on disk: offsets, sizes and times, cheap for thousands of segments.

Names come from one listing of the directory, sizes and modification times from one call each. The largest timestamp of
a closed segment is the last entry of its time index, as every roll and every rebuild writes it. Without a valid last
entry, the headers of the batches are read instead.

*Kept listings.* A server lists a directory for each fetch at an offset that it does not know. `listed_segments` keeps a
long listing while the directory has the same inode and the same times of change, which each new, renamed or removed
name sets. Two changes within a tick of the file system's clock set the same time. So a listing is kept only if it began
more than such a tick after the reader first saw that time: a later change then has another one. The reader measures
that wait by its own clock, and compares no clocks. If a segment is missing, the directory is listed again.

*Largest timestamps.* A search by time reads the largest timestamp of each closed segment that it passes, and the kept
listing holds it. It comes from the batches, because a wrong time index must hide no record. After a change of the
directory a timestamp counts only for the `.log` with the same inode, size and modification time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.artefacts.index_file import TimeIndex
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_whole
from pyspark_kafkalog.storage.below_root import open_directory, open_file
from pyspark_kafkalog.storage.filesystem import pread
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_file_name,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import Extent, LocalExtent, SegmentReader
from pyspark_kafkalog.units import INT64_MAX, NS_PER_MS
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyspark_kafkalog.storage.log.log_state import LogState

#: A shorter listing costs little.
_KEPT_SEGMENTS_MIN: Final = 128
#: Of all kept listings together: a segment takes 8 to 56 bytes, and some 100 more if it has a transaction index.
_KEPT_SEGMENTS_MAX: Final = 1 << 18
#: More than a tick of a file system's clock: of one that has whole seconds, or every other second, and of the others.
_COARSE_TICK_S: Final = 2.5
_TICK_S: Final = 0.5
_UNKNOWN_MS: Final = INT64_MAX
#: Timestamps that are compared at once.
_BLOCK: Final = 1024
_FOUND: Final = [(name, "i8") for name in ("device", "inode", "size", "modified_ns", "latest_ms")]


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
    directory: Path, active_base_offset: int, *, with_index_sizes: bool = False, listing: PartitionListing | None = None
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


def latest_in(segment: SegmentReader, *, is_closed: bool) -> tuple[int, int]:
    """The largest timestamp of a segment, and the position of the first batch that has it.

    Of one that `is_closed`, a last time index entry that its batch confirms is not compared with the batches after it.
    """
    position, header = segment.last_indexed_timestamp() or (0, None)
    if is_closed and header is not None:
        return header.max_timestamp_ms, position
    headers = segment.headers(position)
    latest_ms, before = max(((each.max_timestamp_ms, -at) for at, each in headers), default=(NO_TIMESTAMP, 0))
    return latest_ms, -before


class LocalSegments(Sequence[LocalExtent]):
    """The segments of a directory at one time, in order, each made when it is asked for: there may be 100,000 of them.

    `before` is an earlier listing of the directory, whose timestamps are taken over for the same files.
    """

    def __init__(self, directory: Path, before: LocalSegments | None = None) -> None:
        """Lists the directory. Raises OSError, DiskFormatError as `list_whole`."""
        files = list_whole(directory).files
        self._directory = directory
        self._bases = array("q", sorted(files[LOG_SUFFIX]))
        self._indexed = sorted(files[TXN_INDEX_SUFFIX].items())
        self._latest_ms: NDArray[np.int64] | None = None  # as long as no search by time was made
        self._found: NDArray[np.void] | None = None
        if before is not None and before._found is not None:
            import numpy as np

            _, found = self._prepare()
            own, others = np.array(self._bases), np.array(before._bases)
            _, here, there = np.intersect1d(own, others, assume_unique=True, return_indices=True)
            found[here] = before._found[there]

    def __len__(self) -> int:
        return len(self._bases)

    @overload
    def __getitem__(self, at: int) -> LocalExtent: ...
    @overload
    def __getitem__(self, at: slice) -> list[LocalExtent]: ...
    def __getitem__(self, at: int | slice) -> LocalExtent | list[LocalExtent]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]  # bounded: the segments
        at = range(len(self))[at]
        if at + 1 == len(self):
            return LocalExtent(self._directory, self._bases[at])
        latest_ms = _UNKNOWN_MS if self._latest_ms is None else int(self._latest_ms[at])
        known_ms = None if latest_ms == _UNKNOWN_MS else latest_ms
        return LocalExtent(self._directory, self._bases[at], self._bases[at + 1], known_ms)

    @property
    def base_offsets(self) -> Sequence[int]:
        return self._bases

    def transaction_indexes(self, start_offset: int) -> dict[int, int]:
        """Base offset and inode of the `.txnindex` files that can hold markers at or above `start_offset`."""
        at = bisect_right(self._bases, start_offset) - 1
        return dict(self._indexed[bisect_left(self._indexed, (self._bases[at], 0)) if at >= 0 else 0 :])

    def first_since(self, at: int, timestamp_ms: int) -> int:
        """See the function of this name. Closed segments on the way whose largest timestamp is not known are read."""
        last = len(self) - 1
        if at >= last:
            return last
        known_ms, found = self._prepare()
        while at < last:
            may_have = known_ms[at : min(at + _BLOCK, last)] >= timestamp_ms
            if not may_have.any():
                at += len(may_have)
                continue
            at += int(may_have.argmax())
            if known_ms[at] != _UNKNOWN_MS or not self._find_out(at, known_ms, found):
                return at
        return last

    def _prepare(self) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """The largest timestamps, and of which files they were found (_FOUND)."""
        if self._latest_ms is None or self._found is None:
            import numpy as np  # only searches by time need arrays

            self._latest_ms, self._found = np.full(len(self), _UNKNOWN_MS, np.int64), np.zeros(len(self), _FOUND)
        return self._latest_ms, self._found

    def _find_out(self, at: int, known_ms: NDArray[np.int64], found: NDArray[np.void]) -> bool:
        """Find the largest timestamp of a closed segment. False for one that is damaged, or gone."""
        with contextlib.suppress(FileNotFoundError, DiskFormatError):
            status = segment_file(self._directory, self._bases[at], LOG_SUFFIX).lstat()
            file = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            *known_file, latest_ms = found[at].item()
            if tuple(known_file) != file:
                with SegmentReader(self[at]) as segment:
                    latest_ms, _ = latest_in(segment, is_closed=False)
                found[at] = (*file, latest_ms)
            known_ms[at] = latest_ms
            return bool(latest_ms != _UNKNOWN_MS)
        return False


def first_since(extents: Sequence[Extent], at: int, timestamp_ms: int) -> int:
    """The index, from `at` on, of the first extent that may have a batch with this timestamp or a later one.

    The last one may always. An extent may if its largest timestamp is not known.
    """
    if isinstance(extents, LocalSegments):
        return extents.first_since(at, timestamp_ms)
    for each in range(at, len(extents) - 1):
        known_ms = extents[each].known_max_timestamp_ms
        if known_ms is None or known_ms >= timestamp_ms:
            return each
    return len(extents) - 1


class _Identity(NamedTuple):
    """What a change of the names in a directory changes.

    The time of the inode's change counts, too, because a copy sets the other one back.
    """

    device: int
    inode: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class _KeptListing:
    """A listing of the directory with this identity, which the reader first saw at `first_seen_s`."""

    directory: _Identity
    first_seen_s: float
    is_settled: bool
    segments: LocalSegments


_kept: Final[OrderedDict[str, _KeptListing]] = OrderedDict()
_kept_lock: Final = threading.Lock()


def listed_segments(directory: Path) -> LocalSegments:
    """The segments that the directory holds now. Raises OSError, DiskFormatError as `list_whole`."""
    name = str(directory)
    kept = _kept.get(name)
    if kept is None:
        segments = LocalSegments(directory)
        if len(segments) >= _KEPT_SEGMENTS_MIN:
            _keep(name, _KeptListing(_identity(directory), monotonic(), False, segments))
        return segments
    now_s, identity = monotonic(), _identity(directory)
    is_same = kept.directory == identity
    if is_same and kept.is_settled:
        return kept.segments
    segments = LocalSegments(directory, kept.segments)
    first_seen_s = kept.first_seen_s if is_same else now_s
    tick_s = _TICK_S if identity.modified_ns % (1000 * NS_PER_MS) else _COARSE_TICK_S
    _keep(name, _KeptListing(identity, first_seen_s, now_s - first_seen_s > tick_s, segments))
    return segments


def forget_listing(directory: str | Path) -> None:
    """List the directory again with the next `listed_segments`: a segment of the last listing was missing."""
    with _kept_lock:
        _kept.pop(str(directory), None)


def _keep(name: str, listing: _KeptListing) -> None:
    with _kept_lock:
        _kept.pop(name, None)
        _kept[name] = listing
        count = sum(len(each.segments) for each in _kept.values())
        while count > _KEPT_SEGMENTS_MAX and _kept:
            count -= len(_kept.popitem(last=False)[1].segments)


def _identity(directory: Path) -> _Identity:
    """The identity of the directory, which is opened: only then does a network file system ask its server."""
    fd = open_directory(directory)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return _Identity(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def cut_points(
    extent: Extent, start_offset: int, end_offset: int, *, first_bytes: int, each_bytes: int
) -> Iterator[tuple[int, int]]:
    """As SegmentReader.cut_points; none if the extent was deleted or replaced, or ends before.

    If its size is known, it is not opened: its bytes are taken to be spread evenly over its offsets.
    """
    if start_offset >= end_offset:
        return
    if extent.known_size_bytes is not None and extent.end_offset is not None:
        bytes_an_offset = extent.known_size_bytes / (extent.end_offset - extent.base_offset)
        yield from _even_cut_points(
            bytes_an_offset, start_offset, end_offset, first_bytes=first_bytes, each_bytes=each_bytes
        )
        return
    try:
        segment = SegmentReader(extent)
    except FileNotFoundError:
        return
    with segment:
        yield from segment.cut_points(start_offset, end_offset, first_bytes=first_bytes, each_bytes=each_bytes)


def _even_cut_points(
    bytes_an_offset: float, start_offset: int, end_offset: int, *, first_bytes: int, each_bytes: int
) -> Iterator[tuple[int, int]]:
    step_bytes = first_bytes
    while start_offset < end_offset:
        offsets = max(math.ceil(step_bytes / bytes_an_offset), 1) if bytes_an_offset > 0 else end_offset - start_offset
        cut = min(start_offset + offsets, end_offset)
        yield cut, math.ceil((cut - start_offset) * bytes_an_offset)
        start_offset, step_bytes = cut, each_bytes
