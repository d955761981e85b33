"""The records of `__consumer_offsets` that hold committed offsets, and the partition that holds a group's records.

    key     int16 record type (1; 0 of old brokers), group, topic, partition
    value   int16 version (4), offset, leader epoch, metadata, commit timestamp in ms, tagged: the topic's id

The last value of a key counts; a null value means that the offset was deleted or has expired. All other records of the
topic (members, epochs, assignments) have the group's name at the same place in the key.

Source of the rules: org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers and GroupCoordinatorService.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable
from typing import Final, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.internal_records import OffsetCommitKey, OffsetCommitValue
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.storage.names import OFFSETS_TOPIC as OFFSETS_TOPIC
from pyspark_kafkalog.storage.names import TopicPartition, encode_uuid
from pyspark_kafkalog.values import quick_dataclass

NO_LEADER_EPOCH: Final = -1
NO_EXPIRY: Final = -1

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1

#: How the keys of committed offsets begin.
OFFSET_TYPES: Final = frozenset(each.to_bytes(2, "big") for each in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT))

_INT16: Final = struct.Struct(">h")
_TYPE_AND_LENGTH: Final = struct.Struct(">hh")
_VALUE_VERSION: Final = 4
_EXPIRING_VERSION: Final = 1
#: A value of version 4 with a topic id has so many bytes besides those of its metadata, which the byte at
#: `_METADATA_LENGTH_AT` counts, plus 1, up to 126.
_BYTES_WITH_TOPIC_ID: Final = 42
_METADATA_LENGTH_AT: Final = 14
_BYTES_WITHOUT_TOPIC_ID: Final = 24
#: One tag, its number, its length, and the id.
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"
_TAGS_WITH_TOPIC_ID_BYTES: Final = 19
_VALUE_VERSION_BYTES: Final = _INT16.pack(_VALUE_VERSION)
_OFFSET_AND_EPOCH: Final = struct.Struct(">qi")
#: Version, offset, leader epoch, and the length of the metadata, which is one more, in one byte.
_VALUE_START: Final = struct.Struct(">hqiB")
_INT64: Final = struct.Struct(">q")
#: So much metadata has its length in one byte.
METADATA_BYTES_MAX: Final = 126
_NUMBER: Final = struct.Struct(">i")
_NUMBER_BYTES: Final = 4
#: Partitions and topic ids that are kept: those of all groups are the same few.
_KNOWN_MAX: Final = 1 << 16
_M = TypeVar("_M", bound=Message)


@quick_dataclass(frozen=True, slots=True, kw_only=True)
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


def usual_keys(group: str, topic: str) -> Callable[[int], bytes]:
    """The keys of a group's offsets of a topic, by partition: as `offset_key`. Raises InvalidRecordError."""
    start = group_key(OffsetCommitKey(group=group, topic=topic))[:-_NUMBER_BYTES]
    return lambda partition: start + _NUMBER.pack(partition)


def usual_values(topic_id: bytes, now_ms: int) -> Callable[[int, int, bytes], bytes]:
    """The values of offsets of a topic, by offset, leader epoch and metadata: as `offset_value`, without the codec.

    The metadata are UTF-8 of at most `METADATA_BYTES_MAX` bytes.
    """
    end = _INT64.pack(now_ms) + _TOPIC_ID_TAG + topic_id
    start = _VALUE_START.pack
    return lambda offset, leader_epoch, metadata: (
        start(_VALUE_VERSION, offset, leader_epoch, len(metadata) + 1) + metadata + end
    )


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
    """Whether the value names the topic's id, without decoding: false also if that would be needed."""
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
    group_end = _TYPE_AND_LENGTH.size + int.from_bytes(key[2:4], "big", signed=True)
    with contextlib.suppress(UnicodeDecodeError, ValueError):
        key[_TYPE_AND_LENGTH.size : group_end].decode()
        return _partition_of(key[group_end:])
    decoded = OffsetCommitKey.decode(0, key[_INT16.size :], file=OFFSETS_TOPIC)
    if decoded.partition < 0:
        raise CorruptRecordError(
            file=OFFSETS_TOPIC, position=0, expected="a partition of 0 or more", found=str(decoded.partition)
        )
    return TopicPartition(decoded.topic, decoded.partition)


@functools.lru_cache(maxsize=_KNOWN_MAX)
def _partition_of(topic_and_number: bytes) -> TopicPartition:
    """The partition in the end of a key, which is the same for all groups. Raises ValueError for any other end."""
    topic_end = _INT16.size + int.from_bytes(topic_and_number[: _INT16.size], "big", signed=True)
    number = int.from_bytes(topic_and_number[topic_end:], "big", signed=True)
    if topic_end < _INT16.size or len(topic_and_number) != topic_end + _NUMBER_BYTES or number < 0:
        raise ValueError
    return TopicPartition(topic_and_number[_INT16.size : topic_end].decode(), number)


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """The parts of an offset's key: that of the group, and that of the partition."""
    group_end = _TYPE_AND_LENGTH.size + int.from_bytes(key[2:4], "big", signed=True)
    return key[:group_end], key[group_end:]


def offset_of_topic(value: bytes, topic_id: bytes) -> int | None:
    """The offset in a value that names the topic with that id; None if it names another, or only decoding can tell."""
    if value[:2] != _VALUE_VERSION_BYTES or not has_topic_id(value) or not value.endswith(_TOPIC_ID_TAG + topic_id):
        return None
    metadata_bytes = value[_METADATA_LENGTH_AT] - 1
    if metadata_bytes < 0 or len(value) != _BYTES_WITH_TOPIC_ID + metadata_bytes:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        value[_METADATA_LENGTH_AT + 1 : _METADATA_LENGTH_AT + 1 + metadata_bytes].decode()
        return int.from_bytes(value[2:10], "big", signed=True)
    return None


@functools.lru_cache(maxsize=_KNOWN_MAX)
def _topic_id_of(raw: bytes) -> str | None:
    return encode_uuid(raw) if any(raw) else None


def _usual_value(value: bytes) -> OffsetAndMetadata | None:
    """What a value of version 4 with short metadata says, as all are that Kafka 4.1 and this package write; else None.

    The codec takes ten times as long, and a group may have a million of them.
    """
    if len(value) < _BYTES_WITHOUT_TOPIC_ID or value[:2] != _VALUE_VERSION_BYTES:
        return None
    metadata_end = _METADATA_LENGTH_AT + value[_METADATA_LENGTH_AT]
    tags_at = metadata_end + 8
    tags = value[tags_at:]
    if not _METADATA_LENGTH_AT < metadata_end < _METADATA_LENGTH_AT + 127:
        return None
    if len(tags) == _TAGS_WITH_TOPIC_ID_BYTES and tags[:3] == _TOPIC_ID_TAG:
        topic_id = _topic_id_of(tags[3:])
    elif tags == b"\0":
        topic_id = None
    else:
        return None
    try:
        metadata = value[_METADATA_LENGTH_AT + 1 : metadata_end].decode()
    except UnicodeDecodeError:
        return None
    offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(value, 2)
    return OffsetAndMetadata(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=int.from_bytes(value[tags_at - 8 : tags_at], "big", signed=True),
        topic_id=topic_id,
    )


def parse_offset_value(value: bytes) -> OffsetAndMetadata:
    """The committed offset in a value. Raises CorruptRecordError, UnsupportedFormatError for an unknown version."""
    usual = _usual_value(value)
    if usual is not None:
        return usual
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
