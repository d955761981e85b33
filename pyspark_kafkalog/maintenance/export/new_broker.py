"""Exports a log directory as a new Kafka broker's directory: of a file root, of an object root, or of another broker's.

The logs are copied (file_copy.py, object_copy.py, broker_copy.py); what makes a broker's directory of them is in
broker_directory.py. What is in remote storage stays there, or is copied back (remote_part.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pyspark_kafkalog.maintenance.export.broker_copy import copy_broker
from pyspark_kafkalog.maintenance.export.broker_directory import (
    ExportedBroker,
    NewBroker,
    finish_new_broker,
    has_remote_storage,
)
from pyspark_kafkalog.maintenance.export.export import drop_outdated_offsets, refuse_target
from pyspark_kafkalog.maintenance.export.file_copy import (
    check_pinned,
    copy_logs,
    only_topics,
    pinned_logs,
    unfinished_copy,
)
from pyspark_kafkalog.maintenance.export.object_copy import copy_object_logs
from pyspark_kafkalog.maintenance.export.remote_part import without_remote_part
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.marker_files import (
    read_meta_properties,
)
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import (
    INTERNAL_TOPICS,
    META_PROPERTIES,
)
from pyspark_kafkalog.tiered.metadata_topic import remote_segment
from pyspark_kafkalog.tiered.remote_log_metadata import REMOTE_LOG_METADATA_TOPIC
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition


def export_new_broker(
    root: FileRoot | ObjectRoot | BrokerRoot,
    target: Path,
    topics: Collection[str] | None = None,
    *,
    metadata_partitions: int,
    link: bool = True,
    tiered: bool = False,
) -> ExportedBroker:
    """Make `target` a new broker's directory with `topics` (None: all), as described above.

    `target` is absent, empty or an unfinished copy. `metadata_partitions` is what the broker's configuration
    rlmm.config.remote.log.metadata.topic.num.partitions says. With `tiered`, segments in remote storage stay there as
    the broker's. So do segment objects of a root on an object store if the topic's cleanup.policy is delete. Raises
    LogDirError for any other `target`, and the errors of `back_up`, `copy_object_root` or `copy_broker`.
    """
    refuse_target(root, target)
    if isinstance(root, BrokerRoot):
        return copy_broker(root, target, topics, metadata_partitions=metadata_partitions, link=link, tiered=tiered)
    drop_outdated_offsets(root, topics)
    if isinstance(root, ObjectRoot):
        return _export_object_root(root, target, topics, metadata_partitions, tiered=tiered)
    with pinned_logs(root, topics) as logs, ExitStack() as copying:
        check_pinned(logs, logs.partitions, is_for_broker=True)
        copying.enter_context(unfinished_copy(target, root.fs))
        image = logs.image if tiered else without_remote_part(logs.image)
        image = _exportable_image(image, {each.topic for each in logs.partitions})
        copied = copy_logs(root, logs, target, image, link=link, tiered=tiered)
        properties = read_meta_properties(root.path / META_PROPERTIES)
        broker = NewBroker(image, _tiered_segments(image), properties.cluster_id, metadata_partitions)
        return finish_new_broker(target, broker, copied, cleaned=logs.cleaned, clock=root.clock, fs=root.fs)


def _export_object_root(
    root: ObjectRoot, target: Path, topics: Collection[str] | None, metadata_partitions: int, *, tiered: bool
) -> ExportedBroker:
    root.refresh()
    fs = LOCAL
    partitions = root.partitions(topics)
    image = _exportable_image(root.store.image, {each.topic for each in partitions})
    remote: set[str] = set()
    if tiered:
        image = _with_remote_storage(image)
        remote = {name for name, each in image.topics.items() if has_remote_storage(image, each)}
    partitions = [each for each in partitions if each.topic in image.topics]
    with unfinished_copy(target, fs):
        copied = copy_object_logs(root, image, partitions, target, clock=root.clock, fs=fs, tiered=remote)
        segments = {of: each for of, each in _tiered_segments(image).items() if of.topic in remote}
        cluster_id = None if root.identity is None else root.identity.cluster_id
        broker = NewBroker(image, segments, cluster_id, metadata_partitions)
        exported = [each.exported for each in copied]
        return finish_new_broker(target, broker, exported, cleaned={}, clock=root.clock, fs=fs)


def _with_remote_storage(image: MetadataImage) -> MetadataImage:
    """The image with remote.storage.enable for all topics whose segments a broker can have in remote storage."""
    config = broker_config(image)
    topics = [
        replace(each, configs={**each.configs, "remote.storage.enable": "true"})
        if each.name not in INTERNAL_TOPICS and not config.log_config(each.configs).compact
        else each
        for each in image.topics.values()
    ]
    return only_topics(image, topics)


def _exportable_image(image: MetadataImage, names: Collection[str]) -> MetadataImage:
    """The image with the topics called `names`, but not a `__remote_log_metadata` of earlier times."""
    topics = [image.topics[name] for name in sorted(names) if name != REMOTE_LOG_METADATA_TOPIC]
    return only_topics(image, topics)


def _tiered_segments(image: MetadataImage) -> dict[TopicIdPartition, Sequence[RemoteSegment]]:
    """What of each partition is in remote storage."""
    return {
        TopicIdPartition(topic.name, topic.topic_id, each.partition): [remote_segment(one) for one in each.segments]
        for topic in image.topics.values()
        for each in topic.partitions
        if each.segments
    }
