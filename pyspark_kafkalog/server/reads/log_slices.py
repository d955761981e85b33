"""Whole batches of any partition at an offset: what a fetch returns, wherever the log lies.

    LogSlices.cached    a consumer that reads on in a local segment: one stat and what is in the page cache. The event
                        loop's thread may call it; BlockingIOError says that a thread has to call `waiting`
    LogSlices.waiting   lists the partition's extents, opens the one of the offset, or asks a store
    OpenSegments        the open `.log` files, least recently used ones dropped
    Positions           (directory, next offset) -> the file and position of the batch there, noted when a fetch ends
                        there

A fetch gets batches of one extent, as a broker returns those of one segment. Of the active segment of a native root the
bytes up to the committed size are read; of others all, and the end offset decides. An extent that is deleted or
replaced meanwhile is looked up again, as in LogReader.

*Local segments.* A consumer that reads on needs one stat, no look-up in an index and no listing of the directory.
Retention, the cleaner and merges may delete or replace a file at any time. Bytes of an open file stay as they are, so
what was begun can be finished; but each use compares the inode of the name with that of the open file, and drops it if
they differ. The inode of an open file is not used again. The event loop's thread and others use both classes.

Batches are found by headers: bytes if they are few, else a slice for sendfile. A slice begins with the batch that holds
the requested offset, or the first one after it. It ends at a batch boundary, before the limit of bytes and below the
end offset (high watermark or last stable offset). Its beginning is confirmed by the header there, its end by the
headers of the last batches: the offset index leads near to it, and from there `walk_headers` passes header by header.
So an index is never believed, and a wrong one costs time only. CRCs are not computed, as a broker does not either when
it serves a fetch: consumers check them. Messages of older formats are sent as they are, as a broker does, and consumers
read them. With `read_cached` as the way of reading nothing waits for a disk.

*Remote segments and runs* of object stores are read by ranges, into memory. The reader of an extent is kept for the
fetch that continues where this one ends, with what it has requested ahead; `_REMOTE_READERS_MAX` bounds them. Bytes of
a kept extent are right for ever; whether its offsets still belong to the log is for the caller, who knows the log
start.

Source of the rules: LogSegment.read, FileRecords.searchForOffsetFromPosition.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.header import (
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    MAGIC_V2,
    RECORD_BATCH_OVERHEAD_BYTES,
    TRANSACTIONAL_MASK,
    BatchHeader,
    parse_header,
)
from pyspark_kafkalog.record.kernels.scan import BAD_HEADER, END_OF_DATA, LIMIT_REACHED, OFFSET_REACHED, walk_headers
from pyspark_kafkalog.record.old_formats import OLD_HEAD_BYTES, is_old, old_size_bytes
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server.sending import FileSlice, OpenFile
from pyspark_kafkalog.storage.artefacts.index_file import MAX_INDEX_BYTES, OffsetIndex
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.filesystem import is_in_memory, pread, share_of_descriptors
from pyspark_kafkalog.storage.log.extent_search import open_at, search_from, whole_batches
from pyspark_kafkalog.storage.log.isolation import CommittedBatches
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, segment_file
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX, BatchRun, Extent, LocalExtent, SegmentReader
from pyspark_kafkalog.units import KIB, MIB

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FILES_MAX: Final = 1024
POSITIONS_MAX: Final = 1 << 15
#: The index of a growing segment is opened again when this much has been added.
_INDEXED_AGAIN_BYTES: Final = 4 * MIB


class RecentlyUsed(Generic[K, V]):
    """A mapping that holds at most `capacity` entries: those that were used last. For several threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> list[V]:
        """Set the entry; returns the values that have made room for it or were replaced."""
        dropped: list[V] = []
        with self._lock:
            before = self._entries.pop(key, None)
            if before is not None:
                dropped.append(before)
            self._entries[key] = value
            while len(self._entries) > self._capacity:
                dropped.append(self._entries.popitem(last=False)[1])
        return dropped

    def pop(self, key: K) -> V | None:
        with self._lock:
            return self._entries.pop(key, None)


