"""The log cleaner: compaction, which keeps the last record of each key of a compacted topic.

    begin       finish what a killed run left; segments from the cleaner's checkpoint on are dirty      plan.py
    tail        the end of the dirty part, backwards: what stays of it is kept in memory                copy.py
    survivors   the latest offset of each key in the dirty part                                         offset_map.py
    copy        group by group into a new segment, tombstones and markers by their horizons             copy.py
    replace     the new segment takes the place of its group                                            logs.py
    finish      <root>/cleaner-offset-checkpoint stores up to where the log is clean                    run_record.py

`clean_partition` does this in one process, `clean_spread` in several tasks with the same result, with the logs of
either kind of root: those of files replace segments by swaps, those in an object store by commits.

One run at a time works on a partition of files (jobs/partition.py); readers and writers continue meanwhile. A
crash leaves the old segments of each group, the new one or both, and no new checkpoint: the next run finishes swaps and
cleans the rest. Source of the rules: org.apache.kafka.storage.internals.log.LogCleaner, LogCleanerManager and Cleaner.

*In several tasks*:

    driver   takes the partition's lock, to share it with its tasks; begins and plans
    task     reads the dirty part into a map, as many keys as it holds; another follows the transactions through the log
    tasks    only if there are more keys: one for each shard of keys stores which records survive
    tasks    one for each group of segments copies the surviving records into a new segment
    driver   replaces the groups, one after the other, the first one first; moves the checkpoint

The driver passes the plan to the tasks; large state is exchanged through files (offset_map.py). A kill of any process
leaves the same state as a kill of `clean_partition`, and possibly such files. Spark may run a task twice: only one
attempt at a time gets the claim to a group, and none after the group is replaced.

In an object store the tasks share no files, and reading the dirty part again costs less than passing a map on. So a
task merges the runs; then each of several tasks builds the map of all keys and copies a slice of the groups into
segments, which it puts. That holds as long as one map has room for all keys; other partitions are cleaned by one task.
The driver commits the segments once all are put. A kill of any process leaves segments that no commit names, for the
clean-up, and so does a task that Spark runs twice.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.copy import CleanedTail, CopyCounts, GroupCopier, clean_tail, transactions_at
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
from pyspark_kafkalog.maintenance.cleaner.offset_map import (
    ALL_KEYS,
    KeyCounts,
    KeyShard,
    LogPart,
    MapSurvivors,
    Survivors,
    build_map,
    find_survivors,
    keep_by_shards,
    load_keep_bitmaps,
    load_map,
    save_keep_bitmaps,
    save_map,
)
from pyspark_kafkalog.maintenance.cleaner.plan import group_segments
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanOffset
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, even_slices
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, Tasks, Throttle
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)


def cleanable_logs(root: Root, now_ms: int | None = None, later: list[CleanOffset] | None = None) -> CleanableLogs:
    """The logs of the root for the cleaner; see `clean_partition` for the arguments."""
    now_ms = root.native().clock() if now_ms is None else now_ms
    return for_kind(root, lambda root: CleanedFiles(root, now_ms, later), lambda root: CleanedObjects(root, now_ms))


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
        offset_map = limits.new_map(log.plan)
        tail = clean_tail(part, offset_map, inputs.rules)
        survivors, keys = find_survivors(part, offset_map, tail.start_offset)
        with (
            # Survivors by several maps are known by chunks of whole segments.
            inputs.copier(logs, part, survivors, part.transactions(), tail if keys.shards == 1 else None) as copier,
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
        self,
        logs: CleanableLogs,
        part: LogPart,
        survivors: Survivors,
        transactions: CleanedTransactions,
        tail: CleanedTail | None = None,
    ) -> Iterator[GroupCopier]:
        """A copier for groups from the one on that begins with `transactions`."""
        with logs.scratch(self.log) as directory:
            yield GroupCopier(part, survivors, self.rules, transactions, self.log.config, directory, logs.fs, tail)


def clean_spread(
    tasks: Tasks,
    job_run: JobRun,
    topic_partition: TopicPartition,
    limits: CleanerLimits,
    later: list[CleanOffset] | None = None,
) -> PartitionReport:
    """Clean the partition if it is due. Its errors are in the report; raises StoppedError.

    `limits` are those of each task; for `later` see `clean_partition`.
    """
    with reported(topic_partition) as outcome:
        logs = cleanable_logs(job_run.open(), job_run.now_ms, later)
        with logs.share_lock(topic_partition) as ticket:
            if ticket is None:
                outcome.report = left_to_another_run(topic_partition, CLEAN_ACTION)
            else:
                _Coordinator(tasks, job_run, logs, ticket, limits).clean(outcome)
                logs.end(topic_partition)
    return outcome.report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The work that every task gets. `claims` are those of the groups."""

    job_run: JobRun
    ticket: str
    inputs: CleanInputs
    claims: Sequence[int | None]
    limits: CleanerLimits

    @contextmanager
    def joined(self) -> Iterator[tuple[CleanableLogs, LogPart]]:
        """In a task: share the lock; yields the logs, and the part to read, at the task's own rate."""
        logs = cleanable_logs(self.job_run.open(), self.inputs.rules.now_ms)
        with logs.join_lock(self.inputs.log.topic_partition, self.ticket):
            yield logs, self.inputs.part(logs, self.limits)


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """The driver's part of a cleaning."""

    tasks: Tasks
    job_run: JobRun
    logs: CleanableLogs
    ticket: str
    limits: CleanerLimits

    def clean(self, outcome: Outcome) -> None:
        """Clean the log if it is due."""
        logs = self.logs
        log = self._begun(outcome)
        if not outcome.judge(log):
            return
        done: list[CopiedGroup] = []
        keys: list[KeyCounts] = []
        try:
            inputs = CleanInputs.of(logs, log)
            claims = [logs.claim_of(log, group) for group in inputs.groups]
            work = _Work(job_run=self.job_run, ticket=self.ticket, inputs=inputs, claims=claims, limits=self.limits)
            with closing(self._copies(work, keys)) as copies:
                logs.replace(log, copies, done)
        except StoppedError:
            raise
        except (KafkalogError, OSError):
            if not logs.is_outdated(log, done):
                raise
        outcome.report = finish(logs, log, outcome.report, done, keys[0] if keys else KeyCounts())

    def _begun(self, outcome: Outcome) -> CleanableLog:
        """The log as a cleaning begins with it. Where no lock admits one process at a time, a task begins it."""
        topic_partition = outcome.report.topic_partition
        if self.logs.shares_files:
            return self.logs.begin(topic_partition, outcome.judge)
        [log] = self._all([self.tasks.submit(partial(_begin, self.job_run, topic_partition), first=True)])
        assert isinstance(log, CleanableLog)
        return log

    def _copies(self, work: _Work, keys: list[KeyCounts]) -> Generator[CopiedGroup, None, None]:
        """The groups in order, as tasks have copied them; the counts of the keys are added to `keys`."""
        transactions = self.tasks.submit(partial(_transactions, work), first=True)
        futures: list[Future[Any]] = [transactions]
        try:
            bitmaps = self._found_survivors(work, keys, futures) if self.logs.shares_files else 0
            [starts] = self._all([transactions])
            copying = [
                self.tasks.submit(partial(_copy, work, first, last, starts[first], bitmaps), first=True)
                for first, last in self._slices(work.inputs.groups)
            ]
            futures += copying
            for future in copying:
                [(counts, copies)] = self._all([future])
                keys.append(counts)
                yield from copies
        finally:
            for future in futures:
                future.cancel()

    def _found_survivors(self, work: _Work, keys: list[KeyCounts], futures: list[Future[Any]]) -> int:
        """Store the survivors in tasks, unless one map has all keys; the number of files, 0 if there is the map."""
        mapped = self.tasks.submit(partial(_map, work), first=True)
        futures.append(mapped)
        [(left, without_key)] = self._all([mapped])
        bitmaps, shards = 0, 1
        if left:  # the shard of the first task is in the existing map
            works = [partial(_keep, work, number, shard) for number, shard in enumerate([None, *left])]
            bitmaps = len(works)
            shards = sum(self._all([self.tasks.submit(each, first=True) for each in works]))
        keys.append(KeyCounts(shards, without_key))
        return bitmaps

    def _slices(self, groups: Sequence[Group]) -> list[tuple[int, int]]:
        """The first and the end of the groups of each task: one, or a slice of them where each task builds the map."""
        if self.logs.shares_files:
            return [(number, number + 1) for number in range(len(groups))]
        sizes = [sum(segment.size_bytes for segment in group) for group in groups]
        return even_slices(sizes, min(self.tasks.slots, len(groups)))

    def _all(self, futures: Sequence[Future[Any]]) -> list[Any]:
        """The results in order. The first failure is raised at once, and calls that have not begun are cancelled."""
        try:
            for future in self.tasks.as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]


