"""Runs functions as tasks: each call is one task, and its result is available as soon as it is done.

`LocalTasks` calls them in threads of this process, for work that takes less time than Spark needs to start.
`SparkTasks` submits each call as a Spark job with a single task, from a small pool of threads. That costs about ten
milliseconds for each call, and has advantages over one job with many tasks: results arrive one by one, the caller
chooses the order, and a lost task (a killed executor, a worker out of memory) loses only its own result. On a cluster
Spark retries a lost task elsewhere, so calls must be repeatable.

`stop_signal` sets an event on SIGTERM, SIGINT and SIGHUP, which tasks check where they can stop. `Throttle`
limits the bytes that one task reads and writes in a second.

`job_session` is the process's Spark session or a new one on this machine, with Delta if needed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import logging
import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.threads import starts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)

#: log.cleaner.io.max.bytes.per.second of Kafka's default: no limit.
NO_LIMIT: Final = float("inf")
_BURST_S: Final = 0.3  # Kafka's throttler uses intervals of 300 ms
_POLL_S: Final = 0.25

#: Delta's SQL extension, its catalog, and its jars as Maven names them.
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
_SNAPSHOT_TASKS: Final = "spark.databricks.delta.snapshotPartitions"
_SNAPSHOT_TASKS_MAX: Final = 50  # Delta's default
#: spark-submit sets it for the Python process that it starts: the port of its JVM.
SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"

#: Priorities in the queue of calls.
_FIRST, _IN_TURN, _LAST = range(3)

T = TypeVar("T")


class TaskFailedError(KafkalogError, RuntimeError):
    """The error that a task raised, in one line, or how Spark lost it."""


class StoppedError(KafkalogError, RuntimeError):
    """The run was stopped, or can no longer run tasks."""


class Tasks(Protocol):
    """A place to run functions. `slots`: the number that run concurrently."""

    slots: int

    @property
    def is_alive(self) -> bool:
        """Whether further calls can be made."""

    def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
        """Have `work`, which must be picklable, called in a task.

        Calls run in the order of submission, but those with `first` before the others. The future raises
        TaskFailedError if the call failed.
        """

    def as_completed(self, futures: Collection[Future[T]]) -> Iterator[Future[T]]:
        """The futures as they complete.

        Raises StoppedError, with the remaining futures cancelled, when the run is stopped or can no longer run tasks.
        """


class LocalTasks:
    """Tasks in threads of this process; `slots` is the number of cores by default.

    When `stop` is set no further call begins. A call that has begun is abandoned until the end of the process:
    maintenance may be killed at any time.
    """

    #: Whether `close` abandons running calls after a stop. `SparkTasks` can end them.
    _abandons_calls: ClassVar[bool] = True

    def __init__(self, *, slots: int | None = None, stop: threading.Event | None = None) -> None:
        self.slots = max(slots or len(os.sched_getaffinity(0)), 1)
        self._stop = stop or threading.Event()
        self._numbers = itertools.count()
        self._waiting: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        # bounded: a setting. Without any thread, `as_completed` makes the calls.
        threads = (threading.Thread(target=self._serve, daemon=True) for _ in range(self.slots))
        self._threads = list(itertools.takewhile(starts, threads))

    def submit(self, work: Callable[[], T], *, first: bool = False) -> Future[T]:
        """Have `work` called by one of the threads; see `Tasks.submit`."""
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._run(work))
                except BaseException as error:
                    future.set_exception(error)

        self._waiting.put((_FIRST if first else _IN_TURN, next(self._numbers), call))
        return future

    def as_completed(self, futures: Collection[Future[T]]) -> Iterator[Future[T]]:
        """The futures as they complete; see `Tasks.as_completed`."""
        done: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(done.put)
        left = len(futures)
        while left:
            if not self._threads:
                self._call_next()
            with contextlib.suppress(queue.Empty):
                future = done.get(timeout=_POLL_S)
                left -= 1
                self._check_failure(future)
                yield future
            if self._stop.is_set():
                self._cancel(futures)
                raise StoppedError("the run was stopped")

    @property
    def is_alive(self) -> bool:
        """Whether further calls can be made."""
        return True

    def close(self) -> None:
        """Wait for the running calls, except after a stop."""
        if self._stop.is_set():
            self._cancel(())
        for _ in self._threads:
            self._waiting.put((_LAST, next(self._numbers), _end_thread))
        if self._stop.is_set() and self._abandons_calls:
            return
        for thread in self._threads:
            thread.join()

    def _call_next(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._waiting.get(block=False)[2]()

    def _cancel(self, futures: Collection[Future[T]]) -> None:
        """Cancel the futures whose calls have not begun."""
        for future in futures:
            future.cancel()

    def _check_failure(self, future: Future[T]) -> None:
        """Raise StoppedError if the call failed because tasks can no longer run."""

    def _run(self, work: Callable[[], T]) -> T:
        if self._stop.is_set():
            raise StoppedError("the run was stopped")
        return _result(_attempt(work))

    def _serve(self) -> None:
        while True:
            _, _, call = self._waiting.get()
            if call is _end_thread:
                return
            call()


class SparkTasks(LocalTasks):
    """Tasks of an existing session; `slots` is the number of its cores by default.

    When `stop` is set it ends its own running calls, and nothing else of the session.
    """

    _abandons_calls: ClassVar[bool] = False

    def __init__(self, spark: SparkSession, *, slots: int | None = None, stop: threading.Event | None = None) -> None:
        self._context = spark.sparkContext
        self._tag = f"kafkalog-{uuid.uuid4().hex}"
        super().__init__(slots=slots or self._context.defaultParallelism, stop=stop)

    @property
    def is_alive(self) -> bool:
        """Whether the session can still be used."""
        try:
            return not self._context._jsc.sc().isStopped()
        except Exception:  # py4j's errors for a JVM that is gone have no common base
            return False

    def _check_failure(self, future: Future[T]) -> None:
        """Failures caused by the end of the session are not failures of the partition, and raise StoppedError."""
        if not future.cancelled() and isinstance(future.exception(), TaskFailedError) and not self.is_alive:
            raise StoppedError("the Spark session is gone")

    def _cancel(self, futures: Collection[Future[T]]) -> None:
        """Cancel the futures whose calls have not begun, and end all running ones."""
        super()._cancel(futures)
        if self.is_alive:
            self._context.cancelJobsWithTag(self._tag)

    def _run(self, work: Callable[[], T]) -> T:
        if self._stop.is_set():
            raise StoppedError("the run was stopped")
        self._context.addJobTag(self._tag)
        try:
            outcome = self._context.parallelize([0], 1).map(lambda _: _attempt(work)).collect()[0]
        except Exception as error:
            if self._stop.is_set():
                raise StoppedError("the run was stopped") from error
            raise TaskFailedError(_lost(error)) from error
        return _result(outcome)


def _end_thread() -> None:
    """Marks the end of a thread in the queue of calls."""


class _Failure:
    """The text of an error in a task, returned to the driver: not every error can be pickled."""

    def __init__(self, text: str) -> None:
        self.text = text


def _attempt(work: Callable[[], T]) -> T | _Failure:
    """Call `work` in the task. An error is returned as a result, since a retry by Spark would only raise it again."""
    try:
        return work()
    except (KafkalogError, OSError) as error:
        return _Failure(str(error))
    except Exception as error:
        _LOG.exception("a maintenance task failed")
        return _Failure(f"{type(error).__name__}: {error}")


def _result(outcome: T | _Failure) -> T:
    """The outcome of a call. Raises TaskFailedError for a failure."""
    if isinstance(outcome, _Failure):
        raise TaskFailedError(outcome.text)
    return outcome


def _lost(error: Exception) -> str:
    """Why Spark lost a task, without stack traces: the Python error, or else why the stage failed."""
    text = str(getattr(error, "java_exception", None) or error).rpartition("most recent failure: ")[2]
    _, is_raised, traceback = text.partition("Traceback (most recent call last):")
    raised = [line for line in traceback.splitlines() if line and not line[0].isspace()] if is_raised else []
    lines = raised or [line.strip() for line in text.splitlines() if line.strip()]
    return f"the task was lost: {lines[0] if lines else type(error).__name__}"


class Throttle:
    """A token bucket that fills at the given rate, up to 300 ms' worth; a caller waits until its bytes are available.

    `clock` and `sleep` are in seconds; the clock must be monotonic.
    """

    def __init__(
        self,
        bytes_per_second: float = NO_LIMIT,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"expected a rate above 0 bytes per second, found {bytes_per_second}")
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._burst = bytes_per_second * _BURST_S
        self._tokens = self._burst
        self._then = clock()

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may be read or written."""
        if self._rate == NO_LIMIT:
            return
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate) - size_bytes
        self._then = now
        if self._tokens < 0:
            self._sleep(-self._tokens / self._rate)


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a service: SIGTERM, SIGINT, and SIGHUP of a closed terminal unless nohup has ignored it."""
    has_hang_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if has_hang_up else (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """An event that the first of `ending_signals` sets. A second signal is handled as before the block.

    Outside of the main thread, where Python allows no signal handlers, the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in ending_signals()}

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """`builder` with Delta's SQL extension and catalog, and with its jars if this process starts the JVM."""
    builder = builder.config("spark.sql.extensions", EXTENSION).config("spark.sql.catalog.spark_catalog", CATALOG)
    if SPARK_SUBMIT in os.environ:
        return builder  # spark-submit has started the JVM, with the jars that it was given
    from delta import configure_spark_with_delta_pip

    return configure_spark_with_delta_pip(builder)


