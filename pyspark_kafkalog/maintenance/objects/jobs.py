"""The jobs of file roots, on object roots: merge-segments and retention, with the same rules and reports.

    merge_runs         merges the runs of partitions into segment objects, until none is left
    retain_extents     moves log starts by retention.ms and retention.bytes; objects below them are dropped
    clean_up_root      deletes dropped objects and orphans, with the root's settings

Each partition is on its own; a failure is in its report. Nothing is locked: what another job does meanwhile is noticed
by the commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.objects.clean_up import CleanedUp, clean_up
from pyspark_kafkalog.maintenance.objects.merge import MergePlan, merge_partition
from pyspark_kafkalog.maintenance.retention.plan import RetentionPlan, plan_retention
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, broker_configs, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.units import HOUR_MS, NS_PER_MS

_LOG: Final = logging.getLogger(__name__)

_DELETE_DELAY: Final = "log.segment.delete.delay.ms"
_RETENTION: Final = "retention"


def merge_runs(
    root: ObjectRoot, partitions: Sequence[TopicPartition], action: str, *, dry_run: bool
) -> list[PartitionReport]:
    """Merge the runs of `partitions`; one report each: bytes merged, and the reduction in runs and segments."""
    return [_reported(each, action, partial(_merge, root, each, action, dry_run)) for each in partitions]


def _merge(root: ObjectRoot, topic_partition: TopicPartition, action: str, dry_run: bool) -> PartitionReport:
    config = root.log_config(topic_partition.topic)
    report = empty_report(topic_partition, action)
    if dry_run:
        plan = MergePlan.of_partition(root.store.refresh(), topic_partition, config.segment_bytes)
        return report if plan is None else replace(report, bytes_read=plan.size_bytes, bytes_kept=plan.size_bytes)
    size_bytes = dropped = 0
    while True:
        merged = merge_partition(root.store, root.objects, config, topic_partition, clock=root.clock)
        if merged is None or not merged.segments:  # all is done, or another run does it
            break
        size_bytes += merged.size_bytes
        dropped += merged.runs_count + merged.replaced_count - len(merged.segments)
    return replace(report, bytes_read=size_bytes, bytes_kept=size_bytes, segments_dropped=max(dropped, 0))


def retain_extents(
    root: ObjectRoot, partitions: Sequence[TopicPartition], *, now_ms: int, dry_run: bool
) -> list[PartitionReport]:
    """Apply retention to `partitions`, by Kafka's rules, with each run as a segment; one report each."""
    root.refresh()
    return [_reported(each, _RETENTION, partial(_retain, root, each, now_ms, dry_run)) for each in partitions]


def _retain(root: ObjectRoot, topic_partition: TopicPartition, now_ms: int, dry_run: bool) -> PartitionReport:
    config = root.log_config(topic_partition.topic)
    topic_id = root.store.image.topic(topic_partition.topic).topic_id
    before = root.store.image.partition(topic_partition.topic, topic_partition.partition)
    plan = _plan(before, config, now_ms)

    def build(image: MetadataImage) -> list[MetadataRecord]:
        state = image.state_of(topic_partition, topic_id)
        if state is None or plan.log_start_offset <= state.log_start_offset:
            return []
        return [
            partition_state_record(
                topic_id, topic_partition.partition, replace(state, log_start_offset=plan.log_start_offset)
            )
        ]

    if not dry_run and plan.deleted_count:
        root.store.commit(build, operation=_RETENTION, frees_space=True)
    sizes = [each.size_bytes for each in _stored(before, now_ms)]
    return replace(
        empty_report(topic_partition, _RETENTION),
        bytes_dropped=sum(sizes[: plan.deleted_count]),
        bytes_kept=sum(sizes[plan.deleted_count :]),
        segments_dropped=plan.deleted_count,
        log_start_offset=max(plan.log_start_offset, before.state.log_start_offset),
    )


def _plan(partition: PartitionImage, config: LogConfig, now_ms: int) -> RetentionPlan:
    latest_ms = {each.base_offset: each.max_timestamp_ms for each in partition.segments}
    latest_ms.update(
        zip(*(partition.runs.table[name].tolist() for name in ("base_offset", "max_timestamp_ms")), strict=True)
    )
    return plan_retention(
        list(_stored(partition, now_ms)),
        lambda stored: latest_ms[stored.base_offset],
        config,
        log_start_offset=partition.state.log_start_offset,
        log_end_offset=partition.state.log_end_offset,
        now_ms=now_ms,
    )


def _stored(partition: PartitionImage, now_ms: int) -> Iterator[StoredSegment]:
    """The extents as the rules of retention see segments; those without timestamps are as old as this run."""
    for each in partition.segments:
        yield StoredSegment(each.base_offset, each.end_offset, each.size_bytes, 0, 0, now_ms * NS_PER_MS)
    rows = partition.runs.table
    for base_offset, end_offset, size_bytes in zip(
        rows["base_offset"].tolist(), rows["end_offset"].tolist(), rows["size_bytes"].tolist(), strict=True
    ):
        yield StoredSegment(base_offset, end_offset, size_bytes, 0, 0, now_ms * NS_PER_MS)


def clean_up_root(root: ObjectRoot) -> CleanedUp:
    """Delete dropped objects after log.segment.delete.delay.ms, an hour unless it is set, and orphans."""
    image = root.store.refresh()
    config = broker_config(image)
    is_set = _DELETE_DELAY in broker_configs(image)
    return clean_up(
        root.store,
        root.objects,
        file_delete_delay_ms=config.log_config({}).file_delete_delay_ms if is_set else HOUR_MS,
        staging_retention_ms=config.staging_retention_ms,
        clock=root.clock,
    )


def _reported(topic_partition: TopicPartition, action: str, work: Callable[[], PartitionReport]) -> PartitionReport:
    began = time.perf_counter()
    try:
        report = work()
    except (KafkalogError, OSError) as failure:
        _LOG.warning("%s: %s failed: %s", topic_partition, action, failure)
        report = replace(empty_report(topic_partition, action), error=str(failure))
    return replace(report, seconds=time.perf_counter() - began)
