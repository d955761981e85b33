"""The producers of partitions in an object store: sequences and epochs for idempotence, and open transactions.

    state of a partition     the producer snapshot of its newest segment, and the batches of producers in its runs,
                             which the image holds (storage/objects/data_object.py)

A process keeps the states of partitions that it has written to, and brings them forward by what each newer image has
beyond them, by any writer. That takes no request. A state is read again, with one request, if a merge went past
it. So it never depends on what this process believes to have committed. A snapshot has the last batch of each producer
alone: if an earlier one is sent again, it is looked for in the segments (`recall`), so that a retry which another
process receives after a merge is still known as a duplicate. Producers expire when a merge makes the next
snapshot, and here when they are many: by the times of their records, as in a broker.

Source of the rules: ProducerStateManager and ProducerStateEntry of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.record.control import ControlRecordType
from pyspark_kafkalog.record.header import CONTROL_MASK
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.storage.artefacts.producer_snapshot import NO_OFFSET, ProducerStateEntry, decode_snapshot
from pyspark_kafkalog.storage.log.producers import (
    BATCHES_TO_RETAIN,
    BatchMetadata,
    ProducerBatch,
    Producers,
    ProducerState,
    producer_batches,
)
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import ProducerBatchKind, producer_batch_dtype
from pyspark_kafkalog.tiered.objects import IndexKind, ReadableObjects
from pyspark_kafkalog.tiered.own_segments import OwnLayout
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.reader import LogReader

#: A process keeps the states of partitions with so many producers together, about a KiB each.
_PRODUCERS_MAX: Final = 50_000
_PARTITIONS_MAX: Final = 10_000
#: How much of the segments is read for the earlier batches of a producer: those of requests in flight.
_RECALLED_BYTES: Final = 4 << 20

_KINDS: Final = {ControlRecordType.COMMIT: ProducerBatchKind.COMMIT, ControlRecordType.ABORT: ProducerBatchKind.ABORT}


class PartitionProducers(Producers):
    """The producers of a partition in an object store, of which rows in commits tell.

    `leader_epoch`: that of the partition. After a promotion, which raises it, offsets below `end_offset` may have been
    truncated and written again.

    Above `count_max` producers, those that have expired are looked for. `recalled` are those whose earlier batches were
    looked for in segments.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leader_epoch = 0
        self.count_max = 1000
        self.recalled: set[int] = set()

    def remove_expired(self, *, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have expired."""
        self.forget_expired(now_ms, expiration_ms)
        self.count_max = max(self.count_max, 2 * len(self.producers))

    def add(self, rows: NDArray[np.void]) -> None:
        """Add batches that were committed (`producer_batch_dtype`)."""
        for base, last, producer_id, timestamp_ms, start, coordinator, sequence, epoch, kind in rows.tolist():
            state = self.producers.get(producer_id) or ProducerState(producer_id)
            kept = state.batches if state.producer_epoch == epoch else ()
            if kind >= ProducerBatchKind.COMMIT:
                start = NO_OFFSET
            else:
                coordinator = state.coordinator_epoch
                stored = ProducerBatch(
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    base_offset=base,
                    last_offset=last,
                    max_timestamp_ms=timestamp_ms,
                    is_transactional=kind == ProducerBatchKind.TRANSACTIONAL,
                    is_control=False,
                )
                kept = (*kept, BatchMetadata(stored.last_sequence, last, last - base, timestamp_ms))
            updated = replace(
                state,
                producer_epoch=epoch,
                coordinator_epoch=coordinator,
                last_timestamp_ms=timestamp_ms,
                current_txn_first_offset=start,
                batches=kept[-BATCHES_TO_RETAIN:],
            )
            self.put(updated)

    def recall_earlier(self, producer_id: int, batches: Iterable[ProducerBatch]) -> None:
        """Remember the producer's stored `batches`, in order, which end before the first one that is known."""
        state = self.producers[producer_id]
        earlier = [each.metadata() for each in batches if each.producer_epoch == state.producer_epoch]
        self.producers[producer_id] = state.with_batches((*earlier, *state.batches)[-BATCHES_TO_RETAIN:])


def producer_snapshot(
    store: ReadableObjects, of: TopicIdPartition, segment: SegmentObject
) -> tuple[ProducerStateEntry, ...]:
    """The producers at the end of a segment. Raises FileNotFoundError, CorruptIndexError, ObjectStoreError."""
    extent = RemoteExtent(store, of, segment, OwnLayout.AIVEN)
    return decode_snapshot(extent.index_bytes(IndexKind.PRODUCER_SNAPSHOT), file=f"{extent.open().name}, producers")


def producers_of(image: MetadataImage, store: ObjectStore, topic_partition: TopicPartition) -> PartitionProducers:
    """The producers of a partition at its log end: one request, if it has segments.

    Raises UnknownTopicError, FileNotFoundError if the image is old and a segment was replaced, CorruptIndexError for a
    damaged snapshot, ObjectStoreError.
    """
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    found = producers_below(image, store, topic_partition, partition.state.log_end_offset)
    found.leader_epoch = partition.state.leader_epoch
    return found


def producers_below(
    image: MetadataImage, store: ObjectStore, topic_partition: TopicPartition, end_offset: int
) -> PartitionProducers:
    """As `producers_of`, at `end_offset`, where an extent of the partition ends, or the first one begins."""
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    found = PartitionProducers()
    segments = [each for each in partition.segments if each.end_offset <= end_offset]
    if segments:
        topic_id = image.topic(topic_partition.topic).topic_id
        of = TopicIdPartition(topic_partition.topic, topic_id, topic_partition.partition)
        found.begin_with(producer_snapshot(store, of, segments[-1]))
        found.end_offset = segments[-1].end_offset
    rows = partition.producer_batches.table
    found.add(rows[(rows["base_offset"] >= found.end_offset) & (rows["last_offset"] < end_offset)])
    found.end_offset = end_offset
    return found


def earlier_batches(
    image: MetadataImage, topic_partition: TopicPartition, reader: LogReader, producer_id: int, end_offset: int
) -> Iterator[ProducerBatch]:
    """The data batches of a producer in the last few MiB of the segments below `end_offset`, in order.

    Raises FileNotFoundError if the image is old and a segment was replaced, DiskFormatError, ObjectStoreError.
    """
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    end_offset = min(end_offset, partition.segments[-1].end_offset if partition.segments else 0)
    start_offset = max(_start_of_last_bytes(partition, end_offset), partition.state.log_start_offset)
    if start_offset >= end_offset:
        return
    for run in reader.runs(start_offset, end_offset):
        rows = run.batches[run.batches["producer_id"] == producer_id]
        rows = rows[(rows["last_offset"] < end_offset) & ((rows["attributes"] & CONTROL_MASK) == 0)]
        yield from producer_batches(run.data, rows, data_position=run.position, file=run.file)


def _start_of_last_bytes(partition: PartitionImage, end_offset: int) -> int:
    """About where the last `_RECALLED_BYTES` of the segments below `end_offset` begin."""
    left_bytes = _RECALLED_BYTES
    for segment in reversed([each for each in partition.segments if each.base_offset < end_offset]):
        offsets_count = min(segment.end_offset, end_offset) - segment.base_offset
        size_bytes = segment.size_bytes * offsets_count // (segment.end_offset - segment.base_offset)
        if size_bytes > left_bytes:
            return end_offset - offsets_count * left_bytes // size_bytes
        left_bytes -= size_bytes
        end_offset = segment.base_offset
    return end_offset


class KnownProducers:
    """The producers of the partitions that a process writes to, the least recently written ones forgotten first.

    Used by one thread, with images that follow each other.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: OrderedDict[tuple[str, int], PartitionProducers] = OrderedDict()
        self._count = 0

    def at(self, image: MetadataImage, topic_partition: TopicPartition, *, now_ms: int) -> PartitionProducers:
        """As `producers_of`; a request only if the state is not known, or was left behind by a merge."""
        topic = image.topic(topic_partition.topic)
        partition = image.partition(topic_partition.topic, topic_partition.partition)
        key = topic.topic_id, topic_partition.partition
        known = self._known.pop(key, None)
        self._count -= 0 if known is None else len(known.producers)
        if known is not None and _is_continued(known, partition):
            rows = partition.producer_batches.table
            first = int(np.searchsorted(rows["base_offset"], known.end_offset))
            known.add(rows[first:])
            known.end_offset = partition.state.log_end_offset
        else:
            known = producers_of(image, self._store, topic_partition)
        if len(known.producers) > known.count_max:
            known.remove_expired(now_ms=now_ms, expiration_ms=broker_config(image).producer_id_expiration_ms)
        known.leader_epoch = partition.state.leader_epoch
        self._known[key] = known
        self._count += len(known.producers)
        while len(self._known) > _PARTITIONS_MAX or (self._count > _PRODUCERS_MAX and len(self._known) > 1):
            _, forgotten = self._known.popitem(last=False)
            self._count -= len(forgotten.producers)
        return known

    def forget(self, topic_id: str, partition: int) -> None:
        """Forget the producers of a partition, whose log is truncated."""
        known = self._known.pop((topic_id, partition), None)
        self._count -= 0 if known is None else len(known.producers)


def _is_continued(known: PartitionProducers, partition: PartitionImage) -> bool:
    """Whether the image has all batches from the end of `known` on."""
    merged_end = partition.segments[-1].end_offset if partition.segments else 0
    is_same_epoch = known.leader_epoch == partition.state.leader_epoch
    return is_same_epoch and merged_end <= known.end_offset <= partition.state.log_end_offset


class LazyProducers(Mapping[int, ProducerState]):
    """The producers of a partition by id, which `load` finds on first use: plain appends need none.

    `earlier` finds the batches of a producer below an offset.
    """

    def __init__(
        self, load: Callable[[], PartitionProducers], earlier: Callable[[int, int], Iterable[ProducerBatch]]
    ) -> None:
        self._load = load
        self._earlier = earlier

    @cached_property
    def base(self) -> PartitionProducers:
        """The loaded state."""
        return self._load()

    def recalled(self, producer_id: int) -> ProducerState | None:
        """The state of a producer with its last five batches, of which a snapshot has one. Raises as `earlier`."""
        known, state = self.base, self.base.producers.get(producer_id)
        if state is None or not state.batches or producer_id in known.recalled:
            return state
        known.recall_earlier(producer_id, self._earlier(producer_id, state.batches[0].first_offset))
        known.recalled.add(producer_id)
        return known.producers[producer_id]

    def __getitem__(self, producer_id: int) -> ProducerState:
        return self.base.producers[producer_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self.base.producers)

    def __len__(self) -> int:
        return len(self.base.producers)


@dataclass(frozen=True, slots=True)
class ProducersAppended:
    """The commit's rows of the batches that it appends: `rows` (`producer_batch_dtype`).

    `first_unstable_offset`: after it, the first offset of the oldest open transaction, -1 without one.
    """

    rows: NDArray[np.void]
    first_unstable_offset: int


def appended_to(base: PartitionProducers, batches: Iterable[ProducerBatch]) -> ProducersAppended:
    """The commit's rows of `batches`, which were checked, have their offsets and follow `base`."""
    return with_transaction_starts(base, rows_of(batches))


def rows_of(batches: Iterable[ProducerBatch]) -> NDArray[np.void]:
    """The rows (`producer_batch_dtype`) of `batches`, without the beginnings of their transactions."""
    rows: list[tuple[int, ...]] = []
    for batch in batches:
        if batch.is_control and batch.marker is None:
            continue
        if batch.marker is not None:
            kind = _KINDS[batch.marker.control_type]
        else:
            kind = ProducerBatchKind.TRANSACTIONAL if batch.is_transactional else ProducerBatchKind.DATA
        rows.append(
            (
                batch.base_offset,
                batch.last_offset,
                batch.producer_id,
                batch.max_timestamp_ms,
                NO_OFFSET,
                -1 if batch.marker is None else batch.marker.coordinator_epoch,
                batch.base_sequence,
                batch.producer_epoch,
                kind,
            )
        )
    return np.array(rows, producer_batch_dtype())


def with_transaction_starts(base: PartitionProducers, rows: NDArray[np.void]) -> ProducersAppended:
    """The commit's rows of the batches of `rows`, which follow `base`. Sets where their transactions begin."""
    started = {producer_id: first_offset for first_offset, producer_id in base.open_transactions.items()}
    starts = rows["transaction_start"]
    for at in np.flatnonzero(rows["kind"] != ProducerBatchKind.DATA).tolist():
        producer_id = int(rows["producer_id"][at])
        if rows["kind"][at] >= ProducerBatchKind.COMMIT:
            starts[at] = started.pop(producer_id, NO_OFFSET)
        else:
            starts[at] = started.setdefault(producer_id, int(rows["base_offset"][at]))
    return ProducersAppended(rows, min(started.values(), default=NO_OFFSET))
