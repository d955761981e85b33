"""Partition directories of a native root: creates them, checks their topic ids, renames those of deleted topics.

    <root>/orders-0/                     partition.metadata holds the topic's id
    <root>/orders-0.<32 hex>-delete/     of a deleted topic, removed after file.delete.delay.ms

The commit log defines which topics exist; directories are changed after the commit. Creating them does not wait for
the disk, as there may be thousands: who first writes to a partition makes its id durable, as in Kafka
(PartitionMetadataFile.maybeFlush). After a crash the next writer repairs what is missing: it creates directories, and
first renames those with another topic's id. It then also removes the lines in the root's checkpoint files for an
earlier log of the same name. If only the id of a partition with records is unreadable, or that of one without any
files, it is rewritten. The directory of a partition with records is neither made nor renamed: its id was on disk before
them, so one that is missing or has another id is damage, and what is there may be all that is left.

A process that is killed after it has committed a topic's deletion may leave directories without renaming them. Creating
a topic of the same name renames them. Retention searches for the others, which would take space for ever: directories
whose topic is not in the image and whose id a commit has removed. Only ids that this root's commit log has removed
count, so a directory that a user put into the root is not removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, LogDirError
from pyspark_kafkalog.metadata.commit_log import CommitLog
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.metadata.messages.metadata_records import RemoveTopicRecord
from pyspark_kafkalog.storage.artefacts.checkpoint_file import forget_partitions
from pyspark_kafkalog.storage.artefacts.marker_files import read_topic_id, write_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import has_log
from pyspark_kafkalog.storage.below_root import scan
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, is_out_of_space
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    PARTITION_METADATA,
    TopicPartition,
    parse_partition_dir,
    partition_path,
)
from pyspark_kafkalog.units import NS_PER_MS

_DELETE_SUFFIX: Final = "-delete"
#: Maximum length of a file name in bytes, as in Kafka; topic names are ASCII.
_NAME_MAX: Final = 255
#: Maximum of commits searched for deletions. Reading so many takes about a second, and retention runs more often.
_COMMITS_MAX: Final = 10_000
_DELETED_DIR = re.compile(r".+\.[0-9a-f]{32}-delete")


def ensure_partition_directories(root: Path, topic: TopicImage, fs: FileSystem, numbers: range | None = None) -> None:
    """Create the missing directories of `topic`, or of those of its partitions. The caller holds the root's lock.

    Raises LogDirError, after that, for those of partitions with records.
    """
    some = topic.partitions if numbers is None else topic.partitions[numbers.start : numbers.stop]
    lost = [each for each in some if _is_lost(root, topic, each)]
    have_records = {
        TopicPartition(topic.name, each.partition): each.state.log_end_offset > 0 for each in some if each not in lost
    }
    _ensure(root, have_records, topic.topic_id, fs)
    for each in lost:
        directory = partition_path(root, TopicPartition(topic.name, each.partition))
        found = topic_id_of(directory)
        raise LogDirError(
            f"{directory}: expected the directory of topic id {topic.topic_id}, which has committed records, found "
            f"{'none' if found is None else f'one of topic id {found}'}: restore it, or its {PARTITION_METADATA}, from "
            "a copy; nothing was renamed"
        )


def _is_lost(root: Path, topic: TopicImage, partition: PartitionImage) -> bool:
    """Whether the partition has local records, and its directory is missing or says that it is another topic's."""
    if partition.state.log_end_offset <= partition.state.local_log_start_offset:
        return False
    directory = partition_path(root, TopicPartition(topic.name, partition.partition))
    found = topic_id_of(directory)
    return found != topic.topic_id and (found is not None or not directory.exists())


def ensure_partition_directory(
    root: Path, topic_partition: TopicPartition, topic_id: str, fs: FileSystem
) -> Callable[[], None]:
    """Have the directory of a partition without records, with the topic's id. The caller holds the root's lock.

    Returns the call that waits until both are on disk. It has to return before the partition's first records are
    committed: what would be lost with them cannot be made again.
    """
    _ensure(root, {topic_partition: False}, topic_id, fs)
    return partial(_flush_topic_id, partition_path(root, topic_partition), fs)


def _flush_topic_id(directory: Path, fs: FileSystem) -> None:
    fd = fs.open(directory / PARTITION_METADATA, os.O_RDONLY)
    try:
        fs.fsync(fd)
    finally:
        fs.close(fd)
    fs.fsync_dir(directory)


def has_partition_directories(root: Path, topic: TopicImage) -> bool:
    """Whether the directories of `topic` exist. They are created in order, so only the last one is checked.

    A power failure may have lost others. The next writer of a partition looks for its directory.
    """
    last = TopicPartition(topic.name, topic.partitions[-1].partition)
    return topic_id_of(partition_path(root, last)) == topic.topic_id


