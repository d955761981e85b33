"""Workers of a host whose committer is killed and comes back at random: nothing acknowledged is lost, nothing doubled.

Each step hands a batch to a worker, holds or releases the committer's commits, kills the committer, with the commit
under way or without it, starts another one, or kills a worker. Producers with sequences are known by their partition,
those without write to a partition of their own. At the end the log is compared with what was answered.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builders.controlled import create_log_dir
from builders.leader_writers import T0, append, batch
from fakes.hosts import BareWorker, Host, Worker
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from tiers import examples

from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.server.host.channel import CheckedFor

WORKERS = 2
#: A commit that has not begun then is held back by an earlier one, or the worker has no connection.
_TURNS_TO_BEGIN = 30
#: Partitions 0 and 1 have a producer with sequences each, 2 and 3 get batches without, 4 those of a killed worker.
WITHOUT, OF_KILLED, PARTITIONS = (2, 3), 4, 5

OTHERS = ("hold", "release", "turn", "answers", "kill", "kill after the commit", "start", "worker gone")
STEPS = st.lists(
    st.tuples(st.one_of(st.just("submit"), st.sampled_from(OTHERS)), st.integers(0, 3)), min_size=5, max_size=40
)


@dataclass
class Run:
    """One example: its workers and committer, and what was submitted to each partition, in order."""

    path: Path
    address: Path
    workers: list[Worker] = field(default_factory=list)
    host: Host | None = None
    submitted: dict[int, list[tuple[bytes, asyncio.Future[tuple[AppendedRange, ...]]]]] = field(
        default_factory=lambda: {each: [] for each in range(PARTITIONS - 1)}
    )
    of_killed: list[bytes] = field(default_factory=list)

    async def __call__(self, steps: Sequence[tuple[str, int]]) -> None:
        self.workers = [Worker(self.address, self.path) for _ in range(WORKERS)]
        self.host = Host(self.address, self.path)
        try:
            for each in self.workers:
                await each.committer.start()
            for step in steps:
                await self.step(*step)
            self.release()
            await asyncio.wait_for(self.answers(), PATIENCE_S)
        finally:
            self.release()
            for each in self.workers:
                await each.committer.stop()
            if self.host is not None:
                self.host.stop()

    def release(self) -> None:
        if self.host is not None:
            self.host.gate.set()

    async def answers(self) -> None:
        futures = [future for some in self.submitted.values() for _, future in some]
        await asyncio.gather(*futures, return_exceptions=True)

    async def step(self, kind: str, partition: int) -> None:
        if kind == "submit":
            self.submit(partition)
        elif kind == "turn":
            await asyncio.sleep(0.001)
        elif kind == "answers" and (self.host is None or self.host.gate.is_set()):
            await self.answers()
        elif kind == "start" and self.host is None:
            self.host = Host(self.address, self.path)
        elif self.host is not None:
            if kind == "hold":
                self.host.gate.clear()
            elif kind == "release":
                self.host.gate.set()
            elif kind == "worker gone":
                self.lose_worker()
            elif kind.startswith("kill"):
                await self.kill(self.host, partition, commits=kind != "kill")

    async def kill(self, host: Host, partition: int, *, commits: bool) -> None:
        """Kill the committer, if possible with a commit under way."""
        host.gate.clear()
        begun = host.begun
        self.submit(partition)
        for _ in range(_TURNS_TO_BEGIN):
            await asyncio.sleep(0.001)
            if host.begun > begun:
                break
        self.host = None
        host.kill(commits=commits)

    def submit(self, partition: int) -> None:
        some = self.submitted[partition]
        value = b"%d.%d" % (partition, len(some))
        producer = (-1, -1, -1) if partition in WITHOUT else (partition, 0, len(some))
        unit = CommitUnit.of(append(batch([value], producer=producer), partition=partition))
        some.append((value, self.workers[partition % WORKERS].committer.submit(unit)))

    def lose_worker(self) -> None:
        """A further worker sends batches, and ends without its answers."""
        root = self.workers[0].served.root
        image = root.store.image
        worker = BareWorker(self.address, CheckedFor("a", None, root.configs.of(image, image.topic("a"))))
        values = [b"killed.%d" % (len(self.of_killed) + at) for at in range(3)]
        worker.send(*(batch([each]) for each in values), partition=OF_KILLED)
        worker.close()
        self.of_killed += values

    def check(self) -> None:
        for partition, some in self.submitted.items():
            log = self.workers[0].served.values(partition=partition)
            assert len(set(log)) == len(log)
            for value, future in some:
                error = future.exception()
                if error is None:
                    (found,) = future.result()
                    assert log[found.first_offset] == value
                    assert found.first_offset == found.last_offset
                else:
                    assert isinstance(error, CommitStateUnknownError)
                    assert partition in WITHOUT
            if partition not in WITHOUT:
                assert log == [value for value, _ in some]
            else:
                answered = {value for value, future in some if future.exception() is None}
                assert answered <= set(log) <= {value for value, _ in some}
        found = self.workers[0].served.values(partition=OF_KILLED)
        assert len(set(found)) == len(found)
        assert set(found) <= set(self.of_killed)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(STEPS)
def test_acknowledged_batches_are_in_the_log_once_whoever_is_killed(steps: Sequence[tuple[str, int]]) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        create_log_dir(home / "log", clock=lambda: T0).create_topic("a", PARTITIONS)
        run = Run(home / "log", home / "committer")
        asyncio.run(run(steps))
        run.check()
    finally:
        shutil.rmtree(home)
