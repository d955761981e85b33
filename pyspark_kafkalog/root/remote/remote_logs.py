"""The remote part of a broker's partitions: what its directories say of the segments in remote storage.

Which segments a partition has is noted in the partitions of `__remote_log_metadata`, of which every broker of a small
cluster has a replica. If a directory has none that knows the partition, the objects in remote storage are listed
instead. The partition's own `leader-epoch-checkpoint` decides which segments are of its log (`tiered.lineage`).

Only files are read, so that a task can look a partition up again when an object turns out to be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.root.snapshot import PartitionSnapshot, RemotePart
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.marker_files import read_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions
from pyspark_kafkalog.storage.log.log_state import load_read_only
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
)
from pyspark_kafkalog.tiered.lineage import first_remote_offset, highest_remote_offset, readable_segments
from pyspark_kafkalog.tiered.remote_log_metadata import (
    REMOTE_LOG_METADATA_TOPIC,
    MetadataPartition,
    RemoteLogMetadata,
    metadata_reader,
)
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.tiered.extents import RemoteLog
    from pyspark_kafkalog.tiered.remote_storage import RemoteStorage, RemoteStorageOption

_NEVER_TIERED: Final = INTERNAL_TOPICS | {CLUSTER_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC}
_NO_METADATA: Final = RemoteLogMetadata()


@dataclass(frozen=True, slots=True)
class FoundRemoteLog:
    """A partition's remote part, and the log start offset that a leader would raise its own to (None: leave it)."""

    log: RemoteLog
    first_offset: int | None


def read_remote_log_metadata(directories: Sequence[Path]) -> RemoteLogMetadata:
    """The replayed `__remote_log_metadata` of a broker's directories. Raises DiskFormatError for damage, OSError."""
    partitions = _metadata_partitions(directories)
    if not partitions:
        return _NO_METADATA
    return metadata_reader(tuple(directories)).read(partitions)


def _metadata_partitions(directories: Iterable[Path]) -> list[MetadataPartition]:
    """Of each partition of the topic, the replica that reaches furthest."""
    from pyspark_kafkalog.storage.log.reader import LocalExtents  # imports compiled code

    best: dict[int, MetadataPartition] = {}
    for root in directories:
        ends = read_offset_checkpoint(root / REPLICATION_OFFSET_CHECKPOINT)
        starts = read_offset_checkpoint(root / LOG_START_OFFSET_CHECKPOINT)
        for each in list_partitions(root):
            if each.topic != REMOTE_LOG_METADATA_TOPIC:
                continue
            directory = root / str(each)
            extents = tuple(LocalExtents(directory).current())
            start_offset = max(starts.get(each, 0), extents[0].base_offset if extents else 0)
            log_end = load_read_only(directory, log_start_offset=start_offset).log_end_offset
            end_offset = min(ends.get(each, log_end), log_end)
            if each.partition not in best or end_offset > best[each.partition].end_offset:
                topic_id = _topic_id(directory)
                best[each.partition] = MetadataPartition(each.partition, topic_id, start_offset, end_offset, extents)
    return [best[number] for number in sorted(best)]


def _topic_id(directory: Path) -> str | None:
    try:
        return read_topic_id(directory / PARTITION_METADATA)
    except FileNotFoundError:
        return None


def find_remote_log(
    metadata: RemoteLogMetadata,
    storage: RemoteStorage,
    partition: TopicIdPartition,
    directory: Path,
    log_end_offset: int,
    *,
    is_listed: bool,
) -> FoundRemoteLog | None:
    """The remote part of the partition whose local segments are in `directory`; None if it has none.

    `is_listed`: list the objects if no metadata know the partition. Raises ObjectStoreError, DiskFormatError.
    """
    from pyspark_kafkalog.tiered.extents import RemoteLog  # imports compiled code

    epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT).entries
    known = metadata.partitions.get((partition.topic_id, partition.partition))
    if known is not None:
        segments: Iterable[RemoteSegment] = known.segments.values()
        highest = highest_remote_offset(known.highest_by_epoch, epochs, log_end_offset)
    elif is_listed:
        store = storage.store()
        segments = storage.layout.segments(store, partition, storage.layout.objects_of(store, partition))
        highest = -1
    else:
        return None
    readable = readable_segments(segments, log_end_offset=log_end_offset, epochs=epochs)
    if known is None:
        highest = readable[-1].last_offset if readable else -1
    first_offset = None if known is None else first_remote_offset(segments, epochs)
    return FoundRemoteLog(RemoteLog(storage, partition, readable, highest), first_offset)


@dataclass(frozen=True, slots=True)
class RemoteLookUp:
    """Finds the remote part of one partition anew; can be pickled.

    `directories` are those of the broker, `directory` is the partition's.
    """

    storage: RemoteStorage
    directories: tuple[str, ...]
    directory: str
    partition: TopicIdPartition

    def __call__(self) -> RemoteLog | None:
        """As of now. Raises ObjectStoreError, DiskFormatError, OSError."""
        directory = Path(self.directory)
        state = load_read_only(directory, log_start_offset=0)
        metadata = read_remote_log_metadata([Path(each) for each in self.directories])
        found = find_remote_log(metadata, self.storage, self.partition, directory, state.log_end_offset, is_listed=True)
        return None if found is None else found.log


class RemoteLogs:
    """The remote parts of the logs in one or several directories of brokers, as of the last `refresh`."""

    def __init__(self, option: RemoteStorageOption, directories: Iterable[Path]) -> None:
        self._option = option
        self._storage: RemoteStorage | None = None
        self._directories = tuple(directories)
        self._metadata: RemoteLogMetadata | None = None

    def refresh(self) -> None:
        """Read `__remote_log_metadata` again when it is needed next."""
        self._metadata = None

    def attach(self, found: PartitionSnapshot) -> PartitionSnapshot:
        """`found` with its remote part, if it has one. Raises ObjectStoreError, DiskFormatError, InvalidOptionError."""
        if found.topic_id is None or found.topic in _NEVER_TIERED:
            return found
        if self._metadata is None:
            self._metadata = read_remote_log_metadata(self._directories)
        partition = TopicIdPartition(found.topic, found.topic_id, found.partition)
        is_known = (partition.topic_id, partition.partition) in self._metadata.partitions
        if not is_known and not found.remote_offsets_count:
            return found
        if self._storage is None:
            self._storage = self._option.find()
        remote = find_remote_log(
            self._metadata, self._storage, partition, found.directory, found.log_end_offset, is_listed=True
        )
        if remote is None:
            return found
        directories = tuple(str(each) for each in self._directories)
        look_up = RemoteLookUp(self._storage, directories, str(found.directory), partition)
        return replace(
            found,
            remote=RemotePart(remote.log, look_up),
            log_start_offset=_raised_log_start(found, remote),
        )


def _raised_log_start(found: PartitionSnapshot, remote: FoundRemoteLog) -> int:
    """The log start offset as a new leader sets it: at least where its remote segments begin.

    The checkpoint of a broker that was killed may be older than its last deletions.
    """
    first_offset = found.local_log_start_offset if remote.first_offset is None else remote.first_offset
    return max(found.log_start_offset, min(first_offset, found.local_log_start_offset))
