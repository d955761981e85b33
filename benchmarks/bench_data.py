"""The records that all contenders of a benchmark read or write."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
KEY_BYTES, VALUE_BYTES = 14, 100
FIRST_MS = 1_767_225_600_000


def orders(spark: SparkSession, records: int, tasks: int) -> DataFrame:
    """Records with a key of 14 bytes and a value of 100, part of it random, one a millisecond."""
    text = """rpad(concat(md5(string(id)), md5(string(id + 1))), 100, '{"status":"shipped","currency":"EUR"}')"""
    return spark.range(0, records, 1, tasks).selectExpr(
        "CAST(concat('customer-', lpad(string(id * 7919 % 100000), 5, '0')) AS BINARY) AS key",
        f"CAST({text} AS BINARY) AS value",
        f"timestamp_millis({FIRST_MS} + id) AS timestamp",
    )


def write_ours(rows: DataFrame, root: Path, codec: str) -> None:
    writer = rows.write.format("kafkalog").mode("append").option("topic", TOPIC)
    writer.option("compression.type", codec).save(str(root))
