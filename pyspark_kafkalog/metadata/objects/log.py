"""The commit log of an object root: one commit = one object, which is created if absent.

    <url>/
      meta.properties                                   as on a file system: the ids of the root               (create)
      __cluster_metadata-0/
        kafkalog-format                                 "version=2", "store=object" (root_format.py)           (create)
        <20 digits>.log                                 a commit, named by its base offset                     (create)
        <20 digits>-0000000000.checkpoint               a snapshot, by its end offset, in KRaft's format       (create)
        kafkalog-newest-snapshot                        hint: its file name and size in bytes                  (put)
        kafkalog-start                                  commits below this offset are removed (see below)          (put)
        kafkalog-waiting-<writer>-<ms>                  claim: a writer asks the others for a turn (turns.py)      (put)

The create of the next name decides, by the rule of object_store/retries.py: there is no lock and no listing. A reader
derives the next name from the last commit: a check for new commits is one GET that finds nothing. A process further
behind lists the later commits and reads, side by side, the few objects that hold them all; a listing that leaves some
out only costs more requests. A reader that is slower than the writers would never come to the end: it ends at what a
second listing shows. A writer does with less: it reads what one listing shows and creates the next name. Where listings
are slow, it reads one by one: it would be behind again after each. Processes of a host share commits (host.py).

Objects are created or replaced as a whole, so a crash leaves no partial ones. A crash of a writer leaves its commit
whole, or none, or a request on its way that still makes it; a later commit then finds the name taken, or takes it.

*Content.* A commit's object begins with its own record batch. The batches of the commits before it follow, the newest
first: the object is its batch and the whole object of the commit before, as long as that one has less than 64 KiB. So
few objects hold many commits, and a process that is far behind reads these few. Sizes rise within such a chain, so a
listing shows where each ends: at an object whose successor is not larger. A reader of a commit by its name needs the
first batch only.

*The start of the log.* `kafkalog-start` has the lines offset=<n> and directory.id=<id of the root>.
Commits below the offset have been removed or will be: clean-up first moves the offset, then deletes. So a name is free
for two reasons: its commit has not been made, or it has been removed. A reader that stopped for hours at a commit that
is gone would wait for it forever. A writer that stalled for hours could create the name again, and its commit would
count nowhere. Both therefore look at the start after a long time, and only then, and after the request in question:

- Commits stay for an hour at least. A reader that was at the end of the log ten minutes ago finds the next commit, if
  there is one. If that is longer ago, or if it looks below that end, as for the outcome of a commit of its own, it
  reads the start when it has come to the end again: what it has read counts only if it began there or above. It does
  so every ten minutes in any case, which also shows that another root is in place of the one that was opened.
- A writer whose commit is created more than 30 s after the log was seen to end at its name, or before it, reads the
  start then: its commit counts only if its name is not below. That another thread of the process has seen a later end
  says nothing.

The end of the log is a name that was not found, or the end of a listing. A listing may leave out commits of the last
minutes: these are kept for much longer than the times above. The clocks of different machines are compared nowhere.

Times are the longer of what the wall clock and the monotonic clock show, which stands still in a suspended machine.

The object is replaced by plain puts. If it is lost or damaged, the listing of the commits tells the oldest, and the
next clean-up writes it again. A put that lands late can bring back a lower offset. So readers also list the oldest
commit every ten minutes, and writers look whether what their commit follows is still there: it goes first.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final
from weakref import WeakKeyDictionary

from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, CorruptRecordError, LogDirError
from pyspark_kafkalog.metadata.backend import Look
from pyspark_kafkalog.metadata.commit_log import (
    MAX_COMMIT_BYTES,
    Commit,
    CommitLog,
    CommitsRemovedError,
    LoadedImage,
    decode_commit,
    encode_commit,
)
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, MetadataRecord
from pyspark_kafkalog.metadata.objects.host import HostShare, SharedCommit
from pyspark_kafkalog.metadata.objects.turns import WriterTurns
from pyspark_kafkalog.metadata.root_format import FORMAT_MARKER, METADATA_DIR
from pyspark_kafkalog.metadata.snapshots import SnapshotId
from pyspark_kafkalog.object_store.retries import Taken, Waiting, create_once
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError, ObjectStore, ObjectStoreError
from pyspark_kafkalog.record.header import parse_header
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import LOG_SUFFIX
from pyspark_kafkalog.threads import side_by_side
from pyspark_kafkalog.values import dataclass

#: An object of this size or more is not carried by the next commit. Equal to the least distance of snapshots, so that
#: a chain ends about where a snapshot is due.
CARRIED_BYTES_MAX: Final = 64 << 10

MAX_OBJECT_BYTES: Final = MAX_COMMIT_BYTES + CARRIED_BYTES_MAX

_SMALL_BYTES_MAX: Final = 1 << 10

MARKER_KEY: Final = f"{METADATA_DIR}/{FORMAT_MARKER}"
META_PROPERTIES_BYTES_MAX: Final = 1 << 20

_COMMIT: Final = re.compile(re.escape(METADATA_DIR) + r"/(\d{20})" + re.escape(LOG_SUFFIX))


def carried_by_next(data: bytes) -> bytes:
    """What the next commit's object holds of a commit's object with the content `data`."""
    return data if len(data) < CARRIED_BYTES_MAX else b""


def commit_key(base_offset: int) -> str:
    """The key of the commit at `base_offset`."""
    return f"{METADATA_DIR}/{base_offset:020d}{LOG_SUFFIX}"


def snapshot_key(snapshot: SnapshotId) -> str:
    """The key of a snapshot."""
    return f"{METADATA_DIR}/{snapshot.file_name}"


def metadata_key(name: str) -> str:
    """The key of the small object `name` beside the commits."""
    return f"{METADATA_DIR}/{name}"


def parse_commit_key(key: str) -> int | None:
    """The base offset of the commit with that key; None if it is not a commit's."""
    match = _COMMIT.fullmatch(key)
    return None if match is None else int(match[1])


