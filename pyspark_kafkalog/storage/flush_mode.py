"""Flush modes: a commit waits for the disk (`fsync`), or only for the kernel (`os`), as a Kafka broker does by default.

With `fsync` a commit that has returned survives a power failure. With `os` it survives the end of any process, even by
SIGKILL, and the kernel writes it to disk later.

    <root>/.unflushed      empty; there were commits with `os` since the last one with `fsync`

If a commit file reached the disk before an earlier one, a power failure would leave a gap in the commit log. A commit
with `fsync` that finds the marker therefore first makes the kernel write out everything, then removes the marker.
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
    """Passes calls on to `inner`, but does not wait for the disk."""

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
        """Does nothing: the kernel has the data."""

    def start_writeback(self, fd: int, position: int, length: int) -> None:
        """Does nothing: no flush is going to wait for these pages."""

    def fsync_dir(self, directory: Path) -> None:
        """Does nothing: the kernel has the names."""

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
    """`fs` for commits with the mode `flush`. Raises InvalidOptionError for an unknown mode."""
    if flush not in get_args(FlushMode):
        raise InvalidOptionError(f"flush is {flush!r}; expected one of {', '.join(get_args(FlushMode))}")
    return fs if flush == "fsync" else UnflushedFileSystem(fs)


def note_unflushed(root: Path, fs: FileSystem) -> None:
    """Create the marker before a commit with `os`. The caller holds the root's lock."""
    if not (root / UNFLUSHED_MARKER).exists():
        fs.close(fs.open(root / UNFLUSHED_MARKER, os.O_WRONLY | os.O_CREAT))


def flush_earlier(root: Path, fs: FileSystem) -> None:
    """Flush all earlier commits before a commit with `fsync`. Costs one failed stat if they are on disk already."""
    if (root / UNFLUSHED_MARKER).exists():
        os.sync()
        fs.unlink_if_there(root / UNFLUSHED_MARKER)
