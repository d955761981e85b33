"""What the threads of a follower share: its partitions, and the changes that wait to be committed.

    fetchers, one a source    claim the positions of their partitions, and hand in what the leader answered
    the committer             takes the changes that wait, one a partition, and says what became of them
    the controller            answers what a fetch alone cannot: comparisons, other topics, other leaders

Positions run ahead of the commits: the next fetch is under way while the last one is being committed. Each partition
has a generation. When a change is refused, the generation rises, changes of an earlier one are dropped, and the
controller reads the committed state again. Bytes are reserved before a fetch, so that what waits is bounded by
`buffer_bytes`, but for a single batch that is larger than a fetch.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.leader import FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.replication.partition_state import (
    Advance,
    Compare,
    DescribeAgain,
    PartitionState,
    Probe,
    Step,
    retry_delay_ms,
    take,
)
from pyspark_kafkalog.root.commit.changes import (
    FollowerAppend,
    FollowerChange,
    FollowerResult,
    PlanFollowerRecords,
    no_records,
)
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.storage.log.follower import check_batches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

#: A commit takes about so many bytes at most.
COMMIT_BYTES: Final = 32 * MIB
#: Smaller commits are made at intervals, so that many small fetches share one.
SMALL_COMMIT_BYTES: Final = MIB
#: Appends of one partition that wait are joined, which copies them, up to this size.
_JOINED_BYTES_MAX: Final = MIB
_LOOK_AGAIN_S: Final = 0.1
#: Larger appends are checked by their fetcher, beside the commit of what was fetched before.
_CHECKED_AHEAD_BYTES: Final = _JOINED_BYTES_MAX
#: How long a fetch waits at the leader for records; and at most while a follower that is to end needs to know only how
#: much there is.
_WAIT_MS: Final = 500
_SHORT_WAIT_MS: Final = 20


class Phase(Enum):
    """What a partition waits for: FETCH for its fetcher, STOPPED for nothing more, the others for the controller."""

    FETCH = auto()
    COMPARE = auto()
    DESCRIBE = auto()
    MOVED = auto()
    RELOAD = auto()
    STOPPED = auto()


@dataclass(slots=True, eq=False)
class Followed:
    """One followed partition. `state` runs ahead of the committed offsets while `pending` changes wait.

    `high_watermark` is the leader's, and `target_offset` the first one that was seen; -1 if unknown. `committed_epoch`
    is the leader epoch of the committed log, `leader_epoch` the one in which the leader is described to lead.
    """

    state: PartitionState
    committed_start_offset: int
    committed_end_offset: int
    committed_epoch: int
    leader_epoch: int = -1
    phase: Phase = Phase.FETCH
    generation: int = 0
    pending: int = 0
    failures: int = 0
    retry_at_s: float = 0.0
    turn: int = 0
    compare: Compare | None = None
    #: The search for the first batch that differs, and the batch that is compared for it.
    probe: Probe | None = None
    high_watermark: int = -1
    target_offset: int = -1
    copied_bytes: int = 0
    copied_records: int = 0
    last_error: str = ""
    #: The topic is not followed any more, which may change with the next description.
    is_without_topic: bool = False
    #: Created by this follower, and the leader has not answered for it yet: what it has deleted before is no loss.
    is_new: bool = False
    #: The leader had the same last batch, or has sent a next one.
    is_verified: bool = False
    #: Its source did not answer once, so that may be another one now, or one that was restored from a backup.
    is_doubtful: bool = False
    #: The newest leader epoch without records of which the leader was asked where it begins, and the log end then.
    asked: tuple[int, int] = (-1, -1)

    @property
    def name(self) -> TopicPartition:
        return self.state.topic_partition

    @property
    def lag(self) -> int:
        """Offsets between the committed log end and the leader's high watermark; -1 if that is unknown."""
        return -1 if self.high_watermark < 0 else max(self.high_watermark - self.committed_end_offset, 0)

    @property
    def has_all_fetched(self) -> bool:
        """Whether all is fetched that the leader had when it first answered, and nothing is left to compare."""
        state = self.state
        return 0 <= self.target_offset <= state.end_offset and state.unverified is None and state.probe is None

    @property
    def has_reached_target(self) -> bool:
        """Whether all is committed that the leader had when it first answered, and nothing is left to compare."""
        is_committed = self.committed_end_offset >= self.target_offset and not self.pending
        return self.phase is Phase.FETCH and is_committed and self.has_all_fetched


