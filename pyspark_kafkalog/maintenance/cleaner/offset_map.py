"""The cleaner's map from a key to its latest offset, of fixed size: 24 bytes for each entry, hash and offset.

The keys themselves are not stored. A map covers a *shard* of the keys: those whose hash ends in certain bits. It begins
with the shard of all keys. When it is full, its shard is halved, repeatedly if necessary, and the other halves are left
to further maps. A cleaning needs one pass for each map.

In memory only; nothing of it survives a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.maintenance.cleaner import kernels_offset_map as kernels
from pyspark_kafkalog.maintenance.cleaner.record_chunks import IndexedRecords

ENTRY_BYTES: Final = 24
_SLOTS_MAX: Final = 0xFFFFFFFF  # a slot is chosen by 32 bits of the hash
_SHARD_BITS_MAX: Final = 32
_MARKS_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """The keys whose hash's second half ends in the lowest `bits` bits of `value`; with 0 bits, all keys."""

    bits: int = 0
    value: int = 0

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def halves(self) -> tuple[Shard, Shard]:
        """The two halves of this shard."""
        return Shard(self.bits + 1, self.value), Shard(self.bits + 1, self.value | 1 << self.bits)


ALL_KEYS: Final = Shard()


class OffsetMap:
    """The latest offset of each key of one shard. Its memory is allocated once and reused after `clear`.

    `latest_offset` is the last offset whose record the map covers, -1 for none: records above it are not judged.

    Raises InvalidOptionError for a buffer too small for one key.
    """

    def __init__(self, buffer_bytes: int, load_factor: float) -> None:
        slots = min(buffer_bytes // ENTRY_BYTES, _SLOTS_MAX)
        self.entries_max = min(int(slots * load_factor), slots - 1)
        if self.entries_max < 1:
            raise InvalidOptionError(
                f"a dedupe buffer of {buffer_bytes} bytes with a load factor of {load_factor} holds no key; "
                "set log.cleaner.dedupe.buffer.size higher"
            )
        self._table = np.zeros(slots * kernels.ENTRY_WORDS, np.uint64)
        self.entries = 0
        self.latest_offset = -1
        self.shard = ALL_KEYS

    @classmethod
    def of_table(
        cls, table: NDArray[np.uint64], load_factor: float, entries: int, latest_offset: int, shard: Shard
    ) -> OffsetMap:
        """The map with a `table` that another process has filled."""
        made = cls(ENTRY_BYTES * (len(table) // kernels.ENTRY_WORDS), load_factor)
        made._table = np.ascontiguousarray(table, np.uint64)
        made.entries, made.latest_offset, made.shard = entries, latest_offset, shard
        return made

    @property
    def table(self) -> NDArray[np.uint64]:
        """The entries, three words each; read-only."""
        return self._table

    def clear(self, shard: Shard = ALL_KEYS) -> None:
        """Remove all keys and cover `shard` from now on."""
        if self.entries:
            self._table[:] = 0
        self.entries = 0
        self.latest_offset = -1
        self.shard = shard

    def put(self, records: IndexedRecords) -> Iterator[Shard]:
        """Insert the records, in order of offsets; yield each half of the shard that has to be left to other maps."""
        row = 0
        while True:
            row, self.entries = kernels.put_rows(
                self._table,
                self.entries,
                self.entries_max,
                self.shard.mask,
                self.shard.value,
                records.hashes,
                records.second_hashes,
                records.offsets,
                records.flags,
                row,
            )
            if row == records.count:
                return
            yield self._halve()

    def _halve(self) -> Shard:
        if self.shard.bits == _SHARD_BITS_MAX:
            raise AssertionError("hashes that agree in 32 bits fill a map")
        self.shard, other = self.shard.halves()
        self.entries = kernels.narrow(self._table, self.shard.mask, self.shard.value)
        return other

    def drop(self, records: IndexedRecords, keeps_tombstones: NDArray[np.uint8], keep: NDArray[np.uint8]) -> None:
        """Set keep[i] to 0 for records of the map's shard that do not stay; see `kernels.drop_rows`."""
        kernels.drop_rows(
            self._table,
            self.shard.mask,
            self.shard.value,
            self.latest_offset,
            records.hashes,
            records.second_hashes,
            records.offsets,
            records.flags,
            records.firsts,
            keeps_tombstones,
            keep,
        )

    def marks(self, first_offset: int) -> LatestMarks:
        """Marks for the latest offsets, from `first_offset` to the last that the map covers."""
        span = self.latest_offset + 1 - first_offset
        shift = max((span - 1) // _MARKS_MAX, 0).bit_length()
        marks = np.zeros((span >> shift) + 1 if span > 0 else 0, np.uint8)
        kernels.mark_latest(self._table, first_offset, shift, marks)
        return LatestMarks(first_offset, self.latest_offset, shift, marks)


@dataclass(frozen=True, slots=True)
class LatestMarks:
    """A byte for each 2^shift offsets from `first_offset` to `latest_offset`: is any of them the latest of its key?

    4 MiB at most. If the map covers all records from `first_offset` on, no record of a data batch without a mark stays,
    so the batch need not be read.
    """

    first_offset: int
    latest_offset: int
    shift: int
    bytes: NDArray[np.uint8]

    def unmarked(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """Whether each of the batches (BATCH_DTYPE) is in the range and has no mark."""
        found = np.zeros(len(batches), np.uint8)
        kernels.find_unmarked(self.bytes, self.first_offset, self.shift, batches, found)
        is_inside: NDArray[np.bool_] = batches["last_offset"] <= self.latest_offset
        return found.view(np.bool_) & is_inside
