"""Time index, `<base offset>.timeindex`: maps a timestamp to an offset before which no record is that late.

    0   timestamp        int64  ms, the largest in the segment so far
    8   relative offset  int32  last offset of the batch that first had it, minus the segment's base offset

Big-endian, 12 bytes per entry, timestamps increasing. An entry (t, o) means that every record with a timestamp above t
has an offset above the batch of o. The last entry of a rolled segment is its largest timestamp. Entries are hints, and
a crash has the same effects as on the offset index. Source of the rules:
org.apache.kafka.storage.internals.log.TimeIndex.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.artefacts.index_file import MappedIndex

#: One row per entry: timestamp in ms and absolute offset, native byte order.
TIME_INDEX_DTYPE: Final = np.dtype([("timestamp_ms", np.int64), ("offset", np.int64)])

#: An entry as stored in the file.
TIME_INDEX_ENTRY: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])


class TimestampOffset(NamedTuple):
    """A timestamp in ms (-1: none) and an absolute offset."""

    timestamp_ms: int
    offset: int


class TimeIndex(MappedIndex):
    """The time index of one segment; see MappedIndex for opening, resizing and closing."""

    entry_struct: ClassVar[struct.Struct] = struct.Struct(">qi")
    key_struct: ClassVar[struct.Struct] = struct.Struct(">q")

    @property
    def is_full(self) -> bool:
        """Whether no slot is left besides the one reserved for the closing entry."""
        return self._entries >= self.max_entries - 1

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry; (-1, base offset) if the index is empty."""
        return self.entry(self._entries - 1) if self._entries else TimestampOffset(NO_TIMESTAMP, self._base_offset)

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry at or before `timestamp_ms`; (-1, base offset) without such an entry, or if it is invalid."""
        slot = self._floor_slot(timestamp_ms)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        found_ms, relative_offset = self._entry_fields(slot)
        if relative_offset < 0:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        return TimestampOffset(found_ms, self._base_offset + relative_offset)

    def entry(self, slot: int) -> TimestampOffset:
        """Entry number `slot`, from 0. Raises IndexError if it does not exist."""
        if not 0 <= slot < self._entries:
            raise IndexError(f"{self._path} has {self._entries} entries, none at {slot}")
        timestamp_ms, relative_offset = self._entry_fields(slot)
        return TimestampOffset(timestamp_ms, self._base_offset + relative_offset)

    def maybe_append(self, timestamp_ms: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Add an entry if `timestamp_ms` is above the last one's; `skip_full_check` for the closing entry.

        Raises ValueError if the index is full, CorruptIndexError if the last entry's timestamp or offset is larger.
        """
        if not skip_full_check and self.is_full:
            raise ValueError(f"{self._path} is full with {self._entries} entries")
        self._check_does_not_fall(timestamp_ms, offset)
        if timestamp_ms > self.last_entry.timestamp_ms:
            self._append_bytes(self.entry_struct.pack(timestamp_ms, self._relative(offset)), 1)

    def maybe_append_many(self, timestamps_ms: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        """`maybe_append` of each row in turn, with one write; rows that do not exceed the previous ones are skipped."""
        if not len(offsets):
            return
        self._check_does_not_fall(int(timestamps_ms[0]), int(offsets[0]))
        if (np.diff(offsets) < 0).any() or (np.diff(timestamps_ms) < 0).any():
            raise ValueError("timestamps and offsets of time index entries must not fall")
        before = np.concatenate([[self.last_entry.timestamp_ms], timestamps_ms[:-1]])
        rises = timestamps_ms > before
        count = int(rises.sum())
        if not count:
            return
        if self._entries + count > self.max_entries - 1:
            raise ValueError(f"{self._path} has no room for {count} entries beside {self._entries}")
        self._relative(int(offsets[0]))
        self._relative(int(offsets[-1]))
        rows = np.empty(count, dtype=TIME_INDEX_ENTRY)  # bounded: the rows given
        rows["timestamp_ms"] = timestamps_ms[rises]
        rows["relative_offset"] = offsets[rises] - self._base_offset
        self._append_bytes(rows.tobytes(), count)

    def truncate_to(self, offset: int) -> None:
        """Drop all entries with an offset at or above `offset`."""
        if self.last_entry.offset < offset:
            return
        relative_offset = offset - self._base_offset
        kept = np.searchsorted(self._disk_rows()["relative_offset"].astype(np.int64), relative_offset, side="left")
        self._keep_entries(int(kept))

    def entries_array(self) -> NDArray[np.void]:
        """All entries with TIME_INDEX_DTYPE: a copy."""
        rows = self._disk_rows()
        result = np.empty(len(rows), dtype=TIME_INDEX_DTYPE)
        result["timestamp_ms"] = rows["timestamp_ms"]
        result["offset"] = rows["relative_offset"]
        result["offset"] += self._base_offset
        return result

    def _disk_rows(self) -> NDArray[np.void]:
        return np.frombuffer(bytes(self._mapped()[: self.size_bytes]), dtype=TIME_INDEX_ENTRY)

    def _check_does_not_fall(self, timestamp_ms: int, offset: int) -> None:
        last = self.last_entry
        if self._entries and (offset < last.offset or timestamp_ms < last.timestamp_ms):
            raise CorruptIndexError(
                file=str(self._path),
                position=self.size_bytes - TIME_INDEX_ENTRY.itemsize,
                expected=f"a last entry not above timestamp {timestamp_ms}, offset {offset}, the new entry",
                found=f"timestamp {last.timestamp_ms}, offset {last.offset}",
            )
