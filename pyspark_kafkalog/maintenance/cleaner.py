"""The log cleaner: of each key of a compacted topic the last record stays.

    plan        closed segments from the cleaner's checkpoint on are dirty                       clean_plan.py
    map         the latest offset of each key in the dirty part                                  survivors.py
    recopy      group by group into a new segment, tombstones and markers by their horizons      group_recopy.py
    swap        the new segment takes the place of the group, under the root's lock              segment_swap.py
    checkpoint  <root>/cleaner-offset-checkpoint says how far the log is clean

One run at a time works on a partition (partition_lock.py); readers and writers go on beside it. A crash leaves either
segment of each group or both, and no checkpoint: the next run finishes swaps and cleans what is still dirty. Source of
the rules: org.apache.kafka.storage.internals.log.LogCleaner, LogCleanerManager and Cleaner.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.batch_filter import RetentionRules
from pyspark_kafkalog.maintenance.clean_plan import (
    CleanPlan,
    filthiest_first,
    group_segments,
    plan_cleaning,
)
from pyspark_kafkalog.maintenance.cleaned_transactions import CleanedTransactions
from pyspark_kafkalog.maintenance.closed_segments import (
    aborted_transactions,
    active_producers,
    closed_segments,
    first_timestamp_ms,
    largest_timestamp_ms,
)
from pyspark_kafkalog.maintenance.deleted_files import remove_deleted_files
from pyspark_kafkalog.maintenance.group_recopy import CopyCounts, GroupCopier
from pyspark_kafkalog.maintenance.offset_map import ENTRY_BYTES, OffsetMap
from pyspark_kafkalog.maintenance.partition_lock import partition_lock
from pyspark_kafkalog.maintenance.report import PartitionReport
from pyspark_kafkalog.maintenance.segment_swap import SwapTarget
from pyspark_kafkalog.maintenance.survivors import LogPart, find_survivors
from pyspark_kafkalog.maintenance.throttle import Throttle
from pyspark_kafkalog.metadata.own_root import OwnRoot
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.storage.log_config import LogConfig
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.offset_checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)

_LOG: Final = logging.getLogger(__name__)

ACTION: Final = "clean"


@dataclass(frozen=True, slots=True)
class CleanablePartition:
    """A partition that needs cleaning, and what of it; `topic_id` tells it from a later one of the name."""

    topic_partition: TopicPartition
    topic_id: str
    directory: Path
    state: LogState
    config: LogConfig
    plan: CleanPlan


def choose_partitions(
    log_dir: LogDir, *, now_ms: int | None = None, topics: Collection[str] | None = None
) -> list[CleanablePartition]:
    """The partitions of compacted topics that are due, the filthiest first; all topics', or those of `topics`.

    Due: the dirty ratio is above min.cleanable.dirty.ratio, or max.compaction.lag.ms is over. A partition that cannot
    be looked at is left out with a warning. Raises ReadOnlyLogDirError for a broker's directory, UnknownTopicError.
    """
    root = log_dir.own_root()
    root.refresh()
    now = root.clock() if now_ms is None else now_ms
    checkpoint = read_offset_checkpoint(root.path / CLEANER_OFFSET_CHECKPOINT)
    found: list[CleanablePartition] = []
    for name in root.topics() if topics is None else topics:
        if not root.log_config(name).compact:
            continue
        for partition in root.store.image.topic(name).partitions:
            where = TopicPartition(name, partition.partition)
            try:
                found.append(_look_at(root, where, checkpoint.get(where), now))
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s cannot be planned for cleaning: %s", where, error)
    return [found[number] for number in filthiest_first((each.plan, each.config) for each in found)]


def _look_at(root: OwnRoot, where: TopicPartition, checkpoint_offset: int | None, now_ms: int) -> CleanablePartition:
    topic = root.store.image.topic(where.topic)
    state = root.store.image.partition(where.topic, where.partition).state
    directory = root.path / str(where)
    config = root.log_config(where.topic)
    plan = plan_cleaning(
        closed_segments(directory, state),
        state,
        config,
        checkpoint_offset=checkpoint_offset,
        now_ms=now_ms,
        largest_timestamp_ms=lambda segment: largest_timestamp_ms(directory, segment),
        first_timestamp_ms=lambda segment: first_timestamp_ms(directory, segment),
    )
    return CleanablePartition(where, topic.topic_id, directory, state, config, plan)


def clean_partition(
    log_dir: LogDir,
    topic: str,
    partition: int,
    *,
    now_ms: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    dedupe_buffer_bytes: int | None = None,
    throttle: Throttle | None = None,
    offset_map: OffsetMap | None = None,
) -> PartitionReport:
    """Clean one partition of a compacted topic if it is due, or if `force` and there is anything to clean.

    `now_ms` is the time to go by, the clock's by default; `dedupe_buffer_bytes` is log.cleaner.dedupe.buffer.size by
    default, `throttle` log.cleaner.io.max.bytes.per.second. `offset_map` is used instead of a new one. With `dry_run`
    nothing changes. What is wrong with the partition is told in the report. Raises ReadOnlyLogDirError for a broker's
    directory, UnknownTopicError.
    """
    root = log_dir.own_root()
    root.refresh()
    where = TopicPartition(topic, partition)
    root.partition(where)
    began = time.perf_counter()
    now = root.clock() if now_ms is None else now_ms
    broker = root.broker_config()
    report = PartitionReport(topic=topic, partition=partition, action=ACTION)
    if not (root.path / str(where)).is_dir():
        return replace(report, skipped="nothing was ever written to it")
    try:
        with partition_lock(root.path / str(where), fs=root.fs) as is_mine:
            if not is_mine:
                return replace(report, skipped="another run has the partition")
            run = _Cleaning(
                root=root,
                where=where,
                now_ms=now,
                buffer_bytes=dedupe_buffer_bytes or broker.log_cleaner_dedupe_buffer_size,
                load_factor=broker.log_cleaner_io_buffer_load_factor,
                throttle=throttle or Throttle(broker.log_cleaner_io_max_bytes_per_second),
                offset_map=offset_map,
            )
            report = run.dry_run(report) if dry_run else run.clean(report, force=force)
    except (KafkalogError, OSError) as error:
        _LOG.warning("%s: cleaning failed: %s", where, error)
        report = replace(report, error=str(error))
    return replace(report, seconds=time.perf_counter() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cleaning:
    """One run over one partition, whose maintenance lock is held."""

    root: OwnRoot
    where: TopicPartition
    now_ms: int
    buffer_bytes: int
    load_factor: float
    throttle: Throttle
    offset_map: OffsetMap | None

    def dry_run(self, report: PartitionReport) -> PartitionReport:
        return _with_plan(report, self._look().plan)

    def clean(self, report: PartitionReport, *, force: bool) -> PartitionReport:
        found = self._look()
        if not found.config.compact:
            return replace(report, skipped="cleanup.policy is not compact")
        target = self._target(found)
        target.finish()
        found = self._look()  # finished swaps change what there is
        plan = found.plan
        if plan.resets_checkpoint:
            self._write_checkpoint(plan.first_dirty_offset)
        report = _with_plan(report, plan)
        is_due = plan.needs_cleaning(found.config.min_cleanable_dirty_ratio) or (force and plan.cleanable_bytes > 0)
        if is_due and plan.first_dirty_offset < plan.first_uncleanable_offset:
            report = self._clean(found, target, report)
        else:
            report = replace(report, skipped="nothing to clean" if not plan.cleanable_bytes else "not dirty enough")
        remove_deleted_files(
            found.directory, now_ms=self.now_ms, delay_ms=found.config.file_delete_delay_ms, fs=self.root.fs
        )
        return report

    def _look(self) -> CleanablePartition:
        self.root.refresh()
        checkpoint = read_offset_checkpoint(self.root.path / CLEANER_OFFSET_CHECKPOINT)
        return _look_at(self.root, self.where, checkpoint.get(self.where), self.now_ms)

    def _target(self, found: CleanablePartition) -> SwapTarget:
        return SwapTarget(self.root, self.where, found.topic_id, found.config, self.now_ms)

    def _clean(self, found: CleanablePartition, target: SwapTarget, report: PartitionReport) -> PartitionReport:
        plan = found.plan
        part = LogPart(
            directory=found.directory,
            segments=plan.segments,
            first_dirty_offset=plan.first_dirty_offset,
            end_offset=plan.first_uncleanable_offset,
            aborted=aborted_transactions(found.directory, plan.first_uncleanable_offset),
            seed=np.frombuffer(os.urandom(16), np.uint64),
            now_ms=self.now_ms,
            throttle=self.throttle,
        )
        offset_map = self.offset_map or self._new_map(plan)
        survivors, shards = find_survivors(part, offset_map)
        transactions = CleanedTransactions.of(part.aborted)
        copier = GroupCopier(part, survivors, self._rules(found), transactions, found.config, self.root.fs)
        groups = group_segments(plan.segments, found.config, first_uncleanable_offset=plan.first_uncleanable_offset)
        counts = CopyCounts()
        for group in groups:
            counts = counts.plus(copier.copy(group))
            target.swap(group[0].base_offset, [each.base_offset for each in group])
        self._write_checkpoint(plan.first_uncleanable_offset)
        return _with_counts(report, counts, segments=len(plan.segments) - len(groups), shards=shards)

    def _new_map(self, plan: CleanPlan) -> OffsetMap:
        """A map of the buffer's size, or for as many keys as the dirty part has offsets, if that is less."""
        keys_max = plan.first_uncleanable_offset - plan.first_dirty_offset
        needed_bytes = ENTRY_BYTES * (int(keys_max / self.load_factor) + 2)
        return OffsetMap(min(self.buffer_bytes, needed_bytes), self.load_factor)

    def _rules(self, found: CleanablePartition) -> RetentionRules:
        return RetentionRules(
            now_ms=self.now_ms,
            delete_retention_ms=found.config.delete_retention_ms,
            end_offset=found.plan.first_uncleanable_offset,
            producers=active_producers(
                found.directory,
                found.state,
                now_ms=self.now_ms,
                expiration_ms=self.root.broker_config().producer_id_expiration_ms,
            ),
        )

    def _write_checkpoint(self, offset: int) -> None:
        """Say that the partition is clean below `offset`; lines of topics that are gone go with it."""
        path = self.root.path / CLEANER_OFFSET_CHECKPOINT
        with root_lock(self.root.path, fs=self.root.fs):
            image = self.root.store.refresh()
            before = read_offset_checkpoint(path)
            offsets = {each: at for each, at in before.items() if each.topic in image.topics}
            if self.where.topic not in image.topics:
                raise UnknownTopicError(f"topic {self.where.topic!r} was deleted meanwhile")
            offsets[self.where] = offset
            write_offset_checkpoint(path, offsets, fs=self.root.fs)


def _with_plan(report: PartitionReport, plan: CleanPlan) -> PartitionReport:
    return replace(
        report,
        dirty_percent=round(100 * plan.dirty_ratio, 1),
        first_dirty_offset=plan.first_dirty_offset,
        first_uncleanable_offset=plan.first_uncleanable_offset,
    )


def _with_counts(report: PartitionReport, counts: CopyCounts, *, segments: int, shards: int) -> PartitionReport:
    return replace(
        report,
        bytes_read=counts.bytes_read,
        bytes_kept=counts.bytes_kept,
        bytes_dropped=counts.bytes_read - counts.bytes_kept,
        records_read=counts.records_read,
        records_kept=counts.records_kept,
        records_dropped=counts.records_read - counts.records_kept,
        recopy_percent=round(100 * counts.bytes_kept / counts.bytes_read, 1) if counts.bytes_read else None,
        segments_dropped=segments,
        key_shards=shards,
    )
