"""Work done elsewhere: one function call, one Spark task, its result back as soon as it is there.

Each call is a Spark job of its own with a single task, submitted by a thread of a small pool. That costs some ten
milliseconds a call, and buys what a job over many tasks cannot give: results that come in one by one, an order of the
caller's choice, and a task that is lost (an executor killed, a worker out of memory) costs its own result alone. On a
cluster Spark tries a lost task again elsewhere, so calls are things that can be done twice.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pyspark_kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.25

T = TypeVar("T")


class TaskFailedError(KafkalogError, RuntimeError):
    """What a task raised, in one line, or how Spark lost it."""


class StoppedError(KafkalogError, RuntimeError):
    """The run was told to end."""


class Tasks(Protocol):
    """Somewhere to run functions. `slots`: how many run at once."""

    slots: int

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have `work`, which must be picklable, called somewhere, after what was submitted before.

        The future raises TaskFailedError where the call failed.
        """

    def as_completed(self, futures: Collection[Future[T]]) -> Iterator[Future[T]]:
        """The futures as they are done. Raises StoppedError, with the rest cancelled, when the run is told to end."""


class SparkTasks:
    """Tasks of a session that is there already; `slots` by default as many as it has cores.

    Ends what it has under way, and nothing else of the session's, when `stop` is set.
    """

    def __init__(self, spark: SparkSession, *, slots: int | None = None, stop: threading.Event | None = None) -> None:
        self._context = spark.sparkContext
        self.slots = max(slots or self._context.defaultParallelism, 1)
        self.stop = stop or threading.Event()
        self._tag = f"kafkalog-{uuid.uuid4().hex}"
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="kafkalog-task")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._pool.submit(self._run, work)

    def as_completed(self, futures: Collection[Future[T]]) -> Iterator[Future[T]]:
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            if self.stop.is_set():
                self.cancel(pending)
                raise StoppedError("told to end")
            yield from done

    def cancel(self, futures: Collection[Future[Any]]) -> None:
        """Let none of these begin, and end what is running."""
        for future in futures:
            future.cancel()
        if self.is_alive:
            self._context.cancelJobsWithTag(self._tag)

    @property
    def is_alive(self) -> bool:
        """Whether the session can still be used."""
        try:
            return self._context._jsc is not None and not self._context._jsc.sc().isStopped()
        except Exception:  # py4j's errors for a JVM that is gone have no common base
            return False

    def close(self) -> None:
        """Wait for what is under way, then let go of the threads; the session stays."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, work: Callable[[], T]) -> T:
        if self.stop.is_set():
            raise StoppedError("told to end")
        self._context.addJobTag(self._tag)
        try:
            outcome = self._context.parallelize([0], 1).map(lambda _: _attempt(work)).collect()[0]
        except Exception as error:
            raise TaskFailedError(_lost(error)) from error
        if isinstance(outcome, _Failure):
            raise TaskFailedError(outcome.text)
        return outcome


class _Failure:
    """An error on its way back from a task: its text alone, as not every error survives pickling."""

    def __init__(self, text: str) -> None:
        self.text = text


def _attempt(work: Callable[[], T]) -> T | _Failure:
    """Runs in the task. Another attempt would raise what `work` raises again, so it is brought back as a result."""
    try:
        return work()
    except (KafkalogError, OSError) as error:
        return _Failure(str(error))
    except Exception as error:
        _LOG.exception("a maintenance task failed")
        return _Failure(f"{type(error).__name__}: {error}")


def _lost(error: Exception) -> str:
    """Spark's own words for a task that was lost, the first line of them."""
    text = str(getattr(error, "java_exception", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"the task was lost: {lines[0] if lines else type(error).__name__}"
