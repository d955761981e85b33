"""A copy of the logs of a root in a directory: what is copied (`Source`), and what makes a root of the copied logs.

    <target>/
      __cluster_metadata-0/kafkalog-format     "unfinished copy" until all the rest is on disk: then "version=1"
      orders-0/ …                              the partitions
      *-offset-checkpoint                      all four, the cleaner's as of the commit
      __cluster_metadata-0.kafka-stray/        of an adopted directory: the broker's own metadata log
      meta.properties                          the same cluster id, node id and directory id
      __cluster_metadata-0/<offset>.checkpoint the metadata image as of the commit: topics with ids and configurations,
                                               broker-level settings, access control entries, transactional ids, the
                                               state of every partition

A copy that is a root (a backup) is restored by opening it. Commits continue at the offset at which the copy was made.
Earlier commits (the history), staged files and the directories of deleted topics are not copied. A copy of selected
topics contains those topics and everything else of the root. A crash leaves a directory whose marker says that it is
unfinished. It cannot be opened; the next export into it removes its contents and starts over.

The sources are in file_copy.py, object_copy.py and broker_copy.py; a new broker's directory is made of the same copied
logs (broker_directory.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.groups.group import delete_outdated_offsets
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.metadata.local.backend import LocalSnapshots, is_leftover
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    FORMAT_VERSION,
    HEAD_FILE,
    METADATA_DIR,
    OffsetHint,
    is_unfinished_copy,
    metadata_dir,
    write_marker,
)
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, root_lock
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.bootstrap import begin_copy, is_vacant, make_dir
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import (
    CLEAN_SHUTDOWN_FILE,
    MetaProperties,
    write_meta_properties,
    write_topic_id,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.below_root import follow_root, scan
from pyspark_kafkalog.storage.filesystem import LOCAL, TEMPORARY, FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    OFFSETS_TOPIC,
    PARTITION_METADATA,
    TopicPartition,
    parse_metadata_snapshot,
    parse_partition_dir,
    parse_segment_file,
    partition_path,
)
from pyspark_kafkalog.tiered.remote_log_metadata import REMOTE_LOG_METADATA_TOPIC, remote_segment
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

#: The files of a copy beside its partitions, and the names of those in its metadata folder that have no offset.
_COPIED_FILES: Final = frozenset(
    {
        META_PROPERTIES,
        LOCK_FILE,
        CLEAN_SHUTDOWN_FILE,
        CLEANER_OFFSET_CHECKPOINT,
        LOG_START_OFFSET_CHECKPOINT,
        RECOVERY_POINT_CHECKPOINT,
        REPLICATION_OFFSET_CHECKPOINT,
    }
)
_OWN_PREFIX: Final = "kafkalog-"
_QUORUM_STATE: Final = "quorum-state"
_METADATA_FOLDERS: Final = (METADATA_DIR, KEPT_METADATA_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """What to copy: `topics` (None: all), for a root or `is_for_broker`.

    `link`: closed segments are hard links if the file system supports them. With `tiered`, segments in remote storage
    stay there only. `fs` is used where the root that is copied has none.
    """

    topics: Collection[str] | None = None
    link: bool = True
    tiered: bool = False
    is_for_broker: bool = False
    fs: FileSystem = LOCAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPartition:
    """One partition with its offsets in the checkpoints, and the bytes linked and copied.

    `is_tiered`: its log begins in remote storage.
    """

    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    linked_bytes: int = 0
    copied_bytes: int = 0
    is_tiered: bool = False


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """A partition that was copied, and the state of its log in the copy."""

    exported: ExportedPartition
    state: LogState


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(ABC):
    """The logs of a root as of one commit, or of a stopped broker.

    `fs` are the calls that change the copy. `properties` has the root's ids, `cleaned` is the cleaner's checkpoint.
    `notes` is what the user has to know.
    """

    fs: FileSystem
    clock: Callable[[], int]
    properties: MetaProperties
    cleaned: Mapping[TopicPartition, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @abstractmethod
    def copy(self, target: Path) -> Sequence[CopiedLog]:
        """Copy all partitions into directories of `target`; they are then on disk.

        Raises LogDirError for records that were deleted before they were copied, DiskFormatError for damage.
        """

    @abstractmethod
    def image(self, copied: Sequence[CopiedLog]) -> MetadataImage:
        """The image of a root, or of a new broker, with the copied logs."""

    @abstractmethod
    def remote_segments(self) -> Mapping[TopicIdPartition, Sequence[RemoteSegment]]:
        """What of each partition stays in remote storage as a new broker's."""


