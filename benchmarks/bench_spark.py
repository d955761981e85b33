"""Batch reads and writes beside Spark's Kafka connector, Delta and the transport ceiling, in one run on the same data.

    python benchmarks/bench_spark.py [--quick] [--records N] [--rounds N] [--only PART[,PART]] [--scratch DIR]

Parts: write, read, slice, segment, codec. Contenders take turns and medians are compared, so quote the ratios: machines
drift. Takes about 15 minutes and 15 GB of disk on two cores; --quick, for a look at whether it all runs, two minutes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench_data import FIRST_MS, KEY_BYTES, TOPIC, VALUE_BYTES, orders, write_ours
from bench_peers import Broker, make_broker, standin_jar, start_spark
from bench_runs import OURS, Contender, Goal, measure, report, report_limit
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir

CONNECTOR, DELTA, CEILING = "spark-sql-kafka", "delta", "transport ceiling"
PARTS = ("write", "read", "slice", "segment", "codec")
PARTITIONS = 4
CORES = 2
READ_GOALS = (Goal(CONNECTOR, 3.0), Goal(CEILING, 0.75))
WRITE_GOALS = (Goal(CONNECTOR, 4.0), Goal(DELTA, 3.0), Goal(CEILING, 0.70))
SLICE_GOALS = (Goal("full read", 20.0),)
LOOKUP_LIMIT_US = 20
WORKER_LIMIT_MB = 512
HERE = Path(__file__).resolve().parent


@dataclass
class Bench:
    """One run: its session, its data, where it works, what it found wanting."""

    spark: SparkSession
    scratch: Path
    broker: Broker | None
    records: int
    rounds: int
    quick: bool
    slice_appends: int
    segment_bytes: int
    missed: list[str] = field(default_factory=list)

    def orders(self, records: int | None = None, tasks: int = PARTITIONS) -> DataFrame:
        return orders(self.spark, records or self.records, tasks)

    def root(self, name: str, *, partitions: int = PARTITIONS, configs: dict[str, str] | None = None) -> Path:
        """A new, empty log directory with the topic."""
        root = self.scratch / name
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        LogDir.create(root).create_topic(TOPIC, partitions=partitions, configs=configs or {})
        return root

    def read_ours(self, root: Path, **options: str) -> DataFrame:
        return self.spark.read.format("kafkalog").option("subscribe", TOPIC).options(**options).load(str(root))


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
    with cached(bench.orders().select("key", "value")) as rows:
        for codec in ("none", "lz4"):
            bench.missed += _bench_write_codec(bench, rows, codec)


def _bench_write_codec(bench: Bench, rows: DataFrame, codec: str) -> list[str]:
    delta = str(bench.scratch / "delta-write")
    bench.root("write")
    contenders = {
        OURS: Contender(lambda: write_ours(rows, bench.scratch / "write", codec), lambda: bench.root("write")),
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
        root = bench.root(f"read-{codec}")
        write_ours(bench.orders(), root, codec)
    bench.read_ours(root).write.format("delta").mode("overwrite").save(delta)
    for codec in ("none", "lz4"):
        bench.missed += _bench_read_codec(bench, codec, delta)


def _bench_read_codec(bench: Bench, codec: str, delta: str) -> list[str]:
    spark = bench.spark
    root = bench.scratch / f"read-{codec}"
    ready = spark.read.format("ready_batches").option("records", bench.records).option("partitions", PARTITIONS)
    ready = ready.option("keyBytes", KEY_BYTES).option("valueBytes", VALUE_BYTES)
    contenders = {
        OURS: Contender(lambda: to_noop(bench.read_ours(root))),
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
    root = bench.root("slice")
    for number in range(bench.slice_appends):
        later = bench.orders().withColumn("timestamp", _shifted_ms(number * bench.records))
        write_ours(later, root, "lz4")
    records = bench.slice_appends * bench.records
    first_ms = FIRST_MS + records // 2
    last_ms = first_ms + records // 100
    wanted = bench.read_ours(root, filterPushdown="true").where(
        f"timestamp >= timestamp_millis({first_ms}) AND timestamp < timestamp_millis({last_ms})"
    )
    assert wanted.count() == records // 100
    contenders = {
        OURS: Contender(lambda: to_noop(wanted)),
        "full read": Contender(lambda: to_noop(bench.read_ours(root))),
    }
    medians = measure(contenders, rounds=bench.rounds)
    bench.missed += report("1% time slice by filter", medians, records=records, goals=SLICE_GOALS)
    shutil.rmtree(root)


def _shifted_ms(by_ms: int) -> object:
    from pyspark.sql import functions as F

    return F.expr(f"timestamp_millis(unix_millis(timestamp) + {by_ms})")


def bench_segment(bench: Bench) -> None:
    """Look-ups in, and a worker's memory over, one large segment."""
    root = bench.root("segment", partitions=1, configs={"segment.bytes": "2147483647"})
    log = root / f"{TOPIC}-0" / "00000000000000000000.log"
    # One task, so that what it stages becomes this one segment.
    write_ours(bench.orders(bench.segment_bytes // (KEY_BYTES + VALUE_BYTES), tasks=1), root, "none")
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


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: do the figures come at all?")
    parser.add_argument("--records", type=int, help="records a write or read (default 4,000,000)")
    parser.add_argument("--rounds", type=int, help="rounds that count (default 5)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {','.join(PARTS)}")
    parser.add_argument("--scratch", type=Path, help="where to make the working directory")
    arguments = parser.parse_args()
    arguments.parts = arguments.only.split(",")
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments


def run(arguments: argparse.Namespace, scratch: Path) -> None:
    quick = arguments.quick
    standin = standin_jar(scratch)
    if standin is None:
        print(
            f"{CONNECTOR} is left out: it needs a javac, or a jar of benchmarks/standin in KAFKALOG_BENCH_STANDIN_JAR"
        )
    spark = start_spark(scratch, standin, cores=CORES)
    from bench_ceiling import CountOnly, ReadyBatches

    spark.dataSource.register(ReadyBatches)
    spark.dataSource.register(CountOnly)
    bench = Bench(
        spark=spark,
        scratch=scratch,
        broker=make_broker(scratch) if standin else None,
        records=arguments.records or (100_000 if quick else 4_000_000),
        rounds=arguments.rounds or (1 if quick else 5),
        quick=quick,
        slice_appends=2 if quick else 10,
        segment_bytes=20_000_000 if quick else 1_000_000_000,
    )
    parts = {
        "write": bench_write,
        "read": bench_read,
        "slice": bench_slice,
        "segment": bench_segment,
        "codec": bench_codec,
    }
    try:
        for part in arguments.parts:
            parts[part](bench)
    finally:
        if bench.broker:
            bench.broker.kill()
        spark.stop()
    print("\nGoals missed:" if bench.missed else "\nNo goal missed.")
    for line in bench.missed:
        print(f"  {line}")


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-", dir=arguments.scratch) as scratch:
        run(arguments, Path(scratch))


if __name__ == "__main__":
    main()
