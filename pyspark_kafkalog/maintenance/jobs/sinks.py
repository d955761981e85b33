"""Sinks of reports: lines of JSON, text with a table and a summary, a progress bar, and a Delta table with the history.

In the text, partitions in which nothing was done are only counted. Findings are printed as they occur, the table and
the summary at the end of the run.

The Delta table has one row for each partition of each run, appended at the run's end:

    timestamp       when the partition was done
    run_id          the same for all rows of a run
    root, dry_run   the log directory; whether nothing was changed
    action, topic, partition, bytes_read, ... error     the fields of PartitionReport
    Size, NumLogSegments, LogStartOffset, LogEndOffset  the partition's metrics after the run, under Kafka's names
    cleaner-recopy-percent, max-clean-time-secs, max-dirty-percent, time-since-last-run-ms,
    uncleanable-partitions-count, UnderReplicatedPartitions     those of the log directory, the same in all rows

A run is one commit of the table: either all of its rows are there or none. Concurrent appends of several jobs do not
conflict; only a job that creates the table, or adds a column that came with a new version, may have to retry.
Additional columns of a table are kept, null in new rows. The table uses no feature beyond Delta's first protocol
version.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, TextIO, get_type_hints

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition import ANOTHER_RUN, PartitionReport, values
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.maintenance.jobs.tasks import active_session, check_delta, is_path
from pyspark_kafkalog.maintenance.metrics import Metric, collect_metrics
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.threads import starts
from pyspark_kafkalog.units import KIB, json_line, plural, size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LOG: Final = logging.getLogger(__name__)
_SECONDS_DIGITS: Final = 3
_REDRAW_S: Final = 1.0
_UNDERSCORE = re.compile(r"_([a-z])")
_CAMEL_CASE: Final = {
    each.name: _UNDERSCORE.sub(lambda match: match.group(1).upper(), each.name) for each in fields(PartitionReport)
}

PARTITION_METRICS: Final = ("Size", "NumLogSegments", "LogStartOffset", "LogEndOffset")
ROOT_METRICS: Final = (
    "cleaner-recopy-percent",
    "max-clean-time-secs",
    "max-dirty-percent",
    "time-since-last-run-ms",
    "uncleanable-partitions-count",
    "UnderReplicatedPartitions",
)
_RUN_COLUMNS: Final = "timestamp TIMESTAMP, run_id STRING, root STRING, dry_run BOOLEAN"
_DDL_TYPES: Final = {int: "LONG", float: "DOUBLE", str: "STRING"}
_TRIES: Final = 10
_PAUSE_SECONDS: Final = 0.2
#: Delta's errors for a lost race with another commit, after which a retry may succeed.
_CAME_FIRST: Final = re.compile(r"CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED|TABLE_ALREADY_EXISTS|Concurrent")


def report_tree(report: PartitionReport) -> dict[str, Any]:
    """The report's fields that have a value, under camel-case names."""
    tree = {_CAMEL_CASE[name]: value for name, value in values(report).items()}
    tree["seconds"] = round(report.seconds, _SECONDS_DIGITS)
    return tree


