"""The history of maintenance jobs in a Delta table: one row for each partition of each run, appended at the run's end.

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
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import astuple, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.delta_session import check_delta, is_path
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import Round
from pyspark_kafkalog.maintenance.metrics import Metric, collect_metrics
from pyspark_kafkalog.storage.filesystem import time_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_LOG: Final = logging.getLogger(__name__)

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


class HistoryTable:
    """A sink of reports. `table` is a path, or a name in the catalog of the session, which needs Delta."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._rows: list[tuple[Any, ...]] = []
        self._round: Round | None = None
        self._run_id = ""

    def begin(self, action: str, this_round: Round, partitions_count: int) -> None:
        """Begin a run. Raises InvalidOptionError if the session has no Delta and could not write the run's rows."""
        from pyspark.sql import SparkSession

        self._round, self._rows = this_round, []
        self._run_id = uuid.uuid4().hex
        check_delta(SparkSession.builder.getOrCreate())

    def take(self, report: PartitionReport) -> None:
        self._rows.append((_now(), *astuple(report)))

    def end(self) -> None:
        """Append the run's rows. Raises KafkalogError if that fails."""
        assert self._round is not None
        if not self._rows:
            return
        try:
            self._append(self._round)
        except KafkalogError:
            raise
        except Exception as error:  # any error of the session, its JVM or the table's file system
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise KafkalogError(f"the run is over, but not in the history {self._table}: {first_line}") from error

    def _append(self, this_round: Round) -> None:
        from pyspark.sql import SparkSession

        log_dir = this_round.open()
        metrics = {each.name: each for each in collect_metrics(log_dir, now_ms=time_ms())}
        of_root = tuple(_value(metrics, name, ()) for name in ROOT_METRICS)
        names = [field.name for field in fields(PartitionReport)]
        topic_at, partition_at = names.index("topic"), names.index("partition")
        rows = []
        for timestamp, *report in self._rows:
            where = (report[topic_at], str(report[partition_at]))
            of_partition = (_value(metrics, name, where) for name in PARTITION_METRICS)
            run = (timestamp, self._run_id, str(log_dir.path), this_round.dry_run)
            rows.append((*run, *report, *of_partition, *of_root))
        spark = SparkSession.builder.getOrCreate()
        append_rows(spark.createDataFrame(rows, history_schema()).coalesce(1), self._table)


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
            _LOG.info("%s: another commit came first, once more", table)
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
