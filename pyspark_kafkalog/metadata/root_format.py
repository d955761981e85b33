"""The version of a root's format: one number for all files and records of this package in a root.

    __cluster_metadata-0/kafkalog-format     "version=3\\n". Checked when the root is opened, and before each commit
    FormatRecord in the commit log           the same number: in the first commit, in every snapshot, and in the commit
                                             that changes it

Versions `OLDEST_FORMAT_VERSION` to `NEWEST_FORMAT_VERSION` are read and written. A root keeps its version until
`kafkalog features upgrade` raises it to `FORMAT_VERSION`, but one of version 1 for which remote storage is configured
gets `TIERED_FORMAT_VERSION`. No version falls again. Any other version is refused. The
marker is read first, so a root that this package cannot parse is refused by its version. The commit log decides: a
process that has the root open reads the FormatRecord of an upgrade before all later commits, and until then loses the
race for the next commit.

While an export creates a root as a copy of another, the marker is "unfinished copy\\n", which every version refuses.

The marker is replaced by a rename, so a crash leaves the old one or the new one. An upgrade publishes its commit first;
a crash before the marker follows is harmless, as either of the two keeps earlier versions away.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, LogDirError, UnsupportedFormatError
from pyspark_kafkalog.record.header import crc32c
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import FileSystem, pread
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC
from pyspark_kafkalog.units import content_text
from pyspark_kafkalog.values import dataclass

#: The marker of a copy of a cluster's metadata log (root/brokers/quorum.py).
COPY_MARKER: Final = "kafkalog-observer"

#: The version of the first roots on a file system.
FIRST_FORMAT_VERSION: Final = 1
#: Roots of this version and later ones are read and written.
OLDEST_FORMAT_VERSION: Final = FIRST_FORMAT_VERSION
#: The version of roots on a file system whose logs may begin in remote storage. What does not know it would take the
#: log to begin at the first local segment.
TIERED_FORMAT_VERSION: Final = 2
#: The version of roots on a file system in which a file of the commit log may have several commits; their logs may
#: begin in remote storage too. What does not know it would read one commit of a file.
SHARED_FILES_FORMAT_VERSION: Final = 3
#: The version of new roots. CONTRIBUTING.md ("Change the on-disk format") lists the steps for a new version.
FORMAT_VERSION: Final = SHARED_FILES_FORMAT_VERSION
#: Roots of this version and earlier ones are read and written.
NEWEST_FORMAT_VERSION: Final = SHARED_FILES_FORMAT_VERSION

#: The version of roots in an object store; the only one.
OBJECT_FORMAT_VERSION: Final = 2
#: The marker of a root in an object store.
OBJECT_MARKER: Final = b"version=%d\nstore=object\n" % OBJECT_FORMAT_VERSION

METADATA_DIR: Final = f"{CLUSTER_METADATA_TOPIC}-0"
FORMAT_MARKER: Final = "kafkalog-format"
#: Hint of a commit log on a file system: the log has reached this offset (local/log.py).
HEAD_FILE: Final = "kafkalog-head"
#: In an object store, where servers of the root show that they are alive (server/cluster.py).
SERVERS_FOLDER: Final = "servers"

#: The content of the marker while an export creates the root as a copy of another.
_UNFINISHED_COPY: Final = b"unfinished copy\n"

_MARKER: Final = re.compile(rb"version=([1-9][0-9]{0,8})\n")
_OBJECT_MARKER: Final = re.compile(rb"version=([1-9][0-9]{0,8})\nstore=object\n")
_MARKER_BYTES_MAX: Final = 64
_PLACES: Final = ("on a file system", "in an object store")


@dataclass(frozen=True, slots=True)
class RootFormat:
    """The format of a root, by the FormatRecords of its commit log; `version` None before the first commit."""

    version: int | None = None
    in_object_store: bool = False

    @property
    def may_have_segments(self) -> bool:
        """Whether partitions may have segments in a store; earlier versions of this package must not read such roots.

        On a file system they may with remote storage.
        """
        return self.in_object_store or (self.version or 0) >= TIERED_FORMAT_VERSION

    @property
    def shares_commit_files(self) -> bool:
        """Whether a file of the commit log may have several commits."""
        return not self.in_object_store and (self.version or 0) >= SHARED_FILES_FORMAT_VERSION

    @property
    def supported(self) -> tuple[int, int]:
        """The oldest and the newest version that this package reads and writes, of roots of its kind."""
        if self.in_object_store:
            return OBJECT_FORMAT_VERSION, OBJECT_FORMAT_VERSION
        return OLDEST_FORMAT_VERSION, NEWEST_FORMAT_VERSION

    def may_become(self, other: RootFormat) -> bool:
        """Whether a commit may change it to `other`: a root on a file system to a later version."""
        is_upgrade = self.version is not None and self.version < (other.version or 0) <= NEWEST_FORMAT_VERSION
        return other.version == self.version or (is_upgrade and not self.in_object_store and not other.in_object_store)

    def check(self, file: str, *, in_object_store: bool) -> None:
        """Raise an error with the name of `file` unless a root there, or on a file system, may have this format.

        Raises UnsupportedFormatError, CorruptRecordError for a root of the other kind.
        """
        if self.version is None:
            return
        check_version(self.version, file, in_object_store=in_object_store)
        if self.in_object_store != in_object_store:
            raise CorruptRecordError(
                file=file,
                position=0,
                expected=f"the commit log of a root {_PLACES[in_object_store]}",
                found=f"that of one {_PLACES[self.in_object_store]}",
                advice="it belongs to another root: restore the commit log of this one",
            )


def metadata_dir(root: Path) -> Path:
    """The commit log's directory in `root`."""
    return root / METADATA_DIR


