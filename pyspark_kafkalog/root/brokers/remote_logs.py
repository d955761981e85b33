"""The remote part of a broker's partitions: the segments in remote storage that its directories list.

Which segments a partition has is noted in the partitions of `__remote_log_metadata`, of which every broker of a small
cluster has a replica. If a directory has none that knows the partition, the objects in remote storage are listed
instead. The partition's own `leader-epoch-checkpoint` decides which segments are of its log (`tiered.segments`).

Only files are read, so that a task can look a partition up again when an object turns out to be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.root.planned import RemotePart
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint, broker_log_starts
from pyspark_kafkalog.storage.artefacts.marker_files import read_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions
from pyspark_kafkalog.storage.log.read_only import load_read_only
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    partition_path,
)
from pyspark_kafkalog.tiered.remote_log import RemoteLog, broker_log
from pyspark_kafkalog.tiered.remote_log_metadata import (
    REMOTE_LOG_METADATA_TOPIC,
    MetadataPartition,
    RemoteLogMetadata,
    metadata_reader,
)
from pyspark_kafkalog.tiered.segments import (
    NO_REMOTE_OFFSET,
    RemoteSegment,
    RemoteSegmentState,
    TopicIdPartition,
    first_remote_offset,
    highest_remote_offset,
    readable_segments,
)

if TYPE_CHECKING:
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
    best: dict[int, MetadataPartition] = {}
    for root in directories:
        starts = broker_log_starts(root)
        for each in list_partitions(root):
            if each.topic != REMOTE_LOG_METADATA_TOPIC:
                continue
            directory = partition_path(root, each)
            extents = tuple(LocalExtents(directory).current())
            start_offset = max(starts.get(each, 0), extents[0].base_offset if extents else 0)
            # Not to the high watermark of the checkpoint: a local segment can be gone before that has its remote copy.
            end_offset = load_read_only(directory, log_start_offset=start_offset).log_end_offset
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
) -> FoundRemoteLog:
    """The remote part of the partition whose local segments are in `directory`.

    If no metadata know the partition, its objects are listed. Raises ObjectStoreError, DiskFormatError.
    """
    epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT).entries
    known = metadata.partitions.get(partition.key)
    if known is not None:
        segments: Iterable[RemoteSegment] = known.segments.values()
        highest = highest_remote_offset(known.highest_by_epoch, epochs, log_end_offset)
    else:
        store = storage.store()
        segments = storage.layout.segments(store, partition, storage.layout.objects_of(store, partition))
        highest = NO_REMOTE_OFFSET
    readable = readable_segments(segments, log_end_offset=log_end_offset, epochs=epochs)
    if known is None and readable:
        highest = readable[-1].last_offset
    first_offset = None if known is None else first_remote_offset(segments, epochs)
    end_offset = readable[-1].end_offset if readable else 0
    return FoundRemoteLog(broker_log(storage, partition, readable, highest, end_offset), first_offset)


@dataclass(frozen=True, slots=True)
class RemoteLookUp:
    """Looks up the remote part of one partition again; can be pickled.

    `directories` are those of the broker, `directory` is the partition's.
    """

    option: RemoteStorageOption
    directories: tuple[str, ...]
    directory: str
    partition: TopicIdPartition

    def __call__(self) -> RemoteLog:
        """As of now. Raises ObjectStoreError, DiskFormatError, OSError."""
        directory = Path(self.directory)
        state = load_read_only(directory, log_start_offset=0)
        metadata = read_remote_log_metadata([Path(each) for each in self.directories])
        storage = _find_storage(self.option, metadata, self.partition)
        return find_remote_log(metadata, storage, self.partition, directory, state.log_end_offset).log


def _find_storage(
    option: RemoteStorageOption, metadata: RemoteLogMetadata, partition: TopicIdPartition
) -> RemoteStorage:
    """The storage. Raises InvalidOptionError if it holds no segments, and the metadata name some of the partition."""
    try:
        return option.find()
    except InvalidOptionError:
        known = metadata.partitions.get(partition.key)
        states = () if known is None else (each.state for each in known.segments.values())
        if RemoteSegmentState.COPY_SEGMENT_FINISHED in states:
            raise
        return option.without_objects()  # the first copies are being made


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
        """`found` with its remote part, which may be empty.

        Raises ObjectStoreError, DiskFormatError; InvalidOptionError if the storage does not hold what it should.
        """
        if found.topic_id is None or found.topic in _NEVER_TIERED:
            return found
        if self._metadata is None:
            self._metadata = read_remote_log_metadata(self._directories)
        partition = TopicIdPartition(found.topic, found.topic_id, found.partition)
        directories = tuple(str(each) for each in self._directories)
        look_up = RemoteLookUp(self._option, directories, str(found.directory), partition)
        if partition.key not in self._metadata.partitions and not found.remote_offsets_count:
            # Local segments may become remote ones while they are read, and are then looked up.
            nothing = broker_log(self._option.without_objects(), partition, (), NO_REMOTE_OFFSET, 0)
            return replace(found, remote=RemotePart(nothing, look_up))
        storage = self._storage or _find_storage(self._option, self._metadata, partition)
        remote = find_remote_log(self._metadata, storage, partition, found.directory, found.log_end_offset)
        if remote.log.segments:
            self._storage = storage
        return replace(found, remote=RemotePart(remote.log, look_up), log_start_offset=_raised_log_start(found, remote))


def _raised_log_start(found: PartitionSnapshot, remote: FoundRemoteLog) -> int:
    """The log start offset as a new leader sets it: at least where its remote segments begin.

    The checkpoint of a broker that was killed may be older than its last deletions.
    """
    first_offset = found.local_log_start_offset if remote.first_offset is None else remote.first_offset
    return max(found.log_start_offset, min(first_offset, found.local_log_start_offset))
