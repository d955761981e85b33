"""The root's `.lock`: one writer at a time appends and commits; readers never take it.

It is an flock on an empty file, held by an open descriptor. The kernel releases it when the holder ends, also in a
crash, so a crash leaves nothing to clean up. Commits are decided by the commit log's put-if-absent, with or without the
lock; the lock prevents two writers from writing to the same segment.

A broker holds a record lock on the same file while it runs. Writers take one too, on the same descriptor, so no writer
writes to a root that a broker has mounted, and no broker starts on a root during a commit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import WeakSet

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.names import META_PROPERTIES

LOCK_FILE: Final = ".lock"
DEFAULT_LOCK_TIMEOUT_S: Final = 60.0

_CLOSED: Final = -1
_SHORTEST_WAIT_S: Final = 0.0002
_LONGEST_WAIT_S: Final = 0.02
#: A process that has waited for some time looks again after this part of it. Servers that commit one after the other
#: leave the lock free for a fraction of a millisecond at a time: one that looked less often would hardly ever find it
#: free.
_WAIT_SHARE: Final = 1 / 32


#: By the kind of a record lock, the structure that asks for it.
_WHOLE_FILE: Final = {
    kind: struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0) for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK)
}


def root_lock(
    root: Path, *, timeout_s: float = DEFAULT_LOCK_TIMEOUT_S, is_new: bool = False, fs: FileSystem = LOCAL
) -> RootLock:
    """The lock of `root`, to be held for a block. Not reentrant, not even within one thread.

    A missing lock file is created in a log directory, or in one about to be created (`is_new`), but not in the empty
    mount point of an unmounted volume.

    Raises LogDirError if another holder keeps the lock for `timeout_s` seconds, a broker is running on `root`, or the
    file cannot be opened.
    """
    return RootLock(root / LOCK_FILE, timeout_s, is_new, fs)


class LockHeldError(LogDirError):
    """Another holder has kept the lock for as long as was to be waited."""


class RootLock:
    """The lock of a root, held for a block: see `root_lock`."""

    def __init__(self, path: Path, timeout_s: float, is_new: bool, fs: FileSystem) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._is_new = is_new
        self._fs = fs
        self._fd = _CLOSED

    def __enter__(self) -> None:
        self._fd = self._open()
        try:
            self._acquire()
        except BaseException:
            self._close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._unlock()
        finally:
            self._close()

    def _open(self) -> int:
        path = self._path
        try:
            try:
                return self._fs.open(path, os.O_RDWR)
            except FileNotFoundError:
                is_created = self._is_new or path.with_name(META_PROPERTIES).exists()
                return self._fs.open(path, os.O_RDWR | (os.O_CREAT if is_created else 0))
        except OSError as error:
            raise LogDirError(f"cannot open the lock file {path}: {error.strerror or error}") from error

    def _acquire(self) -> None:
        acquire_flock(self._fd, self._path, self._timeout_s)
        try:
            _keep_brokers_away(self._fd, self._path)
        except BaseException:
            self._unlock()
            raise

    def _unlock(self) -> None:
        # Closing is not enough: a child that another thread forked meanwhile also holds the descriptor.
        try:
            lock_records(self._fd, fcntl.F_UNLCK)
        except OSError:
            pass  # closing drops it
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _close(self) -> None:
        # An error of close() still releases the lock, and must not make the work under it look failed.
        fd, self._fd = self._fd, _CLOSED
        with contextlib.suppress(OSError):
            self._fs.close(fd, self._path)


class KeptRootLock(RootLock):
    """The lock of a root for the commits of one writer, one after the other: the file stays open until `close`.

    Each block finds out, once it has the lock, whether that is still the file at its path. Otherwise the file may have
    been removed, or another root, or none, may be there: `check_root` raises an error then, and the file is opened
    anew. A forked child has none of the open files, as it would share their locks with its parent.
    """

    def __init__(self, path: Path, check_root: Callable[[], None], fs: FileSystem) -> None:
        super().__init__(path, DEFAULT_LOCK_TIMEOUT_S, is_new=False, fs=fs)
        self._check_root = check_root
        self._place = (0, 0)
        _kept_locks.add(self)

    def __call__(self, timeout_s: float) -> KeptRootLock:
        """The lock, for which a block waits at most `timeout_s`."""
        self._timeout_s = timeout_s
        return self

    def __enter__(self) -> None:
        if self._fd != _CLOSED and self._is_acquired_again():
            return
        self._check_root()
        super().__enter__()
        status = os.fstat(self._fd)
        self._place = status.st_dev, status.st_ino

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._unlock()

    def close(self) -> None:
        """Close the file."""
        if self._fd != _CLOSED:
            self._close()

    def _is_acquired_again(self) -> bool:
        """Take the lock of the file that is open; False, and the file is closed, if it has another place."""
        try:
            self._acquire()
        except LogDirError:
            raise
        except OSError:  # a file server has forgotten the file
            self._close()
            return False
        try:
            found = os.stat(self._path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self._place:
                return True
        except OSError:
            pass  # opening it raises the error
        self._unlock()
        self._close()
        return False


_kept_locks: Final[WeakSet[KeptRootLock]] = WeakSet()


def _close_kept_locks() -> None:
    for each in _kept_locks:
        each.close()


os.register_at_fork(after_in_child=_close_kept_locks)


def file_system_time_ns(root: Path, fs: FileSystem) -> int:
    """The time by the clock that sets the times of files in `root`, which may be a file server's.

    The age of other processes' files is measured by this clock, since this machine's may differ. Raises OSError.
    """
    return fs.touch(root / LOCK_FILE)


def _keep_brokers_away(fd: int, path: Path) -> None:
    try:
        lock_records(fd, fcntl.F_WRLCK)
    except OSError as error:
        # On a file system without record locks no broker can run either.
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise LogDirError(f"a Kafka broker is running on {path.parent} (it holds {path.name}): stop it") from None


def lock_records(fd: int, kind: int) -> None:
    """Take (F_WRLCK) or drop (F_UNLCK) a lock on the whole file that conflicts with a Java FileLock.

    Raises OSError if another process holds one.
    """
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE[kind])
    else:
        fcntl.lockf(fd, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)


def acquire_flock(fd: int, path: Path, timeout_s: float = DEFAULT_LOCK_TIMEOUT_S) -> None:
    """Wait for an flock on `fd`, the open file `path`. Raises LockHeldError after `timeout_s` seconds."""
    began_s = time.monotonic()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited_s = time.monotonic() - began_s
            if waited_s >= timeout_s:
                raise LockHeldError(
                    f"{path} was held by another writer for {timeout_s:g} s; wait for it to end, or stop it"
                ) from None
        time.sleep(min(max(waited_s * _WAIT_SHARE, _SHORTEST_WAIT_S), _LONGEST_WAIT_S))
