"""Group commit: the units of all connections that wait are committed together, by one thread.

While a commit is under way, further units queue up, and the next commit takes all of them: when the server is idle a
unit is committed at once, and under load the commits grow. No timer is involved. Units that are submitted in one turn
of the event loop, such as those of requests that have arrived together, are handed over together: the thread would
else begin with the first of them, and take turns with the loop to run Python.

    event loop                      the committer's thread
      submit(unit) -> future          takes all units that wait, up to limits of units and bytes
      at the end of the loop's turn   LeaderWriter.commit: lock, append, publish
      units are handed over
      results are set, waiting        one call into the event loop for the whole commit
      Fetch requests are woken

A crash loses units that were not committed yet: their clients have got no answer, and send them again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import KafkalogError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.leader.units import AppendedRange, CommitUnit, LeaderAppend, LeaderWriter, UnitResult
from pyspark_kafkalog.server.prompt_future import PromptFuture
from pyspark_kafkalog.server.security.bounded_log import BoundedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

_LOG: Final = logging.getLogger(__name__)
#: A commit takes at most so many units, which bounds the time for which the root is locked.
_UNITS_MAX: Final = 4096
#: And so many bytes of their batches, of which it makes copies; a larger unit is committed alone.
_BYTES_MAX: Final = 64 * MIB

Appended: TypeAlias = "asyncio.Future[tuple[AppendedRange, ...]]"
Notify: TypeAlias = Callable[[frozenset[TopicPartition]], None]


_Submitted: TypeAlias = tuple[CommitUnit, Appended]


class GroupCommitter:
    """Commits units with `writer` in a thread of its own.

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
        self._failures = BoundedLog(_LOG, monotonic_ms, lines_a_second=1)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[list[_Submitted] | None] = queue.SimpleQueue()
        self._submitted: list[_Submitted] = []  # in this turn of the loop
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="kafkalog-committer", daemon=True)

    async def start(self) -> None:
        self._thread.start()

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
        if self._submitted:
            self._queue.put(self._submitted)
            self._submitted = []

    async def commit(self, unit: CommitUnit) -> tuple[AppendedRange, ...]:
        return await self.submit(unit)

    async def stop(self) -> None:
        """Commit what was submitted, then end the thread and close the writer. What comes later is refused."""
        self._is_stopped = True
        self._hand_over()
        self._queue.put(None)
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
        changed: set[TopicPartition] = set()
        units = [_recording(unit, changed) for unit, _ in batch]
        results: Sequence[UnitResult | BaseException]
        try:
            results = self._writer.commit(units)
        except (KafkalogError, OSError) as error:
            self._failures.warning("a commit of %d units failed: %s", len(units), error)
            results = [error] * len(units)
        except BaseException as error:
            _LOG.exception("a commit of %d units failed", len(units))
            results = [error] * len(units)
        self._loop.call_soon_threadsafe(self._deliver, batch, results, frozenset(changed))

    def _deliver(
        self,
        batch: Sequence[_Submitted],
        results: Sequence[UnitResult | BaseException],
        changed: frozenset[TopicPartition],
    ) -> None:
        for (_, future), result in zip(batch, results, strict=True):
            if future.cancelled():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._committed(len(batch))
        if changed:
            self._notify(changed)


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
    """The unit; the partitions that it appends to are added to `changed`."""

    def appends(image: MetadataImage) -> Sequence[LeaderAppend]:
        planned = unit.appends(image)
        changed.update(each.topic_partition for each in planned)
        return planned

    return CommitUnit(appends=appends, records=unit.records)