def copy_root(source: Source, target: Path) -> list[ExportedPartition]:
    """Make `target`, which is absent, empty or an unfinished copy, a root with the logs of `source`."""
    fs = source.fs
    with unfinished_copy(target, fs):
        copied = source.copy(target)
        exported, image = [each.exported for each in copied], source.image(copied)
        write_checkpoints(target, exported, cleaned=source.cleaned, keep={}, fs=fs)
        write_meta_properties(target / META_PROPERTIES, source.properties, fs=fs)
        directory = metadata_dir(target)
        LocalSnapshots(directory, fs).write(image)
        OffsetHint(directory / HEAD_FILE, fs).create(image.next_offset)
        fs.fsync_dir(target)
        write_marker(directory, fs, image.format_version or FORMAT_VERSION)  # now it is whole
    return exported


def make_partition(target: Path, topic_partition: TopicPartition, topic_id: str, fs: FileSystem) -> Path:
    """Create the directory of the partition in `target`."""
    directory = partition_path(target, topic_partition)
    fs.mkdir(directory)
    write_topic_id(directory / PARTITION_METADATA, topic_id, fs=fs, durable=False)
    return directory


@contextlib.contextmanager
def unfinished_copy(target: Path, fs: FileSystem) -> Iterator[None]:
    """Make `target`, which is absent, empty or an unfinished copy, an empty unfinished copy, locked for the block.

    Raises LogDirError for any other `target`.
    """
    follow_root(target)
    make_dir(target, fs)
    with root_lock(target, is_new=True, fs=fs):
        _make_empty(target, fs)
        begin_copy(target, fs=fs)
        yield


def _make_empty(target: Path, fs: FileSystem) -> None:
    """Remove the contents of an unfinished copy. Raises LogDirError for a directory that contains anything else."""
    if not is_unfinished_copy(target) and not is_vacant(target):
        raise LogDirError(
            f"{target} is neither empty nor a broker's log directory (it has no {META_PROPERTIES}): name another"
        )
    metadata = metadata_dir(target)
    foreign = next(_foreign_entries(target), None)
    if foreign is not None:
        raise LogDirError(
            f"{foreign} is not of an unfinished copy, although {metadata / FORMAT_MARKER} says that {target} is one: "
            f"name another directory, or remove {foreign} if it is not needed"
        )
    for directory in (target, metadata) if metadata.is_dir() else (target,):
        for name, is_dir in [(each.name, each.is_dir(follow_symlinks=False)) for each in scan(directory)]:
            # The marker stays: after a crash, partitions without it would look like a broker's directory.
            if name in (LOCK_FILE, FORMAT_MARKER) or directory / name == metadata:
                continue
            if is_dir:
                shutil.rmtree(directory / name)
            else:
                fs.unlink(directory / name)


def _foreign_entries(target: Path) -> Iterator[Path]:
    """What no export has written into `target`. Its marker is no proof: any process that may write there could make it.

    So the marker has to be of the user who exports, and all else has to have the names of a copy's files.
    """
    marker = metadata_dir(target) / FORMAT_MARKER
    with contextlib.suppress(FileNotFoundError):
        if marker.lstat().st_uid != os.geteuid():
            yield marker
    for entry in scan(target):
        path = target / entry.name
        if not entry.is_dir(follow_symlinks=False):
            if not entry.is_file(follow_symlinks=False) or TEMPORARY.sub("", entry.name) not in _COPIED_FILES:
                yield path
        elif entry.name not in _METADATA_FOLDERS and parse_partition_dir(entry.name) is None:
            yield path
        else:
            is_known = _is_metadata_file if entry.name in _METADATA_FOLDERS else _is_log_file
            for each in scan(path):
                if not (each.is_file(follow_symlinks=False) and is_known(TEMPORARY.sub("", each.name))):
                    yield path / each.name


