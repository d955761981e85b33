"""The records of `__consumer_offsets` that hold committed offsets, and the partition that holds a group's records.

    key     int16 record type (1; 0 of old brokers), group, topic, partition
    value   int16 version (4), offset, leader epoch, metadata, commit timestamp in ms, tagged: the topic's id

The last value of a key counts; a null value means that the offset was deleted or has expired. All other records of the
topic (members, epochs, assignments) have the group's name at the same place in the key.

Source of the rules: org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers and GroupCoordinatorService.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.messages.codec import MessageSchema
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.storage.names import TopicPartition

OFFSETS_TOPIC: Final = "__consumer_offsets"
NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1

_INT16: Final = struct.Struct(">h")
_TYPE_AND_LENGTH: Final = struct.Struct(">hh")
_VALUE_VERSION: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """A committed offset: the next offset to read, with its metadata.

    `leader_epoch` is that of the last record read, -1 if unknown. `expire_timestamp_ms` is only set by brokers before
    2.1. `topic_id` is None if the committer did not give it. Timestamps are in ms, -1 for none.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: str | None = None


def group_partition(group: str, partitions_count: int) -> int:
    """The partition of `__consumer_offsets` with the group's records: by Java's String.hashCode."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", group.encode("utf-16-be", errors="surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    if code == 0x80000000:
        return 0
    return min(code, (1 << 32) - code) % partitions_count


def group_of_key(key: bytes) -> tuple[int, str] | None:
    """The record type and the group of a key; None for bytes that are not a key of a coordinator."""
    if len(key) < _TYPE_AND_LENGTH.size:
        return None
    record_type, length = _TYPE_AND_LENGTH.unpack_from(key)
    name = key[_TYPE_AND_LENGTH.size : _TYPE_AND_LENGTH.size + length]
    if record_type < 0 or length < 0 or len(name) != length:
        return None
    return record_type, name.decode("utf-8", errors="replace")


def group_key(name: str, **fields: Any) -> bytes:
    """The key of the record type that the schema `name` describes (`OffsetCommitKey`)."""
    schema = MessageSchema.load(name)
    return _INT16.pack(schema.api_key) + schema.encode(0, fields)


def offset_key(group: str, topic_partition: TopicPartition) -> bytes:
    return group_key("OffsetCommitKey", group=group, topic=topic_partition.topic, partition=topic_partition.partition)


def offset_value(committed: OffsetAndMetadata) -> bytes:
    """The value in the newest version that Kafka 4.1 writes. Raises InvalidRecordError."""
    fields = {
        "offset": committed.offset,
        "leaderEpoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "commitTimestamp": committed.commit_timestamp_ms,
        "topicId": committed.topic_id or ZERO_UUID,
    }
    return _INT16.pack(_VALUE_VERSION) + MessageSchema.load("OffsetCommitValue").encode(_VALUE_VERSION, fields)


def parse_offset_key(key: bytes) -> TopicPartition | None:
    """The partition of an offset record's key; None for a record of another type. Raises CorruptRecordError."""
    record_type = _INT16.unpack_from(key)[0]
    if record_type not in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
        return None
    fields = MessageSchema.load("OffsetCommitKey").decode(0, key[_INT16.size :], file=OFFSETS_TOPIC)
    if fields["partition"] < 0:
        raise CorruptRecordError(
            file=OFFSETS_TOPIC, position=0, expected="a partition of 0 or more", found=str(fields["partition"])
        )
    return TopicPartition(fields["topic"], fields["partition"])


def parse_offset_value(value: bytes) -> OffsetAndMetadata:
    """The committed offset in a value. Raises CorruptRecordError, UnsupportedFormatError for an unknown version."""
    fields = parse_value("OffsetCommitValue", value)
    topic_id = fields["topicId"]
    return OffsetAndMetadata(
        offset=fields["offset"],
        leader_epoch=fields["leaderEpoch"],
        metadata=fields["metadata"],
        commit_timestamp_ms=fields["commitTimestamp"],
        expire_timestamp_ms=fields["expireTimestamp"],
        topic_id=None if topic_id == ZERO_UUID else topic_id,
    )


def parse_value(schema_name: str, value: bytes) -> dict[str, Any]:
    """The fields of a value with the schema `schema_name`, in the version that its first two bytes give."""
    if len(value) < _INT16.size:
        raise CorruptRecordError(
            file=OFFSETS_TOPIC, position=0, expected="a version of 2 bytes", found=f"{len(value)} bytes"
        )
    version = int(_INT16.unpack_from(value)[0])
    schema = MessageSchema.load(schema_name)
    return schema.decode(version, value[_INT16.size :], file=OFFSETS_TOPIC, file_position=_INT16.size)
