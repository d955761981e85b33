"""Checks the offset and time index of a segment against its batches, entry by entry, while the segment is read.

An entry of the offset index is correct if a batch begins at its position, and its offset is in that batch or is the
last one of a later batch: brokers before 4.0 wrote one entry for several batches that arrived together. An entry of the
time index is correct if the batch with its offset has that timestamp and no earlier batch a larger one. The number of
entries may differ from that which the current `index.interval.bytes` would give.

    entries | zeros up to the preallocated length, in the active segment, and after a crash

The leader epochs of batches are compared with those that a checkpoint or a commit says (`KnownEpochs`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.maintenance.verify.findings import REINDEX, FindingSink, Severity
from pyspark_kafkalog.record.header import NO_TIMESTAMP, Buffer
from pyspark_kafkalog.storage.artefacts.index_file import MAX_INDEX_BYTES, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from pyspark_kafkalog.storage.filesystem import pread

_ENTRIES_A_READ: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class IndexExpectation:
    """Entries at or above offset `visible_end` are ignored. `severity` is that of faults found without the batches.

    `advice` is what findings tell to do.
    """

    visible_end: int
    may_have_zeros: bool
    severity: Severity
    advice: str = REINDEX


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The bytes of an index. `read(size_bytes, position)` returns some of them, fewer only at the end.

    `file` is what findings call the index: its path, or the name of an object.
    """

    file: Path | str
    size_bytes: int
    read: Callable[[int, int], Buffer]

    @classmethod
    def of_file(cls, fd: int, path: Path) -> StoredIndex:
        """The index file open as `fd`."""
        return cls(path, os.fstat(fd).st_size, partial(pread, fd))

    @classmethod
    def of_bytes(cls, data: Buffer, file: Path | str) -> StoredIndex:
        """An index in memory."""
        return cls(file, len(data), lambda size_bytes, position: data[position : position + size_bytes])


