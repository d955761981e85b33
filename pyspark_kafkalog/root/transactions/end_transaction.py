"""The end of a transaction: what a coordinator writes for it, and how an operator ends one that was left open.

A transaction ends by a request of its producer, by its timeout, or by an operator. `Ending` is what one commit writes
for it as a whole, states and markers; it follows from the metadata of the id alone.

A marker can be too old for a partition: `kafka-transactions abort` writes markers with any epoch. With the last epochs
of the producer there (`MarkerFloor`), it gets their coordinator epoch, or is left out where a newer epoch of the
producer has written, as in Kafka.

An operator ends a transaction that its producer, or the coordinator, left open:

    on the newest image, in the commit:
    find       the state in `__transaction_state`, and the partitions in which the transaction is open
    decide     as the coordinator would
    append     a marker to each of these partitions, and the states, if the transaction is recorded there
    commit     all of them as one unit (root/commit): the partitions' last stable offsets increase

An adopted log has no coordinator that would do this; a broker that mounts it again finds the transaction ended. A
server that runs beside it follows what was written. A crash before the commit leaves nothing visible.

A decided transaction is ended as decided: one in PrepareCommit is committed, since the commit was confirmed to its
producer. An undecided one is aborted and its producer epoch increases, as at a timeout, which fences its producer. One
that no coordinator knows is aborted in its partition only.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata, kafka.coordinator.transaction.
TransactionCoordinator and TransactionMarkerChannelManager, and kafka.server.KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import CommitConflictError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import AppendedRange, AppendOrigin, CommitUnit, LeaderAppend
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.transactions.metadata import TV2, VALUE_VERSION, TransactionMetadata, record_key
from pyspark_kafkalog.root.transactions.states import (
    TRANSACTION_STATE_TOPIC,
    TransactionState,
    TransactionStatus,
    producers_of,
    transaction_states_of,
)
from pyspark_kafkalog.storage.log.producers import ProducerState
from pyspark_kafkalog.storage.names import TopicPartition

_ABORT_OPERATION: Final = "abort transaction"
_COMPLETE_OPERATION: Final = "complete transaction"
_KINDS: Final = {True: ControlRecordType.COMMIT, False: ControlRecordType.ABORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """The end of one transaction: a marker of the producer in each of the partitions."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The records for `__transaction_state`, in order, and the markers of the partitions that were in it."""

    steps: tuple[TransactionMetadata, ...]
    markers: Markers

    @property
    def after(self) -> TransactionMetadata:
        """The id when all of it is written."""
        return self.steps[-1]


def complete(prepared: TransactionMetadata, *, now_ms: int) -> Ending:
    """The last step of a transaction that is decided, as it was decided."""
    markers = Markers(
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
        is_commit=prepared.status is TransactionStatus.PREPARE_COMMIT,
        partitions=prepared.partitions,
    )
    return Ending(steps=(prepared.completed(now_ms=now_ms),), markers=markers)


def end(prepared: TransactionMetadata, *, now_ms: int) -> Ending:
    """Both steps of the end of a transaction: `prepared`, which is not in the log yet, and its completion."""
    completion = complete(prepared, now_ms=now_ms)
    return replace(completion, steps=(prepared, *completion.steps))


def abort_and_fence(metadata: TransactionMetadata, *, now_ms: int) -> Ending:
    """Abort a transaction whose producer is gone or too slow: it is fenced by the next epoch."""
    return end(metadata.prepared(is_commit=False, client_version=TV2, now_ms=now_ms), now_ms=now_ms)


# Batches


@dataclass(frozen=True, slots=True)
class MarkerFloor:
    """The last epochs of a producer in a partition: markers with lower ones are refused."""

    producer_epoch: int
    coordinator_epoch: int


#: By partition and producer id.
MarkerFloors: TypeAlias = Mapping[tuple[TopicPartition, int], MarkerFloor]


def state_append(
    topic_partition: TopicPartition,
    steps: Sequence[TransactionMetadata],
    *,
    topic_id: str,
    now_ms: int,
    version: int = VALUE_VERSION,
) -> LeaderAppend:
    """One batch with the records of the steps, whose values are of that version."""
    records = [
        Record(offset=at, timestamp_ms=now_ms, key=record_key(each.transactional_id), value=each.value(version))
        for at, each in enumerate(steps)
    ]
    return coordinator_append(topic_partition, encode_batch(records), topic_id)


def coordinator_append(topic_partition: TopicPartition, data: bytes, topic_id: str | None) -> LeaderAppend:
    return LeaderAppend(topic_partition=topic_partition, data=data, topic_id=topic_id, origin=AppendOrigin.COORDINATOR)


