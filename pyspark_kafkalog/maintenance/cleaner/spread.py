"""The cleaning of one large partition, spread over tasks; the result is the same as that of `clean_partition`.

    driver   takes the partition's lock, to share it with its tasks; plans
    task     reads the dirty part into a map, as many keys as it holds; another follows the transactions through the log
    tasks    only if there are more keys: one for each shard of keys stores which records survive
    tasks    one for each group of segments copies the surviving records into a new segment
    driver   swaps the groups in, one after the other, the first one first; moves the checkpoint

The driver passes the plan to the tasks; large state is exchanged through files (offset_map.py). A kill of any process
leaves the same state as a kill of `clean_partition`, and possibly such files. Spark may run a task twice: only one
attempt at a time gets the claim to a group, and none after the group is swapped in.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.clean import ACTION, CleanablePartition, Cleaning
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier, transactions_at
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions, RetentionRules
from pyspark_kafkalog.maintenance.cleaner.offset_map import (
    ALL_KEYS,
    LogPart,
    MapSurvivors,
    OffsetMap,
    Shard,
    Survivors,
    build_map,
    keep_by_shards,
    load_keep_bitmaps,
    load_map,
    remove_task_files,
    save_keep_bitmaps,
    save_map,
)
from pyspark_kafkalog.maintenance.jobs.partition_lock import file_claim, join_partition_lock, shared_partition_lock
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, Tasks, Throttle
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file
from pyspark_kafkalog.storage.segment.stored import StoredSegment

_LOG: Final = logging.getLogger(__name__)

_Group = Sequence[StoredSegment]


def clean_spread(tasks: Tasks, cleaning: Cleaning, *, bytes_per_second: float) -> PartitionReport:
    """Clean the partition if it is due. Its errors are in the report; raises StoppedError.

    `bytes_per_second` is the rate at which each task may read and write.
    """
    began = time.perf_counter()
    report = empty_report(cleaning.topic_partition, ACTION)
    try:
        with shared_partition_lock(cleaning.directory, fs=cleaning.root.fs) as ticket:
            if ticket is None:
                return left_to_another_run(cleaning.topic_partition, ACTION)
            report, found = cleaning.begin(report, force=False)
            if report.skipped is None:
                plan = _SpreadPlan.of(cleaning, found, ticket, bytes_per_second)
                try:
                    counts, shards = _Coordinator(tasks, cleaning, found, plan).clean()
                finally:
                    remove_task_files(cleaning.directory, fs=cleaning.root.fs)
                report = cleaning.finish(report, found, counts, groups=len(plan.groups), shards=shards)
            cleaning.remove_deleted()
    except StoppedError:
        raise
    except (KafkalogError, OSError) as error:
        _LOG.warning("%s: cleaning failed: %s", cleaning.topic_partition, error)
        report = replace(report, error=str(error))
    return replace(report, seconds=time.perf_counter() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpreadPlan:
    """The plan that every task gets. `inodes` are those of the first segment of each group."""

    directory: Path
    ticket: str
    part: LogPart
    groups: Sequence[_Group]
    inodes: Sequence[int]
    rules: RetentionRules
    config: LogConfig
    map_bytes: int
    load_factor: float
    bytes_per_second: float

    @classmethod
    def of(cls, cleaning: Cleaning, found: CleanablePartition, ticket: str, bytes_per_second: float) -> _SpreadPlan:
        groups = cleaning.groups(found)
        return cls(
            directory=found.directory,
            ticket=ticket,
            part=cleaning.part(found),
            groups=groups,
            inodes=[os.stat(_first_file(found.directory, group)).st_ino for group in groups],
            rules=cleaning.rules(found),
            config=found.config,
            map_bytes=cleaning.map_bytes(found.plan),
            load_factor=cleaning.load_factor,
            bytes_per_second=bytes_per_second,
        )

    @contextlib.contextmanager
    def joined(self) -> Iterator[LogPart]:
        """In a task: share the lock; yields the part to read, at the task's own rate."""
        with join_partition_lock(self.directory, self.ticket):
            yield replace(self.part, throttle=Throttle(self.bytes_per_second))

    @contextlib.contextmanager
    def claimed(self, number: int) -> Iterator[_Group]:
        """The group, for one attempt at a time."""
        group = self.groups[number]
        with file_claim(_first_file(self.directory, group), self.inodes[number]):
            yield group

    def new_map(self) -> OffsetMap:
        return OffsetMap(self.map_bytes, self.load_factor)


