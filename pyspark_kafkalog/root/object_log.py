"""The log of a partition in an object store: segment objects, then runs (metadata/extents).

An `ObjectLog` is the partition as of one image. It travels with the plan of a read, so that a task asks the store for
nothing but records. Objects that a merge has replaced remain for file.delete.delay.ms; one that is gone nevertheless
means that the image is old: it is refreshed, and the reader continues in what has replaced it (tiered/remote_log.py).

*Inline data.* The bytes of small writes are inside their commits. A commit's object carries the commits before it, up
to 64 KiB (metadata/objects/log.py). So inline data is asked for in groups of neighbouring commits: the object of the
last commit of a group holds most of them or all, and the rest is in the object before the first that it carries. A
thousand small writes take some forty requests instead of a thousand. Groups and data are kept in this process up to a
limit, since a commit holds data of many partitions. Commits that were removed meanwhile, because a merge has replaced
their data, are ObjectNotFoundError for a reader that still asks.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.metadata.extents import NO_PRODUCER_BATCHES, DataObject, DataObjects, ProducerBatches, Runs
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import DataObjectRecord, SegmentObject
from pyspark_kafkalog.metadata.objects.log import CARRIED_BYTES_MAX, CommitObject, read_commit_object
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError, ObjectStore
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import aborted_rows
from pyspark_kafkalog.storage.objects.run_source import ObjectBytes, RunExtent, run_extents
from pyspark_kafkalog.storage.segment.reader import Extent
from pyspark_kafkalog.tiered.objects import BytesCache
from pyspark_kafkalog.tiered.own_segments import OwnLayout
from pyspark_kafkalog.tiered.remote_log import (
    LogExtents,
    RemoteLog,
    SegmentRange,
    SegmentsAndTail,
    has_transaction_index,
)
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT64_MAX
from pyspark_kafkalog.values import dataclass

INLINE_CACHE_BYTES: Final = 32 << 20
_GROUPS_CACHE_BYTES: Final = 8 << 20

#: Most commits have few hundred bytes beside their data.
_OTHER_BYTES: Final = 512
_GROUP_BYTES: Final = CARRIED_BYTES_MAX * 3 // 4

#: For an AbortedTxn whose last stable offset is not known: later transactions may overlap the same range.
_UNKNOWN_OFFSET: Final = -1

_LOCKS: Final = tuple(threading.Lock() for _ in range(16))


class InlineData:
    """The inline data of `objects` in `store`; thread-safe.

    `root_id` tells data of this root from that of an earlier one at the same URL (ObjectLog). A topic's id would not: a
    follower's topics have the ids of its leader's.
    """

    def __init__(self, store: ObjectStore, root_id: str, objects: DataObjects) -> None:
        self._store = store
        self._root_id = root_id
        self._objects = objects

    def read(self, wanted: DataObject) -> bytes:
        """The data of an object that is inline.

        Raises ObjectNotFoundError if its commit is gone, CorruptRecordError if the commit is damaged or holds no such
        data, ObjectStoreError.
        """
        data, _ = _caches(os.getpid())
        return data.get(self._key(wanted.object_id), lambda: self._load(wanted))

    def _key(self, number: int) -> Hashable:
        return self._store.url, self._root_id, number

    def _load(self, wanted: DataObject) -> tuple[bytes, int]:
        found = self._holder(wanted)
        commit = found.commit(wanted.commit_offset)
        at = wanted.object_id - commit.base_offset
        record = commit.records[at] if 0 <= at < len(commit.records) else None
        if not isinstance(record, DataObjectRecord) or record.inline_data is None:
            raise CorruptRecordError(
                file=name_of_inline(self._store, wanted.object_id),
                position=0,
                expected=f"a DataObjectRecord with {wanted.size_bytes} bytes of data",
                found=type(record).__name__,
            )
        return record.inline_data, len(record.inline_data)

    def _holder(self, wanted: DataObject) -> CommitObject:
        """An object that holds the commit of `wanted`."""
        offset = wanted.commit_offset
        commits, groups = self._groups
        at = bisect_left(commits, offset)
        group = groups[at]
        first, last = bisect_left(groups, group), bisect_left(groups, group + 1)
        key = self._key(commits[last - 1])
        _, cache = _caches(os.getpid())
        with _LOCKS[hash(key) % len(_LOCKS)]:
            held = cache.get(key, lambda: self._load_group(commits[first:last]))
        for each in held:
            if offset in each:
                return each
        own = read_commit_object(self._store, offset)
        if own is None:
            raise ObjectNotFoundError(
                f"{name_of_inline(self._store, wanted.object_id)}: the commit at {offset} is gone"
            )
        return own

    @cached_property
    def _groups(self) -> tuple[list[int], list[int]]:
        """The offsets of the commits with inline data, rising, and the number of the group of each."""
        table = self._objects.table
        table = table[table["is_inline"]]
        commits, first = np.unique(table["commit_offset"], return_index=True)
        sizes = np.add.reduceat(table["size_bytes"].astype(np.int64), first) + _OTHER_BYTES
        return commits.tolist(), ((np.cumsum(sizes) - sizes) // _GROUP_BYTES).tolist()

    def _load_group(self, commits: list[int]) -> tuple[list[CommitObject], int]:
        """The objects that hold `commits`, the newest first, up to one that is gone; their size in bytes."""
        objects: list[CommitObject] = []
        end = len(commits)
        while end > 0:
            found = read_commit_object(self._store, commits[end - 1])
            if found is None:
                break
            objects.append(found)
            end = bisect_left(commits, found.first_offset, 0, end - 1)
        return objects, sum(each.size_bytes for each in objects)


def name_of_inline(store: ObjectStore, object_id: int) -> str:
    """What messages call inline data: the record that holds it."""
    return f"{store.url}: data of the metadata record at offset {object_id}"


@lru_cache(maxsize=1)
def _caches(process_id: int) -> tuple[BytesCache[bytes], BytesCache[list[CommitObject]]]:
    """This process's caches of data, and of the objects of groups."""
    return BytesCache(INLINE_CACHE_BYTES), BytesCache(_GROUPS_CACHE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLog(SegmentRange):
    """The log of one partition in an object store, as of one image; can be pickled.

    `root_id` is the random id with which the root's node was registered. `objects` are those of the runs, perhaps with
    others. `producer_batches` are those of the runs, in a part at least the abort markers. `segments_end_offset` is
    where the segments of the whole log end, and runs begin.
    """

    segments: tuple[SegmentObject, ...]
    topic_partition: TopicPartition
    topic_id: str
    root_id: str
    runs: Runs
    objects: DataObjects
    producer_batches: ProducerBatches = NO_PRODUCER_BATCHES
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
            segments=partition.segments,
            indexed=tuple(filter(has_transaction_index, partition.segments)),
            topic_partition=topic_partition,
            topic_id=topic.topic_id,
            root_id=image.node.incarnation_id,
            runs=partition.runs,
            objects=image.objects,
            producer_batches=partition.producer_batches,
            segments_end_offset=partition.segments[-1].end_offset if partition.segments else 0,
        )

    def part(self, start_offset: int, end_offset: int, *, committed: bool = True) -> ObjectLog:
        """See SegmentRange. Abort markers of the range are in the part, also those after it."""
        rows = self.runs.table
        first = self.runs.count_up_to(start_offset)
        last = int(np.searchsorted(rows["base_offset"], end_offset))
        runs = Runs(rows[first : max(first, last)].copy())
        batches = NO_PRODUCER_BATCHES
        if committed and len(markers := aborted_rows(self.producer_batches.table, start_offset, end_offset)):
            batches = ProducerBatches(markers)
        return replace(
            SegmentRange.part(self, start_offset, end_offset, committed=committed),
            runs=runs,
            objects=self.objects.only(runs.table["object_id"]),
            producer_batches=batches,
        )

    def extents(
        self,
        store: ObjectStore,
        look_up: Callable[[], ObjectLog],
        *,
        through: Callable[[ObjectBytes], ObjectBytes] = lambda objects: objects,
    ) -> LogExtents:
        """What a LogReader reads. `look_up` returns the newest log.

        Data objects are read through what `through` returns for them.
        """
        return LogExtents(*self._in(store, through), lambda: look_up()._in(store, through))

    def _in(self, store: ObjectStore, through: Callable[[ObjectBytes], ObjectBytes]) -> SegmentsAndTail:
        remote = RemoteLog(
            segments=self.segments,
            indexed=self.indexed,
            is_whole=self.is_whole,
            storage=_SegmentObjects(store),
            partition=self.topic_id_partition,
            highest_offset=self.segments_end_offset - 1,
            known_end_offset=INT64_MAX,  # one image has both segments and runs
        )
        return remote, RunExtents(self, store, through(StoredBytes(store, self.root_id, self.objects)))


