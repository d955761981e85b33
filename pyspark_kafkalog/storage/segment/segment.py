"""One segment: a `.log` file with the indexes of the same base offset, open for its writer.

    <base offset>.log          batch, batch, … each a 61-byte header and its records; nothing before, between or after
    <base offset>.index        see artefacts.index_file
    <base offset>.timeindex    see artefacts.index_file
    <base offset>.txnindex     see artefacts.transaction_index; only if a transaction was aborted

The names have an additional suffix while the segment is being deleted or swapped in. The base offset is the smallest
offset that the segment may hold.

Bytes are appended to the `.log` first, index entries after them: a crash leaves at worst a torn batch at the end, and
indexes that end before or after the end of the log; recovery repairs both. A writer keeps its own size and does not use
the file's: bytes past it were left by a crash. `read_chunks` ends before a torn last batch, and raises only for bytes
that cannot be the start of a batch. Source of the rules: org.apache.kafka.storage.internals.log.LogSegment.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError
from pyspark_kafkalog.record.columns import assigned_heads
from pyspark_kafkalog.record.header import (
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD_BYTES,
    Buffer,
    check_length_and_magic,
    parse_header,
)
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.storage.artefacts.index_file import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex, TimestampOffset
from pyspark_kafkalog.storage.artefacts.transaction_index import TransactionIndex
from pyspark_kafkalog.storage.below_root import status_of
from pyspark_kafkalog.storage.filesystem import FileSystem, pread, preadv
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_file_name,
)
from pyspark_kafkalog.storage.segment.index_entries import (
    IndexEntries,
    RunPlan,
    SegmentCounters,
    SegmentLimits,
    plan_entries,
    plan_run,
)
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX, CHUNK_BYTES
from pyspark_kafkalog.units import INT64_MAX, KIB

_CLOSED: Final = -1
#: Fewer bytes are not worth a write of their own, and two of their ends, for which somebody waits.
_UNCACHED_BYTES_MIN: Final = 256 * KIB
_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class SegmentFiles:
    """Files of the segment at `base_offset`; `suffix` follows the usual suffixes, '' for a segment in use."""

    def __init__(
        self, directory: Path, base_offset: int, config: LogConfig, *, fs: FileSystem, suffix: str = ""
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.config = config
        self.fs = fs
        self._paths: dict[str, Path] = {}
        self._fd = _CLOSED
        self._inode: int | None = None  # of the open `.log`, once it was asked for
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None

    def path(self, suffix: str) -> Path:
        """Path of the segment's file with `suffix`."""
        path = self._paths.get(suffix)
        if path is None:
            path = self._paths[suffix] = self.directory / (offset_file_name(self.base_offset, suffix) + self.suffix)
        return path

    @property
    def log_path(self) -> Path:
        return self.path(LOG_SUFFIX)

    @property
    def fd(self) -> int:
        """Descriptor of the `.log` file, which is created if it does not exist."""
        if self._fd == _CLOSED:
            self._fd = self.fs.open(self.log_path, os.O_RDWR | os.O_CREAT)
        return self._fd

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._offset_index = OffsetIndex.open(
                self.path(INDEX_SUFFIX),
                self.base_offset,
                max_index_bytes=self.config.segment_index_bytes,
                writable=True,
                fs=self.fs,
            )
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._time_index = TimeIndex.open(
                self.path(TIME_INDEX_SUFFIX),
                self.base_offset,
                max_index_bytes=self.config.segment_index_bytes,
                writable=True,
                fs=self.fs,
            )
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        if self._txn_index is None:
            self._txn_index = TransactionIndex.open(
                self.path(TXN_INDEX_SUFFIX), self.base_offset, writable=True, fs=self.fs
            )
        return self._txn_index

    @property
    def is_open(self) -> bool:
        """Whether any of the files is open."""
        indexes = (self._offset_index, self._time_index, self._txn_index)
        return self._fd != _CLOSED or any(index is not None for index in indexes)

    def create(self) -> None:
        """Create the `.log` and the preallocated indexes, after removing existing files of these names."""
        self.delete()
        assert self.fd >= 0
        self.make_room()

    def make_room(self) -> None:
        """Preallocate the indexes to `segment.index.bytes`, as for the active segment."""
        self.offset_index.resize(self.config.segment_index_bytes)
        self.time_index.resize(self.config.segment_index_bytes)

    def reserve_room(self) -> None:
        """As `make_room`, for a writer that trims the indexes soon: the files grow with their appends."""
        self.offset_index.reserve(self.config.segment_index_bytes)
        self.time_index.reserve(self.config.segment_index_bytes)

    def clear_indexes(self) -> None:
        """Empty and preallocate all indexes, before they are rebuilt from the `.log`."""
        self.offset_index.reset()
        self.time_index.reset()
        self.txn_index.reset()

    def flush(self) -> None:
        """Wait until the `.log` is on disk, then the indexes, so that an index on disk never ends past the log."""
        for wait in self.flush_calls():
            wait()

    def flush_calls(self) -> list[Callable[[], None]]:
        """The calls that `flush` makes one after the other; they may also be made side by side."""
        calls: list[Callable[[], None]] = [partial(self.fs.fsync, self.fd)]
        for index in (self._offset_index, self._time_index, self._txn_index):
            if index is not None and index.is_changed:
                calls.append(index.flush)
        return calls

    def trim_indexes(self) -> None:
        """Shorten the indexes to their entries; the next append has to make room again."""
        self.offset_index.trim()
        self.time_index.trim()

    def take_log(self, path: Path, fd: int) -> None:
        """Replace the segment's `.log` by the file at `path`, open as `fd`, which keeps both names."""
        self.fs.unlink_if_there(self.log_path)
        self.fs.link(path, self.log_path)
        self._close_log()
        self._fd = fd

    def replace_log_by_empty(self) -> None:
        """Replace the `.log` by an empty file. It is not truncated, as a staged file may share its bytes."""
        self._close_log()
        self.fs.unlink(self.log_path)
        assert self.fd >= 0

    def close_files(self) -> None:
        """Trim the indexes and close all files."""
        indexes = (self._offset_index, self._time_index, self._txn_index)
        self._offset_index = self._time_index = self._txn_index = None
        with contextlib.ExitStack() as closing:
            closing.callback(self._close_log)
            for index in indexes:
                if index is not None:
                    closing.callback(index.close)

    def delete(self) -> None:
        """Close and remove the files, the `.log` first: the next load removes indexes without a `.log`."""
        self.close_files()
        for kind in _SUFFIXES:
            self.fs.unlink_if_there(self.path(kind))

    def _close_log(self) -> None:
        if self._fd != _CLOSED:
            fd, self._fd, self._inode = self._fd, _CLOSED, None
            self.fs.close(fd)


