"""One Fetch request at work: which partitions it reads, within which limits, and whether it can be answered.

    FetchedPartition   a partition that is read: an error, a diverging epoch, or a slice of its log
    FetchPlan          all of them, in the order of the request or of its session

Limits: `max_bytes` for all records, `partition_max_bytes` for those of one partition, and batches are never cut. Only
the first batch of a response may be larger than both, so that a consumer moves on (KIP-74). Room is given in the order
of the request, also to partitions whose records are not at hand and have to be got by a thread.

A partition is evaluated again only if its snapshot is another than before: a waiting fetch of many partitions costs
little whenever one of them is written to. Those of a session that were found to have nothing for the client stay quiet
for as long, from request to request.

Source of the rules: ReplicaManager.readFromLog, DelayedFetch.tryComplete, Partition.readRecords.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np

from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import FetchPartition
from pyspark_kafkalog.root.reads import UNDEFINED_EPOCH, UNDEFINED_OFFSET, RootPartitions, end_of_epoch, epochs_of
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.server.context import RecordMemory, ServerContext
from pyspark_kafkalog.server.event_loop import YieldBudget
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSession, SessionPartition
from pyspark_kafkalog.server.reads.log_slices import REMOTE_BYTES_MAX, LogSlices, Slice, SliceLimits, nothing
from pyspark_kafkalog.server.reads.offsets import epoch_error, error_code, run_with
from pyspark_kafkalog.server.sending import FileSlice
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.names import TopicPartition

_T = TypeVar("_T")
#: So many partitions are read before others may come first.
_PIECE: Final = 1000
#: Errors that may only be true of the root as of the last refresh, as it may be that a client's log diverges.
PERHAPS_STALE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """What the request asks of one partition, and what it gets. `topic` is None if no topic has the id asked for.

    `kept` is what a session has of it, or would have.
    """

    kept: SessionPartition
    wanted: FetchPartition
    topic_id: str
    topic: str | None
    error: ErrorCode | None = None
    snapshot: PartitionSnapshot | None = None
    last_stable_offset: int = -1
    end_offset: int = -1
    diverging: EpochEntry | None = None
    records: Slice | None = None
    aborted: Sequence[AbortedTxn] = ()

    @staticmethod
    def of(kept: SessionPartition) -> FetchedPartition:
        """With what is asked now, whatever later requests of a session change."""
        return FetchedPartition(kept, kept.wanted, kept.topic_id, kept.topic)

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic or "", self.wanted.partition)

    @property
    def size_bytes(self) -> int:
        return 0 if self.records is None else self.records.size_bytes

    @property
    def has_more(self) -> bool:
        """Whether there are batches behind those that were taken."""
        found = self.records
        return found is not None and (found.is_cut or (found.next_offset < self.end_offset and found.size_bytes > 0))

    @property
    def quiet_at(self) -> PartitionSnapshot | None:
        """The state in which the partition has nothing for the client; None if it has, or may have."""
        found = self.records
        is_quiet = self.error is None and self.diverging is None and found is not None
        return self.snapshot if is_quiet and not self.size_bytes and not self.has_more else None

    def fail(self, error: ErrorCode) -> None:
        self.error, self.records, self.aborted, self.diverging = error, None, (), None


@dataclass(slots=True, eq=False)
class FetchPlan:
    """The partitions of one request, with the parts of the server that read them.

    `quiet` are those of its `session` that are not read until they change. A request may have tens of thousands:
    `budget` lets others come first between two steps. All snapshots are taken in one step, so they are of one image.
    """

    context: ServerContext
    partitions: RootPartitions
    slices: LogSlices
    fetched: list[FetchedPartition]
    max_bytes: int
    min_bytes: int
    is_committed: bool
    owners: tuple[str, ...] = ()
    session: FetchSession | None = None
    quiet: list[SessionPartition] = field(default_factory=list)
    budget: YieldBudget = field(default_factory=YieldBudget)
    _looked_at: int | None = None
    _evaluated: int | None = None  # the version for which all partitions were

    @property
    def size_bytes(self) -> int:
        return sum([each.records.size_bytes for each in self.fetched if each.records is not None])

    @property
    def memory_bytes(self) -> int:
        """The bytes of records that are in memory."""
        return sum(
            each.size_bytes
            for each in self.fetched
            if each.records is not None and not isinstance(each.records.records, FileSlice)
        )

    @property
    def is_satisfied(self) -> bool:
        """Whether the response need not wait: enough bytes, an error, or a partition with more than was taken."""
        if self.size_bytes >= min(self.min_bytes, self.max_bytes) or not (self.fetched or self.quiet):
            return True
        return any(each.error is not None or each.diverging is not None or each.has_more for each in self.fetched)

    def refuse(self, topics: Collection[str], error: ErrorCode) -> None:
        """All partitions of the topics get this error."""
        if topics:
            self._read_now([each for each in self.quiet if each.topic in topics])
            for each in self.fetched:
                if each.topic in topics:
                    each.fail(error)

    def refuse_all(self, error: ErrorCode) -> None:
        """All partitions get this error."""
        self._read_now(self.quiet)
        for each in self.fetched:
            each.fail(error)

    def names(self) -> frozenset[TopicPartition]:
        """The partitions to wait for."""
        if self.session is not None:
            return self.session.names()
        return frozenset(each.name for each in self.fetched if each.topic is not None)

    def topics(self) -> set[str]:
        """The names of the topics, as far as they are known."""
        names = {each.topic for each in self.fetched} | {each.topic for each in self.quiet}
        return {each for each in names if each is not None}

    def _read_now(self, awake: Collection[SessionPartition]) -> list[FetchedPartition]:
        """Read partitions that were quiet."""
        if not awake:
            return []
        gone = set(awake)
        self.quiet = [each for each in self.quiet if each not in gone]
        added = [FetchedPartition.of(each) for each in awake]
        self.fetched += added
        return added

    def _wake_up(self) -> list[FetchedPartition]:
        """Read the quiet partitions that have changed."""
        version = self.partitions.version
        if version is not None and version == self._looked_at:
            return []
        self._looked_at = version
        states = [each.quiet_at for each in self.quiet]
        are_current = self.partitions.are_current(states)
        return self._read_now(
            [each for each, is_current in zip(self.quiet, are_current, strict=True) if not is_current]
        )

    async def evaluate(self) -> None:
        """Evaluate all partitions that have changed; missing partitions are looked up in the newest state, too."""
        version = self.partitions.version
        if version is not None and version == self._evaluated:
            return
        self._evaluated = version
        await self.budget.step()
        changed = await self._look_up([each for each in self.fetched if each.error is None], self._wake_up)
        await self.budget.step()
        await self._read(changed)
        await self.budget.step()
        stale = [each for each in changed if each.error in PERHAPS_STALE or each.diverging is not None]
        if stale:
            await self.context.run(self.partitions.refresh)
            for each in stale:
                each.error, each.snapshot, each.diverging = None, None, None
            await self._look_up(stale)
            await self._read(stale)

    async def _look_up(
        self, fetched: list[FetchedPartition], more: Callable[[], list[FetchedPartition]] = list
    ) -> list[FetchedPartition]:
        """Take the present snapshots, and those of `more`, which it gives in the same step.

        Returns the partitions of which the snapshots are others than before.
        """

        def work() -> list[FetchedPartition]:
            return [each for each in (*fetched, *more()) if self._take_snapshot(each)]

        changed = await run_with(self.partitions, self.context, work)
        epochs_wanted = [each for each in changed if _needs_epochs(each)]
        if epochs_wanted:
            await self._run_each(self._compare_epochs, epochs_wanted)
        for each in changed:
            if each.snapshot is not None and each.error is None and each.diverging is None:
                _check_range(each, each.snapshot)
        return changed

    def _take_snapshot(self, each: FetchedPartition) -> bool:
        """Whether the partition has changed."""
        try:
            if each.topic is None:
                each.topic = self.partitions.topic_name(each.topic_id)
            if each.topic is None:
                each.fail(ErrorCode.UNKNOWN_TOPIC_ID)
                return True
            found = self.partitions.find(each.topic, each.wanted.partition)
            if found is not None and found is each.snapshot:
                return False
            if found is None:
                each.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                return True
            if each.topic_id not in (ZERO_UUID, found.topic_id):  # the name is another topic's now
                each.fail(ErrorCode.INCONSISTENT_TOPIC_ID)
                return True
            each.snapshot, each.diverging = found, None
            each.last_stable_offset = found.last_stable_offset
            each.end_offset = each.last_stable_offset if self.is_committed else found.high_watermark
            error = epoch_error(found, each.wanted.current_leader_epoch)
            if error is not None:
                each.fail(error)
        except Exception as raised:
            each.fail(error_code(raised, each.name))
        return True

    def _compare_epochs(self, each: FetchedPartition) -> None:
        """Set `diverging` if the log has other records than the client up to its offset."""
        assert each.snapshot is not None
        last, offset = each.wanted.last_fetched_epoch, each.wanted.fetch_offset
        try:
            end = end_of_epoch(epochs_of(self.context.root, each.snapshot), last, each.snapshot.log_end_offset)
        except Exception as raised:
            each.fail(error_code(raised, each.name))
            return
        if end.epoch == UNDEFINED_EPOCH or end.start_offset == UNDEFINED_OFFSET:
            each.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif end.epoch < last or end.start_offset < offset:
            each.diverging, each.records = end, nothing(offset)

    async def _read(self, changed: list[FetchedPartition]) -> None:
        """Read the records of the changed partitions, in the room that the others leave."""
        changed = [each for each in changed if each.error is None and each.diverging is None]
        for each in changed:
            each.records, each.aborted = None, ()
        size_bytes = self.size_bytes
        room = _Room(self.max_bytes - size_bytes, is_first=size_bytes == 0)
        remote: list[_Job] = []
        read = 0
        for at in range(0, len(changed), _PIECE):
            piece = changed[at : at + _PIECE]
            read = at + self._read_in_order(piece, room, remote, may_wait=False)
            if read < at + len(piece):
                break
            await self.budget.step()
        if read < len(changed):
            await self.context.run(lambda: self._read_in_order(changed[read:], room, remote, may_wait=True))
        if remote:
            await self._read_remote(remote)
        if not self.size_bytes:
            await self._read_too_large()
        transactional = [each for each in changed if self._needs_aborted(each)]
        if transactional:
            await self._run_each(self._find_aborted, transactional)

    def _read_in_order(
        self, changed: Sequence[FetchedPartition], room: _Room, remote: list[_Job], *, may_wait: bool
    ) -> int:
        """Read local records, in the order of the request; returns how many partitions are done.

        Stops at the first one for which a disk has to be waited for, unless it `may_wait`. What is not local is added
        to `remote`, with the room for it: it is got later, from many partitions side by side.
        """
        for done, each in enumerate(changed):
            assert each.snapshot is not None
            offset = each.wanted.fetch_offset
            limits = room.limits(each)
            if offset >= each.end_offset or not limits.max_bytes:
                each.records = nothing(offset, is_cut=offset < each.end_offset)
                continue
            try:
                each.records = self.slices.cached(each.snapshot, offset, limits)
            except BlockingIOError:
                if each.snapshot.local_directory is None or offset < each.snapshot.local_log_start_offset:
                    remote.append((each, limits))
                    room.take(limits.max_bytes)
                    continue
                if not may_wait:
                    return done
                self._read_waiting((each, limits))
            except Exception as raised:
                each.fail(error_code(raised, each.name))
            room.take(each.size_bytes)
        return len(changed)

    async def _run_each(self, work: Callable[[_T], None], items: Sequence[_T]) -> None:
        """Do the work for all items, one after the other, in one thread."""

        def run() -> None:
            for item in items:
                work(item)

        await self.context.run(run)

    async def _read_remote(self, jobs: Sequence[_Job]) -> None:
        """Read what is not local into memory, once there is room for all of it; nothing if there is none in time.

        The records have the room until nothing refers to them.
        """
        memory, owners = self.context.record_memory, self.owners
        size_bytes = sum(min(limits.max_bytes, REMOTE_BYTES_MAX) for _, limits in jobs)
        if not await memory.take(size_bytes, owners):
            for each, _ in jobs:
                each.records = nothing(each.wanted.fetch_offset)
            return
        kept_bytes = 0
        try:
            await asyncio.gather(*(self._run_each(self._read_waiting, [job]) for job in jobs))
            loop = asyncio.get_running_loop()
            for each, _ in jobs:
                records = None if each.records is None else each.records.records
                buffer = records.obj if isinstance(records, memoryview) else None
                if isinstance(buffer, np.ndarray):
                    kept_bytes += buffer.nbytes
                    weakref.finalize(buffer, _give_back, loop, memory, buffer.nbytes, owners).atexit = False
        finally:
            memory.give_back(size_bytes - kept_bytes, owners)

    def _read_waiting(self, job: _Job) -> None:
        each, limits = job
        assert each.snapshot is not None
        try:
            each.records = self.slices.waiting(each.snapshot, each.wanted.fetch_offset, limits)
        except Exception as raised:
            each.fail(error_code(raised, each.name))

    async def _read_too_large(self) -> None:
        """Nothing fits the limits: take one batch, whatever its size."""
        for each in self.fetched:
            if each.records is not None and each.records.is_cut:
                limits = SliceLimits(end_offset=each.end_offset, max_bytes=1, may_exceed=True)
                await self._read_remote([(each, limits)])
                if each.size_bytes:
                    return

    def _needs_aborted(self, each: FetchedPartition) -> bool:
        return self.is_committed and each.records is not None and each.records.may_be_transactional

    def _find_aborted(self, each: FetchedPartition) -> None:
        assert each.snapshot is not None
        assert each.records is not None
        try:
            each.aborted = self.slices.aborted(each.snapshot, each.wanted.fetch_offset, each.records)
        except Exception as raised:
            each.fail(error_code(raised, each.name))


_Job = tuple[FetchedPartition, SliceLimits]


def _give_back(loop: asyncio.AbstractEventLoop, memory: RecordMemory, size_bytes: int, owners: tuple[str, ...]) -> None:
    """Called in whichever thread drops the last reference."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(memory.give_back, size_bytes, owners)


@dataclass(slots=True)
class _Room:
    """The bytes that are left for the partitions to come. `is_first`: none has taken any."""

    left_bytes: int
    is_first: bool

    def limits(self, each: FetchedPartition) -> SliceLimits:
        max_bytes = max(min(each.wanted.partition_max_bytes, self.left_bytes), 0)
        return SliceLimits(end_offset=each.end_offset, max_bytes=max_bytes, may_exceed=self.is_first)

    def take(self, size_bytes: int) -> None:
        if size_bytes:
            self.left_bytes -= size_bytes
            self.is_first = False


def _needs_epochs(each: FetchedPartition) -> bool:
    """Whether the client's last epoch has to be compared: not if it is the present one, and has its offset."""
    found = each.snapshot
    return (
        each.error is None
        and found is not None
        and each.wanted.last_fetched_epoch >= 0
        and not (
            each.wanted.last_fetched_epoch == found.leader_epoch and each.wanted.fetch_offset <= found.log_end_offset
        )
    )


def _check_range(each: FetchedPartition, found: PartitionSnapshot) -> None:
    """A consumer may be at any offset from the log start to the log end, also above the end of what it may read."""
    if not found.readable_start_offset <= each.wanted.fetch_offset <= found.log_end_offset:
        each.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
