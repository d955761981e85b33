"""Export: a log directory's partitions as a cleanly stopped broker leaves them, for a real broker to mount.

    checkpoints in place    recovery-point-, replication- and log-start-offset-checkpoint as of the newest commit
    a copy elsewhere        partition directories too: segments, indexes, producer snapshots, leader epochs; last of all
                            .kafka_cleanshutdown, which says that the copy is whole
    into a broker's         the same into the directories of a stopped broker's topics; partition.metadata stays the
                            broker's, as it holds the topic ids that its controller knows; checkpoints are merged

Closed segments can be hard links: nobody changes their bytes, a broker as little as we. The active one is copied, for
the broker would append to it. A copied log is then closed as a broker closes it: what was not committed is cut off, the
last index entries and a producer snapshot are written. A crash leaves a part, without checkpoints; run it again.

The source is read under the partitions' maintenance locks, so that no cleaner swaps segments meanwhile; writers go on.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.partition_lock import partition_lock
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.own_root import OwnRoot
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.metadata.store import is_ours
from pyspark_kafkalog.storage.clean_shutdown import write_clean_shutdown
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.flush_mode import flush_earlier
from pyspark_kafkalog.storage.listing import list_base_offsets
from pyspark_kafkalog.storage.log_state import LogState
from pyspark_kafkalog.storage.names import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from pyspark_kafkalog.storage.offset_checkpoints import (
    CHECKPOINTS,
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.partition_metadata import write_topic_id
from pyspark_kafkalog.storage.unified_log import UnifiedLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPartition:
    """One partition with the offsets that the checkpoints tell, and the bytes that were linked and copied."""

    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    linked_bytes: int = 0
    copied_bytes: int = 0


def export_in_place(root: OwnRoot) -> list[ExportedPartition]:
    """Write the checkpoints of all partitions into the root; what a killed writer left in their logs is cut off.

    They tell of the newest commit: write no more, or run it again. Raises what resuming a log does.
    """
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        exported = []
        for where in root.partitions():
            state = image.partition(where.topic, where.partition).state
            if (root.path / str(where)).is_dir() and state.log_end_offset:
                _resume(root, image, root.path / str(where), where).suspend()
            exported.append(_exported(where, state))
        _write_checkpoints(root.path, root, exported, keep={})
    return exported


def export_to(
    root: OwnRoot, target: Path, topics: Collection[str] | None = None, *, link: bool = True, overwrite: bool = False
) -> list[ExportedPartition]:
    """Put the partitions of `topics` (None: all) into `target`, see above; they are as of one commit.

    `link` makes hard links of closed segments where the file system can. Where `target` has a meta.properties it is a
    stopped broker's, has the partitions' directories, and no records in them unless `overwrite`; else it is made, or
    empty. Raises LogDirError for any other `target`, and while maintenance is at work on a partition.
    """
    if is_ours(target) or Path(os.path.realpath(target)).is_relative_to(os.path.realpath(root.path)):
        raise LogDirError(f"{target} is a log directory of this package, or inside of {root.path}: name another")
    with root_lock(root.path, fs=root.fs):
        image = root.store.refresh()
        flush_earlier(root.path, root.fs)
    partitions = root.partitions(topics)
    if (target / META_PROPERTIES).exists():
        with root_lock(target, fs=root.fs):
            for where in partitions:
                _check_mountable(target, where, overwrite=overwrite)
            keep = {name: read_offset_checkpoint(target / name) for name in CHECKPOINTS}
            return _export(root, image, target, partitions, keep, link=link)
    if target.exists() and any(target.iterdir()):
        raise LogDirError(
            f"{target} is neither empty nor a broker's log directory (it has no {META_PROPERTIES}): name another"
        )
    target.mkdir(parents=True, exist_ok=True)
    exported = _export(root, image, target, partitions, {}, link=link)
    write_clean_shutdown(target, image.node.broker_epoch, fs=root.fs)
    return exported


def _check_mountable(target: Path, where: TopicPartition, *, overwrite: bool) -> None:
    directory = target / str(where)
    if not (directory / PARTITION_METADATA).exists():
        raise LogDirError(
            f"the broker's {directory} is missing: create topic {where.topic} on the broker, with as many partitions, "
            "and stop the broker"
        )
    if not overwrite and any(path.stat().st_size for path in directory.glob("*" + LOG_SUFFIX)):
        raise LogDirError(f"{directory} holds records: they would be replaced, which --overwrite allows")


def _export(
    root: OwnRoot,
    image: MetadataImage,
    target: Path,
    partitions: Collection[TopicPartition],
    keep: Mapping[str, Mapping[TopicPartition, int]],
    *,
    link: bool,
) -> list[ExportedPartition]:
    exported = [_export_partition(root, image, target, where, link=link) for where in partitions]
    _write_checkpoints(target, root, exported, keep)
    root.fs.fsync_dir(target)
    return exported


def _export_partition(
    root: OwnRoot, image: MetadataImage, target: Path, where: TopicPartition, *, link: bool
) -> ExportedPartition:
    source, directory = root.path / str(where), target / str(where)
    state = image.partition(where.topic, where.partition).state
    if directory.exists():
        for path in directory.iterdir():
            if path.name != PARTITION_METADATA and path.is_file():
                root.fs.unlink(path)
    else:
        root.fs.mkdir(directory)
        write_topic_id(directory / PARTITION_METADATA, image.topic(where.topic).topic_id, fs=root.fs, durable=False)
    linked_bytes = copied_bytes = 0
    if state.log_end_offset and source.is_dir():
        with _undisturbed(source, root.fs):
            for name in _names(source, state):
                size = _link(source / name, directory / name, root.fs) if link and _is_closed_log(name, state) else None
                linked_bytes += size or 0
                copied_bytes += _copy(source / name, directory / name, root.fs) if size is None else 0
        with _resume(root, image, directory, where) as log:
            log.close()
    root.fs.fsync_dir(directory)
    return _exported(where, state, linked_bytes, copied_bytes)


@contextlib.contextmanager
def _undisturbed(directory: Path, fs: FileSystem) -> Iterator[None]:
    with partition_lock(directory, fs=fs) as is_ours:
        if not is_ours:
            raise LogDirError(f"maintenance is at work on {directory}: wait for it to end, and run this again")
        yield


def _names(directory: Path, state: LogState) -> list[str]:
    """The files of the log as of `state`, the active segment's last: what they have too much is cut off after."""
    names = []
    for entry in os.scandir(directory):
        parsed = parse_segment_file(entry.name)
        if entry.name == LEADER_EPOCH_CHECKPOINT:
            names.append(entry.name)
        elif parsed is not None:
            last = state.log_end_offset if parsed[1] == PRODUCER_SNAPSHOT_SUFFIX else state.active_base_offset
            if parsed[0] <= last:
                names.append(entry.name)
    return sorted(names)


