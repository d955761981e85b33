"""Topics, configurations and access control entries from a Kafka broker's metadata log (log.py), if it has one.

Unknown record types and versions are ignored. Records between a BeginTransactionRecord and an EndTransactionRecord
apply together; after an AbortTransactionRecord, or without an end, they do not apply.

Source of the rules: org.apache.kafka.image.loader.MetadataBatchLoader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, InvalidRecordError
from pyspark_kafkalog.metadata.acl import Acl, parse_acl
from pyspark_kafkalog.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.messages.records import decode_record
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.broker_metadata.log import BrokerBatch, BrokerLog

_NO_LEADER_CHANGE: Final = -2


@dataclass(slots=True)
class BrokerPartition:
    """A partition: the nodes that hold it, its leader epoch, and the ids of the log directories, one for each node."""

    replicas: tuple[int, ...]
    leader_epoch: int
    directories: tuple[str, ...] = ()


@dataclass(slots=True)
class BrokerTopic:
    """A topic of the broker's cluster: id, partitions by number, configuration overrides."""

    name: str
    topic_id: str
    partitions: dict[int, BrokerPartition] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerMetadata:
    """The state that a broker's metadata log adds up to.

    `topic_configs` by topic name, `broker_configs` by node id as text ("" for all nodes), `acls` by id. `damage`
    describes why something may be missing; None if the whole log was read.
    """

    topics: dict[str, BrokerTopic] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: dict[str, Acl] = field(default_factory=dict)
    damage: str | None = None
    _names: dict[str, str] = field(default_factory=dict)

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record. Records of unknown topics are ignored."""
        if isinstance(record, TopicRecord):
            self.topics[record.name] = BrokerTopic(record.name, record.topic_id)
            self._names[record.topic_id] = record.name
        elif isinstance(record, RemoveTopicRecord):
            topic = self._topic(record.topic_id)
            if topic is not None:
                del self.topics[topic.name]
                self.topic_configs.pop(topic.name, None)
        elif isinstance(record, PartitionRecord):
            self._partition(record)
        elif isinstance(record, PartitionChangeRecord):
            self._partition_change(record)
        elif isinstance(record, ConfigRecord):
            self._config(record)
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = record.next_producer_id
        elif isinstance(record, AccessControlEntryRecord):
            self._access_control_entry(record)
        elif isinstance(record, RemoveAccessControlEntryRecord):
            self.acls.pop(record.id, None)

    def _topic(self, topic_id: str) -> BrokerTopic | None:
        """The topic with the id, if it exists."""
        topic = self.topics.get(self._names.get(topic_id, ""))
        return topic if topic is not None and topic.topic_id == topic_id else None

    def _partition(self, record: PartitionRecord) -> None:
        topic = self._topic(record.topic_id)
        if topic is not None and record.partition_id >= 0:
            topic.partitions[record.partition_id] = BrokerPartition(
                record.replicas, record.leader_epoch, record.directories
            )

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        topic = self._topic(record.topic_id)
        partition = None if topic is None else topic.partitions.get(record.partition_id)
        if partition is None:
            return
        if record.replicas is not None:
            partition.replicas = record.replicas
        if record.directories is not None:
            partition.directories = record.directories
        if record.leader != _NO_LEADER_CHANGE:
            partition.leader_epoch += 1

    def _access_control_entry(self, record: AccessControlEntryRecord) -> None:
        try:
            self.acls[record.id] = parse_acl(record)
        except InvalidRecordError as error:  # a later version's: it may deny, so its omission must be reported
            self.damage = self.damage or str(error)

    def _config(self, record: ConfigRecord) -> None:
        by_resource = {TOPIC_RESOURCE: self.topic_configs, BROKER_RESOURCE: self.broker_configs}
        resources = by_resource.get(record.resource_type)
        if resources is None:
            return
        configs = resources.setdefault(record.resource_name, {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value


def read_topic_configs(root: Path) -> Mapping[str, Mapping[str, str]]:
    """Configuration overrides by topic name; empty if `root` has no metadata log."""
    directory = root / METADATA_DIR
    return read_broker_metadata(directory).topic_configs if directory.is_dir() else {}


def read_broker_metadata(directory: Path) -> BrokerMetadata:
    """The state of the metadata log in `directory`. Raises OSError if it cannot be read."""
    metadata = BrokerMetadata()
    log = BrokerLog(directory)
    for record in _metadata_records(log.snapshot(), log):
        metadata.apply(record)
    for record in committed_records(_metadata_records(log.after_snapshot(), log)):
        metadata.apply(record)
    if metadata.damage is None:
        metadata.damage = log.damage
    return metadata


def _metadata_records(batches: Iterable[BrokerBatch], log: BrokerLog) -> Iterator[MetadataRecord]:
    for batch in batches:
        for each in () if batch.is_control else batch.records:
            if each.value is None:
                continue
            try:
                yield decode_record(each.value, file=batch.file)
            except DiskFormatError as error:
                log.note(str(error))


def committed_records(records: Iterator[MetadataRecord]) -> Iterator[MetadataRecord]:
    """`records` without those of aborted or unfinished metadata transactions."""
    pending: list[MetadataRecord] | None = None
    for record in records:
        if isinstance(record, BeginTransactionRecord):
            pending = []
        elif isinstance(record, EndTransactionRecord):
            yield from pending or ()
            pending = None
        elif isinstance(record, AbortTransactionRecord):
            pending = None
        elif pending is not None:
            pending.append(record)
        else:
            yield record
