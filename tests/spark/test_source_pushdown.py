"""Filters through Spark: pushed filters keep the same rows and read less; with pushdown off the source works too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from pyspark_kafkalog import LogDir

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000
COUNT = 600


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics a and b with two partitions each; timestamps rise by 1 s, but every seventh is 100 s older."""
    path = tmp_path_factory.mktemp("pushdown") / "log"
    log_dir = LogDir.create(path)
    for topic in ("a", "b"):
        log_dir.create_topic(topic, partitions=2, configs={"index.interval.bytes": "100"})
        for partition in range(2):
            for first in range(0, COUNT, 20):
                numbers = range(first, first + 20)
                timestamps = [(START_MS + 1000 * (n - (100 if n % 7 == 0 else 0))) * 1000 for n in numbers]
                table = pa.table(
                    {"value": [str(n) for n in numbers], "timestamp": pa.array(timestamps, pa.timestamp("us", "UTC"))}
                )
                log_dir.append(topic, table, partition=partition)
    return path


CONDITIONS = [
    "topic = 'a'",
    "topic <> 'a' and partition = 1",
    "topic in ('b', 'x') and partition in (0, 7)",
    "topic like 'a%' and offset < 5",
    "offset = 17",
    "offset <=> 17",
    "offset in (3, 599, 1000)",
    "offset in (3, 4, 5)",
    "offset > 590 and offset <= 595",
    "offset >= 600",
    "not (offset > 5)",
    "offset > 10 and offset < 8",
    "partition is null",
    "partition > 0 and topic >= 'b'",
    "timestamp >= timestamp_millis(1700000500000)",
    "timestamp > timestamp_micros(1700000499999999)",
    "timestamp < timestamp_micros(1700000000000001)",
    "timestamp <= timestamp_millis(1700000003000)",
    "timestamp = timestamp_millis(1700000005000)",
    "timestamp = timestamp_micros(1700000005000001)",
    "timestamp in (timestamp_millis(1700000005000), timestamp_millis(1700000008000))",
    "timestamp >= timestamp_millis(1700000200000) and timestamp < timestamp_millis(1700000210000)",
    "timestamp between timestamp_millis(1700000200000) and timestamp_millis(1700000202000) and partition = 0",
    "timestamp > timestamp_millis(1800000000000)",
    "offset = 3 or offset = 590",
    "value = '17' and offset < 100",
    "timestampType = 0 and offset = 1",
]


def test_pushed_filters_keep_rows_that_spark_would_keep(
    load: Callable[..., DataFrame], root: Path, pushdown: bool
) -> None:
    """The rows of each condition are compared with Spark's own evaluation of all conditions over all rows."""
    flags = [f"coalesce({condition}, false) as c{number}" for number, condition in enumerate(CONDITIONS)]
    everything = load(root).selectExpr("topic", "partition", "offset", *flags).collect()
    for number, condition in enumerate(CONDITIONS) if pushdown else []:
        expected = sorted(tuple(row[:3]) for row in everything if row[f"c{number}"])
        found = load(root, filterPushdown="true").where(condition).select("topic", "partition", "offset").collect()
        assert sorted(map(tuple, found)) == expected, condition
    assert len(everything) == 4 * COUNT


@pytest.mark.parametrize(("condition", "tasks"), [("topic = 'a' and partition = 1", 1), ("topic = 'x'", 1)])
def test_partitions_that_cannot_match_are_not_planned(
    load: Callable[..., DataFrame], root: Path, pushdown: bool, condition: str, tasks: int
) -> None:
    assert load(root, filterPushdown="true").where(condition).rdd.getNumPartitions() == (tasks if pushdown else 4)


def test_filters_applied_exactly_are_absent_from_sparks_plan(
    load: Callable[..., DataFrame], root: Path, pushdown: bool
) -> None:
    frame = load(root, filterPushdown="true").where(
        "topic = 'a' and offset > 5 and timestamp >= timestamp_millis(1700000200000)"
    )
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert ("Filter (" in plan) != pushdown


def test_filter_takes_no_rows_from_other_queries_on_same_data_frame(
    load: Callable[..., DataFrame], root: Path, pushdown: bool
) -> None:
    frame = load(root)
    assert frame.where("offset < 10").count() == 40
    assert frame.count() == 4 * COUNT
    few, others = frame.where("topic = 'a' and offset < 10"), frame.where("topic = 'b' and offset < 5")
    assert few.union(others).groupBy("topic").count().sort("topic").collect() == [("a", 20), ("b", 10)]
    assert few.join(frame, ["topic", "partition"]).count() == 20 * COUNT
