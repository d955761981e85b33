"""ListOffsets and OffsetForLeaderEpoch: offsets at a time, and where leader epochs end.

ListOffsets takes a time, or one of the special times:

    -1  latest          the end for the isolation level: high watermark or last stable offset
    -2  earliest        the log start; of a broker's directory whose remote storage is not known, the first local offset
    -3  max timestamp   the first record with the largest timestamp, from version 7
    -4  earliest local  the first offset that is not in remote storage only, from version 8
    -5  latest tiered   the last offset in remote storage, from version 9
    -6  earliest that waits for its copy   the first offset that is not in remote storage yet, from version 11
    >=0                 the first record with this timestamp or a later one

Records at or above the end for the isolation level are not found. Other times are UNSUPPORTED_VERSION. A lookup that
reaches a compressed record of more than max.decompressed.message.bytes is INVALID_RECORD.

A root with commits is refreshed first. A client that has written at another server, or has seen an end there, never
gets a smaller one here: it would take a smaller end for a log that was truncated, and go back. Another server may have
committed a millisecond ago, so no request is answered that something does not exist before the root was refreshed.

Source of the rules: ReplicaManager.fetchOffset, Partition.fetchOffsetForTimestamp, UnifiedLog.fetchOffsetByTimestamp,
KafkaApis.handleOffsetForLeaderEpochRequest, Partition.lastOffsetForLeaderEpoch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.root.reads import UNDEFINED_EPOCH, RootPartitions, end_of_epoch, epoch_at, epochs_of
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server.context import Request, ServerContext, Session
from pyspark_kafkalog.server.request_errors import error_code_of
from pyspark_kafkalog.storage.log.reader import LogReader, TimestampAndOffset

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


async def run_with(partitions: RootPartitions, context: ServerContext, work: Callable[[], _T]) -> _T:
    """The result of `work` with snapshots of the root, in a thread if they have to be read from files."""
    return await context.run(work) if partitions.reads_files else work()


def may(context: ServerContext, session: Session, operation: AclOperation, topic: str) -> bool:
    """Whether the client may do this with the topic."""
    return context.guard.allows(session, operation, ResourceType.TOPIC, topic)


def may_act_for_cluster(context: ServerContext, session: Session) -> bool:
    """Whether the client may act as a broker: fetch as a follower does."""
    return context.guard.allows(session, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)


def epoch_error(found: PartitionSnapshot, current_leader_epoch: int) -> ErrorCode | None:
    """What is wrong with a client's current leader epoch, -1 if it does not say (Partition.checkCurrentLeaderEpoch)."""
    if current_leader_epoch in (-1, found.leader_epoch):
        return None
    is_older = current_leader_epoch < found.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH


def error_code(error: Exception, snapshot: object) -> ErrorCode:
    """The code for an error of reading the partition `of`. It is logged unless it concerns the client alone."""
    if not isinstance(error, (KafkalogError, OSError)):
        raise error
    # As a broker does: the client stops at a damaged batch, which asking again does not mend.
    code = ErrorCode.CORRUPT_MESSAGE if isinstance(error, CorruptRecordError) else error_code_of(error)
    if not isinstance(error, (OffsetOutOfRangeError, UnknownTopicError)):
        _LOG.error("%s: %s", snapshot, error)
    return code


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
            snapshot = self._partitions.find(topic, wanted.partition_index)
            if snapshot is None:
                return _failed(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            error = epoch_error(snapshot, wanted.current_leader_epoch)
            if error is not None:
                return _failed(wanted, error)
            end_offset = snapshot.last_stable_offset if is_committed else snapshot.high_watermark
            found = _offset_at(context, snapshot, wanted.timestamp, end_offset)
        except Exception as raised:
            return _failed(wanted, error_code(raised, f"{topic}-{wanted.partition_index}"))
        return ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index,
            timestamp=found.timestamp_ms,
            offset=found.offset,
            leader_epoch=found.leader_epoch if version >= _EPOCHS_FROM_VERSION else UNDEFINED_EPOCH,
        )


