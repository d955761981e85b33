"""The end of a transaction: the states that its transactional id goes through, and the markers of its partitions.

Pure functions, from the metadata of an id to what one commit writes as a whole. A transaction ends by a request of its
producer, by its timeout, or by an operator.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata and
kafka.coordinator.transaction.TransactionCoordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark_kafkalog.root.transactions.metadata import TV2, TransactionMetadata
from pyspark_kafkalog.root.transactions.states import TransactionStatus
from pyspark_kafkalog.storage.names import TopicPartition


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
