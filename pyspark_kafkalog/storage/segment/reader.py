"""Extents, each a stretch of one partition's log, and their reader, which takes no lock and writes nothing.

An extent is a local segment, a remote one (`RemoteExtent`), or neighbouring runs in objects (`RunExtent`): a class with
the methods of `Extent`, and a `ByteSource` of its bytes. An implementation guarantees that

- bytes of the extent never change. Only the active segment may grow, and only a torn tail may be truncated from it;
- a local source, once open, keeps its bytes readable also if the extent is deleted or replaced meanwhile; a remote one
  raises FileNotFoundError then, at any read;
- ranges are checked: a read returns bytes of this extent or fewer bytes than requested, never those beside it;
- an index is a hint. The reader confirms each entry against the batches, so None in place of an index is always right.

`SegmentReader` returns runs of whole batches from a bounded buffer, with headers and CRCs checked. An entry of an index
is used only if the batch that it points at confirms it, and without a usable entry reading starts at the first byte. A
torn batch at the end, which a crash may leave, is an error only if the caller requests offsets that it should contain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.header import (
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    RECORD_BATCH_OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    check_length_and_magic,
    parse_header,
)
from pyspark_kafkalog.record.old_formats import OLD_HEAD_BYTES, convert_run, is_old, old_size_bytes, parse_old, to_batch
from pyspark_kafkalog.record.reference import check_crc
from pyspark_kafkalog.storage.artefacts.index_file import (
    MAX_INDEX_BYTES,
    MAX_RELATIVE_OFFSET,
    MappedIndex,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
)
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import pread, preadv
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK_BYTES: Final = 4 << 20
#: A longer batch is taken for damage, so that no length on disk can cause unbounded use of memory.
BATCH_BYTES_MAX: Final = 256 << 20
_NO_LIMIT: Final = 1 << 63
_Index = TypeVar("_Index", bound=MappedIndex)


class ByteSource(Protocol):
    """The bytes of one extent's `.log`, by position. Open until `close`."""

    @property
    def name(self) -> str:
        """What error messages call it: the path of a local file."""
        ...

    def size_bytes(self) -> int:
        """The present size."""
        ...

    def read(self, start: int, size_bytes: int) -> Buffer:
        """The bytes [start, start + size_bytes); fewer only if the source ends before. Raises OSError."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill `buffer` with the bytes from `start` on, and return their number, as in `read`. Raises OSError."""
        ...

    def place(self, position: int) -> tuple[str, int]:
        """The file or object that the byte at `position` comes from, and its position there, for error messages."""
        ...

    def close(self) -> None: ...


class OffsetLookup(Protocol):
    """What a reader asks of an offset index; of a segment it is an OffsetIndex, which describes the methods."""

    def lookup(self, target_offset: int) -> OffsetPosition: ...

    def entries_array(self) -> NDArray[np.void]: ...

    def close_handler(self) -> None: ...


class TimestampLookup(Protocol):
    """What a reader asks of a time index; of a segment it is a TimeIndex, which describes the methods."""

    @property
    def entries(self) -> int: ...

    @property
    def last_entry(self) -> TimestampOffset: ...

    def lookup(self, timestamp_ms: int) -> TimestampOffset: ...

    def close_handler(self) -> None: ...


