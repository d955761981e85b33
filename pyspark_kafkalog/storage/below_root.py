"""Opens files and directories of a root: links below the root are not followed, and only regular files are opened.

Otherwise a user who may create names in a log directory could make another user's job read, replace or remove files
elsewhere, or wait for ever for the other end of a named pipe.

    /data/log            the path that the user named: it may be a link, or contain one
      orders-0/          a link in place of a partition's directory is refused
        ….log            a link, pipe, socket, device or directory in place of a file is refused

Names are opened, created, renamed and removed in an open directory, whose own name is not followed if it is a link. So
a directory that is replaced with a link between a check and its use does not lead outside of the root.

A path alone does not tell where the root ends. Only the last directory of a path is checked, and only if it has the
name of a partition's directory, which all directories of a root have. `follow_root` tells of other places: a link such
as `/mnt/disk-1` that is a root, and the directory of remote storage, whose folders have any name and depth.

Several directories are one path, their paths with commas between, as Kafka's log.dirs has them:

    /disk1/kafka,/disk2/kafka

A comma is also valid in the name of a directory. A path that exists is therefore one path, whatever it contains; and
one that does not exist is several only if one of its parts exists. The same holds for each of several: the longest run
of parts that exists with its commas is one path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import LogDirError

#: With O_NONBLOCK, opening a named pipe does not wait for its other end.
_ALWAYS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY: Final = os.O_DIRECTORY | os.O_CLOEXEC
#: Enough for using names in a directory; needs no permission to list it.
_NAMES_ONLY: Final = _DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)

#: Directories of partitions, also of deleted and stray ones, the metadata's, and those of exports and adoptions.
_OF_ROOT: Final = re.compile(r".+-\d+(\..*)?")

_NOT_OPENED: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EMLINK})
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link, which is not followed",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

#: Directories that an operation keeps open: the metadata's, and those of some partitions.
_KEPT_MAX: Final = 16

#: Places below which every folder of a path is opened by itself.
_roots: Final[set[str]] = set()
_COMMA: Final = ","


def follow_root(root: Path, *, has_folders: bool = False) -> None:
    """Follow `root`, which a user named, also if it is a link with the name of a partition's directory.

    With `has_folders`, no link is followed in any folder below it.
    """
    if has_folders or (_OF_ROOT.fullmatch(root.name) and root.is_symlink()):
        _roots.add(str(root))


def link_message(directory: str | Path) -> str:
    """The reason why a symbolic link is not read as a directory of a root, and advice."""
    return (
        f"{directory} is a symbolic link, which is not followed: put the directory in its place, or mount it there "
        "(mount --bind)"
    )


def refuse_link(directory: Path) -> None:
    """Raise LogDirError for a directory of a root that is a symbolic link."""
    if directory.is_symlink():
        raise _refused(link_message(directory))


def open_file(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """os.open for a regular file. Raises LogDirError for a link or another kind of file, OSError."""
    fd = _opened(path, flags, mode)
    if not flags & os.O_EXCL:  # which makes a new file
        _regular(fd, path)
    return fd


def status_of(path: str | Path) -> os.stat_result:
    """The status of a file, which is opened for it: a network file system may answer a stat from memory.

    Raises as `open_file`.
    """
    fd = _opened(path, os.O_RDONLY, 0)
    status = _regular(fd, path)
    os.close(fd)
    return status


def is_there(path: str | Path) -> bool:
    """Whether there is a file, as `status_of`."""
    try:
        status_of(path)
    except FileNotFoundError:
        return False
    return True


def _opened(path: str | Path, flags: int, mode: int) -> int:
    directory, name = split(path)
    kept = _kept.directories
    kept_fd = None if kept is None else kept.used.get(directory)
    directory_fd = open_names(directory) if kept_fd is None else kept_fd
    try:
        return os.open(name, flags | _ALWAYS, mode, dir_fd=directory_fd)
    except OSError as error:
        refusal = _refusal(path, name, directory_fd) if error.errno in _NOT_OPENED else None
        if refusal is not None:
            raise refusal from None
        error.filename = str(path)
        raise
    finally:
        if kept_fd is None:
            close_names(directory_fd)


def _regular(fd: int, path: str | Path) -> os.stat_result:
    """The status of an open file; closes it and raises LogDirError if it is not a regular one."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise _not_regular(path, stat.S_IFMT(status.st_mode))
    return status


