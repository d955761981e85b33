"""Tasks that fetch ranges for a follower, here in threads, and the `TaskLeader` that begins them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

from pyspark_kafkalog.maintenance.jobs.tasks import LocalTasks, TaskFailedError
from pyspark_kafkalog.replication.leader import FetchPosition
from pyspark_kafkalog.replication.range_task import LeaderAddress
from pyspark_kafkalog.replication.task_leader import TaskLeader
from pyspark_kafkalog.root.native import NativeRoot

T = TypeVar("T")
RANGE_BYTES: Final = 8_000


class CountedTasks(LocalTasks):
    """Tasks in threads. Every n-th is lost after it has done its work, as by the end of an executor."""

    def __init__(self, *, lost_every: int = 0) -> None:
        super().__init__(slots=3)
        self.calls = 0
        self._lost_every = lost_every
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
        with self._lock:
            self.calls += 1
            is_lost = self._lost_every and self.calls % self._lost_every == 0

        def call() -> T:
            found = work()
            if is_lost:
                raise TaskFailedError("the task was lost: the worker was killed")
            return found

        return super().submit(call, first=first)


@contextmanager
def task_leader_of(
    leader_path: Path, root: NativeRoot, tasks: LocalTasks, *, range_bytes: int = RANGE_BYTES
) -> Iterator[TaskLeader]:
    """`root` is that of the follower."""
    address = LeaderAddress(str(leader_path))
    with closing(TaskLeader(address.open(), address, tasks, root, range_bytes=range_bytes)) as made:
        try:
            yield made
        finally:
            tasks.close()


def answer_little(monkeypatch: pytest.MonkeyPatch, max_bytes: int = 2000) -> None:
    """What the leader itself answers is small, so that most records come from tasks."""
    asked = TaskLeader._ask

    def ask(self: TaskLeader, source: str, positions: list[FetchPosition], **limits: int) -> list[object]:
        limits |= {"max_bytes": max_bytes, "partition_bytes": max_bytes}
        return asked(self, source, positions, **limits)  # type: ignore[return-value]

    monkeypatch.setattr(TaskLeader, "_ask", ask)
