"""Offset index, `<base offset>.index`: maps a record's offset to the byte of the `.log` file from which to read.

    0   relative offset  int32  last offset of a batch, minus the segment's base offset
    4   position         int32  first byte of that batch in the .log file

Big-endian, 8 bytes per entry, offsets and positions increasing; sparse (one entry about every `index.interval.bytes`).
Entries are hints: a missing entry costs a longer scan, and a crash may leave the file short or with a zero tail. Source
of the rules: org.apache.kafka.storage.internals.log.OffsetIndex.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.index_file import MAX_RELATIVE_OFFSET, MappedIndex

#: One row per entry: absolute offset and position in the .log file, native byte order.
OFFSET_INDEX_DTYPE: Final = np.dtype([("offset", np.int64), ("position", np.int64)])

#: An entry as stored in the file.
OFFSET_INDEX_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


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

    def lookup_position(self, target_position: int) -> OffsetPosition:
        """The last entry whose batch begins at or below `target_position`; (base offset, 0) as in `lookup`."""
        slot = bisect_right(range(self._entries), target_position, key=lambda each: self._entry_fields(each)[1]) - 1
        return self.entry(slot) if slot >= 0 else OffsetPosition(self._base_offset, 0)

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
        """Add one entry. Raises as `append_many`."""
        self._check_rises(offset)
        if not 0 <= position <= MAX_RELATIVE_OFFSET:
            raise _position_error()
        self._append_bytes(self.entry_struct.pack(self._relative(offset), position), 1)

    def append_many(self, offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Add one entry per row, with one write.

        Raises ValueError if the rows do not rise or fit, CorruptIndexError if the last entry is not below the first
        row.
        """
        if not len(offsets):
            return
        self._check_rises(int(offsets[0]))
        if (np.diff(offsets) <= 0).any():
            raise ValueError("offsets of index entries must rise")
        self._relative(int(offsets[-1]))
        if int(positions.min()) < 0 or int(positions.max()) > MAX_RELATIVE_OFFSET:
            raise _position_error()
        rows = np.empty(len(offsets), dtype=OFFSET_INDEX_ENTRY)
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

    def _disk_rows(self) -> NDArray[np.void]:
        return np.frombuffer(bytes(self._mapped()[: self.size_bytes]), dtype=OFFSET_INDEX_ENTRY)

    def _check_rises(self, offset: int) -> None:
        if self._entries and offset <= self.last_offset:
            raise CorruptIndexError(
                file=str(self._path),
                position=self.size_bytes - OFFSET_INDEX_ENTRY.itemsize,
                expected=f"a last entry below offset {offset}, the new entry",
                found=str(self.last_offset),
            )


def _position_error() -> ValueError:
    return ValueError("a position of an index entry does not fit in an int32")
