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
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, TaskFailedError, Tasks
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)

#: Exit statuses. 2 is for invalid options, see tools/command.py.
ALL_FINE: Final = 0
SOME_FAILED: Final = 1

#: The largest run that runs in this process: bytes of `.log` files, and partitions.
LOCAL_BYTES_MAX: Final = 1 << 30
LOCAL_PARTITIONS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job. `now_ms` is the time to use, None for the clock's. `topics` None: all.

    `identity` is that of the log directory with which the job began, for all runs and tasks; None if it has none.
    """

    path: Path
    identity: RootIdentity | None = None
    topics: tuple[str, ...] | None = None
    now_ms: int | None = None
    dry_run: bool = False

    def open(self) -> Root:
        """The log directory in its current state. Raises LogDirError when there is another one at the path, or none."""
        return open_root(self.path, identity=self.identity)


class Job(Protocol):
    """The work of a run."""

    @property
    def action(self) -> str:
        """The name of the job in reports."""

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        """The partitions to report on, one report each. Runs on the driver, so it should be quick."""

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        """Do the work; yield each partition's report when it is available. A partition's error is in its report."""


class ReportSink(Protocol):
    """A destination of reports: standard output, a progress bar, a table."""

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        """A run begins, with one report to come from each of `partitions_count` partitions."""

    def take(self, report: PartitionReport) -> None:
        """One partition is done."""

    def end(self) -> None:
        """The run is over, also when it ended early."""


#: Returns the tasks for a run over these partitions.
TasksFor = Callable[[Sequence[TopicPartition]], Tasks]


def is_small(root: Path, partitions: Sequence[TopicPartition]) -> bool:
    """Whether a run over these partitions takes less time in this process than Spark takes to start."""
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


def run_once(job: Job, tasks_for: TasksFor, job_run: JobRun, sinks: Sequence[ReportSink]) -> int:
    """Run the job once, and return its exit status.

    Raises StoppedError when it is stopped, and the errors of `choose`.
    """
    partitions = job.choose(job_run)
    status = ALL_FINE
    begun: list[ReportSink] = []
    try:
        for sink in sinks:
            sink.begin(job.action, job_run, len(partitions))
            begun.append(sink)
        tasks = tasks_for(partitions)
        for report in job.run(tasks, job_run, partitions):
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
    job_run: JobRun,
    sinks: Sequence[ReportSink],
    *,
    interval_s: float,
    stop: Event,
    is_alive: Callable[[], bool],
) -> int:
    """Run the job repeatedly until `stop` is set, with `interval_s` between the end of a run and the next one.

    A failed run is logged and the next one tried. The loop ends with SOME_FAILED when the session is gone.
    """
    while not stop.is_set():
        began = time.monotonic()
        try:
            run_once(job, tasks_for, job_run, sinks)
        except StoppedError as error:
            if not stop.is_set():
                _LOG.error("%s", error)
                return SOME_FAILED
            break
        except BrokenPipeError:
            raise
        except Exception as error:
            if not stop.is_set():
                _LOG.error("the run failed: %s: %s", type(error).__name__, error)
        if not is_alive():
            if stop.is_set():
                break
            _LOG.error("the Spark session is gone")
            return SOME_FAILED
        _LOG.info("run finished after %.1f s", time.monotonic() - began)
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


@dataclass(frozen=True, slots=True)
class ChunkJob:
    """A job that is one call of `work` for each chunk of at most `partitions_max` partitions, then one of `finish`.

    `work` and `finish` are module-level functions, so that they can be pickled and sent to tasks. `work` does all of
    its partitions' work, including commits, which the root's lock lets one task make at a time.
    """

    action: str
    work: Callable[[JobRun, Sequence[TopicPartition]], list[PartitionReport]]
    partitions_max: int
    finish: Callable[[JobRun], None] | None = None

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        return job_run.open().native().partitions(job_run.topics)

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        work = partial(self.work, job_run)
        yield from run_chunks(tasks, partitions, work, action=self.action, partitions_max=self.partitions_max)
        if self.finish is not None:
            self.finish(job_run)


def failed(where: TopicPartition, action: str, error: KafkalogError | OSError) -> PartitionReport:
    """The report of a partition of which only the error is known."""
    return PartitionReport(topic=where.topic, partition=where.partition, action=action, error=str(error))
