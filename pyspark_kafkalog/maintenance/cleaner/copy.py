"""Copies the surviving records of a group of segments into one new segment, `<base>.log.cleaned` with its indexes.

The end of the dirty part is filtered before: `clean_tail` fills the offset map from there, backwards, and a record
stays if its key is not in the map yet. So its batches are decompressed once, and not for the map and again for the
copy. What stays of them is in memory until it is copied. The tail ends where a map from the log's end is not enough to
judge, or where the room in memory ends; the rest of the dirty part is then mapped in order, before anything is copied.

Offset and time index are the same as those of a segment that is appended to. The transaction index contains the aborted
transactions whose data remains before their markers. The file's modification time is that of the group's last segment.
A crash leaves `.cleaned` files, which the next run or a starting broker removes. Source of the rules:
Cleaner.cleanSegments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.cleaner.filter import (
    BatchVerdicts,
    CleanedTransactions,
    FilteredChunk,
    RetentionRules,
    filter_chunk,
    judge_batches,
    restore_control,
    start_keep,
)
from pyspark_kafkalog.maintenance.cleaner.kernels_cleaner import HAS_KEY
from pyspark_kafkalog.maintenance.cleaner.offset_map import LogPart, OffsetMap, Survivors, keeps_tombstones
from pyspark_kafkalog.maintenance.cleaner.record_chunks import RecordChunk
from pyspark_kafkalog.record.header import CONTROL_MASK, TRANSACTIONAL_MASK
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import CLEANED_SUFFIX
from pyspark_kafkalog.storage.segment.index_entries import SegmentCounters
from pyspark_kafkalog.storage.segment.segment import LogSegment
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.units import INT64_MAX

#: The bytes of a tail in memory, about.
_TAIL_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """Bytes and records read and kept."""

    bytes_read: int = 0
    bytes_kept: int = 0
    records_read: int = 0
    records_kept: int = 0

    def plus(self, other: CopyCounts) -> CopyCounts:
        return CopyCounts(
            self.bytes_read + other.bytes_read,
            self.bytes_kept + other.bytes_kept,
            self.records_read + other.records_read,
            self.records_kept + other.records_kept,
        )


@dataclass(frozen=True, slots=True)
class _Judged:
    """The verdicts on a chunk of a segment, given the chunks before it. `retained` goes into the transaction index."""

    number: int
    verdicts: BatchVerdicts
    retained: list[AbortedTxn]


def transactions_at(part: LogPart, groups: Iterable[Sequence[StoredSegment]]) -> list[CleanedTransactions]:
    """The state of transactions at the start of each group, for copying groups in parallel; reads the log once.

    Batches outside of transactions are read but not decompressed.
    """
    state = part.transactions()
    starts = []
    for group in groups:
        starts.append(state.copy())
        for segment in group:
            for chunk in part.reader(segment, drops=_is_of_no_transaction).chunks():
                state.may_go(chunk.batches, chunk.records.control_types)
    return starts


def _is_of_no_transaction(batches: NDArray[np.void]) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (batches["attributes"] & (TRANSACTIONAL_MASK | CONTROL_MASK)) == 0
    return result


@dataclass(slots=True)
class CleanedTail:
    """What stays of the dirty part from `start_offset` on: `kept` by the segments' base offsets, the last chunk first.

    No batch of it is of a transaction.
    """

    start_offset: int
    kept: dict[int, list[FilteredChunk]] = field(default_factory=dict)

    def take(self, segment: StoredSegment) -> Iterator[FilteredChunk]:
        """Return and forget what stays of the segment, in order."""
        return reversed(self.kept.pop(segment.base_offset, []))


@dataclass(frozen=True, slots=True)
class _TailChunk:
    """What stays of a chunk that begins at `base_offset`, and its records without a key."""

    base_offset: int
    records_without_key: int
    filtered: FilteredChunk


def clean_tail(part: LogPart, offset_map: OffsetMap, rules: RetentionRules) -> CleanedTail:
    """Filter the end of the dirty part while `offset_map`, which is emptied before, gets its keys, the last one first.

    The tail begins at the first dirty offset, or later: behind a segment that is to be read in order, where the map is
    full, or where _TAIL_BYTES are in use.
    """
    offset_map.clear()
    tail = CleanedTail(part.end_offset)
    no_transactions = CleanedTransactions.of(())
    is_over = False

    def judge(chunk: RecordChunk) -> tuple[BatchVerdicts, NDArray[np.uint8]] | None:
        nonlocal is_over
        is_over = is_over or int(chunk.batches["base_offset"][0]) < part.first_dirty_offset
        if is_over:
            return None
        verdicts = judge_batches(chunk, no_transactions, rules)
        keep = np.ascontiguousarray(start_keep(chunk, verdicts))
        is_over = not offset_map.put_and_drop(chunk.records, keeps_tombstones(chunk, rules.now_ms), keep)
        return None if is_over else (verdicts, keep)

    def finish(chunk: RecordChunk, judged: tuple[BatchVerdicts, NDArray[np.uint8]] | None) -> _TailChunk | None:
        if judged is None:
            return None
        without_key = int(np.count_nonzero((chunk.records.flags & HAS_KEY) == 0))
        return _TailChunk(int(chunk.batches["base_offset"][0]), without_key, filter_chunk(chunk, *judged, rules))

    left_bytes = _TAIL_BYTES
    for segment in reversed(part.segments):
        reader = part.reader(segment, part.first_dirty_offset)
        places = reader.places() if tail.start_offset > part.first_dirty_offset else None
        if places is None:
            break
        kept = tail.kept.setdefault(segment.base_offset, [])
        with closing(reader.results_from_end(places, judge, finish)) as results:
            for result in results:
                if result is None:
                    return tail
                kept.append(result.filtered)
                tail.start_offset = result.base_offset
                offset_map.records_without_key += result.records_without_key
                left_bytes -= len(result.filtered.data) + result.filtered.batches.nbytes
                if left_bytes <= 0:
                    return tail
        tail.start_offset = max(segment.base_offset, part.first_dirty_offset)
    return tail


@dataclass(frozen=True, slots=True)
class GroupCopier:
    """Copies the groups of one log, in order: `transactions` is carried over from one to the next.

    What `tail` has is not read again.

    Groups can also be copied in parallel, each by its own copier with the transactions as of its start and with
    survivors determined in advance. The copies are then swapped in one after the other, the first group first.
    """

    part: LogPart
    survivors: Survivors
    rules: RetentionRules
    transactions: CleanedTransactions
    config: LogConfig
    directory: Path
    fs: FileSystem
    tail: CleanedTail | None = None

    def copy(self, group: Sequence[StoredSegment]) -> CopyCounts:
        """Write the new segment into `directory`: on disk when this returns, not in use before it is swapped in.

        On an error the written files are removed.
        """
        segment = LogSegment(
            self.directory,
            group[0].base_offset,
            self.config,
            fs=self.fs,
            created_ms=self.rules.now_ms,
            suffix=CLEANED_SUFFIX,
        )
        try:
            segment.create()
            segment.set_counters(SegmentCounters(max_timestamp_offset=segment.base_offset))
            counts = CopyCounts()
            for source in group:
                counts = counts.plus(self._copy_segment(source, segment))
            segment.become_inactive()
            segment.flush()
            segment.close_files()
        except BaseException:
            segment.delete()
            raise
        modified_ns = group[-1].modified_ns
        self.fs.set_modified(segment.log_path, modified_ns)
        return counts

    def _copy_segment(self, source: StoredSegment, segment: LogSegment) -> CopyCounts:
        counts = CopyCounts()
        kept = () if self.tail is None else self.tail.take(source)
        for retained, filtered in itertools.chain(self._filtered(source), (((), each) for each in kept)):
            if len(filtered.batches):
                self.part.throttle.take(len(filtered.data))
                self.fs.pwrite_all(segment.fd, filtered.data, segment.size_bytes)
                segment.set_counters(segment.index_batches(filtered.batches, segment.counters()))
            for transaction in retained:
                segment.txn_index.append(transaction)
            counts = counts.plus(
                CopyCounts(filtered.bytes_read, len(filtered.data), filtered.records_read, filtered.records_kept)
            )
        return counts

    def _filtered(self, source: StoredSegment) -> Iterator[tuple[Sequence[AbortedTxn], FilteredChunk]]:
        """What stays of each chunk of the segment before the tail, and the transactions for its index."""
        end_offset = INT64_MAX if self.tail is None else self.tail.start_offset
        if source.base_offset >= end_offset:
            return
        numbers = itertools.count()

        def judge(chunk: RecordChunk) -> _Judged:
            verdicts = judge_batches(chunk, self.transactions, self.rules)
            return _Judged(next(numbers), verdicts, self.transactions.take_retained())

        def finish(chunk: RecordChunk, judged: _Judged) -> tuple[Sequence[AbortedTxn], FilteredChunk]:
            return judged.retained, self._filter(source, chunk, judged)

        reader = self.part.reader(source, 0, end_offset, drops=self.survivors.drops_batches)
        yield from reader.results(judge, finish)

    def _filter(self, source: StoredSegment, chunk: RecordChunk, judged: _Judged) -> FilteredChunk:
        verdicts = judged.verdicts
        keep = np.ascontiguousarray(start_keep(chunk, verdicts))
        self.survivors.drop(source, judged.number, chunk, keeps_tombstones(chunk, self.rules.now_ms), keep)
        restore_control(chunk, verdicts, keep)
        return filter_chunk(chunk, verdicts, keep, self.rules)
