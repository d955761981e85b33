"""The common part of the commands for maintenance jobs: options, where they run, exit status.

The options are the same for `kafkalog X`, which runs small jobs in its own process and larger ones in a Spark session
on this machine if Spark is installed, and for `spark-submit jobs/X.py`, which uses the session of spark-submit.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.maintenance.jobs.runner import SOME_FAILED, Job, JobRun, ReportSink, is_small, run_loop, run_once
from pyspark_kafkalog.maintenance.jobs.tasks import (
    LocalTasks,
    SparkTasks,
    StoppedError,
    Tasks,
    has_session,
    is_spark_installed,
    job_session,
    stop_signal,
)
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.path_list import absolute_paths
from pyspark_kafkalog.tools.command import FORMS, UsageError, add_path, positive, time_ms
from pyspark_kafkalog.tools.running import text_formatter
from pyspark_kafkalog.units import NS_PER_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.maintenance.jobs.sinks import JsonLines, TextReport

#: The value of USAGE_EXIT_CODE in the module of such a command.
USAGE_EXIT_CODE: Final = 2
#: The latest time that can be a file's, in ns in 64 bits: in the year 2262.
_TIME_MAX_MS: Final = (1 << 63) // NS_PER_MS


def add_job_arguments(parser: argparse.ArgumentParser, *, needs_path: bool = True) -> None:
    """The common options of maintenance jobs."""
    path_help = (
        "the log directory, in an object store or on a file system that the driver and all executors see (no default)"
    )
    add_path(parser, path_help, required=needs_path)
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be repeated (default: all topics)"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, report what would be done")
    parser.add_argument(
        "--now", type=_now_ms, metavar="TIME", help=f"the time to use as now: {FORMS} (default: the clock's)"
    )
    parser.add_argument("--tasks", type=positive, metavar="N", help="tasks at the same time (default: all cores)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--local", action="store_true", help="run in this process, whatever the amount of work")
    place.add_argument(
        "--spark",
        action="store_true",
        help="run on Spark, whatever the amount of work (default: by its size)",
    )
    parser.add_argument("--loop", action="store_true", help="run again and again, until SIGTERM, SIGINT or SIGHUP")
    parser.add_argument(
        "--interval",
        type=_seconds,
        metavar="SECONDS",
        help="with --loop: the pause between runs (default: see above)",
    )
    parser.add_argument(
        "--history", metavar="TABLE", help="append a row for each partition to this Delta table, a path or a name"
    )
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        help="text: a table and totals; json: one object a line for each partition, when it is done (default: text "
        "on a terminal, else json)",
    )


def job_output(options: argparse.Namespace) -> JsonLines | TextReport:
    """The sink that prints the reports to standard output."""
    from pyspark_kafkalog.maintenance.jobs.sinks import JsonLines, TextReport

    is_text = options.output == "text" or (options.output is None and sys.stdout.isatty())
    return TextReport() if is_text else JsonLines()


def run_job(
    options: argparse.Namespace,
    job: Job,
    *,
    interval_s: Callable[[BrokerConfig], float],
    slots: Callable[[BrokerConfig, int], int] | None = None,
    output: JsonLines | TextReport | None = None,
) -> int:
    """Run the job according to the options; returns the exit status.

    Reports go to `output` (default: the one of the options) and to a progress bar. `interval_s` is the default pause
    between runs of a loop; `slots` returns the number of concurrent tasks, given the number of cores.
    """
    _check(options)
    from pyspark_kafkalog.maintenance.jobs.sinks import HistoryTable, ProgressBar

    log_to_stderr()
    topics = tuple(dict.fromkeys(options.topic)) if options.topic else None
    path = options.path if isinstance(options.path, str) else absolute_paths(options.path)
    job_run = JobRun(path=path, topics=topics, now_ms=options.now, dry_run=options.dry_run)
    pause_s = options.interval
    root = job_run.open()
    job_run = replace(job_run, identity=root.identity)
    native = native_or_none(root)
    if pause_s is None and native is not None:
        pause_s = interval_s(native.broker_config())
    partitions = job.choose(job_run)  # reports mistakes in options before a session is started

    def slots_of(cores: int) -> int | None:
        if options.tasks is not None or slots is None:
            tasks: int | None = options.tasks
            return tasks
        return slots(root.native().broker_config(), cores)

    with stop_signal() as stop, _Workplace(options, job, job_run, slots_of, stop) as workplace:
        history = () if options.history is None else (HistoryTable(options.history, session=workplace.session),)
        all_sinks: tuple[ReportSink, ...] = (ProgressBar(), output or job_output(options), *history)
        try:
            if not options.loop:
                return run_once(job, workplace.tasks, job_run, all_sinks, partitions=partitions)
            return run_loop(
                job,
                workplace.tasks,
                job_run,
                all_sinks,
                interval_s=pause_s,
                stop=stop,
                is_alive=workplace.is_alive,
                partitions=partitions,
            )
        except StoppedError:
            sys.stderr.write(f"kafkalog {job.action}: stopped early; the next run continues\n")
            return SOME_FAILED
        except BaseException:
            stop.set()
            raise


class _Workplace:
    """Runs a job once or repeatedly: small ones in this process, others on Spark, which is started when needed."""

    def __init__(
        self,
        options: argparse.Namespace,
        job: Job,
        job_run: JobRun,
        slots_of: Callable[[int], int | None],
        stop: threading.Event,
    ) -> None:
        self._options = options
        self._job = job
        self._job_run = job_run
        self._slots_of = slots_of
        self._stop = stop
        self._is_on_spark = not options.local and (options.spark or options.history is not None or has_session())
        self._tasks: LocalTasks | None = None
        self._spark: SparkSession | None = None
        self._open = ExitStack()

    def __enter__(self) -> _Workplace:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def tasks(self, partitions: Sequence[TopicPartition]) -> Tasks:
        """The tasks for a run over these partitions. A loop that has started Spark continues to use it."""
        can_move = not self._is_on_spark and not self._options.local and is_spark_installed()
        if can_move and not self._is_small(partitions):
            self._is_on_spark = True
            self._tasks = None
        if self._tasks is None:
            if self._is_on_spark:
                spark = self.session()
                slots = self._slots_of(spark.sparkContext.defaultParallelism)
                self._tasks = SparkTasks(spark, slots=slots, stop=self._stop)
            else:
                self._tasks = LocalTasks(slots=self._slots_of(len(os.sched_getaffinity(0))), stop=self._stop)
            self._open.callback(self._tasks.close)
        return self._tasks

    def session(self) -> SparkSession:
        """The Spark session, which is started by the first call."""
        if self._spark is None:
            session = job_session(f"kafkalog {self._job.action}", delta=self._options.history is not None)
            self._spark = self._open.enter_context(session)
        return self._spark

    def _is_small(self, partitions: Sequence[TopicPartition]) -> bool:
        return is_small(self._job, self._job_run, partitions)

    def is_alive(self) -> bool:
        """Whether another run can start."""
        return self._tasks is None or self._tasks.is_alive


def _check(options: argparse.Namespace) -> None:
    if options.loop and options.now is not None:
        raise UsageError("--now cannot be used with --loop: the time would not advance")
    if options.interval is not None and not options.loop:
        raise UsageError("--interval needs --loop")


def log_to_stderr() -> None:
    """Print the package's log messages to standard error, unless logging is already configured."""
    package = logging.getLogger("pyspark_kafkalog")
    if not package.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(text_formatter())
        logging.basicConfig(handlers=[handler])
        package.setLevel(logging.INFO)


def not_negative(text: str) -> int:
    """The argparse type of numbers of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return int(text)


def _now_ms(text: str) -> int:
    now_ms = time_ms(text)
    if now_ms > _TIME_MAX_MS:
        raise argparse.ArgumentTypeError(f"must be {_TIME_MAX_MS} at most, ms and not a smaller unit, not {text}")
    return now_ms


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return seconds
