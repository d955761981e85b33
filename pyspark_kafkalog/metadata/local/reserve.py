"""The reserve of a commit log on a file system: files that give a full disk room for the commits that free space.

    <root>/__cluster_metadata-0/kafkalog-reserve-0 … -3

A full disk has no room for a commit file. The reserve files, of 32 KiB each, serve commits that free space (retention,
delete-records, the deletion of a topic) and commits that change configurations, on which retention depends. If such a
commit finds no free block or inode for its file, it overwrites the content of a reserve file, which is truncated to the
commit's length. The file gets the commit's name by a link and loses its own. The truncated blocks leave room for the
directory to grow. If that is not enough (on tmpfs a name takes an inode), another file of the reserve is removed. The
next commit and the end of a retention run restore the reserve as soon as the disk has room.

Blocks that are overwritten in place need no new ones, except on copy-on-write file systems (btrfs, ZFS), where only the
inode is guaranteed.

A crash before the link leaves a reserve file with other content, or a shorter one. A crash after it leaves the commit
with two names: a file with more than one name is never written to, and a new file replaces it. The file is locked
(flock) from the check of its names until its own name is removed, so two processes never use the same file.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.filesystem import FileSystem, is_out_of_space

RESERVE_PREFIX: Final = "kafkalog-reserve-"

#: Each commit on a full disk uses one. Several, because the freed space is available only after file.delete.delay.ms.
RESERVE_FILES: Final = 4

#: Room for the states of 300 partitions; retention commits 128 at a time.
RESERVE_BYTES: Final = 32 << 10

_STEP_BYTES: Final = 4 << 10
_LOG: Final = logging.getLogger(__name__)


class CommitReserve:
    """The reserve of the commit log in `directory`."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        self._fs = fs
        self._paths = [directory / f"{RESERVE_PREFIX}{number}" for number in range(RESERVE_FILES)]

    @contextlib.contextmanager
    def filled(self, data: bytes) -> Iterator[Path | None]:
        """A reserve file with the content `data`, durable, for the block; None if no file can be used.

        The block either links the file to another name and removes this one, or leaves it as it is.
        """
        for path in reversed(self._paths):
            with self._claimed(path, os.O_RDWR) as fd:
                if fd is None or os.fstat(fd).st_nlink != 1 or not self._fill(fd, data):
                    continue
                yield path
                return
        yield None

    def _fill(self, fd: int, data: bytes) -> bool:
        """Write `data` to the file. False if the file is too short and the disk has no room to extend it."""
        try:
            self._fs.pwrite_all(fd, data, 0)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            return False
        self._fs.truncate(fd, len(data))
        self._fs.fsync(fd)
        return True

    def give_up_one(self) -> bool:
        """Remove an unused reserve file, to free room for a name; False if there is no such file."""
        for path in reversed(self._paths):
            with self._claimed(path, os.O_RDWR) as fd:
                if fd is not None:
                    self._fs.unlink(path)
                    return True
        return False

    def restore(self) -> None:
        """Create the files that are missing or short, as far as the disk has room. Raises OSError.

        A whole reserve costs one stat: the file with the highest number is used first and restored last, so if it is
        whole, all are.
        """
        if _is_whole(self._paths[-1]):
            return
        try:
            for path in self._paths:
                self._restore(path)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            _LOG.info("the disk has no room for the whole reserve of the commit log: %s", error)

    def _restore(self, path: Path) -> None:
        with self._claimed(path, os.O_RDWR | os.O_CREAT) as fd:
            if fd is None:
                return
            status = os.fstat(fd)
            if status.st_nlink == 1:
                self._extend(fd, status.st_size)
                return
            self._fs.unlink(path)
        with self._claimed(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            if fd is not None:
                self._extend(fd, 0)

    def _extend(self, fd: int, length: int) -> None:
        # In small steps, to use all the room of a nearly full disk.
        for at in range(length, RESERVE_BYTES, _STEP_BYTES):
            self._fs.pwrite_all(fd, bytes(min(_STEP_BYTES, RESERVE_BYTES - at)), at)

    @contextlib.contextmanager
    def _claimed(self, path: Path, flags: int) -> Iterator[int | None]:
        """The file at `path`, open and locked for the block; None if it is missing or another process has locked it."""
        try:
            fd = self._fs.open(path, flags)
        except (FileNotFoundError, FileExistsError):
            yield None
            return
        try:
            yield fd if _lock(fd) and _is_at(fd, path) else None
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile also holds the descriptor
            self._fs.close(fd)


def _is_whole(path: Path) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return status.st_size >= RESERVE_BYTES and status.st_nlink == 1


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Whether the name still refers to the open file: the lock's previous holder may have used it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
