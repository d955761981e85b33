"""The option principal: what the access control entries do not permit is an error, in every kind of read and write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.tools.main import main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1)
    log_dir.create_topic("secret", partitions=1)
    log_dir.append("orders", pa.table({"value": ["a"]}))
    log_dir.append("secret", pa.table({"value": ["s"]}))
    return log_dir.path


def permit(root: Path, *arguments: str) -> None:
    assert main(["acls", "--path", str(root), "--add", "--allow-principal", "User:ann", *arguments]) == 0


def copy(rows: DataFrame, root: Path, checkpoint: Path) -> None:
    writer = rows.writeStream.format("kafkalog").option("topic", "orders").option("principal", "User:ann")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(str(root))
    query.awaitTermination()


@pytest.mark.full
def test_principal_reads_and_writes_only_what_acls_permit(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    def read(topic: str) -> DataFrame:
        return spark.read.format("kafkalog").option("principal", "User:ann").option("subscribe", topic).load(str(root))

    def write() -> None:
        rows = spark.createDataFrame([("x",)], "value string")
        rows.write.format("kafkalog").mode("append").option("principal", "User:ann").option("topic", "orders").save(
            str(root)
        )

    with pytest.raises(Exception, match="User:ann may not READ topic 'orders'"):
        read("orders").count()
    with pytest.raises(Exception, match="User:ann may not WRITE topic 'orders'"):
        write()
    permit(root, "--operation", "Read", "--topic", "orders")
    assert read("orders").count() == 1
    everything = spark.read.format("kafkalog").option("principal", "User:ann").load(str(root))
    assert [row.topic for row in everything.select("topic").collect()] == ["orders"]
    with pytest.raises(Exception, match="may not READ topic 'secret'"):
        read("secret").count()
    stream = spark.readStream.format("kafkalog").option("principal", "User:ann").option("startingOffsets", "earliest")
    orders = stream.option("subscribe", "orders").load(str(root))
    with pytest.raises(Exception, match="may not WRITE topic 'orders'"):
        copy(orders, root, tmp_path / "refused")
    permit(root, "--operation", "Write", "--topic", "orders")
    write()
    copy(orders, root, tmp_path / "copied")
    assert read("orders").count() == 4
