"""The main job: read a real broker's records, write a million orders, read them back, check them, show the bytes.

    python jobs/demo.py [--path DIR] [--records N]

Without --path the log directory is temporary and deleted at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from pyspark_kafkalog import LogDir
from pyspark_kafkalog import main as kafkalog_main

BROKER_DIR = Path(__file__).resolve().parents[1] / "tests" / "data" / "fixtures" / "cars"
BROKER_RECORDS = 400
TOPIC = "orders"
PARTITIONS = 4
CUSTOMERS = 10_000
FIRST_ORDER_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
ORDER_INTERVAL_MS = 25
DUMP_LINES = 4

T = TypeVar("T")


def heading(text: str) -> None:
    print(f"\n== {text}")


def check(holds: bool, what: str) -> None:
    """Print the outcome of one check; end the job when it does not hold."""
    print(f"   {'ok ' if holds else 'NOT'} {what}")
    if not holds:
        sys.exit(f"demo: check failed: {what}")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def rate(records: int, seconds: float) -> str:
    return f"{records:,} records in {seconds:.2f} s: {records / seconds / 1e6:.2f} million records/s"


def kafkalog(*arguments: str) -> str:
    """What the `kafkalog` command prints for `arguments`."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exit_code = kafkalog_main(arguments)
    if exit_code:
        sys.exit(f"demo: kafkalog {arguments[0]} failed: {output.getvalue()}")
    return output.getvalue()


