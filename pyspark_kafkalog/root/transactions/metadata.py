"""What the coordinator knows of one transactional id, its transitions, and the record that holds it.

    Empty ──────► Ongoing ──► PrepareCommit ──► CompleteCommit ──┐
      │  ▲           │  ▲                                        │
      │  │           │  └────────── first partition ─────────────┤
      │  │           ▼                                           │
      │  │       PrepareAbort ──► CompleteAbort ─────────────────┤
      │  └───────────────────── InitProducerId ──────────────────┘
      └── abort without a partition (transaction version 2) ──► PrepareAbort

Both Prepare states exist in the log only: the server writes Prepare, the markers and Complete in one commit. A log that
a broker left may end with one of them.

Transaction version 2 (KIP-890): each end of a transaction raises the producer epoch, so that a late request of an ended
transaction is fenced. The epoch INT16_MAX - 1 is the last one that a producer gets; after it comes a new producer id.

A record, `TransactionLogValue` version 1, is what Kafka 4.1 writes with transaction.version 1 or more; in version 0 it
has neither other producer ids nor a client version. The epoch before
the last one is not in it, as in Kafka: a retried InitProducerId with an epoch is recognized by the server that answered
it the first time. The producer id before the last one is written when it changes.

Nothing here reads or writes: the clock and new producer ids are passed in.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata and TransactionLog.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from pyspark_kafkalog.metadata.messages.internal_records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from pyspark_kafkalog.root.transactions.states import TransactionState, TransactionStatus
from pyspark_kafkalog.root.writes import LAST_PRODUCER_EPOCH
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import INT16_MAX

#: Client versions of transactions (TransactionVersion): the original protocol, and an epoch for each transaction.
TV0: Final = 0
TV2: Final = 2

#: The version of the values of records, unless another one is asked for.
VALUE_VERSION: Final = 1
_INT16: Final = struct.Struct(">h")
NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()
_PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
_EXPIRABLE: Final = frozenset(
    {TransactionStatus.EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT}
)


class FencedEpochError(Exception):
    """The epoch that a producer expects is neither the current one nor the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """One transactional id. Times are in ms since 1970; `start_ms` is -1 for an id without a transaction.

    `client_version` is the transaction version of the client that made the last transition. `next_producer_id` is only
    set in Prepare states of a log that a broker wrote.
    """

    transactional_id: str
    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int
    status: TransactionStatus
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int
    client_version: int = TV0

    # What it is

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided and markers may be missing."""
        return self.status in _PREPARED

    @property
    def is_finished(self) -> bool:
        """Whether no transaction is open, and none is waiting for its markers."""
        return self.status is not TransactionStatus.ONGOING and not self.is_prepared

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a producer."""
        return self.producer_epoch >= LAST_PRODUCER_EPOCH

    def needs_producer_id(self, expected_epoch: int | None) -> bool:
        """Whether the producer that begins, or continues from `expected_epoch`, needs a new producer id."""
        if expected_epoch in (None, self.producer_epoch):
            return self.is_exhausted
        return self.producer_epoch > LAST_PRODUCER_EPOCH and expected_epoch == self.last_producer_epoch

    def is_timed_out(self, now_ms: int) -> bool:
        return self.status is TransactionStatus.ONGOING and self.start_ms + self.timeout_ms < now_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id was unused for so long that it is forgotten."""
        return self.status in _EXPIRABLE and self.last_update_ms <= now_ms - expiration_ms

    # Transitions

    @classmethod
    def created(cls, transactional_id: str, *, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """A new id; it has no epoch before `with_next_epoch`."""
        return cls(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=NO_PRODUCER_EPOCH,
            timeout_ms=timeout_ms,
            status=TransactionStatus.EMPTY,
            last_update_ms=now_ms,
        )

    def with_next_epoch(self, *, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> TransactionMetadata:
        """Empty, for a producer that begins; with `expected_epoch`, for one that continues after an error (KIP-360).

        A producer that repeats such a call gets the epoch that it got before. Raises FencedEpochError.
        """
        epoch, last_epoch = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected_epoch is not None:
            if expected_epoch == self.producer_epoch or self.producer_epoch == NO_PRODUCER_EPOCH:
                last_epoch = self.producer_epoch
            elif expected_epoch == self.last_producer_epoch:
                repeated = self._emptied(
                    self.producer_id, self.producer_epoch, self.last_producer_epoch, timeout_ms, now_ms
                )
                return replace(repeated, previous_producer_id=self.previous_producer_id)
            else:
                raise FencedEpochError
        if epoch > LAST_PRODUCER_EPOCH:
            raise FencedEpochError
        return self._emptied(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def with_producer_id(
        self, producer_id: int, *, timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> TransactionMetadata:
        """Empty, with a new producer id; with `expected_epoch`, the producer may repeat the call."""
        last_epoch = NO_PRODUCER_EPOCH if expected_epoch is None else expected_epoch
        return self._emptied(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def _emptied(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return replace(
            self,
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            status=TransactionStatus.EMPTY,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIMESTAMP,
            last_update_ms=now_ms,
        )

    def with_partitions(
        self, added: Collection[TopicPartition], *, client_version: int, now_ms: int
    ) -> TransactionMetadata:
        """Ongoing, with `added` among the partitions."""
        is_first = self.status is not TransactionStatus.ONGOING
        return replace(
            self,
            previous_producer_id=self.producer_id,
            status=TransactionStatus.ONGOING,
            partitions=self.partitions | frozenset(added),
            start_ms=now_ms if is_first else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepared(
        self, *, is_commit: bool, client_version: int, next_producer_id: int = NO_PRODUCER_ID, now_ms: int
    ) -> TransactionMetadata:
        """PrepareCommit or PrepareAbort. Version 2 raises the epoch, up to INT16_MAX, which no producer gets."""
        is_v2 = client_version >= TV2
        return replace(
            self,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            producer_epoch=min(self.producer_epoch + 1, INT16_MAX) if is_v2 else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if is_v2 else self.last_producer_epoch,
            status=TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT,
            start_ms=self.start_ms if self.status is TransactionStatus.ONGOING else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def completed(self, *, now_ms: int) -> TransactionMetadata:
        """CompleteCommit or CompleteAbort, after a Prepare state; with the next producer id if there is one."""
        is_commit = self.status is TransactionStatus.PREPARE_COMMIT
        is_rotated = self.client_version >= TV2 and self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            producer_id=self.next_producer_id if is_rotated else self.producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=0 if is_rotated else self.producer_epoch,
            status=TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT,
            partitions=NO_PARTITIONS,
            last_update_ms=now_ms,
        )

    # Records

    def value(self, version: int = VALUE_VERSION) -> bytes:
        """The value of the record in `__transaction_state`, with the producer ids before and after (KAFKA-20310)."""
        value = TransactionLogValue(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=int(self.status),
            transaction_partitions=None if self.status is TransactionStatus.EMPTY else _schema(self.partitions),
            transaction_last_update_timestamp_ms=self.last_update_ms,
            transaction_start_timestamp_ms=self.start_ms,
        )
        if version >= 1:
            value = value.replace(
                previous_producer_id=self.previous_producer_id,
                next_producer_id=self.next_producer_id,
                client_transaction_version=self.client_version,
            )
        return _INT16.pack(version) + value.encode(version)

    @classmethod
    def of_record(cls, state: TransactionState, before: TransactionMetadata | None) -> TransactionMetadata | None:
        """The metadata in a record, which follows `before` in the log; None for a status that Kafka 4.1 has not."""
        value = state.value
        try:
            status = TransactionStatus(value.transaction_status)
        except ValueError:
            return None
        previous = value.previous_producer_id
        if previous == NO_PRODUCER_ID and before is not None:
            previous = before.producer_id
        return cls(
            transactional_id=state.transactional_id,
            producer_id=value.producer_id,
            previous_producer_id=previous,
            next_producer_id=value.next_producer_id,
            producer_epoch=value.producer_epoch,
            timeout_ms=value.transaction_timeout_ms,
            status=status,
            partitions=frozenset(state.partitions),
            start_ms=value.transaction_start_timestamp_ms,
            last_update_ms=value.transaction_last_update_timestamp_ms,
            client_version=value.client_transaction_version,
        )


def record_key(transactional_id: str) -> bytes:
    """The key of the id's records in `__transaction_state`."""
    key = TransactionLogKey(transactional_id=transactional_id)
    return _INT16.pack(key.schema().api_key) + key.encode(0)


def by_topic(partitions: frozenset[TopicPartition]) -> dict[str, tuple[int, ...]]:
    """The numbers of the partitions by topic, both in order."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for each in sorted(partitions):
        numbers[each.topic].append(each.partition)
    return {topic: tuple(ids) for topic, ids in numbers.items()}


def _schema(partitions: frozenset[TopicPartition]) -> tuple[PartitionsSchema, ...]:
    return tuple(PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic(partitions).items())
