"""The topics of a native log directory or a broker's, each with the partitions to inspect.

A partition that cannot be described is reported with its error; the others are unaffected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import DiskFormatError, InvalidConfigError, KafkalogError
from pyspark_kafkalog.report.facts import PartitionFiles
from pyspark_kafkalog.root.broker_metadata.image import read_topic_configs
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.marker_files import read_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, PARTITION_METADATA, TopicPartition

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """A topic, with an error in place of each partition that cannot be described."""

    name: str
    topic_id: str | None
    configs: Mapping[str, str]
    config: LogConfig
    partitions: list[PartitionFiles | tuple[TopicPartition, str]]


def read_topics(root: Root) -> Iterator[TopicFiles]:
    """The topics in the order of their names."""
    try:
        cleaned = read_offset_checkpoint(root.path / CLEANER_OFFSET_CHECKPOINT)
    except DiskFormatError as error:
        _LOG.warning("%s", error)
        cleaned = {}
    return _broker_topics(root, cleaned) if root.is_broker_directory else _own_topics(root, cleaned)


def _own_topics(root: Root, cleaned: Mapping[TopicPartition, int]) -> Iterator[TopicFiles]:
    native = root.native()
    image = native.store.image
    for name in sorted(image.topics):
        topic = image.topics[name]
        config = native.log_config(name)
        partitions: list[PartitionFiles | tuple[TopicPartition, str]] = []
        for each in topic.partitions:
            topic_partition = TopicPartition(name, each.partition)
            partitions.append(
                PartitionFiles(
                    topic_partition,
                    native.path / str(topic_partition),
                    each.state,
                    config,
                    False,
                    cleaned.get(topic_partition),
                )
            )
        yield TopicFiles(name, topic.topic_id, topic.configs, config, partitions)


def _broker_topics(root: Root, cleaned: Mapping[TopicPartition, int]) -> Iterator[TopicFiles]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for topic_partition in list_partitions(root.path):
        if topic_partition.topic != CLUSTER_METADATA_TOPIC:
            by_topic.setdefault(topic_partition.topic, []).append(topic_partition)
    try:
        all_configs = read_topic_configs(root.path)
    except (DiskFormatError, OSError) as error:
        _LOG.warning("the topics' configurations cannot be read: %s", error)
        all_configs = {}
    for name, found in by_topic.items():
        configs = all_configs.get(name, {})
        config = _config(name, configs)
        partitions = [
            _broker_partition(root, topic_partition, config, cleaned.get(topic_partition)) for topic_partition in found
        ]
        yield TopicFiles(name, _topic_id(root, found[0]), configs, config, partitions)


def _config(topic: str, configs: Mapping[str, str]) -> LogConfig:
    try:
        return LogConfig.from_properties(configs)
    except InvalidConfigError as error:  # from a later version of Kafka
        _LOG.warning("the configuration of %s is not understood, defaults are taken: %s", topic, error)
        return LogConfig()


def _broker_partition(
    root: Root, topic_partition: TopicPartition, config: LogConfig, cleaner_offset: int | None
) -> PartitionFiles | tuple[TopicPartition, str]:
    try:
        found = root.partition(topic_partition.topic, topic_partition.partition)
        stable_offset = found.last_stable_offset
    except (KafkalogError, OSError) as error:
        return topic_partition, str(error)
    state = LogState(
        leader_epoch=found.leader_epoch,
        log_start_offset=found.local_log_start_offset,
        log_end_offset=found.high_watermark,
        active_base_offset=found.active_base_offset,
        active_size_bytes=max(found.active_size_bytes, 0),
        first_unstable_offset=stable_offset if stable_offset < found.high_watermark else -1,
    )
    return PartitionFiles(
        topic_partition,
        found.directory,
        state,
        config,
        True,
        cleaner_offset,
        remote_offsets=found.remote_offsets_count,
        offsets_above_high_watermark=found.offsets_above_high_watermark,
    )


def _topic_id(root: Root, topic_partition: TopicPartition) -> str | None:
    try:
        return read_topic_id(root.path / str(topic_partition) / PARTITION_METADATA)
    except (DiskFormatError, OSError):
        return None