def is_metadata_copy(root: Path) -> bool:
    """Whether `root` is a copy of a metadata log."""
    return (metadata_dir(root) / COPY_MARKER).is_file()


def is_native_root(root: Path) -> bool:
    """Whether `root` is native: it has the marker file, or the hint that commits of this package write.

    If only the marker were checked, a root that lost it would be read as a broker's directory, beyond the committed
    records.
    """
    directory = metadata_dir(root)
    return (directory / FORMAT_MARKER).is_file() or (directory / HEAD_FILE).is_file()


def write_marker(directory: Path, fs: FileSystem, version: int = FORMAT_VERSION) -> None:
    """Mark the root with the metadata directory `directory` as native, with format `version`, durably."""
    fs.write_file_atomic(directory / FORMAT_MARKER, b"version=%d\n" % version)


def set_marker(directory: Path, fs: FileSystem, version: int) -> None:
    """As `write_marker`, unless the marker says so already."""
    if read_marker(directory) != b"version=%d\n" % version:
        write_marker(directory, fs, version)


def mark_unfinished_copy(directory: Path, fs: FileSystem) -> None:
    """Mark the root as an unfinished copy, durably; opening it is refused until `write_marker`."""
    fs.write_file_atomic(directory / FORMAT_MARKER, _UNFINISHED_COPY)


def is_unfinished_copy(root: Path) -> bool:
    """Whether `root` is an unfinished copy: of a running export, or of one that was killed."""
    return read_marker(metadata_dir(root)) == _UNFINISHED_COPY


def refuse_unfinished_copy(directory: Path) -> None:
    """Raise LogDirError if the root with the metadata directory `directory` is an unfinished copy."""
    if read_marker(directory) == _UNFINISHED_COPY:
        raise LogDirError(
            f"{directory.parent} is a copy that kafkalog export has not finished: run the same export again, or "
            "remove it"
        )


def check_marker(directory: Path) -> None:
    """Check the marker file in the metadata directory `directory`.

    Raises UnsupportedFormatError for a version that is not supported, DiskFormatError for a damaged or missing file,
    LogDirError for an unfinished copy.
    """
    path = directory / FORMAT_MARKER
    data = read_marker(directory)
    if data is None:
        raise _damaged_marker(path, "no such file, although the directory has commits of this package")
    if data == _UNFINISHED_COPY:
        refuse_unfinished_copy(directory)
    match = _MARKER.fullmatch(data)
    if match is None:
        raise _damaged_marker(path, content_text(data))
    check_version(int(match[1]), str(path))


def check_object_marker(data: bytes, file: str) -> None:
    """Check `data`, the marker of a root in an object store, from the object `file`.

    Raises UnsupportedFormatError for a version that is not supported, DiskFormatError for a damaged one.
    """
    match = _OBJECT_MARKER.fullmatch(data)
    if match is None:
        raise DiskFormatError(
            file=file,
            position=0,
            expected="lines version=<number> and store=object",
            found=content_text(data[:_MARKER_BYTES_MAX]),
            advice="restore the object, from an earlier version of it if the bucket keeps versions",
        )
    check_version(int(match[1]), file, in_object_store=True)