def _asks(state: PartitionState) -> tuple[object, ...]:
    """What the next fetch of the partition is for."""
    return state.end_offset, state.unverified, state.probe


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that one fetch is for, as they were, the bytes reserved for its answer, and how long the leader
    may wait for records."""

    partitions: Sequence[tuple[Followed, int, PartitionState]]
    positions: Sequence[FetchPosition]
    reserved_bytes: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class WaitingChange:
    """A change that waits to be committed, of one partition and generation."""

    followed: Followed
    generation: int
    change: FollowerChange
    records_count: int = 0

    @property
    def size_bytes(self) -> int:
        return self.change.size_bytes if isinstance(self.change, FollowerAppend) else 0

    @property
    def held_bytes(self) -> int:
        """The memory that it takes: batches that a task has put into the store take none."""
        return self.change.held_bytes if isinstance(self.change, FollowerAppend) else 0

    @property
    def is_staged(self) -> bool:
        return isinstance(self.change, FollowerAppend) and isinstance(self.change.data, StagedBatches)


def _checked_ahead(step: Step) -> Step:
    """The same step, whose batches need no check in the commit. Damaged ones are left to it, which refuses them."""
    if isinstance(step, Advance) and step.change is not None and len(step.change.raw) > _CHECKED_AHEAD_BYTES:
        with contextlib.suppress(KafkalogError):
            return replace(step, change=replace(step.change, data=check_batches(step.change.raw)))
    return step


@dataclass(frozen=True, slots=True)
class AwaitedCommit:
    """A commit that the controller waits for."""

    changes: Sequence[FollowerChange] = ()
    records: PlanFollowerRecords = no_records
    done: Future[list[FollowerResult]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all partitions, for progress and metrics. `lag` of those whose high watermark is known."""

    partitions: int = 0
    stopped: int = 0
    unknown: int = 0
    lag: int = 0
    copied_bytes: int = 0
    copied_records: int = 0


