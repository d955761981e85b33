"""Transactions that brokers' producers left open: finding and ending them.

*Find.* The newest producer snapshot of a partition and the batches after it give the open transactions by producer id.
The transactional id and the status come from the records of `__transaction_state`, a broker's transaction
coordinator's:

    key     int16 record type (0), transactional id
    value   int16 version (0 or 1), producer id and epoch, timeout, status, partitions of the transaction, timestamps

The last value of a key counts; a null value means that the id has expired. A transaction whose last status is
PrepareCommit or PrepareAbort is decided: its producer, or its timeout, has ended it, and markers may be missing in some
of its partitions. Transactions with the status Ongoing are undecided. A transaction without a record was left hanging
by a broker, or the coordinator's partition is in another directory.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionLog, TransactionMetadata and TransactionState.

*End.* Writes the markers of a transaction and its coordinator's record.

    read __transaction_state, under the root's lock
    a control batch with the marker for each partition in which the transaction is open
    the record CompleteAbort or CompleteCommit for __transaction_state, if the transaction is recorded there
    commit all of them as one unit (root/leader/file_writer.py): the partitions' last stable offsets increase

An adopted log has no coordinator that would do this; a broker that mounts it again finds the transaction ended. A crash
before the publish leaves markers and a record above the high watermarks, which the next writer truncates.

A decided transaction is ended as decided: one in PrepareCommit is committed, since the commit was confirmed to its
producer. An undecided one is aborted and its producer epoch increases, as at a timeout, which fences its producer. One
that no coordinator knows is aborted in its partition only.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata, kafka.coordinator.transaction.
TransactionMarkerChannelManager, and kafka.server.KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pyspark_kafkalog.errors import (
    CommitConflictError,
    DiskFormatError,
    KafkalogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.coordinator_records import TransactionLogKey, TransactionLogValue
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TimestampType
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.leader.units import AppendedRange, AppendOrigin, CommitUnit, LeaderAppend
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.log.producers import ProducerState
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.units import INT16_MAX

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
MAX_EPOCH: Final = INT16_MAX

_INT16: Final = struct.Struct(">h")
_NO_PRODUCER_ID: Final = -1
_TV2: Final = 2  # TransactionVersion: from this one on every transaction has an epoch of its own
_LOG: Final = logging.getLogger(__name__)


class TransactionStatus(IntEnum):
    """The status of a transactional id's last transaction."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


def status_name(status: TransactionStatus) -> str:
    """The status as Kafka spells it ("PrepareCommit")."""
    return status.name.title().replace("_", "")