def open_directory(directory: str | Path) -> int:
    """A descriptor of a directory, for listing, flushing or locking it. Raises LogDirError for a link, OSError."""
    return _open_directory(directory, _DIRECTORY | os.O_RDONLY)


def open_names(directory: str | Path) -> int:
    """A descriptor for the `dir_fd` of calls that use names in `directory`, until `close_names`.

    Raises LogDirError for a link, OSError.
    """
    kept = _kept.directories
    return _open_directory(directory, _NAMES_ONLY) if kept is None else kept.open_names(str(directory))


def close_names(fd: int) -> None:
    """Close what `open_names` has returned, unless it is kept open."""
    kept = _kept.directories
    if kept is None or not kept.has(fd):
        os.close(fd)


def forget_names(directory: Path) -> None:
    """Open the directory anew for the next name in it, because it has been renamed."""
    if _kept.directories is not None:
        _kept.directories.forget(str(directory))


class KeptDirectories:
    """Directories that stay open, `most` of them, for all names that one thread at a time uses in a block.

    A block is an operation in which no directory gets another place but by `FileSystem.rename`: one that holds the
    root's lock, or that only reads. Those of earlier blocks are used again, until `close`: the first use in a block
    finds out, by one call, whether a directory is still at its path.
    """

    def __init__(self, most: int = _KEPT_MAX) -> None:
        self._most = most
        self._open: dict[str, int] = {}
        self._places: dict[str, tuple[int, int]] = {}  # device and inode, of those that were used in several blocks
        self.used: dict[str, int] = {}  # those that were used in this block, and found in place

    def __enter__(self) -> None:
        if _kept.directories is None:
            self.used.clear()
            _kept.directories = self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if _kept.directories is self:
            _kept.directories = None

    def open_names(self, directory: str) -> int:
        """See the function of this name."""
        fd = self._open.get(directory)
        if fd is not None:
            if directory in self.used or self._is_in_place(directory, fd):
                self.used[directory] = fd
                return fd
            self._drop(directory)
        fd = _open_directory(directory, _NAMES_ONLY)
        if len(self._open) == self._most:
            self._drop(next((each for each in self._open if each not in self.used), None))
        if len(self._open) < self._most:
            self._open[directory] = fd
            self.used[directory] = fd
        return fd

    def forget(self, directory: str) -> None:
        """Close the directory, which has got another name in this block: its name may be used for a new one."""
        if directory in self._open:
            self._drop(directory)

    def has(self, fd: int) -> bool:
        return fd in self._open.values()

    def close(self) -> None:
        for each in list(self._open):
            self._drop(each)

    def _is_in_place(self, directory: str, fd: int) -> bool:
        """Whether the path still names the open directory, whose inode no other one gets meanwhile."""
        place = self._places.get(directory)
        if place is None:
            place = self._places[directory] = _place(os.fstat(fd))
        try:
            return _place(os.stat(directory, follow_symlinks=False)) == place
        except OSError:
            return False  # opening it raises the error

    def _drop(self, directory: str | None) -> None:
        if directory is not None:
            self._places.pop(directory, None)
            self.used.pop(directory, None)
            os.close(self._open.pop(directory))


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class _Kept(threading.local):
    directories: KeptDirectories | None = None


_kept: Final = _Kept()


@contextlib.contextmanager
def keep_directories() -> Iterator[None]:
    """Keep directories open for one block: see `KeptDirectories`."""
    kept = KeptDirectories()
    try:
        with kept:
            yield
    finally:
        kept.close()


