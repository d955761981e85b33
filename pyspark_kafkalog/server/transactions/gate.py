"""Lets the batches of transactional producers in: each is appended in a unit that checks its transaction.

    Produce up to version 11    the partition must have been added (AddPartitionsToTxn)
    Produce 12 and later        it is added by the same unit, which begins the transaction with the first partition

Whether the batch's producer and sequence fit the log is checked by the writer, as for every batch. A producer that is
fenced by its transactional id gets INVALID_PRODUCER_EPOCH here, not PRODUCER_FENCED, so that it can abort and continue.

Source of the rules: kafka.server.ReplicaManager.handleProduceAppend, and AddPartitionsToTxnManager, KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.record.header import parse_header
from pyspark_kafkalog.root.commit.changes import CommitUnit, LeaderAppend
from pyspark_kafkalog.root.transactions.metadata import TV2, TransactionMetadata
from pyspark_kafkalog.server.transactions.decisions import (
    Decision,
    ProducerIdAndEpoch,
    add_partitions,
    verify_partitions,
)
from pyspark_kafkalog.server.transactions.units import StateLogs, TransactionUnit
from pyspark_kafkalog.storage.log.leader_append import REQUEST
from pyspark_kafkalog.storage.names import TopicPartition

_ADDS_PARTITIONS_FROM: Final = 12
_ABORTABLE_FROM: Final = 11
_FENCED: Final[Mapping[ErrorCode, ErrorCode]] = MappingProxyType(
    {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
)
_FENCED_BEFORE_ABORTABLE: Final[Mapping[ErrorCode, ErrorCode]] = MappingProxyType(
    {**_FENCED, ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE}
)


class TransactionGate:
    """Makes units of transactional batches."""

    def __init__(self, logs: StateLogs) -> None:
        self._logs = logs

    def produce_unit(self, request_version: int, transactional_id: str, append: LeaderAppend) -> CommitUnit:
        """The unit of one partition's batch. It is refused with RequestError, or by the writer.

        Raises CorruptRecordError for a damaged header.
        """
        header = parse_header(append.data, 0, file=REQUEST, file_position=0)
        is_v2 = request_version >= _ADDS_PARTITIONS_FROM
        unit = joining_unit(
            self._logs,
            transactional_id,
            ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
            replace(append, is_transaction_v2=is_v2),
            adds_partition=is_v2,
            knows_abortable=request_version >= _ABORTABLE_FROM,
        )
        if not is_v2:
            # Such producers do not expect CONCURRENT_TRANSACTIONS; this error makes them send the batch again.
            unit.when_concurrent = ErrorCode.NOT_ENOUGH_REPLICAS
        return unit.commit_unit()


def joining_unit(
    logs: StateLogs,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    append: LeaderAppend,
    *,
    adds_partition: bool,
    knows_abortable: bool,
) -> TransactionUnit:
    """A unit of a batch in the producer's transaction, of which the partition is, or becomes, a part."""
    told = _FENCED if knows_abortable else _FENCED_BEFORE_ABORTABLE

    def decide(found: TransactionMetadata | None, now_ms: int) -> Decision:
        decision = _join(found, producer, append.topic_partition, adds_partition, now_ms)
        if decision.error is ErrorCode.NONE:
            return decision
        return Decision(error=told.get(decision.error, decision.error))

    return TransactionUnit(
        logs=logs, transactional_id=transactional_id, decide=decide, is_joining=True, further=(append,)
    )


def _join(
    found: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    topic_partition: TopicPartition,
    adds_partition: bool,
    now_ms: int,
) -> Decision:
    if adds_partition:
        return add_partitions(found, producer, (topic_partition,), client_version=TV2, now_ms=now_ms)
    error = verify_partitions(found, producer, (topic_partition,))[topic_partition]
    return Decision(error=error, after=found)
