"""The calls that change the file system, in one class, so that a test can make any of them fail; and the wall clock.

Reads need no such class: they change nothing, and tests of hostile bytes use real files. Neither reads nor writes
follow links below a root, see `below_root`.

Errors name the file, even if the call had only a descriptor, and give advice for a full, read-only or failing disk.

Flush modes: a commit waits for the disk (`fsync`), or only for the kernel (`os`), as a Kafka broker does by default.

With `fsync` a commit that has returned survives a power failure. With `os` it survives the end of any process, even by
SIGKILL, and the kernel writes it to disk later.

    <root>/.unflushed      empty; there were commits with `os` since the last one with `fsync`

If a commit file reached the disk before an earlier one, a power failure would leave a gap in the commit log. A commit
with `fsync` that finds the marker therefore first makes the kernel write out everything, then removes the marker.

`in_parallel`, `beside` and `in_background` run file operations in threads that the process keeps, as starting them for
each commit would cost most. They are meant only for calls that spend their time without the interpreter's lock: fsyncs,
copies and checks of much data.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import re
import resource
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Concatenate, Final, Literal, ParamSpec, TypeVar, get_args

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.storage.below_root import close_names, forget_names, open_directory, open_file, open_names, split
from pyspark_kafkalog.storage.direct_io import BLOCK_BYTES, write_blocks
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.units import NS_PER_MS
from pyspark_kafkalog.values import check_one_of

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer

_LOG: Final = logging.getLogger(__name__)

#: The end of the name of a file that is being written: of any; and with the random part of `temporary_path`.
TEMPORARY_SUFFIX: Final = ".tmp"
RANDOM_SUFFIX: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
#: Either of them, at the end of a name: brokers add no random part.
TEMPORARY: Final = re.compile(rf"({RANDOM_SUFFIX.pattern}|\.tmp)$")
_TEMPORARY_NAME: Final = re.compile(rf".+{RANDOM_SUFFIX.pattern}")

_COPY_CHUNK_BYTES: Final = 8 << 20
#: The permissions of a file's group and of all others.
_OTHERS: Final = 0o077
_LARGE_READ_BYTES: Final = 1 << 20


_FREE_SPACE: Final = (
    "free blocks or inodes with kafkalog retention, delete-records or topics --delete, which work on a full disk, or "
    "enlarge the file system"
)

#: Advice by errno. It is appended to the system's own text, so that the error keeps its type and its number.
_ADVICE: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EROFS: "mount the file system writable; after an error of the device the kernel's log (dmesg) has the cause",
    errno.EIO: "the device failed: see the kernel's log (dmesg), then run kafkalog verify",
}

_P = ParamSpec("_P")
_R = TypeVar("_R")


def temporary_path(path: Path) -> Path:
    """The path of a new file beside `path`, which is renamed or linked to it when it is complete."""
    return path.with_name(f"{path.name}.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")


def is_temporary(name: str) -> bool:
    """Whether the file's name is one of `temporary_path`."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def is_out_of_space(error: OSError) -> bool:
    """Whether the file system has no blocks or inodes left, or the user's quota has none."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def described(error: OSError, *files: str | Path | int) -> OSError:
    """`error` with the names of `files` (paths or open descriptors), and with advice if there is any."""
    if isinstance(error, KafkalogError):
        return error
    advice = _ADVICE.get(error.errno or 0)
    reason = error.strerror or str(error)
    if advice is not None and not reason.endswith(advice):
        reason = f"{reason}; {advice}"
    elif error.filename is not None:
        return error
    names = [error.filename, error.filename2] if error.filename is not None else [_name(file) for file in files[:2]]
    named = OSError(error.errno, reason, names[0], None, names[1] if len(names) > 1 else None)
    return named.with_traceback(error.__traceback__)


def _name(file: str | Path | int) -> str:
    if not isinstance(file, int):
        return str(file)
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return f"file descriptor {file}"


def _described(method: Callable[Concatenate[FileSystem, _P], _R]) -> Callable[Concatenate[FileSystem, _P], _R]:
    """Make the errors of a method of FileSystem name the files among its arguments."""

    @functools.wraps(method)
    def call(self: FileSystem, /, *arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(self, *arguments, **named)
        except OSError as error:
            raise described(error, *_files(method.__name__, arguments)) from None

    return call


def _files(method: str, arguments: tuple[Any, ...]) -> tuple[Path | int, ...]:
    if method == "copy_range":
        return (arguments[0], arguments[2])
    return tuple(each for each in arguments if isinstance(each, Path)) or arguments[:1]


class _NamedFile(io.FileIO):
    """A file opened for reading, whose errors name it."""

    def __init__(self, fd: int, path: str | Path) -> None:
        super().__init__(fd, "rb")
        self._path = path

    def readinto(self, buffer: Any, /) -> int:
        try:
            return super().readinto(buffer) or 0
        except OSError as error:
            raise described(error, self._path) from None

    def readall(self) -> bytes:
        try:
            return super().readall() or b""  # bounded: sizes are checked by the callers
        except OSError as error:
            raise described(error, self._path) from None


def open_to_read(path: str | Path) -> BinaryIO:
    """Open a file of a log directory for reading. Raises LogDirError for a link or a pipe, OSError."""
    return io.BufferedReader(_NamedFile(open_file(path), path))


def warn_if_others_read(path: Path, what: str) -> None:
    """Log a warning if other users may read or change a file that holds a secret. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        _LOG.warning("other users may open %s, %s (mode %04o): expected 0600", path, what, mode)