class CheckedEntries:
    """The entries of one index, in order, read in blocks; they end before the first invalid one."""

    def __init__(
        self, index: StoredIndex, dtype: np.dtype[Any], base_offset: int, sink: FindingSink, expected: IndexExpectation
    ) -> None:
        self._index = index
        self._file = index.file
        self._dtype = dtype
        self._sink = sink
        self._max_relative_offset = expected.visible_end - 1 - base_offset
        self._may_have_zeros = expected.may_have_zeros
        self._severity = expected.severity
        self.advice = expected.advice
        self._are_positions = dtype == OFFSET_INDEX_ENTRY
        self._size_bytes = index.size_bytes
        self._read_bytes = 0
        self._block: NDArray[np.void] = np.empty(0, dtype=dtype)
        self._before: NDArray[np.void] | None = None
        self._is_ended = False
        self.taken = 0
        if self._size_bytes > MAX_INDEX_BYTES:  # a sparse file costs nothing, but each of its bytes would be read
            self._fault(
                "index-length", MAX_INDEX_BYTES, f"at most {MAX_INDEX_BYTES} bytes", f"{self._size_bytes} bytes"
            )
            self._is_ended = True
        elif self._size_bytes % dtype.itemsize and not expected.may_have_zeros:
            self._fault(
                "index-length",
                self._size_bytes - self._size_bytes % dtype.itemsize,
                f"a file of whole entries of {dtype.itemsize} bytes",
                f"{self._size_bytes} bytes",
            )

    def take(self, condition: Callable[[NDArray[np.void]], NDArray[np.bool_]]) -> NDArray[np.void]:
        """The next entries that fulfil a condition, which holds for a prefix of the remaining ones."""
        parts = []
        while True:
            if not len(self._block):
                self._read()
                if not len(self._block):
                    break
            fulfilled = condition(self._block)
            count = len(self._block) if fulfilled.all() else int(np.argmin(fulfilled))
            parts.append(self._block[:count])
            self._block = self._block[count:]
            self.taken += count
            if len(self._block):
                break
        return np.concatenate(parts) if parts else self._block

    def position_of(self, row: int) -> int:
        """The byte position of entry number `row`."""
        return row * self._dtype.itemsize

    def add_fault(self, row: int, what: str, *, offset: int, expected: str, found: str) -> None:
        """Report that entry number `row`, which has `offset`, contradicts the batches."""
        self._sink.add(
            Severity.ERROR,
            what,
            self._file,
            position=self.position_of(row),
            offset=offset,
            expected=expected,
            found=found,
            advice=self.advice,
        )

    def next_position_after(self, position: int) -> int | None:
        """In an offset index: the first position above `position` in the remaining entries."""
        while True:
            above = self._block["position"] > position if len(self._block) else np.empty(0, dtype=np.bool_)
            if above.any():
                return int(self._block["position"][int(above.argmax())])
            if self._is_ended:
                return None
            self.taken += len(self._block)
            self._read()
            if not len(self._block):
                return None

    def _read(self) -> None:
        """Read the next block, and check it as far as possible without the batches."""
        if self._is_ended:
            self._block = self._block[:0]
            return
        size = self._dtype.itemsize
        first = self._read_bytes // size
        data = self._index.read(min(_ENTRIES_A_READ * size, self._size_bytes - self._read_bytes), self._read_bytes)
        rows = np.frombuffer(data[: len(data) - len(data) % size], dtype=self._dtype)
        self._read_bytes += rows.nbytes
        self._is_ended = not len(rows)
        count = self._whole_entries(rows, first)
        if count < len(rows):
            self._is_ended = True
        self._block = rows[:count]
        if count:
            self._before = rows[count - 1 : count]

    def _whole_entries(self, rows: NDArray[np.void], first: int) -> int:
        """The number of leading `rows` that are valid entries; reports the first invalid one."""
        if not len(rows):
            return 0
        names = self._dtype.names
        assert names is not None
        fields = [rows[name].astype(np.int64) for name in names]
        is_zero = (fields[0] == 0) & (fields[1] == 0)
        bad = (fields[0] < 0) | (fields[1] < 0)
        relative_offsets = rows["relative_offset"].astype(np.int64)
        if self._are_positions:
            bad |= is_zero
        elif first == 0 and len(rows) > 1 and is_zero[:2].all():
            bad[0] = True  # a single zero is an entry: timestamp 0 at the base offset
        before = None if self._before is None else [self._before[name].astype(np.int64) for name in names]
        previous = [
            np.concatenate([[-1] if before is None else before[at], fields[at][:-1]]) for at in range(len(fields))
        ]
        bad |= fields[0] <= previous[0]
        bad |= fields[1] <= previous[1] if self._are_positions else fields[1] < previous[1]
        beyond = relative_offsets > self._max_relative_offset
        count = int((bad | beyond).argmax()) if (bad | beyond).any() else len(rows)
        if count == len(rows) or (beyond[count] and not bad[count]):
            return count  # uncommitted entries end them too
        if is_zero[count] and self._is_zero_from((first + count) * self._dtype.itemsize):
            if not self._may_have_zeros:
                self._fault("index-zeros", self.position_of(first + count), "the end of the file", "zeros up to it")
            return count
        self._fault(
            "index-order",
            self.position_of(first + count),
            f"an entry above {previous[0][count]}, {previous[1][count]} ({', '.join(names)})",
            f"{fields[0][count]}, {fields[1][count]}",
        )
        return count

    def _is_zero_from(self, position: int) -> bool:
        while position < self._size_bytes:
            data = bytes(self._index.read(_ENTRIES_A_READ, position))
            if data.count(0) != len(data):
                return False
            if not data:
                return True
            position += len(data)
        return True

    def _fault(self, what: str, position: int, expected: str, found: str) -> None:
        self._sink.add(
            self._severity, what, self._file, position=position, expected=expected, found=found, advice=self.advice
        )


