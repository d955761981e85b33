"""Steps of a repair in the root of a native log directory: the commit log's small files, the checkpoints; see
repair.py.

All steps run under the root's lock and start from the image. If the image cannot be loaded from the commit log, the
root is beyond repair.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError
from pyspark_kafkalog.maintenance.retention.log_start import note_log_starts
from pyspark_kafkalog.metadata.commit_log import HEAD_FILE, LEADER_EPOCH, OffsetHint
from pyspark_kafkalog.metadata.housekeeping import START_FILE
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.root_format import metadata_dir
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE, SnapshotId, Snapshots, read_snapshot, write_pointer
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import write_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.filesystem import UNFLUSHED_MARKER
from pyspark_kafkalog.storage.names import PARTITION_METADATA, TopicPartition

_LOG_END_CHECKPOINTS: Final = (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT)


def replace_snapshots(root: OwnRoot, now_ms: int) -> None:
    """Write a snapshot of the newest image durably, then remove the damaged ones."""
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        directory = metadata_dir(root.path)
        Snapshots(directory, root.fs).write(image)
        for snapshot in _snapshots(root):
            if not _is_whole(root, snapshot) and snapshot.end_offset != image.next_offset:
                root.fs.unlink_if_there(directory / snapshot.file_name)


def _snapshots(root: OwnRoot) -> list[SnapshotId]:
    parsed = map(SnapshotId.parse, os.listdir(metadata_dir(root.path)))
    return sorted(each for each in parsed if each is not None and each.epoch == LEADER_EPOCH and each.end_offset > 0)


def _is_whole(root: OwnRoot, snapshot: SnapshotId) -> bool:
    try:
        for _ in read_snapshot(metadata_dir(root.path) / snapshot.file_name).records:
            pass
    except (CorruptRecordError, FileNotFoundError):
        return False
    return True


def rewrite_hints(root: OwnRoot, now_ms: int) -> None:
    """Rewrite the pointer, the head and the start from the files that exist."""
    directory = metadata_dir(root.path)
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        whole = [snapshot for snapshot in _snapshots(root) if _is_whole(root, snapshot)]
        if whole:
            write_pointer(directory, whole[-1], root.fs)
        else:
            root.fs.unlink_if_there(directory / POINTER_FILE)
        if not (root.path / UNFLUSHED_MARKER).exists():  # with the marker the log may be shorter after a power failure
            OffsetHint(directory / HEAD_FILE, root.fs).write(image.next_offset)
        oldest = min(root.store.log.listed_offsets(), default=None)
        if oldest is not None and (directory / START_FILE).exists():
            OffsetHint(directory / START_FILE, root.fs).write(oldest)


def write_metadata_topic_id(root: OwnRoot, now_ms: int) -> None:
    """Write partition.metadata of the commit log."""
    with root_lock(root.path, fs=root.fs):
        write_topic_id(metadata_dir(root.path) / PARTITION_METADATA, METADATA_TOPIC_ID, fs=root.fs)


def rewrite_checkpoints(root: OwnRoot, now_ms: int) -> None:
    """Rewrite the offset checkpoints that cannot be read, and remove invalid lines from the others."""
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        for name in (*_LOG_END_CHECKPOINTS, CLEANER_OFFSET_CHECKPOINT):
            _rewrite(root, name, image)
        if _read(root, LOG_START_OFFSET_CHECKPOINT) is None:
            root.fs.unlink_if_there(root.path / LOG_START_OFFSET_CHECKPOINT)
    note_log_starts(root, _first_bases(root, image))


def _rewrite(root: OwnRoot, name: str, image: MetadataImage) -> None:
    path = root.path / name
    before = _read(root, name)
    if before is not None:
        kept = {where: offset for where, offset in before.items() if 0 <= offset <= _log_end(image, where)}
        if kept != before:
            write_offset_checkpoint(path, kept, fs=root.fs)
        return
    if name == CLEANER_OFFSET_CHECKPOINT or (root.path / UNFLUSHED_MARKER).exists():
        root.fs.unlink_if_there(path)  # cleaning, or recovery, then begins at the log start offset
        return
    ends = {
        TopicPartition(topic.name, each.partition): each.state.log_end_offset
        for topic in image.topics.values()
        for each in topic.partitions
    }
    write_offset_checkpoint(path, ends, fs=root.fs)


def _read(root: OwnRoot, name: str) -> Mapping[TopicPartition, int] | None:
    try:
        return read_offset_checkpoint(root.path / name)
    except CorruptIndexError:
        return None


def _log_end(image: MetadataImage, where: TopicPartition) -> int:
    """The partition's log end offset, -1 for an unknown partition."""
    topic = image.topics.get(where.topic)
    if topic is None or not 0 <= where.partition < len(topic.partitions):
        return -1
    return topic.partitions[where.partition].state.log_end_offset


def _first_bases(root: OwnRoot, image: MetadataImage) -> dict[TopicPartition, int]:
    found = {}
    for topic in image.topics.values():
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition)
            if (root.path / str(where)).is_dir():
                bases = list_base_offsets(root.path / str(where))
                if bases:
                    found[where] = bases[0]
    return found


def remove_deleted_topics(root: OwnRoot, now_ms: int) -> None:
    """Remove the directories of deleted topics whose delay is over."""
    root.remove_deleted_topics(now_ms)
