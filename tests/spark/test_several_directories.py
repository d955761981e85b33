"""`format("kafkalog")` over the disks of three brokers: paths as Spark passes them, batches, streams and SQL tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders.broker_disks import cluster, cluster_rows
from kafkalog_command import Command
from tiers import rest_full

from pyspark_kafkalog.maintenance.verify import job as verify_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["cluster"]

COLUMNS = ["partition", "offset", "CAST(unix_millis(timestamp) AS LONG)", "CAST(value AS STRING)"]


def rows(frame: DataFrame) -> list[tuple[int, int, int, str]]:
    return sorted(tuple(row) for row in frame.selectExpr(*COLUMNS).collect())  # type: ignore[misc]


def joined(cluster: list[Path]) -> str:
    return ",".join(map(str, cluster))


@pytest.mark.parametrize("topic", rest_full(["orders", "elected", "again"]))
def test_batch_reads_what_consumers_got(spark: SparkSession, cluster: list[Path], topic: str) -> None:
    read = spark.read.format("kafkalog").option("subscribe", topic)
    assert rows(read.load(joined(cluster))) == cluster_rows(topic)
    assert rows(read.load([str(each) for each in cluster])) == cluster_rows(topic)


def test_file_uris_and_committed_reads(spark: SparkSession, cluster: list[Path]) -> None:
    uris = [each.as_uri() for each in cluster]
    read = spark.read.format("kafkalog").options(subscribe="elected", isolationLevel="read_committed")
    assert rows(read.load(",".join(uris))) == cluster_rows("elected")
    assert rows(read.option("filterPushdown", "true").load(uris).where("offset >= 40")) == cluster_rows("elected")[40:]


def test_sql_table_of_several_directories(spark: SparkSession, cluster: list[Path]) -> None:
    spark.sql(f"CREATE TABLE several USING kafkalog OPTIONS (path '{joined(cluster)}', subscribe 'orders')")
    try:
        assert rows(spark.table("several")) == cluster_rows("orders")
    finally:
        spark.sql("DROP TABLE several")


@pytest.mark.full
def test_stream_reads_all_and_continues_with_a_further_directory(
    spark: SparkSession, cluster: list[Path], tmp_path: Path
) -> None:
    def run(paths: list[Path]) -> int:
        source = spark.readStream.format("kafkalog").options(subscribe="orders", startingOffsets="earliest")
        query = (
            source.load(joined(paths))
            .selectExpr(*COLUMNS)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180)
        return spark.read.parquet(str(tmp_path / "out")).count()

    empty = tmp_path / "new,disk"
    empty.mkdir()
    (empty / "meta.properties").write_bytes((cluster[0] / "meta.properties").read_bytes())
    assert run([cluster[0], empty]) == 230
    assert run(cluster) == 350
    out = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(tuple(row) for row in out.collect()) == cluster_rows("orders")


def test_write_is_refused(spark: SparkSession, cluster: list[Path]) -> None:
    frame = spark.createDataFrame([("orders", "a")], "topic string, value string")
    with pytest.raises(Exception, match="can be read, not written to"):
        frame.write.format("kafkalog").mode("append").save(joined(cluster))
    assert sorted(each.name for each in cluster[0].parent.iterdir()) == ["1", "2", "3", "expected.json"]


@pytest.mark.usefixtures("spark")
@pytest.mark.full
def test_verify_finds_the_same_in_tasks_of_spark(
    cluster: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_job, "_TASK_UNITS", 1)
    told = []
    for place in ("--local", "--spark"):
        exit_code, out, _ = Command("verify", Path(joined(cluster)), capsys).try_to(place, "--output", "json")
        assert exit_code == 1
        told.append([{**json.loads(line), "seconds": None} for line in out.splitlines()])
        told[-1].sort(key=json.dumps)
    assert told[0] == told[1]
    assert [each["offset"] for each in told[0] if each.get("what") == "replica-differs"] == [40]
