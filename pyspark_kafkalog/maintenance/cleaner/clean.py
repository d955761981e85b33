"""The log cleaner: compaction, which keeps the last record of each key of a compacted topic.

    begin       finish what a killed run left; segments from the cleaner's checkpoint on are dirty      plan.py
    survivors   the latest offset of each key in the dirty part                                         offset_map.py
    copy        group by group into a new segment, tombstones and markers by their horizons             copy.py
    replace     the new segment takes the place of its group                                            logs.py
    finish      <root>/cleaner-offset-checkpoint stores up to where the log is clean                    run_record.py

`clean_partition` does this in one process, `clean_spread` (spread.py) in several tasks, with the logs of either kind of
root: those of files replace segments by swaps, those in an object store by commits.

One run at a time works on a partition of files (jobs/partition.py); readers and writers continue meanwhile. A
crash leaves the old segments of each group, the new one or both, and no new checkpoint: the next run finishes swaps and
cleans the rest. Source of the rules: org.apache.kafka.storage.internals.log.LogCleaner, LogCleanerManager and Cleaner.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions, RetentionRules
from pyspark_kafkalog.maintenance.cleaner.logs import (
    CLEAN_ACTION,
    CleanableLog,
    CleanableLogs,
    CleanedFiles,
    CleanerLimits,
    CopiedGroup,
    Group,
    judge,
)
from pyspark_kafkalog.maintenance.cleaner.objects import CleanedObjects
from pyspark_kafkalog.maintenance.cleaner.offset_map import KeyCounts, LogPart, Survivors, find_survivors
from pyspark_kafkalog.maintenance.cleaner.plan import group_segments
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanOffset
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, Throttle
from pyspark_kafkalog.maintenance.kinds import logs_of
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)


def cleanable_logs(root: Root, now_ms: int | None = None, later: list[CleanOffset] | None = None) -> CleanableLogs:
    """The logs of the root for the cleaner; see `clean_partition` for the arguments."""
    now_ms = root.native().clock() if now_ms is None else now_ms
    return logs_of(root, lambda root: CleanedFiles(root, now_ms, later), lambda root: CleanedObjects(root, now_ms))


def clean_partition(
    root: Root,
    topic: str,
    partition: int,
    *,
    now_ms: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    dedupe_buffer_bytes: int | None = None,
    limits: CleanerLimits | None = None,
    later: list[CleanOffset] | None = None,
) -> PartitionReport:
    """Clean one partition of a compacted topic if it is due, or, with `force`, if anything can be cleaned.

    `now_ms` is the time to use, by default the clock's. `limits` are by default those of the broker-level settings,
    with `dedupe_buffer_bytes` for log.cleaner.dedupe.buffer.size. `later` gets what the cleaner's checkpoint should
    say, which is stored at once without it. With `dry_run` nothing changes. Errors of the partition are in the report.
    Raises ReadOnlyLogDirError for a broker's directory, and UnknownTopicError.
    """
    topic_partition = TopicPartition(topic, partition)
    native = root.native()
    limits = CleanerLimits.of(native.broker_config()) if limits is None else limits
    if dedupe_buffer_bytes is not None:
        limits = replace(limits, buffer_bytes=dedupe_buffer_bytes)
    native.refresh()
    native.partition(topic, partition)
    logs = cleanable_logs(native, now_ms, later)
    with reported(topic_partition) as outcome:
        _clean_outcome(logs, outcome, limits, force=force, dry_run=dry_run)
    return outcome.report


def _clean_outcome(logs: CleanableLogs, outcome: Outcome, limits: CleanerLimits, *, force: bool, dry_run: bool) -> None:
    topic_partition = outcome.report.topic_partition
    if not logs.exists(topic_partition):
        outcome.report = replace(outcome.report, skipped="nothing was ever written to it")
        return
    if dry_run:
        log = logs.inspect(topic_partition)
        if outcome.judge(log, force=force):
            check(logs, log, limits)
        return
    with logs.lock(topic_partition) as is_mine:
        if not is_mine:
            outcome.report = left_to_another_run(topic_partition, CLEAN_ACTION)
            return
        log = logs.begin(topic_partition, lambda log: outcome.judge(log, force=force))
        if outcome.judge(log, force=force):
            outcome.report = _clean(logs, log, outcome.report, limits)
        logs.end(topic_partition)


def _clean(logs: CleanableLogs, log: CleanableLog, report: PartitionReport, limits: CleanerLimits) -> PartitionReport:
    """The whole cleaning, in this process."""
    done: list[CopiedGroup] = []
    keys = KeyCounts()
    try:
        inputs = CleanInputs.of(logs, log)
        part = inputs.part(logs, limits)
        survivors, keys = find_survivors(part, limits.new_map(log.plan))
        with (
            inputs.copier(logs, part, survivors, part.transactions()) as copier,
            closing(logs.copy(log, copier, group) for group in inputs.groups) as copies,
        ):
            logs.replace(log, copies, done)
    except (KafkalogError, OSError):
        if not logs.is_outdated(log, done):
            raise
    return finish(logs, log, report, done, keys)


def check(logs: CleanableLogs, log: CleanableLog, limits: CleanerLimits) -> None:
    """Read what a cleaning reads, and change nothing. Raises KafkalogError, OSError."""

    def find(log: CleanableLog) -> None:
        find_survivors(CleanInputs.of(logs, log).part(logs, limits), limits.new_map(log.plan))

    logs.check(log, find)


def finish(
    logs: CleanableLogs, log: CleanableLog, report: PartitionReport, done: Sequence[CopiedGroup], keys: KeyCounts
) -> PartitionReport:
    """The report after the groups `done` were replaced; without any, another run is at work."""
    if not done:
        return left_to_another_run(report.topic_partition, CLEAN_ACTION)
    logs.finish(log)
    counts = CopyCounts()
    for copied in done:
        counts = counts.plus(copied.counts)
    return replace(
        report,
        bytes_read=counts.bytes_read,
        bytes_kept=counts.bytes_kept,
        bytes_dropped=counts.bytes_read - counts.bytes_kept,
        records_read=counts.records_read,
        records_kept=counts.records_kept,
        records_dropped=counts.records_read - counts.records_kept,
        recopy_percent=round(100 * counts.bytes_kept / counts.bytes_read, 1) if counts.bytes_read else None,
        segments_dropped=sum(len(copied.group) - 1 for copied in done),
        key_shards=keys.shards,
        records_without_key=keys.records_without_key,
    )


@dataclass(slots=True)
class Outcome:
    """The report of one partition, as its cleaning goes."""

    report: PartitionReport

    def judge(self, log: CleanableLog, *, force: bool = False) -> bool:
        """Whether the log is due, which the report says from now on, too."""
        self.report = judge(self.report, log, force=force)
        return self.report.skipped is None


@contextmanager
def reported(topic_partition: TopicPartition) -> Iterator[Outcome]:
    """The outcome of the block: its time, and an error of the partition, are in the report. Raises StoppedError."""
    outcome = Outcome(empty_report(topic_partition, CLEAN_ACTION))
    began = time.perf_counter()
    try:
        yield outcome
    except StoppedError:
        raise
    except (KafkalogError, OSError) as error:
        _LOG.warning("%s: cleaning failed: %s", topic_partition, error)
        outcome.report = replace(outcome.report, error=str(error))
    outcome.report = replace(outcome.report, seconds=time.perf_counter() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanInputs:
    """What every part of a cleaning takes, the same for all of its tasks. `seed` is for the hash of keys."""

    log: CleanableLog
    groups: Sequence[Group]
    aborted: Sequence[AbortedTxn]
    rules: RetentionRules
    seed: NDArray[np.uint64]

    @classmethod
    def of(cls, logs: CleanableLogs, log: CleanableLog) -> CleanInputs:
        """The inputs of a cleaning of the log. Raises KafkalogError, OSError."""
        plan, config = log.plan, log.config
        return cls(
            log=log,
            groups=group_segments(plan.segments, config, first_uncleanable_offset=plan.first_uncleanable_offset),
            aborted=logs.aborted(log),
            rules=RetentionRules(
                now_ms=logs.now_ms,
                delete_retention_ms=config.delete_retention_ms,
                end_offset=plan.first_uncleanable_offset,
                producers=logs.producers(log),
            ),
            seed=np.frombuffer(os.urandom(16), np.uint64),
        )

    def part(self, logs: CleanableLogs, limits: CleanerLimits) -> LogPart:
        """The part of the log to read."""
        log, plan = self.log, self.log.plan
        return LogPart(
            extent_of=partial(logs.extent, log),
            segments=plan.segments,
            first_dirty_offset=plan.first_dirty_offset,
            end_offset=plan.first_uncleanable_offset,
            aborted=self.aborted,
            seed=self.seed,
            now_ms=self.rules.now_ms,
            throttle=Throttle(limits.bytes_per_second),
            record_max_bytes=log.config.max_decompressed_message_bytes,
            name=logs.name(log),
            check_unended=partial(logs.check_unended, log, self.aborted),
        )

    @contextmanager
    def copier(
        self, logs: CleanableLogs, part: LogPart, survivors: Survivors, transactions: CleanedTransactions
    ) -> Iterator[GroupCopier]:
        """A copier for groups from the one on that begins with `transactions`."""
        with logs.scratch(self.log) as directory:
            yield GroupCopier(part, survivors, self.rules, transactions, self.log.config, directory, logs.fs)
