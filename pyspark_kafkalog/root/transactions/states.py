"""The last state of each transactional id, from the records of `__transaction_state`.

    key     int16 record type (0), transactional id
    value   int16 version (0 or 1), producer id and epoch, timeout, status, partitions of the transaction, timestamps

The last value of a key counts; a null value means that the id has expired. A transaction whose last status is
PrepareCommit or PrepareAbort is decided: its producer, or its timeout, has ended it, and markers may be missing in some
of its partitions. Transactions with the status Ongoing are undecided.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionLog, TransactionMetadata and TransactionState.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.coordinator_records import TransactionLogKey, TransactionLogValue
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition

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
