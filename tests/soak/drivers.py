"""Spark drivers of the soak, each a process of its own that may be killed at any time and started again.

`writer` root name home     streams numbered rows to the root
`reader` root name home     streams the root's records to files, one a micro-batch
`drain`  root name home     the reader once more, to the end of what there is

`home/checkpoint` is the query's. A writer and a reader end when the file `stop` is beside `home`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

ROWS_A_BATCH = 150
PARTITIONS = {"s0": 4, "s1": 2}


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "600m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.warehouse.dir", "warehouse")
        .getOrCreate()
    )


def write(spark: SparkSession, root: str, name: str, home: Path) -> StreamingQuery:
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS_A_BATCH)
        .option("numPartitions", 1)
        .option("startTimestamp", 1_700_000_000_000)
        .load()
    )
    s0, s1 = PARTITIONS["s0"], PARTITIONS["s1"]
    rows = numbers.selectExpr(
        f"concat('{name} ', value) value",
        f"if(value % {s0 + s1} < {s0}, 's0', 's1') topic",
        f"cast(if(value % {s0 + s1} < {s0}, value % {s0 + s1}, value % {s0 + s1} - {s0}) as int) partition",
    )
    stream = rows.writeStream.format("kafkalog").option("checkpointLocation", str(home / "checkpoint"))
    return stream.trigger(processingTime="300 milliseconds").start(root)


def read(spark: SparkSession, root: str, home: Path, *, to_the_end: bool) -> StreamingQuery:
    def keep(rows: DataFrame, batch: int) -> None:
        found = [
            f"{row.topic} {row.partition} {row.offset} {row.value.decode()}\n"
            for row in rows.select("topic", "partition", "offset", "value").collect()
        ]
        # A batch that is made again replaces what it made before.
        unfinished = home / f"{batch}.tmp"
        unfinished.write_text("".join(found))
        unfinished.rename(home / f"{batch}.txt")

    source = spark.readStream.format("kafkalog").option("subscribe", "s0,s1").option("startingOffsets", "earliest")
    stream = source.option("maxOffsetsPerTrigger", 20_000).load(root).writeStream.foreachBatch(keep)
    stream = stream.option("checkpointLocation", str(home / "checkpoint"))
    if to_the_end:
        return stream.trigger(availableNow=True).start()
    return stream.trigger(processingTime="300 milliseconds").start()


def main(role: str, root: str, name: str, home_path: str) -> None:
    home = Path(home_path)
    home.mkdir(exist_ok=True)
    os.chdir(home)
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    if role == "drain":
        read(spark, root, home, to_the_end=True).awaitTermination()
        return
    query = write(spark, root, name, home) if role == "writer" else read(spark, root, home, to_the_end=False)
    while not (home.parent / "stop").exists():
        if query.awaitTermination(1):
            raise SystemExit(f"the query ended by itself: {query.exception()}")
        if query.lastProgress:
            home.with_suffix(".working").touch()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
