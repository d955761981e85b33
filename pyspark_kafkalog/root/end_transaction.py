"""Ends a transaction that a broker's producer left open: writes its markers and its coordinator's record.

    lock the root; refresh the image; read __transaction_state
    append a control batch with the marker to the log of each partition in which the transaction is open
    append the record CompleteAbort or CompleteCommit to __transaction_state, if the transaction is recorded there
    wait for the disk: data, indexes, names
    publish one commit with the states of all these partitions: their last stable offsets increase
    unlock

An adopted log has no coordinator that would do this; a broker that mounts it again finds the transaction ended. A crash
before the publish leaves markers and a record above the high watermarks, which the next writer truncates.

A decided transaction is ended as decided: one in PrepareCommit is committed, since the commit was confirmed to its
producer. An undecided one is aborted and its producer epoch increases, as at a timeout, which fences its producer. One
that no coordinator knows is aborted in its partition only.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata, kafka.coordinator.transaction.
TransactionMarkerChannelManager, and kafka.server.KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import CommitConflictError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.open_transactions import (
    MAX_EPOCH,
    TRANSACTION_STATE_TOPIC,
    TransactionState,
    TransactionStatus,
    producers_of,
    transaction_states_of,
)
from pyspark_kafkalog.root.write import PartitionLogs, changed_error
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producers import ProducerState
from pyspark_kafkalog.storage.names import TopicPartition

_ABORT_OPERATION: Final = "abort transaction"
_COMPLETE_OPERATION: Final = "complete transaction"
_DECIDED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPartition:
    """One partition of an ended transaction: the transaction's first offset and the marker's offset."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class EndedTransaction:
    """An ended transaction in `partitions`. `transactional_id` is None if no coordinator knew the transaction.

    `elsewhere` are its partitions that this root does not contain, such as those in other directories of the broker.
    """

    transactional_id: str | None
    is_commit: bool
    partitions: tuple[EndedPartition, ...]
    elsewhere: tuple[TopicPartition, ...] = ()


def abort_transaction(root: NativeRoot, topic_partition: TopicPartition, first_offset: int) -> EndedTransaction:
    """Abort the open transaction that began at `first_offset` of the partition, in one durable commit.

    If `__transaction_state` has the transaction, it is aborted in all its partitions. Raises OffsetOutOfRangeError if
    no open transaction begins there, CommitConflictError if it has been decided to commit, UnknownTopicError, and the
    errors of `MetadataStore.commit`.
    """
    with root_lock(root.path, fs=root.fs):
        ending = _Ending(root)
        producer = ending.open_producer(topic_partition, first_offset)
        states = transaction_states_of(root).values()
        state = next((each for each in states if each.covers(topic_partition, producer.producer_id)), None)
        if state is not None:
            return _abort(ending, state)
        marked = ending.mark(topic_partition, producer, ControlRecordType.ABORT, producer.producer_epoch)
        ending.publish(_ABORT_OPERATION)
        return EndedTransaction(None, False, (marked,))


def abort_transactional_id(root: NativeRoot, transactional_id: str) -> EndedTransaction:
    """Abort the open transaction of `transactional_id` in all its partitions, in one durable commit.

    Raises UnknownTopicError if `__transaction_state` has no open one, CommitConflictError if it was decided to commit.
    """
    with root_lock(root.path, fs=root.fs):
        ending = _Ending(root)
        return _abort(ending, _open_state(root, transactional_id))


def complete_transactional_id(root: NativeRoot, transactional_id: str) -> EndedTransaction:
    """Complete the transaction of `transactional_id` as decided, by commit or abort, in one durable commit.

    Raises UnknownTopicError if `__transaction_state` has no open one, CommitConflictError if it is undecided.
    """
    with root_lock(root.path, fs=root.fs):
        ending = _Ending(root)
        state = _open_state(root, transactional_id)
        if state.status not in _DECIDED:
            raise CommitConflictError(
                f"the transaction of transactional id {transactional_id!r} is undecided ({state.status_name}): its "
                "producer has not ended it, so it can only be aborted"
            )
        return _end(ending, state, is_commit=state.status == TransactionStatus.PREPARE_COMMIT)


def _open_state(root: NativeRoot, transactional_id: str) -> TransactionState:
    state = transaction_states_of(root).get(transactional_id)
    if state is None:
        raise UnknownTopicError(f"transactional id {transactional_id!r} is not in {TRANSACTION_STATE_TOPIC}")
    if not state.is_open:
        raise UnknownTopicError(
            f"transactional id {transactional_id!r} has no open transaction: its state is {state.status_name}"
        )
    return state


def _abort(ending: _Ending, state: TransactionState) -> EndedTransaction:
    if state.status == TransactionStatus.PREPARE_COMMIT:
        raise CommitConflictError(
            f"the transaction of transactional id {state.transactional_id!r} is in state PrepareCommit: it was "
            "committed and lacks only markers, so aborting it would lose records: use kafkalog transactions complete"
        )
    return _end(ending, state, is_commit=False)


