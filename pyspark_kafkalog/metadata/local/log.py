"""The commit log of a root on a file system: one commit = one file, which is created if absent.

    <root>/__cluster_metadata-0/
      partition.metadata                     Kafka's, with the id of the metadata topic
      kafkalog-format                        marks a native log directory (root_format.py)
      00000000000000000000.log               the first commit: a v2 batch of KRaft records with offsets from 0
      00000000000000000005.log               the next one, when the first has 5 records
      00000000000000000005.log.<hex>.tmp     a commit being written, or left by a crash; nothing reads it
      kafkalog-head                          hint: the log has reached this offset, durably (`OffsetHint`)
      kafkalog-reserve-0 … -3                room for commits that free space on a full disk (`CommitReserve`)

A commit is written to a temporary file, fsynced, and linked to its name. The link is the compare-and-set: it fails if
the name exists. A crash before the link leaves no commit; a crash after it leaves the whole commit. Files never change.
The oldest are removed once a snapshot contains their records (backend.py). Readers derive the next file's name
from the last commit, so a check for new commits opens one name, however long the history is.

A lost file would look like the end of the log, and the next commit would replace it. The head detects this: each
commit looks at it, and a log that ends below it has a hole. The head is written after the commit is on disk, without
waiting for the disk, so it may lag behind (the guard is weaker then) but is never ahead.

*The reserve.* A full disk has no room for a commit file. The reserve files, of 32 KiB each, serve commits that free
space (retention, delete-records, the deletion of a topic) and commits that change configurations, on which retention
depends. If such a commit finds no free block or inode for its file, it overwrites the content of a reserve file, which
is truncated to the commit's length. The file gets the commit's name by a link and loses its own. The truncated blocks
leave room for the directory to grow. If that is not enough (on tmpfs a name takes an inode), another file of the
reserve is removed. The next commit and the end of a retention run restore the reserve as soon as the disk has room.

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
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptRecordError,
    KafkalogError,
)
from pyspark_kafkalog.metadata.commit_log import (
    MAX_COMMIT_BYTES,
    Commit,
    CommitLog,
    decode_commit,
    encode_commit,
)
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.root_format import HEAD_FILE
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, crc32c, parse_header
from pyspark_kafkalog.storage.below_root import open_file, scan
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, is_out_of_space, open_to_read, pread, temporary_path
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file
from pyspark_kafkalog.values import dataclass

FileState: TypeAlias = tuple[int, int, int]


def file_state(path: str | Path) -> FileState | None:
    """Identifies the file at a path, to detect its replacement by another; None if there is no file.

    For files that are hardly ever written again. It includes the time of the inode's last change, since inode numbers
    are reused and a copy may preserve the other times.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
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

    def write(self, offset: int) -> None:
        """Replace the hint. Raises OSError."""
        fd = self._fs.open(self.path, os.O_WRONLY | os.O_CREAT)
        try:
            self._fs.pwrite_all(fd, _hint_text(offset), 0)
        finally:
            self._fs.close(fd, self.path)
        self._known = file_state(self.path), offset


RESERVE_PREFIX: Final = "kafkalog-reserve-"

#: Each commit on a full disk uses one. Several, because the freed space is available only after file.delete.delay.ms.
RESERVE_FILES: Final = 4

#: Room for the states of 300 partitions; retention commits 128 at a time.
RESERVE_BYTES: Final = 32 << 10

_STEP_BYTES: Final = 4 << 10


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


_COMMIT_FILE = re.compile(r"(\d{20})\.log")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitRange:
    """The offsets [base_offset, next_offset) of a commit, its time (ms) and the size of its batch in bytes."""

    base_offset: int
    next_offset: int
    timestamp_ms: int
    size_bytes: int


