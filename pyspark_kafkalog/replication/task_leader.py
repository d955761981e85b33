"""`TaskLeader`: a leader whose records are fetched ahead by tasks, for a large back-fill.

    driver                                              executors
      fetch loop -> TaskLeader ---- ranges of offsets ---> range_task.py: fetch, check, write to a file or an object
                        ^                                        |
                        +------- read pieces of the files <------+
                        +------- references to objects <---------+

A partition that is far behind gets a plan: the offsets from its position to the high watermark, in ranges that tasks
fetch side by side, those of one partition too. The fetch loop gets the ranges in the order of their offsets, and
everything else as from the leader itself: the first fetch of a partition, the end of its log, what is new meanwhile,
descriptions, comparisons. So a partition is verified, appended and cut as without tasks.

What a task has fetched is used only if it continues the log: the position is where the range before has ended, and the
leader's epochs still lead to it. Otherwise the plan is dropped, and the leader itself is asked.

So that batches in an object can be taken as they are, a range is planned only where the last answer has ended: there
the follower has nothing to compare.

A crash leaves staged ranges behind, which the next job removes, or objects, which the clean-up removes. Tasks that fail
are repeated; if that does not help, the partition is fetched without tasks for a while.

Source of the rules: as in partition_state.py; KIP-320 for the check of epochs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np

from pyspark_kafkalog.errors import KafkalogError, LeaderUnavailableError
from pyspark_kafkalog.maintenance.jobs.tasks import Tasks
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.replication.leader import (
    EpochEnd,
    FetchOutcome,
    FetchPosition,
    LeaderAnswer,
    LeaderDescription,
    LeaderEndPoint,
    SelectsTopic,
)
from pyspark_kafkalog.replication.range_task import (
    LeaderAddress,
    RangeRequest,
    StagedRange,
    StagingJob,
    StagingStore,
    fetch_range,
)
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

_LOG: Final = logging.getLogger(__name__)
_FILE_RANGE_BYTES: Final = 64 * MIB
#: A range for a root in an object store is one object, which a task has in memory.
_OBJECT_RANGE_BYTES: Final = 32 * MIB
#: A range takes about so many bytes; it ends early where records are larger than those before.
_RANGE_BYTES_FACTOR_MAX: Final = 2
_RANGES_PER_SLOT: Final = 2
#: That one plan has.
_RANGES_MAX: Final = 10_000
_TRIES: Final = 3
#: So long a partition is fetched without tasks after they have failed.
_WITHOUT_TASKS_S: Final = 30.0
#: Where a batch says how long it is after these bytes.
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12


@dataclass(slots=True, eq=False)
class _Range:
    """A range of offsets, which a task fetches; `position` is how far its bytes have been handed out."""

    start_offset: int
    end_offset: int
    tries: int = 0
    future: Future[StagedRange] | None = None
    position: int = 0


@dataclass(slots=True, eq=False)
class _Plan:
    """The ranges of a partition that are not handed out. `offset` is where the next fetch has to begin.

    `start_offset` is where the first one began.
    """

    source: str
    topic_id: str
    start_offset: int
    offset: int
    ranges: deque[_Range]

    @property
    def begun(self) -> int:
        return sum(each.future is not None for each in self.ranges)


@dataclass(slots=True)
class _Seen:
    """What is known of a partition: its range at the leader, and the bytes and offsets that came from it.

    `next_offset` is where the last answer has ended.
    """

    next_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    size_bytes: int = 0
    offsets: int = 0
    retry_at_s: float = float("-inf")

    @property
    def bytes_per_offset(self) -> float:
        return max(self.size_bytes / self.offsets, 1.0) if self.offsets else 0.0


@dataclass(slots=True)
class _Room:
    """The bytes that an answer may still have."""

    max_bytes: int
    partition_bytes: int
    is_empty: bool = True

    def taken(self, size_bytes: int) -> None:
        self.max_bytes = max(self.max_bytes - size_bytes, 0)
        self.is_empty = self.is_empty and not size_bytes


@dataclass(frozen=True, slots=True)
class _Piece:
    """Batches to hand out, in memory or in the store, and the offset after them."""

    end_offset: int
    data: Buffer = b""
    staged: StagedBatches | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.data) if self.staged is None else self.staged.size_bytes


class _StagedRanges(Protocol):
    """The ranges that tasks stage for one root.

    `range_bytes`: about so much is in one range.
    """

    range_bytes: int

    def place(self) -> StagingJob | StagingStore:
        """Where a task that begins now puts what it has fetched."""

    def end(self) -> None:
        """Remove the ranges that were not used, if the clean-up of the root does not."""


class _RangesInFiles:
    """Ranges in files of the root's directory. Raises OSError if no job can begin."""

    def __init__(self, root: FileRoot) -> None:
        self.range_bytes = _FILE_RANGE_BYTES
        self._job = StagingJob(root.path, uuid.uuid4().hex)
        self._job.begin()

    def place(self) -> StagingJob:
        return self._job

    def end(self) -> None:
        self._job.end()


