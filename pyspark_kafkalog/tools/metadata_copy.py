"""What the tools show of a copy of a cluster's metadata log: the topics and settings of the cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.config.entries import (
    ConfigEntry,
    ConfigSource,
    own_topic_entries,
    set_broker_entries,
    topic_entries,
)
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.errors import LogDirError, UnknownTopicError
from pyspark_kafkalog.metadata.image import ALL_BROKERS
from pyspark_kafkalog.tools.output import Output, Tree

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.root.brokers.metadata.image import BrokerMetadata, BrokerPartition, BrokerTopic


def metadata_of_copy(log_dir: LogDir) -> BrokerMetadata | None:
    """What a copy of a metadata log adds up to; None for any other directory. Raises LogDirError for a damaged one."""
    if not log_dir.is_broker_directory or not log_dir.root.directories:
        return None
    from pyspark_kafkalog.metadata.root_format import METADATA_DIR
    from pyspark_kafkalog.root.brokers.metadata.copy_marker import is_metadata_copy
    from pyspark_kafkalog.root.brokers.metadata.image import read_broker_metadata

    root = log_dir.root.directories[0]
    if not is_metadata_copy(root):
        return None
    metadata = read_broker_metadata(root / METADATA_DIR)
    if metadata.damage is not None:
        raise LogDirError(f"the copy of the metadata log is damaged: {metadata.damage}")
    return metadata


def show_topic(output: Output, topic: BrokerTopic, metadata: BrokerMetadata) -> None:
    """Print a topic as kafka-topics --describe does: with its own configurations and those set for all brokers."""
    configs = _configs_in_force(
        metadata.topic_configs.get(topic.name, {}), metadata.broker_configs.get(ALL_BROKERS, {})
    )
    output.show(topic, lambda each: _topic_tree(each, configs), lambda each: _topic_text(each, configs))


def _configs_in_force(own: Mapping[str, str], broker: Mapping[str, str]) -> Mapping[str, str]:
    known = {name: value for name, value in own.items() if name in TOPIC_CONFIGS}
    entries = topic_entries(known, broker)
    return {**own, **{each.name: each.value or "" for each in entries if each.is_set}}


def _topic_tree(topic: BrokerTopic, configs: Mapping[str, str]) -> Tree:
    return {
        "topic": topic.name,
        "topicId": topic.topic_id,
        "partitionCount": len(topic.partitions),
        "configs": dict(sorted(configs.items())),
        "partitions": [
            {
                "partition": number,
                "leader": each.leader if each.leader >= 0 else None,
                "leaderEpoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "elr": list(each.elr),
                "lastKnownElr": list(each.last_known_elr),
            }
            for number, each in sorted(topic.partitions.items())
        ],
    }


def _topic_text(topic: BrokerTopic, configs: Mapping[str, str]) -> str:
    texts = ",".join(f"{name}={value}" for name, value in sorted(configs.items()))
    first = topic.partitions.get(0)
    head = (
        f"Topic: {topic.name}\tTopicId: {topic.topic_id}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {0 if first is None else len(first.replicas)}\tConfigs: {texts}\n"
    )
    return head + "".join(_partition_text(topic.name, *each) for each in sorted(topic.partitions.items()))


def _partition_text(topic: str, number: int, partition: BrokerPartition) -> str:
    leader = str(partition.leader) if partition.leader >= 0 else "none"
    return (
        f"\tTopic: {topic}\tPartition: {number}\tLeader: {leader}\tReplicas: {_ids(partition.replicas)}"
        f"\tIsr: {_ids(partition.isr)}\tElr: {_ids(partition.elr)}\tLastKnownElr: {_ids(partition.last_known_elr)}\n"
    )


def _ids(nodes: Collection[int]) -> str:
    return ",".join(map(str, nodes))


def configured_brokers(metadata: BrokerMetadata) -> list[str]:
    """The brokers with settings of their own, then all together."""
    own = sorted(name for name, settings in metadata.broker_configs.items() if name != ALL_BROKERS and settings)
    return [*own, ALL_BROKERS]


def entries_of_broker(metadata: BrokerMetadata, name: str) -> list[ConfigEntry]:
    """The settings of a broker, or of all of them, that were changed while they ran.

    Those that this package does not know are left out: passwords of key stores are among them.
    """
    settings = metadata.broker_configs.get(name, {})
    known = {key: value for key, value in settings.items() if key in BROKER_CONFIGS}
    is_default = name == ALL_BROKERS
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG if is_default else ConfigSource.DYNAMIC_BROKER_CONFIG
    return set_broker_entries(known, source)


def entries_of_topic(metadata: BrokerMetadata, name: str) -> list[ConfigEntry]:
    """The topic's own configurations. Raises UnknownTopicError."""
    if name not in metadata.topics:
        raise UnknownTopicError(f"The topic '{name}' doesn't exist and doesn't have dynamic config.")
    return own_topic_entries(metadata.topic_configs.get(name, {}))
