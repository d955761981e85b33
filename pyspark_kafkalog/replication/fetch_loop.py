"""The threads of a follower that move records: one fetcher a source of the leader, and one committer for all.

    leader --fetch--> Fetcher --FollowerState--> FollowerCommitter --FollowerWriter--> root

A fetcher asks for the records of its source's partitions, waits at the leader if there are none, and hands in what it
gets; meanwhile the committer commits what was handed in before, everything that waits in one commit. Neither looks
into batches further than to their headers. The CRCs of large answers are checked by the fetcher, all others by the
writer.

An error of the leader or of the root's disk or store is reported and tried again later, with growing pauses. Only
three things end the follower: a request to stop, that the root no longer follows with its id, and a defect.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Final

from pyspark_kafkalog.errors import CommitStateUnknownError, FollowingEndedError, KafkalogError, LeaderUnavailableError
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.follower_state import COMMIT_BYTES, AwaitedCommit, FollowerState, WaitingChange
from pyspark_kafkalog.replication.leader import LeaderEndPoint
from pyspark_kafkalog.replication.partition_state import retry_delay_ms
from pyspark_kafkalog.root.commit.changes import FollowerResult
from pyspark_kafkalog.root.commit.committer import FollowerWriter
from pyspark_kafkalog.storage.filesystem import RANDOM_SUFFIX
from pyspark_kafkalog.units import MIB

_FETCH_BYTES_MAX: Final = COMMIT_BYTES // 2
_FETCH_BYTES_MIN: Final = MIB


class RateLimit:
    """A bound of bytes a second over all fetchers, which says how long to pause after bytes were taken.

    For several threads: a bucket of tokens that holds those of one second. `bytes_per_s` None: no bound.
    """

    def __init__(self, bytes_per_s: int | None, monotonic_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._tokens = float(bytes_per_s or 0)
        self._filled_s = monotonic_s()

    def take(self, size_bytes: int) -> float:
        """Note that so many bytes were taken; returns the seconds to pause before more are."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            now_s = self._monotonic_s()
            filled = self._tokens + (now_s - self._filled_s) * self._bytes_per_s
            self._tokens = min(filled, float(self._bytes_per_s)) - size_bytes
            self._filled_s = now_s
            return max(-self._tokens / self._bytes_per_s, 0.0)


class Fetcher(threading.Thread):
    """Fetches the partitions that the shared state has assigned to `source`, until the follower ends.

    A source without partitions keeps its fetcher, which waits: no two threads ever ask the same source.
    """

    def __init__(
        self,
        source: str,
        leader: LeaderEndPoint,
        shared: FollowerState,
        *,
        share_bytes: int,
        rate: RateLimit,
        on_event: Callable[[Event], None],
    ) -> None:
        super().__init__(name=f"kafkalog-fetch-{source}", daemon=True)
        self.source = source
        self._leader = leader
        self._shared = shared
        self._share_bytes = max(min(share_bytes, _FETCH_BYTES_MAX), _FETCH_BYTES_MIN)
        self._rate = rate
        self._on_event = on_event
        self._error = ""

    def run(self) -> None:
        try:
            while not self._shared.is_stopping:
                self._fetch()
        except BaseException as error:
            self._shared.fail(error)

    def _fetch(self) -> None:
        claim = self._shared.claim(self.source, self._share_bytes)
        if claim is None:
            return
        try:
            answers = self._leader.fetch(
                self.source,
                claim.positions,
                wait_ms=claim.wait_ms,
                max_bytes=self._share_bytes,
                partition_bytes=self._share_bytes,
            )
        except LeaderUnavailableError as error:
            delay_s = self._shared.unanswered(claim, str(error))
            if str(error) != self._error:
                self._error = str(error)
                self._on_event(Event(kind=EventKind.LEADER_UNAVAILABLE, detail=self._error))
            self._shared.pause(delay_s)
            return
        self._error = ""
        size_bytes = self._shared.answered(claim, answers)
        del answers, claim  # the records live until they are committed, no longer
        self._shared.pause(self._rate.take(size_bytes))


class FollowerCommitter(threading.Thread):
    """Commits what waits, until the follower ends and nothing waits any more.

    `gives_up_after` failures in a row of one commit end the follower; None: never.
    """

    def __init__(
        self,
        writer: FollowerWriter,
        shared: FollowerState,
        *,
        rng: random.Random,
        gives_up_after: int | None,
        on_event: Callable[[Event], None],
    ) -> None:
        super().__init__(name="kafkalog-follow-commit", daemon=True)
        self._writer = writer
        self._shared = shared
        self._rng = rng
        self._gives_up_after = gives_up_after
        self._on_event = on_event

    def run(self) -> None:
        try:
            while True:
                work = self._shared.next_commit()
                if isinstance(work, AwaitedCommit):
                    self._commit_request(work)
                elif work:
                    self._commit_waiting(work)
                elif self._shared.is_stopping and self._shared.is_drained:
                    return
                if self._shared.failure is not None:
                    return
        except BaseException as error:
            self._shared.fail(error)

    def _commit_request(self, request: AwaitedCommit) -> None:
        try:
            results = self._commit(lambda: self._writer.commit(request.changes, request.records))
        except (KafkalogError, OSError) as error:
            self._shared.refuse_request(request, error)
            if isinstance(error, FollowingEndedError):
                raise
        else:
            self._shared.answer_request(request, results)

    def _commit_waiting(self, waiting: Sequence[WaitingChange]) -> None:
        changes = [each.change for each in waiting]
        try:
            results = self._commit(lambda: self._writer.commit(changes))
        except CommitStateUnknownError as error:
            self._shared.uncommitted(waiting, str(error))
            self._on_event(Event(kind=EventKind.COMMIT_ERROR, detail=str(error)))
        else:
            self._shared.committed(waiting, results)

    def _commit(self, commit: Callable[[], list[FollowerResult]]) -> list[FollowerResult]:
        """The results of a commit, which is repeated as long as nothing of it was committed."""
        failures, reported = 0, ""
        while True:
            try:
                return commit()
            except (FollowingEndedError, CommitStateUnknownError):
                raise
            except (KafkalogError, OSError) as error:
                failures += 1
                problem = RANDOM_SUFFIX.sub("", str(error))  # each try writes a file of another name
                if problem != reported:
                    reported = problem
                    self._on_event(Event(kind=EventKind.COMMIT_ERROR, detail=str(error)))
                if self._shared.is_stopping or failures == self._gives_up_after:
                    raise
                self._shared.pause(retry_delay_ms(failures, self._rng) / 1000)