def import_delta() -> None:
    """Import Delta's package if this process starts the JVM. Raises ModuleNotFoundError.

    Jobs with Delta call this before they import pyspark: without both packages, the error is the one for the extra
    `delta`, which installs a Spark that fits Delta. The extra `spark` may install a later one.
    """
    if SPARK_SUBMIT not in os.environ:
        importlib.import_module("delta")


def check_delta(spark: SparkSession) -> None:
    """Raises InvalidOptionError if the session's JVM does not have Delta."""
    jvm: Any = spark.sparkContext._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(EXTENSION):
        raise InvalidOptionError(
            "the Spark session has no Delta: run the job with python, which fetches Delta's jars, or with "
            f"spark-submit --packages {PACKAGE}"
        )


def bound_snapshot_tasks(spark: SparkSession) -> None:
    """Have Delta read a table's log in as many tasks as there are cores, and not in its 50, unless the user says."""
    if spark.conf.get(_SNAPSHOT_TASKS, None) is None:
        spark.conf.set(_SNAPSHOT_TASKS, min(spark.sparkContext.defaultParallelism, _SNAPSHOT_TASKS_MAX))


def is_spark_installed() -> bool:
    """Whether this environment has pyspark."""
    return importlib.util.find_spec("pyspark") is not None


def has_session() -> bool:
    """Whether this process has a Spark session, or gets one from spark-submit."""
    if SPARK_SUBMIT in os.environ:
        return True
    pyspark_sql = sys.modules.get("pyspark.sql")
    return pyspark_sql is not None and pyspark_sql.SparkSession.getActiveSession() is not None


