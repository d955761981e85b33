"""What retention does in an object store: whole segment objects and runs go, by the rules for segments.

A commit that raises log starts drops the extents below from the image (metadata/extent_changes.trimmed), which lists
their objects as dropped. No lock is held: log starts only rise, so that the plans of two runs agree. The end of the run
cleans up the root (clean_up.py), which deletes objects that any commit has dropped, and those of abandoned writes.
"""

from __future__ import annotations

from contextlib import ExitStack

from pyspark_kafkalog.maintenance.objects.jobs import clean_up_root
from pyspark_kafkalog.maintenance.objects.stored import stored_extents
from pyspark_kafkalog.maintenance.retention.plan import PlannedRetention, plan_retention
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition


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
        extents = stored_extents(self._root, topic_partition, self._now_ms)
        plan = plan_retention((), extents, lambda extent: extent.max_timestamp_ms, config, state, now_ms=self._now_ms)
        return PlannedRetention(topic_partition, topic.topic_id, state, config, plan)

    def remove_dropped(self, planned: PlannedRetention) -> None:
        """Does nothing: the clean-up of the whole root does it, after the delay."""

    def end_task(self) -> None:
        pass

    def finish(self, now_ms: int | None) -> None:
        clean_up_root(self._root, now_ms=now_ms)