def parse_snapshot_key(key: str) -> SnapshotId | None:
    """The snapshot with that key; None if it is not a snapshot's."""
    folder, _, name = key.rpartition("/")
    return SnapshotId.parse(name) if folder == METADATA_DIR else None


@dataclass(frozen=True, slots=True)
class _Slice:
    base_offset: int
    position: int
    size_bytes: int


class CommitObject:
    """The content of one commit's object: its own commit, and those that it carries.

    Raises CorruptRecordError, which names `file`, unless the batches' headers are those of consecutive commits up to
    the one at `base_offset`. The batches themselves are checked when they are decoded.
    """

    def __init__(self, data: bytes, base_offset: int, file: str) -> None:
        self.base_offset = base_offset
        self._data = data
        self._file = file
        self._slices = {each.base_offset: each for each in _slices(data, base_offset, file)}

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    @property
    def first_offset(self) -> int:
        """The base offset of the oldest commit in the object."""
        return min(self._slices)

    def offsets(self) -> list[int]:
        """The base offsets of the commits in the object, oldest first."""
        return sorted(self._slices)

    def __contains__(self, base_offset: int) -> bool:
        return base_offset in self._slices

    def commit(self, base_offset: int) -> Commit:
        """One of the commits. Raises CorruptRecordError or UnsupportedFormatError."""
        found = self._slices[base_offset]
        is_own = base_offset == self.base_offset
        return decode_commit(
            self._data[found.position : found.position + found.size_bytes],
            base_offset,
            self._file,
            position=found.position,
            carried_by_next=carried_by_next(self._data) if is_own else b"",
        )


def _slices(data: bytes, base_offset: int, file: str) -> Iterator[_Slice]:
    expected, position = base_offset, 0
    while position < len(data) or position == 0:
        header = parse_header(data, position, file=file, file_position=position)
        size_bytes = min(header.size_bytes, len(data) - position)  # decoding reports that it is too short
        if position == 0:
            found, is_next = header.base_offset, header.base_offset == expected
        else:
            found, is_next = header.next_offset, header.base_offset < header.next_offset == expected
        if not is_next or header.base_offset < 0:
            what = "base offset" if position == 0 else "a batch that ends at offset"
            raise CorruptRecordError(
                file=file, position=position, expected=f"{what} {expected} by the name", found=str(found)
            )
        yield _Slice(header.base_offset, position, size_bytes)
        expected = header.base_offset
        position += size_bytes