def active_session() -> SparkSession:
    """The session of this process; a new one if it has none."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


@contextmanager
def job_session(name: str, *, delta: bool = False) -> Iterator[SparkSession]:
    """The existing session, spark-submit's, or a new one on all cores of this machine, with Delta if `delta`.

    A session created for this block is stopped at its end. Raises ModuleNotFoundError without Spark, or without Delta.
    """
    if delta:
        import_delta()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SPARK_SUBMIT not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    builder = SparkSession.builder.appName(name)
    if delta:
        builder = with_delta(builder)
    session = builder.getOrCreate() if SPARK_SUBMIT in os.environ else _start_here(builder)
    try:
        yield session
    finally:
        _end(session)


def _start_here(builder: SparkSession.Builder) -> SparkSession:
    """Start a session on this machine. What its JVM prints meanwhile, as its banner, is only shown if that fails."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    builder = (
        builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    if SparkContext._gateway is not None:  # a JVM is running, and has printed its banner
        return builder.getOrCreate()
    conf = SparkConf().setAll([(name, str(value)) for name, value in builder._options.items()])
    with _held_back_stderr() as stderr_fd:
        launch: Any = launch_gateway  # untyped
        SparkContext(conf=conf, gateway=launch(conf, {"stderr": stderr_fd}))
        return builder.getOrCreate()


@contextmanager
def _held_back_stderr() -> Iterator[int]:
    """A file for the standard error of another process: until the end of the block it is held back.

    After the block it goes to this process' standard error, with the part that was held back if the block failed.
    """
    read_fd, write_fd = os.pipe()
    held: list[bytes] | None = []
    lock = threading.Lock()

    def copy() -> None:
        with os.fdopen(read_fd, "rb", buffering=0) as stream:
            while data := stream.read(1 << 16):
                with lock:
                    if held is None:
                        _to_stderr(data)
                    else:
                        held.append(data)

    def let_through(*, with_held: bool) -> None:
        nonlocal held
        with lock:
            if with_held and held:
                _to_stderr(b"".join(held))
            held = None

    if not starts(threading.Thread(target=copy, daemon=True)):
        os.close(read_fd)
        os.close(write_fd)
        yield 2  # shown as it comes
        return
    try:
        yield write_fd
    except BaseException:
        let_through(with_held=True)
        raise
    else:
        let_through(with_held=False)
    finally:
        os.close(write_fd)


def _to_stderr(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]


def _end(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:  # the JVM has already ended
        _LOG.info("the Spark session had ended: %s", error)


def is_path(table: str) -> bool:
    """Whether `table` is a path (it contains a slash) and not a name in the catalog."""
    return "/" in table
