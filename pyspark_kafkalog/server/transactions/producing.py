"""The requests of transactional and idempotent producers: their ids, what joins their transactions, and EndTxn.

Clients of transaction version 2 send InitProducerId and EndTxn only: partitions and groups join with the batches.
EndTxn from version 5 on raises the epoch and answers with it.

Producers of old versions do not know PRODUCER_FENCED and get INVALID_PRODUCER_EPOCH. What a commit that failed, or
may have failed, makes of a request is COORDINATOR_NOT_AVAILABLE: the producer asks again, and each request may be
repeated.

*TxnOffsetCommit.* A group's offsets become a part of the producer's transaction. They are one transactional batch of
the producer in the group's partition of `__consumer_offsets`, as Kafka's group coordinator writes it, but with the
topics' ids: so the offsets end with their topics. The marker that ends the transaction decides about them like about
all its records. From version 5 on the same unit adds that partition to the transaction; before, AddOffsetsToTxn must
have added it. From version 6 on topics are ids (KIP-1319): those that no topic has are UNKNOWN_TOPIC_ID.

The group coordinator decides whether the member may commit for its group (`TransactionalCommits`). That is looked at
once more inside of the commit: if the group has changed meanwhile, at any server, the coordinator is asked again. So a
member that was replaced never adds offsets after its successor has read them, however long this server stood still.

Source of the rules: kafka.server.KafkaApis, the methods handle...Request of these requests, and
commitTransactionalOffsets of GroupCoordinatorService and OffsetMetadataManager.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, ReadOnlyLogDirError
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, offset_key, offset_value
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.object_store.store import ObjectStoreError
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.transactions.end_transaction import coordinator_append
from pyspark_kafkalog.root.transactions.metadata import TV0, TV2
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.event_loop import YieldBudget, gather_in_turns, in_turns
from pyspark_kafkalog.server.groups.offsets import (
    AnyOffset,
    Permission,
    TransactionalCommits,
    checked_commit,
    committed_offset,
)
from pyspark_kafkalog.server.metadata import know_partitions, partition_of_group
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.decisions import (
    Decision,
    ProducerIdAndEpoch,
    add_partitions,
    end_transaction,
    init_producer_id,
    verify_partitions,
)
from pyspark_kafkalog.server.transactions.units import OutdatedDecisionError, joining_unit
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition

_LOG: Final = logging.getLogger(__name__)
_INIT_KNOWS_FENCED_FROM: Final = 4
_KNOWS_FENCED_FROM: Final = 2
_END_V2_FROM: Final = 5
_BATCHED_FROM: Final = 4


async def decided(transaction: Awaitable[Decision]) -> Decision:
    """The decision, also if it was refused, or could not be committed."""
    try:
        return await transaction
    except RequestError as refused:
        return Decision(error=refused.code)
    except ReadOnlyLogDirError:  # the root has begun to follow another one
        return Decision(error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    except (CommitConflictError, CommitStateUnknownError, ObjectStoreError, OSError) as error:
        _LOG.warning("a transaction's commit failed: %s", error)
        return Decision(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)


def told(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """The error as an old client knows it."""
    if error is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


class ProducerHandlers:
    """Answers the requests of producers."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    # InitProducerId

    async def init_producer_id(
        self, context: ServerContext, request: Request[InitProducerIdRequest]
    ) -> InitProducerIdResponse:
        body = request.body
        error = self._check_init(context, request, body)
        if error is not ErrorCode.NONE:
            return _init_refused(error)
        if body.transactional_id is None:
            try:
                return InitProducerIdResponse(producer_id=await self._coordinator.producer_ids.take(), producer_epoch=0)
            except ReadOnlyLogDirError:
                return _init_refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        decision = await decided(self._init(body.transactional_id, body))
        if decision.error is not ErrorCode.NONE or decision.after is None:
            return _init_refused(told(decision.error, knows_fenced=request.api_version >= _INIT_KNOWS_FENCED_FROM))
        return InitProducerIdResponse(
            producer_id=decision.after.producer_id, producer_epoch=decision.after.producer_epoch
        )

    def _check_init(self, context: ServerContext, request: AnyRequest, body: InitProducerIdRequest) -> ErrorCode:
        name = body.transactional_id
        has_id, has_epoch = body.producer_id != NO_PRODUCER_ID, body.producer_epoch != NO_PRODUCER_EPOCH
        if name is None:
            if not may_write_idempotently(context, request):
                return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return ErrorCode.NONE if has_id is has_epoch else ErrorCode.INVALID_REQUEST
        if not may_write_as(context, request, name):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not name or has_id is not has_epoch:
            return ErrorCode.INVALID_REQUEST
        if not 0 < body.transaction_timeout_ms <= context.broker_config().transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE if self._coordinator.is_coordinator(name) else ErrorCode.NOT_COORDINATOR

    async def _init(self, name: str, body: InitProducerIdRequest) -> Decision:
        expected = None
        if body.producer_id != NO_PRODUCER_ID:
            expected = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        await self._coordinator.ensure_topic()
        return await self._coordinator.transact_with_id(
            name,
            lambda found, new_id, now_ms: init_producer_id(
                found,
                transactional_id=name,
                timeout_ms=body.transaction_timeout_ms,
                expected=expected,
                new_producer_id=new_id,
                now_ms=now_ms,
            ),
        )

    # AddPartitionsToTxn

    async def add_partitions(
        self, context: ServerContext, request: Request[AddPartitionsToTxnRequest]
    ) -> AddPartitionsToTxnResponse:
        body = request.body
        if request.api_version < _BATCHED_FROM:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=body.v3_and_below_transactional_id,
                producer_id=body.v3_and_below_producer_id,
                producer_epoch=body.v3_and_below_producer_epoch,
                topics=body.v3_and_below_topics,
            )
            result = await self._add(context, request, transaction)
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)
        if not context.guard.allows(request.session, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        results = await gather_in_turns(self._add(context, request, each) for each in body.transactions)
        return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))

    async def _add(
        self, context: ServerContext, request: AnyRequest, transaction: AddPartitionsToTxnTransaction
    ) -> AddPartitionsToTxnResult:
        """One transaction: all its partitions are added, or none."""
        name = transaction.transactional_id
        partitions = [TopicPartition(topic.name, each) for topic in transaction.topics for each in topic.partitions]
        is_client = request.api_version < _BATCHED_FROM
        if is_client and not may_write_as(context, request, name):
            errors = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return await _add_result(name, errors)
        errors = await _partition_errors(context, request, partitions, is_client)
        if errors:
            return await _add_result(name, {**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **errors})
        producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
        if not name:
            return await _add_result(name, dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST))
        if not self._coordinator.is_coordinator(name):
            return await _add_result(name, dict.fromkeys(partitions, ErrorCode.NOT_COORDINATOR))
        if transaction.verify_only:
            return await _add_result(name, verify_partitions(await self._coordinator.find(name), producer, partitions))
        version = TV0 if is_client else TV2
        error = await self._join(name, producer, partitions, version)
        return await _add_result(
            name, dict.fromkeys(partitions, told(error, knows_fenced=request.api_version >= _KNOWS_FENCED_FROM))
        )

    async def _join(
        self, name: str, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition], client_version: int
    ) -> ErrorCode:
        decision = await decided(
            self._coordinator.transact(
                name,
                lambda found, now_ms: add_partitions(
                    found, producer, partitions, client_version=client_version, now_ms=now_ms
                ),
                is_joining=True,
            )
        )
        return decision.error

    # AddOffsetsToTxn

    async def add_offsets(
        self, context: ServerContext, request: Request[AddOffsetsToTxnRequest]
    ) -> AddOffsetsToTxnResponse:
        body = request.body
        error = await self._add_group(context, request, body)
        return AddOffsetsToTxnResponse(error_code=told(error, knows_fenced=request.api_version >= _KNOWS_FENCED_FROM))

    async def _add_group(self, context: ServerContext, request: AnyRequest, body: AddOffsetsToTxnRequest) -> ErrorCode:
        name = body.transactional_id
        if not may_write_as(context, request, name):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not context.guard.allows(request.session, AclOperation.READ, ResourceType.GROUP, body.group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not name:
            return ErrorCode.INVALID_REQUEST
        if not self._coordinator.is_coordinator(name):
            return ErrorCode.NOT_COORDINATOR
        partition = offsets_partition(context, body.group_id)
        producer = ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
        return await self._join(name, producer, (partition,), TV0)

    # EndTxn

    async def end(self, context: ServerContext, request: Request[EndTxnRequest]) -> EndTxnResponse:
        body = request.body
        name = body.transactional_id
        if not may_write_as(context, request, name):
            return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if not name:
            return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
        if not self._coordinator.is_coordinator(name):
            return EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR)
        is_v2 = request.api_version >= _END_V2_FROM
        decision = await decided(
            self._coordinator.transact_with_id(
                name,
                lambda found, new_id, now_ms: end_transaction(
                    found,
                    ProducerIdAndEpoch(body.producer_id, body.producer_epoch),
                    is_commit=body.committed,
                    client_version=TV2 if is_v2 else TV0,
                    new_producer_id=new_id,
                    now_ms=now_ms,
                ),
            )
        )
        if decision.error is not ErrorCode.NONE or decision.after is None or not is_v2:
            return EndTxnResponse(
                error_code=told(decision.error, knows_fenced=request.api_version >= _KNOWS_FENCED_FROM)
            )
        return EndTxnResponse(producer_id=decision.after.producer_id, producer_epoch=decision.after.producer_epoch)