def _ensure(root: Path, have_records: Mapping[TopicPartition, bool], topic_id: str, fs: FileSystem) -> None:
    missing = [each for each in have_records if topic_id_of(partition_path(root, each)) != topic_id]
    if not missing:
        return
    # Ids are written last: a process that finds them does not look for another log's lines in the checkpoints.
    forget_partitions(root, {each for each in missing if not have_records[each]}, fs=fs)
    for topic_partition in missing:
        directory = partition_path(root, topic_partition)
        has_other_id = topic_id_of(directory) is not None
        if has_other_id or (not have_records[topic_partition] and directory.exists() and has_log(directory)):
            rename_for_deletion(root, topic_partition, fs)
        with contextlib.suppress(FileExistsError):
            fs.mkdir(directory)
        write_topic_id(directory / PARTITION_METADATA, topic_id, fs=fs, durable=have_records[topic_partition])
    fs.fsync_dir(root)


def topic_id_of(directory: Path) -> str | None:
    """The id in the directory's partition.metadata; None if it is missing or unreadable."""
    try:
        return read_topic_id(directory / PARTITION_METADATA)
    except (FileNotFoundError, DiskFormatError):
        return None


def renamed_directory(topic_partition: TopicPartition, suffix: str) -> str:
    """A new name for the directory, as Kafka forms it; the topic's name is cut to fit."""
    end = f"-{topic_partition.partition}.{uuid.uuid4().hex}{suffix}"
    return f"{topic_partition.topic[: _NAME_MAX - len(end)]}{end}"


def rename_for_deletion(root: Path, topic_partition: TopicPartition, fs: FileSystem) -> None:
    """Rename the directory as Kafka does for a deleted topic, if it exists.

    If a full disk has no room for the longer name, the directory is removed immediately.
    """
    target = root / renamed_directory(topic_partition, _DELETE_SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        try:
            fs.rename(partition_path(root, topic_partition), target)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            _remove_tree(partition_path(root, topic_partition), fs)
            return
        # The delay until removal counts from the rename; the directory's own mtime may be old.
        fs.touch(target)


def remove_deleted(root: Path, *, now_ms: int, delay_ms: int, fs: FileSystem = LOCAL) -> None:
    """Remove the directories of deleted topics that were renamed more than `delay_ms` before `now_ms`."""
    for directory in root.glob(f"*{_DELETE_SUFFIX}"):
        if not _DELETED_DIR.fullmatch(directory.name) or directory.is_symlink():
            continue
        with contextlib.suppress(FileNotFoundError):
            if directory.stat().st_mtime_ns // NS_PER_MS + delay_ms <= now_ms:
                _remove_tree(directory, fs)


def _remove_tree(directory: Path, fs: FileSystem) -> None:
    for name, is_dir in [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan(directory)]:
        if is_dir:
            # Beside the directory first: only the last part of a path is checked for links.
            inner = directory.with_name(f"{directory.name.partition('.')[0]}.{uuid.uuid4().hex}{_DELETE_SUFFIX}")
            fs.rename(directory / name, inner)
            _remove_tree(inner, fs)
        else:
            fs.unlink_if_there(directory / name)
    fs.rmdir(directory)


def find_unrenamed_directories(root: Path, image: MetadataImage, log: CommitLog) -> Mapping[TopicPartition, str]:
    """The partitions of deleted topics whose directories keep their names, with the ids of the deleted topics.

    Raises OSError; CorruptRecordError for a damaged commit.
    """
    found: dict[TopicPartition, str] = {}
    with os.scandir(root) as entries:
        for entry in entries:
            each = parse_partition_dir(entry.name)
            if each is None or each.topic in image.topics or each.topic == CLUSTER_METADATA_TOPIC:
                continue
            topic_id = topic_id_of(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else None
            if topic_id is not None:
                found[each] = topic_id
    if not found:
        return found
    removed = _removed_ids(log, set(found.values()))
    return {each: topic_id for each, topic_id in found.items() if topic_id in removed}


def rename_left_directories(
    root: Path, image: MetadataImage, left: Mapping[TopicPartition, str], fs: FileSystem
) -> None:
    """Rename the directories `left` for deletion, except those of topics whose names exist again.

    The caller holds the root's lock.
    """
    for each, topic_id in left.items():
        if each.topic not in image.topics and topic_id_of(partition_path(root, each)) == topic_id:
            rename_for_deletion(root, each, fs)


def _removed_ids(log: CommitLog, topic_ids: Collection[str]) -> set[str]:
    removed: set[str] = set()
    for commit in islice(log.newest_first(), _COMMITS_MAX):
        for each in commit.records:
            if isinstance(each, RemoveTopicRecord) and each.topic_id in topic_ids:
                removed.add(each.topic_id)
    return removed