class JsonLines:
    """Writes each report as a line of JSON, at once. In a dry run each line is marked as such."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._extra: dict[str, Any] = {}

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        self._extra = {"dryRun": True} if job_run.dry_run else {}

    def emit(self, tree: Mapping[str, Any]) -> None:
        """Write a line for a finding or an action in addition to the reports; fields without a value are omitted."""
        self._write({name: value for name, value in tree.items() if value is not None})

    def take(self, report: PartitionReport) -> None:
        self._write({**report_tree(report), **self._extra})

    def end(self) -> None:
        """Nothing to do: every line has been written."""

    def _write(self, tree: Mapping[str, Any]) -> None:
        stream = self._stream or sys.stdout
        stream.write(json_line(tree))
        stream.flush()


def beside_progress_bar(stream: TextIO) -> AbstractContextManager[None]:
    """A context for writing lines to `stream`: on a terminal, the progress bar is cleared before and redrawn after."""
    if not stream.isatty():
        return nullcontext()
    from tqdm import tqdm

    context: AbstractContextManager[None] = tqdm.external_write_mode(file=stream)
    return context


class ProgressBar:
    """The bytes that are read, their rate and the remaining time, on standard error if that is a terminal.

    With `beside_text` standard output may be a terminal too. There is no bar between lines of JSON on a terminal, or
    those of the program behind a pipe.

    A partition counts when it is done. `bytes_to_read` gives the total; for a job that reads nothing, partitions are
    counted instead. The bar is gone after the run.
    """

    def __init__(self, bytes_to_read: Callable[[], Iterable[int]], *, beside_text: bool) -> None:
        self._beside_text = beside_text
        self._bytes_to_read = bytes_to_read
        self._bar: Any = None
        self._counts_bytes = False
        self._failed = 0
        self._ended = threading.Event()

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        from tqdm import tqdm

        is_shown = sys.stderr.isatty() and self._is_alone()
        total_bytes = sum(self._bytes_to_read()) if is_shown else 0
        self._counts_bytes = total_bytes > 0
        self._bar = tqdm(
            total=total_bytes or partitions_count,
            desc=action,
            unit="B" if self._counts_bytes else "partition",
            unit_scale=self._counts_bytes,
            unit_divisor=KIB if self._counts_bytes else 1000,
            file=sys.stderr,
            disable=not is_shown,
            leave=False,
            dynamic_ncols=True,
        )
        self._failed = 0
        if is_shown:
            self._ended = threading.Event()
            starts(threading.Thread(target=self._keep_time, args=(self._bar, self._ended), daemon=True))

    def _is_alone(self) -> bool:
        """Whether nothing but this run's text gets between the bar."""
        if sys.stdout.isatty():
            return self._beside_text
        return not stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)

    @staticmethod
    def _keep_time(bar: Any, ended: threading.Event) -> None:
        """Redraw the bar every second: a run may do nothing but start Spark, or clean one partition, for a while."""
        while not ended.wait(_REDRAW_S):
            bar.refresh()

    def take(self, report: PartitionReport) -> None:
        if not report.is_fine:
            self._failed += 1
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update(report.bytes_read + report.bytes_copied if self._counts_bytes else 1)

    def end(self) -> None:
        self._ended.set()
        self._bar.close()


_Cell = Callable[[PartitionReport], str]

#: Columns that are only shown if there is something in them, and the field of a report that tells.
_EXPIRED: Final = "offsets expired"
_IDS_EXPIRED: Final = "ids expired"
_LOCAL_SEGMENTS: Final = "local segments deleted"
_LOCAL_START: Final = "local log start"
_WITHOUT_KEY: Final = "without key"
_OPTIONAL: Final[Mapping[str, str]] = {
    _EXPIRED: "offsets_expired",
    _IDS_EXPIRED: "transactional_ids_expired",
    _LOCAL_SEGMENTS: "local_segments_dropped",
    _LOCAL_START: "local_segments_dropped",
    _WITHOUT_KEY: "records_without_key",
}
#: By action: the columns of the table after the partition's.
_COLUMNS: Final[Mapping[str, Mapping[str, _Cell]]] = {
    "clean": {
        "dirty": lambda report: "-" if report.dirty_percent is None else f"{report.dirty_percent:.0f}%",
        "records removed": lambda report: f"{report.records_dropped:,}",
        _WITHOUT_KEY: lambda report: f"{report.records_without_key:,}",
        "bytes removed": lambda report: size_text(report.bytes_dropped),
        "bytes kept": lambda report: size_text(report.bytes_kept),
    },
    "merge-segments": {
        "segments fewer": lambda report: f"{report.segments_dropped:,}",
        "bytes copied": lambda report: size_text(report.bytes_read),
    },
    "reindex": {"files written": lambda report: f"{report.files_written:,}"},
    "retention": {
        "segments deleted": lambda report: f"{report.segments_dropped:,}",
        "bytes deleted": lambda report: size_text(report.bytes_dropped),
        "log start": lambda report: _offset_text(report.log_start_offset),
        _LOCAL_SEGMENTS: lambda report: _count_text(report.local_segments_dropped),
        _LOCAL_START: lambda report: _offset_text(report.local_log_start_offset),
        _EXPIRED: lambda report: _count_text(report.offsets_expired),
        _IDS_EXPIRED: lambda report: _count_text(report.transactional_ids_expired),
    },
    "tier": {
        "segments copied": lambda report: f"{report.segments_copied:,}",
        "bytes copied": lambda report: size_text(report.bytes_copied),
        "remote end": lambda report: _offset_text(report.remote_end_offset),
    },
    "verify": {
        "errors": lambda report: str(report.errors_found or 0),
        "warnings": lambda report: str(report.warnings_found or 0),
        "bytes read": lambda report: size_text(report.bytes_read),
    },
}


