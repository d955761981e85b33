"""What a coordinator writes: the end of a transaction, states of transactional ids, and markers, as batches.

A transaction ends by a request of its producer, by its timeout, or by an operator. `Ending` is what one commit writes
for it as a whole; it follows from the metadata of the id alone.

A marker can be too old for a partition: `kafka-transactions abort` writes markers with any epoch. With the last epochs
of the producer there (`MarkerFloor`), it gets their coordinator epoch, or is left out where a newer epoch of the
producer has written, as in Kafka.

Source of the rules: org.apache.kafka.coordinator.transaction.TransactionMetadata, kafka.coordinator.transaction.
TransactionCoordinator and TransactionMarkerChannelManager, and kafka.server.KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.record.control import ControlRecordType, EndTransactionMarker, build_control_record
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import AppendOrigin, LeaderAppend
from pyspark_kafkalog.root.transactions.metadata import TV2, VALUE_VERSION, TransactionMetadata, record_key
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


def removal_append(
    topic_partition: TopicPartition, transactional_ids: Sequence[str], *, topic_id: str, now_ms: int
) -> LeaderAppend:
    """One batch with records that remove the ids."""
    records = [
        Record(offset=at, timestamp_ms=now_ms, key=record_key(each), value=None)
        for at, each in enumerate(transactional_ids)
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


_KINDS: Final = {True: ControlRecordType.COMMIT, False: ControlRecordType.ABORT}


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
