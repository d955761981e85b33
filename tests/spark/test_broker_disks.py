"""`format("kafkalog")` over a killed and over a tiering broker's directory, with real tasks and streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders.broker_disks import killed, tiered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["killed", "tiered"]


@pytest.mark.full
def test_batch_and_stream_read_directory_of_killed_broker_to_log_end(
    spark: SparkSession, killed: Path, tmp_path: Path
) -> None:
    reads = {"subscribe": "paid,orders", "readToLogEnd": "true", "isolationLevel": "read_committed"}
    batch = spark.read.format("kafkalog").options(**reads).load(str(killed))
    counts = {row["topic"]: row["count"] for row in batch.groupBy("topic").count().collect()}
    assert counts == {"orders": 90, "paid": 15}
    stream = spark.readStream.format("kafkalog").options(startingOffsets="earliest", **reads).load(str(killed))
    query = (
        stream.writeStream.format("memory")
        .queryName("killed_broker")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert spark.table("killed_broker").count() == 105


def test_earliest_of_tiered_topic_fails_unless_data_loss_is_allowed(spark: SparkSession, tiered: Path) -> None:
    read = spark.read.format("kafkalog").option("assign", '{"tiered":[0]}')
    with pytest.raises(Exception, match="offsets 0 to 551 of tiered-0 are in remote storage"):
        read.load(str(tiered)).count()
    assert read.option("failOnDataLoss", "false").load(str(tiered)).count() == 138
