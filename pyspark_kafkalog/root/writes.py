"""A write: its identity and place among those of its transactional id, and its commit's result.

Each version of a transactional id is committed once, and only by the id's current incarnation:

    the last committed version          a replay: nothing is written, and a line of the log says so
    a lower version, fenced             a zombie: ProducerFencedError
    a lower version                     LowerVersionError, or skipped like a replay if the write says `skip`
    current incarnation of the id       commits
    new incarnation                     takes over the id: producer epoch + 1, the incarnation before is fenced
    fenced incarnation                  a zombie: ProducerFencedError

A lower version is no replay: Spark repeats only the last micro-batch, and a scheduler only the run that failed. It
comes from a back-fill, or from a checkpoint that was deleted or restored to an older state, and its records are others
than those that the version had before.

The id of a streaming query is its query id, the versions are its batch ids, and each run of the query is an
incarnation. Producer id and epoch are Kafka's: ids are allocated in the commit log, and a new id follows when the
epochs are exhausted. Functions map an image to records or raise, and the commit decides.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata and TransactionCoordinator.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, get_args

from pyspark_kafkalog.config.definitions import LowerVersion
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError, LowerVersionError, ProducerFencedError
from pyspark_kafkalog.metadata.commit_log import CommitLog
from pyspark_kafkalog.metadata.image import MetadataImage, TransactionalIdImage
from pyspark_kafkalog.metadata.messages.metadata_records import (
    MetadataRecord,
    ProducerIdsRecord,
    TransactionalIdRecord,
    WriteCommitRecord,
)
from pyspark_kafkalog.record.header import NO_PRODUCER_ID
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import INT16_MAX, INT64_MAX, iso_utc
from pyspark_kafkalog.values import check_one_of, dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.commit.staging import Staged

_LOG: Final = logging.getLogger(__name__)

#: The last epoch that Kafka gives to a writer: the next one is reserved for fencing it.
LAST_PRODUCER_EPOCH: Final = INT16_MAX - 1


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """The identity of a write: `version` (0 or more) of `transactional_id`, by the writer's run `incarnation`.

    `lower_version` says what happens to the write if a later version has been committed.
    """

    transactional_id: str
    version: int
    incarnation: str
    lower_version: LowerVersion = "fail"

    def __post_init__(self) -> None:
        if not self.transactional_id or not 0 <= self.version <= INT64_MAX:
            raise InvalidOptionError(
                f"version {self.version} of transactional id {self.transactional_id!r}: expected a name and a number "
                f"from 0 to {INT64_MAX}"
            )
        check_one_of("lower_version", self.lower_version, get_args(LowerVersion))


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
    commit's offset, or None if a lower version was skipped.
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


def committed_before(
    image: MetadataImage, transaction: WriteTransaction, log: CommitLog
) -> TransactionalIdImage | None:
    """The id's state if the write is to be skipped: its version is the last committed one, or lower and to be skipped.

    `log` holds the commits of `image`. Raises LowerVersionError for another lower version, ProducerFencedError if a
    later incarnation has taken over the id from its writer.
    """
    known = image.transactional_ids.get(transaction.transactional_id)
    if known is None or transaction.version > known.version:
        return None
    if transaction.version == known.version or transaction.lower_version == "skip":
        return known
    if transaction.incarnation in known.fenced:
        raise ProducerFencedError(_fenced_text(known, transaction.incarnation))
    raise LowerVersionError(
        f"version {transaction.version} of transactional id {known.transactional_id!r} is below "
        f"{_last_version_text(known, log)}: nothing was written, as no replay has a lower version. If the checkpoint "
        "was deleted or restored to an older state, use a new checkpoint and a new id; if another run of the query has "
        "gone on, stop it and start this one again; give a back-fill an id of its own. txnLowerVersion=skip "
        "(lower_version='skip' of LogDir.append) skips lower versions"
    )


def skip(transaction: WriteTransaction, known: TransactionalIdImage, log: CommitLog) -> CommitResult:
    """Log that the write is skipped, and return its result; `known` is what `committed_before` returned."""
    name, version = known.transactional_id, transaction.version
    if version == known.version:
        _LOG.warning(
            "version %d of transactional id %r was committed%s: this write is a replay and was skipped",
            version,
            name,
            _commit_text(known, log),
        )
        return CommitResult(known.last_commit_offset, (), is_duplicate=True)
    last = _last_version_text(known, log)
    _LOG.warning("version %d of transactional id %r is below %s: this write was skipped", version, name, last)
    return CommitResult(None, (), is_duplicate=True)


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


def expired_ids(image: MetadataImage, *, unused_since_ms: int, most: int) -> list[TransactionalIdRecord]:
    """Records that make the root forget at most `most` of the ids that were last used before that time.

    A write is one commit, so none of the ids has an open transaction. A root that follows has the ids of its leader.
    """
    if image.following is not None:
        return []
    old = (each for each in image.transactional_ids.values() if each.last_timestamp_ms < unused_since_ms)
    return [TransactionalIdRecord(transactional_id=each.transactional_id) for each in itertools.islice(old, most)]


def _new_producer(image: MetadataImage) -> Producer:
    broker = image.brokers[min(image.brokers)]
    producer_id = image.next_producer_id
    handed_out = ProducerIdsRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, next_producer_id=producer_id + 1
    )
    return Producer(producer_id, 0, (handed_out,))


def _last_version_text(known: TransactionalIdImage, log: CommitLog) -> str:
    return f"the last committed version {known.version}, committed{_commit_text(known, log)}"


def _commit_text(known: TransactionalIdImage, log: CommitLog) -> str:
    """When the last version was committed: of its commit if the history retains it, else when the id was last used."""
    try:
        commit = log.read(known.last_commit_offset) if known.last_commit_offset >= 0 else None
    except (KafkalogError, OSError):
        commit = None
    # In a restored backup another commit may have the offset.
    if commit is not None and any(
        isinstance(each, WriteCommitRecord)
        and (each.transactional_id, each.transaction_version) == (known.transactional_id, known.version)
        for each in commit.records
    ):
        return f" at {iso_utc(commit.timestamp_ms)} (commit {commit.base_offset})"
    return f" before {iso_utc(known.last_timestamp_ms)}"


def _fenced_text(known: TransactionalIdImage, incarnation: str) -> str:
    at = iso_utc(known.last_timestamp_ms)
    return (
        f"incarnation {incarnation} of transactional id {known.transactional_id!r} is fenced: incarnation "
        f"{known.incarnation} has taken the id over with producer epoch {known.producer_epoch}, last seen at {at}; "
        "stop this writer, the newer one goes on"
    )


def topics_of(staged: Sequence[Staged]) -> set[str]:
    """The topics that `staged` is for."""
    return {topic for each in staged for topic in each.topics}
