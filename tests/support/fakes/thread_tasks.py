"""Maintenance tasks run by threads of this process: what is handed over is pickled as Spark would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

from pyspark import cloudpickle

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.tasks import TaskFailedError

T = TypeVar("T")


class ThreadTasks:
    """`lose(number)` says whether the task submitted as number so and so is to be lost, as when an executor dies."""

    def __init__(self, slots: int = 2, *, lose: Callable[[int], bool] = lambda number: False) -> None:
        self.slots = slots
        self.submitted = 0
        self._lose = lose
        self._pool = ThreadPoolExecutor(slots)

    def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
        number = self.submitted
        self.submitted += 1
        return self._pool.submit(self._run, number, cloudpickle.dumps(work))

    def as_completed(self, futures: Collection[Future[T]]) -> Iterator[Future[T]]:
        return as_completed(list(futures))

    def _run(self, number: int, pickled: bytes) -> T:
        if self._lose(number):
            raise TaskFailedError("the task was lost: its executor died")
        try:
            return cloudpickle.loads(cloudpickle.dumps(cloudpickle.loads(pickled)()))
        except (KafkalogError, OSError) as error:
            raise TaskFailedError(str(error)) from error