# The following functions run in tasks.


def _begin(job_run: JobRun, topic_partition: TopicPartition) -> CleanableLog:
    outcome = Outcome(empty_report(topic_partition, CLEAN_ACTION))
    return cleanable_logs(job_run.open(), job_run.now_ms).begin(topic_partition, outcome.judge)


def _transactions(work: _Work) -> list[CleanedTransactions]:
    with work.joined() as (_, part):
        return transactions_at(part, work.inputs.groups)


def _map(work: _Work) -> tuple[list[KeyShard], int]:
    """Build a map of as many keys as it holds; return the shards that it has to leave, and the records without key."""
    with _in_directory(work) as (directory, part):
        offset_map = work.limits.new_map(work.inputs.log.plan)
        left = build_map(part, offset_map, ALL_KEYS)
        save_map(directory, offset_map)
        return left, offset_map.records_without_key


def _keep(work: _Work, number: int, shard: KeyShard | None) -> int:
    """Store which records survive by the keys of the shard, or of that of `_map`; return the number of shards used."""
    with _in_directory(work) as (directory, part):
        if shard is None:
            offset_map, left = load_map(directory, work.limits.load_factor), []
        else:
            offset_map = work.limits.new_map(work.inputs.log.plan)
            left = build_map(part, offset_map, shard)
        kept, shards = keep_by_shards(part, offset_map, left)
        save_keep_bitmaps(directory, number, kept)
        return shards


