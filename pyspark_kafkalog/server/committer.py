"""Group commit: the units of all connections that wait are committed together, and waiting Fetch requests are woken.

While a commit is under way, further units queue up, and the next commit takes all of them: when the server is idle a
unit is committed at once, and under load the commits grow. Units that are submitted in one turn of the event loop are
handed over together: the thread would else begin with the first of them, and take turns with the loop to run Python.

A short commit is made by the loop's thread itself, if the committer's thread has nothing to do. The two threads would
else take turns to run Python at each call of the kernel, which costs a quarter of the CPU time of a small request. A
commit is short if it has few bytes, the last one took a few milliseconds at most, and there is nothing to wait for
(`LeaderWriter.commit_at_once`). What arrives meanwhile is read after it, and committed together. One that took longer
than expected, as on a busy disk, sends the next one to the thread again.

A client with five requests in flight sends the next ones as the first answers come, one after the other: the first of
them would be committed alone while the others arrive. So a short commit waits, for a millisecond at most, until as many
units are there as the commits before it had. If they do not come, the next one waits for half of those that were
missing: a client that sends one request at a time waits for nothing.

    event loop                                  the committer's thread
      submit(unit) -> future, submit_together(units, delivered)
      at the end of the loop's turn:
        short: LeaderWriter.commit_at_once
        else: units are handed over               takes all units that wait, up to limits of units and bytes
                                                  LeaderWriter.commit: lock, append, publish
      results are set, waiting Fetch              one call into the event loop for the whole commit
      requests are woken

With an interval (`serve --commit-interval`) units stay with the loop until the commit before has ended and began that
long ago: so many commits a second are made at most, each of all units that came meanwhile.

A crash loses units that were not committed yet: their clients have got no answer, and send them again.

A commit of this process names the partitions that it changed. `RootWatcher` finds the commits of other processes: while
a Fetch waits, it refreshes the root every few milliseconds on a file system, where that takes microseconds, and less
often on an object store, where it is a request. A wake-up is a hint: the request looks for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import zip_longest
from typing import Final, TypeAlias, TypeVar

from pyspark_kafkalog.errors import KafkalogError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.server.event_loop import Eager, PromptFuture, results_in_turns
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.threads import start
from pyspark_kafkalog.units import KIB, MIB, SECOND_MS
from pyspark_kafkalog.values import quick_dataclass

_LOG: Final = logging.getLogger(__name__)
#: A commit takes at most so many units, which bounds the time for which the root is locked.
_UNITS_MAX: Final = 4096
#: And so many bytes of their batches, of which it makes copies; a larger unit is committed alone.
_BYTES_MAX: Final = 64 * MIB
#: A short commit has at most so many units, and so many bytes of their batches.
_SHORT_UNITS_MAX: Final = 64
_SHORT_BYTES_MAX: Final = 256 * KIB
#: And the one before took less time, and ended not longer ago: others may have made many commits since.
_SHORT_MAX_MS: Final = 5
_RECENT_MS: Final = 1000
#: How long a short commit waits for as many units as the commits before it had.
_OTHERS_S: Final = 0.001

T = TypeVar("T")
Appended: TypeAlias = "asyncio.Future[tuple[AppendedRange, ...]]"
Notify: TypeAlias = Callable[[frozenset[TopicPartition]], None]


#: Gets the result or the error of each of the units that were submitted together.
Delivered: TypeAlias = Callable[[Sequence[UnitResult | BaseException]], None]
_Submitted: TypeAlias = tuple[Sequence[CommitUnit], Delivered]
_Commit: TypeAlias = Callable[[Sequence[CommitUnit]], "Sequence[UnitResult] | None"]


@quick_dataclass(frozen=True, slots=True)
class _Ended:
    """A commit that was made, or has failed: a result for each unit, and the partitions that it changed."""

    results: Sequence[UnitResult | BaseException]
    changed: frozenset[TopicPartition]
    end_ms: int
    is_short: bool


class Committer(ABC):
    """Hands units to the process's only LeaderWriter, which commits all that wait together."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    def submit(self, unit: CommitUnit) -> Appended:
        """As `commit`, without waiting: units that are submitted one after the other are committed in that order."""

    def submit_together(self, units: Sequence[CommitUnit], delivered: Delivered) -> None:
        """Submit units one after the other. `delivered`, which does not raise, is called when all are decided."""
        submitted = [self.submit(each) for each in units]
        Eager(results_in_turns(submitted), lambda ended: delivered(ended.result()))

    async def commit(self, unit: CommitUnit) -> tuple[AppendedRange, ...]:
        """The result of the unit when its commit is durable.

        Raises the KafkalogError that refused the unit, or failed the whole commit; ReadOnlyLogDirError for a root that
        cannot be written.
        """
        return await self.submit(unit)