def read_marker(directory: Path) -> bytes | None:
    """The first bytes of the marker file; None if there is no such file."""
    try:
        fd = open_file(f"{directory}/{FORMAT_MARKER}")
    except FileNotFoundError:
        return None
    try:
        return pread(fd, _MARKER_BYTES_MAX, 0)
    finally:
        os.close(fd)


def check_version(version: int, file: str, *, in_object_store: bool = False) -> None:
    """Raise UnsupportedFormatError, with the name of `file`, unless this package reads `version` of such roots."""
    oldest, newest = RootFormat(in_object_store=in_object_store).supported
    if oldest <= version <= newest:
        return
    advice = "upgrade the log directory first, with an earlier version of pyspark_kafkalog that still reads it"
    if version > newest:
        advice = "upgrade pyspark_kafkalog, on the driver and all executors, to the version that wrote it or later"
    expected = f"format version {newest}" if in_object_store else f"a format version from {oldest} to {newest}"
    raise UnsupportedFormatError(
        file=file, position=0, expected=expected, found=f"format version {version}", advice=advice
    )


def _damaged_marker(path: Path, found: str) -> DiskFormatError:
    return DiskFormatError(
        file=str(path),
        position=0,
        expected="a line version=<number>",
        found=found,
        advice="write that line into the file, with the formatVersion that kafkalog dump-log with "
        "--cluster-metadata-decoder shows in the FORMAT_RECORD of the first commit or of the newest snapshot",
    )


FileState: TypeAlias = tuple[int, int, int]


def file_state(path: str | Path) -> FileState | None:
    """Identifies the file at a path, to detect its replacement by another; None if there is no file.

    For files that are hardly ever written again. It includes the time of the inode's last change, since inode numbers
    are reused and a copy may preserve the other times.
    """
    try:
        return state_of_status(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def state_of_status(found: os.stat_result) -> FileState:
    """As `file_state`, of a file whose status is known."""
    return (found.st_dev, found.st_ino, found.st_ctime_ns)


_HINT_DIGITS: Final = 20
_HINT_BYTES: Final = _HINT_DIGITS + 10


def _hint_text(offset: int) -> bytes:
    digits = b"%020d" % offset
    return b"%s %08x\n" % (digits, crc32c(digits))


def _parsed(data: bytes) -> int | None:
    digits = data[:_HINT_DIGITS]
    if len(data) != _HINT_BYTES or not digits.isdigit() or data != _hint_text(int(digits)):
        return None
    return int(digits)


class OffsetHint:
    """A small file with one offset of the commit log as a hint; overwritten in place, without waiting for the disk.

        00000000000000000194 9b1c2f7e\\n     20 digits, a blank, the CRC-32C of the digits

    The offset may be behind but is never ahead: it is written after the change that it records. A crash or a power
    failure leaves the file unchanged, short, or mixed; content that does not match the CRC counts as no hint.
    """

    def __init__(self, path: Path, fs: FileSystem) -> None:
        self.path = path
        self._fs = fs
        self._known: tuple[FileState | None, int | None] = None, None  # the state of the file, and its offset then

    def current(self) -> int | None:
        """As `read`, in one call for a file that looks unchanged: so the offset may be behind what others have written.

        They may have written it twice within the resolution of its times.
        """
        state = file_state(self.path)
        known, offset = self._known
        if state != known or offset is None:
            offset = self.read()
            self._known = state, offset
        return offset

    def read(self) -> int | None:
        """The offset; None if the file is missing or its content invalid. Raises OSError if it cannot be read."""
        try:
            fd = open_file(self.path)
        except FileNotFoundError:
            return None
        try:
            data = pread(fd, _HINT_BYTES + 1, 0)
        finally:
            os.close(fd)
        return _parsed(data)

    def create(self, offset: int) -> None:
        """Write the file with the hint, durably: what replaces it later is on disk or not. Raises OSError."""
        self._fs.write_file_atomic(self.path, _hint_text(offset))

    def write(self, offset: int) -> None:
        """Replace the hint. Raises OSError."""
        fd = self._fs.open(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            self._fs.pwrite_all(fd, _hint_text(offset), 0)
        finally:
            self._fs.close(fd, self.path)
        self._known = file_state(self.path), offset
