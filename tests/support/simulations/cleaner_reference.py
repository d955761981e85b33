"""Kafka's cleaner written down plainly, record by record, to hold the compiled one against; and logs for both."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from builders.indexes import rebuild_indexes

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier, clean_tail, transactions_at
from pyspark_kafkalog.maintenance.cleaner.filter import RetentionRules
from pyspark_kafkalog.maintenance.cleaner.offset_map import (
    ALL_KEYS,
    KeepBitmaps,
    LogPart,
    OffsetMap,
    build_map,
    find_survivors,
    keep_by_map,
)
from pyspark_kafkalog.maintenance.cleaner.plan import group_segments
from pyspark_kafkalog.maintenance.jobs.tasks import Throttle
from pyspark_kafkalog.maintenance.swap import swap_in
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.record.reference import RecordBatch, decode_batch, encode_batch
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log.isolation import indexed_transactions
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file
from pyspark_kafkalog.storage.segment.stored import closed_segments, local_extent


def write_segment(directory: Path, base_offset: int, batches: Iterable[bytes], config: LogConfig) -> None:
    """A closed segment with its indexes."""
    segment_file(directory, base_offset, LOG_SUFFIX).write_bytes(b"".join(batches))
    rebuild_indexes(directory, base_offset, config)


def stored_batches(directory: Path) -> list[bytes]:
    """The batches of all segments, in order."""
    found = []
    for base_offset in list_base_offsets(directory):
        path = segment_file(directory, base_offset, LOG_SUFFIX)
        data = path.read_bytes()
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            found.append(data[at : at + size])
            at += size
    return found


def decode(batch: bytes) -> RecordBatch:
    return decode_batch(batch, 0, file="batch", file_position=0)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One cleaning: the dirty part is [first_dirty_offset, end_offset), where a segment begins."""

    first_dirty_offset: int
    end_offset: int
    now_ms: int
    config: LogConfig
    producers: Mapping[int, ProducerStateEntry] = field(default_factory=dict)

    @property
    def rules(self) -> RetentionRules:
        return RetentionRules(
            now_ms=self.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            end_offset=self.end_offset,
            producers=self.producers,
        )


def clean_directory(
    directory: Path, run: Pass, *, map_bytes: int = 1 << 16, fs: FileSystem = LOCAL
) -> tuple[CopyCounts, int]:
    """Clean the segments below `end_offset` as the cleaner does; counts, and how many shards the keys took."""
    part = _part(directory, run)
    offset_map = OffsetMap(map_bytes, 0.9)
    tail = clean_tail(part, offset_map, run.rules)
    survivors, keys = find_survivors(part, offset_map, tail.start_offset)
    of_tail = tail if keys.shards == 1 else None
    copier = GroupCopier(part, survivors, run.rules, part.transactions(), run.config, directory, fs, of_tail)
    counts = CopyCounts()
    for group in group_segments(part.segments, run.config, first_uncleanable_offset=run.end_offset):
        counts = counts.plus(copier.copy(group))
        swap_in(directory, group[0].base_offset, [each.base_offset for each in group], now_ms=run.now_ms, fs=fs)
    return counts, keys.shards


def clean_directory_by_tasks(directory: Path, run: Pass, *, map_bytes: int) -> None:
    """The same by tasks that could run anywhere: shards of the keys first, then the groups, the last one first."""
    part = _part(directory, run)
    noted = KeepBitmaps()
    left = [ALL_KEYS]
    while left:
        offset_map = OffsetMap(map_bytes, 0.9)
        left += build_map(part, offset_map, left.pop())
        noted.merge(pickle.loads(pickle.dumps(keep_by_map(part, offset_map))))
    groups = group_segments(part.segments, run.config, first_uncleanable_offset=run.end_offset)
    for group, transactions in reversed(list(zip(groups, transactions_at(part, groups), strict=True))):
        GroupCopier(part, noted, run.rules, transactions, run.config, directory, LOCAL).copy(group)
    for group in groups:
        swap_in(directory, group[0].base_offset, [each.base_offset for each in group], now_ms=run.now_ms, fs=LOCAL)


