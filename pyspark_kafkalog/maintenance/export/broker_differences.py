"""The differences between an adopted directory and the metadata log of its broker, which adopting kept.

When the broker is started again, it reads topics, configurations and access control entries from that log
(`__cluster_metadata-0.kafka-stray`). A partition that the log does not have, or has under another topic id, is a stray
to it: the broker renames the directory and serves none of its records. A topic that was deleted after adoption exists
again, empty. Configurations and access control entries are as they were before adoption.

Only partitions that the log assigns to this node and this directory are compared; the others never were here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import OWN_CONFIGS
from pyspark_kafkalog.config.topic import validate_topic_config
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.metadata.acl import Acl
from pyspark_kafkalog.metadata.image import ALL_BROKERS, MetadataImage, TopicImage, broker_configs
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR, adopted_broker_config
from pyspark_kafkalog.root.brokers.image import BrokerMetadata, BrokerPartition, BrokerTopic, read_broker_metadata
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties, read_meta_properties
from pyspark_kafkalog.storage.names import META_PROPERTIES, TopicPartition, decode_uuid

#: Directory ids below this one are reserved: none assigned, lost, migrating (org.apache.kafka.common.DirectoryId).
_RESERVED_IDS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDifference:
    """A topic with `stranded` partitions, which the broker does not know.

    `broker_partitions` is 0 if the broker has no topic of that name. A `recreated` topic has another id there, and all
    its partitions are stranded.
    """

    topic: TopicImage
    broker_partitions: int
    stranded: tuple[int, ...]
    recreated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDifference:
    """Configurations to set and to delete. `name` is a topic, a node id, or "" for all brokers."""

    name: str
    added: Mapping[str, str]
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDifferences:
    """All differences.

    `deleted` topics exist only on the broker. Partitions in `elsewhere` have records, but the cluster assigns them to
    other nodes. `damage`: why the broker's log could not be read completely.
    """

    topics: tuple[TopicDifference, ...] = ()
    deleted: tuple[str, ...] = ()
    elsewhere: tuple[TopicPartition, ...] = ()
    topic_configs: tuple[ConfigDifference, ...] = ()
    broker_configs: tuple[ConfigDifference, ...] = ()
    acls_added: tuple[Acl, ...] = ()
    acls_removed: tuple[Acl, ...] = ()
    damage: str | None = None

    def __bool__(self) -> bool:
        return bool(next(self.descriptions(), None))

    def descriptions(self) -> Iterator[str]:
        """A short description of each difference."""
        if self.damage is not None:
            yield f"the broker's metadata log is damaged, so differences may be missing ({self.damage})"
        for each in self.topics:
            name, total = each.topic.name, len(each.topic.partitions)
            if each.recreated:
                yield f"topic {name} was deleted and re-created"
            elif not each.broker_partitions:
                yield f"topic {name} was created"
            else:
                yield f"topic {name} was extended from {each.broker_partitions} to {total} partitions"
        yield from (f"topic {name} was deleted" for name in self.deleted)
        for topic_partition in self.elsewhere:
            yield (
                f"{topic_partition} was written to, which the cluster assigns to other nodes: copy its records over "
                "the network"
            )
        for change in self.topic_configs:
            yield f"configurations of topic {change.name} were changed ({_names(change)})"
        for change in self.broker_configs:
            yield f"broker-level settings were changed ({_names(change)})"
        if self.acls_added:
            yield f"{len(self.acls_added)} access control entries were added"
        if self.acls_removed:
            yield f"{len(self.acls_removed)} access control entries were removed"


def _names(change: ConfigDifference) -> str:
    return ", ".join(sorted({*change.added, *change.deleted}))


def find_differences(
    root: Path, image: MetadataImage, *, server_properties: Path | None = None
) -> BrokerDifferences | None:
    """Compare `image` with the broker's metadata log that adopting kept in `root`; None if there is no such log.

    `server_properties` is the broker's configuration file; a setting in it is not a difference.
    """
    if not (root / KEPT_METADATA_DIR).is_dir():
        return None
    metadata = read_broker_metadata(root / KEPT_METADATA_DIR)
    identity = read_meta_properties(root / META_PROPERTIES)
    topics, topic_configs = [], []
    elsewhere: list[TopicPartition] = []
    for topic in image.topics.values():
        known = metadata.topics.get(topic.name)
        change = _topic_change(topic, known)
        if change is not None:
            topics.append(change)
        if known is not None:
            of_broker = _allowed(metadata.topic_configs.get(topic.name, {}))
            topic_configs.append(_config_change(topic.name, topic.configs, of_broker))
            elsewhere.extend(_written_elsewhere(topic, known, identity))
    acls, broker_acls = set(image.acls.values()), set(metadata.acls.values())
    return BrokerDifferences(
        topics=tuple(topics),
        deleted=tuple(
            name
            for name, known in sorted(metadata.topics.items())
            if name not in image.topics and any(_is_here(each, identity) for each in known.partitions.values())
        ),
        elsewhere=tuple(elsewhere),
        topic_configs=tuple(each for each in topic_configs if each.added or each.deleted),
        broker_configs=tuple(_broker_changes(image, metadata, identity, server_properties)),
        acls_added=tuple(sorted(acls - broker_acls)),
        acls_removed=tuple(sorted(broker_acls - acls)),
        damage=metadata.damage,
    )


def _topic_change(topic: TopicImage, known: BrokerTopic | None) -> TopicDifference | None:
    numbers = tuple(range(len(topic.partitions)))
    if known is None:
        return TopicDifference(topic=topic, broker_partitions=0, stranded=numbers)
    broker_partitions = len(known.partitions)
    if known.topic_id != topic.topic_id:
        return TopicDifference(topic=topic, broker_partitions=broker_partitions, stranded=numbers, recreated=True)
    if broker_partitions < len(numbers):
        return TopicDifference(topic=topic, broker_partitions=broker_partitions, stranded=numbers[broker_partitions:])
    return None


def _written_elsewhere(topic: TopicImage, known: BrokerTopic, identity: MetaProperties) -> Iterator[TopicPartition]:
    """Partitions with records that the cluster assigns to other nodes; adopting created their directories."""
    for each in topic.partitions if topic.topic_id == known.topic_id else ():
        assigned = known.partitions.get(each.partition)
        if assigned is not None and each.state.log_end_offset and identity.node_id not in assigned.replicas:
            yield TopicPartition(topic.name, each.partition)


def _is_here(partition: BrokerPartition, identity: MetaProperties) -> bool:
    """Whether the broker's metadata log assigns the partition to this node and to this directory of its `log.dirs`."""
    if identity.node_id not in partition.replicas:
        return False
    at = partition.replicas.index(identity.node_id)
    if at >= len(partition.directories) or identity.directory_id is None:
        return True
    directory = partition.directories[at]
    return directory == identity.directory_id or int.from_bytes(decode_uuid(directory), "big") < _RESERVED_IDS


