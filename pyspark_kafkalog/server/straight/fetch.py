"""The straight way of the usual Fetch: read at fixed places, answered by few structures around the records.

    request      version 12 or later, some topics, or none in a session, with some of their partitions each; no topics
                 are forgotten, no tagged fields
    response     partitions without aborted transactions and diverging epochs

The handler is the same for every request (`reads/fetch.py`). Any other request is parsed, and any other response is
encoded, in the general way (`protocol/api.py`); both ways read and write the same, as a property test shows.
"""

from __future__ import annotations

import struct
from typing import Final, cast

from pyspark_kafkalog.metadata.messages.schema import FrameReader, Piece
from pyspark_kafkalog.metadata.messages.struct_codec import decode_uuid, encode_uuid
from pyspark_kafkalog.protocol.api import APIS, FRAME_SIZE, ApiKey, ParsedRequest
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.records import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pyspark_kafkalog.record.reference import encode_unsigned_varint

_FETCH: Final = APIS[ApiKey.FETCH]
_VERSIONS: Final = range(12, 19)
_TOPIC_IDS_FROM: Final = 13
_REPLICA_STATE_FROM: Final = 15
#: API key, version, correlation id, length of the client id.
_HEAD: Final = struct.Struct(">hhih")
#: The time to wait, the least and the most bytes, the isolation level, session and epoch, the number of topics.
_BODY: Final = struct.Struct(">iiibiiB")
_REPLICA_ID: Final = struct.Struct(">i")
#: Number, current leader epoch, offset, last fetched epoch, log start, most bytes, no tagged fields.
_PARTITION: Final = struct.Struct(">iiqiqiB")
_UUID_BYTES: Final = 16
_LENGTH_MAX: Final = 0x7F
#: More are read in a thread (connections/dispatch.py).
_PARTITIONS_MAX: Final = 1000

#: Size, correlation id, no tagged fields of the header, throttle time, error code, session, the number of topics.
_ANSWER_HEAD: Final = struct.Struct(">iiBihiB")
#: Number, error code, high watermark, last stable offset, log start; no aborted transactions, or null; no replica.
_ANSWER: Final = struct.Struct(">ihqqqBi")
_UNKNOWN: Final = -1
_DEFAULTS: Final = PartitionData()


class ParsedFetch(ParsedRequest):
    """A usual Fetch, of which `fetch_of` has the message."""

    __slots__ = ()

    def encode_response(self, response: ApiMessage) -> list[Piece]:
        """As of ParsedRequest."""
        packed = packed_response(self.api_version, self.correlation_id, cast("FetchResponse", response))
        return super().encode_response(response) if packed is None else packed


