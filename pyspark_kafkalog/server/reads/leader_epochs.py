"""OffsetForLeaderEpoch: where the leader epochs of partitions end.

A root with commits is refreshed first. A client asks when another server leads the partition, with what it has read at
the one before: it would take a smaller end for a log that was truncated, and go back.

Source of the rules: KafkaApis.handleOffsetForLeaderEpochRequest, Partition.lastOffsetForLeaderEpoch.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.metadata.access.acl import AclOperation
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from pyspark_kafkalog.root.leader_epochs import end_of_epoch, epochs_of
from pyspark_kafkalog.root.reads import RootPartitions
from pyspark_kafkalog.server.context import Request, ServerContext
from pyspark_kafkalog.server.reads.partitions import epoch_error, error_code, may, may_act_for_cluster


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
        if any(each.error_code in _PERHAPS_STALE for each in answers):
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
                        else _failed(each.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
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
                return _failed(wanted.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            error = epoch_error(found, wanted.current_leader_epoch)
            if error is not None:
                return _failed(wanted.partition, error)
            end = end_of_epoch(epochs_of(context.root, found), wanted.leader_epoch, found.log_end_offset)
        except Exception as raised:
            return _failed(wanted.partition, error_code(raised, f"{topic}-{wanted.partition}"))
        return OffsetForLeaderEpochResponseEpochEndOffset(
            partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.start_offset
        )


#: What may only be true of the root as of the last refresh.
_PERHAPS_STALE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_LEADER_EPOCH})


def _failed(partition: int, error: ErrorCode) -> OffsetForLeaderEpochResponseEpochEndOffset:
    return OffsetForLeaderEpochResponseEpochEndOffset(error_code=error, partition=partition)