class _RangesInObjects:
    """Ranges in objects of the root's store, planned as of the root's last refresh."""

    def __init__(self, root: ObjectRoot) -> None:
        self.range_bytes = _OBJECT_RANGE_BYTES
        self._root = root

    def place(self) -> StagingStore:
        return StagingStore(self._root.address, self._root.version)

    def end(self) -> None:
        pass


class TaskLeader:
    """The `LeaderEndPoint` `leader`, with `tasks` that fetch ahead for `root`, the same object as the follower's.

    `close` also closes the leader. `address` is that of the leader, which tasks open again. `range_bytes`: about so
    much is fetched by one task.
    """

    def __init__(
        self,
        leader: LeaderEndPoint,
        address: LeaderAddress,
        tasks: Tasks,
        root: NativeRoot,
        *,
        range_bytes: int | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leader = leader
        self._address = address
        self._tasks = tasks
        self._root = root
        self._staged: _StagedRanges = for_kind(root, _RangesInFiles, _RangesInObjects)
        self._range_bytes = range_bytes or self._staged.range_bytes
        self._monotonic_s = monotonic_s
        self._calls = threading.RLock()  # one thread at a time asks for anything but records
        self._changed = threading.Condition()  # guards the attributes below
        self._plans: dict[TopicPartition, _Plan] = {}
        self._seen: dict[TopicPartition, _Seen] = {}

    @property
    def name(self) -> str:
        return self._leader.name

    def is_working(self) -> bool:
        """Whether tasks are to fetch what was not tried before: they may wait for executors, or take their time."""
        with self._changed:
            ranges = [each for plan in self._plans.values() for each in plan.ranges]
            return self._tasks.is_alive and any(
                each.tries == 1 and each.future is not None and not each.future.done() for each in ranges
            )

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        """As in LeaderEndPoint."""
        with self._calls:
            return self._leader.describe(selects)

    def sources(self, partitions: Collection[TopicPartition]) -> Mapping[str, Sequence[TopicPartition]]:
        """As in LeaderEndPoint."""
        with self._calls:
            return self._leader.sources(partitions)

    def range_of(self, position: FetchPosition) -> tuple[int, int]:
        """As in LeaderEndPoint."""
        with self._calls:
            return self._leader.range_of(position)

    def epoch_end(self, position: FetchPosition, epoch: int) -> EpochEnd | None:
        """As in LeaderEndPoint."""
        with self._calls:
            return self._leader.epoch_end(position, epoch)

    def close(self) -> None:
        """Close the leader, and remove staged ranges that were not used."""
        with self._changed:
            for name in list(self._plans):
                self._drop(name)
        self._leader.close()
        self._staged.end()

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        """As in LeaderEndPoint. Partitions whose ranges are still being fetched are left out."""
        deadline_s = self._monotonic_s() + wait_ms / 1000
        planned, direct = self._divide(source, positions)
        room = _Room(max_bytes, partition_bytes)
        answers: list[LeaderAnswer] = []
        for position in planned:
            answer = self._hand_out(position, room)
            if answer is not None:
                answers.append(answer)
                room.taken(len(answer.data))
        if direct and room.max_bytes:
            answers += self._ask(
                source,
                direct,
                wait_ms=0 if planned else wait_ms,
                max_bytes=room.max_bytes,
                partition_bytes=min(partition_bytes, room.max_bytes),
            )
        if not any(each.size_bytes for each in answers) and planned:
            self._wait_for_range(planned, deadline_s)
        return answers

    # The leader itself

    def _ask(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        answers = self._leader.fetch(
            source, positions, wait_ms=wait_ms, max_bytes=max_bytes, partition_bytes=partition_bytes
        )
        with self._changed:
            for answer in answers:
                if answer.outcome is FetchOutcome.RECORDS:
                    self._note(answer)
        return answers

    def _note(self, answer: LeaderAnswer) -> None:
        seen = self._seen.setdefault(answer.topic_partition, _Seen())
        seen.high_watermark = max(seen.high_watermark, answer.high_watermark)
        seen.log_start_offset = max(seen.log_start_offset, answer.log_start_offset)
        batches = scan_batches(answer.data, file=str(answer.topic_partition)).batches
        if len(batches):
            seen.size_bytes += len(answer.data)
            seen.offsets += int(batches["last_offset"][-1] - batches["base_offset"][0]) + 1
            seen.next_offset = int(batches["last_offset"][-1]) + 1

    # Plans

    def _divide(
        self, source: str, positions: Sequence[FetchPosition]
    ) -> tuple[list[FetchPosition], list[FetchPosition]]:
        """The positions that have plans, and those to ask the leader for. Begins plans and tasks."""
        with self._changed:
            wanted = {each.topic_partition: each for each in positions}
            for name, plan in list(self._plans.items()):
                position = wanted.get(name)
                if position is None:
                    if plan.source == source:
                        self._drop(name)  # it is not fetched now: it is stopped, compared, or has moved
                elif (plan.source, plan.topic_id, plan.offset) != (source, position.topic_id, position.offset):
                    self._drop(name)
            if self._tasks.is_alive:
                for position in positions:
                    if position.topic_partition not in self._plans:
                        self._plan(source, position)
            self._begin_tasks()
            planned = [each for each in positions if each.topic_partition in self._plans]
            return planned, [each for each in positions if each.topic_partition not in self._plans]

    def _plan(self, source: str, position: FetchPosition) -> None:
        """Plan a partition that is more than a range behind, where the last answer has ended."""
        seen = self._seen.get(position.topic_partition)
        if seen is None or seen.next_offset != position.offset or self._monotonic_s() < seen.retry_at_s:
            return
        behind = seen.high_watermark - position.offset
        if behind * seen.bytes_per_offset <= self._range_bytes:
            return
        step = max(int(self._range_bytes / seen.bytes_per_offset), 1)
        # As many as the leader says: the rest is planned when these are handed out.
        starts = range(position.offset, seen.high_watermark, step)[:_RANGES_MAX]
        ranges = deque([_Range(start, min(start + step, seen.high_watermark)) for start in starts])
        offset = position.offset
        self._plans[position.topic_partition] = _Plan(source, position.topic_id, offset, offset, ranges)

    def _begin_tasks(self) -> None:
        """Begin tasks for the partitions with the fewest, up to a number that bounds what is staged."""
        begun = sum(each.begun for each in self._plans.values())
        while begun < self._tasks.slots * _RANGES_PER_SLOT:
            waiting = [(name, each) for name, each in self._plans.items() if each.begun < len(each.ranges)]
            if not waiting:
                return
            name, plan = min(waiting, key=lambda each: each[1].begun)
            self._begin_task(name, plan, next(each for each in plan.ranges if each.future is None))
            begun += 1

    def _begin_task(self, name: TopicPartition, plan: _Plan, of: _Range) -> None:
        request = RangeRequest(
            leader=self._address,
            position=FetchPosition(topic_partition=name, topic_id=plan.topic_id, offset=of.start_offset),
            end_offset=of.end_offset,
            log_end_offset=plan.start_offset,
            max_bytes=_RANGE_BYTES_FACTOR_MAX * self._range_bytes,
            place=self._staged.place(),
        )
        of.tries += 1
        of.future = self._tasks.submit(partial(fetch_range, request), first=of is plan.ranges[0])
        of.future.add_done_callback(self._task_ended)

    def _task_ended(self, future: Future[StagedRange]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _drop(self, name: TopicPartition) -> None:
        """Forget the plan of a partition. Tasks that run end by themselves, and their files are removed then."""
        for each in self._plans.pop(name).ranges:
            if each.future is not None and not each.future.cancel():
                each.future.add_done_callback(_remove_file)

    def _wait_for_range(self, planned: Sequence[FetchPosition], deadline_s: float) -> None:
        """Wait until the next range of one of the partitions is there, or until the deadline."""
        with self._changed:
            while not any(self._is_ready(each) for each in planned):
                left_s = deadline_s - self._monotonic_s()
                if left_s <= 0:
                    return
                self._changed.wait(left_s)

    def _is_ready(self, position: FetchPosition) -> bool:
        plan = self._plans.get(position.topic_partition)
        if plan is None or not plan.ranges:
            return True
        future = plan.ranges[0].future
        return future is not None and future.done()

    # Ranges that are there

    def _hand_out(self, position: FetchPosition, room: _Room) -> LeaderAnswer | None:
        """The next batches of a planned partition; None if they are not there, or there is no room for them."""
        name = position.topic_partition
        with self._changed:
            plan = self._plans.get(name)
            if plan is None or not self._is_ready(position) or not room.max_bytes:
                return None
            of = plan.ranges[0]
        future = of.future
        assert future is not None
        error = CancelledError() if future.cancelled() else future.exception() or self._expired(future.result())
        if error is not None:
            self._failed(name, plan, of, error)
            return None
        staged = future.result()
        try:
            if not of.position and not self._continues(position, plan, of, staged):
                raise ValueError("the leader's log is not the one any more of which it was fetched")
            piece = _piece(staged, of.position, room) if staged.size_bytes else _Piece(position.offset)
        except LeaderUnavailableError:
            raise
        except (KafkalogError, OSError, ValueError) as cause:
            self._give_up(name, str(cause))
            return None
        if piece is None:
            return None
        with self._changed:
            if self._plans.get(name) is not plan:
                return None
            of.position += piece.size_bytes
            plan.offset = piece.end_offset
            if of.position >= staged.size_bytes:
                self._finish(name, plan, of, staged)
            seen = self._seen[name]
            seen.next_offset = piece.end_offset
            seen.high_watermark = max(seen.high_watermark, staged.high_watermark)
            seen.log_start_offset = max(seen.log_start_offset, staged.log_start_offset)
            return LeaderAnswer(
                topic_partition=name,
                outcome=FetchOutcome.RECORDS,
                data=piece.data,
                staged=piece.staged,
                high_watermark=seen.high_watermark,
                log_start_offset=seen.log_start_offset,
            )

    def _expired(self, staged: StagedRange) -> ValueError | None:
        """Why batches in the store cannot be committed any more, as a log was truncated since; None if they can."""
        if staged.batches is None:
            return None
        planned_at = staged.batches.written.planned_at
        if not self._root.store.image.staging_horizon.has_expired(planned_at):
            return None
        return ValueError(f"what was planned at metadata offset {planned_at} has expired")

    def _continues(self, position: FetchPosition, plan: _Plan, of: _Range, staged: StagedRange) -> bool:
        """Whether the range begins where the log ends, and the leader still has the log before it."""
        left_out, is_first = staged.left_out_end_offset, of.start_offset == plan.start_offset
        if not is_first and (left_out >= 0 or position.offset > of.start_offset) and left_out != position.offset:
            return False
        batches = staged.batches
        if batches is not None:
            batches.check(position.topic_id, position.topic_partition)
            if (batches.first_offset, batches.size_bytes) != (position.offset, staged.size_bytes):
                return False
        if position.last_epoch < 0:
            return True
        end = self.epoch_end(position, position.last_epoch)
        return end is not None and end.epoch == position.last_epoch and end.end_offset >= position.offset

    def _finish(self, name: TopicPartition, plan: _Plan, of: _Range, staged: StagedRange) -> None:
        """All of a range was handed out: continue with its rest, or with the next range."""
        assert of.future is not None
        _remove_file(of.future)
        plan.ranges.popleft()
        if staged.next_offset < of.end_offset:
            rest = _Range(staged.next_offset, of.end_offset)
            plan.ranges.appendleft(rest)
            self._begin_task(name, plan, rest)  # at once: the ranges behind it cannot be handed out before
        if not plan.ranges:
            del self._plans[name]
        self._begin_tasks()

    def _failed(self, name: TopicPartition, plan: _Plan, of: _Range, error: BaseException) -> None:
        if of.tries >= _TRIES or not self._tasks.is_alive:
            self._give_up(name, str(error))
            return
        with self._changed:
            if self._plans.get(name) is plan:
                self._begin_task(name, plan, of)

    def _give_up(self, name: TopicPartition, reason: str) -> None:
        """Fetch the partition without tasks for a while."""
        _LOG.warning("%s is fetched without tasks for %.0f s: %s", name, _WITHOUT_TASKS_S, reason)
        with self._changed:
            self._seen[name].retry_at_s = self._monotonic_s() + _WITHOUT_TASKS_S
            if name in self._plans:
                self._drop(name)


def _piece(staged: StagedRange, position: int, room: _Room) -> _Piece | None:
    """The next whole batches of a staged range that fit; a first one whatever its size, and all that are in a store.

    None if there is no room for a batch. Raises OSError, KafkalogError or ValueError for a file that is damaged.
    """
    if staged.batches is not None:
        return _Piece(staged.batches.next_offset, staged=staged.batches)
    left_bytes = staged.size_bytes - position
    size_bytes = min(left_bytes, room.max_bytes, room.partition_bytes)
    data = _read(staged, position, size_bytes)
    scan = scan_batches(data, file=str(staged.path))
    if scan.fault is None and not len(scan.batches) and room.is_empty and size_bytes < left_bytes:
        head = bytes(_read(staged, position, min(_LENGTH_END, left_bytes)))
        size_bytes = min(_LENGTH_END + int.from_bytes(head[_LENGTH_AT:], "big"), left_bytes)
        data = _read(staged, position, size_bytes)
        scan = scan_batches(data, file=str(staged.path))
    if scan.fault is not None:
        raise scan.fault
    if not len(scan.batches):
        if room.is_empty or size_bytes == left_bytes:
            raise ValueError(f"{staged.path} has no whole batch at byte {position}")
        return None
    return _Piece(int(scan.batches["last_offset"][-1]) + 1, as_bytes_array(data).data[: scan.consumed_bytes])


def _read(staged: StagedRange, position: int, size_bytes: int) -> Buffer:
    """Bytes of a staged range. Raises OSError, ValueError if it is shorter."""
    assert staged.path is not None
    buffer = np.empty(size_bytes, np.uint8)  # bounded: by the file's size or a batch's, in the callers
    fd = LOCAL.open(staged.path, os.O_RDONLY)
    try:
        at = 0
        while at < size_bytes:
            count = os.preadv(fd, [buffer.data[at:]], position + at)
            if not count:
                raise ValueError(f"{staged.path} ends at byte {position + at}, expected {staged.size_bytes} bytes")
            at += count
    finally:
        LOCAL.close(fd)
    return buffer.data


def _remove_file(future: Future[StagedRange]) -> None:
    """Remove the file of a range that is not needed any more."""
    if future.cancelled() or future.exception() is not None:
        return
    path = future.result().path
    if path is not None:
        with contextlib.suppress(OSError):
            LOCAL.unlink_if_there(path)