def name_of(store: ObjectStore, key: str) -> str:
    """What messages call the object: its URL."""
    return f"{store.url}/{key}"


def read_if_there(store: ObjectStore, key: str, *, max_bytes: int = _SMALL_BYTES_MAX) -> bytes | None:
    """The content of a small object; None if it does not exist. Raises ObjectStoreError."""
    try:
        return store.get(key, max_bytes=max_bytes)
    except ObjectNotFoundError:
        return None


START_KEY: Final = metadata_key("kafkalog-start")

#: How long a reader relies on the start of the log that it has read. Far below MIN_RETENTION_MS: the difference is what
#: clocks of different machines may differ by.
READER_TRUST_S: Final = 600.0
#: How long a writer relies on having seen the end of the log.
WRITER_TRUST_S: Final = 30.0
#: Commits and snapshots are kept at least so long, whatever metadata.max.retention.ms says.
MIN_RETENTION_MS: Final = 3_600_000

_START: Final = re.compile(rb"offset=([0-9]{1,19})\ndirectory\.id=([A-Za-z0-9_-]{22})\n")


def encode_start(offset: int, directory_id: str) -> bytes:
    """The content of `kafkalog-start`."""
    return f"offset={offset}\ndirectory.id={directory_id}\n".encode("ascii")


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by both clocks: seconds of the monotonic clock, ms of the wall clock."""

    monotonic_s: float
    wall_ms: int

    def seconds_until(self, later: Moment) -> float:
        """The longer of what the two clocks show."""
        return max(later.monotonic_s - self.monotonic_s, (later.wall_ms - self.wall_ms) / 1000)


#: The end of the log as this process has found it last, and when, by the client of the store.
_ENDS: Final[WeakKeyDictionary[ObjectStore, tuple[int, Moment]]] = WeakKeyDictionary()


def has_commits_from(
    store: ObjectStore,
    offset: int,
    *,
    clock: Callable[[], int] = time_ms,
    monotonic: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether a commit was made at `offset`, also if it has been removed since; True if that is unknown.

    One request, and one more if there is none and the process did not look in the last ten minutes. Raises
    ObjectStoreError.
    """
    now = Moment(monotonic(), clock())
    try:
        store.get_range(commit_key(offset), ByteRange(0, 1))  # unlike a HEAD's, a refusal says what is missing
    except ObjectNotFoundError:
        known = _ENDS.get(store)
        if known is None or known[0] > offset or known[1].seconds_until(now) > READER_TRUST_S:
            # In this order: the start of the log moves before commits are removed.
            match = _START.fullmatch(read_if_there(store, START_KEY) or b"")
            if match is None or int(match[1]) > offset:
                return True
        _ENDS[store] = offset, now
        return False
    return True


