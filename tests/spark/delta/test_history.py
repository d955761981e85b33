"""The history table of maintenance runs: each run appends its rows once, beside other runs, and they are read back."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.maintenance.jobs.sinks import HistoryTable, append_rows, history_schema, read_history
from pyspark_kafkalog.report.history import read_runs

pytestmark = [pytest.mark.spark, pytest.mark.full]


@pytest.fixture
def job_run(tmp_path: Path) -> JobRun:
    LogDir.create(tmp_path / "log").append("t", pa.table({"value": ["a", "b"]}))
    return JobRun(path=tmp_path / "log")


def run(sink: HistoryTable, job_run: JobRun, action: str, count: int = 2) -> None:
    sink.begin(action, job_run, count)
    for partition in range(count):
        sink.take(PartitionReport(topic="t", partition=partition, action=action, seconds=0.5, bytes_read=7))
    sink.end()


def test_runs_append_one_row_per_partition_with_kafkas_metrics(
    spark: SparkSession, job_run: JobRun, tmp_path: Path
) -> None:
    table = str(tmp_path / "history")
    run(HistoryTable(table), job_run, "log-cleaner")
    # A table of an older version, which has other columns.
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (was STRING)")
    run(HistoryTable(table), job_run, "retention", 1)
    rows = read_history(spark, table).collect()
    assert [(row.action, row.partition, row.bytes_read) for row in rows] == [
        ("log-cleaner", 0, 7),
        ("log-cleaner", 1, 7),
        ("retention", 0, 7),
    ]
    assert len({row.run_id for row in rows}) == 2
    assert (rows[0].LogEndOffset, rows[0].NumLogSegments, rows[1].LogEndOffset) == (2, 1, None)
    assert {row["UnderReplicatedPartitions"] for row in rows} == {0}
    assert {row["uncleanable-partitions-count"] for row in rows} == {0}
    assert read_history(spark, table, action="retention").count() == 1
    without_spark = read_runs(tmp_path / "history")
    assert [row["action"] for row in without_spark] == ["retention", "log-cleaner", "log-cleaner"]
    assert set(without_spark[0]) >= set(history_schema().names)


def test_jobs_that_end_at_the_same_time_all_append_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "history")
    rows = spark.range(1).select("id", F.lit("x").alias("was"))
    together = threading.Barrier(3)
    failures: list[BaseException] = []

    def append(number: int) -> None:
        try:
            together.wait()
            append_rows(rows.withColumn(f"only_{number % 2}", F.lit(number)), table)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = spark.read.format("delta").load(table).selectExpr("coalesce(only_0, only_1) number").collect()
    assert sorted(row.number for row in found) == [0, 1, 2]


def test_history_that_cannot_be_written_fails_with_one_line(
    spark: SparkSession, job_run: JobRun, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KafkalogError, match="the run has ended, but is not in the history"):
        run(HistoryTable(str(tmp_path / "file" / "history")), job_run, "retention")
