"""What a Kafka broker's own metadata log says of topics, where its directory holds one: every KRaft node has a copy.

    __cluster_metadata-0/<20 digit end offset>-<10 digit epoch>.checkpoint   snapshots, the newest whole one counts
    __cluster_metadata-0/<base offset>.log                                   what came after

Read as far as it is whole; types and versions that are not known here are passed over. Records between a
BeginTransactionRecord and an EndTransactionRecord count together or, after an AbortTransactionRecord or without an end,
not at all. Source of the rules: org.apache.kafka.image.loader.MetadataBatchLoader.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, InvalidRecordError
from pyspark_kafkalog.metadata.acl import Acl, parse_acl
from pyspark_kafkalog.metadata.bootstrap import METADATA_DIR
from pyspark_kafkalog.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from pyspark_kafkalog.metadata.records import MetadataRecord, decode_record
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, parse_header
from pyspark_kafkalog.record.plain import Record, decode_batch
from pyspark_kafkalog.storage.filesystem import open_to_read
from pyspark_kafkalog.storage.listing import list_base_offsets
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file

_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_FILE_BYTES_MAX: Final = 256 << 20
_NO_LEADER_CHANGE: Final = -2


@dataclass(slots=True)
class BrokerPartition:
    """A partition: the nodes that hold it, and its leader epoch."""

    replicas: tuple[int, ...]
    leader_epoch: int


@dataclass(slots=True)
class BrokerTopic:
    """A topic of the broker's cluster: id, partitions by number, configuration overrides."""

    name: str
    topic_id: str
    partitions: dict[int, BrokerPartition] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerMetadata:
    """What the metadata log adds up to.

    `topic_configs` by topic name, `broker_configs` by node id as text ("" for all nodes), `acls` by id. `damage` says
    why something may be missing: None when all that is there was read.
    """

    topics: dict[str, BrokerTopic] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: dict[str, Acl] = field(default_factory=dict)
    damage: str | None = None
    _names: dict[str, str] = field(default_factory=dict)

    def apply(self, metadata_record: MetadataRecord) -> None:
        """Take in one record. One of a topic that is not there is passed over."""
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
        """The topic with the id that a record names, if it is there."""
        topic = self.topics.get(self._names.get(fields["topicId"], ""))
        return topic if topic is not None and topic.topic_id == fields["topicId"] else None

    def _partition(self, record_type: str, fields: Mapping[str, Any]) -> None:
        topic = self._topic(fields)
        if topic is None or fields["partitionId"] < 0:
            return
        partitions = topic.partitions
        if record_type == "PartitionRecord":
            partitions[fields["partitionId"]] = BrokerPartition(tuple(fields["replicas"]), fields["leaderEpoch"])
            return
        partition = partitions.get(fields["partitionId"])
        if partition is not None:
            if fields["replicas"] is not None:
                partition.replicas = tuple(fields["replicas"])
            if fields["leader"] != _NO_LEADER_CHANGE:
                partition.leader_epoch += 1

    def _access_control_entry(self, fields: Mapping[str, Any]) -> None:
        try:
            self.acls[fields["id"]] = parse_acl(fields)
        except InvalidRecordError as error:  # a later version's: leaving it out must not pass unseen, it may deny
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
    """Configuration overrides by topic name; empty where `root` has no metadata log."""
    directory = root / METADATA_DIR
    return read_broker_metadata(directory).topic_configs if directory.is_dir() else {}


def read_broker_metadata(directory: Path) -> BrokerMetadata:
    """What the metadata log in `directory` says. Raises OSError when it cannot be read."""
    metadata = BrokerMetadata()
    end_offset = _read_snapshot(directory, metadata)
    reader = _Reader(end_offset)
    for metadata_record in committed_records(_log_records(directory, end_offset, reader)):
        metadata.apply(metadata_record)
    if metadata.damage is None:
        metadata.damage = reader.damage
    return metadata


def _read_snapshot(directory: Path, metadata: BrokerMetadata) -> int:
    """Apply the newest snapshot that is whole, note the newer ones as damage; returns the offset where it ends."""
    for end_offset, path in _snapshots(directory):
        reader = _Reader(0)
        records = list(reader.records(path, 0))
        if reader.has_footer:
            for metadata_record in records:
                metadata.apply(metadata_record)
            metadata.damage = metadata.damage or reader.damage
            return end_offset
        metadata.damage = metadata.damage or reader.damage or f"{path} has no end"
    return 0


def _snapshots(directory: Path) -> list[tuple[int, Path]]:
    """End offsets and paths of the snapshots, the newest first."""
    matches = [match for match in map(_SNAPSHOT.fullmatch, os.listdir(directory)) if match is not None]
    matches.sort(key=lambda match: (int(match[1]), int(match[2])), reverse=True)
    return [(int(match[1]), directory / match[0]) for match in matches]


def _log_records(directory: Path, start_offset: int, reader: _Reader) -> Iterator[MetadataRecord]:
    for base_offset in list_base_offsets(directory):
        yield from reader.records(segment_file(directory, base_offset, LOG_SUFFIX), start_offset)


def committed_records(records: Iterator[MetadataRecord]) -> Iterator[MetadataRecord]:
    """`records` without those of metadata transactions that were aborted or have no end."""
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


class _Reader:
    """Reads files of batches, which follow each other from `next_offset` on, up to the first damaged one in each.

    `damage` says what could not be read, the first such; a torn batch at an end, which a crash leaves, is none.
    """

    def __init__(self, next_offset: int) -> None:
        self.damage: str | None = None
        self.has_footer = False
        self._next_offset = next_offset

    def records(self, path: Path, start_offset: int) -> Iterator[MetadataRecord]:
        """The metadata records from `start_offset` on."""
        for each in self._values(path, start_offset):
            if each.value is None:
                continue
            try:
                yield decode_record(each.value, file=str(path))
            except DiskFormatError as error:
                self._note(str(error))

    def _values(self, path: Path, start_offset: int) -> Iterator[Record]:
        with open_to_read(path) as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            self._note(f"{path} has more than {_FILE_BYTES_MAX} bytes")
        at = 0
        try:
            while at + RECORD_BATCH_OVERHEAD_BYTES <= len(data):
                header = parse_header(data, at, file=str(path), file_position=at)
                if at + header.size_bytes > len(data):
                    break
                if header.last_offset >= start_offset:
                    self._check_follows(path, max(header.base_offset, start_offset))
                    batch = decode_batch(data, at, file=str(path), file_position=at)
                    if header.is_control:
                        self._see_control(batch.records, path)
                    else:
                        yield from (each for each in batch.records if each.offset >= start_offset)
                    self._next_offset = header.next_offset
                at += header.size_bytes
        except DiskFormatError as error:
            self._note(str(error))

    def _see_control(self, records: tuple[Record, ...], path: Path) -> None:
        for each in records:
            kind = parse_control_type(each.key, file=str(path), file_position=0)
            self.has_footer |= kind is ControlRecordType.SNAPSHOT_FOOTER

    def _check_follows(self, path: Path, offset: int) -> None:
        if offset != self._next_offset:
            raise CorruptRecordError(
                file=str(path), position=0, expected=f"a batch at offset {self._next_offset}", found=str(offset)
            )

    def _note(self, damage: str) -> None:
        if self.damage is None:
            self.damage = damage
