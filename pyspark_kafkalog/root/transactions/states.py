"""The last state of each transactional id, from the records of `__transaction_state`, and the open transactions.

    key     int16 record type (0), transactional id
    value   int16 version (0 or 1), producer id and epoch, timeout, status, partitions of the transaction, timestamps

The last value of a key counts; a null value means that the id has expired. A transaction whose last status is
PrepareCommit or PrepareAbort is decided: its producer, or its timeout, has ended it, and markers may be missing in some
of its partitions. Transactions with the status Ongoing are undecided.

Open transactions are found in the partitions, and named by the coordinator's states. The newest producer snapshot of a
partition and the batches after it give the open transactions by producer id. The transactional id and the status come
from `__transaction_state`. A transaction without a record there was left hanging by a broker, or the coordinator's
partition is in another directory.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionLog, TransactionMetadata and TransactionState.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.internal_records import TransactionLogKey, TransactionLogValue
from pyspark_kafkalog.record.header import NO_TIMESTAMP, TimestampType
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.log.producers import ProducerState
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.values import dataclass

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"

_INT16: Final = struct.Struct(">h")
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


def transaction_states_of(root: NativeRoot, image: MetadataImage | None = None) -> Mapping[str, TransactionState]:
    """The states in a native root's `__transaction_state`, as of `image`, None for that of the last refresh."""
    image = root.store.image if image is None else image
    topic = image.topics.get(TRANSACTION_STATE_TOPIC)
    if topic is None:
        return {}
    return read_transaction_states(
        root.partition_in(image, TRANSACTION_STATE_TOPIC, each.partition) for each in topic.partitions
    )


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
    partitions: Iterable[PartitionSnapshot], states: Mapping[str, TransactionState], *, expiration_ms: int, now_ms: int
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
    stored = snapshot.stored_producers()
    if stored is not None:
        return sorted(stored, key=lambda each: each.producer_id)
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
