"""Several directories of brokers as one root: the log.dirs of one broker, copies of several brokers' disks, or both.

    topics, partitions     those of all directories; deleted, stray and future ones (`-future`) of none
    a partition            read from one directory, that of its best replica: see `broker_replicas`
    high watermarks, log starts, clean shutdown      of each directory for the replicas in it
    topic ids, configurations, access control        from the best metadata log: that of the latest epoch, the longest

If replicas of a topic have different ids, because it was deleted and created again, the id in the metadata log
counts; without one, the id whose `partition.metadata` file is newest.

All directories must be of one cluster, as far as their `meta.properties` say. The root's identity is the cluster: a
streaming query continues when a directory is added, or a copy replaced by a newer one.

Each directory is read as it is alone, by a BrokerRoot of its own. Nothing is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError, LogDirError
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.brokers.replicas.broker_replicas import best_of, state_of
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, PlannedPartition
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.marker_files import (
    MetaProperties,
    RootIdentity,
    read_meta_properties,
)
from pyspark_kafkalog.storage.log.log_state import load_read_only
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    partition_path,
)
from pyspark_kafkalog.storage.path_list import join_paths

if TYPE_CHECKING:
    from pyspark_kafkalog.root.brokers.remote.remote_logs import RemoteLogs

_METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


@dataclass(frozen=True, slots=True)
class _Member:
    """One of the directories."""

    root: BrokerRoot
    properties: MetaProperties

    @property
    def path(self) -> Path:
        return self.root.path


class BrokerDirectories(ReadOnlyRoot):
    """The directories `paths` as of the last `refresh`, as one root. `read_to_log_end`, `remote_logs`: see BrokerRoot.

    Raises LogDirError if a directory is given twice, cannot be read, or is of another cluster, DiskFormatError for a
    damaged meta.properties.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        clock: Callable[[], int],
        read_to_log_end: bool = False,
        remote_logs: RemoteLogs | None = None,
    ) -> None:
        _refuse_same(paths)
        self._members = {
            path: _Member(
                BrokerRoot(path, clock=clock, read_to_log_end=read_to_log_end, remote_logs=remote_logs),
                _properties(path),
            )
            for path in paths
        }
        super().__init__(join_paths(paths), _identity(tuple(self._members.values())))
        self._take_listings()

    def refresh(self) -> None:
        """List all directories again. Raises LogDirError as the refresh of a BrokerRoot."""
        for member in self._members.values():
            member.root.refresh()
        self._take_listings()

    def _take_listings(self) -> None:
        self._holders: dict[TopicPartition, list[Path]] = {}
        for path, member in self._members.items():
            for topic_partition in member.root.partitions():
                self._holders.setdefault(topic_partition, []).append(path)
        self._replica_ids: dict[TopicPartition, dict[Path, str | None]] = {}
        self._counting: dict[str, list[TopicPartition]] = {}
        with_metadata = self._holders.get(_METADATA_PARTITION, [])
        best = max(with_metadata, key=_metadata_end) if len(with_metadata) > 1 else next(iter(with_metadata), None)
        self.directories = tuple(sorted(self._members, key=lambda path: path != best))
        self._list(sorted(self._holders))

    def planned_partition(self, topic_partition: TopicPartition, topic_id: str | None) -> PlannedPartition:
        chosen = self._snapshot(topic_partition).directory.parent
        return self._members[chosen].root.planned_partition(topic_partition, topic_id)

    def _read_snapshot(self, topic_partition: TopicPartition) -> PartitionSnapshot:
        topic_id = self._topic_id(topic_partition.topic)
        found: dict[Path, PartitionSnapshot] = {}
        for path, replica_id in self._ids_of(topic_partition).items():
            counts = replica_id in (topic_id, None)
            with contextlib.nullcontext() if counts else contextlib.suppress(KafkalogError, OSError):
                replica = self._members[path].root.partition(topic_partition.topic, topic_partition.partition)
                found[path] = replace(replica, topic_id=replica_id)
        best = best_of(each for each in found.values() if each.topic_id in (topic_id, None))
        states = [state_of(each, self._members[path].properties, best) for path, each in found.items()]
        states.sort(key=lambda state: state.directory != best.directory)
        return replace(best, topic_id=topic_id, replicas=tuple(states))

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        """The partitions of the topic that counts: an earlier one of that name may have had more."""
        if topic not in self._counting:
            found = super()._partitions_of(topic)
            ids = {self._topic_id(topic), None}
            self._counting[topic] = [each for each in found if not ids.isdisjoint(self._ids_of(each).values())]
        return self._counting[topic]

    def _find_topic_id(self, topic: str) -> str | None:
        """The id that counts, of those in the topic's partition directories."""
        times_ns: dict[str, int] = {}
        for topic_partition in super()._partitions_of(topic):
            for path, topic_id in self._ids_of(topic_partition).items():
                if topic_id is not None:
                    time_ns = _mtime_ns(partition_path(path, topic_partition) / PARTITION_METADATA)
                    times_ns[topic_id] = max(times_ns.get(topic_id, time_ns), time_ns)
        if len(times_ns) <= 1:
            return next(iter(times_ns), None)
        known = self.metadata().topics.get(topic)
        if known is not None and known.topic_id in times_ns:
            return known.topic_id
        return max(times_ns, key=lambda each: times_ns[each])

    def _ids_of(self, topic_partition: TopicPartition) -> dict[Path, str | None]:
        """The topic ids of a partition's replicas, by the directories that have one; None for one without an id."""
        found = self._replica_ids.get(topic_partition)
        if found is None:
            found = self._replica_ids[topic_partition] = {
                path: self._members[path].root.partition_topic_id(topic_partition)
                for path in self._holders[topic_partition]
            }
        return found


def _refuse_same(paths: Sequence[Path]) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            found = path.stat()
        except OSError as error:
            raise LogDirError(error.errno, f"cannot open the log directory: {error.strerror}", str(path)) from error
        first = seen.setdefault((found.st_dev, found.st_ino), path)
        if first is not path:
            raise LogDirError(f"{first} and {path} are the same directory: name it once")


def _properties(path: Path) -> MetaProperties:
    try:
        return read_meta_properties(path / META_PROPERTIES)
    except FileNotFoundError:
        return MetaProperties()  # partition directories that were put together


def _identity(members: Sequence[_Member]) -> RootIdentity | None:
    """The cluster that all directories belong to; None if one of them does not say. Raises LogDirError."""
    known = [each for each in members if each.properties.cluster_id]
    for each in known[1:]:
        if each.properties.cluster_id != known[0].properties.cluster_id:
            raise LogDirError(
                f"{each.path / META_PROPERTIES}: expected cluster.id {known[0].properties.cluster_id}, as in "
                f"{known[0].path}, found {each.properties.cluster_id}: directories of different clusters are "
                "read one by one"
            )
    return RootIdentity(known[0].properties.cluster_id, None) if known and len(known) == len(members) else None


def _metadata_end(path: Path) -> tuple[int, int]:
    """The last leader epoch of the metadata log in a directory, and its end offset; less than any if unreadable.

    An epoch in which nothing was written does not count: the log may have been cut by damage.
    """
    directory = partition_path(path, _METADATA_PARTITION)
    try:
        epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT)
        end_offset = load_read_only(directory).log_end_offset
    except (DiskFormatError, OSError):
        return -1, -1
    epoch = epochs.epoch_for_offset(end_offset - 1)
    return -1 if epoch is None else epoch, end_offset


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
