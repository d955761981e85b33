"""Cleans a large partition of an object root in several tasks; the result is the same as that of clean.py.

    task     merges runs, if that closes a segment
    task     follows the transactions through the log
    tasks    each builds the map of the dirty part's keys, and copies a slice of the groups into segments, which it puts
    driver   commits the segments, one group after the other, the first one first

The tasks share no state but the plan: reading the dirty part again costs less than passing a map on. That holds as long
as one map has room for all keys; other partitions are cleaned by one task. If a segment is gone at its commit, the
driver ends there and deletes what was put for the groups after it. A kill of any process leaves segments that no commit
names, for the clean-up, and so does a task that Spark runs twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from pyspark_kafkalog.errors import KafkalogError, LogDirError
from pyspark_kafkalog.maintenance.cleaner.copy import transactions_at
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions
from pyspark_kafkalog.maintenance.cleaner.logs import CLEAN_ACTION, judge
from pyspark_kafkalog.maintenance.cleaner.objects import (
    CleanableLog,
    CleanerLimits,
    PutGroup,
    commit_group,
    copier_of,
    inspect_log,
    is_outdated,
    part_of,
    put_group,
    report_of,
)
from pyspark_kafkalog.maintenance.cleaner.plan import group_segments
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, Tasks, Throttle
from pyspark_kafkalog.maintenance.objects.merge import merge_all
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.tiered.own_layouts import segment_keys

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What each task may use: bytes of the map of keys, how full it gets, and bytes a second."""

    buffer_bytes: int
    load_factor: float
    bytes_per_second: float

    def limits(self) -> CleanerLimits:
        """The limits of one task, which begin to count now."""
        return CleanerLimits(
            buffer_bytes=self.buffer_bytes, load_factor=self.load_factor, throttle=Throttle(self.bytes_per_second)
        )


def clean_log_spread(
    tasks: Tasks, job_run: JobRun, topic_partition: TopicPartition, limits: TaskShare, *, now_ms: int
) -> PartitionReport:
    """Clean the partition if it is due. Raises TaskFailedError, StoppedError, and the errors of a commit."""
    root = _objects(job_run)
    report, found = _judged(root, topic_partition, now_ms)
    if report.skipped is None and found.needs_merge:
        _result(tasks, tasks.submit(partial(_merge, job_run, topic_partition), first=True))
        report, found = _judged(root, topic_partition, now_ms, is_merged=True)
    if report.skipped is not None:
        return report
    plan = found.plan
    groups = group_segments(plan.segments, found.config, first_uncleanable_offset=plan.first_uncleanable_offset)
    work = _Work(job_run, found, tuple(groups), limits, now_ms)
    done: list[PutGroup] = []
    try:
        starts = _result(tasks, tasks.submit(partial(_transactions, work), first=True))
        futures = [
            tasks.submit(partial(_copy, work, first, last, starts[first]), first=True)
            for first, last in _slices(groups, tasks.slots)
        ]
        _commit(tasks, root, found, futures, done)
    except StoppedError:
        raise
    except (KafkalogError, OSError):
        if not is_outdated(root, found, done):
            raise
    return report_of(report, done)


@dataclass(frozen=True, slots=True)
class _Work:
    """What every task gets."""

    job_run: JobRun
    found: CleanableLog
    groups: tuple[Sequence[StoredSegment], ...]
    share: TaskShare
    now_ms: int


def _objects(job_run: JobRun) -> ObjectRoot:
    root = job_run.open().native()
    if not isinstance(root, ObjectRoot):
        raise LogDirError(f"{root.path} is not in an object store any more")
    return root


def _judged(
    root: ObjectRoot, topic_partition: TopicPartition, now_ms: int, *, is_merged: bool = False
) -> tuple[PartitionReport, CleanableLog]:
    root.refresh()
    found = inspect_log(root, topic_partition, now_ms, is_merged=is_merged)
    return judge(empty_report(topic_partition, CLEAN_ACTION), found.plan, found.config), found


def _slices(groups: Sequence[Sequence[StoredSegment]], slots: int) -> list[tuple[int, int]]:
    """The first and the end of about equally large slices of the groups, at most one for each slot."""
    sizes = [sum(each.size_bytes for each in group) for group in groups]
    total, count = max(sum(sizes), 1), min(slots, len(groups))
    slices: list[list[int]] = [[] for _ in range(count)]
    done = 0
    for number, size_bytes in enumerate(sizes):
        slices[min((done + size_bytes // 2) * count // total, count - 1)].append(number)
        done += size_bytes
    return [(each[0], each[-1] + 1) for each in slices if each]


def _commit(
    tasks: Tasks,
    root: ObjectRoot,
    found: CleanableLog,
    futures: Sequence[Future[list[PutGroup]]],
    done: list[PutGroup],
) -> None:
    """Commit the groups in order once all tasks have put theirs, and add those that were committed to `done`."""
    is_ended = False
    try:
        for put in [each for future in futures for each in _result(tasks, future)]:
            is_ended = is_ended or not commit_group(root, found, put)
            if is_ended:
                segment = put.segment
                root.objects.delete(segment_keys(found.of, segment.base_offset, segment.segment_id))
            else:
                done.append(put)
    finally:
        for future in futures:
            future.cancel()


def _result(tasks: Tasks, future: Future[_T]) -> _T:
    """The result of a call; raises StoppedError when the run is stopped."""
    for each in tasks.as_completed([future]):
        return each.result()
    raise AssertionError("as_completed yields each future")


# The following functions run in tasks.


def _merge(job_run: JobRun, topic_partition: TopicPartition) -> None:
    root = _objects(job_run)
    for _ in merge_all(
        root.store, root.objects, root.log_config(topic_partition.topic), topic_partition, clock=root.clock
    ):
        pass


def _transactions(work: _Work) -> list[CleanedTransactions]:
    part = part_of(_objects(work.job_run), work.found, work.share.limits(), work.now_ms)
    return transactions_at(part, work.groups)


def _copy(work: _Work, first: int, last: int, start: CleanedTransactions) -> list[PutGroup]:
    """Put the groups [first, last); `start` are the transactions at the beginning of the first."""
    root = _objects(work.job_run)
    with ScratchDirectory("clean") as top:
        copier, keys = copier_of(root, work.found, work.share.limits(), top, work.now_ms)
        copier = replace(copier, transactions=start)
        return [put_group(root, work.found, copier, group, keys) for group in work.groups[first:last]]
