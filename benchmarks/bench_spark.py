"""Compares batch reads and writes with Spark's Kafka connector, Delta and the API's ceiling, in one run on equal data.

    python benchmarks/bench_spark.py [--quick] [--records N] [--rounds N] [--only PART[,PART]] [--scratch DIR]

Parts: write, read, slice, segment, codec. Contenders take turns and medians are compared, so quote the ratios: machines
drift. Takes about 15 minutes and 15 GB of disk on two cores; --quick, to check that everything runs, two minutes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_data import FIRST_MS, KEY_BYTES, TOPIC, VALUE_BYTES, orders, write_ours
from bench_frame import Bench, run_benchmark
from bench_runs import OURS, Contender, Goal, measure, report, report_limit
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from pyspark_kafkalog import LogDir

CONNECTOR, DELTA, CEILING = "spark-sql-kafka", "delta", "transport ceiling"
PARTITIONS = 4
READ_GOALS = (Goal(CONNECTOR, 3.0), Goal(CEILING, 0.75))
#: The ceiling itself is 1.5 times as fast as Delta: no Python data source can be much faster than Delta.
WRITE_GOALS = (Goal(DELTA, 1.0), Goal(CEILING, 0.70))
SLICE_GOALS = (Goal("full read", 20.0),)
LOOKUP_LIMIT_US = 20
WORKER_LIMIT_MB = 512
HERE = Path(__file__).resolve().parent


def make_orders(bench: Bench, records: int | None = None, tasks: int = PARTITIONS) -> DataFrame:
    return orders(bench.spark, records or bench.records, tasks)


def make_root(bench: Bench, name: str, *, partitions: int = PARTITIONS, configs: dict[str, str] | None = None) -> Path:
    """A new, empty log directory with the topic."""
    root = bench.scratch / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    LogDir.create(root).create_topic(TOPIC, partitions=partitions, configs=configs or {})
    return root


def read_ours(bench: Bench, root: Path, **options: str) -> DataFrame:
    return bench.spark.read.format("kafkalog").option("subscribe", TOPIC).options(**options).load(str(root))


def to_noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


@contextmanager
def cached(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows in memory, so that making them costs no contender anything."""
    kept = rows.persist(StorageLevel.MEMORY_ONLY)
    try:
        kept.count()
        yield kept
    finally:
        kept.unpersist()


def bench_write(bench: Bench) -> None:
    with cached(make_orders(bench).select("key", "value")) as rows:
        for codec in ("none", "lz4"):
            bench.missed += _bench_write_codec(bench, rows, codec)


def _bench_write_codec(bench: Bench, rows: DataFrame, codec: str) -> list[str]:
    delta = str(bench.scratch / "delta-write")
    make_root(bench, "write")
    contenders = {
        OURS: Contender(lambda: write_ours(rows, bench.scratch / "write", codec), lambda: make_root(bench, "write")),
        DELTA: Contender(lambda: rows.write.format("delta").mode("append").save(delta)),
        CEILING: Contender(lambda: rows.write.format("count_only").mode("append").save()),
    }
    if bench.broker:
        topic = f"write-{codec}"
        bench.broker.start().create_topic(topic, PARTITIONS)
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", bench.broker.bootstrap)
        writer = writer.option("topic", topic).option("kafka.compression.type", codec)
        contenders[CONNECTOR] = Contender(writer.save)
    medians = measure(contenders, rounds=bench.rounds)
    return report(f"Batch write, {codec}", medians, records=bench.records, goals=WRITE_GOALS)


def bench_read(bench: Bench) -> None:
    delta = str(bench.scratch / "delta-read")
    for codec in ("none", "lz4"):
        root = make_root(bench, f"read-{codec}")
        write_ours(make_orders(bench), root, codec)
    read_ours(bench, root).write.format("delta").mode("overwrite").save(delta)
    for codec in ("none", "lz4"):
        bench.missed += _bench_read_codec(bench, codec, delta)


