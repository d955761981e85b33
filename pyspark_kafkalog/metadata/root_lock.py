"""The root's `.lock`: one writer at a time moves data and commits; readers never take it.

An flock on an empty file, held by an open descriptor: the kernel lets go of it when the holder ends, however it ends,
so a crash leaves nothing to clean up. What is committed is decided by the commit log's put-if-absent, lock or not; the
lock keeps two writers from putting their bytes into the same segment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem

LOCK_FILE: Final = ".lock"
DEFAULT_LOCK_TIMEOUT_S: Final = 60.0

_FIRST_WAIT_S: Final = 0.0005
_LONGEST_WAIT_S: Final = 0.02


@contextlib.contextmanager
def root_lock(root: Path, *, timeout_s: float = DEFAULT_LOCK_TIMEOUT_S, fs: FileSystem = LOCAL) -> Iterator[None]:
    """Hold the lock of `root` for the block. Not reentrant, also within one thread.

    Raises LogDirError when another holder keeps it for `timeout_s` seconds, or the file cannot be opened.
    """
    path = root / LOCK_FILE
    try:
        fd = fs.open(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise LogDirError(f"cannot open the lock file {path}: {error}") from error
    try:
        _acquire(fd, path, timeout_s)
        try:
            yield
        finally:
            # Closing is not enough: a child that another thread has forked meanwhile holds the descriptor too.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        # Whatever closing says, the lock is let go of; what was done under it is not to be called a failure for that.
        with contextlib.suppress(OSError):
            fs.close(fd)


def _acquire(fd: int, path: Path, timeout_s: float) -> None:
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
