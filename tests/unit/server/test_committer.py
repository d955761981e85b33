"""Units of many connections are committed together, each with its own result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from fakes.loop_clock import LoopClock
from patience import PATIENCE_S, until

from pyspark_kafkalog.errors import InvalidRecordError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit, LeaderAppend, UnitResult
from pyspark_kafkalog.server import committer as committer_module
from pyspark_kafkalog.server.committer import GroupCommitter, ReadOnlyCommitter
from pyspark_kafkalog.storage.names import TopicPartition

PARTITION = TopicPartition("t", 0)
IMAGE = MetadataImage()


class FakeWriter:
    """Answers with the number of the commit; the first commit waits until `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.commits: list[int] = []
        self.at_once: list[int] = []  # the numbers of the commits that were made so
        self.may_commit_at_once = False
        self.failure: BaseException | None = None
        self.has_begun = False
        self.is_closed = False

    def commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        self.has_begun = True
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        self.commits.append(len(units))
        results: list[UnitResult] = []
        for unit in units:
            (append,) = unit.appends_on(IMAGE)
            if not len(append.data):
                results.append(InvalidRecordError("empty"))
                continue
            at = len(self.commits)
            results.append((AppendedRange(first_offset=at, last_offset=at, log_start_offset=0),))
        return results

    def commit_at_once(self, units: Sequence[CommitUnit]) -> list[UnitResult] | None:
        if not self.may_commit_at_once:
            return None
        assert threading.current_thread() is threading.main_thread()
        results = self.commit(units)
        self.at_once.append(len(self.commits))
        return results

    def close(self) -> None:
        self.is_closed = True


def unit(data: bytes = b"x") -> CommitUnit:
    return CommitUnit.of(LeaderAppend(topic_partition=PARTITION, data=data))


@asynccontextmanager
async def committing() -> AsyncIterator[tuple[GroupCommitter, FakeWriter, list[frozenset[TopicPartition]]]]:
    """A committer that runs, its writer, and what it has notified others of."""
    writer = FakeWriter()
    notified: list[frozenset[TopicPartition]] = []
    committer = GroupCommitter(writer, notified.append, monotonic_ms=lambda: 0)
    await committer.start()
    try:
        yield committer, writer, notified
    finally:
        writer.gate.set()
        await committer.stop()


async def test_units_that_wait_for_a_commit_are_committed_together() -> None:
    async with committing() as (committer, writer, notified):
        first = committer.submit(unit())
        await until(lambda: writer.has_begun)
        others = [committer.submit(unit()) for _ in range(20)]
        writer.gate.set()
        assert [each.first_offset for (each,) in await asyncio.gather(first, *others)] == [1] + [2] * 20
        assert notified == [frozenset({PARTITION})] * 2
    assert writer.commits == [1, 20]


async def test_units_that_are_submitted_together_are_decided_together() -> None:
    async with committing() as (committer, writer, _):
        writer.gate.set()
        decided = asyncio.get_running_loop().create_future()
        committer.submit_together([unit(), unit(b""), unit()], decided.set_result)
        assert [isinstance(each, InvalidRecordError) for each in await decided] == [False, True, False]
    assert writer.commits == [3]


async def test_refused_unit_fails_alone() -> None:
    async with committing() as (committer, writer, _):
        writer.gate.set()
        good, bad, last = committer.submit(unit()), committer.submit(unit(b"")), committer.submit(unit())
        await good
        with pytest.raises(InvalidRecordError, match="empty"):
            await bad
        await last


@pytest.mark.parametrize("failure", [OSError("disk full"), ZeroDivisionError("a defect")])
async def test_failed_commit_fails_all_of_its_units_and_the_next_one_goes_on(failure: BaseException) -> None:
    async with committing() as (committer, writer, _):
        writer.failure = failure
        units = [committer.submit(unit()) for _ in range(3)]
        writer.gate.set()
        assert await asyncio.gather(*units, return_exceptions=True) == [failure] * 3
        writer.failure = None
        await committer.commit(unit())


async def test_cancelled_waiter_does_not_disturb_the_others() -> None:
    async with committing() as (committer, writer, _):
        first, second = committer.submit(unit()), committer.submit(unit())
        first.cancel()
        writer.gate.set()
        await second
    assert sum(writer.commits) == 2


async def test_commit_takes_limited_bytes_and_a_larger_unit_is_committed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer_module, "_BYTES_MAX", 100)
    async with committing() as (committer, writer, _):
        sizes = [40, 60, 1, 150, 99, 1, 1]
        units = [committer.submit(unit(b"x" * size)) for size in sizes]
        writer.gate.set()
        results = await asyncio.gather(*units)
        assert [each.first_offset for (each,) in results] == [1, 1, 2, 3, 4, 4, 5]
    assert writer.commits == [2, 1, 1, 2, 1]


async def test_commits_that_fail_again_and_again_are_a_line_a_second_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_ms = 0
    writer = FakeWriter()
    writer.gate.set()
    writer.failure = OSError("no space left")
    committer = GroupCommitter(writer, lambda changed: None, monotonic_ms=lambda: now_ms)
    await committer.start()
    for at_ms in (0, 10, 20, 999, 1000, 1500):
        now_ms = at_ms
        with pytest.raises(OSError, match="no space"):
            await committer.submit(unit())
    await committer.stop()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "a commit of 1 units failed: no space left",
        "a commit of 1 units failed: no space left (3 lines before this one were left out)",
    ]


async def test_stop_commits_what_was_submitted_and_closes_the_writer() -> None:
    writer = FakeWriter()
    committer = GroupCommitter(writer, lambda changed: None, monotonic_ms=lambda: 0)
    await committer.start()
    units = [committer.submit(unit()) for _ in range(5)]
    writer.gate.set()
    await committer.stop()
    await asyncio.gather(*units)
    assert sum(writer.commits) == 5
    assert writer.is_closed


class Ticking:
    """A clock that a test moves; each commit takes `commit_ms`."""

    def __init__(self, writer: FakeWriter) -> None:
        self.now_ms = 0
        self.commit_ms = 0
        commit = writer.commit

        def slow(units: Sequence[CommitUnit]) -> list[UnitResult]:
            self.now_ms += self.commit_ms
            return commit(units)

        writer.commit = slow  # type: ignore[method-assign]


def made_at_once(*steps: tuple[int, int, int]) -> list[int]:
    """The numbers of the commits that the loop's thread makes.

    Each step is the time since the last one, how long its commit takes, both in milliseconds, and the unit's bytes.
    """
    writer = FakeWriter()
    writer.gate.set()
    writer.may_commit_at_once = True
    clock = Ticking(writer)

    async def main() -> None:
        committer = GroupCommitter(writer, lambda changed: None, monotonic_ms=lambda: clock.now_ms)
        await committer.start()
        for waited_ms, clock.commit_ms, size_bytes in steps:
            clock.now_ms += waited_ms
            await committer.commit(unit(b"x" * size_bytes))
        await committer.stop()

    asyncio.run(main())
    assert len(writer.commits) == len(steps)
    return writer.at_once


def test_small_commit_after_a_short_one_is_made_by_the_loop() -> None:
    assert made_at_once((0, 1, 10), (0, 1, 10), (500, 5, 10), (999, 1, 10)) == [2, 3, 4]


def test_commit_after_a_long_one_is_made_by_the_thread() -> None:
    assert made_at_once((0, 1, 10), (0, 6, 10), (0, 1, 10), (0, 1, 10)) == [2, 4]


def test_commit_after_a_pause_is_made_by_the_thread() -> None:
    assert made_at_once((0, 1, 10), (1001, 1, 10), (0, 1, 10)) == [3]


def test_large_commit_is_made_by_the_thread() -> None:
    assert made_at_once((0, 1, 10), (0, 1, 300_000), (0, 1, 200_000)) == [3]


async def test_short_commit_waits_a_moment_for_as_many_units_as_the_one_before_had() -> None:
    clock = LoopClock()
    async with committing() as (committer, writer, _):
        writer.gate.set()
        writer.may_commit_at_once = True
        await committer.commit(unit())
        submitted = [committer.submit(unit()) for _ in range(5)]
        await clock.advance(0)
        for _ in range(5):  # each alone, as a client sends them
            submitted.append(committer.submit(unit()))
            await clock.advance(0)
        assert writer.commits == [1, 5, 5]
        for _ in range(4):  # less and less is waited for, and for one unit nothing
            submitted.append(committer.submit(unit()))
            await clock.advance(0.001)
        assert writer.commits == [1, 5, 5, 1, 1, 1, 1]
        submitted.append(committer.submit(unit()))
        await clock.advance(0)
        assert all(each.done() for each in submitted)


async def test_commit_that_the_writer_does_not_make_at_once_is_made_by_the_thread() -> None:
    async with committing() as (committer, writer, _):
        writer.gate.set()
        for _ in range(3):
            await committer.commit(unit())
    assert writer.commits == [1, 1, 1]
    assert not writer.at_once


async def test_units_stay_in_order_while_the_thread_has_earlier_ones() -> None:
    async with committing() as (committer, writer, _):
        writer.gate.set()
        await committer.commit(unit())
        writer.may_commit_at_once = False
        writer.gate.clear()
        writer.has_begun = False
        of_thread = committer.submit(unit())
        await until(lambda: writer.has_begun)
        writer.may_commit_at_once = True
        later = committer.submit(unit())
        await asyncio.sleep(0)
        assert not later.done()
        writer.gate.set()
        assert [each.first_offset for (each,) in await asyncio.gather(of_thread, later)] == [2, 3]
    assert not writer.at_once


async def test_commit_of_the_loop_that_fails_fails_its_units_and_the_next_one_goes_on() -> None:
    async with committing() as (committer, writer, _):
        writer.gate.set()
        writer.may_commit_at_once = True
        await committer.commit(unit())
        writer.failure = OSError("disk full")
        with pytest.raises(OSError, match="disk full"):
            await committer.commit(unit())
        writer.failure = None
        await committer.commit(unit())
    assert writer.at_once == [2]


@asynccontextmanager
async def committing_every(interval_ms: int) -> AsyncIterator[tuple[GroupCommitter, FakeWriter, LoopClock]]:
    """A committer with an interval, its writer, and the clock of both it and the loop."""
    clock, loop = LoopClock(), asyncio.get_running_loop()
    writer = FakeWriter()
    writer.gate.set()
    committer = GroupCommitter(
        writer, lambda changed: None, monotonic_ms=lambda: int(loop.time() * 1000), interval_ms=interval_ms
    )
    await committer.start()
    try:
        yield committer, writer, clock
    finally:
        await committer.stop()


@pytest.mark.parametrize("may_commit_at_once", [False, True])
async def test_commits_of_a_busy_server_begin_an_interval_apart(may_commit_at_once: bool) -> None:
    async with committing_every(60_000) as (committer, writer, clock):
        writer.may_commit_at_once = may_commit_at_once
        await committer.commit(unit())
        for commits in (1, 2, 3):
            units = []
            for _ in range(5):
                units += [committer.submit(unit()) for _ in range(4)]
                await clock.advance(10)
            assert writer.commits == [1, *[20] * (commits - 1)]
            await clock.advance(10)
            await asyncio.gather(*units)
            assert writer.commits == [1, *[20] * commits]


async def test_units_of_a_long_commit_wait_for_its_end_and_no_longer_than_the_interval() -> None:
    async with committing_every(60_000) as (committer, writer, clock):
        writer.gate.clear()
        first = committer.submit(unit())
        await until(lambda: writer.has_begun)
        later = [committer.submit(unit())]
        await clock.advance(70)
        later.append(committer.submit(unit()))
        await clock.advance(1)
        assert not writer.commits
        writer.gate.set()
        await asyncio.gather(first, *later)
    assert writer.commits == [1, 2]


async def test_commit_after_a_pause_does_not_wait_for_the_interval() -> None:
    async with committing_every(60_000) as (committer, writer, clock):
        await committer.commit(unit())
        await clock.advance(60)
        await committer.commit(unit())
    assert writer.commits == [1, 1]


async def test_stop_commits_at_once_what_waits_for_the_interval() -> None:
    async with committing_every(60_000) as (committer, writer, _):
        await committer.commit(unit())
        waiting = [committer.submit(unit()) for _ in range(3)]
        await asyncio.sleep(0)
        assert writer.commits == [1]
    await asyncio.gather(*waiting)
    assert writer.commits == [1, 3]


async def test_read_only_committer_refuses_every_unit() -> None:
    with pytest.raises(ReadOnlyLogDirError, match="/log"):
        await ReadOnlyCommitter("/log").commit(unit())
