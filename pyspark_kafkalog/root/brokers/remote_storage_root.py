"""The bucket alone: topics and partitions as the objects of remote storage show them, without a broker's directory.

For a cluster that is gone, or out of reach, and for reads that shall not disturb it. `refresh` lists the objects; a
partition's copies are examined on first access. Nothing is written.

A topic that was deleted and created again has objects under two ids: the one with the newest object has the topic's
name, the others are named <topic>-<topic id>.

Which segments count follows from the copies themselves. The newest one, by leader epoch and offset, carries the leader
epochs of the log up to its end; the others must fit them. Copies whose deletion has begun, or whose completion was
never noted, count as long as they are whole: they hold the same records.

What only the broker knew is missing: records after the newest copy, and a log start inside the first segment that was
set after it. A transaction can have records in remote segments and its marker after them: read_committed ends there,
as the producers at the end of the newest copy say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyspark_kafkalog.errors import LogDirError, ReadOnlyLogDirError
from pyspark_kafkalog.object_store.store import ObjectMetadata, ObjectNotFoundError
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.planned import RemotePart
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry, parse_epochs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import decode_snapshot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.remote_log import RemoteLog, broker_log
from pyspark_kafkalog.tiered.remote_storage import RemoteStorage, RemoteStorageOption
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition, readable_segments

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.reader import PartitionExtents

_TRIES = 5


@dataclass(frozen=True, slots=True)
class BucketLog:
    """A partition as its remote segments show it: offsets [log_start_offset, end_offset) can be read.

    `copies` are all complete ones, `segments` those to read. `last_stable_offset` is the end for read_committed.
    """

    copies: tuple[RemoteSegment, ...]
    segments: tuple[RemoteSegment, ...]
    epochs: tuple[EpochEntry, ...]
    log_start_offset: int
    end_offset: int
    last_stable_offset: int


def read_bucket_log(
    storage: RemoteStorage, partition: TopicIdPartition, objects: Sequence[ObjectMetadata]
) -> BucketLog | None:
    """The partition whose folder holds `objects`; None without a complete copy.

    Raises ObjectStoreError, DiskFormatError; ObjectNotFoundError if the newest copy is deleted meanwhile.
    """
    store = storage.store()
    copies = storage.layout.segments(store, partition, objects)
    if not copies:
        return None
    newest = max(copies, key=lambda each: (max(each.leader_epochs)[0], each.last_offset))
    epochs = _epochs(storage, partition, newest)
    end_offset = newest.end_offset
    segments = readable_segments(copies, log_end_offset=end_offset, epochs=epochs)
    first = segments[0].start_offset if segments else end_offset
    return BucketLog(
        copies=tuple(copies),
        segments=segments,
        epochs=epochs,
        log_start_offset=max(first, epochs[0].start_offset) if epochs else first,
        end_offset=end_offset,
        last_stable_offset=min(_first_undecided(storage, partition, newest, end_offset), end_offset),
    )


def _epochs(storage: RemoteStorage, partition: TopicIdPartition, newest: RemoteSegment) -> tuple[EpochEntry, ...]:
    index = storage.layout.index(storage.store(), partition, newest, IndexKind.LEADER_EPOCH)
    return newest.leader_epochs if index is None else parse_epochs(bytes(index.data), file=index.name)


def _first_undecided(
    storage: RemoteStorage, partition: TopicIdPartition, newest: RemoteSegment, end_offset: int
) -> int:
    """The first offset of the oldest transaction that is open at the end of the copy."""
    index = storage.layout.index(storage.store(), partition, newest, IndexKind.PRODUCER_SNAPSHOT)
    if index is None:
        raise ObjectNotFoundError(
            f"{storage.location}: the remote segment {newest.segment_id} of {partition} has no producer snapshot"
        )
    producers = decode_snapshot(bytes(index.data), file=index.name)
    open_from = (each.current_txn_first_offset for each in producers if each.current_txn_first_offset >= 0)
    return min(open_from, default=end_offset)


class RemoteStorageRoot(ReadOnlyRoot):
    """The topics whose segments are in remote storage, as of the last `refresh`."""

    def __init__(self, option: RemoteStorageOption) -> None:
        super().__init__(Path(option.location), None)
        self.directories = ()
        self._storage = option.find()
        self.refresh()

    def refresh(self) -> None:
        """List the objects again. Raises ObjectStoreError."""
        listed = self._storage.layout.partitions(self._storage.store())
        names = _names(listed)
        self._objects = {
            TopicPartition(names[of.topic, of.topic_id], of.partition): (of, objects) for of, objects in listed.items()
        }
        self._list(sorted(self._objects))

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> BucketPartition:
        remote = self._snapshot(topic_partition).remote
        assert remote is not None  # all of this root's partitions are remote
        return BucketPartition(topic_partition, remote)

    def _configs_of(self, topic: str) -> Mapping[str, str]:
        return {}

    def _find_topic_id(self, topic: str) -> str | None:
        return self._objects[self._partitions_of(topic)[0]][0].topic_id

    def _read_snapshot(self, topic_partition: TopicPartition) -> PartitionSnapshot:
        of, objects = self._objects[topic_partition]
        found = _read(self._storage, of, objects)
        segments, end_offset = ((), 0) if found is None else (found.segments, found.end_offset)
        log = broker_log(self._storage, of, segments, end_offset - 1, end_offset)
        return PartitionSnapshot(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            topic_id=of.topic_id,
            local_directory=None,
            leader_epoch=0 if found is None or not found.epochs else found.epochs[-1].epoch,
            log_start_offset=0 if found is None else found.log_start_offset,
            local_log_start_offset=end_offset,
            high_watermark=end_offset,
            log_end_offset=end_offset,
            remote=RemotePart(log, ObjectsLookUp(self._storage, of), is_all=True),
            stable=0 if found is None else found.last_stable_offset,
        )

    def _refuse(self) -> NoReturn:
        raise ReadOnlyLogDirError(f"{self.path} is the remote storage of a Kafka cluster: it is only read")


def _names(listed: Mapping[TopicIdPartition, list[ObjectMetadata]]) -> dict[tuple[str, str], str]:
    """The name of each topic and id."""
    newest_ms: dict[str, dict[str, int]] = {}
    for of, objects in listed.items():
        ids = newest_ms.setdefault(of.topic, {})
        ids[of.topic_id] = max([ids.get(of.topic_id, 0), *(each.last_modified_ms for each in objects)])
    names = {}
    for topic, ids in newest_ms.items():
        current = max(ids, key=lambda each: (ids[each], each))
        for topic_id in ids:
            names[topic, topic_id] = topic if topic_id == current else f"{topic}-{topic_id}"
    return names


def _read(storage: RemoteStorage, of: TopicIdPartition, objects: list[ObjectMetadata]) -> BucketLog | None:
    """The partition as its objects show it; they are listed again if some of them are deleted meanwhile."""
    for _ in range(_TRIES - 1):
        try:
            return read_bucket_log(storage, of, objects)
        except ObjectNotFoundError:
            objects = storage.layout.objects_of(storage.store(), of)
    return read_bucket_log(storage, of, objects)


@dataclass(frozen=True, slots=True)
class ObjectsLookUp:
    """Looks up the remote segments of one partition again, from its objects; can be pickled."""

    storage: RemoteStorage
    partition: TopicIdPartition

    def __call__(self) -> RemoteLog | None:
        """As of now. Raises ObjectStoreError, DiskFormatError."""
        objects = self.storage.layout.objects_of(self.storage.store(), self.partition)
        found = _read(self.storage, self.partition, objects)
        if found is None:
            return None
        return broker_log(self.storage, self.partition, found.segments, found.end_offset - 1, found.end_offset)


@dataclass(frozen=True, slots=True)
class BucketPartition:
    """A PlannedPartition all of whose segments are remote. Its topic cannot change: the objects' keys hold its id."""

    topic_partition: TopicPartition
    remote: RemotePart

    def extents(self) -> PartitionExtents:
        return self.remote.extents(None)

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> BucketPartition:
        return replace(self, remote=self.remote.part(start_offset, end_offset, committed=committed))

    def moved_log_start(self) -> int:
        return 0

    def is_same_topic(self) -> bool:
        return True

    def check_root(self) -> None:
        raise LogDirError(f"{self.remote.log.location}: the objects of {self.topic_partition} are gone")
