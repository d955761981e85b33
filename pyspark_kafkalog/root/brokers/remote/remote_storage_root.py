"""The bucket alone: topics and partitions as the objects of remote storage show them, without a broker's directory.

For a cluster that is gone, or out of reach, and for reads that shall not disturb it. `refresh` lists the objects; a
partition's copies are examined on first access (tiered.bucket). Nothing is written.

A topic that was deleted and created again has objects under two ids: the one with the newest object has the topic's
name, the others are named <topic>-<topic id>.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyspark_kafkalog.errors import LogDirError, ReadOnlyLogDirError
from pyspark_kafkalog.object_store.store import ObjectMetadata, ObjectNotFoundError
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, RemotePart
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.bucket import BucketLog, read_bucket_log
from pyspark_kafkalog.tiered.remote_log import RemoteLog, broker_log
from pyspark_kafkalog.tiered.remote_storage import RemoteStorage, RemoteStorageOption
from pyspark_kafkalog.tiered.segments import TopicIdPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.reader import PartitionExtents

_TRIES = 5


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

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> RemotePartition:
        remote = self._snapshot(topic_partition).remote
        assert remote is not None  # all of this root's partitions are remote
        return RemotePartition(topic_partition, remote)

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
class RemotePartition:
    """A PlannedPartition all of whose segments are remote. Its topic cannot change: the objects' keys hold its id."""

    topic_partition: TopicPartition
    remote: RemotePart

    def extents(self) -> PartitionExtents:
        return self.remote.extents(None)

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> RemotePartition:
        return replace(self, remote=self.remote.part(start_offset, end_offset, committed=committed))

    def moved_log_start(self) -> int:
        return 0

    def is_same_topic(self) -> bool:
        return True

    def check_root(self) -> None:
        raise LogDirError(f"{self.remote.log.location}: the objects of {self.topic_partition} are gone")