def parse_usual_fetch(frame: bytearray) -> tuple[ParsedFetch, FetchRequest] | None:
    """The request in a frame, and its message; None if it is not of the usual form, or damaged."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
        at = _HEAD.size + max(length, 0)
        if api_key != ApiKey.FETCH or version not in _VERSIONS or frame[at]:
            return None
        at += 1
        replica_id = _UNKNOWN
        if version < _REPLICA_STATE_FROM:
            (replica_id,) = _REPLICA_ID.unpack_from(frame, at)
            at += _REPLICA_ID.size
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, topics_count = _BODY.unpack_from(frame, at)
        at += _BODY.size
        if not 0 < topics_count <= _LENGTH_MAX:
            return None
        topics, left = [], _PARTITIONS_MAX
        for _ in range(topics_count - 1):
            size = _UUID_BYTES if version >= _TOPIC_IDS_FROM else frame[at]
            count = frame[at + size]
            left -= count
            if not 0 < size <= _LENGTH_MAX or not 0 < count <= _LENGTH_MAX or left < 0:
                return None
            topic, begin = bytes(frame[at : at + size]), at + size + 1
            at = begin + (count - 1) * _PARTITION.size
            partitions = _partitions(frame[begin:at], count - 1)
            if partitions is None or frame[at]:
                return None
            at += 1
            if version >= _TOPIC_IDS_FROM:
                topics.append(FetchTopic(topic_id=encode_uuid(topic), partitions=partitions))
            else:
                topics.append(FetchTopic(topic=topic[1:].decode(), partitions=partitions))
        forgotten_count, rack_length = frame[at], frame[at + 1]
        end = at + 1 + max(rack_length, 1)
        if forgotten_count != 1 or not 0 < rack_length <= _LENGTH_MAX or frame[end] or len(frame) != end + 1:
            return None
        request = FetchRequest(
            replica_id=replica_id,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=session_id,
            session_epoch=epoch,
            topics=tuple(topics),
            rack_id=frame[at + 2 : end].decode(),
        )
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    client_id = frame[_HEAD.size : _HEAD.size + max(length, 0)].decode(errors="replace")
    return ParsedFetch(_FETCH, version, correlation_id, client_id, FrameReader(frame, file="<FETCH request>")), request


def _partitions(rows: bytearray, count: int) -> tuple[FetchPartition, ...] | None:
    """So many partitions; None if there are fewer bytes, or tagged fields. Raises struct.error."""
    found = []
    for number, leader_epoch, offset, last_epoch, log_start, max_bytes, tags in _PARTITION.iter_unpack(rows):
        if tags:
            return None
        found.append(
            FetchPartition(
                partition=number,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                log_start_offset=log_start,
                partition_max_bytes=max_bytes,
            )
        )
    return tuple(found) if len(found) == count else None


def packed_response(version: int, correlation_id: int, response: FetchResponse) -> list[Piece] | None:
    """The pieces of a response of the usual form; None for any other."""
    topics = response.responses
    if len(topics) >= _LENGTH_MAX or response.node_endpoints or response.unknown_tags:
        return None
    pieces: list[Piece] = []
    size_bytes = _ANSWER_HEAD.size - FRAME_SIZE.size
    waiting = b""
    for topic in topics:
        named = _topic_head(version, topic)
        if named is None:
            return None
        waiting += named
        for each in topic.partitions:
            head = _partition_head(each)
            if head is None:
                return None
            records = cast("Piece", each.records)
            length = records.size_bytes if hasattr(records, "size_bytes") else len(records)
            head = waiting + head + encode_unsigned_varint(length + 1)
            pieces += (head, records)
            size_bytes += len(head) + length
            waiting = b"\0"
        waiting += b"\0"
    waiting += b"\0"
    pieces.append(waiting)
    size = size_bytes + len(waiting)
    throttle_ms, error, session_id = response.throttle_time_ms, response.error_code, response.session_id
    start = _ANSWER_HEAD.pack(size, correlation_id, 0, throttle_ms, error, session_id, len(topics) + 1)
    pieces[0] = start + cast("bytes", pieces[0])
    return pieces


def _topic_head(version: int, topic: FetchableTopicResponse) -> bytes | None:
    """What comes before the partitions of a topic; None for an unusual one."""
    if len(topic.partitions) >= _LENGTH_MAX or topic.unknown_tags:
        return None
    count = bytes((len(topic.partitions) + 1,))
    if version >= _TOPIC_IDS_FROM:
        return decode_uuid(topic.topic_id) + count
    name = topic.topic.encode()
    return bytes((len(name) + 1,)) + name + count if len(name) < _LENGTH_MAX else None


def _partition_head(each: PartitionData) -> bytes | None:
    """What comes before the length of the records of a partition; None for an unusual one."""
    is_usual = (
        each.diverging_epoch is _DEFAULTS.diverging_epoch
        and each.current_leader is _DEFAULTS.current_leader
        and each.snapshot_id is _DEFAULTS.snapshot_id
        and not each.aborted_transactions
        and not each.unknown_tags
    )
    if not is_usual or each.records is None:
        return None
    return _ANSWER.pack(
        each.partition_index,
        each.error_code,
        each.high_watermark,
        each.last_stable_offset,
        each.log_start_offset,
        0 if each.aborted_transactions is None else 1,
        each.preferred_read_replica,
    )
