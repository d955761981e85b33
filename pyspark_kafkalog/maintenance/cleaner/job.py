"""The log cleaner as a job: the filthiest partitions first, as many at a time as there are tasks.

1. Tasks inspect all partitions of compacted topics, one chunk each. They report partitions that are not due, and remove
   leftovers of earlier runs there; for the others they return the dirty ratio.
2. The partitions that are due are cleaned, the filthiest first: small ones whole, in one task each; large ones one
   after the other, with shards of keys and groups of segments as tasks (clean.py), so that the last one does not keep
   only one core busy.

Settings of a whole broker hold for all tasks together: each gets its share of log.cleaner.dedupe.buffer.size, as
Kafka's threads do, and of log.cleaner.io.max.bytes.per.second. A partition whose cleaning fails is marked uncleanable,
and the others continue. Source of the rules: LogCleaner and LogCleanerManager in
org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.clean import check, clean_partition, clean_spread, cleanable_logs
from pyspark_kafkalog.maintenance.cleaner.logs import CLEAN_ACTION, CleanableLogs, CleanerLimits, judge
from pyspark_kafkalog.maintenance.cleaner.offset_map import ENTRY_BYTES
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRecord, CleanOffset
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report, failed
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, run_chunks
from pyspark_kafkalog.maintenance.jobs.tasks import TaskFailedError, Tasks
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.threads import Workers

_LOG: Final = logging.getLogger(__name__)

#: Partitions that one task inspects.
_PARTITIONS_A_TASK: Final = 128

#: Kafka requires more than 1 MiB of the buffer for each thread.
_BUFFER_BYTES_MIN: Final = 2 << 20


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


def partitions_to_clean(root: NativeRoot, topics: Collection[str] | None) -> Sequence[TopicPartition]:
    """The partitions of the topics, by default of all compacted ones; none if the root's cleaner is switched off."""
    config = root.broker_config()
    if not config.log_cleaner_enable or not config.log_cleaner_threads:
        _LOG.warning("nothing is cleaned: log.cleaner.enable is false, or log.cleaner.threads 0")
        return []
    if topics is None:
        topics = [name for name in root.topics() if root.log_config(name).compact]
    return root.partitions(topics)


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
        return partitions_to_clean(job_run.open().native(), job_run.topics)

    def bytes_to_read(self, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
        root = job_run.open()
        image = root.native().store.image
        logs = cleanable_logs(root, job_run.now_ms)
        for each in partitions:
            partition = image.find(each.topic, each.partition)
            if partition is not None and (partition.has_extents or partition.state.has_closed_segments):
                with contextlib.suppress(KafkalogError, OSError):
                    log = logs.inspect(each)
                    if judge(empty_report(each, CLEAN_ACTION), log).skipped is None:
                        yield sum(segment.size_bytes for segment in log.plan.segments)

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        root = job_run.open().native()
        logs = cleanable_logs(root, job_run.now_ms)
        record = CleanerRecord(job_run)
        try:
            yield from self._run(tasks, job_run, root, logs, partitions, record)
            record.close()
        finally:
            record.store()  # of a run that was stopped
        if not job_run.dry_run:
            logs.end_run()

    def _run(
        self,
        tasks: Tasks,
        job_run: JobRun,
        root: NativeRoot,
        logs: CleanableLogs,
        partitions: Sequence[TopicPartition],
        record: CleanerRecord,
    ) -> Iterator[PartitionReport]:
        config = root.broker_config()
        limits = CleanerLimits.of(config, tasks.slots)
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
        map_entries = int(limits.buffer_bytes * limits.load_factor) // ENTRY_BYTES
        share_bytes = sum(each.read_bytes for each in dirty) // tasks.slots
        is_large = {
            each: tasks.slots > 1
            and (logs.shares_files or each.offsets <= map_entries)
            and each.read_bytes >= self.spread_bytes
            and (each.offsets > map_entries or each.read_bytes > share_bytes)
            for each in dirty
        }
        whole = limits if any(is_large.values()) else CleanerLimits.of(config, max(min(tasks.slots, len(dirty)), 1))
        for cleaned in _clean_all(tasks, job_run, is_large, limits, whole):
            yield record.took(cleaned.report, cleaned.offsets)


@dataclass(frozen=True, slots=True)
class _Cleaned:
    """The report of a cleaning, and what the driver is to store of it."""

    report: PartitionReport
    offsets: Sequence[CleanOffset] = ()


def _inspect(
    job_run: JobRun, limits: CleanerLimits, partitions: Sequence[TopicPartition]
) -> list[PartitionReport | DirtyPartition | _Cleaned]:
    """Inspect a chunk of partitions, in a task."""
    root = job_run.open()
    logs = cleanable_logs(root, job_run.now_ms)
    results: list[PartitionReport | DirtyPartition | _Cleaned] = []
    for topic_partition in partitions:
        report = empty_report(topic_partition, CLEAN_ACTION)
        try:
            log = logs.inspect(topic_partition)
            report = judge(report, log)
            if job_run.dry_run:
                logs.exists(topic_partition)  # raises for a log that has lost its directory
                if report.skipped is None:
                    check(logs, log, limits)
        except (KafkalogError, OSError) as error:
            results.append(failed(topic_partition, CLEAN_ACTION, error))
            continue
        if job_run.dry_run or (report.skipped is not None and log.is_tidy):
            results.append(report)
        elif report.skipped is None:
            plan = log.plan
            read_bytes = sum(segment.size_bytes for segment in plan.segments)
            offsets = plan.first_uncleanable_offset - plan.first_dirty_offset
            results.append(DirtyPartition(topic_partition, plan.dirty_ratio, read_bytes, offsets))
        else:
            results.append(_clean(root, job_run, topic_partition, limits))  # nothing to clean, only leftovers to remove
    return results


def _clean_all(
    tasks: Tasks, job_run: JobRun, is_large: Mapping[DirtyPartition, bool], limits: CleanerLimits, whole: CleanerLimits
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


def _clean_spread(tasks: Tasks, job_run: JobRun, topic_partition: TopicPartition, limits: CleanerLimits) -> _Cleaned:
    """Clean a large partition: runs in the driver, with tasks of its own."""
    offsets: list[CleanOffset] = []
    return _Cleaned(clean_spread(tasks, job_run, topic_partition, limits, offsets), offsets)


def _clean_whole(job_run: JobRun, topic_partition: TopicPartition, limits: CleanerLimits) -> _Cleaned:
    """Clean a small partition, in a task."""
    return _clean(job_run.open(), job_run, topic_partition, limits)


def _clean(root: Root, job_run: JobRun, topic_partition: TopicPartition, limits: CleanerLimits) -> _Cleaned:
    offsets: list[CleanOffset] = []
    report = clean_partition(
        root, topic_partition.topic, topic_partition.partition, now_ms=job_run.now_ms, limits=limits, later=offsets
    )
    return _Cleaned(report, offsets)
