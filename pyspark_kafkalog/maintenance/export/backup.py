"""Backup: a copy of a whole log directory as of one commit, made while writers and maintenance continue.

    <target>/
      __cluster_metadata-0/kafkalog-format     "unfinished copy" until all the rest is on disk: then "version=1"
      orders-0/ …                              the partitions (log_copy.py)
      *-offset-checkpoint                      all four, the cleaner's as of the commit
      __cluster_metadata-0.kafka-stray/        of an adopted directory: the broker's own metadata log
      meta.properties                          the same cluster id, node id and directory id
      __cluster_metadata-0/<offset>.checkpoint the metadata image as of the commit: topics with ids and configurations,
                                               broker-level settings, access control entries, transactional ids, the
                                               state of every partition

A backup is restored by opening it. Commits continue at the offset at which the copy was made. Earlier commits (the
history), staged files and the directories of deleted topics are not copied.

A crash leaves a directory whose marker says that it is unfinished. It cannot be opened; the next export into it removes
its contents and starts over. A copy of selected topics contains those topics and everything else of the root.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.export.log_copy import ExportedPartition, copy_log, write_checkpoints
from pyspark_kafkalog.maintenance.export.pinned_logs import PinnedLogs, pinned_logs
from pyspark_kafkalog.metadata.commit_log import HEAD_FILE, OffsetHint
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.metadata.root_format import FORMAT_MARKER, FORMAT_VERSION, is_copied, metadata_dir, write_marker
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, root_lock
from pyspark_kafkalog.metadata.snapshots import Snapshots
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.bootstrap import begin_copy, is_vacant, make_dir
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties, write_meta_properties, write_topic_id
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import META_PROPERTIES, PARTITION_METADATA, TopicPartition


def back_up(
    root: OwnRoot, target: Path, topics: Collection[str] | None = None, *, link: bool = True
) -> list[ExportedPartition]:
    """Make `target` a copy of `root` with `topics` (None: all). `target` is absent, empty or an unfinished copy.

    Raises LogDirError for any other `target`, and the errors of `pinned_logs`.
    """
    with pinned_logs(root, topics) as logs:
        return copy_root(root, logs, target, logs.image, link=link, keep_broker_metadata=topics is None)


def copy_root(
    root: OwnRoot, logs: PinnedLogs, target: Path, image: MetadataImage, *, link: bool, keep_broker_metadata: bool
) -> list[ExportedPartition]:
    """As `back_up`, from pinned logs. `image` is what the copy contains; partitions without a state have no log."""
    fs = root.fs
    make_dir(target, fs)
    with root_lock(target, is_new=True, fs=fs):
        _make_empty(target)
        begin_copy(target, fs=fs)
        exported = []
        for topic, where in _partitions(logs, image):
            directory = target / str(where)
            fs.mkdir(directory)
            write_topic_id(directory / PARTITION_METADATA, topic.topic_id, fs=fs, durable=False)
            if topic.partitions[where.partition].state.log_end_offset:
                exported.append(copy_log(logs, where, directory, link=link, clock=root.clock, fs=fs))
            else:
                exported.append(ExportedPartition(topic_partition=where, log_start_offset=0, high_watermark=0))
        write_checkpoints(target, exported, cleaned=logs.cleaned, keep={}, fs=fs)
        if keep_broker_metadata and (root.path / KEPT_METADATA_DIR).is_dir():
            shutil.copytree(root.path / KEPT_METADATA_DIR, target / KEPT_METADATA_DIR, symlinks=True)
            _sync_files(target / KEPT_METADATA_DIR, fs)
        write_meta_properties(target / META_PROPERTIES, read_meta_properties(root.path / META_PROPERTIES), fs=fs)
        _write_image(target, image, fs)
        fs.fsync_dir(target)
        write_marker(metadata_dir(target), fs, image.format_version or FORMAT_VERSION)  # now it is whole
    return exported


def only_topics(image: MetadataImage, topics: Collection[TopicImage]) -> MetadataImage:
    """The image with `topics` instead of its own."""
    return replace(
        image,
        topics={topic.name: topic for topic in topics},
        topic_names={topic.topic_id: topic.name for topic in topics},
    )


def _make_empty(target: Path) -> None:
    """Remove the contents of an unfinished copy. Raises LogDirError for a directory that contains anything else."""
    if not is_copied(target) and not is_vacant(target):
        raise LogDirError(
            f"{target} is neither empty nor a broker's log directory (it has no {META_PROPERTIES}): name another"
        )
    metadata = metadata_dir(target)
    for entry in [*target.iterdir(), *(metadata.iterdir() if metadata.is_dir() else ())]:
        # The marker stays: after a crash, partitions without it would look like a broker's directory.
        if entry.name in (LOCK_FILE, FORMAT_MARKER) or entry == metadata:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _partitions(logs: PinnedLogs, image: MetadataImage) -> Iterator[tuple[TopicImage, TopicPartition]]:
    for where in logs.partitions:
        if where.topic in image.topics:
            yield image.topics[where.topic], where


def _sync_files(directory: Path, fs: FileSystem) -> None:
    for path in directory.iterdir():
        fd = fs.open(path, os.O_RDONLY)
        try:
            fs.fsync(fd)
        finally:
            fs.close(fd)
    fs.fsync_dir(directory)


def _write_image(target: Path, image: MetadataImage, fs: FileSystem) -> None:
    directory = metadata_dir(target)
    Snapshots(directory, fs).write(image)
    OffsetHint(directory / HEAD_FILE, fs).write(image.next_offset)