@contextmanager
def _in_directory(work: _Work) -> Iterator[tuple[Path, LogPart]]:
    """The directory in which the tasks exchange maps and bitmaps, and the part to read."""
    with work.joined() as (logs, part), logs.scratch(work.inputs.log) as directory:
        yield directory, part


def _copy(
    work: _Work, first: int, last: int, start: CleanedTransactions, bitmaps: int
) -> tuple[KeyCounts, list[CopiedGroup]]:
    """Copy the groups [first, last); `start` are the transactions at the beginning of the first.

    `bitmaps` is the number of bitmap files or 0.
    """
    inputs = work.inputs
    with work.joined() as (logs, part):
        keys = KeyCounts()
        if logs.shares_files:
            survivors = _stored_survivors(work, logs, part, first, bitmaps)
        else:
            survivors, keys = find_survivors(part, work.limits.new_map(inputs.log.plan))
        with inputs.copier(logs, part, survivors, start) as copier:
            copies = [
                logs.copy(inputs.log, copier, group, claim)
                for group, claim in zip(inputs.groups[first:last], work.claims[first:last], strict=True)
            ]
        return keys, copies


def _stored_survivors(work: _Work, logs: CleanableLogs, part: LogPart, number: int, bitmaps: int) -> Survivors:
    with logs.scratch(work.inputs.log) as directory:
        if bitmaps:
            return load_keep_bitmaps(directory, bitmaps, work.inputs.groups[number])
        offset_map = load_map(directory, work.limits.load_factor)
        return MapSurvivors(offset_map, offset_map.marks(part.first_dirty_offset))