class GroupCommitter(Committer):
    """Commits units with `writer`, in a thread of its own unless they are committed at once.

    After each commit, `notify` gets the partitions that it changed, and `committed` the number of its units. A commit
    begins at least `interval_ms` after the one before; only the parts of one that is above a limit follow each other.
    Commits that fail one after the other, as on a full disk, while clients repeat their requests, are a line a second
    in the log.
    """

    def __init__(
        self,
        writer: LeaderWriter,
        notify: Notify,
        committed: Callable[[int], None] = lambda units: None,
        *,
        monotonic_ms: Callable[[], int],
        interval_ms: int = 0,
    ) -> None:
        self._writer = writer
        self._notify = notify
        self._committed = committed
        self._monotonic_ms = monotonic_ms
        self._failures = BoundedLog(_LOG, monotonic_ms, lines_a_second=1)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[list[_Submitted] | None] = queue.SimpleQueue()
        self._submitted: list[_Submitted] = []  # in this turn of the loop, or in the interval
        self._under_way = 0  # submissions that the thread has, or whose results are not delivered yet
        self._interval_ms = interval_ms
        self._next_ms = 0  # no commit begins before, if there is an interval
        self._short_until_ms: int | None = None  # until then a commit is expected to be short
        self._expected = 1  # units of the next short commit
        self._waiting: asyncio.TimerHandle | None = None  # ends the wait for them
        self._is_next = False  # the units are handed over at the end of this turn of the loop
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="kafkalog-committer", daemon=True)

    async def start(self) -> None:
        start(self._thread)

    def submit(self, unit: CommitUnit) -> Appended:
        result: PromptFuture[tuple[AppendedRange, ...]] = PromptFuture(loop=self._loop)
        self.submit_together((unit,), lambda results: result.settle(results[0]))
        return result

    def submit_together(self, units: Sequence[CommitUnit], delivered: Delivered) -> None:
        """As Committer.submit_together. All of the units are in one commit."""
        if self._is_stopped:
            error = ReadOnlyLogDirError("this server does not write to the log directory any more")
            delivered([error] * len(units))
            return
        if not self._is_next:
            self._is_next = True
            self._loop.call_soon(self._hand_over)
        self._submitted.append((units, delivered))

    def _hand_over(self, *, is_late: bool = False) -> None:
        """Commit the units that wait at once, or give them to the thread.

        Unless it `is_late`, units are left to wait if more of them are expected.
        """
        self._is_next = False
        if is_late:
            self._waiting = None
        if not self._submitted or self._postpones():
            return
        units = [each for units, _ in self._submitted for each in units]
        is_short = not self._under_way and self._is_short(units)
        if is_short and len(units) < self._expected and not is_late and not self._is_stopped:
            self._waiting = self._waiting or self._loop.call_later(_OTHERS_S, partial(self._hand_over, is_late=True))
            return
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if is_short:
            came = len(units)
            self._expected = came + (self._expected - came) // 2 if is_late else max(came, self._expected)
        submitted, self._submitted = self._submitted, []
        self._under_way += len(submitted)
        if is_short and (ended := self._committed_units(units, self._writer.commit_at_once)):
            self._deliver(submitted, ended)
        else:
            self._queue.put(submitted)

    def _postpones(self) -> bool:
        """Whether the units have to wait for the interval; then this arranges for the next look at them."""
        if not self._interval_ms or self._is_stopped:
            return False
        rest_ms = self._next_ms - self._monotonic_ms()
        if not self._under_way and rest_ms > 0:
            self._loop.call_later(rest_ms / SECOND_MS, self._hand_over)
        return self._under_way > 0 or rest_ms > 0

    def _is_short(self, units: Sequence[CommitUnit]) -> bool:
        """Whether a commit of these units should be. Those of coordinators may have much to write."""
        if self._short_until_ms is None or self._monotonic_ms() > self._short_until_ms:
            return False
        if len(units) > _SHORT_UNITS_MAX:
            return False
        sizes = [each.size_bytes for each in units]
        return 0 not in sizes and sum(sizes) <= _SHORT_BYTES_MAX

    async def stop(self) -> None:
        """Commit what was submitted, then end the thread and close the writer. What comes later is refused."""
        self._is_stopped = True
        self._hand_over()
        self._queue.put(None)
        if self._thread.ident is not None:
            await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            while len(batch) < _UNITS_MAX and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    self._queue.put(None)
                    break
                batch += following
            for some in in_commits(batch, count=lambda each: len(each[0]), size_bytes=_size_bytes):
                self._commit(some)
        self._writer.close()

    def _commit(self, batch: Sequence[_Submitted]) -> None:
        units = [each for units, _ in batch for each in units]
        ended = self._committed_units(units, self._writer.commit)
        assert ended is not None
        self._loop.call_soon_threadsafe(self._deliver, batch, ended)

    def _committed_units(self, submitted: Sequence[CommitUnit], commit: _Commit) -> _Ended | None:
        """The results of a commit; None if it was not made at once."""
        began_ms = self._monotonic_ms()
        self._next_ms = began_ms + self._interval_ms
        changed: set[TopicPartition] = set()
        units = [each if isinstance(each.appends, tuple) else _recording(each, changed) for each in submitted]
        changed.update(
            [each.topic_partition for unit in units if isinstance(unit.appends, tuple) for each in unit.appends]
        )
        results: Sequence[UnitResult | BaseException] | None
        try:
            results = commit(units)
        except BaseException as error:
            log_failure(error, len(units), self._failures)
            results = [error] * len(units)
        if results is None:
            return None
        end_ms = self._monotonic_ms()
        return _Ended(results, frozenset(changed), end_ms, is_short=end_ms - began_ms <= _SHORT_MAX_MS)

    def _deliver(self, batch: Sequence[_Submitted], ended: _Ended) -> None:
        self._under_way -= len(batch)
        self._short_until_ms = ended.end_ms + _RECENT_MS if ended.is_short else None
        at = 0
        for units, delivered in batch:
            delivered(ended.results[at : at + len(units)])
            at += len(units)
        self._committed(at)
        if ended.changed:
            self._notify(ended.changed)
        if self._interval_ms and not self._under_way:
            self._loop.call_soon(self._hand_over)  # what came while it was made


