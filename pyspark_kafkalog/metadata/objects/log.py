"""The commit log of an object root: one commit = one object, which is created if absent. For its content see layout.py.

The create of the next name decides, by the rule of object_store/create.py, so there is no lock and no listing. A reader
derives the next name from the last commit: a check for new commits is one GET that finds nothing. A process further
behind lists the later commits and reads, side by side, the few objects that hold them all; a listing that leaves some
out only costs more requests.

A crash of a writer leaves its commit whole, or none, or a request on its way that still makes it; a later commit then
finds the name taken, or takes it.
"""

from __future__ import annotations

import contextlib
import functools
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Final

from pyspark_kafkalog.errors import CommitConflictError, CommitStateUnknownError, CorruptRecordError
from pyspark_kafkalog.metadata.commit_log import Commit, CommitLog, CommitsRemovedError, LoadedImage, encode_commit
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.objects.boundary import Boundary, Moment
from pyspark_kafkalog.metadata.objects.layout import (
    MAX_OBJECT_BYTES,
    CommitObject,
    carried_by_next,
    commit_key,
    name_of,
    parse_commit_key,
    parse_snapshot_key,
)
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.object_store.create import Taken, create_once
from pyspark_kafkalog.object_store.repeat import Waiting
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError, ObjectStore, ObjectStoreError
from pyspark_kafkalog.storage.names import LOG_SUFFIX
from pyspark_kafkalog.threads import side_by_side

#: Commits that a reader reads one after the other before it lists the later ones.
_ONE_BY_ONE: Final = 2
_LISTED_AT_ONCE: Final = 10_000
_READ_AT_ONCE: Final = 8


def _all_of(reading: Generator[Commit, None, tuple[int, Moment]]) -> tuple[list[Commit], int, Moment]:
    """All commits, and what the generator returns."""
    commits = []
    while True:
        try:
            commits.append(next(reading))
        except StopIteration as stop:
            end, at = stop.value
            return commits, end, at


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

    def __init__(self, store: ObjectStore, boundary: Boundary, *, waiting: Waiting | None = None) -> None:
        self._store = store
        self._boundary = boundary
        self._waiting = waiting
        self._last_read: CommitObject | None = None
        self._end_offset = -1  # where the end of the log was found last, by reading or by a commit

    def name_of(self, base_offset: int) -> str:
        return name_of(self._store, commit_key(base_offset))

    def read(self, base_offset: int) -> Commit | None:
        """As CommitLog.read: one GET, or none if the object that was read last carries the commit."""
        last = self._last_read
        if last is not None and base_offset in last:
            return last.commit(base_offset)
        found = self._read_object(base_offset)
        return None if found is None else found.commit(base_offset)

    def _read_object(self, base_offset: int) -> CommitObject | None:
        found = read_commit_object(self._store, base_offset)
        if found is not None:
            self._last_read = found
        return found

    def read_from(self, offset: int, *, many: bool = False) -> Iterator[Commit]:
        if self._boundary.is_due(offset):  # what is read may have been made by others at names that were removed
            commits, end, at = _all_of(self._read_to_end(offset, many=many))
            self._check_kept(offset)
            self._was_at_end(end, at)
            yield from commits
            return
        end, at = yield from self._read_to_end(offset, many=many)
        if self._boundary.is_due(offset):
            self._check_kept(offset)
        self._was_at_end(end, at)

    def _read_to_end(self, offset: int, *, many: bool) -> Generator[Commit, None, tuple[int, Moment]]:
        """The commits from `offset` on; returns where the log ended, and when."""
        for commit in self._read_listed(offset) if many else ():
            yield commit
            offset = commit.next_offset
        while True:  # also after a listing: it may leave out the last ones
            now = self._boundary.now()
            commits = list(self._read_next(offset, _ONE_BY_ONE))
            yield from commits
            offset = commits[-1].next_offset if commits else offset
            if len(commits) < _ONE_BY_ONE:
                break
            for commit in self._read_listed(offset):
                yield commit
                offset = commit.next_offset
        return offset, now

    def _was_at_end(self, offset: int, at: Moment) -> None:
        self._end_offset = offset
        self._boundary.was_at_end(offset, at)

    def _read_next(self, offset: int, count: int) -> Iterator[Commit]:
        for _ in range(count):
            commit = self.read(offset)
            if commit is None:
                return
            yield commit
            offset = commit.next_offset

    def _check_kept(self, offset: int) -> None:
        """Raise CommitsRemovedError unless the commits read from `offset` to the end still counted at the end."""
        self._boundary.read(with_listing=self._boundary.was_read)
        self._raise_if_removed(offset)

    def _raise_if_removed(self, offset: int) -> None:
        if offset < self._boundary.offset:
            raise CommitsRemovedError(
                f"{self.name_of(offset)} and later commits were removed: the log begins at {self._boundary.offset}"
            )

    def sees_end(self, offset: int) -> bool:
        """Whether the log was seen to end at `offset` a short time ago."""
        is_recent = self._boundary.is_recent(self._boundary.seen_at_end(offset))
        return offset == self._end_offset and is_recent and not self._boundary.is_due(offset)

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
        listed = ((parse_commit_key(each.key), each) for each in self._store.list_objects(METADATA_DIR, after=after))
        commits = ((found, each.size_bytes) for found, each in listed if found is not None and found >= offset)
        return sorted(islice(commits, _LISTED_AT_ONCE))

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
            self._boundary.read(with_listing=True)
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
            if offset is not None and offset >= self._boundary.offset:
                yield offset

    def lost_commit(self, offset: int, *, reached: int) -> CorruptRecordError:
        return CorruptRecordError(
            file=self.name_of(offset),
            position=0,
            expected=f"a commit at offset {offset}, since the log has reached {reached}",
            found="no such object",
            advice="restore the object, from an earlier version of it if the bucket keeps versions",
        )

    def sync(self) -> None:
        """Does nothing: an object that can be read is durable."""

    def publish(self, loaded: LoadedImage, records: Sequence[MetadataRecord], *, timestamp_ms: int) -> Commit:
        """See MetadataPlace.publish."""
        base_offset = loaded.image.next_offset
        self._end_offset = -1
        seen = self._boundary.seen_at_end(base_offset)
        now = self._boundary.now()
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
        if isinstance(outcome, Taken):
            with contextlib.suppress(CorruptRecordError):  # reading it again reports the damage
                self._last_read = CommitObject(outcome.body, base_offset, name)
            raise CommitConflictError(f"another writer published {name} first")
        if not self._boundary.is_recent(seen):
            self._check_counts(loaded, base_offset)
        next_offset = base_offset + len(records)
        self._was_at_end(next_offset, now)
        return Commit(base_offset, next_offset, timestamp_ms, tuple(records), len(batch), carried_by_next(body))

    def _follows(self, last_file: str) -> bool:
        """Whether the object that the image was last read from, a commit's or a snapshot's, was not removed."""
        key = last_file.removeprefix(f"{self._store.url}/")
        if parse_commit_key(key) is None and parse_snapshot_key(key) is None:
            return True  # unknown: another thread has gone on meanwhile, or this is the first commit
        try:
            self._store.get_ranges(key, [ByteRange(0, 1)])  # unlike a HEAD's, a refusal says what is missing
        except ObjectNotFoundError:
            return False
        return True

    def _check_counts(self, loaded: LoadedImage, base_offset: int) -> None:
        """Raise CommitConflictError if the commit's name was free because clean-up had removed the commit there."""
        try:
            self._boundary.read()
            if base_offset >= self._boundary.offset and self._follows(loaded.tail.last_file):
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
