"""Runs maintenance jobs: partitions are processed in tasks, and each partition's report is passed on as it arrives.

A job chooses its partitions and divides them into tasks. The runner executes a job once or repeatedly, passes every
report to the sinks, and turns the outcome into an exit status. The root is on a file system that the driver and all
executors share: a task gets the root's path and names of partitions, and opens everything else itself.

Any process may be killed at any time: the next run finishes the work of a killed task, see the modules of each job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final, Protocol

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, TaskFailedError, Tasks
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)

#: Exit statuses. 2 is for invalid options, see tools/command.py.
ALL_FINE: Final = 0
SOME_FAILED: Final = 1

#: The largest round that runs in this process: bytes of `.log` files, and partitions.
LOCAL_BYTES_MAX: Final = 1 << 30
LOCAL_PARTITIONS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a job. `now_ms` is the time to use, None for the clock's. `topics` None: all.

    `identity` is that of the log directory with which the job began, for all rounds and tasks; None if it has none.
    """

    path: Path
    identity: RootIdentity | None = None
    topics: tuple[str, ...] | None = None
    now_ms: int | None = None
    dry_run: bool = False

    def open(self) -> LogDir:
        """The log directory in its current state. Raises LogDirError when there is another one at the path, or none."""
        return LogDir.open(self.path, identity=self.identity)


class Job(Protocol):
    """The work of a round."""

    @property
    def action(self) -> str:
        """The name of the job in reports."""

    def choose(self, this_round: Round) -> Sequence[TopicPartition]:
        """The partitions to report on, one report each. Runs on the driver, so it should be quick."""

    def run(self, tasks: Tasks, this_round: Round, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        """Do the work; yield each partition's report when it is available. A partition's error is in its report."""


class ReportSink(Protocol):
    """A destination of reports: standard output, a progress bar, a table."""

    def begin(self, action: str, this_round: Round, partitions_count: int) -> None:
        """A round begins, with one report to come from each of `partitions_count` partitions."""

    def take(self, report: PartitionReport) -> None:
        """One partition is done."""

    def end(self) -> None:
        """The round is over, also when it ended early."""


#: Returns the tasks for a round over these partitions.
TasksFor = Callable[[Sequence[TopicPartition]], Tasks]


def is_small(root: Path, partitions: Sequence[TopicPartition]) -> bool:
    """Whether a round over these partitions takes less time in this process than Spark takes to start."""
    if len(partitions) > LOCAL_PARTITIONS_MAX:
        return False
    size_bytes = 0
    for where in partitions:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(root / str(where)) as entries:
            for entry in entries:
                if entry.name.endswith(".log"):
                    with contextlib.suppress(FileNotFoundError):
                        size_bytes += entry.stat(follow_symlinks=False).st_size
        if size_bytes > LOCAL_BYTES_MAX:
            return False
    return True


def run_round(job: Job, tasks_for: TasksFor, this_round: Round, sinks: Sequence[ReportSink]) -> int:
    """Run one round and return its exit status. Raises StoppedError when it is stopped, and the errors of `choose`."""
    partitions = job.choose(this_round)
    status = ALL_FINE
    begun: list[ReportSink] = []
    try:
        for sink in sinks:
            sink.begin(job.action, this_round, len(partitions))
            begun.append(sink)
        tasks = tasks_for(partitions)
        for report in job.run(tasks, this_round, partitions):
            if not report.is_fine:
                status = SOME_FAILED
            for sink in sinks:
                sink.take(report)
    finally:
        for sink in begun:
            sink.end()
    return status


def run_loop(
    job: Job,
    tasks_for: TasksFor,
    this_round: Round,
    sinks: Sequence[ReportSink],
    *,
    interval_s: float,
    stop: Event,
    is_alive: Callable[[], bool],
) -> int:
    """Run rounds, with `interval_s` between the end of one and the beginning of the next, until `stop` is set.

    A failed round is logged and the next one tried. The loop ends with SOME_FAILED when the session is gone.
    """
    while not stop.is_set():
        began = time.monotonic()
        try:
            run_round(job, tasks_for, this_round, sinks)
        except StoppedError as error:
            if not stop.is_set():
                _LOG.error("%s", error)
                return SOME_FAILED
            break
        except BrokenPipeError:
            raise
        except Exception as error:
            if not stop.is_set():
                _LOG.error("the round failed: %s: %s", type(error).__name__, error)
        if not is_alive():
            if stop.is_set():
                break
            _LOG.error("the Spark session is gone")
            return SOME_FAILED
        _LOG.info("round over after %.1f s", time.monotonic() - began)
        stop.wait(interval_s)
    return ALL_FINE


def run_chunks(
    tasks: Tasks,
    partitions: Sequence[TopicPartition],
    work: Callable[[Sequence[TopicPartition]], list[PartitionReport]],
    *,
    action: str,
    partitions_max: int = 1,
) -> Iterator[PartitionReport]:
    """Call `work`, which must be picklable, on all partitions, with up to `partitions_max` of them in each task.

    Tasks get fewer partitions if that keeps all slots busy. A failed task yields a failed report for each of its
    partitions.
    """
    chunk_size = min(partitions_max, max(-(-len(partitions) // tasks.slots), 1))
    chunks = [partitions[at : at + chunk_size] for at in range(0, len(partitions), chunk_size)]
    futures: dict[Future[list[PartitionReport]], Sequence[TopicPartition]] = {
        tasks.submit(partial(work, tuple(chunk))): chunk for chunk in chunks
    }
    for future in tasks.as_completed(futures):
        try:
            yield from future.result()
        except TaskFailedError as error:
            for where in futures[future]:
                yield failed(where, action, error)


def failed(where: TopicPartition, action: str, error: KafkalogError | OSError) -> PartitionReport:
    """The report of a partition of which only the error is known."""
    return PartitionReport(topic=where.topic, partition=where.partition, action=action, error=str(error))
