"""The log cleaner as a job: the filthiest partitions first, as many at a time as there are tasks.

1. Tasks inspect all partitions of compacted topics, one chunk each. They report partitions that are not due, and remove
   leftovers of earlier runs there; for the others they return the dirty ratio.
2. The partitions that are due are cleaned, the filthiest first: small ones whole, in one task each; large ones one
   after the other, with shards of keys and groups of segments as tasks (spread.py), so that the last one does
   not keep only one core busy.

Settings of a whole broker hold for all tasks together: each gets its share of log.cleaner.dedupe.buffer.size, as
Kafka's threads do, and of log.cleaner.io.max.bytes.per.second. A partition whose cleaning fails is marked uncleanable,
and the others continue. Source of the rules: LogCleaner and LogCleanerManager in
org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.clean import ACTION, Cleaning, clean_partition, inspect_partition, judge
from pyspark_kafkalog.maintenance.cleaner.offset_map import ENTRY_BYTES
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRecord
from pyspark_kafkalog.maintenance.cleaner.spread import clean_spread
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report, failed
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, run_chunks
from pyspark_kafkalog.maintenance.jobs.tasks import TaskFailedError, Tasks, Throttle
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import INT32_MAX

_LOG: Final = logging.getLogger(__name__)

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
        return ACTION

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        root = job_run.open().native()
        config = root.broker_config()
        if not config.log_cleaner_enable or not config.log_cleaner_threads:
            _LOG.warning("nothing is cleaned: log.cleaner.enable is false, or log.cleaner.threads 0")
            return []
        names = root.topics() if job_run.topics is None else job_run.topics
        asked = job_run.topics or ()
        return root.partitions([name for name in names if name in asked or root.log_config(name).compact])

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        record = CleanerRecord(job_run)
        config = job_run.open().native().broker_config()
        limits = TaskLimits.of(config, tasks.slots)
        dirty: list[DirtyPartition] = []
        inspect = partial(_inspect, job_run, limits)
        for found in run_chunks(tasks, partitions, inspect, action=ACTION, partitions_max=_PARTITIONS_A_TASK):
            if isinstance(found, DirtyPartition):
                dirty.append(found)
            else:
                yield record.took(found)
        dirty.sort(key=lambda each: (-each.dirty_ratio, each.topic_partition))
        map_entries = int(limits.buffer_bytes * config.log_cleaner_io_buffer_load_factor) // ENTRY_BYTES
        share_bytes = sum(each.read_bytes for each in dirty) // tasks.slots
        is_large = {
            each: tasks.slots > 1
            and each.read_bytes >= self.spread_bytes
            and (each.offsets > map_entries or each.read_bytes > share_bytes)
            for each in dirty
        }
        for report in _clean_all(tasks, job_run, is_large, limits):
            yield record.took(report)
        record.close()


def _inspect(
    job_run: JobRun, limits: TaskLimits, partitions: Sequence[TopicPartition]
) -> list[PartitionReport | DirtyPartition]:
    """Inspect a chunk of partitions, in a task."""
    root = job_run.open()
    native = root.native()
    now_ms = native.clock() if job_run.now_ms is None else job_run.now_ms
    checkpoint = read_offset_checkpoint(native.path / CLEANER_OFFSET_CHECKPOINT)
    results: list[PartitionReport | DirtyPartition] = []
    for topic_partition in partitions:
        try:
            found = inspect_partition(native, topic_partition, checkpoint.get(topic_partition), now_ms)
        except (KafkalogError, OSError) as error:
            results.append(failed(topic_partition, ACTION, error))
            continue
        report = judge(empty_report(topic_partition, ACTION), found)
        if report.skipped is None and not job_run.dry_run:
            plan = found.plan
            read_bytes = sum(each.size_bytes for each in plan.segments)
            offsets = plan.first_uncleanable_offset - plan.first_dirty_offset
            results.append(DirtyPartition(topic_partition, plan.dirty_ratio, read_bytes, offsets))
        elif job_run.dry_run:
            results.append(report)
        else:
            results.append(_clean(root, job_run, topic_partition, limits))  # nothing to clean, only leftovers to remove
    return results


def _clean_all(
    tasks: Tasks, job_run: JobRun, is_large: Mapping[DirtyPartition, bool], limits: TaskLimits
) -> Iterator[PartitionReport]:
    """Clean the partitions in the given order; large ones one after the other, concurrently with the others."""
    with ThreadPoolExecutor(1, thread_name_prefix="kafkalog-spread") as coordinator:
        futures: dict[Future[PartitionReport], TopicPartition] = {}
        for each, large in is_large.items():
            topic_partition = each.topic_partition
            if large:
                future = coordinator.submit(_clean_spread, tasks, job_run, topic_partition, limits)
            else:
                future = tasks.submit(partial(_clean_whole, job_run, topic_partition, limits))
            futures[future] = topic_partition
        for future in tasks.as_completed(futures):
            try:
                yield future.result()
            except TaskFailedError as error:
                yield failed(futures[future], ACTION, error)


def _clean_spread(
    tasks: Tasks, job_run: JobRun, topic_partition: TopicPartition, limits: TaskLimits
) -> PartitionReport:
    """Clean a large partition: runs in the driver, with tasks of its own."""
    root = job_run.open().native()
    cleaning = Cleaning(
        root=root,
        topic_partition=topic_partition,
        now_ms=root.clock() if job_run.now_ms is None else job_run.now_ms,
        buffer_bytes=limits.buffer_bytes,
        load_factor=root.broker_config().log_cleaner_io_buffer_load_factor,
        throttle=Throttle(limits.bytes_per_second),
    )
    return clean_spread(tasks, cleaning, bytes_per_second=limits.bytes_per_second)


def _clean_whole(job_run: JobRun, topic_partition: TopicPartition, limits: TaskLimits) -> PartitionReport:
    """Clean a small partition, in a task."""
    return _clean(job_run.open(), job_run, topic_partition, limits)


def _clean(root: Root, job_run: JobRun, topic_partition: TopicPartition, limits: TaskLimits) -> PartitionReport:
    return clean_partition(
        root,
        topic_partition.topic,
        topic_partition.partition,
        now_ms=job_run.now_ms,
        dedupe_buffer_bytes=limits.buffer_bytes,
        throttle=Throttle(limits.bytes_per_second),
    )