def _first_file(directory: Path, group: _Group) -> Path:
    return segment_file(directory, group[0].base_offset, LOG_SUFFIX)


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """The driver's part of a cleaning."""

    tasks: Tasks
    cleaning: Cleaning
    found: CleanablePartition
    plan: _SpreadPlan

    def clean(self) -> tuple[CopyCounts, int]:
        """Clean; return the counts, and the number of shards of keys."""
        transactions = self.tasks.submit(partial(_transactions, self.plan), first=True)
        mapped = self.tasks.submit(partial(_map, self.plan), first=True)
        try:
            [left] = self._all([mapped])
            bitmaps, shards = self._keep(left) if left else (0, 1)
            [starts] = self._all([transactions])
            return self._copy(starts, bitmaps), shards
        finally:
            mapped.cancel()
            transactions.cancel()

    def _keep(self, left: Sequence[Shard]) -> tuple[int, int]:
        """Store the survivors in tasks; the shard of the first task is in the existing map."""
        works = [partial(_keep, self.plan, number, shard) for number, shard in enumerate([None, *left])]
        futures = [self.tasks.submit(work, first=True) for work in works]
        return len(works), sum(self._all(futures))

    def _copy(self, starts: Sequence[CleanedTransactions], bitmaps: int) -> CopyCounts:
        futures: list[Future[CopyCounts]] = [
            self.tasks.submit(partial(_copy, self.plan, number, start, bitmaps), first=True)
            for number, start in enumerate(starts)
        ]
        counts = CopyCounts()
        try:
            for number, future in enumerate(futures):
                [copied] = self._all([future])
                counts = counts.plus(copied)
                with self.plan.claimed(number) as group:
                    self._swap(group)
        finally:
            for future in futures:
                future.cancel()
        return counts

    def _swap(self, group: _Group) -> None:
        target = self.cleaning.target(self.found)
        target.swap(group[0].base_offset, [each.base_offset for each in group])

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


def _transactions(plan: _SpreadPlan) -> list[CleanedTransactions]:
    with plan.joined() as part:
        return transactions_at(part, plan.groups)


def _map(plan: _SpreadPlan) -> list[Shard]:
    """Build a map of as many keys as it holds; return the shards that it has to leave."""
    with plan.joined() as part:
        offset_map = plan.new_map()
        left = build_map(part, offset_map, ALL_KEYS)
        save_map(plan.directory, offset_map)
        return left


def _keep(plan: _SpreadPlan, number: int, shard: Shard | None) -> int:
    """Store which records survive by the keys of the shard, or of that of `_map`; return the number of shards used."""
    with plan.joined() as part:
        if shard is None:
            offset_map, left = load_map(plan.directory, plan.load_factor), []
        else:
            offset_map = plan.new_map()
            left = build_map(part, offset_map, shard)
        kept, shards = keep_by_shards(part, offset_map, left)
        save_keep_bitmaps(plan.directory, number, kept)
        return shards


def _copy(plan: _SpreadPlan, number: int, start: CleanedTransactions, bitmaps: int) -> CopyCounts:
    """Copy one group; `start` are the transactions at its beginning, `bitmaps` the number of bitmap files or 0."""
    with plan.joined() as part, plan.claimed(number) as group:
        survivors: Survivors
        if bitmaps:
            survivors = load_keep_bitmaps(plan.directory, bitmaps, group)
        else:
            offset_map = load_map(plan.directory, plan.load_factor)
            survivors = MapSurvivors(offset_map, offset_map.marks(part.first_dirty_offset))
        return GroupCopier(part, survivors, plan.rules, start, plan.config, LOCAL).copy(group)
