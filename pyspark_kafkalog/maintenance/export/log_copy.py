"""Copies one partition's log from its pinned files (pinned_logs.py), and closes it as a broker closes it.

Closed segments can be hard links, since their bytes never change. The active segment and the small files are copied,
since the next writer changes them in place. The copy is then resumed from the commit's LogState, which cuts off
anything beyond it, and closed, which writes the last index entries and a producer snapshot. Copies keep the
modification time, which retention uses for segments without timestamps.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.maintenance.export.pinned_logs import PinnedLogs
from pyspark_kafkalog.metadata.image import MetadataImage, broker_configs
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, parse_segment_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPartition:
    """One partition with its offsets in the checkpoints, and the bytes linked and copied."""

    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    linked_bytes: int = 0
    copied_bytes: int = 0


def copy_log(
    logs: PinnedLogs,
    where: TopicPartition,
    directory: Path,
    *,
    link: bool,
    clock: Callable[[], int],
    fs: FileSystem,
) -> ExportedPartition:
    """Copy the log into `directory`, which exists and contains no log. It is on disk when this returns."""
    state = logs.state(where)
    linked_bytes = copied_bytes = 0
    source = logs.directories.get(where)
    if source is not None:
        for name in sorted(os.listdir(source)):
            if _is_log(name, below=state.active_base_offset):
                size = _link(source / name, directory / name, fs) if link else None
                linked_bytes += size or 0
                copied_bytes += _copy(source / name, directory / name, fs) if size is None else 0
            else:
                most = state.active_size_bytes if _is_log(name) else None
                copied_bytes += _copy(source / name, directory / name, fs, most)
        with resume_log(logs.image, where, directory, clock=clock, fs=fs) as log:
            log.close()
    fs.fsync_dir(directory)
    return exported_partition(where, state, linked_bytes, copied_bytes)


def exported_partition(
    where: TopicPartition, state: LogState, linked_bytes: int = 0, copied_bytes: int = 0
) -> ExportedPartition:
    return ExportedPartition(
        topic_partition=where,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        linked_bytes=linked_bytes,
        copied_bytes=copied_bytes,
    )


def resume_log(
    image: MetadataImage, where: TopicPartition, directory: Path, *, clock: Callable[[], int], fs: FileSystem
) -> UnifiedLog:
    """Open the log in `directory` in the state that `image` has; anything beyond it is cut off."""
    broker_config = BrokerConfig.from_properties(broker_configs(image))
    return UnifiedLog.resume(
        directory,
        broker_config.log_config(image.topic(where.topic).configs),
        image.partition(where.topic, where.partition).state,
        clock=clock,
        fs=fs,
        producer_id_expiration_ms=broker_config.producer_id_expiration_ms,
    )


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
    offsets. A log start offset is written only if it is above the base of the first segment.
    """
    ends = {each.topic_partition: each.high_watermark for each in exported}
    starts = {
        each.topic_partition: each.log_start_offset
        for each in exported
        if each.log_start_offset > _first_base(target / str(each.topic_partition))
    }
    offsets: dict[str, Mapping[TopicPartition, int]] = {
        RECOVERY_POINT_CHECKPOINT: ends,
        REPLICATION_OFFSET_CHECKPOINT: ends,
        LOG_START_OFFSET_CHECKPOINT: starts,
    }
    if cleaned is not None:
        offsets[CLEANER_OFFSET_CHECKPOINT] = {
            where: min(at, ends[where]) for where, at in cleaned.items() if where in ends
        }
    for name, own in offsets.items():
        others = {where: offset for where, offset in keep.get(name, {}).items() if where not in ends}
        write_offset_checkpoint(target / name, {**others, **own}, fs=fs)


def _first_base(directory: Path) -> int:
    try:
        return next(iter(list_base_offsets(directory)), 0)
    except FileNotFoundError:
        return 0


def _is_log(name: str, *, below: int | None = None) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed[1] == LOG_SUFFIX and (below is None or parsed[0] < below)


def _link(source: Path, target: Path, fs: FileSystem) -> int | None:
    """Create `target` as a hard link, and return the file's size; None if the file system does not support it."""
    try:
        fs.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            return None
        raise
    return target.stat().st_size


def _copy(source: Path, target: Path, fs: FileSystem, most: int | None = None) -> int:
    """Copy the file, or its first `most` bytes, to disk durably. Returns the bytes copied."""
    source_fd = fs.open(source, os.O_RDONLY)
    try:
        status = os.fstat(source_fd)
        size_bytes = status.st_size if most is None else min(most, status.st_size)
        fd = fs.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            fs.copy_range(source_fd, 0, fd, 0, size_bytes)
            os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
            fs.fsync(fd)
        finally:
            fs.close(fd)
    finally:
        fs.close(source_fd)
    return size_bytes
