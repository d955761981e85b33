"""Export: a log directory's partitions as a cleanly stopped broker leaves them, for a Kafka broker to mount.

    checkpoints in place    recovery-point-, replication- and log-start-offset-checkpoint as of the newest commit
    a copy elsewhere        a native log directory, whole: see backup.py
    into a broker's         partition directories (segments, indexes, producer snapshots, leader epochs) into those of a
                            stopped broker's topics; partition.metadata stays the broker's, as it contains the topic ids
                            that its controller knows; the checkpoints are merged

A copied log is closed as a broker closes it (log_copy.py). All logs are as of one commit, whatever writers, retention
and the cleaner do meanwhile (pinned_logs.py). A crash leaves some of a broker's partitions, without checkpoints: run
the export again, with `overwrite`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.export.backup import back_up
from pyspark_kafkalog.maintenance.export.log_copy import (
    ExportedPartition,
    copy_log,
    exported_partition,
    resume_log,
    write_checkpoints,
)
from pyspark_kafkalog.maintenance.export.pinned_logs import PinnedLogs, pinned_logs
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.root_format import is_copied, is_native_root
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CHECKPOINTS, read_offset_checkpoint
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
)

__all__ = ["ExportedPartition", "export_in_place", "export_to", "refuse_target"]


def export_in_place(root: OwnRoot, image: MetadataImage | None = None) -> list[ExportedPartition]:
    """Write the checkpoints of all partitions into the root; cut off what a killed writer left in their logs.

    They are as of the newest commit: after a further write, run it again. Raises the errors of resuming a log, and
    LogDirError when the newest commit is not that of `image`.
    """
    with root_lock(root.path, fs=root.fs):
        root.refresh()
        newest = root.store.image
        if image is not None and newest.next_offset != image.next_offset:
            raise LogDirError(f"{root.path} was written to meanwhile: stop all writers and jobs, and run this again")
        exported = []
        for where in root.partitions():
            state = newest.partition(where.topic, where.partition).state
            directory = root.path / str(where)
            if directory.is_dir() and state.log_end_offset:
                resume_log(newest, where, directory, clock=root.clock, fs=root.fs).suspend()
            exported.append(exported_partition(where, state))
        write_checkpoints(root.path, exported, cleaned=None, keep={}, fs=root.fs)
    return exported


def export_to(
    root: OwnRoot, target: Path, topics: Collection[str] | None = None, *, link: bool = True, overwrite: bool = False
) -> list[ExportedPartition]:
    """Copy the partitions of `topics` (None: all) to `target`, as described above, as of one commit.

    `link` creates hard links of closed segments if the file system supports them. A `target` with a meta.properties is
    a stopped broker's directory. It must contain the partitions' directories, without records in those that are to get
    some, unless `overwrite`. Raises LogDirError for any other `target` that is not empty.
    """
    refuse_target(root, target)
    if is_native_root(target) or not (target / META_PROPERTIES).exists():
        return back_up(root, target, topics, link=link)
    with pinned_logs(root, topics) as logs, root_lock(target, fs=root.fs):
        wanted = [where for where in logs.partitions if _is_mountable(logs, target, where, overwrite=overwrite)]
        keep = {name: read_offset_checkpoint(target / name) for name in CHECKPOINTS}
        exported = [_mount(root, logs, target, where, link=link) for where in wanted]
        write_checkpoints(target, exported, cleaned=logs.cleaned, keep=keep, fs=root.fs)
        root.fs.fsync_dir(target)
        return exported


def refuse_target(root: OwnRoot, target: Path) -> None:
    """Raise LogDirError when `target` is a native log directory or inside of `root`."""
    is_root = is_native_root(target) and not is_copied(target)
    if is_root or Path(os.path.realpath(target)).is_relative_to(os.path.realpath(root.path)):
        raise LogDirError(f"{target} is a log directory of this package, or inside of {root.path}: name another")


def _is_mountable(logs: PinnedLogs, target: Path, where: TopicPartition, *, overwrite: bool) -> bool:
    """Whether to mount the partition: not if it is empty and the broker's has records.

    Raises LogDirError when the broker's directory is missing, or has records that would be replaced.
    """
    directory = target / str(where)
    if not (directory / PARTITION_METADATA).exists():
        raise LogDirError(
            f"the broker's {directory} is missing: create topic {where.topic} on the broker, with as many partitions, "
            "and stop the broker"
        )
    if overwrite or not any(path.stat().st_size for path in directory.glob("*" + LOG_SUFFIX)):
        return True
    if logs.state(where).log_end_offset == 0:
        return False
    raise LogDirError(
        f"{directory} holds records: they would be replaced, which --overwrite allows (use it as well after an export "
        "that was interrupted)"
    )


def _mount(root: OwnRoot, logs: PinnedLogs, target: Path, where: TopicPartition, *, link: bool) -> ExportedPartition:
    directory = target / str(where)
    for path in directory.iterdir():
        if path.name != PARTITION_METADATA and path.is_file():
            root.fs.unlink(path)
    return copy_log(logs, where, directory, link=link, clock=root.clock, fs=root.fs)
