"""The facts of partitions in an object store, from the image: segments, then the runs that are not merged yet.

They cost no request, unless a topic has a compaction lag. A store has no directories to list; when a segment or run
begins is not known without reading it, so the largest timestamp of the one before counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_kafkalog.maintenance.cleaner.objects import CleanedObjects
from pyspark_kafkalog.maintenance.retention.plan import StoredPart, plan_retention, stored_extents
from pyspark_kafkalog.report.facts import (
    NO_TIME_MS,
    CleanerFacts,
    PartitionFacts,
    SegmentRun,
    size_bins,
    together,
)
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition


def object_facts(root: ObjectRoot, topic_partition: TopicPartition, *, now_ms: int, parts_max: int) -> PartitionFacts:
    """The facts of one partition as of the root's last refresh, with at most `parts_max` segments or runs.

    Raises UnknownTopicError, and the errors of inspecting a partition for the cleaner.
    """
    partition = root.store.image.partition(topic_partition.topic, topic_partition.partition)
    state, config = partition.state, root.log_config(topic_partition.topic)
    parts = stored_extents(root, topic_partition, now_ms)
    retention = plan_retention((), parts, lambda each: each.max_timestamp_ms, config, state, now_ms=now_ms)
    return PartitionFacts(
        topic_partition=topic_partition,
        leader_epoch=state.leader_epoch,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        last_stable_offset=state.last_stable_offset,
        runs=tuple(_shown(parts, parts_max)),
        size_bins=size_bins(parts),
        cleaner=_cleaner_facts(root, topic_partition, now_ms) if config.compact else None,
        due_segments=retention.deleted_count,
        due_bytes=retention.deleted_bytes,
        future_segment=retention.future_base_offset,
        unmerged_runs=len(partition.runs),
        unmerged_bytes=partition.runs.size_bytes,
    )


def _shown(parts: Sequence[StoredPart], parts_max: int) -> list[SegmentRun]:
    shown: list[SegmentRun] = []
    before_ms = NO_TIME_MS
    for group in together(parts, parts_max):
        last_ms = max(each.max_timestamp_ms for each in group)
        first_ms = before_ms if 0 <= before_ms <= last_ms else last_ms
        size_bytes = sum(each.size_bytes for each in group)
        shown.append(SegmentRun(group[0].base_offset, len(group), size_bytes, first_ms, last_ms))
        before_ms = last_ms
    return shown


def _cleaner_facts(root: ObjectRoot, topic_partition: TopicPartition, now_ms: int) -> CleanerFacts:
    log = CleanedObjects(root, now_ms).inspect(topic_partition)
    return CleanerFacts.of(log.plan, log.config)
