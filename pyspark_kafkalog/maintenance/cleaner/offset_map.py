"""Determines the records of a log that survive a cleaning, by a map from each key to its latest offset.

The map has a fixed size: 24 bytes for each entry, hash and offset. The keys themselves are not stored. A map covers a
*shard* of the keys: those whose hash ends in certain bits. It begins with the shard of all keys. When it is full, its
shard is halved, repeatedly if necessary, and the other halves are left to further maps.

With one map of all keys of the dirty part, records are judged while they are copied. With more keys than that, one pass
over the log for each map stores which records survive, one bit for each record (`KeepBitmaps`), and the copying uses
the bitmaps. Passes and maps of different shards are independent, so they can run in parallel. The bitmaps of a log with
a thousand million records take 125 MB.

Tasks of one cleaning exchange maps and bitmaps through files in the partition's directory:

    .maintenance-map            the offset map with all keys, or with those of the first shard
    .maintenance-notes-<n>       the records that survive by the keys of task n's shards

Both are numpy's .npz. They are removed at the end of the cleaning; after a kill, by the next run over the partition.
Kafka ignores them. Only tasks of the cleaning that wrote them read them.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import DiskFormatError, InvalidOptionError
from pyspark_kafkalog.maintenance.cleaner import kernels_cleaner as kernels
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions
from pyspark_kafkalog.maintenance.cleaner.kernels_cleaner import HAS_KEY
from pyspark_kafkalog.maintenance.cleaner.plan import CleanPlan
from pyspark_kafkalog.maintenance.cleaner.record_chunks import ChunkReader, DropsBatches, IndexedRecords, RecordChunk
from pyspark_kafkalog.maintenance.jobs.tasks import Throttle
from pyspark_kafkalog.record.header import CONTROL_MASK, DELETE_HORIZON_MASK
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.below_root import scan
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, described, open_to_read
from pyspark_kafkalog.storage.segment.reader import Extent
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.units import INT64_MAX

ENTRY_BYTES: Final = 24
_SLOTS_MAX: Final = 0xFFFFFFFF  # a slot is chosen by 32 bits of the hash
_SHARD_BITS_MAX: Final = 32
_MARKS_MAX: Final = 4 << 20


_PREFIX: Final = ".maintenance-"

_MAP: Final = _PREFIX + "map"

_KEEP: Final = _PREFIX + "notes-"


@dataclass(frozen=True, slots=True)
class KeyShard:
    """The keys whose hash's second half ends in the lowest `bits` bits of `value`; with 0 bits, all keys."""

    bits: int = 0
    value: int = 0

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def halves(self) -> tuple[KeyShard, KeyShard]:
        """The two halves of this shard."""
        return KeyShard(self.bits + 1, self.value), KeyShard(self.bits + 1, self.value | 1 << self.bits)