def _allowed(configs: Mapping[str, str]) -> Mapping[str, str]:
    """The configurations without those that adopting omits."""
    allowed = {}
    for name, value in configs.items():
        with contextlib.suppress(InvalidConfigError):
            validate_topic_config(name, value)
            allowed[name] = value
    return allowed


def _config_change(name: str, own: Mapping[str, str], of_broker: Mapping[str, str]) -> ConfigDifference:
    return ConfigDifference(
        name=name,
        added=dict(sorted(each for each in own.items() - of_broker.items() if each[0] not in OWN_CONFIGS)),
        deleted=tuple(sorted(of_broker.keys() - own.keys() - OWN_CONFIGS)),
    )


def _broker_changes(
    image: MetadataImage, metadata: BrokerMetadata, identity: MetaProperties, server_properties: Path | None
) -> Iterator[ConfigDifference]:
    """Changes of the settings of this node, which take precedence, and of those of all brokers."""
    adopted = adopted_broker_config(metadata, identity.node_id, server_properties, []).properties
    change = _config_change(ALL_BROKERS, broker_configs(image), adopted)
    node = str(identity.node_id)
    of_node = metadata.broker_configs.get(node, {})
    for name, known in ((ALL_BROKERS, metadata.broker_configs.get(ALL_BROKERS, {})), (node, of_node)):
        added = {key: value for key, value in change.added.items() if (key in of_node) == (name == node)}
        # A setting from server.properties cannot be deleted on the broker; it is listed as one of all brokers.
        deleted = tuple(key for key in change.deleted if key in known or (name == ALL_BROKERS and key not in of_node))
        if added or deleted:
            yield ConfigDifference(name=name, added=added, deleted=deleted)