class OffsetIndexCheck:
    """The offset index of the segment at `base_offset`."""

    def __init__(self, entries: CheckedEntries, base_offset: int) -> None:
        self.entries = entries
        self._base_offset = base_offset
        self.last_position = 0  # of the last entry, 0 without any

    def add(self, batches: NDArray[np.void]) -> None:
        """Check the entries with positions up to the end of these batches, the next of the segment."""
        end = int(batches["position"][-1]) + int(batches["size_bytes"][-1])
        first = self.entries.taken
        rows = self.entries.take(lambda block: block["position"] < end)
        if not len(rows):
            return
        positions = rows["position"].astype(np.int64)
        self.last_position = int(positions[-1])
        offsets = rows["relative_offset"].astype(np.int64) + self._base_offset
        at = np.minimum(np.searchsorted(batches["position"], positions), len(batches) - 1)
        is_right = (batches["position"][at] == positions) & (batches["base_offset"][at] <= offsets)
        last = np.minimum(np.searchsorted(batches["last_offset"], offsets), len(batches) - 1)
        is_right &= (batches["last_offset"][last] == offsets) | (offsets > int(batches["last_offset"][-1]))
        is_right |= positions < int(batches["position"][0])  # in damage that the walk has skipped
        for row in np.flatnonzero(~is_right).tolist():
            self.entries.add_fault(
                first + row,
                "offset-index-entry",
                offset=int(offsets[row]),
                expected="the position of a batch, and its last offset",
                found=f"position {int(positions[row])}, offset {int(offsets[row])}",
            )

    def finish(self, end_position: int) -> None:
        """After the last batch, which ends at byte `end_position`: check that no entry has a position past it."""
        first = self.entries.taken
        rows = self.entries.take(lambda block: np.ones(len(block), dtype=np.bool_))
        if len(rows):
            self.entries.add_fault(
                first,
                "offset-index-entry",
                offset=int(rows["relative_offset"][0]) + self._base_offset,
                expected=f"a position below {end_position}, where the segment ends",
                found=f"position {int(rows['position'][0])}",
            )


class TimeIndexCheck:
    """The time index of the segment at `base_offset`."""

    def __init__(self, entries: CheckedEntries, file: Path | str, base_offset: int, sink: FindingSink) -> None:
        self.entries = entries
        self._file = file
        self._base_offset = base_offset
        self._sink = sink
        self._largest_ms = NO_TIMESTAMP
        self._last_entry_ms = NO_TIMESTAMP

    def add(self, batches: NDArray[np.void]) -> None:
        """Check the entries with offsets up to the end of these batches, the next of the segment."""
        timestamps_ms = batches["max_timestamp_ms"].astype(np.int64)
        largest_ms = np.maximum(np.maximum.accumulate(timestamps_ms), self._largest_ms)
        last_relative = int(batches["last_offset"][-1]) - self._base_offset
        first = self.entries.taken
        rows = self.entries.take(lambda block: block["relative_offset"] <= last_relative)
        if len(rows):
            self._last_entry_ms = int(rows["timestamp_ms"][-1])
            self._compare(rows, first, batches, timestamps_ms, largest_ms)
        self._largest_ms = int(largest_ms[-1])

    def _compare(
        self,
        rows: NDArray[np.void],
        first: int,
        batches: NDArray[np.void],
        timestamps_ms: NDArray[np.int64],
        largest_ms: NDArray[np.int64],
    ) -> None:
        offsets = rows["relative_offset"].astype(np.int64) + self._base_offset
        at = np.minimum(np.searchsorted(batches["last_offset"], offsets), len(batches) - 1)
        entry_ms = rows["timestamp_ms"].astype(np.int64)
        is_right = (batches["base_offset"][at] <= offsets) & (timestamps_ms[at] == entry_ms)
        is_right &= largest_ms[at] == entry_ms
        for row in np.flatnonzero(~is_right).tolist():
            self.entries.add_fault(
                first + row,
                "time-index-entry",
                offset=int(offsets[row]),
                expected="the largest timestamp so far, and the last offset of the first batch with it",
                found=f"timestamp {int(entry_ms[row])}, offset {int(offsets[row])}",
            )

    def finish(self, *, is_closed: bool) -> None:
        """After the last batch: no entry may be past it, and that of a closed segment has the largest timestamp."""
        first = self.entries.taken
        rows = self.entries.take(lambda block: np.ones(len(block), dtype=np.bool_))
        if len(rows):
            self.entries.add_fault(
                first,
                "time-index-entry",
                offset=int(rows["relative_offset"][0]) + self._base_offset,
                expected="an offset of the segment",
                found=f"offset {int(rows['relative_offset'][0]) + self._base_offset}",
            )
        elif is_closed and self._last_entry_ms < self._largest_ms:
            self._sink.add(
                # Without entries the file's time counts instead; with a wrong one, retention deletes the segment early.
                Severity.ERROR if self._last_entry_ms >= 0 else Severity.WARNING,
                "time-index-end",
                self._file,
                position=self.entries.position_of(first),
                expected=f"a last entry with the largest timestamp of the closed segment, {self._largest_ms}",
                found="no entry" if self._last_entry_ms < 0 else f"timestamp {self._last_entry_ms}",
                advice=self.entries.advice,
            )


