"""Every fixture that a real broker wrote, read through Spark: the rows are those of Kafka's own consumer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from repository import FIXTURES
from tiers import rest_full

pytestmark = pytest.mark.spark

TIMESTAMP_TYPES = {"CreateTime": 0, "LogAppendTime": 1}


def manifest(fixture: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / fixture / "expected" / "manifest.json").read_text())
    return found


WITH_RECORDS = sorted(
    path.parents[1].name
    for path in FIXTURES.glob("*/expected/manifest.json")
    if manifest(path.parents[1].name).get("records")
)


def expected_rows(fixture: str, isolation: str) -> dict[tuple[str, int, int], tuple[object, ...]]:
    rows = {}
    for topic, by_isolation in manifest(fixture)["records"].items():
        for line in (FIXTURES / fixture / by_isolation[isolation]["file"]).read_text().splitlines():
            row = json.loads(line)
            headers = [(key, from_base64(value)) for key, value in row["headers"]]
            rows[topic, row["partition"], row["offset"]] = (
                from_base64(row["key"]),
                from_base64(row["value"]),
                row["timestamp"],
                TIMESTAMP_TYPES[row["timestampType"]],
                headers or None,
            )
    return rows


def from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def as_expected(row: Row) -> tuple[object, ...]:
    binary = [None if each is None else bytes(each) for each in (row.key, row.value)]
    headers = None
    if row.headers is not None:
        headers = [(each.key, None if each.value is None else bytes(each.value)) for each in row.headers]
    return (*binary, row.timestamp_ms, row.timestampType, headers)


@pytest.mark.parametrize("isolation", rest_full(["read_committed", "read_uncommitted"]))
@pytest.mark.parametrize("fixture", WITH_RECORDS)
def test_rows_equal_those_of_kafkas_consumer(load: Callable[..., DataFrame], fixture: str, isolation: str) -> None:
    topics = ",".join(manifest(fixture)["records"])
    options = {"subscribe": topics, "includeHeaders": "true", "kafka.isolation.level": isolation}
    rows = load(FIXTURES / fixture, **options).selectExpr("*", "unix_millis(timestamp) timestamp_ms").collect()
    found = {(row.topic, row.partition, row.offset): as_expected(row) for row in rows}
    assert len(found) == len(rows)
    assert found == expected_rows(fixture, isolation)


def test_root_without_topic_option_reads_all_topics(load: Callable[..., DataFrame]) -> None:
    counts = {row.topic: row["count"] for row in load(FIXTURES / "retention").groupBy("topic").count().collect()}
    assert counts == {"delete-records": 113, "retention-bytes": 173}


def test_internal_topics_are_read_only_by_name(load: Callable[..., DataFrame]) -> None:
    assert load(FIXTURES / "consumer-offsets").where("topic like '\\\\_\\\\_%'").count() == 0
    assert load(FIXTURES / "consumer-offsets", subscribe="__consumer_offsets").count() == 38


def test_partition_directory_is_read_alone(load: Callable[..., DataFrame]) -> None:
    directory = next((FIXTURES / "transactions").glob("transactions-0"))
    rows = load(f"file:{directory}").select("topic", "partition").distinct().collect()
    assert [tuple(row) for row in rows] == [("transactions", 0)]