@dataclass(frozen=True, slots=True)
class BatchChunk:
    """Consecutive whole batches: `data` (uint8) starts at byte `position` of the file, `batches` has BATCH_DTYPE."""

    data: NDArray[np.uint8]
    position: int
    batches: NDArray[np.void]

    @property
    def end_position(self) -> int:
        """The byte after the last batch."""
        last = self.batches[-1]
        return int(last["position"]) + int(last["size_bytes"])


def read_range(fd: int, position: int, length: int) -> NDArray[np.uint8]:
    """Up to `length` bytes from byte `position` on; fewer only at the end of the file."""
    buffer = np.empty(length, dtype=np.uint8)  # bounded: a chunk, or a batch of BATCH_BYTES_MAX
    view = memoryview(buffer.data)
    done = 0
    while done < length:
        count = preadv(fd, view[done:], position + done)
        if count == 0:
            break
        done += count
    return buffer[:done]


def read_chunks(
    fd: int,
    *,
    file: str,
    start: int,
    end: int,
    base_offset: int,
    max_offset: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[BatchChunk]:
    """Yield the batches that are whole in bytes [start, end), in chunks of at most about `chunk_bytes`.

    Ends before an incomplete last batch. Offsets must increase, and be within 2^31 of the segment's `base_offset`, or
    up to `max_offset` if that is larger.
    Raises CorruptRecordError or UnsupportedFormatError at the first bad header, after the batches before it were
    yielded.
    """
    position = start
    min_offset = base_offset
    max_offset = min(max(base_offset + MAX_RELATIVE_OFFSET, max_offset or 0), INT64_MAX)
    length = chunk_bytes
    while position < end:
        data = read_range(fd, position, min(length, end - position))
        scan = scan_batches(data, file=file, file_position=position)
        length = chunk_bytes
        if len(scan.batches):
            _check_first_offset(scan.batches, min_offset, file=file)
            min_offset = int(scan.batches["last_offset"][-1]) + 1
            within = int(np.searchsorted(scan.batches["last_offset"], max_offset, side="right"))
            if within:
                yield BatchChunk(data, position, scan.batches[:within])
            if within < len(scan.batches):
                raise _out_of_reach(scan.batches[within], max_offset, file=file)
            position += scan.consumed_bytes
        if scan.fault is not None:
            raise scan.fault
        if not len(scan.batches):
            whole = _batch_bytes(data, file=file, position=position)
            if whole is None or whole > end - position or len(data) >= whole:
                return
            length = whole


def patch_headers(fs: FileSystem, fd: int, batches: NDArray[np.void], position: int) -> None:
    """Write base offset, length and leader epoch of each of `batches`, stored back to back from byte `position` on.

    The log assigns these 16 bytes; the CRC does not cover them.
    """
    flat = assigned_heads(batches).tobytes()
    for row, at in enumerate((position + _positions(batches)).tolist()):
        fs.pwrite_all(fd, flat[row * MAGIC_AT : (row + 1) * MAGIC_AT], at)


def set_headers(data: NDArray[np.uint8], batches: NDArray[np.void]) -> None:
    """As `patch_headers`, in `data`, which holds the batches back to back."""
    data[_positions(batches)[:, None] + np.arange(MAGIC_AT)] = assigned_heads(batches)


def _positions(batches: NDArray[np.void]) -> NDArray[np.int64]:
    """Where the batches begin if they are back to back."""
    positions: NDArray[np.int64] = np.cumsum(batches["size_bytes"]) - batches["size_bytes"]
    return positions


def _out_of_reach(batch: np.void, max_offset: int, *, file: str) -> CorruptRecordError:
    return CorruptRecordError(
        file=file,
        position=int(batch["position"]),
        expected=f"offsets of at most {max_offset}, the largest that the segment's indexes can hold",
        found=str(int(batch["last_offset"])),
    )


def _check_first_offset(batches: NDArray[np.void], min_offset: int, *, file: str) -> None:
    found = int(batches["base_offset"][0])
    if found < min_offset:
        raise CorruptRecordError(
            file=file,
            position=int(batches["position"][0]),
            expected=f"a base offset of at least {min_offset}",
            found=str(found),
        )


def _batch_bytes(data: NDArray[np.uint8], *, file: str, position: int) -> int | None:
    """Length of the batch that `data` starts with; None if even its length field is cut off."""
    if len(data) <= MAGIC_AT:
        return None
    batch_length = int.from_bytes(data[LENGTH_AT : LENGTH_AT + 4].tobytes(), "big", signed=True)
    check_length_and_magic(batch_length, int(data[MAGIC_AT].view(np.int8)), file=file, file_position=position)
    if batch_length + LOG_OVERHEAD_BYTES > BATCH_BYTES_MAX:
        raise CorruptRecordError(
            file=file,
            position=position + LENGTH_AT,
            expected=f"a batch of at most {BATCH_BYTES_MAX} bytes",
            found=str(batch_length + LOG_OVERHEAD_BYTES),
        )
    return batch_length + LOG_OVERHEAD_BYTES


class LogSegment(SegmentFiles):
    """A segment open for writing; `size_bytes` is the valid length of the `.log`.

    `created_ms` is the time at which this writer opened or created it; segments without timestamps roll by it.
    `counters`, if given, describes the segment's content; otherwise it is read from the files when needed.
    """

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        *,
        fs: FileSystem,
        created_ms: int,
        jitter_ms: int = 0,
        suffix: str = "",
        counters: SegmentCounters | None = None,
    ) -> None:
        super().__init__(directory, base_offset, config, fs=fs, suffix=suffix)
        self.created_ms = created_ms
        self.bytes_since_last_index_entry = 0
        self._jitter_ms = jitter_ms
        self._size_bytes = -1
        self._first_timestamp_ms: int | None = None
        self._max_timestamp: TimestampOffset | None = None
        if counters is not None:
            self.set_counters(counters)

    @property
    def size_bytes(self) -> int:
        if self._size_bytes < 0:
            self._size_bytes = os.fstat(self.fd).st_size
        return self._size_bytes

    def is_in_place(self) -> bool:
        """Whether the names still refer to the open files, which have the lengths that this writer has left."""
        try:
            found = status_of(self.log_path)
        except FileNotFoundError:
            return False
        if self._inode is None:
            self._inode = os.fstat(self.fd).st_ino
        is_same = found.st_ino == self._inode and found.st_size == self.size_bytes
        return is_same and self.offset_index.is_in_place() and self.time_index.is_in_place()

    # What the segment holds

    def chunks(self, position: int = 0, end: int | None = None) -> Iterator[BatchChunk]:
        """Batches from byte `position` on, where a batch must start; see `read_chunks`. CRCs are not checked."""
        end = self.size_bytes if end is None else end
        return read_chunks(self.fd, file=str(self.log_path), start=position, end=end, base_offset=self.base_offset)

    def first_timestamp_ms(self) -> int:
        """Largest timestamp of the first batch, the start of time-based rolling; -1 if empty or without timestamps."""
        if self._first_timestamp_ms is None:
            self._first_timestamp_ms = self._read_first_timestamp()
        return self._first_timestamp_ms

    def max_timestamp(self) -> TimestampOffset:
        """Largest timestamp and the last offset of the batch that first had it; read from the time index if unknown."""
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last_entry
        return self._max_timestamp

    def counters(self) -> SegmentCounters:
        """The state that the next append depends on."""
        timestamp = self.max_timestamp()
        return SegmentCounters(
            size_bytes=self.size_bytes,
            first_timestamp_ms=self.first_timestamp_ms(),
            max_timestamp_ms=timestamp.timestamp_ms,
            max_timestamp_offset=timestamp.offset,
            bytes_since_last_index_entry=self.bytes_since_last_index_entry,
        )

    def position_at_or_before(self, offset: int) -> int:
        """A position, by the index, where a batch starts and at or after which `offset` and all later ones are stored.

        0 if the index is not reliable.
        """
        entry = self.offset_index.lookup(offset)
        if entry.position == 0 or entry.position >= self.size_bytes:
            return 0
        head = pread(self.fd, RECORD_BATCH_OVERHEAD_BYTES, entry.position)
        try:
            header = parse_header(head, 0, file=str(self.log_path), file_position=entry.position)
        except DiskFormatError:
            return 0
        return entry.position if header.last_offset == entry.offset else 0

    def read_next_offset(self) -> int:
        """The offset after the last batch, read from the last index entry on; the base offset if empty.

        Raises CorruptRecordError if the batches do not fill the `.log`, which then was not closed cleanly.
        """
        next_offset, end_position = self.base_offset, 0
        for chunk in self.chunks(self.position_at_or_before(self.offset_index.last_offset)):
            next_offset, end_position = int(chunk.batches["last_offset"][-1]) + 1, chunk.end_position
        self._check_filled(end_position)
        return next_offset

    def _check_filled(self, end_position: int) -> None:
        if end_position != self.size_bytes:
            raise CorruptRecordError(
                file=str(self.log_path),
                position=end_position,
                expected=f"batches up to byte {self.size_bytes}",
                found="a torn batch",
                advice="open the log as after an unclean shutdown, which cuts it there",
            )

    def _read_first_timestamp(self) -> int:
        if self.size_bytes < RECORD_BATCH_OVERHEAD_BYTES:
            return NO_TIMESTAMP
        head = pread(self.fd, RECORD_BATCH_OVERHEAD_BYTES, 0)
        return parse_header(head, 0, file=str(self.log_path), file_position=0).max_timestamp_ms

    # Appending

    def plan(self, batches: NDArray[np.void], *, now_ms: int) -> RunPlan:
        """How many of `batches` (BATCH_DTYPE, final offsets) fit before the segment must roll, with one append each."""
        return plan_run(batches, self.counters(), self._limits(now_ms))

    def append(self, data: Buffer, plan: RunPlan, *, is_read_soon: bool = True) -> None:
        """Write `data`, the bytes of the batches of `plan`, and then their index entries.

        Unless they are read soon, large ones need no room in the page cache.
        """
        is_cached = is_read_soon or len(data) < _UNCACHED_BYTES_MIN
        write = self.fs.pwrite_all if is_cached else self.fs.pwrite_uncached
        write(self.fd, data, self.size_bytes)
        self._appended(plan)

    def drop_cached(self, length: int) -> None:
        """Advise the kernel not to keep the last `length` bytes of the `.log` in memory; see FileSystem.drop_cached."""
        position = max(self.size_bytes - length, 0)
        self.fs.drop_cached(self.fd, position, self.size_bytes - position)

    def append_from_file(self, source_fd: int, source_position: int, batches: NDArray[np.void], plan: RunPlan) -> None:
        """Copy the batches from another file inside the kernel, and set the base offset and leader epoch of each.

        `batches` has their final offsets and epochs; they are stored back to back from byte `source_position` of the
        source.
        """
        start = self.size_bytes
        length = plan.counters.size_bytes - start
        self.fs.copy_range(source_fd, source_position, self.fd, start, length)
        patch_headers(self.fs, self.fd, batches, start)
        self._appended(plan)

    def splice(self, path: Path, batches: NDArray[np.void], *, now_ms: int) -> None:
        """Make the file at `path` this empty segment's `.log`: its headers are patched in place, then it is linked.

        It also keeps its other name, for a retry if this append is not committed. The caller makes data and name
        durable.
        """
        assert self.size_bytes == 0
        plan = self.plan(batches, now_ms=now_ms)
        assert plan.count == len(batches)
        fd = self.fs.open(path, os.O_RDWR)
        try:
            patch_headers(self.fs, fd, batches, 0)
            self.take_log(path, fd)
        except BaseException:
            self.fs.close(fd)
            raise
        self._appended(plan)

    def _limits(self, now_ms: int) -> SegmentLimits:
        time_index = self.time_index
        offset_index = self.offset_index
        return SegmentLimits(
            base_offset=self.base_offset,
            segment_bytes=self.config.segment_bytes,
            roll_after_ms=self.config.max_segment_ms - self._jitter_ms,
            index_interval_bytes=self.config.index_interval_bytes,
            offset_entries_left=offset_index.max_entries - offset_index.entries,
            time_entries_left=time_index.max_entries - 1 - time_index.entries,
            last_time_entry_ms=time_index.last_entry.timestamp_ms,
            waited_without_timestamps_ms=now_ms - self.created_ms,
        )

    def _appended(self, plan: RunPlan) -> None:
        self.set_counters(plan.counters)
        self._add_index_entries(plan.entries)

    def index_batches(self, batches: NDArray[np.void], counters: SegmentCounters) -> SegmentCounters:
        """Add the index entries of stored `batches`, which follow those in `counters`; returns the new counters."""
        plan = plan_entries(batches, counters, self._limits(self.created_ms))
        self._add_index_entries(plan.entries)
        return plan.counters

    def _add_index_entries(self, entries: IndexEntries) -> None:
        """Add the entries that fit: a rebuilt index of a large segment may have more than there is room for."""
        offset_index, time_index = self.offset_index, self.time_index
        if len(entries.offsets):
            room = offset_index.max_entries - offset_index.entries
            offset_index.append_many(entries.offsets[:room], entries.positions[:room])
        if len(entries.timestamps_ms):
            room = max(time_index.max_entries - 1 - time_index.entries, 0)
            time_index.maybe_append_many(entries.timestamps_ms[:room], entries.time_offsets[:room])

    # Truncation and rebuilding

    def cut(self, size_bytes: int) -> None:
        """Set the `.log` file's length and the segment's size."""
        self.fs.truncate(self.fd, size_bytes)
        self._size_bytes = size_bytes

    def rebuild_indexes(self) -> None:
        """Rebuild offset and time index from the `.log`, whose batches are known to be valid.

        Raises CorruptRecordError if the batches do not fill the segment.
        """
        self.offset_index.reset()
        self.time_index.reset()
        counters = SegmentCounters(max_timestamp_offset=self.base_offset)
        for chunk in self.chunks():
            counters = self.index_batches(chunk.batches, counters)
        self._check_filled(counters.size_bytes)
        self.set_counters(counters)

    def set_counters(self, counters: SegmentCounters) -> None:
        """Set the counters to the segment's present content."""
        self._size_bytes = counters.size_bytes
        self._first_timestamp_ms = counters.first_timestamp_ms
        self._max_timestamp = TimestampOffset(counters.max_timestamp_ms, counters.max_timestamp_offset)
        self.bytes_since_last_index_entry = counters.bytes_since_last_index_entry

    def become_inactive(self) -> None:
        """Close the segment in a roll: add the closing time index entry and trim the indexes."""
        self._add_closing_entry()
        self.trim_indexes()

    def _add_closing_entry(self) -> None:
        timestamp = self.max_timestamp()
        self.time_index.maybe_append(timestamp.timestamp_ms, timestamp.offset, skip_full_check=True)

    def read_max_timestamp(self) -> None:
        """Find the largest timestamp: that of the last time index entry, or a larger one in the batches after it."""
        best = self.time_index.last_entry
        for chunk in self.chunks(self.position_at_or_before(best.offset)):
            at = int(np.argmax(chunk.batches["max_timestamp_ms"]))
            if int(chunk.batches["max_timestamp_ms"][at]) > best.timestamp_ms:
                best = TimestampOffset(
                    int(chunk.batches["max_timestamp_ms"][at]), int(chunk.batches["last_offset"][at])
                )
        self._max_timestamp = best

    def close(self) -> None:
        """Kafka's clean close: add the closing time index entry, trim the indexes, close the files."""
        if self._max_timestamp is not None:
            self._add_closing_entry()
        self.close_files()