def _offset_at(
    context: ServerContext, snapshot: PartitionSnapshot, timestamp_ms: int, end_offset: int
) -> TimestampAndOffset:
    special: dict[int, Callable[[], TimestampAndOffset | None]] = {
        LATEST: lambda: TimestampAndOffset(_UNKNOWN, end_offset, snapshot.leader_epoch),
        EARLIEST: lambda: _with_epoch(context, snapshot, snapshot.readable_start_offset),
        MAX_TIMESTAMP: lambda: _reader(context, snapshot).offset_of_max_timestamp(
            snapshot.readable_start_offset, end_offset
        ),
        EARLIEST_LOCAL: lambda: _with_epoch(context, snapshot, snapshot.local_log_start_offset),
        LATEST_TIERED: lambda: _with_epoch(context, snapshot, snapshot.latest_tiered_offset),
        EARLIEST_PENDING_UPLOAD: lambda: _with_epoch(context, snapshot, snapshot.earliest_pending_upload_offset),
    }
    if timestamp_ms in special:
        found = special[timestamp_ms]()
    else:
        found = _reader(context, snapshot).offset_for_timestamp(
            timestamp_ms, snapshot.readable_start_offset, end_offset
        )
    return _NOT_FOUND if found is None else found


def _reader(context: ServerContext, snapshot: PartitionSnapshot) -> LogReader:
    native = native_or_none(context.root)
    if native is None:
        return LogReader(snapshot.extents(), snapshot.topic_partition)
    record_max_bytes = native.log_config(snapshot.topic).max_decompressed_message_bytes
    return LogReader(snapshot.extents(), snapshot.topic_partition, record_max_bytes=record_max_bytes)


def _with_epoch(context: ServerContext, snapshot: PartitionSnapshot, offset: int) -> TimestampAndOffset:
    """An offset that is no record's, with the leader epoch in which it was, or will be, written."""
    epoch = UNDEFINED_EPOCH if offset < 0 else epoch_at(epochs_of(context.root, snapshot), offset)
    return TimestampAndOffset(_UNKNOWN, offset, epoch)


def _failed(wanted: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error)


class EpochEnds:
    """Answers OffsetForLeaderEpoch."""

    def __init__(self, partitions: RootPartitions) -> None:
        self._partitions = partitions

    async def handle(self, context: ServerContext, request: Request[OffsetForLeaderEpochRequest]) -> Message:
        """Versions 2 to 4. Who may act for the cluster, as replicas do, needs no rights on the topics."""
        body = request.body
        allowed = {
            topic.topic: may(context, request.session, AclOperation.DESCRIBE, topic.topic)
            or may_act_for_cluster(context, request.session)
            for topic in body.topics
        }
        wanted = [(topic.topic, each) for topic in body.topics if allowed[topic.topic] for each in topic.partitions]

        def all_answers() -> list[OffsetForLeaderEpochResponseEpochEndOffset]:
            self._partitions.follow()
            return [self._answer(context, topic, each) for topic, each in wanted]

        answers = await context.run(all_answers)
        if any(each.error_code in _EPOCH_PERHAPS_STALE for each in answers):
            await context.run(self._partitions.refresh)
            answers = await context.run(all_answers)
        remaining = iter(answers)
        return OffsetForLeaderEpochResponse(
            topics=tuple(
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=tuple(
                        next(remaining)
                        if allowed[topic.topic]
                        else _no_end(each.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                        for each in topic.partitions
                    ),
                )
                for topic in body.topics
            )
        )

    def _answer(
        self, context: ServerContext, topic: str, wanted: OffsetForLeaderPartition
    ) -> OffsetForLeaderEpochResponseEpochEndOffset:
        try:
            found = self._partitions.find(topic, wanted.partition)
            if found is None:
                return _no_end(wanted.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            error = epoch_error(found, wanted.current_leader_epoch)
            if error is not None:
                return _no_end(wanted.partition, error)
            end = end_of_epoch(epochs_of(context.root, found), wanted.leader_epoch, found.log_end_offset)
        except Exception as raised:
            return _no_end(wanted.partition, error_code(raised, f"{topic}-{wanted.partition}"))
        return OffsetForLeaderEpochResponseEpochEndOffset(
            partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.start_offset
        )


#: What may only be true of the root as of the last refresh.
_EPOCH_PERHAPS_STALE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_LEADER_EPOCH})


def _no_end(partition: int, error: ErrorCode) -> OffsetForLeaderEpochResponseEpochEndOffset:
    return OffsetForLeaderEpochResponseEpochEndOffset(error_code=error, partition=partition)
