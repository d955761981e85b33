"""Group commit: the units of all connections that wait are committed together.

While a commit is under way, further units queue up, and the next commit takes all of them: when the server is idle a
unit is committed at once, and under load the commits grow. No timer is involved. Units that are submitted in one turn
of the event loop, such as those of requests that have arrived together, are handed over together: the thread would
else begin with the first of them, and take turns with the loop to run Python.

A short commit is made by the loop's thread itself, if the committer's thread has nothing to do. The two threads would
else take turns to run Python at each call of the kernel, which costs a quarter of the CPU time of a small request. A
commit is short if it has few bytes, the last one took a few milliseconds at most, and there is nothing to wait for
(`LeaderWriter.commit_at_once`). What arrives meanwhile is read after it, and committed together. One that took longer
than expected, as on a busy disk, sends the next one to the thread again.

    event loop                                  the committer's thread
      submit(unit) -> future
      at the end of the loop's turn:
        short: LeaderWriter.commit_at_once
        else: units are handed over               takes all units that wait, up to limits of units and bytes
                                                  LeaderWriter.commit: lock, append, publish
      results are set, waiting Fetch              one call into the event loop for the whole commit
      requests are woken

A crash loses units that were not committed yet: their clients have got no answer, and send them again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import KafkalogError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.root.commit.committer import LeaderWriter
from pyspark_kafkalog.server.event_loop import PromptFuture
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.threads import start
from pyspark_kafkalog.units import KIB, MIB

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

Appended: TypeAlias = "asyncio.Future[tuple[AppendedRange, ...]]"
Notify: TypeAlias = Callable[[frozenset[TopicPartition]], None]


_Submitted: TypeAlias = tuple[CommitUnit, Appended]
_Commit: TypeAlias = Callable[[Sequence[CommitUnit]], "Sequence[UnitResult] | None"]


@dataclass(frozen=True, slots=True)
class _Ended:
    """A commit that was made, or has failed: a result for each unit, and the partitions that it changed."""

    results: Sequence[UnitResult | BaseException]
    changed: frozenset[TopicPartition]
    end_ms: int
    is_short: bool


class GroupCommitter:
    """Commits units with `writer`, in a thread of its own unless they are committed at once.

    After each commit, `notify` gets the partitions that it changed, and `committed` the number of its units.
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
    ) -> None:
        self._writer = writer
        self._notify = notify
        self._committed = committed
        self._monotonic_ms = monotonic_ms
        self._failures = BoundedLog(_LOG, monotonic_ms, lines_a_second=1)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[list[_Submitted] | None] = queue.SimpleQueue()
        self._submitted: list[_Submitted] = []  # in this turn of the loop
        self._under_way = 0  # units that the thread has, or whose results are not delivered yet
        self._short_until_ms: int | None = None  # until then a commit is expected to be short
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="kafkalog-committer", daemon=True)

    async def start(self) -> None:
        start(self._thread)

    def submit(self, unit: CommitUnit) -> Appended:
        """The future result of the unit; see `Committer` in context.py."""
        result: PromptFuture[tuple[AppendedRange, ...]] = PromptFuture(loop=self._loop)
        if self._is_stopped:
            result.set_exception(ReadOnlyLogDirError("this server does not write to the log directory any more"))
            return result
        if not self._submitted:
            self._loop.call_soon(self._hand_over)
        self._submitted.append((unit, result))
        return result

    def _hand_over(self) -> None:
        """Commit the units of this turn of the loop at once, or give them to the thread."""
        if not self._submitted:
            return
        submitted, self._submitted = self._submitted, []
        self._under_way += len(submitted)
        if self._under_way == len(submitted) and self._is_short(submitted):
            ended = self._committed_units(submitted, self._writer.commit_at_once)
            if ended is not None:
                self._deliver(submitted, ended)
                return
        self._queue.put(submitted)

    def _is_short(self, submitted: Sequence[_Submitted]) -> bool:
        """Whether a commit of these units should be. Those of coordinators may have much to write."""
        if self._short_until_ms is None or self._monotonic_ms() > self._short_until_ms:
            return False
        if len(submitted) > _SHORT_UNITS_MAX:
            return False
        sizes = [unit.size_bytes for unit, _ in submitted]
        return 0 not in sizes and sum(sizes) <= _SHORT_BYTES_MAX

    async def commit(self, unit: CommitUnit) -> tuple[AppendedRange, ...]:
        return await self.submit(unit)

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
            for some in _commits(batch):
                self._commit(some)
        self._writer.close()

    def _commit(self, batch: Sequence[_Submitted]) -> None:
        ended = self._committed_units(batch, self._writer.commit)
        assert ended is not None
        self._loop.call_soon_threadsafe(self._deliver, batch, ended)

    def _committed_units(self, batch: Sequence[_Submitted], commit: _Commit) -> _Ended | None:
        """The results of a commit; None if it was not made at once."""
        began_ms = self._monotonic_ms()
        changed: set[TopicPartition] = set()
        units = [_recording(unit, changed) for unit, _ in batch]
        results: Sequence[UnitResult | BaseException] | None
        try:
            results = commit(units)
        except (KafkalogError, OSError) as error:
            self._failures.warning("a commit of %d units failed: %s", len(units), error)
            results = [error] * len(units)
        except BaseException as error:
            _LOG.exception("a commit of %d units failed", len(units))
            results = [error] * len(units)
        if results is None:
            return None
        end_ms = self._monotonic_ms()
        return _Ended(results, frozenset(changed), end_ms, is_short=end_ms - began_ms <= _SHORT_MAX_MS)

    def _deliver(self, batch: Sequence[_Submitted], ended: _Ended) -> None:
        self._under_way -= len(batch)
        self._short_until_ms = ended.end_ms + _RECENT_MS if ended.is_short else None
        for (_, future), result in zip(batch, ended.results, strict=True):
            if future.cancelled():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._committed(len(batch))
        if ended.changed:
            self._notify(ended.changed)


def _commits(submitted: Sequence[_Submitted]) -> Iterator[Sequence[_Submitted]]:
    """The units of each commit, in their order."""
    begin, size_bytes = 0, 0
    for at, (unit, _) in enumerate(submitted):
        size_bytes += unit.size_bytes
        if at > begin and (at - begin == _UNITS_MAX or size_bytes > _BYTES_MAX):
            yield submitted[begin:at]
            begin, size_bytes = at, unit.size_bytes
    yield submitted[begin:]


class ReadOnlyCommitter:
    """Refuses every unit: for a root that cannot be written, or a server that was started with `--read-only`."""

    def __init__(self, location: str) -> None:
        self._location = location

    def submit(self, unit: CommitUnit) -> Appended:
        result: Appended = asyncio.get_running_loop().create_future()
        result.set_exception(ReadOnlyLogDirError(f"{self._location} is served read-only"))
        return result

    async def commit(self, unit: CommitUnit) -> tuple[AppendedRange, ...]:
        return await self.submit(unit)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def _recording(unit: CommitUnit, changed: set[TopicPartition]) -> CommitUnit:
    """The unit; the partitions that it appends to are added to `changed`, at the latest when they are planned."""
    if isinstance(unit.appends, tuple):
        changed.update([each.topic_partition for each in unit.appends])
        return unit

    def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
        planned = unit.appends_on(image)
        changed.update(each.topic_partition for each in planned)
        return planned

    return CommitUnit(appends=appends, records=unit.records)