def _is_log_file(name: str) -> bool:
    return name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA) or parse_segment_file(name) is not None


def _is_metadata_file(name: str) -> bool:
    known = name.startswith(_OWN_PREFIX) or name == _QUORUM_STATE or is_leftover(name)
    return known or _is_log_file(name) or parse_metadata_snapshot(name) is not None


def write_checkpoints(
    target: Path,
    exported: Collection[ExportedPartition],
    *,
    cleaned: Mapping[TopicPartition, int] | None,
    keep: Mapping[str, Mapping[TopicPartition, int]],
    fs: FileSystem,
) -> None:
    """Write the checkpoint files with the partitions' offsets, and those of other partitions in `keep`.

    With `cleaned` None the cleaner's checkpoint is unchanged. Recovery points and high watermarks are the log end
    offsets. A log start offset is written if it is above the base of the first segment, and for a tiered partition,
    whose log start a broker learns nowhere else.
    """
    ends = {each.topic_partition: each.high_watermark for each in exported}
    starts = {
        each.topic_partition: each.log_start_offset
        for each in exported
        if each.is_tiered or each.log_start_offset > first_base(partition_path(target, each.topic_partition))
    }
    offsets: dict[str, Mapping[TopicPartition, int]] = {
        RECOVERY_POINT_CHECKPOINT: ends,
        REPLICATION_OFFSET_CHECKPOINT: ends,
        LOG_START_OFFSET_CHECKPOINT: starts,
    }
    if cleaned is not None:
        offsets[CLEANER_OFFSET_CHECKPOINT] = {
            topic_partition: min(at, ends[topic_partition])
            for topic_partition, at in cleaned.items()
            if topic_partition in ends
        }
    for name, own in offsets.items():
        others = {
            topic_partition: offset
            for topic_partition, offset in keep.get(name, {}).items()
            if topic_partition not in ends
        }
        write_offset_checkpoint(target / name, {**others, **own}, fs=fs)


def first_base(directory: Path) -> int:
    try:
        return next(iter(list_base_offsets(directory)), 0)
    except FileNotFoundError:
        return 0


def exported_partition(
    topic_partition: TopicPartition, state: LogState, linked_bytes: int = 0, copied_bytes: int = 0
) -> ExportedPartition:
    return ExportedPartition(
        topic_partition=topic_partition,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        linked_bytes=linked_bytes,
        copied_bytes=copied_bytes,
    )


def chosen_topics(image: MetadataImage, partitions: Iterable[TopicPartition], *, is_for_broker: bool) -> MetadataImage:
    """The image with the topics of `partitions`; for a broker not a `__remote_log_metadata` of earlier times."""
    names = {each.topic for each in partitions}
    if is_for_broker:
        names.discard(REMOTE_LOG_METADATA_TOPIC)
    return only_topics(image, [image.topics[name] for name in sorted(names)])


def tiered_segments(image: MetadataImage) -> dict[TopicIdPartition, Sequence[RemoteSegment]]:
    """What of each partition is in remote storage."""
    return {
        TopicIdPartition(topic.name, topic.topic_id, each.partition): [remote_segment(one) for one in each.segments]
        for topic in image.topics.values()
        for each in topic.partitions
        if each.segments
    }


def drop_outdated_offsets(root: Root, topics: Collection[str] | None) -> None:
    """Delete the offsets of deleted topics from `root` before a broker gets its `__consumer_offsets`.

    Raises FollowingRootError if there are any and the root follows, CorruptRecordError.
    """
    if topics is None or OFFSETS_TOPIC in topics:
        delete_outdated_offsets(root)


def only_topics(image: MetadataImage, topics: Collection[TopicImage]) -> MetadataImage:
    """The image with `topics` instead of its own."""
    return replace(
        image,
        topics={topic.name: topic for topic in topics},
        topic_names={topic.topic_id: topic.name for topic in topics},
    )