@dataclass(frozen=True, slots=True)
class _SegmentObjects:
    """The SegmentStorage of an object root."""

    opened: ObjectStore
    layout: OwnLayout = OwnLayout.AIVEN

    @property
    def location(self) -> str:
        return self.opened.url

    def store(self) -> ObjectStore:
        return self.opened


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
        return self._store.get_range(found.key, ByteRange(start, size_bytes))


class RunExtents:
    """The PartitionExtents of the runs of `log`, neighbouring runs as one extent."""

    def __init__(self, log: ObjectLog, store: ObjectStore, objects: ObjectBytes) -> None:
        self._log = log
        self._store = store
        self._objects = objects

    @property
    def name(self) -> str:
        return f"{self._store.url}: {self._log.topic_partition}"

    @cached_property
    def _extents(self) -> list[RunExtent]:
        return list(run_extents(self._log.runs.table, self._objects, name=self.name))

    def current(self) -> list[RunExtent]:
        """The runs, in groups."""
        return self._extents

    def after_loss(self, extent: Extent) -> list[RunExtent]:
        """The same. Raises OffsetOutOfRangeError if they have all of `extent`, whose object is missing."""
        if isinstance(extent, RunExtent) and self._has(extent):
            raise OffsetOutOfRangeError(
                f"offsets {extent.base_offset} to {extent.end_offset - 1} of {self._log.topic_partition} are in "
                f"{extent.open().name}, and an object of it is missing in {self._store.url}"
            )
        return self._extents

    def _has(self, extent: RunExtent) -> bool:
        wanted, rows = extent.runs, self._log.runs.table
        first = int(np.searchsorted(rows["base_offset"], extent.base_offset))
        found = rows[first : first + len(wanted)]
        return len(found) == len(wanted) and bool((found["object_id"] == wanted["object_id"]).all())

    def widen(self) -> None:
        """Do nothing: LogExtents looks the log up."""

    def is_being_replaced(self, base_offset: int) -> bool:
        """Never: a commit replaces extents all at once."""
        return False

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """Those that the commits of the runs name."""
        return AbortedTransactions(aborted_transactions(self._log.producer_batches.table, start_offset, end_offset))


def aborted_transactions(rows: NDArray[np.void], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions that overlap [start_offset, end_offset), by their markers.

    `rows` are those of batches with producer ids (`producer_batch_dtype`).
    """
    found = aborted_rows(rows, start_offset, end_offset)
    return [
        AbortedTxn(int(each["producer_id"]), int(each["transaction_start"]), int(each["last_offset"]), _UNKNOWN_OFFSET)
        for each in found
    ]
