"""What the commands of maintenance jobs have in common: options, the Spark session, how they end.

The same options serve `kafkalog X`, with a session on this machine, and `spark-submit jobs/X.py`, with that one's.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.spark.delta_session import SPARK_SUBMIT
from pyspark_kafkalog.stop_signal import stop_signal
from pyspark_kafkalog.tools.command import UsageError, add_path, positive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.maintenance.job_runner import Job, ReportSink
    from pyspark_kafkalog.storage.broker_config import BrokerConfig

#: What a module of such a command sets its own USAGE_EXIT_CODE to.
USAGE_EXIT_CODE: Final = 2
#: Files get such times, in ns in 64 bits: in the year 2262.
_TIME_MAX_MS: Final = (1 << 63) // 1_000_000


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every maintenance job."""
    add_path(parser, "the log directory, on a file system that the driver and all executors see (no default)")
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be repeated (default: all topics)"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, report what would be done")
    parser.add_argument(
        "--now", type=_time_ms, metavar="MS", help="the time to go by, in ms since 1970 (default: the clock's)"
    )
    parser.add_argument("--tasks", type=positive, metavar="N", help="tasks at the same time (default: all cores)")
    parser.add_argument("--loop", action="store_true", help="go on, round after round, until SIGTERM or SIGINT")
    parser.add_argument(
        "--interval",
        type=_seconds,
        metavar="SECONDS",
        help="with --loop: the pause between rounds (default: see above)",
    )
    parser.add_argument(
        "--history", metavar="TABLE", help="append a row for each partition to this Delta table, a path or a name"
    )


def run_job(
    options: argparse.Namespace,
    job: Job,
    *,
    interval_s: Callable[[BrokerConfig], float],
    slots: Callable[[BrokerConfig, int], int] | None = None,
    sinks: Sequence[ReportSink] = (),
) -> int:
    """Do the job as the options say; returns the exit status.

    Reports go to standard output as lines of JSON, to a progress bar, and to `sinks`. `interval_s` is the pause between
    rounds of a loop where the options do not give it, `slots` the tasks at once, given the session's cores.
    """
    _check(options)
    from pyspark_kafkalog.maintenance.history_table import HistoryTable
    from pyspark_kafkalog.maintenance.job_runner import SOME_FAILED, Round, run_loop, run_round
    from pyspark_kafkalog.maintenance.report_sinks import JsonLines, ProgressBar
    from pyspark_kafkalog.maintenance.tasks import SparkTasks, StoppedError

    _log_to_stderr()
    topics = tuple(dict.fromkeys(options.topic)) if options.topic else None
    this_round = Round(path=options.path.absolute(), topics=topics, now_ms=options.now, dry_run=options.dry_run)
    pause_s = options.interval
    log_dir = this_round.open()
    if pause_s is None and not log_dir.is_foreign:
        pause_s = interval_s(log_dir.own_root().broker_config())
    job.choose(this_round)  # mistakes in options are told before a session is started
    with stop_signal() as stop, job_session(f"kafkalog {job.action}", delta=options.history is not None) as spark:
        at_once = options.tasks
        if at_once is None and slots is not None:
            at_once = slots(log_dir.own_root().broker_config(), spark.sparkContext.defaultParallelism)
        tasks = SparkTasks(spark, slots=at_once, stop=stop)
        history = () if options.history is None else (HistoryTable(options.history),)
        all_sinks: tuple[ReportSink, ...] = (*history, JsonLines(), ProgressBar(), *sinks)
        try:
            if not options.loop:
                return run_round(job, tasks, this_round, all_sinks)
            return run_loop(
                job, tasks, this_round, all_sinks, interval_s=pause_s, stop=stop, is_alive=lambda: tasks.is_alive
            )
        except StoppedError:
            sys.stderr.write(f"kafkalog {job.action}: ended early, the next run goes on\n")
            return SOME_FAILED
        except BaseException:
            stop.set()
            raise
        finally:
            tasks.close()


def _check(options: argparse.Namespace) -> None:
    if options.loop and options.now is not None:
        raise UsageError("--now and --loop do not go together: the time would stand still")
    if options.interval is not None and not options.loop:
        raise UsageError("--interval is for --loop")


@contextmanager
def job_session(name: str, *, delta: bool = False) -> Iterator[SparkSession]:
    """The session that there is, spark-submit's, or one on all cores of this machine; with Delta if it is made here.

    One that was made for this block ends with it.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SPARK_SUBMIT not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    builder = SparkSession.builder.appName(name)
    if delta:
        from pyspark_kafkalog.spark.delta_session import with_delta

        builder = with_delta(builder)
    if SPARK_SUBMIT not in os.environ:
        builder = (
            builder.master("local[*]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
        )
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        _end(session)


def _end(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:  # a JVM that is gone already
        logging.getLogger(__name__).info("the Spark session had ended: %s", error)


def _log_to_stderr() -> None:
    package = logging.getLogger("pyspark_kafkalog")
    if not package.handlers and not logging.getLogger().handlers:
        logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
        package.setLevel(logging.INFO)


def not_negative(text: str) -> int:
    """The type of options that are a number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return int(text)


def _time_ms(text: str) -> int:
    time_ms = not_negative(text)
    if time_ms > _TIME_MAX_MS:
        raise argparse.ArgumentTypeError(f"must be {_TIME_MAX_MS} at most, ms and not a smaller unit, not {text}")
    return time_ms


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return seconds