class OpenSegment:
    """One open `.log` file, with its offset index once that is needed."""

    __slots__ = ("_index", "_indexed_bytes", "base_offset", "device", "file", "inode")

    def __init__(self, directory: Path, base_offset: int) -> None:
        """Raises FileNotFoundError if there is no such segment, OSError."""
        self.base_offset = base_offset
        self.file = OpenFile(segment_file(directory, base_offset, LOG_SUFFIX))
        found = os.fstat(self.file.fd)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(f"{self.file.path} is not a regular file")
        self.device, self.inode = found.st_dev, found.st_ino
        self._index: OffsetIndex | None = None
        self._indexed_bytes = -1

    @property
    def name(self) -> str:
        return str(self.file.path)

    def has_index_for(self, size_bytes: int) -> bool:
        """Whether `index` opens no file."""
        return 0 <= self._indexed_bytes >= size_bytes - _INDEXED_AGAIN_BYTES

    def index(self, size_bytes: int) -> OffsetIndex | None:
        """The offset index for a file of this size; None if it is missing or unusable. It is a hint."""
        if not self.has_index_for(size_bytes):
            path = self.file.path.with_suffix(INDEX_SUFFIX)
            try:
                self._index = OffsetIndex.open(path, self.base_offset, max_index_bytes=MAX_INDEX_BYTES)
            except (OSError, DiskFormatError):
                self._index = None
            self._indexed_bytes = size_bytes
        return self._index


class Position(NamedTuple):
    """Where a batch begins: in the file that had the name `path`, which had this inode."""

    path: str
    device: int
    inode: int
    position: int


class OpenSegments:
    """The open segments by path."""

    def __init__(self, capacity: int | None = None) -> None:
        """`capacity`: by default what the process's descriptors allow, at most FILES_MAX."""
        capacity = share_of_descriptors(16, FILES_MAX) if capacity is None else capacity
        self._open: RecentlyUsed[str, OpenSegment] = RecentlyUsed(capacity)

    def kept(self, path: str) -> tuple[OpenSegment, int] | None:
        """The open segment with its present size; None if it is not open, or its name has gone to another file."""
        segment = self._open.get(path)
        if segment is None:
            return None
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            self._open.pop(path)
            return None
        if (found.st_ino, found.st_dev) != (segment.inode, segment.device):
            self._open.pop(path)
            return None
        return segment, found.st_size

    def open(self, directory: Path, base_offset: int) -> tuple[OpenSegment, int]:
        """The segment, opened unless it is, with its size. Raises FileNotFoundError, OSError."""
        path = str(segment_file(directory, base_offset, LOG_SUFFIX))
        kept = self.kept(path)
        if kept is not None:
            return kept
        segment = OpenSegment(directory, base_offset)
        self._open.put(path, segment)
        return segment, os.fstat(segment.file.fd).st_size


class Positions:
    """Where the batches begin that consumers ask for next."""

    def __init__(self, capacity: int = POSITIONS_MAX) -> None:
        self._noted: RecentlyUsed[tuple[str, int], Position] = RecentlyUsed(capacity)

    def get(self, directory: str, offset: int) -> Position | None:
        return self._noted.get((directory, offset))

    def note(self, directory: str, offset: int, segment: OpenSegment, position: int) -> None:
        """The batch after the last one below `offset` begins, or will begin, at `position` of the segment."""
        self._noted.put((directory, offset), Position(segment.name, segment.device, segment.inode, position))


#: Up to this size records are read into memory and sent together with the rest of the response.
SMALL_BYTES: Final = 64 * KIB
_WALK_BYTES: Final = 4 * KIB
_WALK_BYTES_MAX: Final = 256 * KIB
_NOTHING: Final = memoryview(b"")
_BASE_OFFSET: Final = struct.Struct(">q")
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")