class CommitLogStart:
    """What one process knows of the start of the log of the root with the id `directory_id`; thread-safe.

    `offset`: commits below it may be removed.
    """

    def __init__(
        self, store: ObjectStore, directory_id: str, *, clock: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self.offset = 0
        self._stored: int | None = None  # what the object said last; None: lost or damaged
        self._store = store
        self._directory_id = directory_id
        self._clock = clock
        self._monotonic = monotonic
        self._read_at: Moment | None = None
        self._end: tuple[int, Moment] | None = None

    def now(self) -> Moment:
        """The present time."""
        return Moment(self._monotonic(), self._clock())

    def read(self, *, with_listing: bool = False) -> None:
        """Read the start of the log; list the oldest commit if the start is lost, or if it shall be found when stale.

        Raises LogDirError if another root, or none, is in the store; ObjectStoreError.
        """
        now = self.now()
        found = self._stored = self._get()
        listed = self._oldest_listed() if with_listing or found is None else 0
        self.offset = max(self.offset, listed, found or 0)
        self._read_at = now

    def _get(self) -> int | None:
        data = read_if_there(self._store, START_KEY)
        match = None if data is None else _START.fullmatch(data)
        if match is None:
            return None
        directory_id = match[2].decode("ascii")
        if directory_id != self._directory_id:
            raise LogDirError(
                f"{self._store.url}: expected the log directory with directory id {self._directory_id}, found the one "
                f"with {directory_id}: it was replaced; open it again (a streaming query: with a new checkpoint)"
            )
        return int(match[1])

    def _oldest_listed(self) -> int:
        for each in self._store.list_objects(METADATA_DIR):
            offset = parse_commit_key(each.key)
            if offset is not None:
                return offset
        raise LogDirError(
            f"{self._store.url} has no commits: creating the log directory was not finished, or it was removed or "
            "replaced: create it, or open it again"
        )

    def is_due(self, offset: int) -> bool:
        """Whether a process that has read from `offset` to the end of the log must read the start of the log now."""
        if self._read_at is None or self._end is None or offset < self._end[0]:
            return True
        now = self.now()
        return any(at.seconds_until(now) > READER_TRUST_S for at in (self._read_at, self._end[1]))

    def was_at_end(self, offset: int, at: Moment) -> None:
        """Note that the log ended at `offset`, or below, when a request was sent at that time.

        Commits of the minutes before may be missing.
        """
        self._end = offset, at

    def seen_at_end(self, offset: int) -> Moment | None:
        """When the log was last seen to end at `offset` or below; None if a later end, or none, was seen."""
        end = self._end
        return end[1] if end is not None and end[0] <= offset else None

    def is_recent(self, seen: Moment | None) -> bool:
        """Whether the end of the log was seen so recently that a commit there need not look at the start of the log."""
        return seen is not None and seen.seconds_until(self.now()) <= WRITER_TRUST_S

    @property
    def was_read(self) -> bool:
        """Whether this process has read the start of the log."""
        return self._read_at is not None

    @property
    def is_stored(self) -> bool:
        """Whether the object was there when it was last read."""
        return self._stored is not None

    def move(self, offset: int) -> None:
        """Move the start of the log to `offset`, unless it is there or beyond."""
        self.read()
        self.offset = max(offset, self.offset)
        if self._stored is None or self._stored < self.offset:
            self._store.put(START_KEY, encode_start(self.offset, self._directory_id))
            self._stored = self.offset


#: A reader that has listed them so often ends there: others commit faster than it asks.
_LISTINGS_MAX: Final = 2
_LISTED_AT_ONCE: Final = 10_000
_BACKWARDS_AT_ONCE: Final = 100
_READ_AT_ONCE: Final = 8


def read_commit_object(store: ObjectStore, base_offset: int) -> CommitObject | None:
    """The object of the commit at `base_offset`, with one request; None if it does not exist.

    Raises CorruptRecordError, ObjectStoreError.
    """
    key = commit_key(base_offset)
    try:
        data = store.get(key, max_bytes=MAX_OBJECT_BYTES)
    except ObjectNotFoundError:
        return None
    return CommitObject(data, base_offset, name_of(store, key))


class ObjectCommitLog(CommitLog):
    """Reads and publishes the commits in `store`; thread-safe."""

    def __init__(self, store: ObjectStore, start: CommitLogStart, *, waiting: Waiting) -> None:
        self._store = store
        self._start = start
        self._waiting = waiting
        self.turns = WriterTurns(waiting.monotonic, waiting.new_writer())
        self._last_read: CommitObject | None = None
        self._end_offset = -1  # where the end of the log was found last, by reading or by a commit
        self._host: HostShare | None = None
        self._shared: SharedCommit | None = None

    def name_of(self, base_offset: int) -> str:
        return name_of(self._store, commit_key(base_offset))

    def read(self, base_offset: int) -> Commit | None:
        """As CommitLog.read: one GET, or none if an object that is at hand carries the commit."""
        for known in self._read_known(base_offset):
            return known
        found = self._read_object(base_offset)
        return None if found is None else found.commit(base_offset)

    def join_host(self, host: HostShare) -> None:
        """Share with the other processes of this host."""
        self._host = host
        self.turns.join_host(host.writer)

    def _of_host(self, base_offset: int) -> CommitObject | None:
        """The object of the newest commit of this host, if that is not below `base_offset`."""
        shared = self._shared = None if self._host is None else self._host.newest()
        if shared is None or shared.base_offset < base_offset:
            return None
        return CommitObject(shared.body, shared.base_offset, self.name_of(shared.base_offset))

    def _read_object(self, base_offset: int) -> CommitObject | None:
        began_s = self._waiting.monotonic()
        found = read_commit_object(self._store, base_offset)
        self.turns.asked(self._waiting.monotonic() - began_s)
        if found is not None:
            self._last_read = found
        return found

    def read_from(self, offset: int, *, many: bool = False) -> Iterator[Commit]:
        ended: list[tuple[int, Moment]] = []
        if self._start.is_due(offset):  # what is read may have been made by others at names that were removed
            commits = list(self._read_to_end(offset, ended, many=many))
            self._check_kept(offset)
            self._was_at_end(*ended[0])
            yield from commits
            return
        yield from self._read_to_end(offset, ended, many=many)
        if self._start.is_due(offset):
            self._check_kept(offset)
        self._was_at_end(*ended[0])

    def _read_to_end(self, offset: int, ended: list[tuple[int, Moment]], *, many: bool) -> Iterator[Commit]:
        """The commits from `offset` on; `ended` gets where the log ended, and when."""
        is_opening, listings = many, 0
        while True:
            for commit in () if is_opening else self._read_known(offset):  # verification looks at the objects
                yield commit
                offset = commit.next_offset
            at = self._start.now()
            one_by_one = self.turns.one_by_one
            commits = self._read_listed(offset) if many else self._read_next(offset, one_by_one)
            read = 0
            for commit in commits:
                if not is_opening:
                    self._note(commit, at)
                yield commit
                offset = commit.next_offset
                read += 1
            listings += many
            if listings == _LISTINGS_MAX or (not many and read < one_by_one):
                ended.append((offset, at))
                return
            many = not many  # also after a listing: it may leave out the last ones

    def _note(self, commit: Commit, at: Moment) -> None:
        first = commit.records[0]
        if (shared := self._shared) is not None and shared.base_offset == commit.base_offset:
            self.turns.saw_of_host(shared)
        self.turns.saw(commit.base_offset, first.turn if isinstance(first, CommitRecord) else None, at.monotonic_s)

    def look(self, offset: int, look: Look) -> Iterator[Commit]:
        """The commits from the one at `offset` on that a look finds, perhaps not all. Raises CommitsRemovedError."""
        at = self._start.now()
        if look is not Look.KNOWN and self._start.is_due(offset):
            commits = list(self.read_from(offset))
        elif look is Look.KNOWN:
            commits = list(self._read_known(offset))
        elif look in (Look.FAR, Look.LISTED):
            slowly = self._read_to_end(offset, [], many=look is Look.LISTED)
            commits = list(slowly if self.turns.lists_slowly else self._read_listed(offset))
        else:
            commits = list(self._read_next(offset, 1))
        for each in commits:
            self._note(each, at)
            yield each
            offset = each.next_offset
        if look in (Look.LISTED, Look.FAR) or (look is Look.NEXT and not commits):
            self._was_at_end(offset, at)
        if commits:
            self._end_offset = offset
        self.turns.looked()

    def _read_known(self, offset: int) -> Iterator[Commit]:
        """The commits in the object that was read last, and in that of the host's last commit."""
        for last in (self._last_read, self._of_host(offset)):
            while last is not None and offset in last:
                commit = last.commit(offset)
                self._note(commit, self._start.now())
                yield commit
                offset = commit.next_offset

    def put_claim(self) -> None:
        """Ask other writers for a turn, if it is time for that; remove the claims of those that did not come."""
        claim = self.turns.claim_to_put()
        if claim is not None:
            with contextlib.suppress(ObjectStoreError):  # it only saves time
                self._store.put(metadata_key(claim), b"\n")
        self.delete_claims()

    def delete_claims(self, *, own: bool = False) -> None:
        """Remove claims: that of this writer, which has committed, or those of writers that did not come."""
        names = self.turns.claims_to_delete(own=own)
        if names:
            with contextlib.suppress(ObjectStoreError):  # others remove it
                self._store.delete([metadata_key(each) for each in names])

    def _was_at_end(self, offset: int, at: Moment) -> None:
        self._end_offset = offset
        self._start.was_at_end(offset, at)

    def _read_next(self, offset: int, count: int) -> Iterator[Commit]:
        for _ in range(count):
            at = self._start.now()
            commit = self.read(offset)
            if commit is None:
                return
            self._note(commit, at)
            yield commit
            offset = commit.next_offset

    def _check_kept(self, offset: int) -> None:
        """Raise CommitsRemovedError unless the commits read from `offset` to the end still counted at the end."""
        self._start.read(with_listing=self._start.was_read)
        self._raise_if_removed(offset)

    def _raise_if_removed(self, offset: int) -> None:
        if offset < self._start.offset:
            raise CommitsRemovedError(
                f"{self.name_of(offset)} and later commits were removed: the log begins at {self._start.offset}"
            )

    def sees_end(self, offset: int) -> bool:
        """Whether the log was seen to end at `offset` a short time ago."""
        is_recent = self._start.is_recent(self._start.seen_at_end(offset))
        return offset == self._end_offset and is_recent and not self._start.is_due(offset)

    def _read_listed(self, offset: int) -> Iterator[Commit]:
        """The commits from the one at `offset` on that a listing shows. Raises CommitsRemovedError."""
        while True:
            listed = self._list_from(offset)
            for commit in self._read_objects(offset, listed):
                yield commit
                offset = commit.next_offset
            if len(listed) < _LISTED_AT_ONCE:
                return

    def _list_from(self, offset: int) -> list[tuple[int, int]]:
        """Base offsets and sizes in bytes of the commits from `offset` on, in order; not more than a few thousand."""
        after = commit_key(offset).removesuffix(LOG_SUFFIX)
        at = self._start.now()
        others: list[str] = []

        def commits() -> Iterator[tuple[int, int]]:
            for each in self._store.list_objects(METADATA_DIR, after=after):
                found = parse_commit_key(each.key)
                if found is None:
                    others.append(each.key.rpartition("/")[2])
                elif found >= offset:
                    yield found, each.size_bytes

        found = sorted(islice(commits(), _LISTED_AT_ONCE))
        self.turns.saw_claims(others, at.monotonic_s, self._waiting.monotonic() - at.monotonic_s)
        return found

    def _read_objects(self, offset: int, listed: Sequence[tuple[int, int]]) -> Iterator[Commit]:
        """The commits from the one at `offset` to the last of `listed`. Raises CommitsRemovedError."""
        if not listed:
            return
        ends = [
            base_offset
            for (base_offset, size_bytes), (_, next_size_bytes) in zip(listed, (*listed[1:], (0, 0)), strict=True)
            if next_size_bytes <= size_bytes
        ]
        bases = [base_offset for base_offset, _ in listed]
        for start in range(0, len(ends), _READ_AT_ONCE):
            some = ends[start : start + _READ_AT_ONCE]
            for found in side_by_side([functools.partial(self._read_object, each) for each in some]):
                for each in self._back_to(offset, found, bases):
                    for base_offset in each.offsets():
                        if base_offset == offset:
                            commit = each.commit(offset)
                            yield commit
                            offset = commit.next_offset
        if offset <= bases[-1]:
            self._start.read(with_listing=True)
            self._raise_if_removed(offset)
            raise self.lost_commit(offset, reached=bases[-1])

    def _back_to(self, offset: int, found: CommitObject | None, bases: Sequence[int]) -> Iterator[CommitObject]:
        """`found`, and before it the objects that hold the commits from `offset` up to it, as far as they exist."""
        objects = []
        while found is not None:
            objects.append(found)
            at = bisect_left(bases, found.first_offset) - 1
            found = self._read_object(bases[at]) if offset < found.first_offset and at >= 0 else None
        return reversed(objects)

    def listed_offsets(self) -> Iterator[int]:
        for each in self._store.list_objects(METADATA_DIR):
            offset = parse_commit_key(each.key)
            if offset is not None and offset >= self._start.offset:
                yield offset

    def oldest_first(self, first_offset: int = 0) -> Iterator[Commit]:
        listed = self.listed_from(first_offset)
        for start in range(0, len(listed), _BACKWARDS_AT_ONCE):
            # Backwards, as an object holds earlier commits.
            some = [self.read(offset) for offset in reversed(listed[start : start + _BACKWARDS_AT_ONCE])]
            yield from (each for each in reversed(some) if each is not None and each.base_offset >= first_offset)

    def lost_commit(self, offset: int, *, reached: int) -> CorruptRecordError:
        return CorruptRecordError(
            file=self.name_of(offset),
            position=0,
            expected=f"a commit at offset {offset}, since the log has reached {reached}",
            found="no such object",
            advice="restore the object, from an earlier version of it if the bucket keeps versions",
        )

    def sync(self, file: str) -> None:
        """Does nothing: an object that can be read is durable."""

    def publish(self, loaded: LoadedImage, records: Sequence[MetadataRecord], *, timestamp_ms: int) -> Commit:
        """See MetadataBackend.publish."""
        base_offset = loaded.image.next_offset
        self._end_offset = -1
        seen = self._start.seen_at_end(base_offset)
        now = self._start.now()
        name = self.name_of(base_offset)
        batch = encode_commit(base_offset, records, timestamp_ms)
        body = batch + loaded.tail.carried
        outcome = create_once(
            self._store,
            commit_key(base_offset),
            body,
            is_own=lambda found: found == body,
            max_bytes=MAX_OBJECT_BYTES,
            waiting=self._waiting,
        )
        took_s = self._start.now().monotonic_s - now.monotonic_s
        if isinstance(outcome, Taken):
            with contextlib.suppress(CorruptRecordError):  # reading it again reports the damage
                self._last_read = CommitObject(outcome.body, base_offset, name)
            raise CommitConflictError(f"another writer published {name} first")
        if not self._start.is_recent(seen):
            self._check_counts(loaded, base_offset)
        next_offset = base_offset + len(records)
        self._was_at_end(next_offset, now)
        self.turns.committed(base_offset, took_s)
        if self._host is not None:
            self._host.put(self.turns.shared(base_offset, body))
        return Commit(base_offset, next_offset, timestamp_ms, tuple(records), len(batch), carried_by_next(body))

    def _follows(self, last_file: str) -> bool:
        """Whether the object that the image was last read from, a commit's or a snapshot's, was not removed."""
        key = last_file.removeprefix(f"{self._store.url}/")
        if parse_commit_key(key) is None and parse_snapshot_key(key) is None:
            return True  # unknown: another thread has gone on meanwhile, or this is the first commit
        try:
            self._store.get_range(key, ByteRange(0, 1))  # unlike a HEAD's, a refusal says what is missing
        except ObjectNotFoundError:
            return False
        return True

    def _check_counts(self, loaded: LoadedImage, base_offset: int) -> None:
        """Raise CommitConflictError if the commit's name was free because clean-up had removed the commit there."""
        try:
            self._start.read()
            if base_offset >= self._start.offset and self._follows(loaded.tail.last_file):
                return
        except ObjectStoreError as error:
            raise CommitStateUnknownError(
                f"{self.name_of(base_offset)} was created, but it is unknown whether it counts, since it took long and "
                f"the start of the log could not be read: {error}"
            ) from error
        with contextlib.suppress(ObjectStoreError):  # nothing reads it, and the next clean-up removes it
            self._store.delete([commit_key(base_offset)])
        raise CommitConflictError(
            f"{self.name_of(base_offset)} was made and removed by others while this writer was stopped"
        )