ALL_KEYS: Final = KeyShard()


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
        self.entries = self.records_without_key = 0
        self.latest_offset = -1
        self.shard = ALL_KEYS

    @classmethod
    def of_table(
        cls, table: NDArray[np.uint64], load_factor: float, entries: int, latest_offset: int, shard: KeyShard
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

    def clear(self, shard: KeyShard = ALL_KEYS) -> None:
        """Remove all keys and cover `shard` from now on."""
        if self.entries:
            self._table[:] = 0
        self.entries = self.records_without_key = 0
        self.latest_offset = -1
        self.shard = shard

    def put(self, records: IndexedRecords) -> Iterator[KeyShard]:
        """Insert the records; yield each half of the shard that has to be left to other maps."""
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

    def put_and_drop(
        self, records: IndexedRecords, keeps_tombstones: NDArray[np.uint8], keep: NDArray[np.uint8]
    ) -> bool:
        """Insert the records and judge them, as `drop` does, by a map of all keys after them; whether it has room."""
        rows_left, self.entries = kernels.put_and_drop(
            self._table,
            self.entries,
            self.entries_max,
            records.hashes,
            records.second_hashes,
            records.offsets,
            records.flags,
            records.firsts,
            keeps_tombstones,
            keep,
        )
        return bool(rows_left == 0)

    def _halve(self) -> KeyShard:
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
        marks = np.zeros((span >> shift) + 1 if span > 0 else 0, np.uint8)  # bounded: _MARKS_MAX, by the shift
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


def map_bytes(plan: CleanPlan, buffer_bytes: int, load_factor: float) -> int:
    """The size of the buffer, or less if the dirty part has fewer offsets than the buffer has room for keys."""
    keys_max = plan.first_uncleanable_offset - plan.first_dirty_offset
    return min(buffer_bytes, ENTRY_BYTES * (int(keys_max / load_factor) + 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The input of a cleaning: `segments`, in order, up to `end_offset`; `extent_of` is a segment as it is read.

    The dirty part begins at `first_dirty_offset`. `aborted` are the aborted transactions that reach into the segments;
    `seed` is two words for the hash of keys, the same for all tasks of one cleaning; errors call the log `name`.
    `check_unended` looks at the transactions that markers behind the dirty part end; raises CorruptIndexError.
    `record_max_bytes` is the topic's max.decompressed.message.bytes: as in Kafka, a larger record fails the cleaning.
    """

    extent_of: Callable[[StoredSegment], Extent]
    segments: Sequence[StoredSegment]
    first_dirty_offset: int
    end_offset: int
    aborted: Sequence[AbortedTxn]
    seed: NDArray[np.uint64]
    now_ms: int
    throttle: Throttle
    record_max_bytes: int
    name: str = "the log"
    check_unended: Callable[[CleanedTransactions], None] = lambda _: None

    def transactions(self, start_offset: int = 0) -> CleanedTransactions:
        """The transactions before the first batch is judged; those that end below `start_offset` are left out."""
        return CleanedTransactions.of((each for each in self.aborted if each.last_offset >= start_offset), self.name)

    def chunks(self, segment: StoredSegment) -> Iterator[RecordChunk]:
        """The segment's batches."""
        return self.reader(segment).chunks()

    def reader(
        self,
        segment: StoredSegment,
        start_offset: int = 0,
        end_offset: int = INT64_MAX,
        *,
        drops: DropsBatches | None = None,
    ) -> ChunkReader:
        """A reader of the segment, from the batch that contains `start_offset` to the last one below `end_offset`."""
        after = bisect.bisect_right(self.segments, segment.base_offset, key=lambda each: each.base_offset)
        return ChunkReader(
            extent=self.extent_of(segment),
            start_offset=start_offset,
            limit_offset=self.segments[after].base_offset if after < len(self.segments) else self.end_offset,
            seed=self.seed,
            before_read=self.throttle.take,
            record_max_bytes=self.record_max_bytes,
            drops=drops,
            end_offset=end_offset,
        )


class Survivors(Protocol):
    """Sets keep[i] to 0 if record i is dropped because of a later record of its key or a tombstone's delete horizon."""

    def drop(
        self,
        segment: StoredSegment,
        chunk_number: int,
        chunk: RecordChunk,
        keeps_tombstones: NDArray[np.uint8],
        keep: NDArray[np.uint8],
    ) -> None:
        """Judge chunk number `chunk_number` of the segment."""

    @property
    def drops_batches(self) -> DropsBatches | None:
        """A function that returns the batches without records that stay, before they are read."""


@dataclass(frozen=True, slots=True)
class MapSurvivors:
    """Judges by a map of all keys; `marks` are those of the map for the dirty part."""

    offset_map: OffsetMap
    marks: LatestMarks | None = None

    @property
    def drops_batches(self) -> DropsBatches | None:
        marks = self.marks
        if marks is None:
            return None
        return lambda batches: marks.unmarked(batches) & ((batches["attributes"] & CONTROL_MASK) == 0)

    def drop(
        self,
        segment: StoredSegment,
        chunk_number: int,
        chunk: RecordChunk,
        keeps_tombstones: NDArray[np.uint8],
        keep: NDArray[np.uint8],
    ) -> None:
        self.offset_map.drop(chunk.records, keeps_tombstones, keep)


@dataclass(slots=True)
class KeepBitmaps:
    """The bitmaps of passes with maps of single shards, by base offset and chunk: packed bits, 1 to keep a record."""

    bits: dict[tuple[int, int], NDArray[np.uint8]] = field(default_factory=dict)

    @property
    def drops_batches(self) -> DropsBatches | None:
        return None  # bitmaps are by chunk, and skipped batches would change the chunks

    def drop(
        self,
        segment: StoredSegment,
        chunk_number: int,
        chunk: RecordChunk,
        keeps_tombstones: NDArray[np.uint8],
        keep: NDArray[np.uint8],
    ) -> None:
        kept = self.bits[segment.base_offset, chunk_number]
        keep &= np.unpackbits(kept, count=chunk.records.count)

    def merge(self, other: KeepBitmaps) -> None:
        """Merge the bitmaps of another shard: a record stays only if both keep it."""
        for key, kept in other.bits.items():
            own = self.bits.get(key)
            self.bits[key] = kept if own is None else own & kept


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The shards of the dirty part's keys, and its records without a key, which a compacted log drops."""

    shards: int = 1
    records_without_key: int = 0


def find_survivors(part: LogPart, offset_map: OffsetMap, mapped_from: int | None = None) -> tuple[Survivors, KeyCounts]:
    """The survivors of the log by the latest offsets of the dirty part's keys, and the counts of the keys.

    A single shard needs no pass of its own. With several, `offset_map` is used for one after the other. `mapped_from`:
    see `build_map`.
    """
    left = build_map(part, offset_map, ALL_KEYS, mapped_from)
    without_key = offset_map.records_without_key
    if not left:
        return MapSurvivors(offset_map, offset_map.marks(part.first_dirty_offset)), KeyCounts(1, without_key)
    kept, shards = keep_by_shards(part, offset_map, left)
    return kept, KeyCounts(shards, without_key)


def keep_by_shards(part: LogPart, offset_map: OffsetMap, left: list[KeyShard]) -> tuple[KeepBitmaps, int]:
    """Bitmaps by the given map and then by maps of the shards `left`, one after the other; and the number of maps."""
    kept = keep_by_map(part, offset_map)
    shards = 1
    while left:
        left += build_map(part, offset_map, left.pop())
        kept.merge(keep_by_map(part, offset_map))
        shards += 1
    return kept, shards


def build_map(part: LogPart, offset_map: OffsetMap, shard: KeyShard, mapped_from: int | None = None) -> list[KeyShard]:
    """Fill the map with the latest offsets of the shard's keys in the dirty part; return the shards left to other maps.

    `mapped_from`: the map has those from this offset on already, where no batch is of a transaction. Data of aborted
    transactions does not count. Source of the rules: Cleaner.buildOffsetMap. Raises CorruptIndexError where markers say
    something else than `part.aborted`: nothing was changed by then.
    """
    if mapped_from is None:
        offset_map.clear(shard)
        mapped_from = part.end_offset
    left: list[KeyShard] = []
    start_offset = part.first_dirty_offset
    transactions = part.transactions(start_offset)
    ends = [*(each.base_offset for each in part.segments[1:]), part.end_offset]
    for segment, end_offset in zip(part.segments, ends, strict=True):
        if end_offset <= start_offset or segment.base_offset >= mapped_from:
            continue
        for chunk in part.reader(segment, start_offset, mapped_from).chunks():
            records = chunk.records
            is_out = transactions.may_go(chunk.batches, records.control_types)
            is_out |= (chunk.batches["attributes"] & CONTROL_MASK) != 0
            counts = (records.flags & HAS_KEY) == 0
            if is_out.any():
                # bounded: the records of a chunk, after check_counts
                is_row_out = np.repeat(is_out, np.diff(records.firsts))
                records.flags[is_row_out] = 0
                counts &= ~is_row_out
            if records.count and records.offsets[0] < start_offset:
                is_row_out = records.offsets < start_offset
                records.flags[is_row_out] = 0
                counts &= ~is_row_out
            offset_map.records_without_key += int(np.count_nonzero(counts))
            left += offset_map.put(records)
    part.check_unended(transactions)
    offset_map.latest_offset = part.end_offset - 1
    return left


def keep_by_map(part: LogPart, offset_map: OffsetMap) -> KeepBitmaps:
    """Judge all records of the log by the map of one shard; records of other shards stay."""
    kept = KeepBitmaps()
    for segment in part.segments:
        for number, chunk in enumerate(part.chunks(segment)):
            keep = np.ones(chunk.records.count, np.uint8)  # bounded: the records of a chunk, after check_counts
            offset_map.drop(chunk.records, keeps_tombstones(chunk, part.now_ms), keep)
            kept.bits[segment.base_offset, number] = np.packbits(keep)
    return kept


def keeps_tombstones(chunk: RecordChunk, now_ms: int) -> NDArray[np.uint8]:
    """For each batch whether its tombstones stay: it has no delete horizon yet, or one in the future."""
    has_horizon = (chunk.batches["attributes"] & DELETE_HORIZON_MASK) != 0
    stays: NDArray[np.bool_] = ~has_horizon | (now_ms < chunk.batches["base_timestamp_ms"])
    return stays.view(np.uint8)


def save_map(directory: Path, offset_map: OffsetMap) -> None:
    """Write a map for other tasks."""
    shard = offset_map.shard
    state = np.array([offset_map.entries, offset_map.latest_offset, shard.bits, shard.value], np.int64)
    _write(directory / _MAP, {"table": offset_map.table, "state": state})


def load_map(directory: Path, load_factor: float) -> OffsetMap:
    """The map that another task wrote. Raises DiskFormatError, OSError."""
    path = directory / _MAP
    try:
        with open_to_read(path) as file, np.load(file, allow_pickle=False) as found:
            entries, latest_offset, bits, value = found["state"].tolist()
            return OffsetMap.of_table(found["table"], load_factor, entries, latest_offset, KeyShard(bits, value))
    except (ValueError, KeyError, EOFError) as error:
        raise _damaged(path, error) from error


def save_keep_bitmaps(directory: Path, number: int, kept: KeepBitmaps) -> None:
    """Write the bitmaps of one task."""
    path = directory / f"{_KEEP}{number}"
    _write(path, {f"{base}_{chunk}": bits for (base, chunk), bits in kept.bits.items()})


def load_keep_bitmaps(directory: Path, count: int, segments: Sequence[StoredSegment]) -> KeepBitmaps:
    """The bitmaps of all `count` tasks for these segments, merged. Raises DiskFormatError, OSError."""
    bases = {each.base_offset for each in segments}
    kept = KeepBitmaps()
    for number in range(count):
        path = directory / f"{_KEEP}{number}"
        try:
            with open_to_read(path) as file, np.load(file, allow_pickle=False) as found:
                keys = [(tuple(map(int, name.split("_"))), name) for name in found.files]
                kept.merge(KeepBitmaps({(key[0], key[1]): found[name] for key, name in keys if key[0] in bases}))
        except (ValueError, KeyError, EOFError) as error:
            raise _damaged(path, error) from error
    return kept


def remove_task_files(directory: Path, *, fs: FileSystem) -> None:
    """Remove the files that cleanings left. The caller holds the partition's maintenance lock."""
    for name in [each.name for each in scan(directory) if _is_task_file(each.name)]:
        fs.unlink_if_there(directory / name)


def has_task_files(listing: PartitionListing) -> bool:
    """Whether cleanings left files in the directory of that listing."""
    return any(map(_is_task_file, listing.others))


def _is_task_file(name: str) -> bool:
    return name == _MAP or name.startswith(_KEEP)


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    LOCAL.unlink_if_there(path)
    fd = LOCAL.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as stream:
            np.savez(stream, **arrays)
    except OSError as error:
        raise described(error, path) from None


def _damaged(path: Path, error: Exception) -> DiskFormatError:
    return DiskFormatError(
        file=str(path),
        position=0,
        expected="a file of another task of this cleaning",
        found=str(error),
        advice="run the cleaner again",
    )
