"""What a request does to a transactional id: pure functions from its metadata to a decision.

A decision is made from the newest state, inside of a commit, and that commit carries it out as a whole:

    steps       the records for `__transaction_state`, in order
    markers     the ends of transactions: a marker for each partition
    error       the client's answer; steps and markers may go with it
    after       the metadata after the steps, which the answer is made of

No request ever waits for a transaction to complete. A Prepare state, which a broker left when it died, is completed by
the first request that meets it (`finished`). InitProducerId with a transaction open aborts it and continues, where
Kafka answers CONCURRENT_TRANSACTIONS and expects the producer to ask again; the records are the same.

Ending a transaction in version 2, where `current` is the producer's epoch and `retry` the one before it:

                      abort, retry    abort, current    commit, retry    commit, current
    Empty             fenced          next epoch        fenced           invalid state
    CompleteAbort     success         next epoch        invalid state    invalid state
    CompleteCommit    invalid state   next epoch        success          invalid state

Source of the rules: kafka.coordinator.transaction.TransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH
from pyspark_kafkalog.root.transactions.end_transaction import Ending, Markers, abort_and_fence, complete, end
from pyspark_kafkalog.root.transactions.metadata import TV2, FencedEpochError, TransactionMetadata
from pyspark_kafkalog.root.transactions.states import TransactionStatus
from pyspark_kafkalog.root.writes import LAST_PRODUCER_EPOCH
from pyspark_kafkalog.storage.names import TopicPartition

_COMPLETE: Final = {TransactionStatus.COMPLETE_COMMIT: True, TransactionStatus.COMPLETE_ABORT: False}


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """A producer as a request names it."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to write and what to answer."""

    error: ErrorCode = ErrorCode.NONE
    after: TransactionMetadata | None = None
    steps: tuple[TransactionMetadata, ...] = ()
    markers: tuple[Markers, ...] = ()


Decide: TypeAlias = Callable[[TransactionMetadata | None], Decision]


class NeedsProducerIdError(KafkalogError):
    """The decision needs a new producer id, and none was passed in."""


def finished(metadata: TransactionMetadata | None, decide: Decide, *, now_ms: int) -> Decision:
    """What `decide` makes of the metadata; a transaction that is decided and not complete is completed first."""
    if metadata is None or not metadata.is_prepared:
        return decide(metadata)
    first = _ended(complete(metadata, now_ms=now_ms))
    return _then(first, decide(first.after))


def _ended(ending: Ending) -> Decision:
    """The decision to end a transaction; one without partitions gets no marker."""
    markers = (ending.markers,) if ending.markers.partitions else ()
    return Decision(after=ending.after, steps=ending.steps, markers=markers)


def _then(first: Decision, second: Decision) -> Decision:
    after = first.after if second.after is None else second.after
    return Decision(
        error=second.error, after=after, steps=(*first.steps, *second.steps), markers=(*first.markers, *second.markers)
    )


def _refused(error: ErrorCode) -> Decision:
    return Decision(error=error)


# InitProducerId


def init_producer_id(
    metadata: TransactionMetadata | None,
    *,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    new_producer_id: int | None,
    now_ms: int,
) -> Decision:
    """Give a producer its id and epoch, which fences earlier ones; a transaction that they left open is aborted.

    `expected`: the id and epoch that the producer has had, if it continues after an error. Raises NeedsProducerIdError.
    """
    if metadata is None:
        if new_producer_id is None:
            raise NeedsProducerIdError
        metadata = TransactionMetadata.created(
            transactional_id, producer_id=new_producer_id, timeout_ms=timeout_ms, now_ms=now_ms
        )
    if expected is not None and not _may_be_current(metadata, expected):
        return _refused(ErrorCode.PRODUCER_FENCED)
    first = Decision(after=metadata)
    if metadata.status is TransactionStatus.ONGOING:
        first = _ended(abort_and_fence(metadata, now_ms=now_ms))
        assert first.after is not None
        metadata = first.after
    epoch = None if expected is None else expected.producer_epoch
    try:
        if metadata.needs_producer_id(epoch):
            if new_producer_id is None:
                raise NeedsProducerIdError
            after = metadata.with_producer_id(
                new_producer_id, timeout_ms=timeout_ms, expected_epoch=epoch, now_ms=now_ms
            )
        else:
            after = metadata.with_next_epoch(timeout_ms=timeout_ms, expected_epoch=epoch, now_ms=now_ms)
    except FencedEpochError:
        # Without the abort, which Kafka makes: a zombie shall not end the transaction of the producer after it.
        return _refused(ErrorCode.PRODUCER_FENCED)
    return _then(first, Decision(after=after, steps=(after,)))


