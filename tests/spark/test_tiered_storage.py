"""`format("kafkalog")` over a tiering broker's directory and its remote storage, with real tasks and streams."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders.tiered_fixtures import ALL, COLUMNS, TieredFixture, rows_of
from kafka_processes.oracle import Broker, tiering
from kafka_processes.tiering_brokers import SEGMENTS, is_committed, produced
from tiers import TIER, rest_full

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: How long a query reads at least while a broker tiers.
SECONDS_MIN = 180 if TIER == "full" else 0


def options(fixture: TieredFixture, topic: str, isolation: str) -> dict[str, str]:
    return {
        "subscribe": topic,
        "remoteStorage": str(fixture.remote),
        "readToLogEnd": str(fixture.is_killed).lower(),
        "isolationLevel": isolation,
        "includeHeaders": "true",
    }


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return rows_of(frame.select(*COLUMNS).toArrow())


@pytest.mark.parametrize("isolation", rest_full(["read_committed", "read_uncommitted"]))
@pytest.mark.parametrize("fixture", rest_full(ALL), ids=lambda fixture: fixture.name)
def test_batch_read_returns_what_the_consumer_got(spark: SparkSession, fixture: TieredFixture, isolation: str) -> None:
    for topic in fixture.topics():
        reader = spark.read.format("kafkalog").options(**options(fixture, topic, isolation))
        for cut in ({}, {"maxBytesPerPartition": "7000"}, {"minPartitions": "30"}):
            assert collected(reader.options(**cut).load(str(fixture.log_dir))) == fixture.rows(topic, isolation)


@pytest.mark.parametrize("isolation", rest_full(["read_committed", "read_uncommitted"]))
def test_stream_from_the_earliest_offset_returns_what_the_consumer_got(
    spark: SparkSession, isolation: str, tmp_path: Path
) -> None:
    fixture = ALL[0]
    stream = (
        spark.readStream.format("kafkalog")
        .options(startingOffsets="earliest", maxBytesPerTrigger="20000", **options(fixture, "tiered", isolation))
        .load(str(fixture.log_dir))
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination(180)
    assert query.exception() is None
    assert len(query.recentProgress) > 3
    assert collected(spark.read.parquet(str(tmp_path / "rows"))) == fixture.rows("tiered", isolation)


def test_starting_timestamp_of_a_remote_record_begins_there(spark: SparkSession) -> None:
    fixture = ALL[0]
    rows = [row for row in fixture.rows("tiered", "read_uncommitted") if row[0] == 0]
    target = rows[100][2]
    first = next(row for row in rows if row[2] >= target)
    frame = (
        spark.read.format("kafkalog")
        .options(assign='{"tiered":[0]}', startingTimestamp=str(target), remoteStorage=str(fixture.remote))
        .load(str(fixture.log_dir))
    )
    assert frame.agg({"offset": "min"}).first()[0] == first[1] < 552


def test_load_without_path_reads_the_remote_storage_alone(spark: SparkSession) -> None:
    fixture = ALL[0]
    reads = {"subscribe": "tiered", "remoteStorage": str(fixture.remote), "includeHeaders": "true"}
    ends = {0: 552, 1: 1158, 2: 667}
    rows = [row for row in fixture.rows("tiered", "read_uncommitted") if row[1] < ends[row[0]]]
    assert collected(spark.read.format("kafkalog").options(**reads).load()) == rows
    with pytest.raises(Exception, match="remoteStorageLayout goes with the option remoteStorage"):
        spark.read.format("kafkalog").options(remoteStorageLayout="local", path=str(fixture.log_dir)).load()


@pytest.mark.full
@pytest.mark.interop
def test_stream_reads_every_committed_record_once_while_the_broker_tiers(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path / "broker", settings=tiering(tmp_path / "tier")) as broker:
        broker.create_topic("orders", 1, SEGMENTS)
        read_while_it_tiers(spark, broker, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("offset").collect()
    found = [int(row["value"].partition(" ")[0]) for row in rows]
    assert found == [each for each in range(found[-1] + 1) if is_committed(each)]
    assert len(found) > 500


def read_while_it_tiers(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with produced(broker, "orders"):
        time.sleep(8)  # much of it is remote by then
        stream = (
            spark.readStream.format("kafkalog")
            .options(
                subscribe="orders",
                remoteStorage=str(tmp_path / "tier"),
                startingOffsets="earliest",
                isolationLevel="read_committed",
            )
            .load(str(broker.data))
        )
        query = (
            stream.selectExpr("offset", "CAST(value AS STRING) AS value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="1 second")
            .start(str(tmp_path / "rows"))
        )
        try:
            began = time.monotonic()
            while time.monotonic() < began + max(SECONDS_MIN, 150):
                time.sleep(1)
                assert query.exception() is None
                if SECONDS_MIN:
                    check_batch_read(spark, broker, tmp_path)
                has_seen_it = sum(each.numInputRows > 0 for each in query.recentProgress) >= 4
                if has_seen_it and time.monotonic() >= began + SECONDS_MIN:
                    break
        finally:
            query.stop()


def check_batch_read(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """All that is there now, remote and local, is read once by several tasks."""
    frame = (
        spark.read.format("kafkalog")
        .options(subscribe="orders", remoteStorage=str(tmp_path / "tier"), minPartitions="4")
        .options(isolationLevel="read_committed")
        .load(str(broker.data))
    )
    rows = frame.selectExpr("offset", "CAST(value AS STRING) AS value").orderBy("offset").collect()
    found = [int(row["value"].partition(" ")[0]) for row in rows]
    assert found == [each for each in range(found[-1] + 1) if is_committed(each)]