def _end(ending: _Ending, state: TransactionState, *, is_commit: bool) -> EndedTransaction:
    epoch = state.producer_epoch
    if state.status not in _DECIDED:
        epoch = min(epoch + 1, MAX_EPOCH)
    kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
    marked = []
    for topic_partition in sorted(state.partitions):
        producer = ending.producer_in_transaction(topic_partition, state.producer_id)
        if producer is not None:
            marked.append(ending.mark(topic_partition, producer, kind, max(epoch, producer.producer_epoch)))
    ending.append_completed(state, is_commit=is_commit, producer_epoch=epoch)
    decided = state.status in _DECIDED
    ending.publish(_COMPLETE_OPERATION if decided else _ABORT_OPERATION)
    elsewhere = tuple(each for each in sorted(state.partitions) if not ending.has(each))
    return EndedTransaction(state.transactional_id, is_commit, tuple(marked), elsewhere)


class _Ending:
    """The appends that end one transaction, and the commit that publishes them. The caller holds the root's lock."""

    def __init__(self, root: NativeRoot) -> None:
        self._root = root
        self._image: MetadataImage = root.store.refresh()
        self._logs = PartitionLogs.at(root.path, self._image, clock=root.clock, fs=root.fs)
        self._appended: dict[TopicPartition, LogState] = {}

    def open_producer(self, topic_partition: TopicPartition, first_offset: int) -> ProducerState:
        """The producer whose transaction began at `first_offset`. Raises OffsetOutOfRangeError if there is no such."""
        self._image.partition(topic_partition.topic, topic_partition.partition)
        for producer in self._open_producers(topic_partition):
            if producer.current_txn_first_offset == first_offset:
                return producer
        raise OffsetOutOfRangeError(
            f"Could not find any open transactions starting at offset {first_offset} on partition {topic_partition}"
        )

    def has(self, topic_partition: TopicPartition) -> bool:
        """Whether the root contains the partition."""
        topic = self._image.topics.get(topic_partition.topic)
        return topic is not None and 0 <= topic_partition.partition < len(topic.partitions)

    def producer_in_transaction(self, topic_partition: TopicPartition, producer_id: int) -> ProducerState | None:
        """The producer if it has an open transaction in the partition; None also if the root lacks the partition."""
        if not self.has(topic_partition):
            return None
        return next((each for each in self._open_producers(topic_partition) if each.producer_id == producer_id), None)

    def _open_producers(self, topic_partition: TopicPartition) -> list[ProducerState]:
        if self._image.partition(topic_partition.topic, topic_partition.partition).state.first_unstable_offset < 0:
            return []
        producers = producers_of(
            self._root.partition(topic_partition.topic, topic_partition.partition),
            expiration_ms=self._logs.broker_config.producer_id_expiration_ms,
            now_ms=self._root.clock(),
        )
        return [each for each in producers if each.current_txn_first_offset >= 0]

    def mark(
        self, topic_partition: TopicPartition, producer: ProducerState, kind: ControlRecordType, epoch: int
    ) -> EndedPartition:
        """Append the marker and wait for the disk."""
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=max(producer.coordinator_epoch, 0))
        key, value = build_control_record(marker)
        after = self._append(topic_partition, key, value, producer_id=producer.producer_id, producer_epoch=epoch)
        return EndedPartition(
            topic_partition=topic_partition,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            first_offset=producer.current_txn_first_offset,
            marker_offset=after.log_end_offset - 1,
            last_stable_offset=after.last_stable_offset,
        )

    def append_completed(self, state: TransactionState, *, is_commit: bool, producer_epoch: int) -> None:
        """Append the record to `__transaction_state` that all markers are written."""
        key, value = state.completed(is_commit=is_commit, producer_epoch=producer_epoch, now_ms=self._root.clock())
        self._append(TopicPartition(TRANSACTION_STATE_TOPIC, state.state_partition), key, value)

    def _append(
        self,
        topic_partition: TopicPartition,
        key: bytes,
        value: bytes,
        *,
        producer_id: int | None = None,
        producer_epoch: int = -1,
    ) -> LogState:
        """Append one record, a marker of `producer_id` if given, and wait for the disk."""
        before = self._image.partition(topic_partition.topic, topic_partition.partition).state
        with self._logs.resume(topic_partition, before) as log:
            leader_epoch = before.leader_epoch + 1 if log.is_recovered else before.leader_epoch
            record = Record(offset=log.log_end_offset, timestamp_ms=self._root.clock(), key=key, value=value)
            is_marker = producer_id is not None
            compression = CompressionType.NONE if is_marker else log.config.stored_compression(CompressionType.NONE)
            data = encode_batch(
                [record],
                leader_epoch=leader_epoch,
                compression=compression,
                level=log.config.compression_level(compression),
                producer_id=-1 if producer_id is None else producer_id,
                producer_epoch=producer_epoch,
                is_transactional=is_marker,
                is_control=is_marker,
            )
            log.append_as_coordinator(data, leader_epoch=leader_epoch)
            log.flush(is_last=True)
            self._appended[topic_partition] = log.state()
        return self._appended[topic_partition]

    def publish(self, operation: str) -> None:
        """Commit the appends. Raises CommitConflictError if a topic was changed without the root's lock."""

        def build(newest: MetadataImage) -> list[MetadataRecord]:
            return [
                partition_state_record(self._checked_topic_id(newest, each), each.partition, state)
                for each, state in self._appended.items()
            ]

        self._root.store.commit(build, operation=operation)

    def _checked_topic_id(self, newest: MetadataImage, topic_partition: TopicPartition) -> str:
        """The topic's id. Raises CommitConflictError if the partition differs between the two images."""
        topic_id = self._image.topic(topic_partition.topic).topic_id
        if newest.state_of(topic_partition, topic_id) != self._image.state_of(topic_partition, topic_id):
            raise changed_error(topic_partition)
        return topic_id
