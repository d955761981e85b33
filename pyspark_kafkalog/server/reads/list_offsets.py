"""ListOffsets: the offset of a partition at a time, or at one of the special times.

    -1  latest          the end for the isolation level: high watermark or last stable offset
    -2  earliest        the log start; of a broker's directory whose remote storage is not known, the first local offset
    -3  max timestamp   the first record with the largest timestamp, from version 7
    -4  earliest local  the first offset that is not in remote storage only, from version 8
    -5  latest tiered   the last offset in remote storage, from version 9
    -6  earliest that waits for its copy   the first offset that is not in remote storage yet, from version 11
    >=0                 the first record with this timestamp or a later one

Records at or above the end for the isolation level are not found. Other times are UNSUPPORTED_VERSION. A lookup that
reaches a compressed record of more than max.decompressed.message.bytes is INVALID_RECORD.

A root with commits is refreshed first: a client that has written at another server, or has seen an end there, never
gets a smaller one here.

Source of the rules: ReplicaManager.fetchOffset, Partition.fetchOffsetForTimestamp, UnifiedLog.fetchOffsetByTimestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from pyspark_kafkalog.metadata.access.acl import AclOperation
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pyspark_kafkalog.root.leader_epochs import UNDEFINED_EPOCH, epoch_at, epochs_of
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.root.reads import RootPartitions
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server.context import Request, ServerContext
from pyspark_kafkalog.server.reads.partitions import epoch_error, error_code, may
from pyspark_kafkalog.storage.log.reader import LogReader, TimestampAndOffset

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_FROM_VERSION: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_EPOCHS_FROM_VERSION: Final = 4
_READ_COMMITTED: Final = 1
_UNKNOWN: Final = -1
_NOT_FOUND: Final = TimestampAndOffset(_UNKNOWN, _UNKNOWN, UNDEFINED_EPOCH)
_PERHAPS_STALE: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_OUT_OF_RANGE}
)


def _once(partitions: Iterable[ListOffsetsPartition]) -> Iterable[ListOffsetsPartition]:
    """Each partition at its first place: one that is named twice gets one answer, an error."""
    found: dict[int, ListOffsetsPartition] = {}
    for each in partitions:
        found.setdefault(each.partition_index, each)
    return found.values()


class OffsetLists:
    """Answers ListOffsets."""

    def __init__(self, partitions: RootPartitions) -> None:
        self._partitions = partitions

    async def handle(self, context: ServerContext, request: Request[ListOffsetsRequest]) -> Message:
        """Versions 1 to 11."""
        body = request.body
        names = Counter((topic.name, each.partition_index) for topic in body.topics for each in topic.partitions)
        allowed = {
            topic.name: may(context, request.session, AclOperation.DESCRIBE, topic.name) for topic in body.topics
        }
        is_committed = body.isolation_level == _READ_COMMITTED

        def answer(topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
            if not allowed[topic]:
                return _failed(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if names[topic, wanted.partition_index] > 1:
                return _failed(wanted, ErrorCode.INVALID_REQUEST)
            return self._answer(context, topic, wanted, request.api_version, is_committed=is_committed)

        def answers() -> tuple[ListOffsetsTopicResponse, ...]:
            self._partitions.follow()
            return tuple(
                ListOffsetsTopicResponse(
                    name=topic.name, partitions=tuple(answer(topic.name, each) for each in _once(topic.partitions))
                )
                for topic in body.topics
            )

        topics = await context.run(answers)
        if any(each.error_code in _PERHAPS_STALE for topic in topics for each in topic.partitions):
            await context.run(self._partitions.refresh)
            topics = await context.run(answers)
        return ListOffsetsResponse(topics=topics)

    def _answer(
        self, context: ServerContext, topic: str, wanted: ListOffsetsPartition, version: int, *, is_committed: bool
    ) -> ListOffsetsPartitionResponse:
        if wanted.timestamp < 0 and version < _FROM_VERSION.get(wanted.timestamp, version + 1):
            return _failed(wanted, ErrorCode.UNSUPPORTED_VERSION)
        try:
            of = self._partitions.find(topic, wanted.partition_index)
            if of is None:
                return _failed(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            error = epoch_error(of, wanted.current_leader_epoch)
            if error is not None:
                return _failed(wanted, error)
            end_offset = of.last_stable_offset if is_committed else of.high_watermark
            found = _offset_at(context, of, wanted.timestamp, end_offset)
        except Exception as raised:
            return _failed(wanted, error_code(raised, f"{topic}-{wanted.partition_index}"))
        return ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index,
            timestamp=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=found.leader_epoch if version >= _EPOCHS_FROM_VERSION else UNDEFINED_EPOCH,
        )


def _offset_at(context: ServerContext, of: PartitionSnapshot, timestamp_ms: int, end_offset: int) -> TimestampAndOffset:
    special: dict[int, Callable[[], TimestampAndOffset | None]] = {
        LATEST: lambda: TimestampAndOffset(_UNKNOWN, end_offset, of.leader_epoch),
        EARLIEST: lambda: _with_epoch(context, of, of.readable_start_offset),
        MAX_TIMESTAMP: lambda: _reader(context, of).offset_of_max_timestamp(of.readable_start_offset, end_offset),
        EARLIEST_LOCAL: lambda: _with_epoch(context, of, of.local_log_start_offset),
        LATEST_TIERED: lambda: _with_epoch(context, of, of.latest_tiered_offset),
        EARLIEST_PENDING_UPLOAD: lambda: _with_epoch(context, of, of.earliest_pending_upload_offset),
    }
    if timestamp_ms in special:
        found = special[timestamp_ms]()
    else:
        found = _reader(context, of).offset_for_timestamp(timestamp_ms, of.readable_start_offset, end_offset)
    return _NOT_FOUND if found is None else found


def _reader(context: ServerContext, of: PartitionSnapshot) -> LogReader:
    native = native_or_none(context.root)
    if native is None:
        return LogReader(of.extents(), of.topic_partition)
    record_max_bytes = native.log_config(of.topic).max_decompressed_message_bytes
    return LogReader(of.extents(), of.topic_partition, record_max_bytes=record_max_bytes)


def _with_epoch(context: ServerContext, of: PartitionSnapshot, offset: int) -> TimestampAndOffset:
    """An offset that is no record's, with the leader epoch in which it was, or will be, written."""
    epoch = UNDEFINED_EPOCH if offset < 0 else epoch_at(epochs_of(context.root, of), offset)
    return TimestampAndOffset(_UNKNOWN, offset, epoch)


def _failed(wanted: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error)