def _part(directory: Path, run: Pass) -> LogPart:
    return LogPart(
        extent_of=partial(local_extent, directory),
        segments=tuple(closed_segments(directory, run.end_offset, with_index_sizes=True)),
        first_dirty_offset=run.first_dirty_offset,
        end_offset=run.end_offset,
        aborted=indexed_transactions(directory, 0, run.end_offset),
        seed=np.array([1, 2], np.uint64),
        now_ms=run.now_ms,
        throttle=Throttle(),
        record_max_bytes=run.config.max_decompressed_message_bytes,
    )


def reference(stored: Sequence[bytes], aborted: Sequence[AbortedTxn], run: Pass) -> list[bytes]:
    """What Kafka's cleaner leaves of the batches `stored`, all of them below `end_offset`."""
    batches = [decode(each) for each in stored]
    latest = _latest_offsets(batches, aborted, run.first_dirty_offset)
    transactions = _Transactions(aborted)
    kept = []
    for batch, data in zip(batches, stored, strict=True):
        result = _filter(batch, data, latest, transactions, run)
        if result is not None:
            kept.append(result)
    return kept


def _latest_offsets(
    batches: Sequence[RecordBatch], aborted: Sequence[AbortedTxn], first_dirty_offset: int
) -> dict[bytes, int]:
    transactions = _Transactions([each for each in aborted if each.last_offset >= first_dirty_offset])
    latest = {}
    for batch in batches:
        if batch.header.last_offset < first_dirty_offset:
            continue
        is_aborted = transactions.may_go(batch)
        if batch.header.is_control or is_aborted:
            continue
        for record in batch.records:
            if record.key is not None and record.offset >= first_dirty_offset:
                latest[record.key] = record.offset
    return latest


class _Transactions:
    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self.pending = sorted(set(aborted), key=lambda each: each.first_offset)
        self.aborted: dict[int, bool] = {}  # producer id -> data has been met
        self.committed: set[int] = set()

    def may_go(self, batch: RecordBatch) -> bool:
        header = batch.header
        while self.pending and self.pending[0].first_offset <= header.last_offset:
            self.aborted.setdefault(self.pending.pop(0).producer_id, False)
        if not header.is_control:
            if not header.is_transactional:
                return False
            if header.producer_id in self.aborted:
                self.aborted[header.producer_id] = True
                return True
            self.committed.add(header.producer_id)
            return False
        if not batch.records:
            return True
        kind = parse_control_type(batch.records[0].key, file="batch", file_position=0)
        if kind is ControlRecordType.ABORT:
            return not self.aborted.pop(header.producer_id, False)
        if kind is ControlRecordType.COMMIT:
            had_data = header.producer_id in self.committed
            self.committed.discard(header.producer_id)
            return not had_data
        return False


def _filter(
    batch: RecordBatch, data: bytes, latest: Mapping[bytes, int], transactions: _Transactions, run: Pass
) -> bytes | None:
    header = batch.header
    may_go = transactions.may_go(batch)
    horizon_ms = header.delete_horizon_ms
    discard = may_go and (not header.is_control or (horizon_ms is not None and horizon_ms <= run.now_ms))
    keeps_empty = header.last_offset == run.end_offset - 1
    entry = run.producers.get(header.producer_id)
    if entry is not None and header.producer_id >= 0:
        if entry.last_offset >= 0:
            keeps_empty |= header.last_offset == entry.last_offset
        else:
            keeps_empty |= header.is_control and header.producer_epoch == entry.producer_epoch
    records = []
    for record in batch.records:
        if discard:
            continue
        if not header.is_control:
            if record.key is None or record.offset < latest.get(record.key, -1):
                continue
            if record.value is None and horizon_ms is not None and run.now_ms >= horizon_ms:
                continue
        records.append(record)
    if not records:
        return _empty(batch) if keeps_empty else None
    has_tombstone = any(record.value is None for record in records)
    sets_horizon = horizon_ms is None and (has_tombstone or (may_go and header.is_control))
    if len(records) == len(batch.records) and not sets_horizon:
        return data
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return encode_batch(
        records,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        compression=CompressionType(header.compression_bits),
        timestamp_type=header.timestamp_type,
        max_timestamp_ms=header.max_timestamp_ms if is_append_time else None,
        delete_horizon_ms=run.now_ms + run.config.delete_retention_ms if sets_horizon else horizon_ms,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
    )


def _empty(batch: RecordBatch) -> bytes:
    header = batch.header
    return encode_batch(
        (),
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        timestamp_type=header.timestamp_type,
        max_timestamp_ms=header.max_timestamp_ms,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
    )
