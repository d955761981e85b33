"""Offset index, `<base offset>.index`: maps a record's offset to the byte of the `.log` file from which to read.

    0   relative offset  int32  last offset of a batch, minus the segment's base offset
    4   position         int32  first byte of that batch in the .log file

Big-endian, 8 bytes per entry, offsets and positions increasing; sparse (one entry about every `index.interval.bytes`).
Entries are hints: a missing entry costs a longer scan, and a crash may leave the file short or with a zero tail. Source
of the rules: org.apache.kafka.storage.internals.log.OffsetIndex.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.index_file import MAX_RELATIVE_OFFSET, MappedIndex

OFFSET_INDEX_ENTRY_BYTES: Final = 8

#: One row per entry: absolute offset and position in the .log file, native byte order.
OFFSET_INDEX_DTYPE: Final = np.dtype([("offset", np.int64), ("position", np.int64)])

_DISK_DTYPE: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


class OffsetPosition(NamedTuple):
    """An absolute offset and the first byte of its batch in the .log file."""

    offset: int
    position: int


class OffsetIndex(MappedIndex):
    """The offset index of one segment; see MappedIndex for opening, resizing and closing."""

    entry_struct: ClassVar[struct.Struct] = struct.Struct(">ii")
    key_struct: ClassVar[struct.Struct] = struct.Struct(">i")

    def lookup(self, target_offset: int) -> OffsetPosition:
        """The last entry at or below `target_offset`; (base offset, 0) if there is no such entry, or it is invalid."""
        slot = self._floor_slot(target_offset - self._base_offset)
        if slot < 0:
            return OffsetPosition(self._base_offset, 0)
        relative_offset, position = self._entry_fields(slot)
        if relative_offset < 0 or position < 0:
            return OffsetPosition(self._base_offset, 0)
        return OffsetPosition(self._base_offset + relative_offset, position)

    def entry(self, slot: int) -> OffsetPosition:
        """Entry number `slot`, from 0. Raises IndexError if it does not exist."""
        if not 0 <= slot < self._entries:
            raise IndexError(f"{self._path} has {self._entries} entries, none at {slot}")
        relative_offset, position = self._entry_fields(slot)
        return OffsetPosition(self._base_offset + relative_offset, position)

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if the index is empty."""
        return self.entry(self._entries - 1).offset if self._entries else self._base_offset

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Raises ValueError if the index is full, CorruptIndexError if the last entry is not below it."""
        self._check_rises(offset)
        self._append_bytes(self.entry_struct.pack(self._relative(offset), position), 1)

    def append_many(self, offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Add one entry per row, as successive calls of `append` would, with one write."""
        if not len(offsets):
            return
        self._check_rises(int(offsets[0]))
        if (np.diff(offsets) <= 0).any():
            raise ValueError("offsets of index entries must rise")
        self._relative(int(offsets[-1]))
        if int(positions.min()) < 0 or int(positions.max()) > MAX_RELATIVE_OFFSET:
            raise ValueError("a position of an index entry does not fit in an int32")
        rows = np.empty(len(offsets), dtype=_DISK_DTYPE)
        rows["relative_offset"] = offsets - self._base_offset
        rows["position"] = positions
        self._append_bytes(rows.tobytes(), len(rows))

    def truncate_to(self, offset: int) -> None:
        """Drop all entries at or above `offset`."""
        self._keep_entries(self._floor_slot(offset - self._base_offset - 1) + 1)

    def entries_array(self) -> NDArray[np.void]:
        """All entries with OFFSET_INDEX_DTYPE: a copy."""
        rows = self._disk_rows()
        result = np.empty(len(rows), dtype=OFFSET_INDEX_DTYPE)
        result["offset"] = rows["relative_offset"]
        result["offset"] += self._base_offset
        result["position"] = rows["position"]
        return result

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if Kafka's check fails: last offset below base offset, or length no multiple of 8.

        A zero tail is valid, as in Kafka.
        """
        if self._entries and self._entries == self.max_entries and self.last_offset < self._base_offset:
            raise CorruptIndexError(
                file=str(self._path),
                position=self.size_bytes - OFFSET_INDEX_ENTRY_BYTES,
                expected=f"a last offset of {self._base_offset} or more",
                found=str(self.last_offset),
            )
        self._check_length()

    def check_entries(self, *, log_size_bytes: int | None = None) -> None:
        """Stricter than Kafka: also raise CorruptIndexError if offsets or positions do not increase, or a position is
        past the end of the .log file (`log_size_bytes`, if given).
        """
        self._check_length()
        rows = self._disk_rows()
        relative_offsets = rows["relative_offset"].astype(np.int64)
        positions = rows["position"].astype(np.int64)
        bad = (relative_offsets < 0) | (positions < 0)
        bad[1:] |= (np.diff(relative_offsets) <= 0) | (np.diff(positions) <= 0)
        if log_size_bytes is not None:
            bad |= positions >= log_size_bytes
        if bad.any():
            slot = int(bad.argmax())
            limit = "" if log_size_bytes is None else f" below {log_size_bytes}"
            before = self.entry(slot - 1) if slot else OffsetPosition(self._base_offset - 1, -1)
            raise CorruptIndexError(
                file=str(self._path),
                position=slot * OFFSET_INDEX_ENTRY_BYTES,
                expected=f"an offset above {before.offset} and a position above {before.position}{limit}",
                found=f"offset {self.entry(slot).offset}, position {self.entry(slot).position}",
            )

    def _disk_rows(self) -> NDArray[np.void]:
        return np.frombuffer(bytes(self._mapped()[: self.size_bytes]), dtype=_DISK_DTYPE)

    def _check_rises(self, offset: int) -> None:
        if self._entries and offset <= self.last_offset:
            raise CorruptIndexError(
                file=str(self._path),
                position=self.size_bytes - OFFSET_INDEX_ENTRY_BYTES,
                expected=f"a last entry below offset {offset}, which is to be added",
                found=str(self.last_offset),
            )

    def _relative(self, offset: int) -> int:
        if not self.can_append_offset(offset):
            raise ValueError(f"offset {offset} is out of reach of base offset {self._base_offset} of {self._path}")
        return offset - self._base_offset
