"""The extents of a partition of an object root with what maintenance asks of them, without reading records."""

from __future__ import annotations

from functools import partial

from pyspark_kafkalog.maintenance.retention.plan import StoredPart, segment_parts
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.own_layouts import OwnLayout, log_key
from pyspark_kafkalog.tiered.segments import TopicIdPartition


def topic_id_partition(image: MetadataImage, topic_partition: TopicPartition) -> TopicIdPartition:
    """The partition with its topic's id in `image`. Raises UnknownTopicError."""
    topic = image.topic(topic_partition.topic)
    return TopicIdPartition(topic.name, topic.topic_id, topic_partition.partition)


def stored_extents(root: ObjectRoot, topic_partition: TopicPartition, now_ms: int) -> list[StoredPart]:
    """The partition's segments and then its runs, in the root's present image.

    `now_ms` counts as the time of what has meanwhile been replaced.
    """
    image = root.store.image
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    of = topic_id_partition(image, topic_partition)

    def put_ms(key: str) -> int:
        return root.objects.head(key).last_modified_ms

    def written_ms(object_id: int) -> int:
        """When the data of a run were written; of those inside a commit, when it was made."""
        found = image.objects.find(object_id)
        if found is None or not found.is_inline:
            return now_ms if found is None else put_ms(found.key)
        commit = root.store.log.read(found.commit_offset)
        return now_ms if commit is None else commit.timestamp_ms

    segments = segment_parts(partition, lambda each: put_ms(log_key(of, each, OwnLayout.AIVEN)))
    rows = partition.runs.table
    names = ("base_offset", "end_offset", "size_bytes", "max_timestamp_ms", "object_id")
    columns = (rows[name].tolist() for name in names)
    runs = [
        StoredPart(base_offset, end_offset, size_bytes, max_timestamp_ms, partial(written_ms, object_id))
        for base_offset, end_offset, size_bytes, max_timestamp_ms, object_id in zip(*columns, strict=True)
    ]
    return [*segments, *runs]