class LocalCommitLog(CommitLog):
    """Reads and publishes the commits in `directory`."""

    def __init__(self, directory: Path, *, fs: FileSystem = LOCAL) -> None:
        self.directory = directory
        self._fs = fs
        self._head = OffsetHint(directory / HEAD_FILE, fs)
        self._reserve = CommitReserve(directory, fs)
        self._last_path = 0, segment_file(directory, 0, LOG_SUFFIX)

    def path(self, base_offset: int) -> Path:
        """The file of the commit at `base_offset`. The last one is kept: a commit asks for its own several times."""
        known_offset, path = self._last_path
        if known_offset != base_offset:
            path = segment_file(self.directory, base_offset, LOG_SUFFIX)
            self._last_path = base_offset, path
        return path

    def name_of(self, base_offset: int) -> str:
        return str(self.path(base_offset))

    def read(self, base_offset: int) -> Commit | None:
        """As CommitLog.read: one open."""
        path = self.path(base_offset)
        data = _read_bounded(path)
        return None if data is None else decode_commit(data, base_offset, str(path))

    def read_from(self, offset: int, *, many: bool = False) -> Iterator[Commit]:
        while (commit := self.read(offset)) is not None:
            yield commit
            offset = commit.next_offset

    def read_range(self, base_offset: int) -> CommitRange | None:
        """The offsets and time of the commit at `base_offset`, from its header only; None if there is no such file.

        Raises CorruptRecordError for an invalid header.
        """
        path = self.path(base_offset)
        try:
            with open_to_read(path) as file:
                data = file.read(RECORD_BATCH_OVERHEAD_BYTES)
        except FileNotFoundError:
            return None
        header = parse_header(data, 0, file=str(path), file_position=0)
        if header.base_offset != base_offset or header.next_offset <= base_offset:
            found = f"offsets {header.base_offset} to {header.last_offset}"
            raise CorruptRecordError(file=str(path), position=0, expected=f"offsets from {base_offset} on", found=found)
        return CommitRange(base_offset, header.next_offset, header.max_timestamp_ms, header.size_bytes)

    def listed_offsets(self) -> Iterator[int]:
        for entry in scan(self.directory):
            match = _COMMIT_FILE.fullmatch(entry.name)
            if match is not None:
                yield int(match[1])

    def highest_listed(self) -> int:
        """The base offset of the last commit file, 0 if there is no file. Its cost grows with the history."""
        return max(self.listed_offsets(), default=0)

    def head(self) -> int | None:
        """An offset that the log has certainly reached; None if that is unknown without listing the directory."""
        return self._head.current()

    def check_reaches(self, next_offset: int, head: int) -> None:
        """Raise CorruptRecordError if the log ends at `next_offset`, below `head`: a file was lost."""
        if head > next_offset:
            raise self.lost_commit(next_offset, reached=head)

    def lost_commit(self, offset: int, *, reached: int) -> CorruptRecordError:
        return CorruptRecordError(
            file=self.name_of(offset),
            position=0,
            expected=f"a commit at offset {offset}, since the log has reached {reached}",
            found="no such file",
            advice=f"restore the file from a backup; in a copy that was made during commits, remove {HEAD_FILE} and "
            "the later commits",
        )

    def publish(
        self,
        base_offset: int,
        records: Sequence[MetadataRecord],
        *,
        timestamp_ms: int,
        frees_space: bool = False,
        before_link: Callable[[], None] | None = None,
    ) -> Commit:
        """Publish `records` as the commit at `base_offset` with the time `timestamp_ms`, durably.

        With `frees_space`, the commit uses the reserve if the disk is full. `before_link` is called when the commit is
        on disk, and before it gets its name; its errors are raised, and no commit is made.

        Raises:
        - CommitConflictError if another commit has the offset
        - OSError if writing failed before the link, or the directory has no room for the name: no commit was made
        - CommitStateUnknownError if the link or a later call failed: the commit may have been made, which reading the
          log decides (see MetadataStore.commit)
        - InvalidRecordError for records that cannot be encoded
        """
        data = encode_commit(base_offset, records, timestamp_ms)
        path = self.path(base_offset)
        try:
            temporary = self._write_temporary(path, data)
            try:
                if before_link is not None:
                    before_link()
                self._put(temporary, path)
            except (KafkalogError, OSError):
                self._discard(temporary)
                raise
        except OSError as error:
            if not frees_space or not is_out_of_space(error):
                raise
            with self._reserve.filled(data) as reserved:
                if reserved is None:
                    raise
                if before_link is not None:
                    before_link()
                try:
                    self._put(reserved, path)
                except OSError:  # no room for the name
                    if not self._reserve.give_up_one():
                        raise
                    self._put(reserved, path)
        commit = Commit(base_offset, base_offset + len(records), timestamp_ms, tuple(records), len(data))
        self._note_head(commit.next_offset)
        return commit

    def restore_reserve(self) -> None:
        """Create the missing files of the reserve, as far as the disk has room. Raises OSError."""
        self._reserve.restore()

    def _put(self, written: Path, path: Path) -> None:
        """Link the file `written` to the name `path` and remove its own name."""
        is_linked = False
        try:
            self._link(written, path)
            is_linked = True
            self._fs.unlink(written)
            self._fs.fsync_dir(self.directory)
        except FileExistsError:
            raise CommitConflictError(f"another writer published {path} first") from None
        except OSError as error:
            if not is_linked and is_out_of_space(error):
                raise  # unlike other errors a definite answer: the directory has no room for the name
            raise CommitStateUnknownError(
                f"publishing {path} failed, so it is unknown whether the commit exists: {error}"
            ) from error

    def _link(self, temporary: Path, path: Path) -> None:
        try:
            self._fs.link(temporary, path)
        except FileExistsError:
            # NFS repeats a call whose reply was lost; the repeated call then finds the link of the first one.
            if temporary.stat().st_nlink == 1:
                raise

    def _note_head(self, next_offset: int) -> None:
        if not self._fs.waits_for_disk:
            return  # after a power failure the log may be shorter
        try:
            self._head.write(next_offset)
        except OSError as error:
            _LOG.warning(
                "%s could not be written, so the loss of a commit file might not be detected: %s", HEAD_FILE, error
            )

    def sync(self) -> None:
        self._fs.fsync_dir(self.directory)

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        temporary = temporary_path(path)
        fd = self._fs.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                self._fs.pwrite_all(fd, data, 0)
                self._fs.fsync(fd)
            finally:
                self._fs.close(fd, temporary)
        except OSError:
            self._discard(temporary)
            raise
        return temporary

    def _discard(self, temporary: Path) -> None:
        # The leftover file is never read, so a failure to remove it must not hide the original error.
        with contextlib.suppress(OSError):
            self._fs.unlink_if_there(temporary)


def _read_bounded(path: Path) -> bytes | None:
    """The whole file; None if it does not exist. Raises CorruptRecordError if it is too large to be a commit."""
    try:
        file = open_to_read(path)
    except FileNotFoundError:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_COMMIT_BYTES:
            raise CorruptRecordError(
                file=str(path), position=0, expected=f"at most {MAX_COMMIT_BYTES} bytes", found=f"{size} bytes"
            )
        return file.read(size)  # bounded: MAX_COMMIT_BYTES, above
