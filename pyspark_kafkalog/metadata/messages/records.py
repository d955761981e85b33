"""Records of the metadata log: KRaft's frame around a message, and typed builders for this project's own types.

A record's value is `frame version (1) | api key | message version`, three unsigned varints, then the message; its key
is null. Kafka's own types have the schemas of `schemas/cluster_metadata.json`. This project's have api keys from
20000 up, which Kafka's dump tool reports as unknown and skips (`schemas/kafkalog.json`; all with tagged fields, to be
extended by):

    20000 FormatRecord           in the first commit: the version of the rules that all commits follow
    20001 CommitRecord           first in every commit: its random id, by which a writer knows its own, and what it did
    20002 WriteCommitRecord      what a write appended: transactional id, version and incarnation, producer; offsets,
                                 records and bytes by partition. Moves the transactional id in the image
    20003 PartitionStateRecord   one partition's LogState after the commit: replaces the one before
    20004 TransactionalIdRecord  all that is known of a transactional id: for a new holder, and in snapshots

Source of the frame: org.apache.kafka.server.common.serialization.AbstractApiMessageSerde.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pyspark_kafkalog.errors import UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.codec import MessageSchema
from pyspark_kafkalog.metadata.messages.schema import (
    MessageReader,
    default_struct,
    load_schema_file,
    write_unsigned_varint,
)
from pyspark_kafkalog.record.header import Buffer

FRAME_VERSION: Final = 1
OWN_API_KEYS_FROM: Final = 20_000
NO_TRANSACTION_VERSION: Final = -1

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """One record: `type` is its message's name ("TopicRecord"), `fields` as codec.py decodes them, all of them there.

    `record` makes one from some of its fields.
    """

    type: str
    version: int
    fields: Mapping[str, Any]

    @property
    def enum_name(self) -> str:
        """The type as Kafka's MetadataRecordType spells it ("TOPIC_RECORD")."""
        return _WORD_START.sub("_", self.type).upper()

    def to_json(self) -> dict[str, Any]:
        """What Kafka's dump tool prints for the record: type, version and data."""
        data = MessageSchema.load(self.type).to_json(self.version, self.fields)
        return {"type": self.enum_name, "version": self.version, "data": data}


def record(record_type: str, **fields: Any) -> MetadataRecord:
    """A record of the newest version of its type, fields left out at their defaults; checked when it is encoded."""
    schema = MessageSchema.load(record_type)
    return MetadataRecord(record_type, schema.highest_version, {**default_struct(schema.spec.fields), **fields})


@cache
def _types_by_api_key() -> Mapping[int, str]:
    specs = [*load_schema_file("cluster_metadata").values(), *load_schema_file("kafkalog").values()]
    return {spec.api_key: spec.name for spec in specs if spec.api_key is not None}


def encode_record(metadata_record: MetadataRecord) -> bytes:
    """The record's value. Raises InvalidRecordError for fields that its schema does not allow."""
    schema = MessageSchema.load(metadata_record.type)
    out = bytearray()
    for header in (FRAME_VERSION, schema.api_key, metadata_record.version):
        write_unsigned_varint(out, header)
    schema.encode_to(out, metadata_record.version, metadata_record.fields)
    return bytes(out)


def decode_record(value: Buffer, *, file: str = "<record>", file_position: int = 0) -> MetadataRecord:
    """The record of a value. Raises CorruptRecordError, or UnsupportedFormatError for an unknown type or version."""
    reader = MessageReader(value, file=file, file_position=file_position)
    frame_version = reader.unsigned_varint("the frame version")
    if frame_version != FRAME_VERSION:
        raise _unsupported(reader, f"frame version {FRAME_VERSION}", f"frame version {frame_version}")
    api_key = reader.unsigned_varint("the record type")
    record_type = _types_by_api_key().get(api_key)
    if record_type is None:
        raise _unsupported(reader, "a metadata record type of Kafka 4.1 or of this package", f"type {api_key}")
    version = reader.unsigned_varint("the record version")
    return MetadataRecord(record_type, version, MessageSchema.load(record_type).decode_from(reader, version))


def _unsupported(reader: MessageReader, expected: str, found: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        file=reader.file,
        position=reader.file_position + reader.at,
        expected=expected,
        found=found,
        advice="a later version of pyspark_kafkalog or of Kafka wrote it: upgrade pyspark_kafkalog",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPartition:
    """What one write appended to one partition: `records` records in `bytes` bytes of batches from `first_offset`
    on."""

    topic_id: str
    partition: int
    first_offset: int
    records: int
    bytes: int


def write_commit_record(
    *,
    write_id: str,
    partitions: Sequence[WrittenPartition],
    transactional_id: str | None = None,
    transaction_version: int = NO_TRANSACTION_VERSION,
    producer_id: int = -1,
    producer_epoch: int = -1,
    incarnation: str = "",
) -> MetadataRecord:
    """The record that says what a write did; with a transactional id, its version is then the last one committed.

    Without a producer id the id keeps its producer; without an incarnation, or with the one that holds the id, its
    holder; a new incarnation takes the id over and the one before is fenced.
    """
    return record(
        "WriteCommitRecord",
        writeId=write_id,
        transactionalId=transactional_id,
        transactionVersion=transaction_version,
        producerId=producer_id,
        producerEpoch=producer_epoch,
        incarnation=incarnation,
        partitions=tuple(
            {
                "topicId": written.topic_id,
                "partition": written.partition,
                "firstOffset": written.first_offset,
                "records": written.records,
                "bytes": written.bytes,
            }
            for written in partitions
        ),
    )


def written_partitions(metadata_record: MetadataRecord) -> tuple[WrittenPartition, ...]:
    """The partitions of a WriteCommitRecord."""
    return tuple(
        WrittenPartition(
            topic_id=fields["topicId"],
            partition=fields["partition"],
            first_offset=fields["firstOffset"],
            records=fields["records"],
            bytes=fields["bytes"],
        )
        for fields in metadata_record.fields["partitions"]
    )


def transactional_id_record(
    transactional_id: str,
    *,
    version: int = NO_TRANSACTION_VERSION,
    producer_id: int = -1,
    producer_epoch: int = -1,
    last_commit_offset: int = -1,
    last_timestamp_ms: int = -1,
    incarnation: str = "",
    fenced: Sequence[str] = (),
) -> MetadataRecord:
    """The record that makes these values all that is known of a transactional id.

    See TransactionalIdImage, whose `held_by` gives `incarnation` and `fenced` of a new holder.
    """
    return record(
        "TransactionalIdRecord",
        transactionalId=transactional_id,
        version=version,
        producerId=producer_id,
        producerEpoch=producer_epoch,
        lastCommitOffset=last_commit_offset,
        lastTimestampMs=last_timestamp_ms,
        incarnation=incarnation,
        fenced=tuple(fenced),
    )
