"""DeleteRecords: raises the log start offsets of all partitions of a request in one commit."""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.maintenance.retention.delete_records import move_to
from pyspark_kafkalog.metadata.access.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from pyspark_kafkalog.root.commit.log_starts import MovedLogStart
from pyspark_kafkalog.server.context import Request, ServerContext, why_read_only
from pyspark_kafkalog.server.event_loop import Turn, in_turns
from pyspark_kafkalog.server.request_errors import ApiError, RequestError
from pyspark_kafkalog.storage.names import TopicPartition

_NO_LOW_WATERMARK: Final = -1


async def handle_delete_records(
    context: ServerContext, request: Request[DeleteRecordsRequest]
) -> DeleteRecordsResponse:
    body = request.body
    results: dict[TopicPartition, MovedLogStart] = {}
    offsets: dict[TopicPartition, int] = {}
    read_only = why_read_only(context)
    turn = Turn()
    for topic in body.topics:
        may_delete = context.guard.allows(request.session, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
        denied = None if may_delete else RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for partition in topic.partitions:
            await turn.step()
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            error = denied or read_only
            if error is None:
                offsets[topic_partition] = partition.offset
            else:
                results[topic_partition] = MovedLogStart(topic_partition=topic_partition, error=error)
    native = context.native
    if native is not None and offsets:
        results |= await context.run(lambda: move_to(native, offsets))
        context.waiters.notify(frozenset(offsets))
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    async for topic_partition, each in in_turns(results.items()):
        topics.setdefault(topic_partition.topic, []).append(_result(each))
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
        )
    )


def _result(moved: MovedLogStart) -> DeleteRecordsPartitionResult:
    state = moved.after
    return DeleteRecordsPartitionResult(
        partition_index=moved.topic_partition.partition,
        low_watermark=_NO_LOW_WATERMARK if state is None else state.log_start_offset,
        error_code=ApiError.of(moved.error).code,
    )
