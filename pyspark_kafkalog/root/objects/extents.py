"""What a LogReader reads of a partition whose log is in an object store: segment objects, then runs (metadata/extents).

An `ObjectLog` is the partition as of one image. It travels with the plan of a read, so that a task asks the store for
nothing but records. Objects that a merge has replaced remain for file.delete.delay.ms; one that is gone nevertheless
means that the image is old: it is refreshed once, and the reader continues in what has replaced it.

The bytes of small writes are inside their commits: inline_data.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pyspark_kafkalog.errors import CorruptIndexError, OffsetOutOfRangeError
from pyspark_kafkalog.metadata.extents import NO_PRODUCER_BATCHES, DataObjects, ProducerBatches, Runs
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError, ObjectStore
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.objects.inline_data import InlineData, name_of_inline
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, collect_aborted
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions, confirmed
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import aborted_rows
from pyspark_kafkalog.storage.objects.data_object import aborted_transactions as aborted_in_runs
from pyspark_kafkalog.storage.objects.run_source import ObjectBytes, RunExtent, run_extents
from pyspark_kafkalog.storage.segment.extent import Extent
from pyspark_kafkalog.tiered.own_segments import SegmentObjectExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition


@dataclass(frozen=True, slots=True)
class ObjectLog:
    """The log of one partition in an object store, as of one image; can be pickled.

    `root_id` is the random id with which the root's node was registered. `objects` are those of the runs, perhaps with
    others. `producer_batches` are those of the runs, in a part at least the abort markers. `later`: of a part, the
    segments after it in which transactions of it may have been aborted. `segments_end_offset` is where the segments of
    the whole log end, and runs begin.
    """

    topic_partition: TopicPartition
    topic_id: str
    root_id: str
    segments: tuple[SegmentObject, ...]
    runs: Runs
    objects: DataObjects
    producer_batches: ProducerBatches = NO_PRODUCER_BATCHES
    later: tuple[SegmentObject, ...] = ()
    segments_end_offset: int = 0

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition, with its topic's id."""
        return TopicIdPartition(self.topic_partition.topic, self.topic_id, self.topic_partition.partition)

    @staticmethod
    def of(image: MetadataImage, topic_partition: TopicPartition) -> ObjectLog:
        """The partition's log in `image`. Raises UnknownTopicError."""
        topic = image.topic(topic_partition.topic)
        partition = image.partition(topic_partition.topic, topic_partition.partition)
        return ObjectLog(
            topic_partition,
            topic.topic_id,
            image.node.incarnation_id,
            partition.segments,
            partition.runs,
            image.objects,
            partition.producer_batches,
            segments_end_offset=partition.segments[-1].end_offset if partition.segments else 0,
        )

    def part(self, start_offset: int, end_offset: int, *, committed: bool = True) -> ObjectLog:
        """What a reader of the offsets [start_offset, end_offset) needs, without anything else.

        `committed`: it leaves out aborted transactions, whose markers may be after these offsets.
        """
        segments = tuple(
            each for each in self.segments if each.end_offset > start_offset and each.base_offset < end_offset
        )
        rows = self.runs.table
        first = self.runs.count_up_to(start_offset)
        last = int(np.searchsorted(rows["base_offset"], end_offset))
        runs = Runs(rows[first : max(first, last)].copy())
        batches = NO_PRODUCER_BATCHES
        later: tuple[SegmentObject, ...] = ()
        if committed:
            markers = aborted_rows(self.producer_batches.table, start_offset, end_offset)
            batches = ProducerBatches(markers) if len(markers) else NO_PRODUCER_BATCHES
            later = tuple(
                each for each in self.segments if each.base_offset >= end_offset and each.transaction_index_bytes
            )
        return replace(
            self,
            segments=segments,
            runs=runs,
            objects=self.objects.only(runs.table["object_id"]),
            producer_batches=batches,
            later=later,
        )


class StoredBytes:
    """An `ObjectBytes` over the data objects of `objects`; see InlineData for `root_id`."""

    def __init__(self, store: ObjectStore, root_id: str, objects: DataObjects) -> None:
        self._store = store
        self._objects = objects
        self._inline = InlineData(store, root_id, objects)

    def name(self, object_id: int) -> str:
        """The object's URL; of inline data, the record that holds it."""
        found = self._objects.find(object_id)
        if found is None or found.is_inline:
            return name_of_inline(self._store, object_id)
        return f"{self._store.url}/{found.key}"

    def read(self, object_id: int, start: int, size_bytes: int) -> Buffer:
        """See ObjectBytes."""
        found = self._objects.find(object_id)
        if found is None:
            raise ObjectNotFoundError(f"{self.name(object_id)}: no record of the partition is in it any more")
        if found.is_inline:
            return memoryview(self._inline.read(found))[start : start + size_bytes]
        return self._store.get_ranges(found.key, [ByteRange(start, size_bytes)])[0]