def start_spark(scratch: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("kafkalog demo")
        .master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read_broker_directory(spark: SparkSession) -> None:
    heading(f"Reading the directory that a Kafka 4.1 broker left behind: {BROKER_DIR.name}/")
    cars = spark.read.format("kafkalog").option("subscribe", "cars").load(str(BROKER_DIR))
    cars.selectExpr(
        "partition", "offset", "timestamp", "CAST(key AS STRING) key", "CAST(value AS STRING) value"
    ).orderBy("offset").show(5, truncate=False)
    offsets = cars.agg(F.count("*"), F.min("offset"), F.max("offset")).collect()[0]
    check(tuple(offsets) == (BROKER_RECORDS, 0, BROKER_RECORDS - 1), f"{BROKER_RECORDS} records, offsets without a gap")


def make_orders(spark: SparkSession, records: int) -> DataFrame:
    """Orders with the customer as key and a JSON value of about 100 bytes, one every ORDER_INTERVAL_MS."""
    return spark.range(0, records, 1, PARTITIONS).selectExpr(
        f"concat('customer-', (id * 7919) % {CUSTOMERS}) AS key",
        "to_json(struct(id AS order, (id * 31) % 100000 AS amount_cents, sha2(string(id), 256) AS note)) AS value",
        f"timestamp_millis({FIRST_ORDER_MS} + id * {ORDER_INTERVAL_MS}) AS timestamp",
    )


def warm_up(spark: SparkSession, root: Path) -> None:
    """Have kernels loaded and workers started, so that the rates below are those of a running system."""
    heading("Starting Spark's Python workers")

    def write_and_read() -> None:
        rows = make_orders(spark, PARTITIONS * 100).withColumn("topic", F.lit("warm-up"))
        rows.write.format("kafkalog").mode("append").option("compression.type", "zstd").save(str(root))
        to_noop(spark.read.format("kafkalog").option("subscribe", "warm-up").load(str(root)))

    print(f"   {timed(write_and_read)[1]:.1f} s")


def to_noop(rows: DataFrame) -> None:
    """Have Spark make all rows and keep none."""
    rows.write.format("noop").mode("overwrite").save()


def write_orders(spark: SparkSession, root: Path, records: int) -> None:
    heading(f"Writing {records:,} orders to topic {TOPIC}: {PARTITIONS} partitions, zstd")
    kafkalog("topics", "--path", str(root), "--create", "--topic", TOPIC, "--partitions", str(PARTITIONS))
    orders = make_orders(spark, records)
    writer = orders.write.format("kafkalog").mode("append").option("topic", TOPIC).option("compression.type", "zstd")
    _, seconds = timed(lambda: writer.save(str(root)))
    size_bytes = sum(file.stat().st_size for file in root.glob(f"{TOPIC}-*/*.log"))
    print(f"   {rate(records, seconds)}, {size_bytes / 1e6:.1f} MB on disk")
    for line in sorted(path.relative_to(root).as_posix() for path in root.glob(f"{TOPIC}-*/*.log")):
        print(f"   {line}")


def read_orders_back(spark: SparkSession, root: Path, records: int) -> None:
    heading("Reading them back")
    spark.sql(f"CREATE TABLE orders USING kafkalog OPTIONS (path '{root}', subscribe '{TOPIC}')")
    orders = spark.table("orders")
    _, seconds = timed(lambda: to_noop(orders))
    print(f"   {rate(records, seconds)} (all columns)")

    heading("Checking them")
    fields = "order LONG, amount_cents LONG"
    parsed = orders.select("*", F.from_json(F.col("value").cast("string"), fields).alias("v")).select(
        F.col("key").cast("string").alias("customer"), "partition", "offset", "timestamp", "v.*"
    )
    found = parsed.agg(F.count("*"), F.countDistinct("order"), F.sum("order"), F.sum("amount_cents")).collect()[0]
    amounts = sum((order * 31) % 100_000 for order in range(records))
    check(found[0] == records and found[1] == records, f"{records:,} orders, each once")
    check(found[2] == records * (records - 1) // 2, "the sum of the order numbers")
    check(found[3] == amounts, f"the sum of the amounts: {amounts / 100:,.2f}")
    wrong_times = parsed.where(
        F.col("timestamp") != F.timestamp_millis(FIRST_ORDER_MS + F.col("order") * ORDER_INTERVAL_MS)
    )
    check(wrong_times.isEmpty(), "every timestamp")
    check_partitions(parsed, root)


def java_partition(key: str) -> int:
    """The partition that the default partitioner of Kafka's Java clients chooses for `key`."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % PARTITIONS


def murmur2(data: bytes) -> int:
    """The hash of Kafka's org.apache.kafka.common.utils.Utils.murmur2, as an unsigned number of 32 bits."""
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        found = found * factor & mask ^ (word ^ word >> 24) * factor & mask
    if data[whole:]:
        found = (found ^ int.from_bytes(data[whole:], "little")) * factor & mask
    found = (found ^ found >> 13) * factor & mask
    return found ^ found >> 15


def check_partitions(parsed: DataFrame, root: Path) -> None:
    """Offsets are dense; a key's orders share the partition that Java clients would choose, and stand in order."""
    per_partition = parsed.groupBy("partition").agg(F.count("*"), F.min("offset"), F.max("offset")).collect()
    dense = all(low == 0 and high == count - 1 for _, count, low, high in per_partition)
    check(len(per_partition) == PARTITIONS and dense, f"offsets 0 to n - 1 in each of {PARTITIONS} partitions")
    described = LogDir.open(root).topic(TOPIC).partitions
    check(
        {p.partition: p.high_watermark for p in described} == {row[0]: row[1] for row in per_partition},
        "each high watermark is the number of records",
    )
    placed = parsed.groupBy("customer").agg(F.min("partition"), F.max("partition")).collect()
    check(
        all(low == high == java_partition(key) for key, low, high in placed),
        f"all orders of a customer are where Java's default partitioner (murmur2) puts the key, {len(placed):,} keys",
    )
    previous = F.lag("order").over(Window.partitionBy("customer").orderBy("offset"))
    check(
        parsed.select("order", previous.alias("previous")).where("order <= previous").isEmpty(),
        "each customer's orders stand in the order in which they were written",
    )


def read_time_slice(spark: SparkSession, records: int) -> None:
    heading("One percent of the time, by filter (pushed down to segments and indexes)")
    first = records // 2
    count = max(records // 100, 1)
    from_ms, until_ms = (FIRST_ORDER_MS + order * ORDER_INTERVAL_MS for order in (first, first + count))
    slice_ = spark.table("orders").where(
        f"timestamp >= timestamp_millis({from_ms}) AND timestamp < timestamp_millis({until_ms})"
    )
    found, seconds = timed(slice_.count)
    check(found == count, f"{count:,} orders, found in {seconds:.2f} s")


def dump_first_batch(root: Path) -> None:
    heading("The first batch as kafkalog dump-log (and Kafka's own tool) shows it")
    first_segment = root / f"{TOPIC}-0" / "00000000000000000000.log"
    dump = kafkalog("dump-log", "--files", str(first_segment), "--print-data-log", "--max-bytes", "1000000")
    for line in dump.splitlines()[:DUMP_LINES]:
        print(f"   {line}")


def run(root: Path, records: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kafkalog-demo-spark-") as scratch:
        spark, seconds = timed(lambda: start_spark(Path(scratch)))
        print(f"Spark {spark.version} started in {seconds:.1f} s; log directory {root}")
        try:
            read_broker_directory(spark)
            warm_up(spark, root)
            write_orders(spark, root, records)
            read_orders_back(spark, root, records)
            read_time_slice(spark, records)
        finally:
            spark.stop()
    dump_first_batch(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--path", type=Path, help="log directory to write to; kept at the end")
    parser.add_argument("--records", type=int, default=1_000_000)
    arguments = parser.parse_args()
    start = time.perf_counter()
    if arguments.path:
        run(arguments.path.resolve(), arguments.records)
    else:
        with tempfile.TemporaryDirectory(prefix="kafkalog-demo-") as directory:
            run(Path(directory), arguments.records)
    print(f"\nAll checks passed in {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