def _bench_read_codec(bench: Bench, codec: str, delta: str) -> list[str]:
    spark = bench.spark
    root = bench.scratch / f"read-{codec}"
    ready = spark.read.format("ready_batches").option("records", bench.records).option("partitions", PARTITIONS)
    ready = ready.option("keyBytes", KEY_BYTES).option("valueBytes", VALUE_BYTES)
    contenders = {
        OURS: Contender(lambda: to_noop(read_ours(bench, root))),
        DELTA: Contender(lambda: to_noop(spark.read.format("delta").load(delta))),
        CEILING: Contender(lambda: to_noop(ready.load())),
    }
    if bench.broker:
        # The very same files, served by a broker.
        for partition in range(PARTITIONS):
            served = root.parent / f"mount-{codec}" / f"read-{codec}-{partition}"
            shutil.copytree(root / f"{TOPIC}-{partition}", served)
        bench.broker.mount(root.parent / f"mount-{codec}", {f"read-{codec}": PARTITIONS})
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bench.broker.bootstrap)
        served_rows = reader.option("subscribe", f"read-{codec}").load()
        assert served_rows.count() == bench.records
        contenders[CONNECTOR] = Contender(lambda: to_noop(served_rows))
    medians = measure(contenders, rounds=bench.rounds)
    return report(f"Batch read, {codec}", medians, records=bench.records, goals=READ_GOALS)


def bench_slice(bench: Bench) -> None:
    """One percent of the time out of the middle of a topic that several writes made."""
    root = make_root(bench, "slice")
    appends = 2 if bench.quick else 10
    for number in range(appends):
        later = make_orders(bench).withColumn("timestamp", _shifted_ms(number * bench.records))
        write_ours(later, root, "lz4")
    records = appends * bench.records
    first_ms = FIRST_MS + records // 2
    last_ms = first_ms + records // 100
    wanted = read_ours(bench, root, filterPushdown="true").where(
        f"timestamp >= timestamp_millis({first_ms}) AND timestamp < timestamp_millis({last_ms})"
    )
    assert wanted.count() == records // 100
    contenders = {
        OURS: Contender(lambda: to_noop(wanted)),
        "full read": Contender(lambda: to_noop(read_ours(bench, root))),
    }
    medians = measure(contenders, rounds=bench.rounds)
    bench.missed += report("1% time slice by filter", medians, records=records, goals=SLICE_GOALS)
    shutil.rmtree(root)


def _shifted_ms(by_ms: int) -> object:
    from pyspark.sql import functions as F

    return F.expr(f"timestamp_millis(unix_millis(timestamp) + {by_ms})")


def bench_segment(bench: Bench) -> None:
    """Look-ups in, and a worker's memory over, one large segment."""
    root = make_root(bench, "segment", partitions=1, configs={"segment.bytes": "2147483647"})
    log = root / f"{TOPIC}-0" / "00000000000000000000.log"
    # One task, so that what it stages becomes this one segment.
    segment_bytes = 20_000_000 if bench.quick else 1_000_000_000
    write_ours(make_orders(bench, segment_bytes // (KEY_BYTES + VALUE_BYTES), tasks=1), root, "none")
    size = f"{log.stat().st_size / 1e9:.2f} GB segment"
    lookup_us = float(_run_alone("segment_lookup.py", str(log)))
    bench.missed += report_limit(f"Offset look-up in a {size}, warm", lookup_us, LOOKUP_LIMIT_US, "us")
    for action in ("read", "write"):
        found_mb = float(_run_alone("worker_memory.py", action, str(root), TOPIC, str(log.stat().st_size)))
        title = f"Worker memory above its imports, {size}, {action}"
        bench.missed += report_limit(title, found_mb, WORKER_LIMIT_MB, "MB")


def _run_alone(script: str, *arguments: str) -> str:
    """Run a script of this folder in a process of its own; its last line is the figure, those before are shown."""
    done = subprocess.run([sys.executable, HERE / script, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    *notes, figure = done.stdout.splitlines()
    for note in notes:
        print(f"  {note}")
    return figure


def bench_codec(bench: Bench) -> None:
    print("\nDecode and encode without Spark (benchmarks/record_codec.py)", flush=True)
    sizes = ["--records", "50000", "--seconds", "0.1"] if bench.quick else []
    subprocess.run([sys.executable, HERE / "record_codec.py", *sizes], check=True)


PARTS = {
    "write": bench_write,
    "read": bench_read,
    "slice": bench_slice,
    "segment": bench_segment,
    "codec": bench_codec,
}


if __name__ == "__main__":
    run_benchmark(PARTS, description=__doc__, rounds=5)