class Extent(Protocol):
    """A stretch of one partition's log, with batches of the offsets [base_offset, end_offset)."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int | None:
        """The offset after the last one, at most the next extent's end; None for the active segment, which may grow.

        Of local segments, the base offset of the next one.
        """
        ...

    @property
    def known_size_bytes(self) -> int | None:
        """The size of the `.log`, if it is known and opening the extent costs a request; else None."""
        ...

    @property
    def known_max_timestamp_ms(self) -> int | None:
        """The largest timestamp, if it is known without opening the extent."""
        ...

    def open(self) -> ByteSource:
        """Open the `.log`. Raises FileNotFoundError if the extent was deleted or replaced, OSError."""
        ...

    def offset_index(self) -> OffsetLookup | None:
        """The offset index for reading, None if it is missing or unusable."""
        ...

    def time_index(self) -> TimestampLookup | None:
        """The time index for reading, None if it is missing or unusable."""
        ...


class LocalFile:
    """A file of a local file system. Each read is one call of pread or preadv; nothing is buffered."""

    __slots__ = ("_fd", "name")

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._fd = open_file(self.name)

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, start: int, size_bytes: int) -> bytes:
        return pread(self._fd, size_bytes, start)

    def read_into(self, start: int, buffer: memoryview) -> int:
        return preadv(self._fd, buffer, start)

    def place(self, position: int) -> tuple[str, int]:
        return self.name, position

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class LocalExtent:
    """A segment in a local partition directory: its `.log`, and the indexes beside it.

    `end_offset` is None also where one segment is opened by its name, and the next one does not matter.
    """

    directory: Path
    base_offset: int
    end_offset: int | None = None
    known_max_timestamp_ms: int | None = field(default=None, compare=False)

    @property
    def known_size_bytes(self) -> None:
        return None

    def open(self) -> LocalFile:
        return LocalFile(segment_file(self.directory, self.base_offset, LOG_SUFFIX))

    def offset_index(self) -> OffsetIndex | None:
        return self._index(OffsetIndex, INDEX_SUFFIX)

    def time_index(self) -> TimeIndex | None:
        return self._index(TimeIndex, TIME_INDEX_SUFFIX)

    def _index(self, kind: type[_Index], suffix: str) -> _Index | None:
        path = segment_file(self.directory, self.base_offset, suffix)
        try:
            return kind.open(path, self.base_offset, max_index_bytes=MAX_INDEX_BYTES)
        except (OSError, DiskFormatError):
            return None


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Consecutive whole batches. `data` (uint8) starts at byte `position` of the file; the next run reuses it.

    Without `has_timestamps` they are converted from format 0, and the type of their records' timestamps is none.
    """

    file: str
    data: NDArray[np.uint8]
    position: int
    batches: NDArray[np.void]
    has_timestamps: bool = True


