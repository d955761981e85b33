"""What a cluster's Metadata says: its brokers, the topics that are followed, and who leads their partitions.

A view is replaced as a whole, so that threads read it without a lock. Metadata of a broker that lags behind may be
older than what is known: an older leader epoch of the same topic never replaces a newer one.

Topic ids exist since Kafka 2.8. A topic without one gets an id that follows from the cluster's id and the topic's name,
so each follower of the cluster gives it the same; that it was created again is not noticed by its id then.

Source of the rules: org.apache.kafka.clients.Metadata (updateLatestMetadata).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.messages.cluster import MetadataResponseBroker, MetadataResponseTopic
from pyspark_kafkalog.replication.cluster.connections import Address
from pyspark_kafkalog.storage.names import TopicPartition, encode_uuid

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the cluster."""

    node_id: int
    address: Address
    rack: str | None = None

    @property
    def name(self) -> str:
        """The broker in messages, and as a source: broker 1 (host:9092)."""
        return f"broker {self.node_id} ({self.address})"


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition, `NOBODY` for no broker, and in which epoch, -1 if unknown."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, and the leaders of its partitions from 0 on. `has_own_id`: the cluster gave it its id."""

    name: str
    topic_id: str
    has_own_id: bool
    leaders: tuple[PartitionLeader, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as of one response of Metadata."""

    cluster_id: str = ""
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)

    def leader(self, partition: TopicPartition) -> PartitionLeader:
        """The leader of a partition; `NOBODY` also for one that is not known."""
        topic = self.topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.leaders):
            return PartitionLeader(NOBODY, -1)
        return topic.leaders[partition.partition]

    def broker_named(self, name: str) -> Broker | None:
        """The broker that is the source of this name."""
        return next((each for each in self.brokers.values() if each.name == name), None)


def parse_broker(broker: MetadataResponseBroker) -> Broker:
    """A broker of a response."""
    return Broker(broker.node_id, Address(broker.host, broker.port), broker.rack)


def parse_topic(cluster_id: str, topic: MetadataResponseTopic, known: TopicView | None) -> TopicView | str:
    """A topic of a response without error, with newer epochs of what is `known`; or why its partitions are not usable.

    Partitions without a leader stay, led by `NOBODY`.
    """
    name = topic.name or ""
    partitions = sorted(topic.partitions, key=lambda each: each.partition_index)
    if not partitions or [each.partition_index for each in partitions] != list(range(len(partitions))):
        numbers = ", ".join(str(each.partition_index) for each in partitions[:10])
        return f"expected partitions from 0 on without a gap, the cluster names {numbers or 'none'}"
    has_own_id = topic.topic_id != ZERO_UUID
    topic_id = topic.topic_id if has_own_id else derived_topic_id(cluster_id, name)
    view = TopicView(
        name, topic_id, has_own_id, tuple(PartitionLeader(each.leader_id, each.leader_epoch) for each in partitions)
    )
    return view if known is None else _with_newer_epochs(view, known)


def _with_newer_epochs(view: TopicView, known: TopicView) -> TopicView:
    if known.topic_id != view.topic_id:
        return view
    leaders = list(view.leaders)
    for at, earlier in enumerate(known.leaders[: len(leaders)]):
        if earlier.epoch > leaders[at].epoch:
            leaders[at] = earlier
    return replace(view, leaders=tuple(leaders))


def derived_topic_id(cluster_id: str, topic: str) -> str:
    """The id of a topic to which the cluster gave none, as Kafka's Uuid text."""
    digest = bytearray(hashlib.sha256(f"{cluster_id}/{topic}".encode()).digest()[:16])
    digest[0] &= 0x3F  # so that the text never begins with a dash, which tools read as an option
    return encode_uuid(bytes(digest))