def marker_appends(
    image: MetadataImage,
    state_partition: TopicPartition | None,
    markers: Sequence[Markers],
    floors: MarkerFloors,
    *,
    now_ms: int,
) -> list[LeaderAppend]:
    """The markers, in all partitions that exist; a topic that was deleted meanwhile gets none.

    `state_partition`, whose leader epoch is that of the coordinator: None for a transaction that no coordinator knows.
    """
    state = None if state_partition is None else image.find(state_partition.topic, state_partition.partition)
    own = MarkerFloor(-1, 0 if state is None else max(state.state.leader_epoch, 0))
    appends = []
    for each in markers:
        for topic_partition in sorted(each.partitions):
            floor = floors.get((topic_partition, each.producer_id), own)
            is_there = image.find(topic_partition.topic, topic_partition.partition) is not None
            if is_there and floor.producer_epoch <= each.producer_epoch:
                epoch = max(own.coordinator_epoch, floor.coordinator_epoch)
                data = marker_batch(each, coordinator_epoch=epoch, now_ms=now_ms)
                appends.append(coordinator_append(topic_partition, data, None))
    return appends


def marker_batch(markers: Markers, *, coordinator_epoch: int, now_ms: int) -> bytes:
    """The control batch of one marker."""
    marker = EndTransactionMarker(control_type=_KINDS[markers.is_commit], coordinator_epoch=coordinator_epoch)
    key, value = build_control_record(marker)
    return encode_batch(
        [Record(offset=0, timestamp_ms=now_ms, key=key, value=value)],
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        is_transactional=True,
        is_control=True,
    )


# By an operator


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
class TransactionOutcome:
    """An ended transaction in `partitions`. `transactional_id` is None if no coordinator knew the transaction.

    `elsewhere` are its partitions that this root does not contain, such as those in other directories of the broker.
    """

    transactional_id: str | None
    is_commit: bool
    partitions: tuple[EndedPartition, ...]
    elsewhere: tuple[TopicPartition, ...] = ()


def abort_transaction(root: NativeRoot, topic_partition: TopicPartition, first_offset: int) -> TransactionOutcome:
    """Abort the open transaction that began at `first_offset` of the partition, in one durable commit.

    If `__transaction_state` has the transaction, it is aborted in all its partitions. Raises OffsetOutOfRangeError if
    no open transaction begins there, CommitConflictError if it has been decided to commit, UnknownTopicError, and the
    errors of `LeaderWriter.commit`.
    """

    def abort(log: _OpenLog) -> _End:
        producer = log.open_producer(topic_partition, first_offset)
        states = log.states().values()
        state = next((each for each in states if each.covers(topic_partition, producer.producer_id)), None)
        return log.end_unknown(topic_partition, producer) if state is None else _abort(log, state)

    return _commit(root, abort, _ABORT_OPERATION)


def abort_transactional_id(root: NativeRoot, transactional_id: str) -> TransactionOutcome:
    """Abort the open transaction of `transactional_id` in all its partitions, in one durable commit.

    Raises UnknownTopicError if `__transaction_state` has no open one, CommitConflictError if it was decided to commit,
    and the errors of `LeaderWriter.commit`.
    """
    return _commit(root, lambda log: _abort(log, log.open_state(transactional_id)), _ABORT_OPERATION)


def complete_transactional_id(root: NativeRoot, transactional_id: str) -> TransactionOutcome:
    """Complete the transaction of `transactional_id` as decided, by commit or abort, in one durable commit.

    Raises UnknownTopicError if `__transaction_state` has no open one, CommitConflictError if it is undecided, and the
    errors of `LeaderWriter.commit`.
    """

    def decide(log: _OpenLog) -> _End:
        state = log.open_state(transactional_id)
        metadata = _metadata(state)
        if not metadata.is_prepared:
            raise CommitConflictError(
                f"the transaction of transactional id {transactional_id!r} is undecided ({state.status_name}): its "
                "producer has not ended it, so it can only be aborted"
            )
        return log.end(state, complete(metadata, now_ms=log.now_ms))

    return _commit(root, decide, _COMPLETE_OPERATION)


def _abort(log: _OpenLog, state: TransactionState) -> _End:
    metadata = _metadata(state)
    if metadata.status is TransactionStatus.PREPARE_COMMIT:
        raise CommitConflictError(
            f"the transaction of transactional id {state.transactional_id!r} is in state PrepareCommit: it was "
            "committed and lacks only markers, so aborting it would lose records: use kafkalog transactions complete"
        )
    step = complete if metadata.is_prepared else abort_and_fence
    return log.end(state, step(metadata, now_ms=log.now_ms))


