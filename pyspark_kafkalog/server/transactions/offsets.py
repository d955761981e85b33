"""TxnOffsetCommit: a group's offsets become a part of the producer's transaction.

The offsets are one transactional batch of the producer in the group's partition of `__consumer_offsets`, as Kafka's
group coordinator writes it, but with the topics' ids: so the offsets end with their topics. The marker that ends the
transaction decides about them like about all its records. From version 5 on the same unit adds that partition to the
transaction; before, AddOffsetsToTxn must have added it. From version 6 on topics are ids (KIP-1319): those that no
topic has are UNKNOWN_TOPIC_ID.

Whether the member may commit for its group is the group coordinator's to say (`TransactionalCommits`). That is looked
at once more inside of the commit: if the group has changed meanwhile, at any server, the coordinator is asked again. So
a member that was replaced never adds offsets after its successor has read them, however long this server stood still.

Source of the rules: kafka.server.KafkaApis.handleTxnOffsetCommitRequest, and commitTransactionalOffsets of
GroupCoordinatorService and OffsetMetadataManager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

from pyspark_kafkalog.groups.offset_records import (
    OFFSETS_TOPIC,
    offset_key,
    offset_value,
)
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.transactions.end_transaction import coordinator_append
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.event_loop import YieldBudget
from pyspark_kafkalog.server.groups.offsets import (
    AnyOffset,
    Permission,
    TransactionalCommits,
    checked_commit,
    committed_offset,
)
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch
from pyspark_kafkalog.server.transactions.producing import decided, may_write_as, offsets_partition
from pyspark_kafkalog.server.transactions.units import OutdatedDecisionError, joining_unit
from pyspark_kafkalog.storage.names import TopicPartition

_ADDS_PARTITION_FROM: Final = 5
_TOPIC_IDS_FROM: Final = 6
_KNOWS_ABORTABLE_FROM: Final = 4
#: What is committed of a partition, and the id of its topic.
OffsetOfTopic: TypeAlias = tuple[AnyOffset, str | None]

#: How often the group's coordinator is asked again because the group has changed meanwhile.
_TRIES_MAX: Final = 20


class TransactionalOffsetHandlers:
    """Answers TxnOffsetCommit."""

    def __init__(self, coordinator: TransactionCoordinator, groups: TransactionalCommits) -> None:
        self._coordinator = coordinator
        self._groups = groups

    async def commit(self, context: ServerContext, request: Request[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse:
        body = request.body
        error = self._check(context, request, body)
        if error is not ErrorCode.NONE:
            return await _response(body.topics, {}, error)
        has_ids = request.api_version >= _TOPIC_IDS_FROM
        checked = await checked_commit(context, request.session, body.topics, has_ids=has_ids)
        errors = checked.errors
        accepted = {
            topic_partition: (each, checked.topic_ids[topic_partition.topic])
            for topic_partition, each in checked.accepted.items()
        }
        if accepted:
            errors |= dict.fromkeys(accepted, await self._commit(context, request, body, accepted))
        return await _response(checked.topics, errors, ErrorCode.UNKNOWN_TOPIC_ID)

    async def _commit(
        self,
        context: ServerContext,
        request: AnyRequest,
        body: TxnOffsetCommitRequest,
        accepted: Mapping[TopicPartition, OffsetOfTopic],
    ) -> ErrorCode:
        for _ in range(_TRIES_MAX):
            permission = await self._groups.validate_transactional_commit(
                body.group_id,
                body.member_id,
                body.generation_id_or_member_epoch,
                body.group_instance_id,
                knows_epochs=request.api_version >= _TOPIC_IDS_FROM,
            )
            if permission.error is not ErrorCode.NONE:
                return permission.error
            with contextlib.suppress(OutdatedDecisionError):
                return await self._append(context, request, body, accepted, permission)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _check(self, context: ServerContext, request: AnyRequest, body: TxnOffsetCommitRequest) -> ErrorCode:
        """An error for all of the request."""
        if not may_write_as(context, request, body.transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not context.guard.allows(request.session, AclOperation.READ, ResourceType.GROUP, body.group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not body.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not body.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not context.coordinates(OFFSETS_TOPIC, offsets_partition(context, body.group_id).partition):
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    async def _append(
        self,
        context: ServerContext,
        request: AnyRequest,
        body: TxnOffsetCommitRequest,
        accepted: Mapping[TopicPartition, OffsetOfTopic],
        permission: Permission,
    ) -> ErrorCode:
        producer = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        now_ms = context.clock()
        encode = partial(offsets_batch, body.group_id, producer, accepted, now_ms=now_ms)
        data = await context.run(encode) if request.is_long else encode()
        unit = joining_unit(
            self._coordinator.logs,
            body.transactional_id,
            producer,
            coordinator_append(offsets_partition(context, body.group_id), data, None),
            adds_partition=request.api_version >= _ADDS_PARTITION_FROM,
            knows_abortable=request.api_version >= _KNOWS_ABORTABLE_FROM,
        )
        unit.holds_in = permission.holds_in
        decision = await decided(self._coordinator.commit(unit))
        return decision.error


def offsets_batch(
    group_id: str,
    producer: ProducerIdAndEpoch,
    offsets: Mapping[TopicPartition, OffsetOfTopic],
    *,
    now_ms: int,
) -> bytes:
    """The transactional batch with the records of a group's offsets; empty for a producer that cannot be.

    No transaction is of such a producer, so its batch is never appended.
    """
    if producer.producer_id < 0 or producer.producer_epoch < 0:
        return b""
    records = [
        Record(
            offset=at,
            timestamp_ms=now_ms,
            key=offset_key(group_id, topic_partition),
            value=offset_value(committed_offset(each, topic_id, now_ms=now_ms)),
        )
        for at, (topic_partition, (each, topic_id)) in enumerate(offsets.items())
    ]
    return encode_batch(
        records,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,  # in every such batch: sequences of coordinators are not checked
        is_transactional=True,
    )


async def _response(
    topics: Iterable[TxnOffsetCommitRequestTopic], errors: Mapping[TopicPartition, ErrorCode], otherwise: ErrorCode
) -> TxnOffsetCommitResponse:
    """The answer, with the error of each partition, or `otherwise`."""
    by_topic: dict[tuple[str, str], dict[int, ErrorCode]] = {}
    budget = YieldBudget()
    for topic in topics:
        of_topic = by_topic.setdefault((topic.name, topic.topic_id), {})
        for each in topic.partitions:
            of_topic[each.partition_index] = errors.get(TopicPartition(topic.name, each.partition_index), otherwise)
            await budget.step()
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=name,
                topic_id=topic_id,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(partition_index=number, error_code=error)
                    for number, error in of_topic.items()
                ),
            )
            for (name, topic_id), of_topic in by_topic.items()
        )
    )
