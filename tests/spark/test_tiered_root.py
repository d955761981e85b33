"""`format("kafkalog")` over a native root that tiers to S3: batch and stream, while segments are deleted locally.

The store is S3Proxy; its keys are options of the reads, as nothing of the root holds them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders.tiered_fixtures import COLUMNS, ISOLATIONS, rows_of
from builders.tiered_logs import T0, bases, copy_closed, delete_local, fill, tiering_root
from kafka_processes.s3_proxy import S3Proxy

from pyspark_kafkalog import LogDir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def log_dir(s3_proxy: S3Proxy, tmp_path: Path) -> LogDir:
    """All is local, and remote is nothing yet."""
    made = tiering_root(tmp_path / "root", f"{s3_proxy.new_location().url}/tier")
    rng = random.Random(3)
    fill(made, rng, 60)
    fill(made, rng, 60)
    return LogDir.open(tmp_path / "root", store_options=s3_proxy.options())


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return rows_of(frame.select(*COLUMNS).toArrow())


def test_batch_reads_planned_before_and_after_local_deletion_return_every_row(
    spark: SparkSession, s3_proxy: S3Proxy, log_dir: LogDir
) -> None:
    frames = {}
    for isolation in ISOLATIONS:
        options = {"isolationLevel": isolation, "maxBytesPerPartition": "6000", "includeHeaders": "true"}
        reader = spark.read.format("kafkalog").options(subscribe="orders", **options, **s3_proxy.options())
        frames[isolation] = (reader, reader.load(str(log_dir.path)))
    before = {isolation: collected(planned) for isolation, (_, planned) in frames.items()}
    assert before["read_uncommitted"] != before["read_committed"]
    copied = copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    log_dir.refresh()
    assert log_dir.partition("orders", 0).local_log_start_offset > copied // 2
    for isolation, (reader, planned) in frames.items():
        assert collected(planned) == before[isolation]
        assert collected(reader.load(str(log_dir.path))) == before[isolation]
    reader = frames["read_uncommitted"][0].option("startingTimestamp", str(T0 + 100_000))
    found = collected(reader.load(str(log_dir.path)))
    first = next(row[1] for row in before["read_uncommitted"] if row[2] >= T0 + 100_000)
    assert found == [row for row in before["read_uncommitted"] if row[1] >= first]


@pytest.mark.full
def test_stream_goes_on_in_remote_storage_and_passes_each_row_once(
    spark: SparkSession, s3_proxy: S3Proxy, log_dir: LogDir, tmp_path: Path
) -> None:
    copy_closed(log_dir, 12)
    delete_local(log_dir, bases(log_dir)[8])

    def run() -> None:
        stream = (
            spark.readStream.format("kafkalog")
            .options(subscribe="orders", startingOffsets="earliest", isolationLevel="read_committed")
            .options(maxBytesPerTrigger="8000", includeHeaders="true", **s3_proxy.options())
            .load(str(log_dir.path))
        )
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination(180)
        assert query.exception() is None

    run()
    fill(log_dir, random.Random(4), 60)
    expected = rows_of(log_dir.read("orders", isolation="read_committed", columns=COLUMNS))
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-1])  # with all that the stream has not read yet
    run()
    assert collected(spark.read.parquet(str(tmp_path / "rows"))) == expected
