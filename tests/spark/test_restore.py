"""A restored backup replaces the original: a stream continues in it, and a write made once is not repeated."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.export.export import export_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append(root: Path, first: int, end: int) -> None:
    LogDir.open_or_create(root).append("orders", pa.table({"value": [str(n) for n in range(first, end)]}))


def stream(spark: SparkSession, root: Path, checkpoint: Path) -> None:
    source = spark.readStream.format("kafkalog").option("subscribe", "orders").option("startingOffsets", "earliest")
    sink = source.load(str(root)).select("value").writeStream.format("kafkalog").option("topic", "copies")
    query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(str(root))
    query.awaitTermination()


def write_once(spark: SparkSession, root: Path, version: int) -> None:
    write = spark.range(5).selectExpr("CAST(id AS STRING) AS value").write.format("kafkalog").mode("append")
    write.option("topic", "nightly").option("txnAppId", "job").option("txnVersion", version).save(str(root))


def values(root: Path, topic: str) -> list[str]:
    return [value.decode() for value in LogDir.open(root).read(topic)["value"].to_pylist()]


@pytest.mark.full
def test_stream_and_batch_writes_continue_in_restored_backup(spark: SparkSession, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    append(root, 0, 50)
    stream(spark, root, checkpoint)
    write_once(spark, root, 1)
    export_to(LogDir.open(root).root.native(), tmp_path / "backup")
    append(root, 50, 60)  # lost with the original
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "backup", root)
    write_once(spark, root, 1)
    write_once(spark, root, 2)
    append(root, 100, 120)
    stream(spark, root, checkpoint)
    assert values(root, "nightly") == 2 * ["0", "1", "2", "3", "4"]
    assert values(root, "copies") == [str(n) for n in [*range(50), *range(100, 120)]]