class FollowerState:
    """The shared state of one follower; for several threads.

    With `is_once` a partition is not fetched further than to its target, so the follower ends without waiting for a
    fetch without a use.
    """

    def __init__(
        self,
        *,
        buffer_bytes: int,
        commit_interval_s: float,
        monotonic_s: Callable[[], float],
        rng: random.Random,
        on_event: Callable[[Event], None],
        is_once: bool = False,
    ) -> None:
        self._is_once = is_once
        self._buffer_bytes = buffer_bytes
        self._commit_interval_s = commit_interval_s
        self._monotonic_s = monotonic_s
        self._rng = rng
        self._on_event = on_event
        self._changed = threading.Condition()
        self._partitions: dict[TopicPartition, Followed] = {}
        self._queue: deque[WaitingChange] = deque()
        self._requests: deque[AwaitedCommit] = deque()
        self._buffered_bytes = 0
        self._turn = 0
        self._last_commit_s = float("-inf")
        self._are_sources_stale = True
        self._by_source: dict[str, list[Followed]] = {}
        #: Set when the controller has something to answer.
        self._asked = threading.Event()
        #: Set once; without the lock, as signal handlers set it.
        self.is_stopping = False
        self.failure: BaseException | None = None
        self.commits = 0

    # For all

    def fail(self, error: BaseException) -> None:
        """End the follower with an error; the first one counts."""
        with self._changed:
            self.failure = self.failure or error
            self.is_stopping = True
            self._asked.set()
            self._changed.notify_all()

    def end(self) -> None:
        """Let all threads end now."""
        with self._changed:
            self.is_stopping = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Let the controller wait until it has something to answer, at most so long."""
        self._asked.wait(seconds)
        self._asked.clear()

    def pause(self, seconds: float) -> None:
        """Wait so long, or until the follower ends."""
        end_s = self._monotonic_s() + seconds
        while not self.is_stopping:
            left_s = end_s - self._monotonic_s()
            if left_s <= 0:
                return
            with self._changed:
                self._changed.wait(min(left_s, _LOOK_AGAIN_S))

    def partitions(self) -> list[Followed]:
        with self._changed:
            return list(self._partitions.values())

    def totals(self) -> Totals:
        """The sums of now."""
        found = self.partitions()
        lags = [each.lag for each in found if each.phase is not Phase.STOPPED]
        return Totals(
            partitions=len(found),
            stopped=sum(each.phase is Phase.STOPPED for each in found),
            unknown=lags.count(-1),
            lag=sum(each for each in lags if each > 0),
            copied_bytes=sum(each.copied_bytes for each in found),
            copied_records=sum(each.copied_records for each in found),
        )

    # For fetchers

    def claim(self, source: str, share_bytes: int) -> Claim | None:
        """What `source` is to be asked next; None if there is nothing now, after a short wait."""
        with self._changed:
            now_s = self._monotonic_s()
            ready = [
                each
                for each in self._by_source.get(source, ())
                if each.phase is Phase.FETCH
                and each.retry_at_s <= now_s
                and not (self._is_once and each.has_all_fetched)
            ]
            is_full = self._buffered_bytes > 0 and self._buffered_bytes + share_bytes > self._buffer_bytes
            if not ready or is_full or self.is_stopping:
                if not self.is_stopping:
                    self._changed.wait(_LOOK_AGAIN_S)
                return None
            # Those that had records go behind the others, so that a limit of bytes does not always favour the same.
            ready.sort(key=lambda each: each.turn)
            self._buffered_bytes += share_bytes
            is_short = self._is_once and any(each.target_offset < 0 for each in ready)
            return Claim(
                [(each, each.generation, each.state) for each in ready],
                [each.state.position(each.leader_epoch) for each in ready],
                share_bytes,
                _SHORT_WAIT_MS if is_short else _WAIT_MS,
            )

    def answered(self, claim: Claim, answers: Sequence[LeaderAnswer]) -> int:
        """Take in the answers to a claim; returns the bytes of records that are to be committed."""
        by_name = {each.topic_partition: each for each in answers}
        taken = [
            (followed, generation, state, by_name[followed.name])
            for followed, generation, state in claim.partitions
            if followed.name in by_name
        ]
        is_whole = not any(answer.size_bytes for answer in answers)
        steps = [_checked_ahead(take(state, answer, is_whole=is_whole)) for _, _, state, answer in taken]
        events: list[Event] = []
        size_bytes = held_bytes = 0
        with self._changed:
            for (followed, generation, state, answer), step in zip(taken, steps, strict=True):
                if followed.generation != generation or followed.phase is not Phase.FETCH:
                    continue
                if followed.is_doubtful and self._doubts(followed):
                    continue
                # A source that was too slow may answer after another one: the partition has gone on meanwhile.
                if _asks(followed.state) != _asks(state):
                    continue
                if isinstance(step, Advance):
                    waiting = self._advance(followed, answer, step)
                    size_bytes += 0 if waiting is None else waiting.size_bytes
                    held_bytes += 0 if waiting is None else waiting.held_bytes
                elif isinstance(step, Compare):
                    followed.compare = step
                    self._ask(followed, Phase.COMPARE)
                elif isinstance(step, DescribeAgain):
                    self._ask(followed, Phase.DESCRIBE if step.is_topic_changed else Phase.MOVED)
                else:
                    events += self._note_error(followed, step.error)
            self._buffered_bytes += held_bytes - claim.reserved_bytes
            self._changed.notify_all()
        for event in events:
            self._on_event(event)
        return size_bytes

    def _doubts(self, followed: Followed) -> bool:
        """Whether the last batch has to be compared with the leader's again, before the answer to anything counts.

        A leader that is restored while this follower runs may continue in the epoch that it had, with batches that end
        where those ended that it has lost.
        """
        followed.is_doubtful = False
        state = followed.state
        if state.is_empty or state.unverified is not None or state.probe is not None:
            return False
        self._ask(followed, Phase.RELOAD)
        return True

    def _ask(self, followed: Followed, phase: Phase) -> None:
        followed.phase = phase
        self._asked.set()

    def _advance(self, followed: Followed, answer: LeaderAnswer, step: Advance) -> WaitingChange | None:
        followed.state = step.state
        followed.failures, followed.last_error = 0, ""
        if answer.outcome is FetchOutcome.RECORDS:
            followed.is_new = False
            followed.is_verified |= answer.size_bytes > 0
        if answer.high_watermark >= 0:
            followed.high_watermark = answer.high_watermark
            if followed.target_offset < 0:
                followed.target_offset = answer.high_watermark
        if step.change is None:
            return None
        self._turn += 1
        followed.turn = self._turn
        followed.pending += 1
        waiting = WaitingChange(followed, followed.generation, step.change, step.records_count)
        self._queue.append(waiting)
        return waiting

    def unanswered(self, claim: Claim, error: str) -> float:
        """The source gave no answer; returns how long it should be left alone, in seconds."""
        with self._changed:
            self._buffered_bytes -= claim.reserved_bytes
            self._are_sources_stale = True
            self._asked.set()
            delay_s = 0.0
            for followed, generation, _ in claim.partitions:
                if followed.generation == generation:
                    followed.failures += 1
                    followed.last_error = error
                    followed.is_doubtful = True
                    delay_s = max(delay_s, retry_delay_ms(followed.failures, self._rng) / 1000)
            self._changed.notify_all()
            return delay_s

    def _note_error(self, followed: Followed, error: str) -> list[Event]:
        followed.failures += 1
        followed.retry_at_s = self._monotonic_s() + retry_delay_ms(followed.failures, self._rng) / 1000
        is_new, followed.last_error = followed.last_error != error, error
        name = followed.name
        event = Event(kind=EventKind.PARTITION_ERROR, detail=error, topic=name.topic, partition=name.partition)
        return [event] if is_new else []

    # For the committer

    def next_commit(self) -> AwaitedCommit | list[WaitingChange] | None:
        """What to commit next; None if there is nothing now, after a short wait."""
        with self._changed:
            self._drop_stale()
            if self._requests:
                return self._requests.popleft()
            if not self._queue:
                if not self.is_stopping:
                    self._changed.wait(_LOOK_AGAIN_S)
                return None
            rest_s = self._last_commit_s + self._commit_interval_s - self._monotonic_s()
            size_bytes = sum(each.size_bytes for each in self._queue)
            if rest_s > 0 and size_bytes < SMALL_COMMIT_BYTES and not self.is_stopping:
                self._changed.wait(rest_s)
                return None
            self._last_commit_s = self._monotonic_s()
            return self._take()

    def _drop_stale(self) -> None:
        kept = [each for each in self._queue if each.generation == each.followed.generation]
        if len(kept) == len(self._queue):
            return
        for each in self._queue:
            if each.generation != each.followed.generation:
                self._settle(each)
        self._queue = deque(kept)
        self._changed.notify_all()

    def _settle(self, waiting: WaitingChange) -> None:
        waiting.followed.pending -= 1
        if waiting.followed.phase is not Phase.FETCH:
            self._asked.set()  # the controller may have waited for this
        self._buffered_bytes -= waiting.held_bytes

    def _take(self) -> list[WaitingChange]:
        """The first changes of all partitions, in their order; what does not fit stays."""
        taken: dict[TopicPartition, list[WaitingChange]] = {}
        left: deque[WaitingChange] = deque()
        held_bytes = 0
        closed: set[TopicPartition] = set()
        for each in self._queue:
            parts = taken.get(each.followed.name, [])
            is_fitting = not held_bytes or held_bytes + each.held_bytes <= COMMIT_BYTES
            joined_bytes = sum(part.size_bytes for part in parts) + each.size_bytes
            is_alone = joined_bytes > _JOINED_BYTES_MAX or any(part.is_staged for part in (*parts, each))
            if each.followed.name in closed or not is_fitting or (parts and is_alone):
                closed.add(each.followed.name)
                left.append(each)
                continue
            taken[each.followed.name] = [*parts, each]
            held_bytes += each.held_bytes
        self._queue = left
        return [self._joined(parts) for parts in taken.values()]

    def _joined(self, parts: list[WaitingChange]) -> WaitingChange:
        if len(parts) == 1:
            return parts[0]
        changes = [each.change for each in parts if isinstance(each.change, FollowerAppend)]
        assert len(changes) == len(parts)  # other changes are made by requests
        parts[0].followed.pending -= len(parts) - 1
        log_starts = [each.log_start_offset for each in changes]
        change = replace(changes[0], data=b"".join(each.raw for each in changes), log_start_offset=max(log_starts))
        return WaitingChange(parts[0].followed, parts[0].generation, change, sum(each.records_count for each in parts))

    def committed(self, waiting: Sequence[WaitingChange], results: Sequence[FollowerResult]) -> None:
        """The results of a commit."""
        events: list[Event] = []
        with self._changed:
            self.commits += 1
            for each, result in zip(waiting, results, strict=True):
                self._settle(each)
                followed = each.followed
                if isinstance(result, LogState):
                    followed.copied_bytes += each.size_bytes
                    followed.copied_records += each.records_count
                    self._note_committed(followed, result)
                else:
                    events += self._refuse(followed, str(result))
            self._changed.notify_all()
        for event in events:
            self._on_event(event)

    def _note_committed(self, followed: Followed, state: LogState) -> None:
        followed.committed_start_offset = state.log_start_offset
        followed.committed_end_offset = state.log_end_offset
        followed.committed_epoch = state.leader_epoch
        if state.log_start_offset > followed.state.log_start_offset:
            followed.state = replace(followed.state, log_start_offset=state.log_start_offset)

    def _refuse(self, followed: Followed, error: str) -> list[Event]:
        """Begin again from the committed state."""
        if followed.phase is Phase.STOPPED:
            return []
        followed.generation += 1
        self._ask(followed, Phase.RELOAD)
        return self._note_error(followed, error)

    def uncommitted(self, waiting: Sequence[WaitingChange], error: str) -> None:
        """It is unknown whether a commit was made: begin again from the committed state."""
        with self._changed:
            for each in waiting:
                self._settle(each)
                self._refuse(each.followed, error)
            self._changed.notify_all()

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits to be committed."""
        with self._changed:
            return not self._queue and not self._requests

    # For the controller

    def request(self, request: AwaitedCommit) -> Sequence[FollowerResult] | None:
        """The results of a commit of its own; None if the follower ends before. Raises what prevents the commit."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            while not request.done.done():
                if self.is_stopping:
                    return None
                self._changed.wait(_LOOK_AGAIN_S)
        return request.done.result()

    def answer_request(self, request: AwaitedCommit, results: list[FollowerResult]) -> None:
        """A request's commit was made."""
        with self._changed:
            self.commits += 1
            request.done.set_result(results)
            self._changed.notify_all()

    def refuse_request(self, request: AwaitedCommit, error: BaseException) -> None:
        """A request's commit was not made, or its outcome is unknown."""
        with self._changed:
            request.done.set_exception(error)
            self._changed.notify_all()

    def add(self, followed: Followed) -> None:
        """Follow one more partition."""
        with self._changed:
            self._partitions[followed.name] = followed
            self._are_sources_stale = True
            self._changed.notify_all()

    def find(self, name: TopicPartition) -> Followed | None:
        with self._changed:
            return self._partitions.get(name)

    def remove(self, name: TopicPartition) -> None:
        """Do not follow the partition any more; what waits of it is dropped."""
        with self._changed:
            followed = self._partitions.pop(name, None)
            if followed is not None:  # its source does not fetch it in this phase
                followed.generation += 1
                followed.phase = Phase.STOPPED

    def restart(self, followed: Followed, loaded: Followed) -> None:
        """Go on from the committed state, as it was read again."""
        with self._changed:
            followed.state = loaded.state
            followed.committed_start_offset = loaded.committed_start_offset
            followed.committed_end_offset = loaded.committed_end_offset
            followed.committed_epoch = loaded.committed_epoch
            followed.generation += 1
            followed.compare, followed.probe = None, None
            followed.is_without_topic = False
            followed.phase = Phase.FETCH
            self._changed.notify_all()

    def resume(self, followed: Followed, *, delay_s: float = 0.0) -> None:
        """Fetch again from where it was."""
        with self._changed:
            if followed.phase is not Phase.STOPPED:
                followed.phase, followed.compare = Phase.FETCH, None
                followed.retry_at_s = self._monotonic_s() + delay_s
                self._changed.notify_all()

    def compare_batch(self, followed: Followed, probe: Probe) -> None:
        """Fetch that batch of the leader, and ask the controller again."""
        with self._changed:
            if followed.phase is not Phase.STOPPED:
                followed.state = replace(followed.state, probe=probe.batch)
                followed.phase, followed.compare, followed.probe = Phase.FETCH, None, probe
                self._changed.notify_all()

    def delay(self, followed: Followed, error: str) -> None:
        """The controller could not answer a question; it is asked again later."""
        with self._changed:
            events = self._note_error(followed, error)
        for event in events:
            self._on_event(event)

    def stop_partition(self, followed: Followed, reason: str) -> None:
        """Do not fetch the partition any more; what waits is committed."""
        with self._changed:
            followed.phase, followed.last_error = Phase.STOPPED, reason
            self._changed.notify_all()

    def questions(self, phase: Phase) -> list[Followed]:
        """The partitions in that phase of which nothing waits, and whose delay is over."""
        with self._changed:
            now_s = self._monotonic_s()
            return [
                each
                for each in self._partitions.values()
                if each.phase is phase and not each.pending and each.retry_at_s <= now_s
            ]

    def take_stale_sources(self) -> bool:
        """Whether the sources have to be asked for again, since the last call."""
        with self._changed:
            is_stale, self._are_sources_stale = self._are_sources_stale, False
            return is_stale

    def note_stale_sources(self) -> None:
        with self._changed:
            self._are_sources_stale = True

    def assign(self, sources: Mapping[str, Collection[TopicPartition]]) -> None:
        """Let each partition be fetched from its source; those in none wait."""
        by_name = {name: source for source, names in sources.items() for name in names}
        with self._changed:
            self._by_source = {}
            for name, followed in self._partitions.items():
                if name in by_name:
                    self._by_source.setdefault(by_name[name], []).append(followed)
            self._changed.notify_all()