def _metadata(state: TransactionState) -> TransactionMetadata:
    metadata = TransactionMetadata.of_record(state, None)
    assert metadata is not None  # the status of an open transaction is a known one
    return metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """What to append: markers in the partitions in which the transaction of each producer is open, then the states."""

    open_in: tuple[tuple[TopicPartition, ProducerState], ...]
    producer_epoch: int
    is_commit: bool
    state: TransactionState | None = None
    steps: tuple[TransactionMetadata, ...] = ()
    elsewhere: tuple[TopicPartition, ...] = ()

    def appends(self, image: MetadataImage, now_ms: int) -> Sequence[LeaderAppend]:
        floors = {
            (topic_partition, each.producer_id): MarkerFloor(each.producer_epoch, each.coordinator_epoch)
            for topic_partition, each in self.open_in
        }
        of_states = None
        if self.state is not None:
            of_states = TopicPartition(TRANSACTION_STATE_TOPIC, self.state.state_partition)
        markers = [self._marker(*each) for each in self.open_in]
        appends = marker_appends(image, of_states, markers, floors, now_ms=now_ms)
        if self.state is not None and of_states is not None:
            topic_id = image.topic(TRANSACTION_STATE_TOPIC).topic_id
            # In the version that the broker of the log writes: an older one may mount it again.
            version = self.state.version
            appends.append(state_append(of_states, self.steps, topic_id=topic_id, now_ms=now_ms, version=version))
        return appends

    def _marker(self, topic_partition: TopicPartition, producer: ProducerState) -> Markers:
        return Markers(
            producer_id=producer.producer_id,
            producer_epoch=max(self.producer_epoch, producer.producer_epoch),
            is_commit=self.is_commit,
            partitions=frozenset([topic_partition]),
        )


#: Finds a transaction, and says what ends it. Raises the errors of this module's functions.
_Decide: TypeAlias = "Callable[[_OpenLog], _End]"


def _commit(root: NativeRoot, decide: _Decide, operation: str) -> TransactionOutcome:
    """Decide by the newest image, append and publish, durably."""
    decided: list[_End] = []

    def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
        log = _OpenLog(root, image, root.clock())
        decided[:] = [decide(log)]
        return decided[0].appends(image, log.now_ms)

    appended = root.commit_unit(CommitUnit(appends=appends), operation=operation)
    return _ended(root, decided[0], appended)


def _ended(root: NativeRoot, end: _End, appended: Sequence[AppendedRange]) -> TransactionOutcome:
    partitions = tuple(
        EndedPartition(
            topic_partition=each,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            first_offset=producer.current_txn_first_offset,
            marker_offset=marker.first_offset,
            last_stable_offset=root.partition(each.topic, each.partition).last_stable_offset,
        )
        for (each, producer), marker in zip(end.open_in, appended, strict=False)
    )
    name = None if end.state is None else end.state.transactional_id
    return TransactionOutcome(name, end.is_commit, partitions, end.elsewhere)


@dataclass(frozen=True, slots=True)
class _OpenLog:
    """The transactions of a root as of `image`."""

    root: NativeRoot
    image: MetadataImage
    now_ms: int

    def states(self) -> Mapping[str, TransactionState]:
        return transaction_states_of(self.root, self.image)

    def open_state(self, transactional_id: str) -> TransactionState:
        """Raises UnknownTopicError if the id has no open transaction."""
        state = self.states().get(transactional_id)
        if state is None:
            raise UnknownTopicError(f"transactional id {transactional_id!r} is not in {TRANSACTION_STATE_TOPIC}")
        if not state.is_open:
            raise UnknownTopicError(
                f"transactional id {transactional_id!r} has no open transaction: its state is {state.status_name}"
            )
        return state

    def open_producer(self, topic_partition: TopicPartition, first_offset: int) -> ProducerState:
        """The producer whose transaction began at `first_offset`. Raises OffsetOutOfRangeError if there is no such."""
        self.image.partition(topic_partition.topic, topic_partition.partition)
        for producer in self._open_producers(topic_partition):
            if producer.current_txn_first_offset == first_offset:
                return producer
        raise OffsetOutOfRangeError(
            f"Could not find any open transactions starting at offset {first_offset} on partition {topic_partition}"
        )

    def end(self, state: TransactionState, ending: Ending) -> _End:
        """What carries out `ending`: where a partition has its marker already, it gets no other one."""
        open_in = [
            (each, producer)
            for each in sorted(ending.markers.partitions)
            for producer in self._open_producers(each)
            if producer.producer_id == state.producer_id
        ]
        return _End(
            open_in=tuple(open_in),
            producer_epoch=ending.markers.producer_epoch,
            is_commit=ending.markers.is_commit,
            state=state,
            steps=ending.steps,
            elsewhere=tuple(each for each in sorted(ending.markers.partitions) if not self._has(each)),
        )

    def end_unknown(self, topic_partition: TopicPartition, producer: ProducerState) -> _End:
        """What aborts a transaction that no coordinator knows."""
        return _End(open_in=((topic_partition, producer),), producer_epoch=producer.producer_epoch, is_commit=False)

    def _has(self, topic_partition: TopicPartition) -> bool:
        return self.image.find(topic_partition.topic, topic_partition.partition) is not None

    def _open_producers(self, topic_partition: TopicPartition) -> list[ProducerState]:
        """The producers with an open transaction in the partition; none if the root lacks the partition."""
        found = self.image.find(topic_partition.topic, topic_partition.partition)
        if found is None or found.state.first_unstable_offset < 0:
            return []
        producers = producers_of(
            self.root.partition_in(self.image, topic_partition.topic, topic_partition.partition),
            expiration_ms=self.root.broker_config().producer_id_expiration_ms,
            now_ms=self.now_ms,
        )
        return [each for each in producers if each.current_txn_first_offset >= 0]
