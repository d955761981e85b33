"""The cleaner's map from a key to its latest offset, at a fixed size: 24 bytes an entry, hash and offset.

The keys themselves are not kept. A map takes part of the keys, a *shard*: those whose hash ends in certain bits. It
begins as one with all keys; when it is full its shard is halved, as often as it takes, and the other halves are what
further maps must take. So one cleaning needs as many passes as the keys need maps, and no second one.

In memory only; nothing of it outlives a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.maintenance import kernels_offset_map as kernels
from pyspark_kafkalog.maintenance.record_chunks import IndexedRecords

ENTRY_BYTES: Final = 24
_SLOTS_MAX: Final = 0xFFFFFFFF  # a slot is chosen by 32 bits of the hash
_SHARD_BITS_MAX: Final = 32
_MARKS_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """The keys whose hash's second half ends in the lowest `bits` bits of `value`; no bits: all keys."""

    bits: int = 0
    value: int = 0

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def halves(self) -> tuple[Shard, Shard]:
        """The two shards that make up this one."""
        return Shard(self.bits + 1, self.value), Shard(self.bits + 1, self.value | 1 << self.bits)


ALL_KEYS: Final = Shard()


class OffsetMap:
    """Latest offset by key for one shard; memory for it is set aside once and used again after `clear`.

    `latest_offset` is the last offset whose record the map knows about, -1 for none: records above it are not judged.
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
        """The map whose `table` another process has filled."""
        made = cls(ENTRY_BYTES * (len(table) // kernels.ENTRY_WORDS), load_factor)
        made._table = np.ascontiguousarray(table, np.uint64)
        made.entries, made.latest_offset, made.shard = entries, latest_offset, shard
        return made

    @property
    def table(self) -> NDArray[np.uint64]:
        """The entries, three words each; to be looked at only."""
        return self._table

    def clear(self, shard: Shard = ALL_KEYS) -> None:
        """Forget all keys and take those of `shard` from now on."""
        if self.entries:
            self._table[:] = 0
        self.entries = 0
        self.latest_offset = -1
        self.shard = shard

    def put(self, records: IndexedRecords) -> Iterator[Shard]:
        """Take in the records in order of offsets; gives each half of its keys that the map has to leave to others."""
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
        """Set keep[i] to 0 for the records of the map's shard that are not to stay; see `kernels.drop_rows`."""
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
        """Where the latest offsets lie, from `first_offset` to the last that the map knows about."""
        span = self.latest_offset + 1 - first_offset
        shift = max((span - 1) // _MARKS_MAX, 0).bit_length()
        marks = np.zeros((span >> shift) + 1 if span > 0 else 0, np.uint8)
        kernels.mark_latest(self._table, first_offset, shift, marks)
        return LatestMarks(first_offset, self.latest_offset, shift, marks)


@dataclass(frozen=True, slots=True)
class LatestMarks:
    """A byte for each 2^shift offsets from `first_offset` to `latest_offset`: is any of them the latest of its key?

    4 MiB at most. Where the map knows all records from `first_offset` on, data batches without a mark hold nothing that
    stays, which saves reading them.
    """

    first_offset: int
    latest_offset: int
    shift: int
    bytes: NDArray[np.uint8]

    def unmarked(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """Which of the batches (BATCH_DTYPE) lie in the range and have no mark."""
        found = np.zeros(len(batches), np.uint8)
        kernels.find_unmarked(self.bytes, self.first_offset, self.shift, batches, found)
        is_inside: NDArray[np.bool_] = batches["last_offset"] <= self.latest_offset
        return found.view(np.bool_) & is_inside
