"""The job merge-segments on object roots, with the reports of file roots, and the clean-up that follows a job.

    merge_runs         merges the runs of partitions into segment objects, until none is left
    clean_up_root      deletes dropped objects and orphans of an object root, or in the remote storage of a file root,
                       with the root's settings

Each partition is on its own; a failure is in its report. Nothing is locked: what another job does meanwhile is noticed
by the commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.objects.clean_up import CleanedMetadata, CleanedUp, clean_up
from pyspark_kafkalog.maintenance.objects.merge import MergePlan, merge_all
from pyspark_kafkalog.metadata.image import MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.objects import SegmentStore
from pyspark_kafkalog.tiered.own_layouts import OwnLayout
from pyspark_kafkalog.units import HOUR_MS

_LOG: Final = logging.getLogger(__name__)

_DELETE_DELAY: Final = "log.segment.delete.delay.ms"


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
    for merged in merge_all(root.store, root.objects, config, topic_partition, clock=root.clock):
        size_bytes += merged.size_bytes
        dropped += merged.runs_count + merged.replaced_count - len(merged.segments)
    return replace(report, bytes_read=size_bytes, bytes_kept=size_bytes, segments_dropped=max(dropped, 0))


def clean_up_root(root: ObjectRoot | FileRoot, *, now_ms: int | None = None) -> CleanedUp:
    """Delete dropped objects after log.segment.delete.delay.ms, an hour unless it is set, and orphans.

    `now_ms` is the current time, by default the clock's. Does nothing for a file root without remote storage. Raises
    ObjectStoreError, and the errors of a commit.
    """
    image = root.store.refresh()
    config = broker_config(image)
    is_set = _DELETE_DELAY in broker_configs(image)
    metadata: CleanedMetadata
    objects: SegmentStore
    if isinstance(root, ObjectRoot):
        metadata, objects, layout = root.store, root.objects, OwnLayout.AIVEN
    else:
        storage = root.remote_storage
        if storage is None:
            return CleanedUp(0, 0, 0)
        metadata, objects, layout = _LockedMetadata(root), storage.store(), storage.layout
    cleaned = clean_up(
        metadata,
        objects,
        layout=layout,
        file_delete_delay_ms=config.log_config({}).file_delete_delay_ms if is_set else HOUR_MS,
        staging_retention_ms=config.staging_retention_ms,
        clock=root.clock if now_ms is None else lambda: now_ms,
    )
    if cleaned != CleanedUp(0, 0, 0):
        _LOG.info(
            "deleted %d objects that were dropped, and %d of abandoned work with %d bytes",
            cleaned.dropped_count,
            cleaned.orphans_count,
            cleaned.orphans_bytes,
        )
    return cleaned


@dataclass(frozen=True, slots=True)
class _LockedMetadata:
    """The metadata of a root on a file system, whose commits are made under the root's lock."""

    root: FileRoot

    @property
    def image(self) -> MetadataImage:
        return self.root.store.image

    def refresh(self) -> MetadataImage:
        return self.root.store.refresh()

    def commit(self, build: Callable[[MetadataImage], Sequence[MetadataRecord]], *, operation: str) -> None:
        self.root.commit(build, operation=operation)


def _reported(topic_partition: TopicPartition, action: str, work: Callable[[], PartitionReport]) -> PartitionReport:
    began = time.perf_counter()
    try:
        report = work()
    except (KafkalogError, OSError) as failure:
        _LOG.warning("%s: %s failed: %s", topic_partition, action, failure)
        report = replace(empty_report(topic_partition, action), error=str(failure))
    return replace(report, seconds=time.perf_counter() - began)
