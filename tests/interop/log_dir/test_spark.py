"""Records that Spark writes through `format("kafkalog")`, a real broker serves record for record, in all codecs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_processes.clients import ConsumedRecord, consume
from kafka_processes.oracle import Broker
from pyspark.sql import SparkSession

from pyspark_kafkalog import LogDir
from tests.interop.samples import CODECS, assert_dumps_clean, sample_records, to_table

PARTITIONS = 2
RECORDS = 1500
CONFIGS = {"internal.segment.bytes": "200000", "index.interval.bytes": "2000"}


def expected_records() -> list[ConsumedRecord]:
    return [
        record
        for partition in range(PARTITIONS)
        for record in sample_records(RECORDS, seed=partition, partition=partition)
    ]


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spark-written")
    log_dir = LogDir.create(root)
    records = sorted(expected_records(), key=lambda record: record.offset)
    table = to_table(records).append_column("partition", pa.array([r.partition for r in records], pa.int32()))
    rows = spark.createDataFrame(table)
    assert rows.rdd.getNumPartitions() > 1, "the commit was meant to put the tasks' records in order"
    for codec in CODECS:
        log_dir.create_topic(f"spark-{codec}", partitions=PARTITIONS, configs=CONFIGS)
        writer = rows.write.format("kafkalog").mode("append").option("topic", f"spark-{codec}")
        writer.option("compression.type", codec).option("batch.size", "20000").save(str(root))
    return root


@pytest.fixture(scope="module")
def broker(written: Path, start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker()
    broker.mount(written, {f"spark-{codec}": PARTITIONS for codec in CODECS})
    return broker


def test_kafka_finds_segments_written_by_spark_valid(written: Path) -> None:
    directories = [written / f"spark-{codec}-{partition}" for codec in CODECS for partition in range(PARTITIONS)]
    assert len(list(directories[0].glob("*.log"))) > 1, "the segments were meant to roll"
    assert any(index.stat().st_size for index in directories[0].glob("*.index"))
    assert_dumps_clean(directories, batches_min=50)


@pytest.mark.full
@pytest.mark.parametrize("codec", CODECS)
def test_kafka_serves_records_written_by_spark(broker: Broker, codec: str) -> None:
    assert consume(broker.bootstrap, f"spark-{codec}") == expected_records()