#: Reads (fd, size, position); fewer bytes only at the end of the file.
Read: TypeAlias = Callable[[int, int, int], memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimits:
    """Of one partition's records: batches that end below `end_offset`, `max_bytes` in all.

    `may_exceed`: a first batch that is larger is returned nevertheless, so that a consumer makes progress (KIP-74).
    """

    end_offset: int
    max_bytes: int
    may_exceed: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole batches, with offsets below `next_offset`; none if `records` is empty.

    `may_be_transactional`: whether transactional batches may be among them. `is_cut`: there is a batch, but it is
    larger than the limit.
    """

    records: memoryview | FileSlice
    next_offset: int
    may_be_transactional: bool = False
    is_cut: bool = False

    @property
    def size_bytes(self) -> int:
        return self.records.size_bytes if isinstance(self.records, FileSlice) else len(self.records)


def nothing(offset: int, *, is_cut: bool = False) -> Slice:
    """No batches for a consumer at `offset`."""
    return Slice(_NOTHING, offset, is_cut=is_cut)


def read_cached(fd: int, size_bytes: int, position: int) -> memoryview:
    """The bytes if all of them are in the page cache. Raises BlockingIOError if not, or if that cannot be known."""
    buffer = memoryview(bytearray(size_bytes))  # bounded: BATCH_BYTES_MAX, in the callers
    try:
        count = os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP or not is_in_memory(fd):
            raise BlockingIOError(error.errno, "cannot be read without waiting") from None
        count = os.preadv(fd, [buffer], position)
    if count < size_bytes and position + count < os.fstat(fd).st_size:
        raise BlockingIOError("only a part is in the page cache")
    return buffer[:count]


def read_waiting(fd: int, size_bytes: int, position: int) -> memoryview:
    """The bytes, from the disk if need be. Raises OSError."""
    return memoryview(pread(fd, size_bytes, position))


class SegmentSlicer:
    """Finds batches in one segment, of which the first `end_position` bytes are committed."""

    def __init__(self, segment: OpenSegment, end_position: int, read: Read) -> None:
        self._segment = segment
        self._end_position = end_position
        self._read = read

    def locate(self, offset: int) -> int | None:
        """The position of the first batch that holds `offset` or a later one; None if all end below it.

        Raises CorruptRecordError for a damaged header on the way.
        """
        start, previous = self._indexed(self._index_floor(offset), 0)
        walk = self._walk(start, previous, limit=self._end_position, stop_offset=offset)
        if walk.reason == BAD_HEADER:
            raise self._bad_header(walk.position)
        return walk.position if walk.reason == OFFSET_REACHED else None

    def slice(self, position: int, offset: int, limits: SliceLimits) -> Slice:
        """The batches from `position` on, which is where the batch begins that holds `offset`, or one after it.

        Raises CorruptRecordError if there is none.
        """
        room = min(limits.max_bytes, self._end_position - position)
        if 0 < room <= SMALL_BYTES:
            found = self._small(position, room, offset, limits)
        else:
            found = self._large(position, room, offset, limits)
        if found is not None:
            return found
        header = self._first_header(position, offset)
        if header is None or header.last_offset >= limits.end_offset:
            return nothing(offset)
        if header.magic != MAGIC_V2 and header.size_bytes <= room:
            return self._large(position, room, offset, limits) or nothing(offset)
        if not limits.may_exceed:
            return nothing(offset, is_cut=True)
        return self._first_batch(position, header)

    def _small(self, position: int, room: int, offset: int, limits: SliceLimits) -> Slice | None:
        """The batches in `room` bytes, all read; None if not even one is whole."""
        data = self._read(self._segment.file.fd, room, position)
        view = np.frombuffer(data, np.uint8)
        end, last_offset, attributes, _ = walk_headers(
            view, 0, len(data), self._segment.base_offset - 1, limits.end_offset
        )
        if not end or _last_offset(data) < offset:
            return None  # the header tells why
        return Slice(data[:end], last_offset + 1, bool(attributes & TRANSACTIONAL_MASK))

    def _large(self, position: int, room: int, offset: int, limits: SliceLimits) -> Slice | None:
        """The batches that end within `room` bytes, of which headers near the beginning and the end are read."""
        if room <= 0:
            return None
        header = self._first_header(position, offset)
        if header is None or header.size_bytes > room or header.last_offset >= limits.end_offset:
            return None
        limit = position + room
        start, previous = self._indexed(self._index_near(limit, limits.end_offset), position + header.size_bytes)
        if start <= position:
            start, previous = position + header.size_bytes, header.last_offset
        elif previous < header.last_offset:
            previous = header.last_offset
        walk = self._walk(start, previous, limit=limit, stop_offset=limits.end_offset)
        return self._piece(position, walk.position, walk.previous_offset + 1)

    def _piece(self, position: int, end: int, next_offset: int) -> Slice:
        if end - position > SMALL_BYTES:
            return Slice(FileSlice(self._segment.file, position, end - position), next_offset, True)
        return Slice(self._read(self._segment.file.fd, end - position, position), next_offset, True)

    def _first_batch(self, position: int, header: BatchHeader) -> Slice:
        """A batch larger than the limit."""
        if position + header.size_bytes > self._end_position or header.size_bytes > BATCH_BYTES_MAX:
            raise CorruptRecordError(
                file=self._segment.name,
                position=position,
                expected=f"a whole batch of at most {BATCH_BYTES_MAX} bytes",
                found=f"one of {header.size_bytes} bytes, and {self._end_position - position} bytes to the end",
            )
        return self._piece(position, position + header.size_bytes, header.next_offset)

    def _first_header(self, position: int, offset: int) -> BatchHeader | None:
        """The header at `position`, checked; None at the end of the segment."""
        size = min(RECORD_BATCH_OVERHEAD_BYTES, self._end_position - position)
        if size <= 0:
            return None
        data = self._read(self._segment.file.fd, size, position)
        if is_old(data):
            (last_offset,) = _BASE_OFFSET.unpack_from(data)
            header = BatchHeader(base_offset=last_offset, size_bytes=old_size_bytes(data), magic=data[MAGIC_AT])
        else:
            header = parse_header(data, 0, file=self._segment.name, file_position=position)
        if header.base_offset < self._segment.base_offset or header.last_offset < offset:
            raise CorruptRecordError(
                file=self._segment.name,
                position=position,
                expected=f"a batch with offset {offset} or a later one, in the segment {self._segment.base_offset}",
                found=f"offsets {header.base_offset} to {header.last_offset}",
            )
        return header

    def _index_floor(self, offset: int) -> tuple[int, int]:
        index = self._segment.index(self._end_position)
        return (0, 0) if index is None else index.lookup(offset)

    def _index_near(self, position: int, end_offset: int) -> tuple[int, int]:
        """An indexed batch close before `position` and below `end_offset`: its last offset, and where it begins."""
        if not self._segment.has_index_for(self._end_position) and self._read is read_cached:
            raise BlockingIOError("the index has to be opened")
        index = self._segment.index(self._end_position)
        if index is None:
            return 0, 0
        near = index.lookup_position(position - 1)
        return near if near.offset < end_offset else index.lookup(end_offset - 1)

    def _indexed(self, entry: tuple[int, int], from_position: int) -> tuple[int, int]:
        """Where to walk from, and the last offset before it: at the index entry if its batch confirms it, else at 0."""
        indexed_offset, position = entry
        if not from_position < position <= self._end_position - RECORD_BATCH_OVERHEAD_BYTES:
            return 0, -1
        header = BatchHeader.unpack(self._read(self._segment.file.fd, RECORD_BATCH_OVERHEAD_BYTES, position))
        is_there = header.last_offset == indexed_offset and header.base_offset >= self._segment.base_offset
        return (position, header.base_offset - 1) if is_there else (0, -1)

    def _walk(self, position: int, previous_offset: int, *, limit: int, stop_offset: int) -> _Walk:
        """Pass batches from `position` on until one does not end by `limit`, reaches `stop_offset`, or is damaged."""
        chunk = _WALK_BYTES
        while True:
            data = self._read(self._segment.file.fd, max(min(chunk, limit - position), 0), position)
            view = np.frombuffer(data, np.uint8)
            passed, previous_offset, _, reason = walk_headers(view, 0, limit - position, previous_offset, stop_offset)
            position += passed
            if reason == BAD_HEADER and self._is_old_at(position):
                old = self._walk_old(position, previous_offset, limit=limit, stop_offset=stop_offset)
                if old.reason != END_OF_DATA:
                    return old
                position, previous_offset = old.position, old.previous_offset
                continue
            if reason != END_OF_DATA or len(data) < RECORD_BATCH_OVERHEAD_BYTES:
                return _Walk(position, previous_offset, reason)
            if passed < 2 * chunk:  # many small batches
                chunk = min(2 * chunk, _WALK_BYTES_MAX)

    def _is_old_at(self, position: int) -> bool:
        size = min(OLD_HEAD_BYTES, self._end_position - position)
        return size > 0 and is_old(self._read(self._segment.file.fd, size, position))

    def _walk_old(self, position: int, previous_offset: int, *, limit: int, stop_offset: int) -> _Walk:
        """As `_walk`, message by message of an older format; END_OF_DATA says that none follows."""
        while position < limit:
            head = self._read(self._segment.file.fd, min(OLD_HEAD_BYTES, limit - position), position)
            if not is_old(head):
                break
            (offset,) = _BASE_OFFSET.unpack_from(head)
            if offset <= previous_offset:
                return _Walk(position, previous_offset, BAD_HEADER)
            if offset >= stop_offset:
                return _Walk(position, previous_offset, OFFSET_REACHED)
            if position + old_size_bytes(head) > limit:
                return _Walk(position, previous_offset, LIMIT_REACHED)
            position, previous_offset = position + old_size_bytes(head), offset
        return _Walk(position, previous_offset, END_OF_DATA)

    def _bad_header(self, position: int) -> CorruptRecordError:
        data = self._read(self._segment.file.fd, RECORD_BATCH_OVERHEAD_BYTES, position)
        parse_header(data, 0, file=self._segment.name, file_position=position)
        return CorruptRecordError(
            file=self._segment.name,
            position=position,
            expected="a base offset above those of the batches before",
            found=str(_BASE_OFFSET.unpack_from(data)[0]),
        )


@dataclass(frozen=True, slots=True)
class _Walk:
    position: int
    previous_offset: int
    reason: int


def _last_offset(data: memoryview) -> int:
    """The last offset of the batch whose header `data` begins with."""
    delta: int = _LAST_OFFSET_DELTA.unpack_from(data, LAST_OFFSET_DELTA_AT)[0]
    base_offset: int = _BASE_OFFSET.unpack_from(data)[0]
    return base_offset + delta


#: A fetch gets at most so much of a remote extent, unless one batch is larger.
REMOTE_BYTES_MAX: Final = 8 * MIB
_REMOTE_READERS_MAX: Final = 32


class _RemoteKey(NamedTuple):
    topic: str
    partition: int
    offset: int


class _KeptReader(NamedTuple):
    reader: SegmentReader
    position: int


class LogSlices:
    """Reads slices of all partitions of one root; used by several threads."""

    def __init__(self) -> None:
        self._files = OpenSegments()
        self._positions = Positions()
        self._remote: RecentlyUsed[_RemoteKey, _KeptReader] = RecentlyUsed(_REMOTE_READERS_MAX)

    def cached(self, snapshot: PartitionSnapshot, offset: int, limits: SliceLimits) -> Slice:
        """The batches from the one that holds `offset` on, without waiting for a disk.

        Raises BlockingIOError if that cannot be told at once, CorruptRecordError.
        """
        directory = snapshot.local_directory
        noted = None if directory is None else self._positions.get(str(directory), offset)
        kept = None if noted is None else self._files.kept(noted.path)
        if noted is None or kept is None:
            raise BlockingIOError("the position of the offset is not known")
        segment, size_bytes = kept
        if (segment.device, segment.inode) != (noted.device, noted.inode):
            raise BlockingIOError("the segment was replaced")
        end_position = _end_position(snapshot, segment, size_bytes)
        if noted.position >= end_position:
            raise BlockingIOError("the batch is in the next segment")
        return self._slice(snapshot, segment, end_position, noted.position, offset, limits, read_cached)

    def waiting(self, snapshot: PartitionSnapshot, offset: int, limits: SliceLimits) -> Slice:
        """The batches from the one that holds `offset` on; none if the log has no batch from there to the end offset.

        Raises OffsetOutOfRangeError if the offset is below all extents, or an object of its extent is missing,
        CorruptRecordError, ObjectStoreError, OSError.
        """
        kept = self._remote.pop(_remote_key(snapshot, offset))
        if kept is not None:
            try:
                return self._read_on(snapshot, kept, offset, limits)
            except FileNotFoundError:
                pass  # replaced since, by extents that are looked up now
        found = search_from(
            snapshot.extents(),
            offset,
            limits.end_offset,
            lambda extent: self._of_extent(snapshot, extent, offset, limits),
            partition=snapshot.topic_partition,
            high_watermark=snapshot.high_watermark,
        )
        return nothing(offset) if found is None else found

    def aborted(self, snapshot: PartitionSnapshot, offset: int, found: Slice) -> list[AbortedTxn]:
        """The aborted transactions that overlap the slice from `offset` on, by first offset.

        Raises CorruptIndexError, ObjectStoreError, OSError.
        """
        if not found.may_be_transactional:
            return []
        extents = snapshot.extents()
        aborted = extents.aborted_transactions(offset, found.next_offset)
        if aborted.indexed_until > offset and not isinstance(found.records, FileSlice):
            data = np.frombuffer(found.records, np.uint8)
            batches = scan_batches(data, file=extents.name).batches
            run = BatchRun(extents.name, data, 0, batches)
            reader = LogReader(extents, snapshot.topic_partition)
            read = CommittedBatches(lambda _: aborted, reader, found.next_offset, is_whole=True)
            read.keep(run)
            read.finish()
        return sorted(aborted.transactions, key=attrgetter("first_offset", "producer_id"))

    def _of_extent(self, snapshot: PartitionSnapshot, extent: Extent, offset: int, limits: SliceLimits) -> Slice | None:
        """None if the extent has no batch at or above the offset. Raises FileNotFoundError."""
        if not isinstance(extent, LocalExtent):
            return self._remote_slice(snapshot, extent, offset, limits)
        segment, size_bytes = self._files.open(extent.directory, extent.base_offset)
        end_position = _end_position(snapshot, segment, size_bytes)
        position = SegmentSlicer(segment, end_position, read_waiting).locate(offset)
        if position is None:
            return None
        return self._slice(snapshot, segment, end_position, position, offset, limits, read_waiting)

    def _slice(
        self,
        snapshot: PartitionSnapshot,
        segment: OpenSegment,
        end_position: int,
        position: int,
        offset: int,
        limits: SliceLimits,
        read: Read,
    ) -> Slice:
        found = SegmentSlicer(segment, end_position, read).slice(position, offset, limits)
        self._positions.note(str(snapshot.local_directory), found.next_offset, segment, position + found.size_bytes)
        return found

    def _remote_slice(
        self, snapshot: PartitionSnapshot, extent: Extent, offset: int, limits: SliceLimits
    ) -> Slice | None:
        opened = open_at(extent, offset)
        return None if opened is None else self._read_on(snapshot, _KeptReader(*opened), offset, limits)

    def _read_on(self, snapshot: PartitionSnapshot, kept: _KeptReader, offset: int, limits: SliceLimits) -> Slice:
        """The batches from the reader's position on; caches the reader for the next fetch, or closes it."""
        reader, position = kept
        is_kept = False
        try:
            found = _remote_batches(reader, position, offset, limits)
            end = position + found.size_bytes
            if found.size_bytes and end < reader.size_bytes:
                is_kept = True
                for dropped in self._remote.put(_remote_key(snapshot, found.next_offset), _KeptReader(reader, end)):
                    dropped.reader.close()
            return found
        except DiskFormatError as error:
            raise reader.placed(error) from None
        finally:
            if not is_kept:
                reader.close()


def _remote_key(snapshot: PartitionSnapshot, offset: int) -> _RemoteKey:
    return _RemoteKey(snapshot.topic_id or snapshot.topic, snapshot.partition, offset)


def _end_position(snapshot: PartitionSnapshot, segment: OpenSegment, size_bytes: int) -> int:
    """Where the segment's committed bytes end. Behind them a crashed writer, or one at work, may have left others.

    Of a broker's directory the size is that of the file, whose tail may be torn: the end offset is below it then.
    """
    if segment.base_offset == snapshot.active_base_offset and snapshot.active_size_bytes >= 0:
        return min(snapshot.active_size_bytes, size_bytes)
    return size_bytes


def _remote_batches(reader: SegmentReader, position: int, offset: int, limits: SliceLimits) -> Slice:
    found = whole_batches(
        reader,
        position,
        offset,
        end_position=reader.size_bytes,
        end_offset=limits.end_offset,
        piece_bytes=REMOTE_BYTES_MAX,
        max_bytes=limits.max_bytes,
        may_exceed=limits.may_exceed,
    )
    if not len(found.data):
        return nothing(offset, is_cut=found.is_cut)
    return Slice(found.data, found.last_offset + 1, bool(found.attributes & TRANSACTIONAL_MASK))
