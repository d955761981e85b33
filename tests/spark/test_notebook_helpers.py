"""The helpers that notebooks use: parsed values, the latest record of each key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir, latest_by_key, parse_json, register
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEYS = 11
SMALL = {"internal.segment.bytes": "500", "delete.retention.ms": "0"}


@pytest.mark.full
def test_latest_by_key_equals_what_compaction_leaves(spark: SparkSession, tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("t", partitions=2, configs=SMALL)
    for first in range(0, 200, 20):
        numbers = range(first, first + 20)
        keys = [f"k{number % KEYS}" for number in numbers]
        values = [None if number % 7 == 0 and number > 150 else f"v{number}" for number in numbers]
        # Timestamps run backwards: the last is by offset.
        times = pa.array([1_700_000_000_000 - number for number in numbers], pa.timestamp("ms", "UTC"))
        log_dir.append("t", pa.table({"key": keys, "value": values, "timestamp": times}), flush="os")
    log_dir.append("t", pa.table({"value": ["no key"]}), partition=0)
    log_dir.alter_topic("t", add={"cleanup.policy": "compact"})  # which takes records without a key no more
    records = spark.read.format("kafkalog").option("subscribe", "t").load(str(log_dir.path))
    before = {(row.key, row.value) for row in latest_by_key(records).collect()}
    with_tombstones = latest_by_key(records, keep_tombstones=True)
    assert with_tombstones.columns == records.columns
    assert with_tombstones.count() == KEYS
    assert 0 < len(before) < KEYS
    for partition in (0, 1):
        # So that all there is lies in closed segments, and tombstones have had their time.
        filler = pa.table({"key": ["filler"] * 2, "value": ["x" * 400] * 2})
        for _ in range(2):
            log_dir.append("t", filler, partition=partition)
        for late_ms in (1, 2):
            report = clean_partition(log_dir.root, "t", partition, force=True, now_ms=4_000_000_000_000 + late_ms)
            assert report.error is None
    log_dir.refresh()
    table = log_dir["t"].to_arrow(["key", "value"])
    left = {(row["key"], row["value"]) for row in table.to_pylist() if row["key"] not in (None, b"filler")}
    assert {each for each in left if each[1] is not None} == before


@pytest.mark.full
def test_parse_json_keeps_columns_and_makes_invalid_json_null(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    log_dir = LogDir.create(tmp_path / "root")
    values = ['{"order": 1, "cents": 250}', "no json", None, '{"order": 2}']
    log_dir.append("t", pa.table({"key": ["a", "b", "c", None], "value": values}), partition=0)
    records = spark.read.format("kafkalog").option("subscribe", "t").load(str(log_dir.path))
    parsed = parse_json(records, "order LONG, cents LONG")
    assert parsed.columns == records.columns
    rows = parsed.orderBy("offset").select("key", "value.order", "value.cents").collect()
    assert [tuple(row) for row in rows] == [("a", 1, 250), ("b", None, None), ("c", None, None), (None, 2, None)]
    assert parse_json(records.select("value"), "order LONG").columns == ["value"]


def test_missing_column_is_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(b"k",)], "key binary")
    with pytest.raises(InvalidOptionError, match="no column value, offset; it has key"):
        latest_by_key(frame)
    with pytest.raises(InvalidOptionError, match="no column value"):
        parse_json(frame, "a LONG")
