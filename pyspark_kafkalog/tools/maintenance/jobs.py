"""Maintenance jobs as commands: log-cleaner, retention, merge-segments, tier, reindex, verify and delete-records."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob, cleaner_slots
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import (
    ALL_FINE,
    SOME_FAILED,
    Job,
    JobRun,
    ReportSink,
    is_small,
    run_loop,
    run_once,
)
from pyspark_kafkalog.maintenance.jobs.sinks import HistoryTable, JsonLines, ProgressBar, TextReport, report_tree
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
from pyspark_kafkalog.maintenance.merge import MERGE_JOB
from pyspark_kafkalog.maintenance.reindex import reindex_job
from pyspark_kafkalog.maintenance.retention.delete import RETENTION_JOB
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import TIER_JOB
from pyspark_kafkalog.maintenance.verify.job import VerifyJob, open_or_findings
from pyspark_kafkalog.maintenance.verify.remote import verify_remote_storage
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.storage.below_root import absolute_paths
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.remote_storage import parse_remote_storage
from pyspark_kafkalog.tools.command import UsageError, one_line, selected_topics
from pyspark_kafkalog.tools.output import output_of
from pyspark_kafkalog.tools.running import open_log_dir, say_what_it_follows
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOUR_S: Final = 3600.0
_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 << 20


def clean(options: argparse.Namespace) -> int:
    return _run_job(
        options, CleanerJob(), interval_s=lambda config: config.log_cleaner_backoff_ms / 1000, slots=cleaner_slots
    )


def retain(options: argparse.Namespace) -> int:
    return _run_job(options, RETENTION_JOB, interval_s=lambda config: config.log_retention_check_interval_ms / 1000)


def merge(options: argparse.Namespace) -> int:
    return _run_job(options, MERGE_JOB, interval_s=_hourly)


def tier(options: argparse.Namespace) -> int:
    return _run_job(options, TIER_JOB, interval_s=lambda config: config.log_retention_check_interval_ms / 1000)


def reindex(options: argparse.Namespace) -> int:
    if options.partition and not options.topic:
        raise UsageError("--partition needs --topic")

    chosen = reindex_job(tuple(options.partition or ()), force=options.force)
    return _run_job(options, chosen, interval_s=_hourly)


def verify(options: argparse.Namespace) -> int:
    if options.loop and options.interval is None:
        options.interval = _HOUR_S  # a broker's directory has no settings that define it
    output = _job_output(options)
    if options.remote_storage is not None:
        return _verify_remote_storage(options, output)
    if options.path is None:
        raise UsageError("the following arguments are required: --path, or --remote-storage")
    root, findings = open_or_findings(options.path)
    if root is None:
        for finding in findings:
            output.emit(finding.tree())
        sys.stderr.write(f"kafkalog verify: the metadata log of {options.path} cannot be loaded, see the findings\n")
        return 1
    say_what_it_follows(root)
    verify_job = VerifyJob(output.emit, is_repairing=options.repair, are_records_checked=options.deep)
    return _run_job(options, verify_job, interval_s=_hourly, output=output)


def _verify_remote_storage(options: argparse.Namespace, output: JsonLines | TextReport) -> int:
    """Verify remote storage instead of a directory, in this process."""
    if options.repair or options.loop or options.spark:
        raise UsageError("--repair, --loop and --spark cannot be used with --remote-storage")
    option = parse_remote_storage(
        options.remote_storage, options.remote_storage_layout, key_files=options.remote_storage_key_files
    )
    root = None if options.path is None else open_log_dir(options).root
    if root is not None and not isinstance(root, ReadOnlyRoot):
        raise UsageError(
            f"{options.path} is not a broker's directory: without --remote-storage its own is verified too"
        )
    topics = None if not options.topic else frozenset(options.topic if root is None else _selected(options.topic, root))
    path = Path(option.location)
    output.begin("verify", JobRun(path=path, topics=None, now_ms=options.now, dry_run=True), 0)
    is_fine = True
    for findings, report in verify_remote_storage(option, root, topics):
        for finding in findings:
            output.emit(finding.tree())
        output.take(report)
        is_fine &= report.is_fine
    output.end()
    return 0 if is_fine else SOME_FAILED


def _hourly(config: BrokerConfig) -> float:
    return _HOUR_S


def _run_job(
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

    path = options.path if isinstance(options.path, str) else absolute_paths(options.path)
    job_run = JobRun(path=path, now_ms=options.now, dry_run=options.dry_run)
    pause_s = options.interval
    root = job_run.open()
    topics = _selected(options.topic, root) if options.topic else None
    job_run = replace(job_run, identity=root.identity, topics=topics)
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
        output = output or _job_output(options)
        is_text = isinstance(output, TextReport)
        bar = ProgressBar(lambda: job.bytes_to_read(job_run, partitions), beside_text=is_text)
        all_sinks: tuple[ReportSink, ...] = (bar, output, *history)
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


def _selected(texts: Sequence[str], root: Root) -> tuple[str, ...]:
    """The topics that the values of --topic select; a value that selects none is left for the job, which refuses it."""
    found = (selected_topics(text, root.topics()) or [text] for text in texts)
    return tuple(dict.fromkeys(chain.from_iterable(found)))


def _job_output(options: argparse.Namespace) -> JsonLines | TextReport:
    """The sink that prints the reports to standard output."""

    is_text = options.output == "text" or (options.output is None and sys.stdout.isatty())
    return TextReport() if is_text else JsonLines()


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


# delete-records


class OffsetFileError(KafkalogError, ValueError):
    """The file of offsets is not in the format of Kafka's tool."""


