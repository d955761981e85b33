"""The open transactions in a log directory's partitions: their producers, first offsets and start times.

The newest producer snapshot of a partition and the batches after it give the open transactions by producer id. The
transactional id and the state come from `__transaction_state`, if the directory contains it. A transaction without a
record there was left hanging by a broker, or its coordinator's partition is in another directory.

Nothing is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.header import NO_TIMESTAMP, TimestampType
from pyspark_kafkalog.root.descriptions import PartitionDescription
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.root.transactions.state import (
    TRANSACTION_STATE_TOPIC,
    TransactionState,
    read_transaction_states,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.log.producer_append import ProducerState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.reader import SegmentReader


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One transaction in one partition: the producer's first offset in it, and its start time (below 0: unknown).

    `state` is the coordinator's record of it, None for a hanging transaction. `transactional_id` is the producer's,
    None if it has none or `__transaction_state` does not contain it.
    """

    topic_partition: TopicPartition
    producer: ProducerState
    start_ms: int
    transactional_id: str | None
    state: TransactionState | None

    @property
    def first_offset(self) -> int:
        return self.producer.current_txn_first_offset


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The open transactions of a log directory, by partition, and the states of all recorded transactional ids."""

    in_partitions: tuple[OpenTransaction, ...] = ()
    states: tuple[TransactionState, ...] = ()


def find_open_transactions(
    partitions: Iterable[PartitionDescription],
    states: Mapping[str, TransactionState],
    *,
    expiration_ms: int,
    now_ms: int,
) -> OpenTransactions:
    """The open transactions in `partitions`, below their high watermarks. Raises DiskFormatError for damage."""
    names = {state.producer_id: name for name, state in states.items()}
    found = []
    for each in partitions:
        where = TopicPartition(each.topic, each.partition)
        for producer in producers_of(each, expiration_ms=expiration_ms, now_ms=now_ms):
            if producer.current_txn_first_offset < 0:
                continue
            name = names.get(producer.producer_id)
            state = None if name is None else states[name]
            is_covered = state is not None and state.covers(where, producer.producer_id)
            start_ms = state.start_ms if state is not None and is_covered else -1
            found.append(
                OpenTransaction(
                    topic_partition=where,
                    producer=producer,
                    start_ms=start_ms if start_ms >= 0 else _first_timestamp_ms(each, producer),
                    transactional_id=name,
                    state=state if is_covered else None,
                )
            )
    return OpenTransactions(tuple(found), tuple(state for state in states.values() if state.is_open))


def open_transactions_of(root: OwnRoot) -> OpenTransactions:
    """The open transactions of a native root, as of its last refresh."""
    image = root.store.image
    unstable = [
        root.partition(where)
        for where in root.partitions()
        if image.partition(where.topic, where.partition).state.first_unstable_offset >= 0
    ]
    return find_open_transactions(
        unstable,
        transaction_states_of(root),
        expiration_ms=root.broker_config().producer_id_expiration_ms,
        now_ms=root.clock(),
    )


def transaction_states_of(root: OwnRoot) -> Mapping[str, TransactionState]:
    """The states in a native root's `__transaction_state`: those of the former broker, and those added since."""
    if TRANSACTION_STATE_TOPIC not in root.topics():
        return {}
    return read_transaction_states(root.topic(TRANSACTION_STATE_TOPIC).partitions)


def producers_of(found: PartitionDescription, *, expiration_ms: int, now_ms: int) -> Collection[ProducerState]:
    """The producers of a partition at its high watermark, by id. Raises DiskFormatError for damage."""
    from pyspark_kafkalog.storage.log.producer_replay import producer_state_at  # compiled code behind it

    if found.local_log_start_offset == found.high_watermark:
        return ()
    producers = producer_state_at(
        found.directory,
        found.high_watermark,
        log_start_offset=found.local_log_start_offset,
        expiration_ms=expiration_ms,
        now_ms=now_ms,
    )
    return [producers.producers[producer_id] for producer_id in sorted(producers.producers)]


def _first_timestamp_ms(found: PartitionDescription, producer: ProducerState) -> int:
    """The time of the transaction's first batch in the partition; below 0 if its segment is missing or damaged."""
    first_offset = producer.current_txn_first_offset
    base_offset = max((base for base in list_base_offsets(found.directory) if base <= first_offset), default=None)
    if base_offset is None:
        return NO_TIMESTAMP
    try:
        with SegmentReader(found.directory, base_offset) as segment:
            located = segment.locate(first_offset)
    except (FileNotFoundError, DiskFormatError):
        return NO_TIMESTAMP
    if located is None:
        return NO_TIMESTAMP
    header = located[1]
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return header.max_timestamp_ms if is_append_time else header.base_timestamp_ms
