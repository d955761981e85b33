"""Consumer groups through Spark: lag during and after a query, starting from a group's offsets, a sink beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafkalog import LogDir

pytestmark = pytest.mark.spark

SECONDS_MAX = 120
GROUP = {"kafka.group.id": "g"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "2"})
    log_dir.create_topic("t", partitions=2)
    append(log_dir.path, 100)
    append(log_dir.path, 20, 1)
    return log_dir.path


def append(root: Path, count: int, partition: int = 0) -> None:
    LogDir.open(root).append("t", pa.table({"value": ["x"] * count}), partition=partition)


def lag(root: Path) -> list[int | None]:
    return [each.lag for each in LogDir.open(root).group("g").lag()]


@pytest.fixture
def stream(spark: SparkSession, root: Path) -> Callable[..., DataFrame]:
    def load(**options: object) -> DataFrame:
        return spark.readStream.format("kafkalog").options(**{"subscribe": "t", **GROUP, **options}).load(str(root))

    return load


def copy(frame: DataFrame, root: Path, checkpoint: Path, **trigger: object) -> StreamingQuery:
    """A query that copies into topic copies of the same log directory."""
    writer = frame.select("value").writeStream.format("kafkalog").option("topic", "copies").option("path", str(root))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger).start() if trigger else writer.start()


def copies(root: Path) -> int:
    log_dir = LogDir.open(root)
    return sum(each.high_watermark for each in log_dir.topic("copies").partitions)


@pytest.mark.full
def test_lag_of_running_query_falls_to_zero_and_grows_after_stop(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    query = copy(stream(startingOffsets="earliest"), root, tmp_path / "checkpoint")
    try:
        query.processAllAvailable()
        append(root, 5, 1)
        deadline = time.monotonic() + SECONDS_MAX
        while lag(root) != [0, 0] or copies(root) < 125:
            assert time.monotonic() < deadline
            assert query.exception() is None
            time.sleep(0.1)
    finally:
        query.stop()
    append(root, 3)
    assert lag(root) == [3, 0]


def test_new_query_starts_from_group_and_restarted_one_from_checkpoint(
    spark: SparkSession, stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    def run(checkpoint: str, **options: object) -> int:
        before = copies(root) if "copies" in LogDir.open(root).topics() else 0
        query = copy(stream(**options), root, tmp_path / checkpoint, availableNow=True)
        assert query.awaitTermination(SECONDS_MAX)
        return copies(root) - before

    assert run("first", startingOffsets="earliest", maxOffsetsPerTrigger=70) == 120
    assert lag(root) == [0, 0]
    append(root, 7)
    assert run("second", startingOffsets="group") == 7
    assert run("first") == 7  # the checkpoint counts, not the group
    append(root, 2, 1)
    read = spark.read.format("kafkalog").options(subscribe="t", startingOffsets="group", **GROUP).load(str(root))
    assert [tuple(row) for row in read.select("partition", "offset").collect()] == [(1, 20), (1, 21)]
    assert lag(root) == [0, 2]


def test_reset_none_without_committed_offset_fails_query(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    frame = stream(startingOffsets="group", **{"auto.offset.reset": "none"})
    query = copy(frame, root, tmp_path / "checkpoint", availableNow=True)
    with pytest.raises(StreamingQueryException, match="group g has no committed offset"):
        query.awaitTermination(SECONDS_MAX)