def log_failure(error: BaseException, units: int, failures: BoundedLog) -> None:
    """Log that a commit of so many units has failed, a defect with its frames."""
    if isinstance(error, (KafkalogError, OSError)):
        failures.warning("a commit of %d units failed: %s", units, error)
    else:
        _LOG.error("a commit of %d units failed", units, exc_info=error)


def in_commits(
    submitted: Sequence[T], *, count: Callable[[T], int], size_bytes: Callable[[T], int]
) -> Iterator[Sequence[T]]:
    """What each commit takes, in its order; `count` and `size_bytes` give the units of an element, and their bytes."""
    begin, units, total_bytes = 0, 0, 0
    for at, each in enumerate(submitted):
        units += count(each)
        total_bytes += size_bytes(each)
        if at > begin and (units > _UNITS_MAX or total_bytes > _BYTES_MAX):
            yield submitted[begin:at]
            begin, units, total_bytes = at, count(each), size_bytes(each)
    yield submitted[begin:]


class ReadOnlyCommitter(Committer):
    """Refuses every unit: for a root that cannot be written, or a server that was started with `--read-only`."""

    def __init__(self, location: str) -> None:
        self._location = location

    def submit(self, unit: CommitUnit) -> Appended:
        result: Appended = asyncio.get_running_loop().create_future()
        result.set_exception(ReadOnlyLogDirError(f"{self._location} is served read-only"))
        return result

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def _size_bytes(submitted: _Submitted) -> int:
    return sum(each.size_bytes for each in submitted[0])


def _recording(unit: CommitUnit, changed: set[TopicPartition]) -> CommitUnit:
    """The unit, which adds the partitions that it appends to to `changed` when they are planned."""

    def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
        planned = unit.appends_on(image)
        changed.update(each.topic_partition for each in planned)
        return planned

    return CommitUnit(appends=appends, records=unit.records)


