"""The root's `.lock`: one writer at a time moves data and commits; readers never take it.

An flock on an empty file, held by an open descriptor: the kernel lets go of it when the holder ends, however it ends,
so a crash leaves nothing to clean up. What is committed is decided by the commit log's put-if-absent, lock or not; the
lock keeps two writers from putting their bytes into the same segment.

A broker holds a record lock on the same file as long as it runs. Writers take one too, on the same descriptor, so none
writes to a root that a broker has mounted, and no broker starts on it in the middle of a commit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import META_PROPERTIES

LOCK_FILE: Final = ".lock"
DEFAULT_LOCK_TIMEOUT_S: Final = 60.0

_FIRST_WAIT_S: Final = 0.0005
_LONGEST_WAIT_S: Final = 0.02


@contextlib.contextmanager
def root_lock(
    root: Path, *, timeout_s: float = DEFAULT_LOCK_TIMEOUT_S, is_new: bool = False, fs: FileSystem = LOCAL
) -> Iterator[None]:
    """Hold the lock of `root` for the block. Not reentrant, also within one thread.

    The lock file is created where it is missing in a log directory, or in one about to be created (`is_new`), but not
    in the directory that an unmounted volume leaves.

    Raises LogDirError when another holder keeps it for `timeout_s` seconds, a broker is running on `root`, or the file
    cannot be opened.
    """
    path = root / LOCK_FILE
    try:
        fd = fs.open(path, os.O_RDWR | (os.O_CREAT if is_new or (root / META_PROPERTIES).exists() else 0))
    except OSError as error:
        raise LogDirError(f"cannot open the lock file {path}: {error}") from error
    try:
        acquire_flock(fd, path, timeout_s)
        try:
            _keep_brokers_away(fd, path)
            yield
        finally:
            # Closing is not enough: a child that another thread has forked meanwhile holds the descriptor too.
            with contextlib.suppress(OSError):
                lock_records(fd, fcntl.F_UNLCK)
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        # Whatever closing says, the lock is let go of; what was done under it is not to be called a failure for that.
        with contextlib.suppress(OSError):
            fs.close(fd)


def file_system_time_ns(root: Path, fs: FileSystem) -> int:
    """The time by the clock that sets the times of files in `root`: of a server's, where it is on one.

    Files of others are as old as this clock says; this machine's may differ. Raises OSError.
    """
    return fs.touch(root / LOCK_FILE)


def _keep_brokers_away(fd: int, path: Path) -> None:
    try:
        lock_records(fd, fcntl.F_WRLCK)
    except OSError as error:
        # Where there are no record locks at all no broker can run either.
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise LogDirError(f"a Kafka broker is running on {path.parent} (it holds {path.name}): stop it") from None


def lock_records(fd: int, kind: int) -> None:
    """Take (F_WRLCK) or drop (F_UNLCK) a lock on the whole file that conflicts with a Java FileLock.

    Raises OSError when somebody holds one.
    """
    if hasattr(fcntl, "F_OFD_SETLK"):
        whole_file = struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, whole_file)
    else:
        fcntl.lockf(fd, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)


def acquire_flock(fd: int, path: Path, timeout_s: float = DEFAULT_LOCK_TIMEOUT_S) -> None:
    """Wait for an flock on `fd`, the open file `path`. Raises LogDirError after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LogDirError(
                    f"{path} was held by another writer for {timeout_s:g} s; wait for it to end, or stop it"
                ) from None
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
