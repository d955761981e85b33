"""Cleans a large partition in several tasks; the result is the same as that of `clean_partition`.

    driver   takes the partition's lock, to share it with its tasks; begins and plans
    task     reads the dirty part into a map, as many keys as it holds; another follows the transactions through the log
    tasks    only if there are more keys: one for each shard of keys stores which records survive
    tasks    one for each group of segments copies the surviving records into a new segment
    driver   replaces the groups, one after the other, the first one first; moves the checkpoint

The driver passes the plan to the tasks; large state is exchanged through files (offset_map.py). A kill of any process
leaves the same state as a kill of `clean_partition`, and possibly such files. Spark may run a task twice: only one
attempt at a time gets the claim to a group, and none after the group is replaced.

*In an object store* the tasks share no files, and reading the dirty part again costs less than passing a map on. So a
task merges the runs; then each of several tasks builds the map of all keys and copies a slice of the groups into
segments, which it puts. That holds as long as one map has room for all keys; other partitions are cleaned by one task.
The driver commits the segments once all are put. A kill of any process leaves segments that no commit names, for the
clean-up, and so does a task that Spark runs twice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.clean import CleanInputs, Outcome, cleanable_logs, finish, reported
from pyspark_kafkalog.maintenance.cleaner.copy import transactions_at
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions
from pyspark_kafkalog.maintenance.cleaner.logs import (
    CLEAN_ACTION,
    CleanableLog,
    CleanableLogs,
    CleanerLimits,
    CopiedGroup,
    Group,
)
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
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanOffset
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, even_slices
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, Tasks
from pyspark_kafkalog.storage.names import TopicPartition


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