def _is_closed_log(name: str, state: LogState) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed[1] == LOG_SUFFIX and parsed[0] < state.active_base_offset


def _link(source: Path, target: Path, fs: FileSystem) -> int | None:
    """Make `target` a second name of the file, and return its size; None where the file system cannot."""
    try:
        fs.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            return None
        raise
    return target.stat().st_size


def _copy(source: Path, target: Path, fs: FileSystem) -> int:
    """Copy the file, and wait until it is on disk. Returns its size."""
    source_fd = fs.open(source, os.O_RDONLY)
    try:
        size_bytes = os.fstat(source_fd).st_size
        fd = fs.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            fs.copy_range(source_fd, 0, fd, 0, size_bytes)
            fs.fsync(fd)
        finally:
            fs.close(fd)
    finally:
        fs.close(source_fd)
    return size_bytes


def _resume(root: OwnRoot, image: MetadataImage, directory: Path, where: TopicPartition) -> UnifiedLog:
    broker_config = root.broker_config()
    return UnifiedLog.resume(
        directory,
        broker_config.log_config(image.topic(where.topic).configs),
        image.partition(where.topic, where.partition).state,
        clock=root.clock,
        fs=root.fs,
        producer_id_expiration_ms=broker_config.producer_id_expiration_ms,
    )


def _exported(
    where: TopicPartition, state: LogState, linked_bytes: int = 0, copied_bytes: int = 0
) -> ExportedPartition:
    return ExportedPartition(
        topic_partition=where,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        linked_bytes=linked_bytes,
        copied_bytes=copied_bytes,
    )


def _write_checkpoints(
    target: Path,
    root: OwnRoot,
    exported: Collection[ExportedPartition],
    keep: Mapping[str, Mapping[TopicPartition, int]],
) -> None:
    """Write the files with the partitions' offsets, and with what `keep` has of others."""
    ends = {each.topic_partition: each.high_watermark for each in exported}
    starts = {
        each.topic_partition: each.log_start_offset
        for each in exported
        if each.log_start_offset > _first_base(target / str(each.topic_partition))
    }
    cleaned = read_offset_checkpoint(root.path / CLEANER_OFFSET_CHECKPOINT)
    offsets: dict[str, Mapping[TopicPartition, int]] = {
        RECOVERY_POINT_CHECKPOINT: ends,
        REPLICATION_OFFSET_CHECKPOINT: ends,
        LOG_START_OFFSET_CHECKPOINT: starts,
    }
    if target != root.path:
        offsets[CLEANER_OFFSET_CHECKPOINT] = {where: at for where, at in cleaned.items() if where in ends}
    for name, own in offsets.items():
        others = {where: offset for where, offset in keep.get(name, {}).items() if where not in ends}
        write_offset_checkpoint(target / name, {**others, **own}, fs=root.fs)


def _first_base(directory: Path) -> int:
    try:
        return next(iter(list_base_offsets(directory)), 0)
    except FileNotFoundError:
        return 0