def may_write_as(context: ServerContext, request: AnyRequest, transactional_id: str) -> bool:
    """Whether the client may write with the transactional id: never, where a server only reads.

    All clients take it as final if they may not; after other errors some ask again for ever.
    """
    return context.native is not None and context.guard.allows(
        request.session, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def may_write_idempotently(context: ServerContext, request: AnyRequest) -> bool:
    """Whether the client may write to some topic."""
    guard, session = context.guard, request.session
    if context.native is None:
        return False
    return guard.allows(
        session, AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=False
    ) or guard.allows_any(session, AclOperation.WRITE, ResourceType.TOPIC)


def offsets_partition(context: ServerContext, group_id: str) -> TopicPartition:
    """The partition of `__consumer_offsets` that holds the group, or would if the topic existed."""
    return TopicPartition(OFFSETS_TOPIC, partition_of_group(context, group_id))


def _init_refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


async def _partition_errors(
    context: ServerContext, request: AnyRequest, partitions: Sequence[TopicPartition], is_client: bool
) -> dict[TopicPartition, ErrorCode]:
    """The partitions that cannot be added."""
    errors = {}
    await know_partitions(context, partitions)
    image = context.image()
    async for each in in_turns(partitions):
        # Kafka counts internal topics among those that a client may not write: their markers are the coordinators'.
        if is_client and (
            each.topic in INTERNAL_TOPICS
            or not context.guard.allows(request.session, AclOperation.WRITE, ResourceType.TOPIC, each.topic)
        ):
            errors[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif image.find(each.topic, each.partition) is None:
            errors[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return errors


async def _add_result(name: str, errors: Mapping[TopicPartition, ErrorCode]) -> AddPartitionsToTxnResult:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    async for each, error in in_turns(errors.items()):
        by_topic.setdefault(each.topic, []).append(
            AddPartitionsToTxnPartitionResult(partition_index=each.partition, partition_error_code=error)
        )
    return AddPartitionsToTxnResult(
        transactional_id=name,
        topic_results=tuple(
            AddPartitionsToTxnTopicResult(name=topic, results_by_partition=tuple(results))
            for topic, results in by_topic.items()
        ),
    )


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
    group_id: str, producer: ProducerIdAndEpoch, offsets: Mapping[TopicPartition, OffsetOfTopic], *, now_ms: int
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
