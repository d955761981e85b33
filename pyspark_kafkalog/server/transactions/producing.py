"""The requests of transactional and idempotent producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.

Clients of transaction version 2 send InitProducerId and EndTxn only: partitions and groups join with the batches.
EndTxn from version 5 on raises the epoch and answers with it.

Producers of old versions do not know PRODUCER_FENCED and get INVALID_PRODUCER_EPOCH. What a commit that failed, or
may have failed, makes of a request is COORDINATOR_NOT_AVAILABLE: the producer asks again, and each request may be
repeated.

Source of the rules: kafka.server.KafkaApis, the methods handle...Request of these requests.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, ReadOnlyLogDirError
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC
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
)
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from pyspark_kafkalog.root.transactions.metadata import TV0, TV2
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.event_loop import gather_in_turns, in_turns
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