_OPEN: Final = frozenset(
    {
        TransactionStatus.ONGOING,
        TransactionStatus.PREPARE_COMMIT,
        TransactionStatus.PREPARE_ABORT,
        TransactionStatus.PREPARE_EPOCH_FENCE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """The last record of a transactional id, and the partition of `__transaction_state` that contains it.

    `version` is the one in which `value` was written. `status` is a number, to which a later Kafka may add.
    """

    transactional_id: str
    state_partition: int
    version: int
    value: TransactionLogValue

    @property
    def producer_id(self) -> int:
        return self.value.producer_id

    @property
    def producer_epoch(self) -> int:
        return self.value.producer_epoch

    @property
    def status(self) -> int:
        return self.value.transaction_status

    @property
    def status_name(self) -> str:
        """The status as Kafka's tools print it ("PrepareCommit")."""
        try:
            return status_name(TransactionStatus(self.status))
        except ValueError:
            return "Unknown"

    @property
    def is_open(self) -> bool:
        """Whether a marker is, or may be, missing in one of its partitions."""
        return self.status in _OPEN

    @property
    def timeout_ms(self) -> int:
        return self.value.transaction_timeout_ms

    @property
    def start_ms(self) -> int:
        """Start time (ms) of the last transaction; below 0 for an id without one."""
        return self.value.transaction_start_timestamp_ms

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(
            TopicPartition(topic.topic, partition)
            for topic in self.value.transaction_partitions or ()
            for partition in topic.partition_ids
        )

    def covers(self, topic_partition: TopicPartition, producer_id: int) -> bool:
        """Whether the producer's open transaction in the partition is this one."""
        return self.is_open and self.producer_id == producer_id and topic_partition in self.partitions

    def completed(self, *, is_commit: bool, producer_epoch: int, now_ms: int) -> tuple[bytes, bytes]:
        """Key and value of the record that says that all markers are written (TransactionMetadata.prepareComplete)."""
        value = self.value.replace(
            producer_epoch=producer_epoch,
            transaction_status=TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT,
            transaction_partitions=(),
            transaction_last_update_timestamp_ms=now_ms,
        )
        if self.version >= 1:
            next_producer_id = value.next_producer_id
            value = value.replace(previous_producer_id=self.producer_id, next_producer_id=_NO_PRODUCER_ID)
            if next_producer_id != _NO_PRODUCER_ID and value.client_transaction_version >= _TV2:
                # The old id's epochs are exhausted.
                value = value.replace(producer_id=next_producer_id, producer_epoch=0)
        key = TransactionLogKey(transactional_id=self.transactional_id)
        return (
            _INT16.pack(key.schema().api_key) + key.encode(0),
            _INT16.pack(self.version) + value.encode(self.version),
        )


def read_transaction_states(partitions: Iterable[PartitionSnapshot]) -> dict[str, TransactionState]:
    """The state of each transactional id, by name, from partitions of `__transaction_state`, to their high watermarks.

    Records that no Kafka version up to 4.1 writes are ignored. Raises DiskFormatError for damage.
    """
    import pyarrow as pa  # not needed to read the ends of logs

    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    states: dict[str, TransactionState] = {}
    for each in partitions:
        reader = LogReader(each.extents(), each.topic_partition)
        latest: dict[bytes, bytes | None] = {}
        for batch in reader.read(each.log_start_offset, each.high_watermark, schema=schema):
            latest.update(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
        for key, value in latest.items():
            parsed = parse_transaction_record(key, value, each.partition)
            if parsed is not None and parsed[1] is not None:
                states[parsed[0]] = parsed[1]
    return states


def parse_transaction_record(
    key: bytes | None, value: bytes | None, partition: int
) -> tuple[str, TransactionState | None] | None:
    """The transactional id of a record of `__transaction_state`, and its state, None if the record removes the id.

    None for a record that no Kafka version up to 4.1 writes.
    """
    if key is None or len(key) < _INT16.size or (value is not None and len(value) < _INT16.size):
        return None
    (record_type,) = _INT16.unpack_from(key)
    if record_type != TransactionLogKey.schema().api_key:
        return None
    try:
        name = TransactionLogKey.decode(0, key[_INT16.size :], allow_trailing=True).transactional_id
        if value is None:
            return name, None
        (version,) = _INT16.unpack_from(value)
        decoded = TransactionLogValue.decode(version, value[_INT16.size :], allow_trailing=True)
    except KafkalogError as error:
        _LOG.warning("%s-%d: a record that cannot be decoded is skipped: %s", TRANSACTION_STATE_TOPIC, partition, error)
        return None
    return name, TransactionState(transactional_id=name, state_partition=partition, version=version, value=decoded)


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
                    start_ms=start_ms if start_ms >= 0 else _first_timestamp_ms(each, producer),
                    transactional_id=name,
                    state=state if is_covered else None,
                )
            )
    return OpenTransactions(tuple(found), tuple(state for state in states.values() if state.is_open))


def open_transactions_of(root: FileRoot) -> OpenTransactions:
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


def transaction_states_of(root: FileRoot) -> Mapping[str, TransactionState]:
    """The states in a native root's `__transaction_state`: those of the former broker, and those added since."""
    if TRANSACTION_STATE_TOPIC not in root.topics():
        return {}
    return read_transaction_states(root.topic(TRANSACTION_STATE_TOPIC).partitions)


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


def _first_timestamp_ms(found: PartitionSnapshot, producer: ProducerState) -> int:
    """The time of the transaction's first batch in the partition; below 0 if its segment is missing or damaged."""
    first_offset = producer.current_txn_first_offset
    extents = [each for each in found.extents().current() if each.base_offset <= first_offset]
    if not extents:
        return NO_TIMESTAMP
    try:
        with SegmentReader(extents[-1]) as segment:
            located = segment.locate(first_offset)
    except (FileNotFoundError, DiskFormatError):
        return NO_TIMESTAMP
    if located is None:
        return NO_TIMESTAMP
    header = located[1]
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return header.max_timestamp_ms if is_append_time else header.base_timestamp_ms


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


def abort_transaction(root: FileRoot, topic_partition: TopicPartition, first_offset: int) -> EndedTransaction:
    """Abort the open transaction that began at `first_offset` of the partition, in one durable commit.

    If `__transaction_state` has the transaction, it is aborted in all its partitions. Raises OffsetOutOfRangeError if
    no open transaction begins there, CommitConflictError if it has been decided to commit, UnknownTopicError, and the
    errors of `MetadataStore.commit`.
    """

    def abort(ending: _Ending) -> None:
        producer = ending.open_producer(topic_partition, first_offset)
        states = transaction_states_of(root).values()
        state = next((each for each in states if each.covers(topic_partition, producer.producer_id)), None)
        if state is not None:
            _abort(ending, state)
        else:
            ending.mark(topic_partition, producer, producer.producer_epoch)

    return _Ending(root, abort).commit(_ABORT_OPERATION)


def abort_transactional_id(root: FileRoot, transactional_id: str) -> EndedTransaction:
    """Abort the open transaction of `transactional_id` in all its partitions, in one durable commit.

    Raises UnknownTopicError if `__transaction_state` has no open one, CommitConflictError if it was decided to commit.
    """
    return _Ending(root, lambda ending: _abort(ending, _open_state(root, transactional_id))).commit(_ABORT_OPERATION)


def complete_transactional_id(root: FileRoot, transactional_id: str) -> EndedTransaction:
    """Complete the transaction of `transactional_id` as decided, by commit or abort, in one durable commit.

    Raises UnknownTopicError if `__transaction_state` has no open one, CommitConflictError if it is undecided.
    """

    def complete(ending: _Ending) -> None:
        state = _open_state(root, transactional_id)
        if state.status not in _DECIDED:
            raise CommitConflictError(
                f"the transaction of transactional id {transactional_id!r} is undecided ({state.status_name}): its "
                "producer has not ended it, so it can only be aborted"
            )
        _end(ending, state, is_commit=state.status == TransactionStatus.PREPARE_COMMIT)

    return _Ending(root, complete).commit(_COMPLETE_OPERATION)


def _open_state(root: FileRoot, transactional_id: str) -> TransactionState:
    state = transaction_states_of(root).get(transactional_id)
    if state is None:
        raise UnknownTopicError(f"transactional id {transactional_id!r} is not in {TRANSACTION_STATE_TOPIC}")
    if not state.is_open:
        raise UnknownTopicError(
            f"transactional id {transactional_id!r} has no open transaction: its state is {state.status_name}"
        )
    return state


def _abort(ending: _Ending, state: TransactionState) -> None:
    if state.status == TransactionStatus.PREPARE_COMMIT:
        raise CommitConflictError(
            f"the transaction of transactional id {state.transactional_id!r} is in state PrepareCommit: it was "
            "committed and lacks only markers, so aborting it would lose records: use kafkalog transactions complete"
        )
    _end(ending, state, is_commit=False)


def _end(ending: _Ending, state: TransactionState, *, is_commit: bool) -> None:
    epoch = state.producer_epoch
    if state.status not in _DECIDED:
        epoch = min(epoch + 1, MAX_EPOCH)
    ending.begin(state, is_commit=is_commit)
    for topic_partition in sorted(state.partitions):
        producer = ending.producer_in_transaction(topic_partition, state.producer_id)
        if producer is not None:
            ending.mark(topic_partition, producer, max(epoch, producer.producer_epoch))
    ending.append_completed(producer_epoch=epoch)


class _Ending:
    """The end of one transaction: what `decide` makes it append, as one unit of a commit of its own."""

    def __init__(self, root: FileRoot, decide: Callable[[_Ending], None]) -> None:
        self._root = root
        self._decide = decide
        self._image = root.store.image
        self._begin()

    def _begin(self) -> None:
        self._state: TransactionState | None = None
        self._is_commit = False
        self._marked: list[tuple[TopicPartition, ProducerState]] = []
        self._appends: list[LeaderAppend] = []

    def commit(self, operation: str) -> EndedTransaction:
        """Decide by the newest image, append, wait for the disk, and publish. Raises what `decide` raises."""
        from pyspark_kafkalog.root.leader.file_writer import (
            FileLeaderWriter,
        )  # loads numba, which reading does not need

        writer = FileLeaderWriter(self._root, flush="fsync", operation=operation)
        try:
            (result,) = writer.commit([CommitUnit(appends=self._plan)])
        finally:
            writer.close()
        if isinstance(result, KafkalogError):
            raise result
        return self._ended(result)

    def _plan(self, image: MetadataImage) -> Sequence[LeaderAppend]:
        self._image = image
        self._begin()
        self._decide(self)
        return self._appends

    def _ended(self, appended: Sequence[AppendedRange]) -> EndedTransaction:
        partitions = tuple(
            EndedPartition(
                topic_partition=topic_partition,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                first_offset=producer.current_txn_first_offset,
                marker_offset=marker.first_offset,
                last_stable_offset=self._root.partition(
                    topic_partition.topic, topic_partition.partition
                ).last_stable_offset,
            )
            for (topic_partition, producer), marker in zip(self._marked, appended, strict=False)
        )
        if self._state is None:
            return EndedTransaction(None, self._is_commit, partitions)
        elsewhere = tuple(each for each in sorted(self._state.partitions) if not self.has(each))
        return EndedTransaction(self._state.transactional_id, self._is_commit, partitions, elsewhere)

    # What `decide` finds out

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
            expiration_ms=self._root.broker_config().producer_id_expiration_ms,
            now_ms=self._root.clock(),
        )
        return [each for each in producers if each.current_txn_first_offset >= 0]

    # What `decide` appends

    def begin(self, state: TransactionState, *, is_commit: bool) -> None:
        """End the transaction of `state`, by a commit or an abort; without this, an unrecorded one is aborted."""
        self._state, self._is_commit = state, is_commit

    def mark(self, topic_partition: TopicPartition, producer: ProducerState, epoch: int) -> None:
        """Append the marker that ends the producer's transaction in the partition. All markers come first."""
        kind = ControlRecordType.COMMIT if self._is_commit else ControlRecordType.ABORT
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=max(producer.coordinator_epoch, 0))
        self._append(
            topic_partition, build_control_record(marker), producer_id=producer.producer_id, producer_epoch=epoch
        )
        self._marked.append((topic_partition, producer))

    def append_completed(self, *, producer_epoch: int) -> None:
        """Append the record to `__transaction_state` that all markers are written."""
        state = self._state
        assert state is not None
        now_ms = self._root.clock()
        record = state.completed(is_commit=self._is_commit, producer_epoch=producer_epoch, now_ms=now_ms)
        self._append(TopicPartition(TRANSACTION_STATE_TOPIC, state.state_partition), record)

    def _append(
        self,
        topic_partition: TopicPartition,
        key_and_value: tuple[bytes, bytes],
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> None:
        """Append one record, a marker of `producer_id` if given."""
        key, value = key_and_value
        is_marker = producer_id != NO_PRODUCER_ID
        data = encode_batch(
            [Record(offset=0, timestamp_ms=self._root.clock(), key=key, value=value)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=is_marker,
            is_control=is_marker,
        )
        origin = AppendOrigin.COORDINATOR
        self._appends.append(LeaderAppend(topic_partition=topic_partition, data=data, origin=origin))
