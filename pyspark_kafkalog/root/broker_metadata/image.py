"""Topics, configurations and access control entries from a Kafka broker's metadata log (log.py), if it has one.

Unknown record types and versions are ignored. Records between a BeginTransactionRecord and an EndTransactionRecord
apply together; after an AbortTransactionRecord, or without an end, they do not apply.

Source of the rules: org.apache.kafka.image.loader.MetadataBatchLoader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import DiskFormatError, InvalidRecordError
from pyspark_kafkalog.metadata.acl import Acl, parse_acl
from pyspark_kafkalog.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from pyspark_kafkalog.metadata.messages.records import MetadataRecord, decode_record
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

    def apply(self, metadata_record: MetadataRecord) -> None:
        """Apply one record. Records of unknown topics are ignored."""
        fields = metadata_record.fields
        if metadata_record.type == "TopicRecord":
            self.topics[fields["name"]] = BrokerTopic(fields["name"], fields["topicId"])
            self._names[fields["topicId"]] = fields["name"]
        elif metadata_record.type == "RemoveTopicRecord":
            topic = self._topic(fields)
            if topic is not None:
                del self.topics[topic.name]
                self.topic_configs.pop(topic.name, None)
        elif metadata_record.type in ("PartitionRecord", "PartitionChangeRecord"):
            self._partition(metadata_record.type, fields)
        elif metadata_record.type == "ConfigRecord":
            self._config(fields)
        elif metadata_record.type == "ProducerIdsRecord":
            self.next_producer_id = fields["nextProducerId"]
        elif metadata_record.type == "AccessControlEntryRecord":
            self._access_control_entry(fields)
        elif metadata_record.type == "RemoveAccessControlEntryRecord":
            self.acls.pop(fields["id"], None)

    def _topic(self, fields: Mapping[str, Any]) -> BrokerTopic | None:
        """The topic with the id that a record names, if it exists."""
        topic = self.topics.get(self._names.get(fields["topicId"], ""))
        return topic if topic is not None and topic.topic_id == fields["topicId"] else None

    def _partition(self, record_type: str, fields: Mapping[str, Any]) -> None:
        topic = self._topic(fields)
        if topic is None or fields["partitionId"] < 0:
            return
        partitions = topic.partitions
        if record_type == "PartitionRecord":
            partitions[fields["partitionId"]] = BrokerPartition(
                tuple(fields["replicas"]), fields["leaderEpoch"], tuple(fields["directories"])
            )
            return
        partition = partitions.get(fields["partitionId"])
        if partition is not None:
            if fields["replicas"] is not None:
                partition.replicas = tuple(fields["replicas"])
            if fields["directories"] is not None:
                partition.directories = tuple(fields["directories"])
            if fields["leader"] != _NO_LEADER_CHANGE:
                partition.leader_epoch += 1

    def _access_control_entry(self, fields: Mapping[str, Any]) -> None:
        try:
            self.acls[fields["id"]] = parse_acl(fields)
        except InvalidRecordError as error:  # a later version's: it may deny, so its omission must be reported
            self.damage = self.damage or str(error)

    def _config(self, fields: Mapping[str, Any]) -> None:
        by_resource = {TOPIC_RESOURCE: self.topic_configs, BROKER_RESOURCE: self.broker_configs}
        resources = by_resource.get(fields["resourceType"])
        if resources is None:
            return
        configs = resources.setdefault(fields["resourceName"], {})
        if fields["value"] is None:
            configs.pop(fields["name"], None)
        else:
            configs[fields["name"]] = fields["value"]


def read_topic_configs(root: Path) -> Mapping[str, Mapping[str, str]]:
    """Configuration overrides by topic name; empty if `root` has no metadata log."""
    directory = root / METADATA_DIR
    return read_broker_metadata(directory).topic_configs if directory.is_dir() else {}


def read_broker_metadata(directory: Path) -> BrokerMetadata:
    """The state of the metadata log in `directory`. Raises OSError if it cannot be read."""
    metadata = BrokerMetadata()
    log = BrokerLog(directory)
    for metadata_record in _metadata_records(log.snapshot(), log):
        metadata.apply(metadata_record)
    for metadata_record in committed_records(_metadata_records(log.after_snapshot(), log)):
        metadata.apply(metadata_record)
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
    for metadata_record in records:
        if metadata_record.type == "BeginTransactionRecord":
            pending = []
        elif metadata_record.type == "EndTransactionRecord":
            yield from pending or ()
            pending = None
        elif metadata_record.type == "AbortTransactionRecord":
            pending = None
        elif pending is not None:
            pending.append(metadata_record)
        else:
            yield metadata_record