def delete(options: argparse.Namespace) -> int:
    """Move the log start offsets; returns the exit status."""

    offsets = read_offsets(options.offset_json_file)
    log_dir = open_log_dir(options)
    output = output_of(options)
    output.text("Executing records delete operation\n")
    reports = delete_records(log_dir.root, offsets, dry_run=options.dry_run)
    marked = {"dryRun": True} if options.dry_run else {}
    output.show_all(
        reports,
        lambda each: {**report_tree(each), **marked},
        lambda each: _deleted_lines(each, dry_run=options.dry_run),
    )
    return ALL_FINE if all(each.is_fine for each in reports) else SOME_FAILED


def _deleted_lines(reports: Iterable[PartitionReport], *, dry_run: bool) -> Iterator[str]:
    yield "Records delete operation would result in:\n" if dry_run else "Records delete operation completed:\n"
    for report in reports:
        topic_partition = TopicPartition(report.topic, report.partition)
        if report.error is None:
            yield f"partition: {topic_partition}\tlow_watermark: {report.log_start_offset}\n"
        else:
            yield f"partition: {topic_partition}\terror: {report.error}\n"


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The file's offset by partition. Raises OSError, and OffsetFileError for what DeleteRecordsCommand refuses."""
    with path.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise OffsetFileError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
    try:
        return parse_offsets(data)
    except OffsetFileError as error:
        raise OffsetFileError(f"{path}: {one_line(error)}") from None


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    """As `read_offsets`, from the file's bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise OffsetFileError("it is not valid JSON") from None
    if not isinstance(tree, dict):
        raise OffsetFileError("expected a JSON object")
    if "version" in tree and _integer(tree, "version", "it", INT32_MAX) != _VERSION:
        raise OffsetFileError(f"version {tree['version']} is not supported: expected {_VERSION}")
    if not isinstance(tree.get("partitions"), list):
        raise OffsetFileError("expected a list in the field partitions")
    offsets: dict[TopicPartition, int] = {}
    duplicates: set[TopicPartition] = set()
    for number, entry in enumerate(tree["partitions"], start=1):
        topic_partition, offset = _entry(entry, f"partition entry {number}")
        if topic_partition in offsets:
            duplicates.add(topic_partition)
        offsets[topic_partition] = offset
    if duplicates:
        raise OffsetFileError(f"partitions occur more than once: {', '.join(map(str, sorted(duplicates)))}")
    return offsets


def _entry(entry: Any, what: str) -> tuple[TopicPartition, int]:
    if not isinstance(entry, dict):
        raise OffsetFileError(f"{what} is not a JSON object")
    topic = entry.get("topic")
    if not isinstance(topic, str):
        raise OffsetFileError(f"{what} needs a string in the field topic")
    partition = _integer(entry, "partition", what, INT32_MAX)
    return TopicPartition(topic, partition), _integer(entry, "offset", what, INT64_MAX)


def _integer(tree: Mapping[str, Any], name: str, what: str, largest: int) -> int:
    value = tree.get(name)
    if type(value) is not int or not -largest - 1 <= value <= largest:
        raise OffsetFileError(f"{what} needs a whole number in the field {name}")
    return value
