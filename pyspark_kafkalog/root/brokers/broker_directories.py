"""Several directories of brokers as one root: the log.dirs of one broker, copies of several brokers' disks, or both.

    topics, partitions     those of all directories; deleted, stray and future ones (`-future`) of none
    a partition            read from one directory, that of its best replica
    high watermarks, log starts, clean shutdown      of each directory for the replicas in it
    topic ids, configurations, access control        from the best metadata log: that of the latest epoch, the longest

*The best replica* is that with the latest leader epoch; of those with the same the one with the highest high watermark,
then the longest log. The latest leader appended in the latest epoch, so a log that a later leader has cut off elsewhere
has an earlier epoch, however long it is. A replica whose topic was deleted and created again since (another topic id)
does not count.

*Where replicas differ.* Offsets below the high watermarks of two replicas are committed in both, so both have the same
records there, written in the same leader epochs. They differ only after an unclean leader election, after the
loss of a disk's last writes, or if somebody changed files. Leader epochs are compared by the replicas' small
`leader-epoch-checkpoint` files. Where these differ, the epochs in the logs' batches decide: after a power failure the
small file may be older than the log. `kafkalog verify` also compares the batches themselves.

If replicas of a topic have different ids, because it was deleted and created again, the id in the metadata log
counts; without one, the id whose `partition.metadata` file is newest.

All directories must be of one cluster, as far as their `meta.properties` say. The root's identity is the cluster: a
streaming query continues when a directory is added, or a copy replaced by a newer one.

Each directory is read as it is alone, by a BrokerRoot of its own. Nothing is written.

Source of the rules: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache, KIP-101, KIP-279.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError, LogDirError
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.planned import PlannedPartition
from pyspark_kafkalog.root.snapshot import Difference, PartitionSnapshot, ReplicaState
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry, LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.marker_files import (
    MetaProperties,
    RootIdentity,
    another_root_error,
    read_meta_properties,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.below_root import join_paths
from pyspark_kafkalog.storage.log.read_only import load_read_only
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    partition_path,
)
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.brokers.remote_logs import RemoteLogs
    from pyspark_kafkalog.tiered.remote_storage import RemoteStorageOption

_METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


def best_of(replicas: Iterable[PartitionSnapshot]) -> PartitionSnapshot:
    """The replica to read; the first of several that are equally good."""
    return max(replicas, key=_rank)


def _rank(found: PartitionSnapshot) -> tuple[int, int, int, int]:
    readable_end = min(found.high_watermark, found.log_end_offset)  # a damaged log ends before its high watermark
    return found.leader_epoch, readable_end, found.log_end_offset, -found.local_log_start_offset


def state_of(found: PartitionSnapshot, disk: MetaProperties, best: PartitionSnapshot) -> ReplicaState:
    """One replica, in the directory with the properties `disk`, compared with the `best` one."""
    state = ReplicaState(
        directory=found.directory,
        directory_id=disk.directory_id,
        node_id=disk.node_id,
        topic_id=found.topic_id,
        leader_epoch=found.leader_epoch,
        log_start_offset=found.log_start_offset,
        local_log_start_offset=found.local_log_start_offset,
        high_watermark=found.high_watermark,
        log_end_offset=found.log_end_offset,
        is_of_other_topic=None not in (found.topic_id, best.topic_id) and found.topic_id != best.topic_id,
    )
    if found is best or state.is_of_other_topic:
        return state
    return replace(state, difference=_difference(best, state))


def _difference(best: PartitionSnapshot, other: ReplicaState) -> Difference | None:
    """Where the leader epochs of two replicas first differ below both high watermarks; None if they do not."""
    start_offset, end_offset = other.common_offsets(best)
    ours, others = _epochs(best.directory), _epochs(other.directory)
    for offset, epoch, other_epoch in epoch_differences(ours, others, start_offset, end_offset):
        logged, other_logged = _logged_epoch(best.directory, offset), _logged_epoch(other.directory, offset)
        if logged is None or other_logged is None or logged != other_logged:
            return Difference(offset, end_offset, epoch, other_epoch)
    return None


def epoch_differences(
    ours: Sequence[EpochEntry], others: Sequence[EpochEntry], start_offset: int, end_offset: int
) -> Iterator[tuple[int, int, int]]:
    """The offsets in the range from which on the epochs differ, with both epochs.

    Entries are in order. Offsets below the first entry of one of the two are not compared: their epoch is unknown.
    """
    starts = {start_offset, *(entry.start_offset for entry in (*ours, *others))}
    for offset in sorted(each for each in starts if start_offset <= each < end_offset):
        epoch, other_epoch = _epoch_at(ours, offset), _epoch_at(others, offset)
        if epoch is not None and other_epoch is not None and epoch != other_epoch:
            yield offset, epoch, other_epoch


def _epoch_at(entries: Sequence[EpochEntry], offset: int) -> int | None:
    index = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[index - 1].epoch if index else None


def _epochs(directory: Path) -> tuple[EpochEntry, ...]:
    return LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT).entries


def _logged_epoch(directory: Path, offset: int) -> int | None:
    """The leader epoch of the batch with `offset`; None if there is none, as after a cleaning, or it is damaged."""
    bases = list_base_offsets(directory)
    index = bisect_right(bases, offset)
    if not index:
        return None
    try:
        with SegmentReader(LocalExtent(directory, bases[index - 1])) as reader:
            located = reader.locate(offset)
    except DiskFormatError:
        return None
    if located is None or not located[1].base_offset <= offset <= located[1].last_offset:
        return None
    return located[1].leader_epoch


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


def open_brokers(
    paths: Sequence[Path],
    identity: RootIdentity | None,
    *,
    clock: Callable[[], int],
    read_to_log_end: bool,
    remote_storage: RemoteStorageOption | None,
) -> BrokerRoot | BrokerDirectories:
    """The directory of a broker, or several as one root, with what brokers copied to remote storage if it is given.

    Raises LogDirError for a path that is not a broker's directory, or if several are not those of `identity`.
    """
    remote_logs = None
    if remote_storage is not None:
        from pyspark_kafkalog.root.brokers.remote_logs import RemoteLogs  # few roots need it

        remote_logs = RemoteLogs(remote_storage, paths)
    if len(paths) == 1:
        return BrokerRoot(paths[0], clock=clock, read_to_log_end=read_to_log_end, remote_logs=remote_logs)
    root = BrokerDirectories(paths, clock=clock, read_to_log_end=read_to_log_end, remote_logs=remote_logs)
    if identity is not None and not identity.fits(root.identity):
        raise another_root_error(root.path, identity, root.identity)
    return root