class SegmentList:
    """The segments of one log by base offset; each holds the offsets from its base to below the next one's.

    The last one is active: appends go only to it. The closed segments of a resumed log are made when they are needed:
    `closed` lists their base offsets at the first need, `make` makes one of them. An append needs none.
    """

    def __init__(
        self,
        active: LogSegment | None = None,
        *,
        closed: Callable[[], Sequence[int]] | None = None,
        make: Callable[[int], LogSegment] | None = None,
    ) -> None:
        self._made = {} if active is None else {active.base_offset: active}
        self._bases = [*self._made]
        self._active = active  # None: to be found in the list
        self._closed = closed
        self._make = make

    def __len__(self) -> int:
        return len(self._all_bases())

    def __iter__(self) -> Iterator[LogSegment]:
        return map(self._segment, self.base_offsets)

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(self._all_bases())

    @property
    def first(self) -> LogSegment:
        return self._segment(self._all_bases()[0])

    @property
    def active(self) -> LogSegment:
        if self._active is None:
            self._active = self._segment(self._bases[-1])
        return self._active

    @property
    def made(self) -> tuple[LogSegment, ...]:
        """The segments that were asked for: no other one can have an open file."""
        return tuple(self._made.values())

    def add(self, segment: LogSegment) -> None:
        """Insert `segment` in order; replaces one with the same base offset."""
        bases = self._bases_from(segment.base_offset)
        at = bisect.bisect_left(bases, segment.base_offset)
        if bases[at : at + 1] != [segment.base_offset]:
            bases.insert(at, segment.base_offset)
        self._made[segment.base_offset] = segment
        self._active = None

    def remove(self, base_offset: int) -> None:
        """Remove a segment from the list; the caller deletes its files."""
        self._bases_from(base_offset).remove(base_offset)
        self._made.pop(base_offset, None)
        self._active = None

    def from_offset(self, offset: int) -> tuple[LogSegment, ...]:
        """The segment whose range contains `offset`, and all after it; all segments if `offset` is below the first."""
        bases = self._bases_from(offset)
        return tuple(map(self._segment, bases[max(bisect.bisect_right(bases, offset) - 1, 0) :]))

    def above(self, offset: int) -> tuple[LogSegment, ...]:
        """The segments whose base offset is above `offset`."""
        bases = self._bases_from(offset)
        return tuple(map(self._segment, bases[bisect.bisect_right(bases, offset) :]))

    def before(self, offset: int) -> Iterator[LogSegment]:
        """The segments whose base offset is below `offset`, the last one first."""
        bases = self._all_bases()
        return map(self._segment, reversed(bases[: bisect.bisect_left(bases, offset)]))

    def _segment(self, base_offset: int) -> LogSegment:
        segment = self._made.get(base_offset)
        if segment is None:
            assert self._make is not None
            segment = self._made[base_offset] = self._make(base_offset)
        return segment

    def _bases_from(self, offset: int) -> list[int]:
        """The base offsets; those of the closed segments may be missing if `offset` is above all of their offsets."""
        return self._bases if self._bases and self._bases[0] <= offset else self._all_bases()

    def _all_bases(self) -> list[int]:
        if self._closed is not None:
            closed, self._closed = self._closed, None
            self._bases[:0] = closed()
        return self._bases