class SegmentReader:
    """One open segment. Use as a context manager."""

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
        self.base_offset = extent.base_offset
        self._source = extent.open()
        self.file = self._source.name
        self.size_bytes = self._source.size_bytes()
        self.reached_offset = self.base_offset  # the offset after the last batch that `runs` has passed

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for name in ("_offset_index", "_time_index"):
            index = self.__dict__.get(name)
            if index is not None:
                index.close_handler()
        self._source.close()

    # Opened by the first look-up: most reads need one of them, and a remote one costs a request.

    @cached_property
    def _offset_index(self) -> OffsetLookup | None:
        return self.extent.offset_index()

    @cached_property
    def _time_index(self) -> TimestampLookup | None:
        return self.extent.time_index()

    def placed(self, error: DiskFormatError) -> DiskFormatError:
        """An error of this segment with the file or object, and the position in it, that its bytes come from."""
        if error.file != self.file:
            return error
        file, position = self._source.place(error.position)
        return type(error)(
            file=file, position=position, expected=error.expected, found=error.found, advice=error.advice
        )

    def header_at(self, position: int) -> BatchHeader:
        """The batch header at byte `position`. Raises CorruptRecordError.

        Of a message of an older format, it is that of the batch that `batch_at` converts it to, with the message's own
        size.
        """
        head = self._source.read(position, RECORD_BATCH_OVERHEAD_BYTES)
        if is_old(head):
            size_bytes = old_size_bytes(head)
            header = parse_header(self._converted(position, size_bytes), 0, file=self.file, file_position=position)
            return replace(header, size_bytes=size_bytes)
        return parse_header(head, 0, file=self.file, file_position=position)

    def skip_old(self, position: int) -> int:
        """The position behind the messages of older formats that begin at `position`; itself without one."""
        while is_old(head := self._source.read(position, OLD_HEAD_BYTES)):
            position += old_size_bytes(head)
        return position

    def refuse_old(self, position: int) -> None:
        """Raise UnsupportedFormatError if a message of an older format begins at `position`."""
        head = self._source.read(position, OLD_HEAD_BYTES)
        if is_old(head):
            magic = bytes(head)[MAGIC_AT]
            check_length_and_magic(
                old_size_bytes(head) - LOG_OVERHEAD_BYTES, magic, file=self.file, file_position=position
            )

    def _converted(self, position: int, size_bytes: int) -> bytes:
        """A message of an older format as a batch. Raises CorruptRecordError, also if the file ends before it does."""
        data = bytes(self._source.read(position, min(size_bytes, BATCH_BYTES_MAX)))
        if len(data) < size_bytes:
            raise self._short_read(position, size_bytes, len(data))
        return to_batch(parse_old(data, 0, file=self.file, file_position=position), file=self.file)

    def position_for_offset(self, offset: int) -> int:
        """A position to read from so that no batch with `offset` or a later one is missed."""
        if self._offset_index is None:
            return 0
        indexed_offset, position = self._offset_index.lookup(offset)
        if not 0 < position < self.size_bytes:
            return 0
        try:
            confirmed = self.header_at(position).last_offset == indexed_offset
        except DiskFormatError:
            confirmed = False
        return position if confirmed else 0

    def headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from byte `position` on, read one by one; meant for a few batches.

        Raises CorruptRecordError at a damaged header; ends before a batch that the file does not hold completely.
        """
        while position < self.size_bytes:
            header = self.header_at(position)
            if position + header.size_bytes > self.size_bytes:
                return
            yield position, header
            position += header.size_bytes

    def batch_at(self, position: int, header: BatchHeader) -> Buffer:
        """All bytes of the batch whose header was read at `position`. CorruptRecordError if above BATCH_BYTES_MAX."""
        if header.size_bytes > BATCH_BYTES_MAX:
            raise CorruptRecordError(
                file=self.file,
                position=position,
                expected=f"a batch of at most {BATCH_BYTES_MAX} bytes",
                found=f"{header.size_bytes} bytes",
            )
        stored = self._source.read(position, header.size_bytes)
        return self._converted(position, header.size_bytes) if is_old(stored) else stored

    def locate(self, offset: int, *, with_index: bool = True) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch whose last offset is at or above `offset`, None without one.

        Costs an index lookup and, as an index entry is added about every index.interval.bytes, a few header reads.
        Without the index, all headers before are read. Raises CorruptRecordError for a damaged header on the way.
        """
        for position, header in self.headers(self.position_for_offset(offset) if with_index else 0):
            if header.last_offset >= offset:
                return position, header
        return None

    def has_batch_below(self, high_watermark: int, *, with_index: bool = True) -> bool:
        """Whether a batch ends right below `high_watermark`. Costs as much as `locate`, and raises as that does."""
        found = self.locate(high_watermark - 1, with_index=with_index)
        return found is not None and found[1].base_offset < high_watermark == found[1].next_offset

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` with the bytes from `position` on; returns their number. Checks nothing. Raises OSError."""
        return self._source.read_into(position, buffer)

    def position_for_timestamp(self, timestamp_ms: int) -> int:
        """A position to read from so that no batch holding a timestamp of `timestamp_ms` or later is missed."""
        if self._time_index is None:
            return 0
        indexed_ms, indexed_offset = self._time_index.lookup(timestamp_ms)
        if indexed_offset <= self.base_offset:
            return 0
        return self._confirm_timestamp(indexed_ms, indexed_offset)

    def last_indexed_timestamp(self) -> tuple[int, BatchHeader] | None:
        """Position and header of the batch of the last time index entry, None unless the batch confirms the entry."""
        if self._time_index is None or not self._time_index.entries:
            return None
        indexed_ms, indexed_offset = self._time_index.last_entry
        try:
            found = self.locate(indexed_offset)
        except DiskFormatError:
            return None
        if found is None or (found[1].last_offset, found[1].max_timestamp_ms) != (indexed_offset, indexed_ms):
            return None
        return found

    def _confirm_timestamp(self, indexed_ms: int, indexed_offset: int) -> int:
        """Position of the batch with the last offset and largest timestamp of the time index entry; 0 without one."""
        try:
            found = self.locate(indexed_offset)
        except DiskFormatError:
            return 0
        if found is None:
            return 0
        position, header = found
        is_same = header.last_offset == indexed_offset and header.max_timestamp_ms == indexed_ms
        return position if is_same else 0

    def runs(
        self,
        position: int,
        *,
        start_offset: int,
        end_offset: int,
        limit_offset: int | None = None,
        limit_now: Callable[[], int | None] | None = None,
        take_buffer: Callable[[int], NDArray[np.uint8]] | None = None,
        check_crcs: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[BatchRun]:
        """Runs of batches from byte `position` on that overlap [start_offset, end_offset).

        `limit_offset` is the base offset of the next segment, which no batch of this one may reach; None for the last.
        If a batch does reach it, `limit_now` is called for the present value: a cleaner may just have combined several
        segments. Every CRC is checked, even if the header says that the batch is outside the range, as the header may
        be damaged; with `check_crcs=False` the caller checks them. The CRCs do not cover base offsets, which are
        therefore compared with each other. `take_buffer(size)` returns the memory for one run, of `size` bytes or more,
        if runs must outlive the next one; without it the next run reuses the memory. The first
        run has about `chunk_bytes`, later ones twice as much as the one before, up to CHUNK_BYTES.

        Raises CorruptRecordError for a damaged batch, after a run of the batches before it, or if the file ends inside
        a batch of the range.
        """
        from pyspark_kafkalog.record.scan import (  # compiled, not needed for planning
            BatchScan,
            first_bad_crc,
            scan_batches,
            verify_crcs,
        )

        limit = self._limit(limit_offset, end_offset)
        take_buffer = take_buffer or _reused_buffer()
        batch_bytes = 0
        while position < self.size_bytes:
            buffer = take_buffer(max(batch_bytes, min(chunk_bytes, self.size_bytes - position)))
            length = self._source.read_into(position, buffer.data)
            if length < batch_bytes:
                raise self._short_read(position, batch_bytes, length)
            data = buffer[:length]
            scan = scan_batches(data, file=self.file, file_position=position)
            has_timestamps = True
            if not scan.consumed_bytes and is_old(data):
                old = convert_run(data, file=self.file, file_position=position)
                data, scan = old.data, BatchScan(old.batches, old.consumed_bytes, old.fault)
                has_timestamps = old.has_timestamps
            elif is_old(data, scan.consumed_bytes):
                scan = replace(scan, fault=None)  # the next turn converts it
            batches = scan.batches
            if limit_now is not None and len(batches) and batches["last_offset"][-1] >= limit:
                limit = self._limit(limit_now(), end_offset)
            if len(batches):
                self._check_offsets(batches, limit)
            selected = _overlapping(batches, start_offset, end_offset)
            if len(selected):
                bad = first_bad_crc(data, selected, position) if check_crcs else -1
                whole = selected if bad < 0 else selected[:bad]
                if len(whole):
                    yield BatchRun(self.file, data, position, whole, has_timestamps)
                if bad >= 0:
                    verify_crcs(data, selected[bad:], data_position=position, file=self.file)
            position += scan.consumed_bytes
            if len(batches):
                self.reached_offset = int(batches["last_offset"][-1]) + 1
            if self.reached_offset >= end_offset:
                if not len(selected) or selected["last_offset"][-1] < end_offset - 1:
                    self._check_jump(scan.fault, position)
                return
            if scan.fault is not None:
                raise scan.fault
            batch_bytes = 0 if scan.consumed_bytes else self._whole_batch_bytes(position)
            chunk_bytes = min(chunk_bytes * 2, CHUNK_BYTES)

    def batches(
        self,
        position: int,
        *,
        start_offset: int,
        end_offset: int,
        limit_offset: int | None = None,
        limit_now: Callable[[], int | None] | None = None,
    ) -> Iterator[tuple[int, Buffer]]:
        """Position and bytes of each batch from byte `position` on that overlaps [start_offset, end_offset).

        As `runs`, but one by one and without compiled code; meant for a few batches.
        """
        limit = self._limit(limit_offset, end_offset)
        while position < self.size_bytes:
            if position + RECORD_BATCH_OVERHEAD_BYTES > self.size_bytes:
                self._whole_batch_bytes(position)
            header = self.header_at(position)
            if position + header.size_bytes > self.size_bytes:
                self._whole_batch_bytes(position)
            if limit_now is not None and header.last_offset >= limit:
                limit = self._limit(limit_now(), end_offset)
            if header.base_offset < self.reached_offset:
                raise self._too_low(position, header.base_offset, header.last_offset)
            if header.last_offset >= limit:
                raise self._too_high(position, header.base_offset, header.last_offset, limit)
            is_in_range = header.last_offset >= start_offset and header.base_offset < end_offset
            if is_in_range:
                data = self.batch_at(position, header)
                check_crc(data, BatchHeader.unpack(data), file=self.file, file_position=position)
                yield position, data
            position += header.size_bytes
            self.reached_offset = header.next_offset
            if self.reached_offset >= end_offset:
                if not is_in_range:
                    self._check_jump(None, position)
                return

    def _limit(self, limit_offset: int | None, end_offset: int) -> int:
        """The offset that no batch may reach: the next segment's, or the first one that does not fit the indexes.

        The log of a broker before Kafka 1.0 may have others in one segment, which its high watermark confirms.
        """
        indexed = self.base_offset + MAX_RELATIVE_OFFSET + 1
        return min(limit_offset or _NO_LIMIT, indexed if end_offset <= indexed else _NO_LIMIT)

    def _check_offsets(self, batches: NDArray[np.void], limit_offset: int) -> None:
        """Raise CorruptRecordError for a batch below the ones before it, or outside its segment."""
        first, last = batches[0], batches[-1]
        if first["base_offset"] < self.reached_offset:
            raise self._too_low(*_place(first))
        if last["last_offset"] >= limit_offset:
            outside = batches[int(batches["last_offset"].searchsorted(limit_offset))]
            raise self._too_high(*_place(outside), limit_offset)

    def _too_low(self, position: int, base_offset: int, last_offset: int) -> CorruptRecordError:
        expected = f"a base offset of {self.reached_offset} or above"
        return self._wrong_offset(position, base_offset, last_offset, expected)

    def _too_high(self, position: int, base_offset: int, last_offset: int, limit_offset: int) -> CorruptRecordError:
        expected = f"offsets below {limit_offset}, where the segment ends"
        return self._wrong_offset(position, base_offset, last_offset, expected)

    def _wrong_offset(self, position: int, base_offset: int, last_offset: int, expected: str) -> CorruptRecordError:
        found = f"offsets {base_offset} to {last_offset}"
        return CorruptRecordError(file=self.file, position=position, expected=expected, found=found)

    def _check_jump(self, fault: DiskFormatError | None, position: int) -> None:
        """After a batch that jumps past the end of the range, check with the next batch whether its offset is right."""
        if fault is not None:
            raise fault
        if position + RECORD_BATCH_OVERHEAD_BYTES <= self.size_bytes:
            header = self.header_at(position)
            if header.base_offset < self.reached_offset:
                raise CorruptRecordError(
                    file=self.file,
                    position=position,
                    expected=f"a base offset of {self.reached_offset} or above",
                    found=str(header.base_offset),
                )

    def cut_points(
        self, start_offset: int, end_offset: int, *, first_bytes: int, each_bytes: int
    ) -> Iterator[tuple[int, int]]:
        """Points to split [start_offset, end_offset) at: (offset, bytes since the previous point), `end_offset` last.

        The first point is after about `first_bytes`, the others `each_bytes` apart, always after an indexed batch. They
        come from the index alone: a wrong index causes uneven splits, never wrong records.
        """
        offsets, positions = self._index_arrays()
        position = _position_before(offsets, positions, start_offset)
        end_position = self.size_bytes
        if len(offsets) and offsets[-1] >= end_offset:
            end_position = _position_before(offsets, positions, end_offset)
        if end_position - position >= first_bytes:
            inside = (offsets >= start_offset) & (offsets < end_offset - 1)
            offsets, positions = offsets[inside], positions[inside]
            at = int(positions.searchsorted(position + first_bytes))
            while at < len(positions):
                yield int(offsets[at]) + 1, int(positions[at]) - position
                position = int(positions[at])
                at = max(at + 1, int(positions.searchsorted(position + each_bytes)))
        yield end_offset, max(end_position - position, 0)

    def _index_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and positions of the offset index's entries; empty if the index is unusable."""
        import numpy as np  # what reads a few batches needs no arrays

        if self._offset_index is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        entries = self._offset_index.entries_array()
        return np.ascontiguousarray(entries["offset"]), np.ascontiguousarray(entries["position"])

    def _whole_batch_bytes(self, position: int) -> int:
        """Length of the batch at `position`, which the file, at its present size, must hold completely."""
        self.size_bytes = self._source.size_bytes()
        left = self.size_bytes - position
        head = self._source.read(position, RECORD_BATCH_OVERHEAD_BYTES)
        expected = RECORD_BATCH_OVERHEAD_BYTES
        if len(head) >= LOG_OVERHEAD_BYTES:  # a length below that of a header is noise
            expected = max(LOG_OVERHEAD_BYTES + int.from_bytes(head[8:12], "big", signed=True), expected)
        if is_old(head):
            expected = old_size_bytes(head)
        if expected > left or expected > BATCH_BYTES_MAX:
            raise CorruptRecordError(
                file=self.file,
                position=position,
                expected=f"a whole batch of {expected} bytes (at most {BATCH_BYTES_MAX})",
                found=f"{left} bytes to the end of the file",
                advice="a torn tail is cut when the log is next opened for writing",
            )
        return expected

    def _short_read(self, position: int, expected_bytes: int, found_bytes: int) -> CorruptRecordError:
        """A source that ends before its size, as a file does that is truncated meanwhile."""
        return CorruptRecordError(
            file=self.file,
            position=position,
            expected=f"{expected_bytes} bytes, of {self.size_bytes} in all",
            found=f"{found_bytes} bytes",
        )


def _place(batch: np.void) -> tuple[int, int, int]:
    """Position, base offset and last offset of a row of a batch table."""
    return int(batch["position"]), int(batch["base_offset"]), int(batch["last_offset"])


def _reused_buffer() -> Callable[[int], NDArray[np.uint8]]:
    """Returns the same memory for each call, until a call needs more."""
    import numpy as np

    held = np.empty(0, np.uint8)

    def take(size_bytes: int) -> NDArray[np.uint8]:
        nonlocal held
        if len(held) < size_bytes:
            held = np.empty(size_bytes, np.uint8)  # bounded: a chunk, or a batch of BATCH_BYTES_MAX
        return held

    return take


def _overlapping(batches: NDArray[np.void], start_offset: int, end_offset: int) -> NDArray[np.void]:
    """The rows of a batch table (offsets increasing) that overlap [start_offset, end_offset)."""
    first = int(batches["last_offset"].searchsorted(start_offset, side="left"))
    return batches[first : max(first, int(batches["base_offset"].searchsorted(end_offset, side="left")))]


def _position_before(offsets: NDArray[np.int64], positions: NDArray[np.int64], offset: int) -> int:
    """Position of the last index entry below `offset`, 0 without one."""
    at = int(offsets.searchsorted(offset)) - 1
    return int(positions[at]) if at >= 0 else 0
