"""Removes abandoned staged files, which dead tasks, drivers and machines left and which will not be committed.

    <root>/<topic>-<partition>/<write id>-<task>.staged

A write is alive while any of its files, in any partition, is younger than `staging.retention.ms`. Commits find staged
files of other writes in the partitions that they write to, and check the old ones among them afterwards. To avoid a
search for the younger files of a long write each time, the old ones get the modification time of its youngest. A crash
in between leaves files to the next commit.

Ages are measured by the clock of the file system, which sets the files' times: a writer whose own clock is ahead must
not take the files of active writers for old ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import LOG_SUFFIX, parse_partition_dir
from pyspark_kafkalog.storage.staging.staged_file import write_id_of
from pyspark_kafkalog.units import NS_PER_MS


def remove_abandoned(root: Path, seen: Iterable[Path], *, now_ns: int, retention_ms: int, fs: FileSystem) -> None:
    """Remove the files of all abandoned writes that have a file in `seen`. Never raises OSError.

    `now_ns` is the time by the file system's clock (`root_lock.file_system_time_ns`).
    """
    too_old_ns = now_ns - retention_ms * NS_PER_MS
    suspects = {write_id_of(path.name) for path in seen if (_modified_ns(path) or too_old_ns + 1) <= too_old_ns}
    if not suspects:
        return
    files: dict[str, dict[Path, int]] = {}
    with contextlib.suppress(OSError):
        for path in _staged_files(root):
            write_id = write_id_of(path.name)
            modified_ns = _modified_ns(path) if write_id in suspects else None
            if modified_ns is not None:
                files.setdefault(write_id, {})[path] = modified_ns
        for ages in files.values():
            _settle(ages, too_old_ns, fs)


def remove_committed_names(directory: Path, active_base_offset: int, fs: FileSystem) -> None:
    """Remove the `.staged` names of files that have become closed segments, which a crash right after a commit leaves.

    They are identified by sharing the file with a `.log`. Call this before such a `.log` is removed: afterwards the
    staged file would be taken for one that is still to be committed. The caller holds the root's lock.
    """
    listing = PartitionListing.read(directory)
    committed = {inode for base, inode in listing.files[LOG_SUFFIX].items() if base < active_base_offset}
    for name, inode in listing.staged.items():
        if inode in committed:
            fs.unlink_if_there(directory / name)


def _settle(ages: dict[Path, int], too_old_ns: int, fs: FileSystem) -> None:
    """Remove one write's files, or give them the modification time of the youngest."""
    youngest_ns = max(ages.values())
    for path, modified_ns in ages.items():
        with contextlib.suppress(OSError):
            if youngest_ns <= too_old_ns:
                fs.unlink_if_there(path)
            elif modified_ns <= too_old_ns:
                os.utime(path, ns=(youngest_ns, youngest_ns))


def _staged_files(root: Path) -> Iterable[Path]:
    with os.scandir(root) as directories:
        for directory in directories:
            if parse_partition_dir(directory.name) is None:
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for name in PartitionListing.read(Path(directory.path)).staged:
                    yield Path(directory.path, name)


def _modified_ns(path: Path) -> int | None:
    """Time of the last write to the file in ns; None if it no longer exists."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
