"""The Python and SQL examples of README.md run in their order, on topics of three partitions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir

pytestmark = [pytest.mark.spark, pytest.mark.full]

REPOSITORY = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def names(spark: SparkSession, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the pages assume: a session, the topics, a table of orders, and a function that writes one frame."""
    log_dir = LogDir.create(tmp_path / "log")
    for topic in ("orders", "copies"):
        log_dir.create_topic(topic, partitions=3)

    def write_one(frame: DataFrame) -> None:
        frame.write.format("kafkalog").mode("append").option("topic", "orders").save(str(tmp_path / "log"))

    orders = spark.range(20).selectExpr("CAST(id AS STRING) AS customer", "id AS amount")
    frames = [orders.selectExpr("customer AS key", "'x' AS value")]
    yield {"spark": spark, "orders": orders, "frames": frames, "write_one": write_one, "pool": ThreadPoolExecutor}
    for query in spark.streams.active:
        query.stop()
    spark.sql("DROP TABLE IF EXISTS orders")
    spark.catalog.dropTempView("orders")


def here(text: str, tmp_path: Path) -> str:
    """`text` with paths below `tmp_path`, and without waiting for records that nobody writes."""
    for path in ("/tmp/kafkalog-first", "/data/log", "/var/kafka/data"):
        text = text.replace(path, str(tmp_path / "log"))
    text = text.replace("/data/", f"{tmp_path}/").replace("timeout_seconds=60", "timeout_seconds=0")
    return text.replace("ThreadPoolExecutor(", "pool(")


def run(text: str, names: dict[str, Any]) -> None:
    names.pop("query", None)
    exec(compile(text, "<example>", "exec"), names)
    if "query" in names:
        names["query"].processAllAvailable()
        names["query"].stop()


def test_examples_of_the_first_page_run_in_order(names: dict[str, Any], tmp_path: Path) -> None:
    (first, *blocks) = BLOCK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    frame = names["orders"]
    run(here(first[1], tmp_path).replace("100_000", "1_000"), names)
    names["orders"] = frame
    kinds = {"python": 0, "sql": 0}
    for kind, text in blocks:
        kinds[kind] += 1
        if kind == "python":
            run(here(text, tmp_path), names)
        else:
            for statement in filter(str.strip, here(text, tmp_path).split(";")):
                names["spark"].sql(statement).collect()
    assert kinds == {"python": 6, "sql": 2}
    log_dir = LogDir.open(tmp_path / "log")
    offsets = log_dir.read("copies", columns=["partition"])["partition"].to_pylist()
    assert set(offsets) == {0, 1, 2}