def read_text_file(path: Path, *, max_bytes: int, kind: type[DiskFormatError], advice: str) -> bytes:
    """All bytes of a small file. Raises an error of `kind` if it has more than `max_bytes`, or OSError."""
    with open_to_read(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        if size_bytes > max_bytes:
            raise kind(
                file=str(path),
                position=max_bytes,
                expected=f"at most {max_bytes} bytes",
                found=f"{size_bytes} bytes",
                advice=advice,
            )
        return stream.read(max_bytes)  # bounded: a constant of the caller


def pread(fd: int, length: int, position: int) -> bytes:
    """os.pread; an error names the file. Takes no more memory than the file has bytes, whatever `length` says."""
    try:
        if length > _LARGE_READ_BYTES:  # os.pread takes the memory before it reads
            length = min(length, max(os.fstat(fd).st_size - position, 0))
        return os.pread(fd, length, position)  # bounded: by the file
    except OSError as error:
        raise described(error, fd) from None


def preadv(fd: int, buffer: Buffer, position: int) -> int:
    """os.preadv into one buffer; an error names the file."""
    try:
        return os.preadv(fd, [buffer], position)
    except OSError as error:
        raise described(error, fd) from None


def _advise_dont_need(fd: int, position: int, length: int) -> None:
    """posix_fadvise with POSIX_FADV_DONTNEED, on systems that have it."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)


class _NameOf:
    """The name of a file and a descriptor of its directory, in which a call of the block is to use the name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tuple[str, int]:
        directory, name = split(self._path)
        try:
            self._fd = open_names(directory)
        except OSError as error:
            raise _without_names(error) from None
        return name, self._fd

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        close_names(self._fd)
        if isinstance(error, OSError):
            raise _without_names(error) from None


def _without_names(error: OSError) -> OSError:
    """The error for `_described`, which adds the whole names."""
    return error if isinstance(error, KafkalogError) else OSError(error.errno, error.strerror)


class FileSystem:
    """The local POSIX file system. Tests subclass it to inject faults and kills.

    Contents of files are handled by descriptor (`open`, `pwrite_all`, `fsync`, `close`), names by path.
    `waits_for_disk` is true if `fsync` waits for the disk.
    """

    waits_for_disk = True

    @property
    def waiting(self) -> FileSystem:
        """This file system, or the one beneath it whose `fsync` waits for the disk."""
        return self

    @_described
    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """`open_file`: a link or a pipe is refused; the umask limits the mode."""
        return open_file(path, flags, mode)

    def close(self, fd: int, path: Path | None = None) -> None:
        """Close the descriptor; `path` is the name of the file for an error, and is looked up otherwise."""
        name = path if path is not None else Path(_name(fd))  # cannot be found once the descriptor is closed
        try:
            os.close(fd)
        except OSError as error:
            raise described(error, name) from None

    @_described
    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        """Write all of `data` at byte `position`; loops over short writes."""
        written, view = 0, memoryview(data).cast("B")
        while written < len(view):
            count = os.pwrite(fd, view[written:] if written else view, position + written)
            if count == 0:
                raise OSError(errno.EIO, "wrote 0 bytes")
            written += count

    def pwrite_uncached(self, fd: int, data: Buffer, position: int) -> None:
        """As `pwrite_all`, for bytes that are not read soon: whole blocks go past the page cache, where they can.

        No other thread reads or writes through `fd` meanwhile.
        """
        view = memoryview(data).cast("B")
        start = min(-position % BLOCK_BYTES, len(view))
        end = start + (len(view) - start) // BLOCK_BYTES * BLOCK_BYTES
        self.pwrite_all(fd, view[:start], position)
        if start < end:
            start += self.pwrite_direct(fd, view[start:end], position + start)
        self.pwrite_all(fd, view[start:], position + start)

    @_described
    def pwrite_direct(self, fd: int, data: Buffer, position: int) -> int:
        """Write whole blocks past the page cache; returns how many bytes were written, see `write_blocks`."""
        return write_blocks(fd, memoryview(data), position)

    @_described
    def copy_range(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        """Copy `length` bytes between files inside the kernel, or through memory if the kernel cannot."""
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

    @_described
    def truncate(self, fd: int, length: int) -> None:
        """Set the file's length: shortens it, or extends it with zeros."""
        os.ftruncate(fd, length)

    @_described
    def fsync(self, fd: int) -> None:
        """Flush data and length of the file to disk (fdatasync)."""
        os.fdatasync(fd)

    def start_writeback(self, fd: int, position: int, length: int) -> None:
        """Make the kernel start to write out a range of dirty pages, so that a later `fsync` has less to wait for.

        This is advice only. Linux starts the write, and drops the pages of the range that are clean at that time; pages
        that were just written are not.
        """
        _advise_dont_need(fd, position, length)

    def drop_cached(self, fd: int, position: int, length: int) -> None:
        """Let the kernel use the pages of a range for other data, as it is not read again soon.

        This is advice only, and waits for nothing. Linux drops the pages that are on disk and starts to write out the
        others: a second call for them, some time later, drops them.
        """
        _advise_dont_need(fd, position, length)

    @_described
    def fsync_dir(self, directory: Path) -> None:
        """Flush created, renamed and removed names of `directory` to disk."""
        fd = open_directory(directory)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @_described
    def rename(self, source: Path, target: Path) -> None:
        """Rename `source`; replaces `target` atomically."""
        with _NameOf(source) as (name, fd), _NameOf(target) as (new_name, new_fd):
            os.replace(name, new_name, src_dir_fd=fd, dst_dir_fd=new_fd)
        forget_names(source)

    @_described
    def link(self, source: Path, target: Path) -> None:
        """Give `source` a second name. Raises FileExistsError if `target` exists: this is the compare-and-set."""
        with _NameOf(source) as (name, fd), _NameOf(target) as (new_name, new_fd):
            os.link(name, new_name, src_dir_fd=fd, dst_dir_fd=new_fd, follow_symlinks=False)

    @_described
    def unlink(self, path: Path) -> None:
        with _NameOf(path) as (name, fd):
            os.unlink(name, dir_fd=fd)

    @_described
    def mkdir(self, path: Path) -> None:
        with _NameOf(path) as (name, fd):
            os.mkdir(name, dir_fd=fd)

    @_described
    def rmdir(self, path: Path) -> None:
        with _NameOf(path) as (name, fd):
            os.rmdir(name, dir_fd=fd)

    @_described
    def touch(self, path: Path) -> int:
        """Set the file's modification time to now, by the clock of the file system (of the server for NFS); returns
        that time in ns."""
        with _NameOf(path) as (name, fd):
            os.utime(name, dir_fd=fd, follow_symlinks=False)
            return os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime_ns

    @_described
    def set_modified(self, path: Path, modified_ns: int) -> None:
        """Set the times of a file, which retention and the delay of deletions count from."""
        with _NameOf(path) as (name, fd):
            os.utime(name, ns=(modified_ns, modified_ns), dir_fd=fd, follow_symlinks=False)

    def write_file_atomic(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        """Write `<name>.<random>.tmp` and rename it to `path`: a crash leaves the old content or the new.

        An error leaves no `.tmp` file, which would take the last room of a full disk.
        """
        temporary = temporary_path(path)
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                self.pwrite_all(fd, data, 0)
                if durable:
                    self.fsync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # the first error says what has happened
                self.unlink_if_there(temporary)
            raise
        if durable:
            self.fsync_dir(path.parent)

    def unlink_if_there(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)


LOCAL: Final = FileSystem()


FlushMode = Literal["fsync", "os"]

UNFLUSHED_MARKER: Final = ".unflushed"


class UnflushedFileSystem(FileSystem):
    """Passes calls on to `inner`, but does not wait for the disk."""

    waits_for_disk = False

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner

    @property
    def waiting(self) -> FileSystem:
        return self._inner.waiting

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        return self._inner.open(path, flags, mode)

    def close(self, fd: int, path: Path | None = None) -> None:
        self._inner.close(fd, path)

    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        self._inner.pwrite_all(fd, data, position)

    def pwrite_uncached(self, fd: int, data: Buffer, position: int) -> None:
        """As `pwrite_all`: a direct write would wait for the disk."""
        self._inner.pwrite_all(fd, data, position)

    def pwrite_direct(self, fd: int, data: Buffer, position: int) -> int:
        return self._inner.pwrite_direct(fd, data, position)

    def copy_range(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        self._inner.copy_range(source_fd, source_position, fd, position, length)

    def truncate(self, fd: int, length: int) -> None:
        self._inner.truncate(fd, length)

    def fsync(self, fd: int) -> None:
        """Does nothing: the kernel has the data."""

    def start_writeback(self, fd: int, position: int, length: int) -> None:
        """Does nothing: no flush is going to wait for these pages."""

    def drop_cached(self, fd: int, position: int, length: int) -> None:
        """Does nothing: the pages are not on disk yet, and the advice waits for a busy disk."""

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

    def set_modified(self, path: Path, modified_ns: int) -> None:
        self._inner.set_modified(path, modified_ns)


def flushing_file_system(fs: FileSystem, flush: FlushMode) -> FileSystem:
    """`fs` for commits with the mode `flush`. Raises InvalidOptionError for an unknown mode."""
    check_one_of("flush", flush, get_args(FlushMode))
    return fs if flush == "fsync" or not fs.waits_for_disk else UnflushedFileSystem(fs)


def note_unflushed(root: Path, fs: FileSystem) -> None:
    """Create the marker before a commit with `os`. The caller holds the root's lock."""
    if not os.path.exists(f"{root}/{UNFLUSHED_MARKER}"):
        fs.close(fs.open(root / UNFLUSHED_MARKER, os.O_WRONLY | os.O_CREAT))


def flush_earlier(root: Path, fs: FileSystem) -> None:
    """Flush all earlier commits before a commit with `fsync`. Costs one failed stat if they are on disk already."""
    if (root / UNFLUSHED_MARKER).exists():
        os.sync()
        fs.unlink_if_there(root / UNFLUSHED_MARKER)


#: What a process asks for at most: some kernels allow any number, and tools loop over all that are allowed.
_DESCRIPTORS_MAX: Final = 1 << 20


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open files to what it may have (ulimit -Hn)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def share_of_descriptors(share: int, most: int) -> int:
    """How many files one user of many may keep open: a part of what the process may open, and at most `most`.

    Fewer if others have left few descriptors, of which a log takes five.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return most
    left = soft - len(os.listdir("/dev/fd"))
    return max(min(soft // share, left // 6, most), 1)


def is_in_memory(fd: int) -> bool:
    """Whether the file is one of a file system without a disk (tmpfs), which cannot tell what is in the page cache."""
    return _is_without_disk(os.fstat(fd).st_dev)


@functools.lru_cache(maxsize=64)
def _is_without_disk(device: int) -> bool:
    """Whether a mount of this process with the device is a tmpfs; False if that cannot be known."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, of = line.partition(" - ")
            if fields.split(" ")[2] == number:
                return of.startswith("tmpfs ")
    return False


def time_ms() -> int:
    """Wall clock time in ms since 1970."""
    return time.time_ns() // NS_PER_MS


_THREADS: Final = 8

_Result = TypeVar("_Result")


class ThreadPool:
    """Threads of this process. A forked child drops its parent's pool, whose threads it does not have."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._pid = -1
        self._pool: Workers | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def submit(self, task: Callable[[], _Result]) -> Future[_Result]:
        """Run `task` in a thread. A task must not wait for another one of the same pool."""
        with self._lock:
            if self._pool is None or self._pid != os.getpid():
                self._pool = Workers(self._threads, self._name)
                self._pid = os.getpid()
            pool = self._pool
        return pool.submit(task)  # which makes the call itself where no thread starts

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


_POOL: Final = ThreadPool(_THREADS, "kafkalog")


def in_background(task: Callable[[], None]) -> None:
    """Run `task` in a thread, and do not wait for it. It raises nothing."""
    _POOL.submit(task)


@contextlib.contextmanager
def beside(tasks: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
    """Run `tasks` in threads while the block runs; the value waits until all have ended, and raises the error of one.

    The block is not left before all have ended.
    """
    futures = [_POOL.submit(task) for task in tasks]

    def wait_for_all() -> None:
        wait(futures)
        for future in futures:
            future.result()

    try:
        yield wait_for_all
    finally:
        # Also when interrupted: a task still running would write into files that the caller is about to close.
        wait(futures)


def in_parallel(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Run `tasks` in parallel; returns their results in order. If one raised, raises its error after all have ended."""
    if len(tasks) < 2:
        return [task() for task in tasks]
    futures = [_POOL.submit(task) for task in tasks[1:]]
    try:
        first = tasks[0]()
    finally:
        # Also when interrupted: a task still running would write into files that the caller is about to close.
        wait(futures)
    return [first, *(future.result() for future in futures)]