class TextReport:
    """A sink of reports. `stream` is standard output by default."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._action = ""
        self._is_dry_run = False
        self._began = 0.0
        self._reports: list[PartitionReport] = []
        self._notes = 0

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        self._action = action
        self._is_dry_run = job_run.dry_run
        self._began = self._clock()
        self._reports = []
        self._notes = 0

    def emit(self, tree: Mapping[str, Any]) -> None:
        """Print a finding or a repair step of `kafkalog verify`; findings that need no action are only counted."""
        if tree.get("severity") == "info":
            self._notes += 1
            return
        self._write([_finding(tree) if tree["action"] == "finding" else _step(tree)])

    def take(self, report: PartitionReport) -> None:
        self._reports.append(report)

    def end(self) -> None:
        """Print the table, the failures, and the summary."""
        shown = sorted(
            (each for each in self._reports if _is_shown(each)), key=lambda each: (each.topic, each.partition)
        )
        failed = [each for each in shown if each.error is not None]
        columns = {
            name: cell
            for name, cell in _COLUMNS[self._action].items()
            if name not in _OPTIONAL or _sum_of(shown, _OPTIONAL[name])
        }
        rows = [
            (f"{each.topic}-{each.partition}", *(cell(each) for cell in columns.values()))
            for each in shown
            if each.error is None
        ]
        lines = list(_table(("partition", *columns), rows)) if rows else []
        lines += [f"failed: {each.topic}-{each.partition}: {each.error}" for each in failed]
        self._write([*lines, self._sum(len(failed))])

    def _sum(self, failed: int) -> str:
        reports = self._reports
        parts = [_SUMS[self._action](reports, self._is_dry_run)]
        if self._notes:
            parts.append(f"{plural(self._notes, 'note')} without need for action")
        others = sum(each.skipped == ANOTHER_RUN for each in reports)
        if others:
            parts.append(f"{plural(others, 'partition')} left to another run")
        if failed:
            parts.append(f"{plural(failed, 'partition')} failed")
        return f"{self._action}: {', '.join(parts)} ({self._clock() - self._began:.1f} s)"

    def _write(self, lines: Iterable[str]) -> None:
        stream = self._stream or sys.stdout
        with beside_progress_bar(stream):
            stream.writelines(f"{line}\n" for line in lines)
            stream.flush()


def _is_shown(report: PartitionReport) -> bool:
    """Whether anything was done, was found, or failed."""
    if report.error is not None or report.errors_found or report.warnings_found:
        return True
    if report.action == "verify" or report.skipped is not None:
        return False
    return bool(
        report.segments_dropped
        or report.segments_copied
        or report.bytes_dropped
        or report.records_dropped
        or report.files_written
        or report.offsets_expired
        or report.transactional_ids_expired
        or report.local_segments_dropped
    )


def _finding(tree: Mapping[str, Any]) -> str:
    at = "".join(f", {name} {tree[name]}" for name in ("position", "offset") if tree.get(name) is not None)
    return (
        f"{tree['severity']}: {tree['file']}{at}: {tree['what']}: expected {tree['expected']}, found {tree['found']}\n"
        f"    {tree['advice']}"
    )


def _step(tree: Mapping[str, Any]) -> str:
    topic_partition = "the log directory" if tree["topic"] is None else f"{tree['topic']}-{tree['partition']}"
    error = f": {tree['error']}" if tree.get("error") else ""
    return f"repair {tree['state']}: {topic_partition}: {tree['does']}{error}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """The rows of a table with the first column aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = row
        cells = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *cells))