_LOCAL_INTERVAL_S: Final = 0.005
_STORE_INTERVAL_S: Final = 0.25
_FAILURE_INTERVAL_S: Final = 1.0
#: Looking takes at most a tenth of the event loop's time.
_REST_FACTOR: Final = 9
_NOTHING: Final[tuple[frozenset[str], frozenset[TopicPartition]]] = (frozenset(), frozenset())


class PartitionWaiters:
    """The events of waiting requests. Used in the event loop's thread only.

    A request may wait for thousands of partitions, and begins to wait with each Fetch: so it is entered by topics, and
    the partitions are compared when some have changed.
    """

    def __init__(self) -> None:
        self._by_topic: dict[str, set[asyncio.Event]] = {}
        self._partitions: dict[asyncio.Event, tuple[frozenset[str], frozenset[TopicPartition]]] = {}
        self._is_waited = asyncio.Event()

    def __len__(self) -> int:
        return len(self._partitions)

    def subscribe(self, partitions: frozenset[TopicPartition]) -> asyncio.Event:
        event = asyncio.Event()
        self._is_waited.set()
        topics = frozenset(each.topic for each in partitions)
        self._partitions[event] = topics, partitions
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(event)
        return event

    def topics(self) -> tuple[str, ...]:
        """The topics of the partitions that are waited for."""
        return tuple(self._by_topic)

    def unsubscribe(self, event: asyncio.Event) -> None:
        topics, _ = self._partitions.pop(event, _NOTHING)
        for topic in topics:
            waiting = self._by_topic[topic]
            waiting.discard(event)
            if not waiting:
                del self._by_topic[topic]
        if not self._partitions:
            self._is_waited.clear()

    async def some(self) -> None:
        """Return when a request waits, at once if one does."""
        await self._is_waited.wait()

    def notify(self, partitions: frozenset[TopicPartition] | None) -> None:
        if partitions is None:
            for event in self._partitions:
                event.set()
            return
        for topic in {each.topic for each in partitions}:
            for event in self._by_topic.get(topic, ()):
                if not event.is_set() and not partitions.isdisjoint(self._partitions[event][1]):
                    event.set()


class RootWatcher:
    """Refreshes `root` while requests wait, and wakes those whose partitions have changed since the last look.

    `executor` is where an object store is asked, or a broker's directory, which has no commits, is read.
    """

    def __init__(self, root: Root, waiters: PartitionWaiters, executor: Executor) -> None:
        self._root = root
        self._native = native_or_none(root)
        self._waiters = waiters
        self._executor = executor
        self._blocks = self._native is None or not root.directories
        self._interval_s = _STORE_INTERVAL_S if self._blocks else _LOCAL_INTERVAL_S
        self._version: int | None = None
        self._topics: dict[str, TopicImage | None] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        rest_s = self._interval_s
        while True:
            await self._waiters.some()
            # A request that has just begun to wait has looked itself.
            await asyncio.sleep(rest_s)
            if not len(self._waiters):
                continue
            began = time.monotonic()
            interval_s = self._interval_s
            try:
                await self._look()
            except (KafkalogError, OSError) as error:
                _LOG.warning("%s cannot be refreshed: %s", self._root.path, error)
                interval_s = _FAILURE_INTERVAL_S
            rest_s = max(interval_s, _REST_FACTOR * (time.monotonic() - began))

    async def _look(self) -> None:
        if self._blocks:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._root.refresh)
        else:
            self._root.refresh()
        if self._native is None:
            self._waiters.notify(None)
        elif self._native.version != self._version:
            self._version = self._native.version
            self._waiters.notify(self._changed(self._native.store.image))

    def _changed(self, image: MetadataImage) -> frozenset[TopicPartition]:
        """The partitions of topics waited for that `image` has in another state than the one looked at before."""
        topics = {each: image.topics.get(each) for each in self._waiters.topics()}
        changed = frozenset(
            TopicPartition(topic, partition)
            for topic, found in topics.items()
            for partition in _changed_partitions(self._topics.get(topic), found)
        )
        self._topics = topics
        return changed


def _changed_partitions(before: TopicImage | None, now: TopicImage | None) -> Iterable[int]:
    """The partitions of a topic of which the state is another one, or which are there in one of both alone."""
    if before is now:
        return ()
    pairs = zip_longest(_states(before), _states(now))
    return [partition for partition, (one, other) in enumerate(pairs) if one is not other]


def _states(topic: TopicImage | None) -> list[LogState]:
    return [] if topic is None else [each.state for each in topic.partitions]
