"""Partition directories of a root of ours: made, told apart by topic id, put aside when their topic is deleted.

    <root>/orders-0/                     partition.metadata holds the topic's id
    <root>/orders-0.<32 hex>-delete/     of a deleted topic, removed after file.delete.delay.ms

The commit log decides which topics there are; directories follow it. A crash between a commit and its directories is
made good by the next writer: a missing directory is made, one with another topic's id is put aside first. Lines that
the root's checkpoint files have for a log of the name that was there before go at that time too. Where just the id
cannot be read, of a partition that has records, it is written anew.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.image import TopicImage
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, is_out_of_space
from pyspark_kafkalog.storage.names import LOG_SUFFIX, PARTITION_METADATA, TopicPartition
from pyspark_kafkalog.storage.offset_checkpoints import forget_partitions
from pyspark_kafkalog.storage.partition_metadata import read_topic_id, write_topic_id

_DELETE_SUFFIX: Final = "-delete"
#: Bytes of a file name, as Kafka has it; topic names are ASCII.
_NAME_MAX: Final = 255
_DELETED_DIR = re.compile(r".+\.[0-9a-f]{32}-delete")


def ensure_partition_directories(root: Path, topic: TopicImage, fs: FileSystem) -> None:
    """Make the directories of `topic` that are not there. The caller holds the root's lock."""
    have_records = {
        TopicPartition(topic.name, each.partition): each.state.log_end_offset > 0 for each in topic.partitions
    }
    _ensure(root, have_records, topic.topic_id, fs)


def ensure_partition_directory(root: Path, topic_partition: TopicPartition, topic_id: str, fs: FileSystem) -> None:
    """Make the directory of a partition without records if it is not there; see `ensure_partition_directories`."""
    _ensure(root, {topic_partition: False}, topic_id, fs)


def has_partition_directories(root: Path, topic: TopicImage) -> bool:
    """Whether the directories of `topic` have been made. They are made in order, so the last one tells."""
    last = TopicPartition(topic.name, topic.partitions[-1].partition)
    return topic_id_of(root / str(last)) == topic.topic_id


def _ensure(root: Path, have_records: Mapping[TopicPartition, bool], topic_id: str, fs: FileSystem) -> None:
    lacking = [where for where in have_records if topic_id_of(root / str(where)) != topic_id]
    if not lacking:
        return
    # The ids come last: who finds them does not look for lines of another log any more.
    forget_partitions(root, {where for where in lacking if not have_records[where]}, fs=fs)
    for where in lacking:
        directory = root / str(where)
        is_kept = have_records[where] and topic_id_of(directory) is None
        if not is_kept and directory.exists() and _holds_a_log(directory):
            put_aside(root, where, fs)
        with contextlib.suppress(FileExistsError):
            fs.mkdir(directory)
        write_topic_id(directory / PARTITION_METADATA, topic_id, fs=fs)
    fs.fsync_dir(root)


def topic_id_of(directory: Path) -> str | None:
    """The id in the directory's partition.metadata, None where it cannot be told."""
    try:
        return read_topic_id(directory / PARTITION_METADATA)
    except (FileNotFoundError, DiskFormatError):
        return None


def _holds_a_log(directory: Path) -> bool:
    return any(directory.glob(f"*{LOG_SUFFIX}")) or (directory / PARTITION_METADATA).exists()


def name_put_aside(topic_partition: TopicPartition, suffix: str) -> str:
    """A new name for the directory, with the topic's cut to fit, as Kafka makes it."""
    end = f"-{topic_partition.partition}.{uuid.uuid4().hex}{suffix}"
    return f"{topic_partition.topic[: _NAME_MAX - len(end)]}{end}"


def put_aside(root: Path, topic_partition: TopicPartition, fs: FileSystem) -> None:
    """Rename the directory as Kafka does for a deleted topic; none there is fine.

    A full disk may have no room for the longer name: then the directory goes at once.
    """
    target = root / name_put_aside(topic_partition, _DELETE_SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        try:
            fs.rename(root / str(topic_partition), target)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            _remove_tree(root / str(topic_partition), fs)
            return
        # The time of the rename decides when the directory goes; its own mtime may be old.
        os.utime(target)


def remove_deleted(root: Path, *, now_ms: int, delay_ms: int, fs: FileSystem = LOCAL) -> None:
    """Remove the directories of deleted topics that were put aside more than `delay_ms` ago."""
    for directory in root.glob(f"*{_DELETE_SUFFIX}"):
        if not _DELETED_DIR.fullmatch(directory.name) or directory.is_symlink():
            continue
        with contextlib.suppress(FileNotFoundError):
            if directory.stat().st_mtime_ns // 1_000_000 + delay_ms <= now_ms:
                _remove_tree(directory, fs)


def _remove_tree(directory: Path, fs: FileSystem) -> None:
    for entry in list(directory.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            _remove_tree(entry, fs)
        else:
            fs.unlink_if_there(entry)
    fs.rmdir(directory)
