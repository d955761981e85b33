"""Every call that changes the file system goes through here, so that a test can make any one of them fail.

Reading needs no seam: it changes nothing, and hostile bytes are tried with real files. A symbolic link in the place of
a file is not followed, neither to read nor to write: whoever may make names in a log directory could else have a job
of somebody else's read other files, or write over them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import BinaryIO, Final

from pyspark_kafkalog.record.header import Buffer

#: Follows the name of a file that `write_file_atomic` is writing.
TEMPORARY_SUFFIX: Final = ".tmp"

_COPY_CHUNK_BYTES: Final = 8 << 20


#: How files of a log directory are opened to read. A named pipe in a file's place reads as an empty file, at once.
READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_to_read(path: Path) -> BinaryIO:
    """A file of a log directory. Raises OSError, also for a symbolic link."""
    fd = os.open(path, READ_FLAGS)
    try:
        return os.fdopen(fd, "rb")
    except OSError as error:  # a directory: it names the descriptor, and leaves it open
        os.close(fd)
        raise OSError(error.errno, error.strerror, str(path)) from None


class FileSystem:
    """The local POSIX file system. Tests subclass it to inject faults and kills.

    Files are handled by descriptor (`open`, `pwrite_all`, `fsync`, `close`), names by path. `waits_for_disk` says
    whether `fsync` takes its time.
    """

    waits_for_disk = True

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """os.open with O_CLOEXEC and O_NOFOLLOW; the umask decides the mode."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of `data` at byte `position`; loops over short writes."""
        view = memoryview(data).cast("B")
        while len(view):
            written = os.pwrite(fd, view, position)
            if written == 0:
                raise OSError(errno.EIO, "wrote 0 bytes")
            view = view[written:]
            position += written

    def copy_range(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        """Copy `length` bytes between files inside the kernel, or through memory where it cannot."""
        while length:
            try:
                copied = os.copy_file_range(source_fd, fd, length, source_position, position)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._copy_through_memory(source_fd, source_position, fd, position, length)
                return
            if copied == 0:
                raise OSError(errno.EIO, f"source file ended {length} bytes early")
            source_position += copied
            position += copied
            length -= copied

    def _copy_through_memory(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        while length:
            chunk = os.pread(source_fd, min(length, _COPY_CHUNK_BYTES), source_position)
            if not chunk:
                raise OSError(errno.EIO, f"source file ended {length} bytes early")
            self.pwrite_all(fd, chunk, position)
            source_position += len(chunk)
            position += len(chunk)
            length -= len(chunk)

    def truncate(self, fd: int, length: int) -> None:
        """Set the file's length: cuts it, or extends it with zeros."""
        os.ftruncate(fd, length)

    def fsync(self, fd: int) -> None:
        """Data and length of the file reach the disk (fdatasync)."""
        os.fdatasync(fd)

    def start_writeback(self, fd: int, position: int, length: int) -> None:
        """Let the kernel begin to write out a range of dirty pages, so that a later `fsync` waits for less.

        Advice only. On Linux it begins the write and drops those pages of the range that are clean by then, which ones
        just written are not.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)

    def fsync_dir(self, directory: Path) -> None:
        """Names made, renamed or removed in `directory` reach the disk."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` in one step."""
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give `source` a second name; raises FileExistsError if `target` is there: the compare-and-set."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def write_file_atomic(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Replace the whole file through `<name>.tmp` and a rename: a crash leaves the old content or the new."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.pwrite_all(fd, data, 0)
            if durable:
                self.fsync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if durable:
            self.fsync_dir(path.parent)

    def unlink_if_there(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)


LOCAL: Final = FileSystem()
