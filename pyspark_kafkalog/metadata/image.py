"""The metadata image: the state that all commits below `next_offset` add up to. Immutable; `apply` returns a new one.

A new image shares all unchanged parts with the old one: a commit to 8 partitions creates 8 new PartitionImages, and new
tuples and dicts of references for their topics, whatever the size of the root. The rules of each record type are in
image_delta.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.metadata.acl import Acl
from pyspark_kafkalog.storage.log.log_state import LogState

BROKER_RESOURCE: Final = 4
TOPIC_RESOURCE: Final = 2
#: Number of earlier incarnations stored for a transactional id, so that their zombies are recognized as fenced.
MAX_FENCED_INCARNATIONS: Final = 16


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition; `state` is that of its log as of the image's last commit."""

    partition: int
    state: LogState

    @property
    def high_watermark(self) -> int:
        return self.state.log_end_offset


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: id as Kafka's Uuid text, partitions by number from 0, configuration overrides by name."""

    name: str
    topic_id: str
    partitions: tuple[PartitionImage, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionalIdImage:
    """A transactional id's last committed version, producer, and the commit and time (ms) that set them.

    `incarnation` is the current run of the writer ("" if it never gave one). `fenced` are earlier runs, newest last, at
    most MAX_FENCED_INCARNATIONS: their writes are refused.
    """

    transactional_id: str
    version: int
    producer_id: int
    producer_epoch: int
    last_commit_offset: int
    last_timestamp_ms: int
    incarnation: str = ""
    fenced: tuple[str, ...] = ()

    def held_by(self, incarnation: str) -> TransactionalIdImage:
        """The id with `incarnation` as its current one and the previous one fenced; unchanged for "" or the same."""
        if incarnation in ("", self.incarnation):
            return self
        fenced = self.fenced if not self.incarnation else (*self.fenced, self.incarnation)
        return replace(self, incarnation=incarnation, fenced=fenced[-MAX_FENCED_INCARNATIONS:])


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker: here the single node that represents the root in Kafka's tools."""

    broker_id: int
    incarnation_id: str
    broker_epoch: int
    log_dirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata as of `next_offset`, the offset of the next commit. Images share mappings: never modify one.

    `topics` by name; `topic_names` by topic id; `broker_configs` by broker id as text ("" for all brokers), then name;
    `features`: levels by name; `next_producer_id`: the first one not allocated; `acls` by their ids.
    """

    next_offset: int = 0
    last_timestamp_ms: int = -1
    format_version: int | None = None
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[str, str] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    transactional_ids: Mapping[str, TransactionalIdImage] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: Mapping[str, Acl] = field(default_factory=dict)

    @property
    def node(self) -> BrokerImage:
        """The single node that represents the root."""
        return self.brokers[min(self.brokers)]

    def topic(self, name: str) -> TopicImage:
        """The topic called `name`. Raises UnknownTopicError, whose message lists the existing topics."""
        found = self.topics.get(name)
        if found is None:
            there = ", ".join(sorted(self.topics)[:20]) or "none"
            raise UnknownTopicError(f"there is no topic {name!r}; topics there are: {there}")
        return found

    def partition(self, topic: str, partition: int) -> PartitionImage:
        """One partition. Raises UnknownTopicError."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UnknownTopicError(f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]
