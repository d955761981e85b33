"""Transactions that are open: found in the partitions, and named by the coordinator's states.

The newest producer snapshot of a partition and the batches after it give the open transactions by producer id. The
transactional id and the status come from `__transaction_state` (states.py). A transaction without a record there was
left hanging by a broker, or the coordinator's partition is in another directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.header import NO_TIMESTAMP, TimestampType
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.root.transactions.states import TransactionState, transaction_states_of
from pyspark_kafkalog.storage.log.producers import ProducerState
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
    partitions: Iterable[PartitionSnapshot],
    states: Mapping[str, TransactionState],
    *,
    expiration_ms: int,
    now_ms: int,
) -> OpenTransactions:
    """The open transactions in `partitions`, below their high watermarks. Raises DiskFormatError for damage."""
    names = {state.producer_id: name for name, state in states.items()}
    found = []
    for each in partitions:
        topic_partition = TopicPartition(each.topic, each.partition)
        for producer in producers_of(each, expiration_ms=expiration_ms, now_ms=now_ms):
            if producer.current_txn_first_offset < 0:
                continue
            name = names.get(producer.producer_id)
            state = None if name is None else states[name]
            is_covered = state is not None and state.covers(topic_partition, producer.producer_id)
            start_ms = state.start_ms if state is not None and is_covered else -1
            found.append(
                OpenTransaction(
                    topic_partition=topic_partition,
                    producer=producer,
                    start_ms=start_ms if start_ms >= 0 else timestamp_at(each, producer.current_txn_first_offset),
                    transactional_id=name,
                    state=state if is_covered else None,
                )
            )
    return OpenTransactions(tuple(found), tuple(state for state in states.values() if state.is_open))


def open_transactions_of(root: NativeRoot) -> OpenTransactions:
    """The open transactions of a native root, as of its last refresh."""
    image = root.store.image
    unstable = [
        root.partition(topic_partition.topic, topic_partition.partition)
        for topic_partition in root.partitions()
        if image.partition(topic_partition.topic, topic_partition.partition).state.first_unstable_offset >= 0
    ]
    return find_open_transactions(
        unstable,
        transaction_states_of(root),
        expiration_ms=root.broker_config().producer_id_expiration_ms,
        now_ms=root.clock(),
    )


def producers_of(snapshot: PartitionSnapshot, *, expiration_ms: int, now_ms: int) -> Collection[ProducerState]:
    """The producers of a partition at its high watermark, by id.

    Raises DiskFormatError for damage; in an object store also ObjectStoreError.
    """
    if snapshot.producers_elsewhere is not None:
        return sorted(snapshot.producers_elsewhere(), key=lambda each: each.producer_id)
    from pyspark_kafkalog.storage.log.producer_replay import producer_state_at  # compiled code behind it

    if snapshot.local_log_start_offset == snapshot.high_watermark:
        return ()
    producers = producer_state_at(
        snapshot.directory,
        snapshot.high_watermark,
        log_start_offset=snapshot.local_log_start_offset,
        expiration_ms=expiration_ms,
        now_ms=now_ms,
    )
    return [producers.producers[producer_id] for producer_id in sorted(producers.producers)]


def timestamp_at(found: PartitionSnapshot, offset: int) -> int:
    """The time of the batch with `offset`, where a transaction begins; below 0 if its segment is missing or damaged."""
    extents = [each for each in found.extents().current() if each.base_offset <= offset]
    if not extents:
        return NO_TIMESTAMP
    try:
        with SegmentReader(extents[-1]) as segment:
            located = segment.locate(offset)
    except (FileNotFoundError, DiskFormatError):
        return NO_TIMESTAMP
    if located is None:
        return NO_TIMESTAMP
    header = located[1]
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return header.max_timestamp_ms if is_append_time else header.base_timestamp_ms
