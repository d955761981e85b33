"""What retention does in an object store: whole segment objects and runs go, by the rules for segments.

A commit that raises log starts drops the extents below from the image (metadata/extent_changes.trimmed), which lists
their objects as dropped. No lock is held: log starts only rise, so that the plans of two runs agree. The end of the run
cleans up the root (clean_up.py), which deletes objects that any commit has dropped, and those of abandoned writes.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from pyspark_kafkalog.maintenance.objects.jobs import clean_up_root
from pyspark_kafkalog.maintenance.retention.plan import PlannedRetention, plan_retention
from pyspark_kafkalog.maintenance.retention.stored_parts import StoredPart, segment_parts
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.own_layouts import segment_keys
from pyspark_kafkalog.tiered.segments import TopicIdPartition


class ObjectLogs:
    """The logs of a root in an object store, for one run."""

    def __init__(self, root: ObjectRoot, now_ms: int | None) -> None:
        self._root = root
        self._now_ms = root.clock() if now_ms is None else now_ms

    def take(self, topic_partition: TopicPartition, locks: ExitStack) -> bool:
        return True

    def plan(self, topic_partition: TopicPartition) -> PlannedRetention:
        image = self._root.store.image
        topic = image.topic(topic_partition.topic)
        state = image.partition(topic_partition.topic, topic_partition.partition).state
        config = self._root.log_config(topic_partition.topic)
        extents = self._extents(image, topic_partition)
        plan = plan_retention((), extents, lambda extent: extent.max_timestamp_ms, config, state, now_ms=self._now_ms)
        return PlannedRetention(topic_partition, topic.topic_id, state, config, plan)

    def remove_dropped(self, planned: PlannedRetention) -> None:
        """Does nothing: the clean-up of the whole root does it, after the delay."""

    def end_commit(self) -> None:
        pass

    def finish(self, now_ms: int | None) -> None:
        clean_up_root(self._root, now_ms=now_ms)

    def _extents(self, image: MetadataImage, topic_partition: TopicPartition) -> list[StoredPart]:
        partition = image.partition(topic_partition.topic, topic_partition.partition)
        of = TopicIdPartition(
            topic_partition.topic, image.topic(topic_partition.topic).topic_id, topic_partition.partition
        )
        segments = segment_parts(
            partition, lambda each: self._put_ms(segment_keys(of, each.base_offset, each.segment_id)[0])
        )
        rows = partition.runs.table
        names = ("base_offset", "end_offset", "size_bytes", "max_timestamp_ms", "object_id")
        runs = [
            StoredPart(base_offset, end_offset, size_bytes, timestamp_ms, partial(self._written_ms, image, object_id))
            for base_offset, end_offset, size_bytes, timestamp_ms, object_id in zip(
                *(rows[name].tolist() for name in names), strict=True
            )
        ]
        return [*segments, *runs]

    def _written_ms(self, image: MetadataImage, object_id: int) -> int:
        """When the data of a run were written; of those inside a commit, when it was made."""
        found = image.objects.find(object_id)
        if found is None or not found.is_inline:
            return self._now_ms if found is None else self._put_ms(found.key)
        commit = self._root.store.log.read(found.commit_offset)
        return self._now_ms if commit is None else commit.timestamp_ms

    def _put_ms(self, key: str) -> int:
        return self._root.objects.head(key).last_modified_ms
