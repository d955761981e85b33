"""What a commit waits for: `fsync` for the disk, `os` for the kernel only, as a Kafka broker does by default.

With `fsync` a commit that has returned survives a power failure. With `os` it survives the end of any process, SIGKILL
included, and the kernel writes it out in its own time.

    <root>/.unflushed      empty; there were commits with `os` since the last one with `fsync`

A commit file that reaches the disk before an earlier one would leave a hole after a power failure. So whoever commits
with `fsync` and finds the marker has the kernel write out everything first, and removes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer

FlushMode = Literal["fsync", "os"]

UNFLUSHED_MARKER: Final = ".unflushed"


class UnflushedFileSystem(FileSystem):
    """`inner`, without its waits for the disk."""

    waits_for_disk = False

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        return self._inner.open(path, flags, mode)

    def close(self, fd: int) -> None:
        self._inner.close(fd)

    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        self._inner.pwrite_all(fd, data, position)

    def copy_range(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        self._inner.copy_range(source_fd, source_position, fd, position, length)

    def truncate(self, fd: int, length: int) -> None:
        self._inner.truncate(fd, length)

    def fsync(self, fd: int) -> None:
        """Nothing: the kernel has the data."""

    def start_writeback(self, fd: int, position: int, length: int) -> None:
        """Nothing: nobody is going to wait for it."""

    def fsync_dir(self, directory: Path) -> None:
        """Nothing: the kernel has the names."""

    def rename(self, source: Path, target: Path) -> None:
        self._inner.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._inner.link(source, target)

    def unlink(self, path: Path) -> None:
        self._inner.unlink(path)

    def mkdir(self, path: Path) -> None:
        self._inner.mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._inner.rmdir(path)

    def touch(self, path: Path) -> int:
        return self._inner.touch(path)


def flushing_file_system(fs: FileSystem, flush: FlushMode) -> FileSystem:
    """`fs` as a commit with that mode uses it. Raises InvalidOptionError for a mode that there is not."""
    if flush not in get_args(FlushMode):
        raise InvalidOptionError(f"flush is {flush!r}; expected one of {', '.join(get_args(FlushMode))}")
    return fs if flush == "fsync" else UnflushedFileSystem(fs)


def note_unflushed(root: Path, fs: FileSystem) -> None:
    """Make the marker, before a commit with `os`. The caller holds the root's lock."""
    if not (root / UNFLUSHED_MARKER).exists():
        fs.close(fs.open(root / UNFLUSHED_MARKER, os.O_WRONLY | os.O_CREAT))


def flush_earlier(root: Path, fs: FileSystem) -> None:
    """Before a commit with `fsync`: have all earlier ones written out. One failed stat when they are."""
    if (root / UNFLUSHED_MARKER).exists():
        os.sync()
        fs.unlink_if_there(root / UNFLUSHED_MARKER)
