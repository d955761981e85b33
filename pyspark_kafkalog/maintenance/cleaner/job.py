"""The log cleaner as a job: the filthiest partitions first, as many at a time as there are tasks.

1. Tasks inspect all partitions of compacted topics, one chunk each. They report partitions that are not due, and remove
   leftovers of earlier runs there; for the others they return the dirty ratio.
2. The partitions that are due are cleaned, the filthiest first: small ones whole, in one task each; large ones one
   after the other, with shards of keys and groups of segments as tasks, so that the last one does not keep
   only one core busy.

Settings of a whole broker hold for all tasks together: each gets its share of log.cleaner.dedupe.buffer.size, as
Kafka's threads do, and of log.cleaner.io.max.bytes.per.second. A partition whose cleaning fails is marked uncleanable,
and the others continue. Source of the rules: LogCleaner and LogCleanerManager in
org.apache.kafka.storage.internals.log.

*A large partition* is spread over tasks; the result is the same as that of `clean_partition`.

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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.clean import (
    CleanablePartition,
    Cleaning,
    check_segments,
    clean_partition,
    inspection,
)
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier, transactions_at
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions, RetentionRules
from pyspark_kafkalog.maintenance.cleaner.logs import CLEAN_ACTION, judge
from pyspark_kafkalog.maintenance.cleaner.objects import CleanableLog
from pyspark_kafkalog.maintenance.cleaner.offset_map import (
    ALL_KEYS,
    ENTRY_BYTES,
    KeyCounts,
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
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRecord, CleanOffset
from pyspark_kafkalog.maintenance.cleaner.spread import TaskShare, clean_log_spread
from pyspark_kafkalog.maintenance.jobs.partition_lock import file_claim, join_partition_lock, shared_partition_lock
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report, failed, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, run_chunks
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, TaskFailedError, Tasks, Throttle
from pyspark_kafkalog.maintenance.objects.jobs import finish_job
from pyspark_kafkalog.maintenance.swap import has_directory
from pyspark_kafkalog.root.file_root import on_file_system
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.units import INT32_MAX

_LOG: Final = logging.getLogger(__name__)

_Group = Sequence[StoredSegment]


def clean_spread(tasks: Tasks, cleaning: Cleaning, *, bytes_per_second: float) -> PartitionReport:
    """Clean the partition if it is due. Its errors are in the report; raises StoppedError.

    `bytes_per_second` is the rate at which each task may read and write.
    """
    began = time.perf_counter()
    report = empty_report(cleaning.topic_partition, CLEAN_ACTION)
    try:
        with shared_partition_lock(cleaning.directory, fs=cleaning.root.fs) as ticket:
            if ticket is None:
                return left_to_another_run(cleaning.topic_partition, CLEAN_ACTION)
            report, found = cleaning.begin(report, force=False)
            if report.skipped is None:
                plan = _SpreadPlan.of(cleaning, found, ticket, bytes_per_second)
                try:
                    counts, keys = _Coordinator(tasks, cleaning, found, plan).clean()
                finally:
                    remove_task_files(cleaning.directory, fs=cleaning.root.fs)
                report = cleaning.finish(report, found, counts, groups=len(plan.groups), keys=keys)
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

    def clean(self) -> tuple[CopyCounts, KeyCounts]:
        """Clean; return the counts of the copy and of the keys."""
        transactions = self.tasks.submit(partial(_transactions, self.plan), first=True)
        mapped = self.tasks.submit(partial(_map, self.plan), first=True)
        try:
            [(left, without_key)] = self._all([mapped])
            bitmaps, shards = self._keep(left) if left else (0, 1)
            [starts] = self._all([transactions])
            return self._copy(starts, bitmaps), KeyCounts(shards, without_key)
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


def _map(plan: _SpreadPlan) -> tuple[list[Shard], int]:
    """Build a map of as many keys as it holds; return the shards that it has to leave, and the records without key."""
    with plan.joined() as part:
        offset_map = plan.new_map()
        left = build_map(part, offset_map, ALL_KEYS)
        save_map(plan.directory, offset_map)
        return left, offset_map.records_without_key


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
        return GroupCopier(part, survivors, plan.rules, start, plan.config, plan.directory, LOCAL).copy(group)


#: Partitions that one task inspects.
_PARTITIONS_A_TASK: Final = 128

#: Kafka requires more than 1 MiB of the buffer for each thread.
_BUFFER_BYTES_MIN: Final = 2 << 20

#: The largest map that Kafka creates for a thread.
_BUFFER_BYTES_MAX: Final = INT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """The resources of each task."""

    buffer_bytes: int
    bytes_per_second: float

    @classmethod
    def of(cls, config: BrokerConfig, slots: int) -> TaskLimits:
        """The limits of a broker divided by `slots` concurrent tasks."""
        return cls(
            buffer_bytes=min(config.log_cleaner_dedupe_buffer_size // slots, _BUFFER_BYTES_MAX),
            bytes_per_second=config.log_cleaner_io_max_bytes_per_second / slots,
        )


def cleaner_slots(config: BrokerConfig, cores: int) -> int:
    """The number of concurrent cleaning tasks: log.cleaner.threads if set, else the cores, limited by the buffer."""
    if "log.cleaner.threads" in config.properties:
        return max(config.log_cleaner_threads, 1)
    return max(min(cores, config.log_cleaner_dedupe_buffer_size // _BUFFER_BYTES_MIN), 1)


@dataclass(frozen=True, slots=True)
class DirtyPartition:
    """A partition that is due. Its cleaning reads at least `read_bytes`; `offsets` is the number of dirty offsets."""

    topic_partition: TopicPartition
    dirty_ratio: float
    read_bytes: int
    offsets: int


@dataclass(frozen=True, slots=True)
class CleanerJob:
    """Cleans the partitions that are due, of all compacted topics or of the run's topics.

    A partition of `spread_bytes` or more may be spread over tasks.
    """

    spread_bytes: int = 256 << 20

    @property
    def action(self) -> str:
        return CLEAN_ACTION

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        root = job_run.open().native()
        config = root.broker_config()
        if not config.log_cleaner_enable or not config.log_cleaner_threads:
            _LOG.warning("nothing is cleaned: log.cleaner.enable is false, or log.cleaner.threads 0")
            return []
        names = root.topics() if job_run.topics is None else job_run.topics
        asked = job_run.topics or ()
        return root.partitions([name for name in names if name in asked or root.log_config(name).compact])

    def bytes_to_read(self, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
        root = job_run.open()
        image = root.native().store.image
        inspect = inspection(root, root.native().clock() if job_run.now_ms is None else job_run.now_ms)
        for each in partitions:
            partition = image.find(each.topic, each.partition)
            if partition is not None and (partition.has_extents or partition.state.has_closed_segments):
                with contextlib.suppress(KafkalogError, OSError):
                    found = inspect(each)
                    if judge(empty_report(each, CLEAN_ACTION), found.plan, found.config).skipped is None:
                        yield sum(segment.size_bytes for segment in found.plan.segments)

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        root = job_run.open().native()
        record = CleanerRecord(job_run)
        try:
            yield from self._run(tasks, job_run, root, partitions, record)
            record.close()
        finally:
            record.store()  # of a run that was stopped
        if isinstance(root, ObjectRoot) and not job_run.dry_run:
            finish_job(root)

    def _run(
        self,
        tasks: Tasks,
        job_run: JobRun,
        root: NativeRoot,
        partitions: Sequence[TopicPartition],
        record: CleanerRecord,
    ) -> Iterator[PartitionReport]:
        config = root.broker_config()
        limits = TaskLimits.of(config, tasks.slots)
        dirty: list[DirtyPartition] = []
        inspect = partial(_inspect, job_run, limits)
        for found in run_chunks(tasks, partitions, inspect, action=CLEAN_ACTION, partitions_max=_PARTITIONS_A_TASK):
            if isinstance(found, DirtyPartition):
                dirty.append(found)
            elif isinstance(found, _Cleaned):
                yield record.took(found.report, found.offsets)
            else:
                yield record.took(found)
        dirty.sort(key=lambda each: (-each.dirty_ratio, each.topic_partition))
        map_entries = int(limits.buffer_bytes * config.log_cleaner_io_buffer_load_factor) // ENTRY_BYTES
        share_bytes = sum(each.read_bytes for each in dirty) // tasks.slots
        is_large = {
            each: tasks.slots > 1
            and (not isinstance(root, ObjectRoot) or each.offsets <= map_entries)
            and each.read_bytes >= self.spread_bytes
            and (each.offsets > map_entries or each.read_bytes > share_bytes)
            for each in dirty
        }
        whole = limits if any(is_large.values()) else TaskLimits.of(config, max(min(tasks.slots, len(dirty)), 1))
        for cleaned in _clean_all(tasks, job_run, is_large, limits, whole):
            yield record.took(cleaned.report, cleaned.offsets)


@dataclass(frozen=True, slots=True)
class _Cleaned:
    """The report of a cleaning, and what the driver is to store of it."""

    report: PartitionReport
    offsets: Sequence[CleanOffset] = ()


def _inspect(
    job_run: JobRun, limits: TaskLimits, partitions: Sequence[TopicPartition]
) -> list[PartitionReport | DirtyPartition | _Cleaned]:
    """Inspect a chunk of partitions, in a task."""
    root = job_run.open()
    now_ms = root.native().clock() if job_run.now_ms is None else job_run.now_ms
    inspect = inspection(root, now_ms)
    results: list[PartitionReport | DirtyPartition | _Cleaned] = []
    for topic_partition in partitions:
        try:
            found = inspect(topic_partition)
            report = judge(empty_report(topic_partition, CLEAN_ACTION), found.plan, found.config)
            if job_run.dry_run and isinstance(found, CleanablePartition):
                has_directory(on_file_system(root), topic_partition)
                if report.skipped is None:
                    check_segments(found)
        except (KafkalogError, OSError) as error:
            results.append(failed(topic_partition, CLEAN_ACTION, error))
            continue
        if report.skipped is None and not job_run.dry_run:
            plan = found.plan
            read_bytes = sum(each.size_bytes for each in plan.segments)
            offsets = plan.first_uncleanable_offset - plan.first_dirty_offset
            results.append(DirtyPartition(topic_partition, plan.dirty_ratio, read_bytes, offsets))
        elif report.skipped is None and isinstance(found, CleanableLog):
            results.append(_clean(root, job_run, topic_partition, limits))  # a dry run reads what a cleaning reads
        elif job_run.dry_run or isinstance(found, CleanableLog) or found.is_tidy:
            results.append(report)
        else:
            results.append(_clean(root, job_run, topic_partition, limits))  # nothing to clean, only leftovers to remove
    return results


def _clean_all(
    tasks: Tasks, job_run: JobRun, is_large: Mapping[DirtyPartition, bool], limits: TaskLimits, whole: TaskLimits
) -> Iterator[_Cleaned]:
    """Clean the partitions in the given order; large ones one after the other, concurrently with the others.

    `limits` are those of each task of a large partition, `whole` those of a task that cleans a partition alone.
    """
    with Workers(1, thread_name_prefix="kafkalog-spread") as coordinator:
        futures: dict[Future[_Cleaned], TopicPartition] = {}
        for each, large in is_large.items():
            topic_partition = each.topic_partition
            if large:
                future = coordinator.submit(_clean_spread, tasks, job_run, topic_partition, limits)
            else:
                future = tasks.submit(partial(_clean_whole, job_run, topic_partition, whole))
            futures[future] = topic_partition
        for future in tasks.as_completed(futures):
            try:
                yield future.result()
            except TaskFailedError as error:
                yield _Cleaned(failed(futures[future], CLEAN_ACTION, error))


def _clean_spread(tasks: Tasks, job_run: JobRun, topic_partition: TopicPartition, limits: TaskLimits) -> _Cleaned:
    """Clean a large partition: runs in the driver, with tasks of its own."""
    objects = job_run.open().native()
    if isinstance(objects, ObjectRoot):
        share = TaskShare(
            limits.buffer_bytes, objects.broker_config().log_cleaner_io_buffer_load_factor, limits.bytes_per_second
        )
        now_ms = objects.clock() if job_run.now_ms is None else job_run.now_ms
        try:
            return _Cleaned(clean_log_spread(tasks, job_run, topic_partition, share, now_ms=now_ms))
        except StoppedError:
            raise
        except (KafkalogError, OSError) as error:
            return _Cleaned(failed(topic_partition, CLEAN_ACTION, error))
    root = on_file_system(job_run.open())
    offsets: list[CleanOffset] = []
    cleaning = Cleaning(
        root=root,
        topic_partition=topic_partition,
        now_ms=root.clock() if job_run.now_ms is None else job_run.now_ms,
        buffer_bytes=limits.buffer_bytes,
        load_factor=root.broker_config().log_cleaner_io_buffer_load_factor,
        throttle=Throttle(limits.bytes_per_second),
        later=offsets,
    )
    return _Cleaned(clean_spread(tasks, cleaning, bytes_per_second=limits.bytes_per_second), offsets)


def _clean_whole(job_run: JobRun, topic_partition: TopicPartition, limits: TaskLimits) -> _Cleaned:
    """Clean a small partition, in a task."""
    return _clean(job_run.open(), job_run, topic_partition, limits)


def _clean(root: Root, job_run: JobRun, topic_partition: TopicPartition, limits: TaskLimits) -> _Cleaned:
    offsets: list[CleanOffset] = []
    report = clean_partition(
        root,
        topic_partition.topic,
        topic_partition.partition,
        now_ms=job_run.now_ms,
        dedupe_buffer_bytes=limits.buffer_bytes,
        throttle=Throttle(limits.bytes_per_second),
        later=offsets,
        dry_run=job_run.dry_run,
    )
    return _Cleaned(report, offsets)
