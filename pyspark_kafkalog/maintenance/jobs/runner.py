"""Runs maintenance jobs: partitions are processed in tasks, and each partition's report is passed on as it arrives.

A job chooses its partitions and divides them into tasks. The runner executes a job once or repeatedly, passes every
report to the sinks, and turns the outcome into an exit status. The root is on a file system that the driver and all
executors share, or in an object store: a task gets its path or URL and names of partitions, and opens everything else
itself.

Any process may be killed at any time: the next run finishes the work of a killed task, see the modules of each job.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final, Protocol, TypeVar

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, failed
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, TaskFailedError, Tasks
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.below_root import split_paths
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, partition_path, segment_file

_LOG: Final = logging.getLogger(__name__)

#: Exit statuses. 2 is for invalid options, see tools/command.py.
ALL_FINE: Final = 0
SOME_FAILED: Final = 1

#: A run that reads more bytes of logs than this is worth the start of Spark.
LOCAL_BYTES_MAX: Final = 1 << 30

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job. `now_ms` is the time to use, None for the clock's. `topics` None: all.

    `path` may be the URL of a place in an object store; tasks take its settings from their environment. `identity` is
    that of the log directory with which the job began, for all runs and tasks; None if it has none.
    """

    path: Path | str
    identity: RootIdentity | None = None
    topics: tuple[str, ...] | None = None
    now_ms: int | None = None
    dry_run: bool = False

    def open(self) -> Root:
        """The log directory in its current state. Raises LogDirError when there is another one at the path, or none."""
        return open_root(self.path, identity=self.identity)


def partitions_to_work_on(
    root: NativeRoot, topics: Collection[str] | None, partitions: Collection[TopicPartition] | None
) -> list[TopicPartition]:
    """`partitions`, or all of `topics`, or all, in order, after a refresh of the root. Raises UnknownTopicError."""
    root.refresh()
    return sorted(root.partitions(topics) if partitions is None else partitions)


