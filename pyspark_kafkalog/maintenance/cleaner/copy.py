"""Copies the surviving records of a group of segments into one new segment, `<base>.log.cleaned` with its indexes.

Offset and time index are the same as those of a segment that is appended to. The transaction index contains the aborted
transactions whose data remains before their markers. The file's modification time is that of the group's last segment.
A crash leaves `.cleaned` files, which the next run or a starting broker removes. Source of the rules:
Cleaner.cleanSegments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from pyspark_kafkalog.maintenance.cleaner.offset_map import LogPart, Survivors, keeps_tombstones
from pyspark_kafkalog.maintenance.cleaner.record_chunks import RecordChunk
from pyspark_kafkalog.record.header import CONTROL_MASK, TRANSACTIONAL_MASK
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import CLEANED_SUFFIX
from pyspark_kafkalog.storage.segment.index_entries import SegmentCounters
from pyspark_kafkalog.storage.segment.segment import LogSegment
from pyspark_kafkalog.storage.segment.stored import StoredSegment


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


@dataclass(frozen=True, slots=True)
class GroupCopier:
    """Copies the groups of one log, in order: `transactions` is carried over from one to the next.

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
        numbers = itertools.count()

        def judge(chunk: RecordChunk) -> _Judged:
            verdicts = judge_batches(chunk, self.transactions, self.rules)
            return _Judged(next(numbers), verdicts, self.transactions.take_retained())

        def finish(chunk: RecordChunk, judged: _Judged) -> tuple[_Judged, FilteredChunk]:
            return judged, self._filter(source, chunk, judged)

        reader = self.part.reader(source, drops=self.survivors.drops_batches)
        for judged, filtered in reader.results(judge, finish):
            if len(filtered.batches):
                self.part.throttle.take(len(filtered.data))
                self.fs.pwrite_all(segment.fd, filtered.data, segment.size_bytes)
                segment.set_counters(segment.index_batches(filtered.batches, segment.counters()))
            for transaction in judged.retained:
                segment.txn_index.append(transaction)
            counts = counts.plus(
                CopyCounts(filtered.bytes_read, len(filtered.data), filtered.records_read, filtered.records_kept)
            )
        return counts

    def _filter(self, source: StoredSegment, chunk: RecordChunk, judged: _Judged) -> FilteredChunk:
        verdicts = judged.verdicts
        keep = np.ascontiguousarray(start_keep(chunk, verdicts))
        self.survivors.drop(source, judged.number, chunk, keeps_tombstones(chunk, self.rules.now_ms), keep)
        restore_control(chunk, verdicts, keep)
        return filter_chunk(chunk, verdicts, keep, self.rules)
