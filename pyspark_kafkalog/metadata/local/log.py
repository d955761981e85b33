"""The commit log of a root on a file system: files of one or more commits, each made if its place is free.

    <root>/__cluster_metadata-0/
      partition.metadata                     Kafka's, with the id of the metadata topic
      kafkalog-format                        marks a native log directory (root_format.py)
      00000000000000000000.log               commits from offset 0 on; each is a v2 batch of KRaft records
      00000000000000000305.log               the next file, if the first has 305 records
      00000000000000000305.log.<hex>.tmp     the first commit of a file, being written or left by a crash; never read
      kafkalog-head                          hint: the log has reached this offset, durably (`OffsetHint`)
      kafkalog-reserve-0 … -3                room for commits that free space on a full disk (`CommitReserve`)

*The compare-and-set.* A commit begins a file, or goes to the end of the last one. One that begins a file is written to
a temporary file, fsynced, and linked to its name: the link fails if the name exists. One that goes to the end is
written under the lock (flock) of the file, if the file still ends where the commit is to begin, and no file begins
there. To begin a file, too, a writer locks the one before. So a place is taken once, also by writers without the root's
lock. The lock is held for the write, not for the fsync after it, so writers hardly wait for each other; by a usual
commit (messages/usual_commits.py) also while its appends are written, and flushed if it waits for the disk.

A file takes commits until it has `COMMIT_FILE_BYTES`, or a snapshot contains some of them (backend.py). In a root of a
format version before SHARED_FILES_FORMAT_VERSION each file has one commit and never changes. The oldest files are
removed once a snapshot contains their records. Readers go from the end of the last commit to the name that follows from
it, so a check for new commits looks at one file and one name, however long the history is.

*Crashes.* A crash before the link leaves no commit; a crash after it leaves the whole commit. A kill during a write to
the end leaves part of a batch there, which is shorter than its header says. A power failure before the fsync may leave
anything there, above the head. Readers take both for the end of the log, and the next writer cuts them off. Any other
batch with a wrong CRC is damage: one below the head, one with commits that do not wait for the disk (.unflushed), or
one in a log without a head.

A lost or shortened file would look like the end of the log, and the next commit would replace the lost ones. The head
detects this: each commit looks at it, and a log that ends below it has a hole. The head is written after the commit is
on disk, without waiting for the disk, so it may lag behind (the guard is weaker then) but is never ahead.

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
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from pyspark_kafkalog.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptRecordError,
    KafkalogError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.metadata.commit_log import (
    MAX_COMMIT_BYTES,
    Commit,
    CommitLog,
    CommitPlace,
    LoadedImage,
    decode_commit,
    encode_commit,
    has_valid_crc,
    headers_of_commits,
    whole_commit,
)
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.root_format import HEAD_FILE, FileState, OffsetHint, file_state, state_of_status
from pyspark_kafkalog.metadata.root_lock import acquire_flock
from pyspark_kafkalog.record.header import Buffer, parse_header
from pyspark_kafkalog.storage.below_root import is_there, scan, status_of
from pyspark_kafkalog.storage.filesystem import (
    LOCAL,
    UNFLUSHED_MARKER,
    FileSystem,
    is_out_of_space,
    open_to_read,
    pread,
    temporary_path,
)
from pyspark_kafkalog.storage.names import LOG_SUFFIX, offset_file_name, segment_file
from pyspark_kafkalog.values import dataclass

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


#: A file of this size (bytes) takes no further commits.
COMMIT_FILE_BYTES: Final = 256 << 10


class End(NamedTuple):
    """The end of the log: a new commit goes to this `place`, or, if `is_full`, begins a file."""

    place: CommitPlace
    is_full: bool


@dataclass(frozen=True, slots=True)
class CommitFile:
    """A file of commits: the offsets that they begin with, where the last one ends, its time (ms), and their bytes."""

    base_offsets: tuple[int, ...]
    next_offset: int
    timestamp_ms: int
    size_bytes: int


class LocalCommitLog(CommitLog):
    """Reads and publishes the commits in `directory`."""

    def __init__(self, directory: Path, *, fs: FileSystem = LOCAL) -> None:
        self.directory = directory
        self._directory_name = str(directory)
        self._fs = fs
        self._head = OffsetHint(directory / HEAD_FILE, fs)
        self._reserve = CommitReserve(directory, fs)
        self._path_of = lru_cache(maxsize=4)(partial(segment_file, directory, suffix=LOG_SUFFIX))
        #: The last file, and its state when a reader last looked whether it has further commits.
        self._seen: tuple[str, FileState] | None = None
        #: What the last search has found: an offset and its place.
        self._found: tuple[int, CommitPlace | None] = -1, None

    def path(self, base_offset: int) -> Path:
        """The file that begins with `base_offset`. The last few are kept: a commit asks for each several times."""
        return self._path_of(base_offset)

    def name_of(self, base_offset: int) -> str:
        return f"{self._directory_name}{os.sep}{offset_file_name(base_offset, LOG_SUFFIX)}"

    def read(self, base_offset: int) -> Commit | None:
        """As CommitLog.read: one open, or a search for the file that the commit is in."""
        begun = next(self.read_file(base_offset), None)
        place = self._search(base_offset) if begun is None else None
        return begun if place is None else next(self._commits_at(place, base_offset), None)

    def read_file(self, base_offset: int) -> Iterator[Commit]:
        return self._commits_at(CommitPlace(base_offset, 0), base_offset)

    def read_from(self, offset: int, *, many: bool = False) -> Iterator[Commit]:
        return self._read_on(None, offset, is_in_file=True)

    def read_after(self, loaded: LoadedImage, *, many: bool = False) -> Iterator[Commit]:
        is_in_file = loaded.image.format.shares_commit_files
        return self._read_on(loaded.tail.end if is_in_file else None, loaded.image.next_offset, is_in_file=is_in_file)

    def end_of(self, loaded: LoadedImage) -> CommitPlace | None:
        """Where the next commit after `loaded` would go in the file of the last one.

        None if that does not exist, or takes no commits.
        """
        if not loaded.image.format.shares_commit_files:
            return None
        return loaded.tail.end or self._search(loaded.image.next_offset)

    def _read_on(self, place: CommitPlace | None, offset: int, *, is_in_file: bool) -> Iterator[Commit]:
        """The commits from the one at `offset` on: at `place`, if that is known, or in the file that it begins.

        `is_in_file`: it may be neither, but in a file that is to be searched for.
        """
        if place is not None and self._has_grown(place):
            for commit in self._commits_at(place, offset):
                yield commit
                offset = commit.next_offset
        first_offset = offset
        is_last = False
        while not is_last:
            is_last = True
            for commit in self._commits_at(CommitPlace(offset, 0), offset):
                yield commit
                offset = commit.next_offset
                is_last = False
        if is_in_file and place is None and offset == first_offset:
            place = self._search(offset)
            if place is not None:
                yield from self._read_on(place, offset, is_in_file=False)

    def _has_grown(self, place: CommitPlace) -> bool:
        """Whether the file has bytes from `place` on, or is too short; False if there is no such file."""
        file = self.name_of(place.file_offset)
        try:
            found = status_of(file)
        except FileNotFoundError:
            return False
        self._seen = file, state_of_status(found)
        return found.st_size != place.position

    def state_of(self, file: str) -> FileState | None:
        """As `file_state` of a commit's or snapshot's file, as of the last look whether it has further commits."""
        seen, self._seen = self._seen, None
        return seen[1] if seen is not None and seen[0] == file else file_state(file)

    def _commits_at(self, place: CommitPlace, offset: int) -> Iterator[Commit]:
        """The commits in a file from `place` on, where the one at `offset` would be; none if there is no such file."""
        file = self.name_of(place.file_offset)
        data = _read_bounded(file, place.position)
        if data is not None:
            yield from self.commits_in(data, offset, place, file)

    def commits_in(self, data: bytes, offset: int, place: CommitPlace, file: str) -> Iterator[Commit]:
        """The commits from the one at `offset` on in `data`, which is `file` from `place` on.

        Raises CorruptRecordError, UnsupportedFormatError.
        """
        at = 0
        try:
            while (header := whole_commit(data, at, offset, file, position := place.position + at)) is not None:
                batch = data[at : at + header.size_bytes]
                found = CommitPlace(place.file_offset, position)
                commit = decode_commit(batch, offset, file, position=position, place=found)
                yield commit
                at += header.size_bytes
                offset = commit.next_offset
        except (CorruptRecordError, UnsupportedFormatError):
            if not place.position + at or has_valid_crc(data, at) or not self._may_be_unwritten(offset):
                raise

    def _may_be_unwritten(self, offset: int) -> bool:
        """Whether a power failure may have left anything in the place of the commit at `offset`.

        It may if no writer has noted that this commit is on disk, although all commits wait for the disk.
        """
        head = self._head.read()
        return head is not None and head <= offset and not (self.directory.parent / UNFLUSHED_MARKER).exists()

    def _search(self, offset: int) -> CommitPlace | None:
        """The place, in the file with the commit before it, of the commit at `offset`, whether it exists or not.

        None if there is no such file. Lists the directory, unless it was asked for the same place before.
        """
        known, place = self._found
        if known != offset:
            place = self._search_listed(offset)
            self._found = offset, place
        return place

    def _search_listed(self, offset: int) -> CommitPlace | None:
        file_offset = max((each for each in self.listed_offsets() if each < offset), default=None)
        if file_offset is None:
            return None
        file = self.name_of(file_offset)
        for at, header in headers_of_commits(_read_bounded(file, 0) or b"", file_offset, file):
            if header.next_offset == offset:
                return CommitPlace(file_offset, at + header.size_bytes)
        return None

    def read_range(self, base_offset: int) -> CommitFile | None:
        """The commits in the file that begins with `base_offset`, by their headers only; None if there is no such file.

        Raises CorruptRecordError for an invalid header.
        """
        file = self.name_of(base_offset)
        data = _read_bounded(file, 0)
        if data is None:
            return None
        headers = [header for _, header in headers_of_commits(data, base_offset, file)]
        if not headers:
            parse_header(data, 0, file=file, file_position=0)
            found = f"{len(data)} bytes of a longer batch"
            raise CorruptRecordError(file=file, position=0, expected="a whole commit", found=found)
        last = headers[-1]
        bases = tuple(each.base_offset for each in headers)
        return CommitFile(bases, last.next_offset, last.max_timestamp_ms, sum(each.size_bytes for each in headers))

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
        end: End | None = None,
        frees_space: bool = False,
        before_visible: Callable[[], None] | None = None,
    ) -> Commit:
        """Publish `records` as the commit at `base_offset` with the time `timestamp_ms`, durably.

        `end`: the end of the log; None if there is no file that may take commits. With `frees_space`, the commit uses
        the reserve if the disk is full. `before_visible` is called before the commit can be read; its errors are
        raised, and no commit is made.

        Raises:
        - CommitConflictError if another commit has the offset
        - OSError if writing failed before the commit could be read, or the directory has no room for a name: no commit
          was made
        - CommitStateUnknownError if a later call failed: the commit may have been made, which reading the log decides
          (see MetadataStore.make)
        - InvalidRecordError for records that cannot be encoded
        """
        data = encode_commit(base_offset, records, timestamp_ms)
        place = CommitPlace(base_offset, 0)
        before = before_visible or (lambda: None)
        try:
            if end is not None and not end.is_full and self.has_room(end.place, len(data)):
                before()
                with self.hold_end(end.place, base_offset) as held:
                    held.write(data)
                place = end.place
            else:
                self._create(data, base_offset, end, before)
        except OSError as error:
            if not frees_space or not is_out_of_space(error):
                raise
            self._create_of_reserve(data, base_offset, end, before, error)
        commit = Commit(base_offset, base_offset + len(records), timestamp_ms, tuple(records), len(data), place=place)
        self.note_head(commit.next_offset)
        return commit

    def has_room(self, place: CommitPlace, size_bytes: int) -> bool:
        """Whether a file takes a commit of so many bytes at this place."""
        return place.position + size_bytes <= COMMIT_FILE_BYTES

    def hold_end(self, place: CommitPlace, base_offset: int) -> HeldEnd:
        """The last file, in which the commit at `base_offset` is to be made at `place`, held for a block."""
        return HeldEnd(self, self._fs, place, base_offset)

    def _create(self, data: bytes, base_offset: int, end: End | None, before_visible: Callable[[], None]) -> None:
        """Begin a file with the commit."""
        path = self.path(base_offset)
        temporary = self._write_temporary(path, data)
        try:
            before_visible()
            with self._at_end(end, base_offset):
                self._put(temporary, path)
        except (KafkalogError, OSError):
            self._discard(temporary)
            raise

    def _create_of_reserve(
        self, data: bytes, base_offset: int, end: End | None, before_visible: Callable[[], None], failure: OSError
    ) -> None:
        """Begin a file with the commit, of what is reserved. Raises `failure` if nothing is."""
        path = self.path(base_offset)
        with self._reserve.filled(data) as reserved:
            if reserved is None:
                raise failure
            before_visible()
            with self._at_end(end, base_offset):
                try:
                    self._put(reserved, path)
                except OSError:  # no room for the name
                    if not self._reserve.give_up_one():
                        raise
                    self._put(reserved, path)

    @contextlib.contextmanager
    def _at_end(self, end: End | None, base_offset: int) -> Iterator[None]:
        """Hold the lock under which a file may be begun: that of the last one, if there is one."""
        if end is None:
            yield
            return
        with self.hold_end(end.place, base_offset) as held:
            held.sync()  # the writer of its last commit may have been killed before its own fsync
            yield

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
            raise _unknown(path, error) from error

    def _link(self, temporary: Path, path: Path) -> None:
        try:
            self._fs.link(temporary, path)
        except FileExistsError:
            # NFS repeats a call whose reply was lost; the repeated call then finds the link of the first one.
            if temporary.stat().st_nlink == 1:
                raise

    def restore_reserve(self) -> None:
        """Create the missing files of the reserve, as far as the disk has room. Raises OSError."""
        self._reserve.restore()

    def note_head(self, next_offset: int) -> None:
        """Note that the log has reached `next_offset`, if that is on disk."""
        if not self._fs.waits_for_disk:
            return  # after a power failure the log may be shorter
        try:
            self._head.write(next_offset)
        except OSError as error:
            _LOG.warning(
                "%s could not be written, so the loss of a commit file might not be detected: %s", HEAD_FILE, error
            )

    def sync(self, file: str) -> None:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            path = Path(file)
            fd = self._fs.open(path, os.O_RDWR)
            try:
                self._fs.fsync(fd)
            finally:
                self._fs.close(fd, path)
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


class HeldEnd:
    """The last file, open and locked for a block. It ends at `place`, and no other commit has `base_offset`.

    To enter it raises CommitConflictError if another one has, OSError.
    """

    __slots__ = ("_base_offset", "_fd", "_fs", "_is_locked", "_log", "_path", "place")

    def __init__(self, log: LocalCommitLog, fs: FileSystem, place: CommitPlace, base_offset: int) -> None:
        self.place = place
        self._log = log
        self._fs = fs
        self._base_offset = base_offset
        self._path = log.path(place.file_offset)
        self._is_locked = False

    def __enter__(self) -> HeldEnd:
        try:
            self._fd = self._fs.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            message = f"{self._path} was removed, so there are commits after offset {self._base_offset}"
            raise CommitConflictError(message) from None
        try:
            acquire_flock(self._fd, self._path)
            self._is_locked = True
            self._check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # what was written was flushed before
                self._release()

    def write(self, data: Buffer) -> None:
        """Write the commit, and end the block. Raises OSError if it was not made, CommitStateUnknownError."""
        try:
            self._fs.pwrite_all(self._fd, data, self.place.position)
        except OSError:
            # What was written is less than the commit, so no reader takes it for one. The next writer cuts it off.
            with contextlib.suppress(OSError):
                self._fs.truncate(self._fd, self.place.position)
            raise
        try:
            self._unlock()
            self._fs.fsync(self._fd)
            self._release()
        except OSError as error:
            raise _unknown(self._path, error) from error

    def sync(self) -> None:
        """Flush the commits of the file."""
        self._fs.fsync(self._fd)

    def _check(self) -> None:
        position = self.place.position
        found = os.fstat(self._fd)
        if found.st_size != position:
            _check_size(str(self._path), found.st_size, position)
            data = pread(self._fd, found.st_size - position, position)
            if next(self._log.commits_in(data, self._base_offset, self.place, str(self._path)), None) is not None:
                raise _taken(self._base_offset)
            self._fs.truncate(self._fd, position)  # what a kill or a power failure has left of a commit
        if not found.st_nlink or is_there(self._log.name_of(self._base_offset)):
            raise _taken(self._base_offset)

    def _unlock(self) -> None:
        if self._is_locked:
            self._is_locked = False
            # Closing is not enough: a child forked meanwhile also holds the descriptor.
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _release(self) -> None:
        try:
            self._unlock()
        finally:
            fd, self._fd = self._fd, -1
            self._fs.close(fd, self._path)


def _taken(base_offset: int) -> CommitConflictError:
    return CommitConflictError(f"another writer published a commit at offset {base_offset} first")


def _unknown(path: Path, error: OSError) -> CommitStateUnknownError:
    return CommitStateUnknownError(f"publishing {path} failed, so it is unknown whether the commit exists: {error}")


def _check_size(file: str, size_bytes: int, position: int) -> None:
    """Raise CorruptRecordError if the file is shorter than `position`, or larger than commits after it can make it."""
    most = position + COMMIT_FILE_BYTES + MAX_COMMIT_BYTES
    if not position <= size_bytes <= most:
        expected = f"{position} bytes at least" if size_bytes < position else f"at most {most} bytes"
        raise CorruptRecordError(file=file, position=0, expected=expected, found=f"{size_bytes} bytes")


def _read_bounded(file: str, position: int) -> bytes | None:
    """The file from byte `position` on; None if it does not exist. Raises CorruptRecordError as `_check_size`."""
    try:
        opened = open_to_read(file)
    except FileNotFoundError:
        return None
    with opened:
        size_bytes = os.fstat(opened.fileno()).st_size
        _check_size(file, size_bytes, position)
        opened.seek(position)
        return opened.read(size_bytes - position)  # bounded: _check_size
