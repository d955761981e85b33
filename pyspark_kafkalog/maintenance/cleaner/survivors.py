"""Determines the records of a log that stay, given the latest offsets of their keys.

With one map of all keys of the dirty part, records are judged while they are copied. With more keys than that, one pass
over the log for each map notes the records that stay, one bit for each record, and the copying uses the notes. Passes
and maps of different shards are independent, so they can run in parallel. The notes of a log with a thousand million
records take 125 MB.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.maintenance.cleaner.cleaned_transactions import CleanedTransactions
from pyspark_kafkalog.maintenance.cleaner.offset_map import ALL_KEYS, LatestMarks, OffsetMap, Shard
from pyspark_kafkalog.maintenance.cleaner.plan import ClosedSegment
from pyspark_kafkalog.maintenance.cleaner.record_chunks import ChunkReader, DropsBatches, RecordChunk
from pyspark_kafkalog.maintenance.jobs.throttle import Throttle
from pyspark_kafkalog.record.header import CONTROL_MASK, DELETE_HORIZON_MASK
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The input of a cleaning: `segments`, in order, of the partition in `directory`, up to `end_offset`.

    The dirty part begins at `first_dirty_offset`. `aborted` are the aborted transactions that reach into the segments;
    `seed` is two words for the hash of keys, the same for all tasks of one cleaning.
    """

    directory: Path
    segments: Sequence[ClosedSegment]
    first_dirty_offset: int
    end_offset: int
    aborted: Sequence[AbortedTxn]
    seed: NDArray[np.uint64]
    now_ms: int
    throttle: Throttle

    def chunks(self, segment: ClosedSegment, start_offset: int = 0) -> Iterator[RecordChunk]:
        """The segment's batches, beginning with the one that contains `start_offset`."""
        return self.reader(segment, start_offset).chunks()

    def reader(
        self, segment: ClosedSegment, start_offset: int = 0, *, drops: DropsBatches | None = None
    ) -> ChunkReader:
        """A reader of the segment, beginning with the batch that contains `start_offset`."""
        after = bisect.bisect_right(self.segments, segment.base_offset, key=lambda each: each.base_offset)
        return ChunkReader(
            directory=self.directory,
            base_offset=segment.base_offset,
            start_offset=start_offset,
            limit_offset=self.segments[after].base_offset if after < len(self.segments) else self.end_offset,
            seed=self.seed,
            before_read=self.throttle.take,
            drops=drops,
        )


class Survivors(Protocol):
    """Sets keep[i] to 0 if record i is dropped because of a later record of its key or a tombstone's delete horizon."""

    def drop(
        self,
        segment: ClosedSegment,
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
        segment: ClosedSegment,
        chunk_number: int,
        chunk: RecordChunk,
        keeps_tombstones: NDArray[np.uint8],
        keep: NDArray[np.uint8],
    ) -> None:
        self.offset_map.drop(chunk.records, keeps_tombstones, keep)


@dataclass(slots=True)
class NotedSurvivors:
    """The notes of passes with maps of single shards, by base offset and chunk: packed bits, 1 to keep a record."""

    bits: dict[tuple[int, int], NDArray[np.uint8]] = field(default_factory=dict)

    @property
    def drops_batches(self) -> DropsBatches | None:
        return None  # notes are by chunk, and skipped batches would change the chunks

    def drop(
        self,
        segment: ClosedSegment,
        chunk_number: int,
        chunk: RecordChunk,
        keeps_tombstones: NDArray[np.uint8],
        keep: NDArray[np.uint8],
    ) -> None:
        noted = self.bits[segment.base_offset, chunk_number]
        keep &= np.unpackbits(noted, count=chunk.records.count)

    def merge(self, other: NotedSurvivors) -> None:
        """Merge the notes of another shard: a record stays only if both keep it."""
        for key, noted in other.bits.items():
            own = self.bits.get(key)
            self.bits[key] = noted if own is None else own & noted


def find_survivors(part: LogPart, offset_map: OffsetMap) -> tuple[Survivors, int]:
    """The survivors of the log by the latest offsets of the dirty part's keys, and the number of shards.

    A single shard needs no pass of its own. With several, `offset_map` is used for one after the other.
    """
    left = build_map(part, offset_map, ALL_KEYS)
    if not left:
        return MapSurvivors(offset_map, offset_map.marks(part.first_dirty_offset)), 1
    return note_shards(part, offset_map, left)


def note_shards(part: LogPart, offset_map: OffsetMap, left: list[Shard]) -> tuple[NotedSurvivors, int]:
    """Notes by the given map and then by maps of the shards `left`, one after the other; and the number of maps."""
    noted = note_survivors(part, offset_map)
    shards = 1
    while left:
        left += build_map(part, offset_map, left.pop())
        noted.merge(note_survivors(part, offset_map))
        shards += 1
    return noted, shards


def build_map(part: LogPart, offset_map: OffsetMap, shard: Shard) -> list[Shard]:
    """Fill the map with the latest offsets of the shard's keys in the dirty part; return the shards left to other maps.

    Data of aborted transactions does not count. Source of the rules: Cleaner.buildOffsetMap.
    """
    offset_map.clear(shard)
    left: list[Shard] = []
    start_offset = part.first_dirty_offset
    transactions = CleanedTransactions.of(each for each in part.aborted if each.last_offset >= start_offset)
    ends = [*(each.base_offset for each in part.segments[1:]), part.end_offset]
    for segment, end_offset in zip(part.segments, ends, strict=True):
        if end_offset <= start_offset:
            continue
        for chunk in part.chunks(segment, start_offset):
            records = chunk.records
            is_out = transactions.may_go(chunk.batches, records.control_types)
            is_out |= (chunk.batches["attributes"] & CONTROL_MASK) != 0
            if is_out.any():
                records.flags[np.repeat(is_out, np.diff(records.firsts))] = 0
            if records.count and records.offsets[0] < start_offset:
                records.flags[records.offsets < start_offset] = 0
            left += offset_map.put(records)
    offset_map.latest_offset = part.end_offset - 1
    return left


def note_survivors(part: LogPart, offset_map: OffsetMap) -> NotedSurvivors:
    """Judge all records of the log by the map of one shard; records of other shards stay."""
    noted = NotedSurvivors()
    for segment in part.segments:
        for number, chunk in enumerate(part.chunks(segment)):
            keep = np.ones(chunk.records.count, np.uint8)
            offset_map.drop(chunk.records, keeps_tombstones(chunk, part.now_ms), keep)
            noted.bits[segment.base_offset, number] = np.packbits(keep)
    return noted


def keeps_tombstones(chunk: RecordChunk, now_ms: int) -> NDArray[np.uint8]:
    """For each batch whether its tombstones stay: it has no delete horizon yet, or one in the future."""
    has_horizon = (chunk.batches["attributes"] & DELETE_HORIZON_MASK) != 0
    stays: NDArray[np.bool_] = ~has_horizon | (now_ms < chunk.batches["base_timestamp_ms"])
    return stays.view(np.uint8)
