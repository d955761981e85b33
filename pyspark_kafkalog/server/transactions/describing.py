"""The requests of `kafka-transactions` and of admin clients about transactions.

    ListTransactions        the ids of the partitions that this server coordinates: clients ask all servers
    DescribeTransactions    ids that this server coordinates
    DescribeProducers       the producers of partitions, with their open transactions: any server knows all
    WriteTxnMarkers         markers as they are: `kafka-transactions abort` ends a hanging transaction with one

A marker ends the producer's transaction in a partition. It changes nothing in `__transaction_state`.

Source of the rules: kafka.server.KafkaApis, TransactionStateManager.listTransactionStates.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import InvalidTopicError, KafkalogError, LogDirError, ProducerFencedError
from pyspark_kafkalog.java_regex.patterns import compile_re2_pattern
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
    PartitionResponse,
    ProducerState,
    TopicData,
    TopicResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from pyspark_kafkalog.root.commit.changes import CommitUnit
from pyspark_kafkalog.root.transactions.end_transaction import Markers, coordinator_append, marker_batch
from pyspark_kafkalog.root.transactions.metadata import NO_PARTITIONS, TV2, TransactionMetadata, by_topic
from pyspark_kafkalog.root.transactions.states import TransactionStatus, producers_of, status_name
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.event_loop import gather_in_turns, in_turns, results_in_turns
from pyspark_kafkalog.server.request_errors import error_code_of
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.storage.names import TopicPartition, validate_topic_name

_LOG: Final = logging.getLogger(__name__)
_STATUS_NAMES: Final = {status_name(each): each for each in TransactionStatus}


class TransactionDescriptionHandlers:
    """Answers the requests of tools."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    async def list_transactions(
        self, context: ServerContext, request: Request[ListTransactionsRequest]
    ) -> ListTransactionsResponse:
        body = request.body
        try:
            is_wanted = _filter(body, context.clock())
        except ValueError:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        found = [
            ListTransactionsResponseTransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=status_name(each.status),
            )
            async for each in in_turns(await self._coordinator.coordinated(is_wanted))
            if _may_describe(context, request, each.transactional_id, logs_denial=False)
        ]
        return ListTransactionsResponse(
            unknown_state_filters=tuple(each for each in body.state_filters if each not in _STATUS_NAMES),
            transaction_states=tuple(found),
        )

    async def describe_transactions(
        self, context: ServerContext, request: Request[DescribeTransactionsRequest]
    ) -> DescribeTransactionsResponse:
        body = request.body
        return DescribeTransactionsResponse(
            transaction_states=tuple(
                [await self._describe(context, request, each) async for each in in_turns(body.transactional_ids)]
            )
        )

    async def _describe(
        self, context: ServerContext, request: AnyRequest, name: str
    ) -> DescribeTransactionsResponseTransactionState:
        error, found = ErrorCode.NONE, None
        if not _may_describe(context, request, name):
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not name:
            error = ErrorCode.INVALID_REQUEST
        elif not self._coordinator.is_coordinator(name):
            error = ErrorCode.NOT_COORDINATOR
        else:
            found = await self._coordinator.find(name)
            error = ErrorCode.NONE if found is not None else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if found is None:
            return DescribeTransactionsResponseTransactionState(error_code=error, transactional_id=name)
        return DescribeTransactionsResponseTransactionState(
            transactional_id=name,
            transaction_state=status_name(found.status),
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=tuple(
                TopicData(topic=topic, partitions=numbers)
                for topic, numbers in by_topic(found.partitions).items()
                if context.guard.allows(request.session, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
            ),
        )

    async def describe_producers(
        self, context: ServerContext, request: Request[DescribeProducersRequest]
    ) -> DescribeProducersResponse:
        body = request.body
        await context.refresh()
        topics = []
        async for topic in in_turns(body.topics):
            error = _topic_error(context, request, topic.name)
            partitions = [
                PartitionResponse(partition_index=each, error_code=error)
                if error is not ErrorCode.NONE
                else await context.run(functools.partial(_producers, context, topic.name, each))
                for each in topic.partition_indexes
            ]
            topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
        return DescribeProducersResponse(topics=tuple(topics))

    async def write_markers(
        self, context: ServerContext, request: Request[WriteTxnMarkersRequest]
    ) -> WriteTxnMarkersResponse:
        body = request.body
        allows, session = context.guard.allows, request.session
        may_write = allows(
            session, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=False
        ) or allows(session, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        may_write = may_write and context.native is not None
        await context.refresh()
        results = await gather_in_turns(_write(context, each, may_write) for each in body.markers)
        return WriteTxnMarkersResponse(markers=tuple(results))


# ListTransactions and DescribeTransactions


def _may_describe(
    context: ServerContext, request: AnyRequest, transactional_id: str, *, logs_denial: bool = True
) -> bool:
    return context.guard.allows(
        request.session, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, logs_denial=logs_denial
    )


def _filter(body: ListTransactionsRequest, now_ms: int) -> Callable[[TransactionMetadata], bool]:
    """Whether an id is listed. Raises ValueError for a wrong pattern."""
    statuses = {_STATUS_NAMES.get(each) for each in body.state_filters}
    producer_ids = frozenset(body.producer_id_filters)
    matches = compile_re2_pattern(body.transactional_id_pattern) if body.transactional_id_pattern else None

    def is_wanted(each: TransactionMetadata) -> bool:
        return (
            (not producer_ids or each.producer_id in producer_ids)
            and (not statuses or each.status in statuses)
            and (body.duration_filter < 0 or now_ms - each.start_ms > body.duration_filter)
            and (matches is None or matches(each.transactional_id))
        )

    return is_wanted


# DescribeProducers


def _topic_error(context: ServerContext, request: AnyRequest, topic: str) -> ErrorCode:
    try:
        validate_topic_name(topic)
    except InvalidTopicError:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not context.guard.allows(request.session, AclOperation.READ, ResourceType.TOPIC, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if topic in context.image().topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _producers(context: ServerContext, topic: str, partition: int) -> PartitionResponse:
    if partition not in context.root.partition_numbers(topic):
        return PartitionResponse(partition_index=partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        found = producers_of(
            context.root.partition(topic, partition),
            expiration_ms=context.broker_config().producer_id_expiration_ms,
            now_ms=context.clock(),
        )
    except (LogDirError, OSError) as error:
        _LOG.warning("the producers of %s-%d cannot be read: %s", topic, partition, error)
        return PartitionResponse(partition_index=partition, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return PartitionResponse(
        partition_index=partition,
        active_producers=tuple(
            ProducerState(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.current_txn_first_offset,
            )
            for each in found
        ),
    )


# WriteTxnMarkers


async def _write(context: ServerContext, marker: WritableTxnMarker, may_write: bool) -> WritableTxnMarkerResult:
    partitions = [TopicPartition(topic.name, each) for topic in marker.topics for each in topic.partition_indexes]
    if may_write and (marker.producer_id == NO_PRODUCER_ID or marker.producer_epoch < 0):
        by_partition = await _refused(context, partitions, marker)
    elif may_write:
        data = marker_batch(
            Markers(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                is_commit=marker.transaction_result,
                partitions=NO_PARTITIONS,
            ),
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=context.clock(),
        )
        is_v2 = marker.transaction_version >= TV2
        by_partition = await _append(context, partitions, data, is_v2=is_v2)
    else:
        by_partition = dict.fromkeys(partitions, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    WritableTxnMarkerPartitionResult(
                        partition_index=each, error_code=by_partition[TopicPartition(topic.name, each)]
                    )
                    for each in topic.partition_indexes
                ),
            )
            for topic in marker.topics
        ),
    )


async def _refused(
    context: ServerContext, partitions: Sequence[TopicPartition], marker: WritableTxnMarker
) -> dict[TopicPartition, ErrorCode]:
    """The errors for a producer that cannot be. A broker fails for one without id or epoch, whatever the partition."""
    if marker.producer_id == NO_PRODUCER_ID or marker.producer_epoch == NO_PRODUCER_EPOCH:
        return dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
    image, unknown = context.image(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        each: unknown if image.find(each.topic, each.partition) is None else ErrorCode.INVALID_PRODUCER_EPOCH
        async for each in in_turns(partitions)
    }


async def _append(
    context: ServerContext, partitions: Sequence[TopicPartition], data: bytes, *, is_v2: bool
) -> dict[TopicPartition, ErrorCode]:
    """Write the marker to the partitions, to each in a unit of its own; the error of each."""
    image = context.image()
    known = [each async for each in in_turns(partitions) if image.find(each.topic, each.partition) is not None]
    submitted = [
        context.committer.submit(CommitUnit.of(replace(coordinator_append(each, data, None), is_transaction_v2=is_v2)))
        async for each in in_turns(known)
    ]
    errors = dict.fromkeys(partitions, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    results = await results_in_turns(submitted)
    for each, result in zip(known, results, strict=True):
        errors[each] = _marker_error(each, result)
    return errors


def _marker_error(topic_partition: TopicPartition, result: object) -> ErrorCode:
    if isinstance(result, ProducerFencedError):
        return error_code_of(result)
    if isinstance(result, (KafkalogError, OSError)):
        _LOG.warning("a marker for %s was not written: %s", topic_partition, result)
        return ErrorCode.REQUEST_TIMED_OUT
    if isinstance(result, BaseException):
        raise result
    return ErrorCode.NONE