class ObjectExtents:
    """The PartitionExtents of a log in an object store.

    `present` gives the log as of the root's image, without a request; `refreshed` as of the newest one. Data objects
    are read through what `through` returns for them, if it is given.
    """

    def __init__(
        self,
        present: Callable[[], ObjectLog],
        refreshed: Callable[[], ObjectLog],
        store: ObjectStore,
        *,
        through: Callable[[ObjectBytes], ObjectBytes] | None = None,
    ) -> None:
        self._through = through
        self._present = present
        self._refreshed = refreshed
        self._store = store
        self._listed: tuple[ObjectLog, list[Extent]] | None = None
        self._newer: tuple[Runs, ObjectLog] | None = None  # runs that had lost an object, and the log after a refresh

    @property
    def name(self) -> str:
        return f"{self._store.url}: {self._present().topic_partition}"

    def current(self) -> list[Extent]:
        """The segments and runs of the present image, the runs in groups."""
        return self._extents(self._log())

    def _log(self) -> ObjectLog:
        log = self._present()
        if self._newer is not None and log.runs is self._newer[0]:
            log = self._newer[1]
        return log

    def after_loss(self, extent: Extent) -> list[Extent]:
        """The extents after an object turned out to be missing, as of the newest image.

        Raises OffsetOutOfRangeError if that still has the whole extent.
        """
        before = self._present().runs
        log = self._refreshed()
        self._newer = before, log
        if _has(log, extent):
            raise OffsetOutOfRangeError(
                f"offsets {extent.base_offset} to {(extent.end_offset or 0) - 1} of {log.topic_partition} are in "
                f"{extent.open().name}, and an object of it is missing in {self._store.url}"
            )
        return self._extents(log)

    def widen(self) -> None:
        """List the whole log as of the newest image."""
        before, newest = self._present().runs, self._refreshed()
        self._newer = before, newest

    def is_being_replaced(self, base_offset: int) -> bool:
        """Never: a commit replaces extents all at once."""
        return False

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """See PartitionExtents. Of segments, their indexes tell; of runs, the image.

        A transaction may be aborted long after its records, in a later segment or run.
        """
        log = self._log()
        while True:
            try:
                found = self._aborted(log, start_offset, end_offset)
                return AbortedTransactions(found, indexed_until=log.segments_end_offset)
            except FileNotFoundError:  # a merge, or the cleaner, has replaced a segment, and its delay is over
                newest = self._refreshed()
                if (newest.segments, newest.runs) == (log.segments, log.runs):
                    return self._aborted_by_scan(start_offset, end_offset)
                log = newest
            except CorruptIndexError:
                return self._aborted_by_scan(start_offset, end_offset)

    def _aborted_by_scan(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """By the batches and markers of the newest log, without the indexes: a task's part may lack later markers."""
        self.widen()
        reader = LogReader(self, self._present().topic_partition)
        return AbortedTransactions(confirmed(reader.transactions(start_offset, end_offset, open_before={}), ())[0])

    def _aborted(self, log: ObjectLog, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        found: list[AbortedTxn] = []
        for segment in (*log.segments, *log.later):
            if segment.end_offset > start_offset and segment.transaction_index_bytes:
                indexed = SegmentObjectExtent(self._store, log.topic_id_partition, segment).aborted_transactions()
                result = collect_aborted(indexed, start_offset, end_offset)
                found += result.transactions
                if result.is_complete:
                    return found
        return found + aborted_in_runs(log.producer_batches.table, start_offset, end_offset)

    def _extents(self, log: ObjectLog) -> list[Extent]:
        listed = self._listed
        if listed is None or listed[0].runs is not log.runs or listed[0].segments is not log.segments:
            objects: ObjectBytes = StoredBytes(self._store, log.root_id, log.objects)
            if self._through is not None:
                objects = self._through(objects)
            segments = [SegmentObjectExtent(self._store, log.topic_id_partition, each) for each in log.segments]
            listed = self._listed = log, [*segments, *run_extents(log.runs.table, objects, name=self.name)]
        return listed[1]


def _has(log: ObjectLog, extent: Extent) -> bool:
    """Whether the whole extent is still part of the log."""
    if isinstance(extent, RunExtent):
        wanted, rows = extent.runs, log.runs.table
        first = int(np.searchsorted(rows["base_offset"], extent.base_offset))
        found = rows[first : first + len(wanted)]
        return len(found) == len(wanted) and bool((found["object_id"] == wanted["object_id"]).all())
    if isinstance(extent, SegmentObjectExtent):
        return extent.segment in log.segments
    return False