class IndexChecks:
    """The offset index and the time index of the segment at `base_offset`, as far as they are given."""

    def __init__(
        self,
        base_offset: int,
        offset_index: StoredIndex | None,
        time_index: StoredIndex | None,
        sink: FindingSink,
        expected: IndexExpectation,
    ) -> None:
        self.offsets: OffsetIndexCheck | None = None
        self._times: TimeIndexCheck | None = None
        if offset_index is not None:
            entries = CheckedEntries(offset_index, np.dtype(OFFSET_INDEX_ENTRY), base_offset, sink, expected)
            self.offsets = OffsetIndexCheck(entries, base_offset)
        if time_index is not None:
            entries = CheckedEntries(time_index, np.dtype(TIME_INDEX_ENTRY), base_offset, sink, expected)
            self._times = TimeIndexCheck(entries, time_index.file, base_offset, sink)

    def add(self, batches: NDArray[np.void], *, is_damaged: bool = False) -> None:
        """Check the entries up to the end of these batches, the next of the segment.

        `is_damaged`: bytes before or between them are no batches, so the time index may know earlier ones.
        """
        if self.offsets is not None:
            self.offsets.add(batches)
        if self._times is not None and not is_damaged:
            self._times.add(batches)

    def finish(self, end_position: int, *, is_closed: bool) -> None:
        """After the last batch, which ends at byte `end_position`."""
        if self.offsets is not None:
            self.offsets.finish(end_position)
        if self._times is not None:
            self._times.finish(is_closed=is_closed)

    def next_position_after(self, position: int) -> int | None:
        """The next position above `position` in the offset index."""
        return None if self.offsets is None else self.offsets.entries.next_position_after(position)


@dataclass(frozen=True, slots=True)
class KnownEpochs:
    """The leader epochs that a log is said to have, and where each begins."""

    epochs: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int]]) -> KnownEpochs:
        """Those of (epoch, start offset)."""
        epochs, starts = np.array(list(entries), np.int64).reshape(-1, 2).T
        return cls(epochs, starts)

    def first_wrong(self, batches: NDArray[np.void], *, are_whole: bool) -> tuple[int, int] | None:
        """The row of the first batch with another epoch, and the epoch that it should have; None without one.

        `are_whole`: no batch lies before the first epoch. Batches without an epoch are left out.
        """
        if not len(self.starts):
            return None
        at = np.searchsorted(self.starts, batches["base_offset"], side="right") - 1
        expected = self.epochs[np.maximum(at, 0)]
        is_wrong = expected != batches["leader_epoch"]
        is_wrong = is_wrong | (at < 0) if are_whole else is_wrong & (at >= 0)
        is_wrong &= batches["leader_epoch"] >= 0
        row = int(is_wrong.argmax())
        return (row, int(expected[row])) if is_wrong[row] else None
