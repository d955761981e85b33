"""Units of many connections are committed together, each with its own result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
from patience import PATIENCE_S, until

from pyspark_kafkalog.errors import InvalidRecordError, ReadOnlyLogDirError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.root.leader.units import AppendedRange, CommitUnit, LeaderAppend, UnitResult
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
            (append,) = unit.appends(IMAGE)
            if not len(append.data):
                results.append(InvalidRecordError("empty"))
                continue
            at = len(self.commits)
            results.append((AppendedRange(first_offset=at, last_offset=at, log_start_offset=0),))
        return results

    def close(self) -> None:
        self.is_closed = True


def unit(data: bytes = b"x") -> CommitUnit:
    return CommitUnit.of(LeaderAppend(topic_partition=PARTITION, data=data))


def run(work: Callable[[GroupCommitter, FakeWriter, list[frozenset[TopicPartition]]], Awaitable[None]]) -> FakeWriter:
    writer = FakeWriter()

    async def main() -> None:
        notified: list[frozenset[TopicPartition]] = []
        committer = GroupCommitter(writer, notified.append, monotonic_ms=lambda: 0)
        await committer.start()
        try:
            await asyncio.wait_for(work(committer, writer, notified), PATIENCE_S)
        finally:
            writer.gate.set()
            await committer.stop()

    asyncio.run(main())
    return writer


def test_units_that_wait_for_a_commit_are_committed_together() -> None:
    async def work(committer: GroupCommitter, writer: FakeWriter, notified: list[frozenset[TopicPartition]]) -> None:
        first = committer.submit(unit())
        await until(lambda: writer.has_begun)
        others = [committer.submit(unit()) for _ in range(20)]
        writer.gate.set()
        assert [each.first_offset for (each,) in await asyncio.gather(first, *others)] == [1] + [2] * 20
        assert notified == [frozenset({PARTITION})] * 2

    assert run(work).commits == [1, 20]


def test_refused_unit_fails_alone() -> None:
    async def work(committer: GroupCommitter, writer: FakeWriter, notified: list[frozenset[TopicPartition]]) -> None:
        writer.gate.set()
        good, bad, last = committer.submit(unit()), committer.submit(unit(b"")), committer.submit(unit())
        await good
        with pytest.raises(InvalidRecordError, match="empty"):
            await bad
        await last

    run(work)


@pytest.mark.parametrize("failure", [OSError("disk full"), ZeroDivisionError("a defect")])
def test_failed_commit_fails_all_of_its_units_and_the_next_one_goes_on(failure: BaseException) -> None:
    async def work(committer: GroupCommitter, writer: FakeWriter, notified: list[frozenset[TopicPartition]]) -> None:
        writer.failure = failure
        units = [committer.submit(unit()) for _ in range(3)]
        writer.gate.set()
        assert await asyncio.gather(*units, return_exceptions=True) == [failure] * 3
        writer.failure = None
        await committer.commit(unit())

    run(work)


def test_cancelled_waiter_does_not_disturb_the_others() -> None:
    async def work(committer: GroupCommitter, writer: FakeWriter, notified: list[frozenset[TopicPartition]]) -> None:
        first, second = committer.submit(unit()), committer.submit(unit())
        first.cancel()
        writer.gate.set()
        await second

    assert sum(run(work).commits) == 2


def test_commit_takes_limited_bytes_and_a_larger_unit_is_committed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer_module, "_BYTES_MAX", 100)

    async def work(committer: GroupCommitter, writer: FakeWriter, notified: list[frozenset[TopicPartition]]) -> None:
        sizes = [40, 60, 1, 150, 99, 1, 1]
        units = [committer.submit(unit(b"x" * size)) for size in sizes]
        writer.gate.set()
        results = await asyncio.gather(*units)
        assert [each.first_offset for (each,) in results] == [1, 1, 2, 3, 4, 4, 5]

    assert run(work).commits == [2, 1, 1, 2, 1]


def test_commits_that_fail_again_and_again_are_a_line_a_second_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 0

    async def main() -> None:
        nonlocal now_ms
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

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "a commit of 1 units failed: no space left",
        "a commit of 1 units failed: no space left (3 lines before this one were left out)",
    ]


def test_stop_commits_what_was_submitted_and_closes_the_writer() -> None:
    writer = FakeWriter()

    async def main() -> None:
        committer = GroupCommitter(writer, lambda changed: None, monotonic_ms=lambda: 0)
        await committer.start()
        units = [committer.submit(unit()) for _ in range(5)]
        writer.gate.set()
        await committer.stop()
        await asyncio.gather(*units)

    asyncio.run(main())
    assert sum(writer.commits) == 5
    assert writer.is_closed


def test_read_only_committer_refuses_every_unit() -> None:
    async def main() -> None:
        with pytest.raises(ReadOnlyLogDirError, match="/log"):
            await ReadOnlyCommitter("/log").commit(unit())

    asyncio.run(main())
