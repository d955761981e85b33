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
from typing import Final, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.coordinator_records import OffsetCommitKey, OffsetCommitValue
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.storage.names import OFFSETS_TOPIC as OFFSETS_TOPIC
from pyspark_kafkalog.storage.names import TopicPartition

NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1

_INT16: Final = struct.Struct(">h")
_TYPE_AND_LENGTH: Final = struct.Struct(">hh")
_VALUE_VERSION: Final = 4
_EXPIRING_VERSION: Final = 1
#: A value of version 4 with a topic id has so many bytes besides those of its metadata, which the byte at
#: `_METADATA_LENGTH_AT` counts, plus 1, up to 126.
_BYTES_WITH_TOPIC_ID: Final = 42
_METADATA_LENGTH_AT: Final = 14
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """A committed offset: the next offset to read, with its metadata.

    `leader_epoch` is that of the last record read, -1 if unknown. `expire_timestamp_ms` is only set by clients
    before 2.1. `topic_id` is None if the committer did not give it. Timestamps are in ms, -1 for none.
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


def group_key(key: Message) -> bytes:
    """The bytes of a record's key (`OffsetCommitKey`)."""
    return _INT16.pack(key.schema().api_key) + key.encode(0)


def offset_key(group: str, topic_partition: TopicPartition) -> bytes:
    return group_key(OffsetCommitKey(group=group, topic=topic_partition.topic, partition=topic_partition.partition))


def offset_value(committed: OffsetAndMetadata) -> bytes:
    """The value in the version that Kafka 4.1 writes: 1 if it has an expiry time, else 4. Raises InvalidRecordError."""
    if committed.expire_timestamp_ms != NO_EXPIRY:
        expiring = OffsetCommitValue(
            offset=committed.offset,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            expire_timestamp=committed.expire_timestamp_ms,
        )
        return _INT16.pack(_EXPIRING_VERSION) + expiring.encode(_EXPIRING_VERSION)
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        topic_id=committed.topic_id or ZERO_UUID,
    )
    return _INT16.pack(_VALUE_VERSION) + value.encode(_VALUE_VERSION)


def has_topic_id(value: bytes) -> bool:
    """Whether the value names the topic's id, told in a moment: false also if that takes decoding."""
    if len(value) < _BYTES_WITH_TOPIC_ID or value[:2] < _INT16.pack(_VALUE_VERSION):
        return False
    metadata_bytes = value[_METADATA_LENGTH_AT] - 1
    return metadata_bytes < 127 and len(value) >= _BYTES_WITH_TOPIC_ID + metadata_bytes


def is_offset(record_type: int) -> bool:
    """Whether keys of this type are those of committed offsets."""
    return record_type in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT)


def parse_offset_key(key: bytes) -> TopicPartition | None:
    """The partition of an offset record's key; None for a record of another type. Raises CorruptRecordError."""
    if not is_offset(_INT16.unpack_from(key)[0]):
        return None
    decoded = OffsetCommitKey.decode(0, key[_INT16.size :], file=OFFSETS_TOPIC)
    if decoded.partition < 0:
        raise CorruptRecordError(
            file=OFFSETS_TOPIC, position=0, expected="a partition of 0 or more", found=str(decoded.partition)
        )
    return TopicPartition(decoded.topic, decoded.partition)


def parse_offset_value(value: bytes) -> OffsetAndMetadata:
    """The committed offset in a value. Raises CorruptRecordError, UnsupportedFormatError for an unknown version."""
    decoded = parse_value(OffsetCommitValue, value)
    return OffsetAndMetadata(
        offset=decoded.offset,
        leader_epoch=decoded.leader_epoch,
        metadata=decoded.metadata,
        commit_timestamp_ms=decoded.commit_timestamp,
        expire_timestamp_ms=decoded.expire_timestamp,
        topic_id=None if decoded.topic_id == ZERO_UUID else decoded.topic_id,
    )


def parse_value(message: type[_M], value: bytes) -> _M:
    """The message in a value, in the version that its first two bytes state.

    Raises CorruptRecordError, UnsupportedFormatError for an unknown version.
    """
    if len(value) < _INT16.size:
        raise CorruptRecordError(
            file=OFFSETS_TOPIC, position=0, expected="a version of 2 bytes", found=f"{len(value)} bytes"
        )
    version = int(_INT16.unpack_from(value)[0])
    return message.decode(version, value[_INT16.size :], file=OFFSETS_TOPIC, file_position=_INT16.size)