def _offset_text(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _count_text(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _sum_of(reports: Sequence[PartitionReport], name: str) -> int:
    return sum(getattr(each, name) or 0 for each in reports)


def _in_partitions(reports: Sequence[PartitionReport], name: str) -> str:
    touched = sum(bool(getattr(each, name)) for each in reports)
    return f"in {touched:,} of {plural(len(reports), 'partition')}"


def _sum_cleaned(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    if is_dry_run:
        due = sum(each.skipped is None and each.error is None for each in reports)
        return f"{due:,} of {plural(len(reports), 'partition')} would be cleaned"
    records, size = _sum_of(reports, "records_dropped"), size_text(_sum_of(reports, "bytes_dropped"))
    text = f"removed {plural(records, 'record')}, {size}, {_in_partitions(reports, 'records_dropped')}"
    without_key = _sum_of(reports, "records_without_key")
    return text + (f"; {plural(without_key, 'record')} had no key" if without_key else "")


def _sum_merged(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    fewer = plural(_sum_of(reports, "segments_dropped"), "segment")
    return f"{fewer} {'would be ' if is_dry_run else ''}merged away {_in_partitions(reports, 'segments_dropped')}"


def _sum_reindexed(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    files = plural(_sum_of(reports, "files_written"), "index file")
    return f"{files} {'would be ' if is_dry_run else ''}written {_in_partitions(reports, 'files_written')}"


def _sum_retained(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    segments, size = _sum_of(reports, "segments_dropped"), size_text(_sum_of(reports, "bytes_dropped"))
    verb = "would be deleted" if is_dry_run else "deleted"
    deleted = f"{plural(segments, 'segment')}, {size}, {verb} {_in_partitions(reports, 'segments_dropped')}"
    would_be = "would be " if is_dry_run else ""
    local, expired = _sum_of(reports, "local_segments_dropped"), _sum_of(reports, "offsets_expired")
    if local:
        deleted += f", {plural(local, 'local segment')} {would_be}deleted"
    if expired:
        deleted += f", {plural(expired, 'offset')} of groups {would_be}expired"
    ids = _sum_of(reports, "transactional_ids_expired")
    if ids:
        deleted += f", {plural(ids, 'transactional id')} {would_be}expired"
    return deleted


def _sum_tiered(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    segments, size = _sum_of(reports, "segments_copied"), size_text(_sum_of(reports, "bytes_copied"))
    verb = "would be copied" if is_dry_run else "copied"
    return f"{plural(segments, 'segment')}, {size}, {verb} {_in_partitions(reports, 'segments_copied')}"


def _sum_verified(reports: Sequence[PartitionReport], _is_dry_run: bool) -> str:
    errors, warnings = (_sum_of(reports, name) for name in ("errors_found", "warnings_found"))
    size = size_text(_sum_of(reports, "bytes_read"))
    return f"{plural(errors, 'error')}, {plural(warnings, 'warning')} in {plural(len(reports), 'partition')}, {size}"


_SUMS: Final[Mapping[str, Callable[[Sequence[PartitionReport], bool], str]]] = {
    "clean": _sum_cleaned,
    "merge-segments": _sum_merged,
    "reindex": _sum_reindexed,
    "retention": _sum_retained,
    "tier": _sum_tiered,
    "verify": _sum_verified,
}


class HistoryTable:
    """A sink of reports. `table` is a path, or a name in the catalog of the session, which needs Delta.

    `session` returns the session, by default the active one.
    """

    def __init__(self, table: str, *, session: Callable[[], SparkSession] | None = None) -> None:
        self._table = table
        self._session = session or active_session
        self._rows: list[tuple[Any, ...]] = []
        self._run: JobRun | None = None
        self._run_id = ""

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        """Begin a run. Raises InvalidOptionError if the session has no Delta and could not write the run's rows."""
        self._run, self._rows = job_run, []
        self._run_id = uuid.uuid4().hex
        check_delta(self._session())

    def take(self, report: PartitionReport) -> None:
        self._rows.append((_now(), *astuple(report)))

    def end(self) -> None:
        """Append the run's rows. Raises KafkalogError if that fails."""
        assert self._run is not None
        if not self._rows:
            return
        try:
            self._append(self._run)
        except KafkalogError:
            raise
        except Exception as error:  # any error of the session, its JVM or the table's file system
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise KafkalogError(f"the run has ended, but is not in the history {self._table}: {first_line}") from error

    def _append(self, job_run: JobRun) -> None:
        root = job_run.open()
        metrics = {each.name: each for each in collect_metrics(root, now_ms=time_ms())}
        of_root = tuple(_value(metrics, name, ()) for name in ROOT_METRICS)
        names = [field.name for field in fields(PartitionReport)]
        topic_at, partition_at = names.index("topic"), names.index("partition")
        rows = []
        for timestamp, *report in self._rows:
            tags = (report[topic_at], str(report[partition_at]))
            of_partition = (_value(metrics, name, tags) for name in PARTITION_METRICS)
            run = (timestamp, self._run_id, str(root.path), job_run.dry_run)
            rows.append((*run, *report, *of_partition, *of_root))
        append_rows(self._session().createDataFrame(rows, history_schema()).coalesce(1), self._table)


def history_schema() -> StructType:
    """The columns of the table."""
    from pyspark.sql.types import StructType

    types = get_type_hints(PartitionReport)
    of_report = [f"{field.name} {_ddl_type(types[field.name])}" for field in fields(PartitionReport)]
    of_metrics = [f"`{name}` DOUBLE" for name in (*PARTITION_METRICS, *ROOT_METRICS)]
    schema = StructType.fromDDL(", ".join([_RUN_COLUMNS, *of_report, *of_metrics]))
    assert isinstance(schema, StructType)
    return schema


def append_rows(rows: DataFrame, table: str) -> None:
    """Append rows in one commit, creating the table if it does not exist; retry after a lost race."""
    for tries_left in reversed(range(_TRIES)):
        try:
            writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
            if is_path(table):
                writer.save(table)
            else:
                writer.saveAsTable(table)
            return
        except Exception as error:
            if not tries_left or not _CAME_FIRST.search(f"{type(error).__name__} {str(error)[:2000]}"):
                raise
            _LOG.info("%s: another commit came first, trying again", table)
            time.sleep(_PAUSE_SECONDS)


def read_history(spark: SparkSession, table: str, *, action: str | None = None) -> DataFrame:
    """The rows of all runs, or of those with this action (log-cleaner, retention, ...), oldest first."""
    rows = spark.read.format("delta").load(table) if is_path(table) else spark.read.table(table)
    return (rows if action is None else rows.where(rows.action == action)).orderBy("timestamp")


def _value(metrics: Mapping[str, Metric], name: str, tag_values: tuple[str, ...]) -> float | None:
    metric = metrics.get(name)
    if metric is None:
        return None
    if not tag_values and len(metric.values) == 1:
        return next(iter(metric.values.values()))
    return metric.values.get(tag_values)


def _ddl_type(hint: Any) -> str:
    """The DDL type of a type hint: LONG for int and for int | None."""
    choices = getattr(hint, "__args__", (hint,))
    return next(_DDL_TYPES[each] for each in choices if each in _DDL_TYPES)


def _now() -> datetime:
    return datetime.now(tz=timezone.utc)
