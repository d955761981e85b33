"""The job merge-segments on object roots, with the reports of file roots, and the clean-up that follows a job.

    MergedObjects      merges the runs of partitions into segment objects, until none is left
    clean_up_root      deletes dropped objects and orphans of an object root, or in the remote storage of a file root,
                       with the root's settings
    finish_job         the same at the end of a job, whose changes are committed: a failure is left to the next run

A failure is in the report of its partition. Nothing is locked: what another job does meanwhile is noticed
by the commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.kinds import logs_of
from pyspark_kafkalog.maintenance.objects.clean_up import CleanedMetadata, CleanedUp, clean_up
from pyspark_kafkalog.maintenance.objects.merge import Merged, merge_round
from pyspark_kafkalog.maintenance.objects.merge_plan import MergePlan, merge_tasks
from pyspark_kafkalog.metadata.image import MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import DroppedObjectsRecord, MetadataRecord
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.objects.extents import ObjectExtents, ObjectLog
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.spool import remove_abandoned
from pyspark_kafkalog.tiered.objects import SegmentStore
from pyspark_kafkalog.tiered.own_layouts import OwnLayout
from pyspark_kafkalog.units import HOUR_MS

_LOG: Final = logging.getLogger(__name__)

#: The action of the reports of a merge.
MERGE_ACTION: Final = "merge-segments"

_DELETE_DELAY: Final = "log.segment.delete.delay.ms"
_TOPIC_DELAY: Final = "file.delete.delay.ms"


@dataclass(frozen=True, slots=True)
class MergedObjects:
    """The logs of a root in an object store, for merge-segments: runs become segments."""

    root: ObjectRoot

    def merge(self, partitions: Sequence[TopicPartition], *, dry_run: bool) -> list[PartitionReport]:
        """One report each: bytes merged, and the reduction in runs and segments.

        Its time is an equal share of that of all: the partitions of a round are merged together.
        """
        root = self.root
        began = time.perf_counter()
        reports = {each: empty_report(each, MERGE_ACTION) for each in partitions}
        configs = {each.topic: root.log_config(each.topic) for each in partitions}
        image = root.store.refresh()
        if dry_run:
            for each in partitions:
                plan = MergePlan.of_partition(image, each, configs[each.topic].segment_bytes)
                if plan is not None:
                    reports[each] = _tried(root, plan, reports[each])
        else:
            for merged in _merge(root, configs, partitions, image.objects.last_id):
                reports[merged.topic_partition] = _added(reports[merged.topic_partition], merged)
        seconds = (time.perf_counter() - began) / max(len(reports), 1)
        return [replace(each, seconds=seconds) for each in reports.values()]

    def bytes_to_merge(self, topic_partition: TopicPartition) -> int:
        partition = self.root.store.image.find(topic_partition.topic, topic_partition.partition)
        return 0 if partition is None else partition.runs.size_bytes

    def groups(self, partitions: Sequence[TopicPartition], slots: int) -> list[Sequence[TopicPartition]]:
        return merge_tasks(self.root.store.image, partitions, slots)

    def end_run(self) -> None:
        finish_job(self.root)


def _tried(root: ObjectRoot, plan: MergePlan, report: PartitionReport) -> PartitionReport:
    """The report of a merge that is not made: its batches are read, as a merge reads them."""
    of = plan.of.topic_partition
    extents = ObjectExtents(lambda: plan.log, lambda: ObjectLog.of(root.store.refresh(), of), root.objects)
    try:
        for _ in LogReader(extents, of).runs(plan.start_offset, plan.end_offset):
            pass
    except (KafkalogError, OSError) as failure:
        return replace(report, error=str(failure))
    return replace(report, bytes_read=plan.size_bytes, bytes_kept=plan.size_bytes)


def _merge(
    root: ObjectRoot, configs: Mapping[str, LogConfig], partitions: Sequence[TopicPartition], last_object_id: int
) -> Iterator[Merged]:
    """The merges of all runs that there are up to that object, round by round."""
    left = list(partitions)
    while True:
        try:
            merged = merge_round(
                root.store, root.objects, configs, left, clock=root.clock, last_object_id=last_object_id
            )
        except (KafkalogError, OSError) as failure:  # of the commit, so of all
            yield from (Merged(each, 0, 0, 0, error=failure) for each in left)
            return
        if not merged:
            return
        yield from merged
        ended = {each.topic_partition for each in merged if not each.segments}
        left = [each for each in left if each not in ended]


def _added(report: PartitionReport, merged: Merged) -> PartitionReport:
    """The report of a partition with one more merge of it."""
    if merged.error is not None:
        _LOG.warning("%s: %s failed: %s", merged.topic_partition, report.action, merged.error)
        return replace(report, error=str(merged.error))
    if not merged.segments:
        return report
    dropped = report.segments_dropped + merged.runs_count + merged.replaced_count - len(merged.segments)
    size_bytes = report.bytes_read + merged.size_bytes
    return replace(report, bytes_read=size_bytes, bytes_kept=size_bytes, segments_dropped=max(dropped, 0))


def clean_up_root(root: ObjectRoot | FileRoot, *, now_ms: int | None = None) -> CleanedUp:
    """Delete dropped objects after their topic's file.delete.delay.ms, and orphans.

    Its default is log.segment.delete.delay.ms, an hour unless that is set. A data object may be of several topics: it
    remains for the longest of the delays of all topics.
    `now_ms` is the current time, by default the clock's. Does nothing for a file root without remote storage. Raises
    ObjectStoreError, and the errors of a commit.
    """
    image = root.store.refresh()
    config = broker_config(image)
    is_set = _DELETE_DELAY in broker_configs(image)
    store = logs_of(root, _remote_storage, _object_store)
    if store is None:
        return CleanedUp(0, 0, 0)
    cleaned = clean_up(
        store.metadata,
        store.objects,
        layout=store.layout,
        delay_ms=partial(_delay_ms, config.log_config({}).file_delete_delay_ms if is_set else HOUR_MS),
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
class _CleanedStore:
    """A store to clean up, and the commits that say what is needed there."""

    metadata: CleanedMetadata
    objects: SegmentStore
    layout: OwnLayout


def _object_store(root: ObjectRoot) -> _CleanedStore | None:
    remove_abandoned()
    return _CleanedStore(root.store, root.objects, OwnLayout.AIVEN)


def _remote_storage(root: FileRoot) -> _CleanedStore | None:
    storage = root.remote_storage
    return None if storage is None else _CleanedStore(_LockedMetadata(root), storage.store(), storage.layout)


def finish_job(root: ObjectRoot) -> None:
    """Clean up after a job. What fails is left to the next run, with a warning, as retention leaves it."""
    try:
        clean_up_root(root)
    except (KafkalogError, OSError) as error:
        _LOG.warning("what was dropped or abandoned is left to the next run: %s", error)


def _delay_ms(default_ms: int, image: MetadataImage, dropped: DroppedObjectsRecord) -> int:
    """How long the objects that a commit has dropped remain; `default_ms` of topics without a setting, or deleted."""

    def of_topic(topic_id: str) -> int:
        name = image.topic_names.get(topic_id)
        configs = {} if name is None else image.topics[name].configs
        return int(configs[_TOPIC_DELAY]) if _TOPIC_DELAY in configs else default_ms

    topic_ids = {each.topic_id for each in dropped.segments}
    if dropped.data_keys:
        topic_ids |= image.topic_names.keys()
    return max(map(of_topic, topic_ids), default=default_ms)


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
