"""The identity of a write, its place among the writes with the same transactional id, and the result of its commit.

Each version of a transactional id is committed once, and only by the id's current incarnation:

    version not above the last one      already committed: nothing is written
    current incarnation of the id       commits
    new incarnation                     takes over the id: producer epoch + 1, the incarnation before is fenced
    fenced incarnation                  a zombie: ProducerFencedError

The id of a streaming query is its query id, the versions are its batch ids, and each run of the query is an
incarnation. Producer id and epoch are Kafka's: ids are allocated in the commit log, and a new id follows when the
epochs are exhausted.

Nothing here writes: functions map an image to records or raise, and the commit decides.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata and TransactionCoordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from pyspark_kafkalog.errors import InvalidOptionError, ProducerFencedError
from pyspark_kafkalog.metadata.image import MetadataImage, TransactionalIdImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, ProducerIdsRecord, TransactionalIdRecord
from pyspark_kafkalog.record.header import NO_PRODUCER_ID
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import INT16_MAX, INT64_MAX

#: The last epoch that Kafka gives to a writer: the next one is reserved for fencing it.
LAST_PRODUCER_EPOCH: Final = INT16_MAX - 1


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """The identity of a write: `version` (0 or more) of `transactional_id`, by the writer's run `incarnation`."""

    transactional_id: str
    version: int
    incarnation: str

    def __post_init__(self) -> None:
        if not self.transactional_id or not 0 <= self.version <= INT64_MAX:
            raise InvalidOptionError(
                f"version {self.version} of transactional id {self.transactional_id!r}: expected a name and a number "
                f"from 0 to {INT64_MAX}"
            )


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """The offsets [first_offset, next_offset) that a commit appended to one partition."""

    topic_partition: TopicPartition
    first_offset: int
    next_offset: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A published commit: its offset in the commit log, None if there was nothing to commit, and the ranges written.

    `is_duplicate` means that the write had been committed before and nothing was written. `commit_offset` is then that
    commit's offset, or None if a later version has been committed since.
    """

    commit_offset: int | None
    partitions: tuple[CommittedPartition, ...]
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer that a transactional id writes as. `records` allocate its id if it is new."""

    producer_id: int
    producer_epoch: int
    records: tuple[MetadataRecord, ...] = ()


def is_committed(image: MetadataImage, transaction: WriteTransaction) -> bool:
    """Whether this version of the id, or a later one, has been committed."""
    known = image.transactional_ids.get(transaction.transactional_id)
    return known is not None and transaction.version <= known.version


def producer_of(image: MetadataImage, transactional_id: str, incarnation: str) -> Producer:
    """The producer that `incarnation` may write as. Raises ProducerFencedError if a later one has taken over the id."""
    known = image.transactional_ids.get(transactional_id)
    if known is not None and incarnation in known.fenced:
        raise ProducerFencedError(_fenced_text(known, incarnation))
    if known is None or known.producer_id == NO_PRODUCER_ID:
        return _new_producer(image)
    if incarnation == known.incarnation:
        return Producer(known.producer_id, known.producer_epoch)
    if known.producer_epoch >= LAST_PRODUCER_EPOCH:
        return _new_producer(image)
    return Producer(known.producer_id, known.producer_epoch + 1)


def take_over(
    image: MetadataImage, transactional_id: str, incarnation: str, *, now_ms: int
) -> tuple[MetadataRecord, ...]:
    """Records that make `incarnation` the id's current one; none if it already is. Raises ProducerFencedError."""
    known = image.transactional_ids.get(transactional_id)
    if known is not None and known.incarnation == incarnation:
        return ()
    producer = producer_of(image, transactional_id, incarnation)
    if known is None:
        known = TransactionalIdImage(transactional_id, -1, NO_PRODUCER_ID, -1, -1, -1)
    held = known.held_by(incarnation)
    taken = TransactionalIdRecord(
        transactional_id=transactional_id,
        version=known.version,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_commit_offset=known.last_commit_offset,
        last_timestamp_ms=now_ms,
        incarnation=held.incarnation,
        fenced=held.fenced,
    )
    return (*producer.records, taken)


def _new_producer(image: MetadataImage) -> Producer:
    broker = image.brokers[min(image.brokers)]
    producer_id = image.next_producer_id
    handed_out = ProducerIdsRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        next_producer_id=producer_id + 1,
    )
    return Producer(producer_id, 0, (handed_out,))


def _fenced_text(known: TransactionalIdImage, incarnation: str) -> str:
    at = datetime.fromtimestamp(known.last_timestamp_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    return (
        f"incarnation {incarnation} of transactional id {known.transactional_id!r} is fenced: incarnation "
        f"{known.incarnation} has taken the id over with producer epoch {known.producer_epoch}, last seen at {at}; "
        "stop this writer, the newer one goes on"
    )
