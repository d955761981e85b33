"""The oldest commit of an object root, and how long a process may rely on what it knows of it.

    __cluster_metadata-0/kafkalog-start        offset=<n>, directory.id=<id of the root>, a line each

Commits below the offset have been removed or will be: clean-up first moves the offset, then deletes. So a name is free
for two reasons: its commit has not been made, or it has been removed. A reader that stopped for hours at a commit that
is gone would wait for it forever. A writer that stalled for hours could create the name again, and its commit would
count nowhere. Both therefore look at the boundary after a long time, and only then, and after the request in question:

- Commits stay for an hour at least. A reader that was at the end of the log ten minutes ago finds the next commit, if
  there is one. If that is longer ago, or if it looks below that end, as for the outcome of a commit of its own, it
  reads the boundary when it has come to the end again: what it has read counts only if it began there or above. It does
  so every ten minutes in any case, which also shows that another root is in place of the one that was opened.
- A writer whose commit is created more than 30 s after the log was seen to end at its name reads the boundary then: its
  commit counts only if its name is not below. That another thread of the process has seen a later end says nothing.

Times are the longer of what the wall clock and the monotonic clock show, since the latter stands still in a suspended
machine. The clocks of different machines are compared nowhere.

The object is replaced by plain puts. If it is lost or damaged, the listing of the commits tells the oldest, and the
next clean-up writes it again. A put that lands late can bring back a lower offset. So readers also list the oldest
commit every ten minutes, and writers look whether what their commit follows is still there: it goes first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.objects.layout import commit_key, metadata_key, parse_commit_key, read_if_there
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.object_store.store import ByteRange, ObjectNotFoundError, ObjectStore
from pyspark_kafkalog.storage.filesystem import time_ms

START_KEY: Final = metadata_key("kafkalog-start")

#: How long a reader relies on the boundary that it has read. Far below MIN_RETENTION_MS: the difference is what clocks
#: of different machines may differ by.
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
        store.get_ranges(commit_key(offset), [ByteRange(0, 1)])  # unlike a HEAD's, a refusal says what is missing
    except ObjectNotFoundError:
        known = _ENDS.get(store)
        if known is None or known[0] > offset or known[1].seconds_until(now) > READER_TRUST_S:
            # In this order: the boundary moves before commits are removed.
            match = _START.fullmatch(read_if_there(store, START_KEY) or b"")
            if match is None or int(match[1]) > offset:
                return True
        _ENDS[store] = offset, now
        return False
    return True


class Boundary:
    """What one process knows of the boundary of the root with the id `directory_id`; thread-safe.

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
        """Read the boundary, and list the oldest commit if it is lost, or if it shall be found when it is stale.

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
        """Whether a process that has read from `offset` to the end of the log must read the boundary now."""
        if self._read_at is None or self._end is None or offset < self._end[0]:
            return True
        now = self.now()
        return any(at.seconds_until(now) > READER_TRUST_S for at in (self._read_at, self._end[1]))

    def was_at_end(self, offset: int, at: Moment) -> None:
        """Note that the log ended at `offset`, or below, when a request was sent at that time, for certain."""
        self._end = offset, at

    def seen_at_end(self, offset: int) -> Moment | None:
        """When the log was last seen to end at `offset`; None if it was not, or a later end was seen since."""
        end = self._end
        return end[1] if end is not None and end[0] == offset else None

    def is_recent(self, seen: Moment | None) -> bool:
        """Whether the end of the log was seen so recently that a commit there need not look at the boundary."""
        return seen is not None and seen.seconds_until(self.now()) <= WRITER_TRUST_S

    @property
    def was_read(self) -> bool:
        """Whether this process has read the boundary."""
        return self._read_at is not None

    @property
    def is_stored(self) -> bool:
        """Whether the object was there when it was last read."""
        return self._stored is not None

    def move(self, offset: int) -> None:
        """Move the boundary to `offset`, unless it is there or beyond."""
        self.read()
        self.offset = max(offset, self.offset)
        if self._stored is None or self._stored < self.offset:
            self._store.put(START_KEY, encode_start(self.offset, self._directory_id))
            self._stored = self.offset
