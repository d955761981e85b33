"""Locks a root against brokers and other adoptions while it is adopted, and detects a running broker.

A broker holds a POSIX record lock on `.lock` while it runs; the kernel releases it when the process ends, also in a
crash. An adoption takes two locks on the same file: an flock, as writers of this package do, and an open file
description lock, which conflicts with the broker's. Both are on one descriptor, because NFS does not distinguish them.

If a file system does not share locks between hosts, a broker on another host is detected by its writes: it writes
`replication-offset-checkpoint` every five seconds. That file is watched if it is fresh and there was no clean shutdown.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, lock_records
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from pyspark_kafkalog.storage.artefacts.marker_files import was_clean_shutdown
from pyspark_kafkalog.storage.filesystem import FileSystem

#: A checkpoint written within this time may be a running broker's (replica.high.watermark.checkpoint.interval.ms: 5 s).
FRESH_S: Final = 15.0
WATCH_S: Final = 11.0
_POLL_S: Final = 0.25
_WATCHED: Final = (REPLICATION_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)


@contextmanager
def adoption_lock(root: Path, *, fs: FileSystem, create: bool = True) -> Iterator[None]:
    """Hold `.lock` of `root` against brokers and writers for the block; without `create`, only if the file exists.

    Raises LogDirError if a broker is running on `root`, or another process is adopting it or writing to it.
    """
    path = root / LOCK_FILE
    try:
        fd = fs.open(path, os.O_RDWR | (os.O_CREAT if create else 0))
    except FileNotFoundError:
        yield  # no broker has ever used the directory, and the caller changes nothing
        return
    try:
        _lock(fd, path)
        try:
            yield
        finally:
            # Closing is not enough: a child that another thread forked meanwhile also holds the descriptor.
            lock_records(fd, fcntl.F_UNLCK)
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        fs.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LogDirError(
            f"{path} is held by another process, which writes to this log directory or adopts it"
        ) from None
    try:
        lock_records(fd, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise LogDirError(
            f"a Kafka broker is running on {path.parent} (it holds {path.name}): stop it, or adopt a copy"
        ) from None


def refuse_signs_of_life(root: Path) -> None:
    """Watch the checkpoints of `root` for a while if they are fresh. Raises LogDirError if one is written."""
    before = _written(root)
    now_s = time.time()
    if was_clean_shutdown(root) or not any(abs(now_s - mtime_ns / 1e9) < FRESH_S for mtime_ns, _ in before.values()):
        return
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        changed = [name for name, seen in _written(root).items() if seen != before.get(name)]
        if changed:
            raise LogDirError(f"{root / changed[0]} has just been written: a Kafka broker is running on this directory")


def _written(root: Path) -> dict[str, tuple[int, int]]:
    """Modification time and inode of the watched files; the inode changes because each checkpoint is a new file."""
    found = {}
    for name in _WATCHED:
        try:
            status = os.stat(root / name)
        except FileNotFoundError:
            continue
        found[name] = (status.st_mtime_ns, status.st_ino)
    return found