def _may_be_current(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether the id is the current one, or, in a repeated call, the one before, whose epochs are exhausted."""
    if metadata.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == metadata.producer_id:
        return True
    return expected.producer_id == metadata.previous_producer_id and expected.producer_epoch >= LAST_PRODUCER_EPOCH


# Partitions


def add_partitions(
    metadata: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    client_version: int,
    now_ms: int,
) -> Decision:
    """Add partitions to the producer's transaction, which begins with the first one."""
    error = _check_producer(metadata, producer)
    if error is not ErrorCode.NONE or metadata is None:
        return _refused(error)
    if metadata.status is TransactionStatus.ONGOING and metadata.partitions.issuperset(partitions):
        return Decision(after=metadata)
    after = metadata.with_partitions(partitions, client_version=client_version, now_ms=now_ms)
    return Decision(after=after, steps=(after,))


def verify_partitions(
    metadata: TransactionMetadata | None, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Whether each partition was added to the producer's transaction; TRANSACTION_ABORTABLE if not."""
    error = _check_producer(metadata, producer)
    if error is not ErrorCode.NONE or metadata is None:
        return dict.fromkeys(partitions, error)
    return {
        each: ErrorCode.NONE if each in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE for each in partitions
    }


def _check_producer(metadata: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> ErrorCode:
    if metadata is None or metadata.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != producer.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


# EndTxn


def end_transaction(
    metadata: TransactionMetadata | None,
    producer: ProducerIdAndEpoch,
    *,
    is_commit: bool,
    client_version: int,
    new_producer_id: int | None,
    now_ms: int,
) -> Decision:
    """Commit or abort the producer's transaction. Raises NeedsProducerIdError."""
    if metadata is None:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_version < TV2:
        return _end_v1(metadata, producer, is_commit=is_commit, client_version=client_version, now_ms=now_ms)
    is_overflow_retry = metadata.producer_epoch == 0 and _was_before(metadata, producer)
    if metadata.producer_id != producer.producer_id and not is_overflow_retry:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # Kafka does not look at the version of the last end, which a client of the old one made with this epoch.
    is_bumped = metadata.client_version >= TV2 and metadata.producer_epoch == producer.producer_epoch + 1
    is_retry = is_overflow_retry or is_bumped
    was_commit = _COMPLETE.get(metadata.status)
    if producer.producer_epoch != metadata.producer_epoch and not (is_retry and was_commit is not None):
        return _refused(ErrorCode.PRODUCER_FENCED)
    if is_retry:
        return Decision(after=metadata) if was_commit is is_commit else _refused(ErrorCode.INVALID_TXN_STATE)
    if metadata.status is not TransactionStatus.ONGOING and is_commit:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    return _end_v2(metadata, is_commit, client_version, new_producer_id, now_ms)


def _was_before(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether the producer is the one before the current producer id, which took over when its epochs were exhausted.

    A server that has read the id from the log does not know that one's epoch: it is the last one, but for a producer
    whose transaction had timed out in that epoch.
    """
    known = metadata.last_producer_epoch
    last_epoch = LAST_PRODUCER_EPOCH if known == NO_PRODUCER_EPOCH else known
    return (
        metadata.previous_producer_id == producer.producer_id != metadata.producer_id
        and producer.producer_epoch == last_epoch
    )


def _end_v2(
    metadata: TransactionMetadata, is_commit: bool, client_version: int, new_producer_id: int | None, now_ms: int
) -> Decision:
    if not metadata.is_exhausted:
        prepared = metadata.prepared(is_commit=is_commit, client_version=client_version, now_ms=now_ms)
    elif new_producer_id is None:
        raise NeedsProducerIdError
    else:
        prepared = metadata.prepared(
            is_commit=is_commit, client_version=client_version, next_producer_id=new_producer_id, now_ms=now_ms
        )
    return _ended(end(prepared, now_ms=now_ms))


def _end_v1(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, *, is_commit: bool, client_version: int, now_ms: int
) -> Decision:
    error = _check_producer(metadata, producer)
    if error is not ErrorCode.NONE:
        return _refused(error)
    if metadata.status is TransactionStatus.ONGOING:
        prepared = metadata.prepared(is_commit=is_commit, client_version=client_version, now_ms=now_ms)
        return _ended(end(prepared, now_ms=now_ms))
    if _COMPLETE.get(metadata.status) is is_commit:
        return Decision(after=metadata)
    return _refused(ErrorCode.INVALID_TXN_STATE)


# The sweep


def sweep(metadata: TransactionMetadata | None, *, now_ms: int) -> Decision:
    """Abort the transaction if it is older than its timeout."""
    if metadata is None or not metadata.is_timed_out(now_ms):
        return Decision(after=metadata)
    return _ended(abort_and_fence(metadata, now_ms=now_ms))