class Job(Protocol):
    """The work of a run."""

    @property
    def action(self) -> str:
        """The name of the job in reports."""

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        """The partitions to report on, one report each. Runs on the driver, so it should be quick."""

    def bytes_to_read(self, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
        """The bytes of logs that a run over these partitions reads, in parts: the caller stops at its limit.

        A partition that cannot be looked at counts nothing: its report says why.
        """

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        """Do the work; yield each partition's report when it is available. A partition's error is in its report."""


class ReportSink(Protocol):
    """A destination of reports: standard output, a progress bar, a table."""

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        """A run begins, with one report to come from each of `partitions_count` partitions, and a few more at most."""

    def take(self, report: PartitionReport) -> None:
        """One partition is done."""

    def end(self) -> None:
        """The run is over, also when it ended early."""


#: Returns the tasks for a run over these partitions.
TasksFor = Callable[[Sequence[TopicPartition]], Tasks]


def is_small(job: Job, job_run: JobRun, partitions: Sequence[TopicPartition]) -> bool:
    """Whether a run over these partitions takes less time in this process than Spark takes to start."""
    left_bytes = LOCAL_BYTES_MAX
    for size_bytes in job.bytes_to_read(job_run, partitions):
        left_bytes -= size_bytes
        if left_bytes < 0:
            return False
    return True


def stored_bytes(job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
    """The sizes of all parts of the partitions' logs, for jobs that read everything; see `Job.bytes_to_read`."""
    if isinstance(job_run.path, str):
        image = job_run.open().native().store.image
        found = (image.find(each.topic, each.partition) for each in partitions)  # none of the metadata log
        yield from (each.extents_bytes for each in found if each is not None)
        return
    for directory in (partition_path(root, each) for root in split_paths(job_run.path) for each in partitions):
        with contextlib.suppress(OSError):
            for base_offset in PartitionListing.read(directory).base_offsets:
                with contextlib.suppress(FileNotFoundError):
                    yield segment_file(directory, base_offset, LOG_SUFFIX).lstat().st_size


def run_once(
    job: Job,
    tasks_for: TasksFor,
    job_run: JobRun,
    sinks: Sequence[ReportSink],
    *,
    partitions: Sequence[TopicPartition] | None = None,
) -> int:
    """Run the job once, and return its exit status. `partitions` are those that it has chosen already, if it has.

    Sinks begin in order and end in the reverse order. Raises StoppedError when the run is stopped, and the errors of
    `choose`.
    """
    chosen = job.choose(job_run) if partitions is None else partitions
    status = ALL_FINE
    with contextlib.ExitStack() as begun:
        for sink in sinks:
            sink.begin(job.action, job_run, len(chosen))
            begun.callback(sink.end)
        for report in job.run(tasks_for(chosen), job_run, chosen):
            if not report.is_fine:
                status = SOME_FAILED
            for sink in sinks:
                sink.take(report)
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
    partitions: Sequence[TopicPartition] | None = None,
) -> int:
    """Run the job repeatedly until `stop` is set, with `interval_s` between the end of a run and the next one.

    A failed run is logged and the next one tried. The loop ends with SOME_FAILED when the session is gone.
    `partitions` are those of the first run, if the job has chosen them already.
    """
    while not stop.is_set():
        began = time.monotonic()
        try:
            run_once(job, tasks_for, job_run, sinks, partitions=partitions)
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
        partitions = None
        stop.wait(interval_s)
    return ALL_FINE


def chunks(partitions: Sequence[TopicPartition], slots: int, partitions_max: int) -> list[Sequence[TopicPartition]]:
    """Up to `partitions_max` partitions for each task, fewer if that keeps all slots busy."""
    chunk_size = min(partitions_max, max(-(-len(partitions) // slots), 1))
    return [partitions[at : at + chunk_size] for at in range(0, len(partitions), chunk_size)]


def even_slices(sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """The first and the end of at most `count` slices of neighbours, whose sums of `sizes` are about equal."""
    total = max(sum(sizes), 1)
    slices: list[list[int]] = [[] for _ in range(count)]  # bounded: a setting
    done = 0
    for number, size in enumerate(sizes):
        slices[min((done + size // 2) * count // total, count - 1)].append(number)
        done += size
    return [(numbers[0], numbers[-1] + 1) for numbers in slices if numbers]


def run_chunks(
    tasks: Tasks,
    partitions: Sequence[TopicPartition],
    work: Callable[[Sequence[TopicPartition]], list[Result]],
    *,
    action: str,
    partitions_max: int = 1,
) -> Iterator[Result | PartitionReport]:
    """Call `work`, which must be picklable, on all partitions, with up to `partitions_max` of them in each task.

    Yields the results as tasks complete. A failed task yields a failed report for each of its partitions.
    """
    yield from run_groups(tasks, chunks(partitions, tasks.slots, partitions_max), work, action=action)


def run_groups(
    tasks: Tasks,
    groups: Sequence[Sequence[TopicPartition]],
    work: Callable[[Sequence[TopicPartition]], list[Result]],
    *,
    action: str,
) -> Iterator[Result | PartitionReport]:
    """As `run_chunks`, with a task for each group."""
    futures: dict[Future[list[Result]], Sequence[TopicPartition]] = {
        tasks.submit(partial(work, tuple(group))): group for group in groups
    }
    for future in tasks.as_completed(futures):
        try:
            yield from future.result()
        except TaskFailedError as error:
            for topic_partition in futures[future]:
                yield failed(topic_partition, action, error)


def all_partitions(job_run: JobRun) -> Sequence[TopicPartition]:
    """All partitions of the run's topics. Raises ReadOnlyLogDirError, UnknownTopicError."""
    return job_run.open().native().partitions(job_run.topics)


def no_logs_are_read(job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
    """For `PartitionsJob.sizes`: the job reads no logs."""
    return iter(())


def known_sizes(partitions: Sequence[TopicPartition], size: Callable[[TopicPartition], int]) -> Iterator[int]:
    """`size` of each partition that has one; a partition that cannot be looked at counts nothing."""
    for topic_partition in partitions:
        with contextlib.suppress(KafkalogError, OSError):
            size_bytes = size(topic_partition)
            if size_bytes:
                yield size_bytes


class PartitionsWork(Protocol):
    """What a job does with some partitions of a root, with one report for each: a function that users call, too."""

    def __call__(
        self, root: Root, *, partitions: Collection[TopicPartition], now_ms: int | None, dry_run: bool
    ) -> list[PartitionReport]:
        """`now_ms` is the time to use, None for the clock's. With `dry_run` nothing changes."""
        ...


class RunEnd(Protocol):
    """What a job does once, after the work on all partitions."""

    def __call__(self, root: Root, *, now_ms: int | None, dry_run: bool) -> list[PartitionReport]:
        """The arguments are those of `PartitionsWork`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsJob:
    """A job that is one call of `work` for each task's partitions, then one of `finish`.

    `chosen` and `sizes` are `choose` and `bytes_to_read` of the job. A task has at most `partitions_max` partitions, or
    one of the groups that `groups` makes of them for so many slots. `finish` returns reports that belong to no
    partition, if there are any.

    The functions are those of a module, or partial calls of such, so that they can be pickled and sent to tasks. `work`
    does all of its partitions' work, including commits, which the root's lock lets one task make at a time.
    """

    action: str
    work: PartitionsWork
    chosen: Callable[[JobRun], Sequence[TopicPartition]] = all_partitions
    sizes: Callable[[JobRun, Sequence[TopicPartition]], Iterator[int]] = no_logs_are_read
    partitions_max: int = 1
    groups: Callable[[JobRun, Sequence[TopicPartition], int], list[Sequence[TopicPartition]]] | None = None
    finish: RunEnd | None = None

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        return self.chosen(job_run)

    def bytes_to_read(self, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
        return self.sizes(job_run, partitions)

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        if self.groups is None:
            groups = chunks(partitions, tasks.slots, self.partitions_max)
        else:
            groups = self.groups(job_run, partitions, tasks.slots)
        yield from run_groups(tasks, groups, partial(_work_on, self.work, job_run), action=self.action)
        if self.finish is not None:
            yield from self.finish(job_run.open(), now_ms=job_run.now_ms, dry_run=job_run.dry_run)


def _work_on(work: PartitionsWork, job_run: JobRun, partitions: Sequence[TopicPartition]) -> list[PartitionReport]:
    return work(job_run.open(), partitions=partitions, now_ms=job_run.now_ms, dry_run=job_run.dry_run)