def _open_directory(directory: str | Path, flags: int) -> int:
    if _roots and (root := _root_of(str(directory))) is not None:
        return _open_folder(root, str(directory), flags)
    try:
        return os.open(directory, flags | os.O_NOFOLLOW)
    except OSError as error:
        if not _is_link(error, directory):
            raise
    if _OF_ROOT.fullmatch(os.path.basename(directory)):
        raise _refused(link_message(directory))
    return os.open(directory, flags)


def _root_of(directory: str) -> str | None:
    while directory not in _roots:
        directory, separator, _ = directory.rpartition(os.sep)
        if not separator:
            return None
    return directory


def _open_folder(root: str, directory: str, flags: int) -> int:
    """Open the folders from `root` to `directory`, one in the other."""
    folder, *below = [root, *directory[len(root) :].split(os.sep)[1:]]
    fd = os.open(root, flags)
    for name in below:
        folder = os.path.join(folder, name)
        outer = fd
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=outer)
        except OSError as error:
            if _is_link(error, folder):
                raise _refused(link_message(folder)) from None
            error.filename = directory
            raise
        finally:
            os.close(outer)
    return fd


def _is_link(error: OSError, directory: str | Path) -> bool:
    # Linux answers ENOTDIR, others ELOOP.
    return error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK) and os.path.islink(directory)


def scan(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    """os.scandir of a directory of a root. Raises LogDirError for a link, OSError.

    The path of an entry is only its name.
    """
    fd = open_directory(directory)
    try:
        with os.scandir(fd) as entries:
            yield from entries
    finally:
        os.close(fd)


def list_names(directory: str | Path) -> list[tuple[str, int]]:
    """The names in a directory of a root, each with its inode. Raises LogDirError for a link, OSError."""
    fd = open_directory(directory)
    try:
        with os.scandir(fd) as entries:
            return [(entry.name, entry.inode()) for entry in entries]
    finally:
        os.close(fd)


def split(path: str | Path) -> tuple[str, str]:
    """The directory and the name of a path."""
    directory, separator, name = str(path).rpartition(os.sep)  # os.path.split takes three times as long
    return directory or separator or os.curdir, name


def _refusal(path: str | Path, name: str, directory_fd: int) -> LogDirError | None:
    try:
        kind = stat.S_IFMT(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)
    except OSError:
        return None
    return None if kind == stat.S_IFREG else _not_regular(path, kind)


def _not_regular(path: str | Path, kind: int) -> LogDirError:
    found = _KINDS.get(kind, "a file of another kind")
    return _refused(f"{path} is {found}; expected a regular file: remove it, and restore the file if it held records")


def _refused(message: str) -> LogDirError:
    error = LogDirError(message)
    error.strerror = message  # for errors that say what the call was made for
    return error


def split_paths(path: str | Path) -> tuple[Path, ...]:
    """The paths in `path`, in order; `path` itself if it is one. Each is a root that a user named: see `follow_root`.

    White space around a comma is not part of a path, and empty parts do not count, as in Kafka (Csv.parseCsvList).
    """
    paths = _split(path)
    for each in paths:
        follow_root(each)
    return paths


def _split(path: str | Path) -> tuple[Path, ...]:
    text = str(path)
    if _COMMA not in text or os.path.lexists(text):
        return (Path(path),)
    parts = text.split(_COMMA)
    found: list[Path] = []
    at = 0
    while at < len(parts):
        # bounded: the parts of a path
        end = next((end for end in range(len(parts), at, -1) if _exists(parts[at:end])), at + 1)
        part = _COMMA.join(parts[at:end]).strip()
        if part:
            found.append(Path(part))
        at = end
    return tuple(found) if any(os.path.lexists(each) for each in found) else (Path(path),)


def _exists(parts: list[str]) -> bool:
    text = _COMMA.join(parts).strip()
    return bool(text) and os.path.lexists(text)


def join_paths(paths: Iterable[Path]) -> Path:
    """The one path that `split_paths` turns into `paths` as long as they exist."""
    return Path(_COMMA.join(map(str, paths)))


def absolute_paths(path: Path) -> Path:
    """`path` with each of its paths made absolute."""
    return join_paths(each.absolute() for each in split_paths(path))
