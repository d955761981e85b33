"""Compares a log directory on an object store with the same one on a local disk, and with Delta in the same store.

    python benchmarks/bench_object_store.py [--records N] [--rounds N] [--only PART[,PART]] [--scratch DIR]

Parts:
    write    a batch write by Spark
    read     a batch read by Spark of the merged log, without added latency and with 30 ms a request
    runs     a read in one process of 1,000 small writes that are not merged
    commit   commits with 30 ms a request: a small write inside its commit, and one with a data object
    delta    batch writes and reads, large and small, beside Delta over S3A; its jars are fetched on first use. Not run
             without --only: a session has the jars from its start

The store is S3Proxy on this machine, with its objects on the same disk, so it takes processor time from the contenders:
the ratios are lower bounds, and what the store has used is printed with them. Latency is added by a second S3Proxy for
the same objects. Quote ratios: machines drift.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from bench_data import TOPIC, orders
from bench_peers import DELTA, HERE
from bench_runs import OURS, Contender, Goal, measure, report, report_limit
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir, register
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import time_ms

sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from s3_proxy import S3Proxy
from s3_requests import REGION

PARTS = ("write", "read", "runs", "commit")
DELTA_PART = "delta"
#: Hadoop's client of S3, with the modules of the SDK that it uses in place of the bundle of all, which has 600 MB.
S3A_PACKAGES = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts", "netty-nio-client")),
)
S3A_EXCLUDES = "software.amazon.awssdk:bundle"
_SMALL_ROWS = 100
_SMALL_WRITES = 10
PARTITIONS = 4
LATENCY_MS = 30
_RUNS = 1000
_COMMITS = 40
_SMALL = pa.table({"value": ["x" * 100] * 10})
_LARGE = pa.table({"value": ["x" * 1000] * 1000})


class Bench:
    """The store, the same one with latency, and a directory."""

    def __init__(self, server: S3Proxy, delayed: S3Proxy, scratch: Path, records: int, rounds: int) -> None:
        self.server = server
        self.delayed = delayed
        self.scratch = scratch
        self.records = records
        self.rounds = rounds

    def new_address(self, *, delayed: bool = False) -> StoreAddress:
        """A new, empty place in the store."""
        return self.address(f"{self.server.new_location().url}/log", delayed=delayed)

    def address(self, url: str, *, delayed: bool = False) -> StoreAddress:
        return StoreAddress.parse(url, self.options(delayed=delayed))

    def options(self, *, delayed: bool = False) -> dict[str, str]:
        return (self.delayed if delayed else self.server).options()

    def compare(
        self, title: str, run: Callable[[], object], local: Contender, *, goal: float, records: int
    ) -> list[str]:
        """Measure `run`, which uses the store, beside `local`; a line for a missed goal."""
        store_seconds: list[float] = []

        def run_counted() -> None:
            before = self._store_seconds()
            run()
            store_seconds.append(self._store_seconds() - before)

        medians = measure({OURS: Contender(run_counted), "local disk": local}, rounds=self.rounds)
        missed = report(title, medians, records=records, goals=(Goal("local disk", goal),))
        print(f"  processor time of the store: {statistics.median(store_seconds):.3f} s")
        return missed

    def _store_seconds(self) -> float:
        return self.server.processor_seconds() + self.delayed.processor_seconds()


@contextmanager
def spark_session(delta_at: S3Proxy | None = None) -> Iterator[SparkSession]:
    """A session, with Delta and S3A for buckets at `delta_at` if that is given."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    if delta_at is not None:
        settings = {
            "spark.jars.packages": ",".join([DELTA, *S3A_PACKAGES]),
            "spark.jars.excludes": S3A_EXCLUDES,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.hadoop.fs.s3a.endpoint": delta_at.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.access.key": delta_at.access_key,
            "spark.hadoop.fs.s3a.secret.key": delta_at.secret_key,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def drain(rows: DataFrame) -> None:
    """Read all rows and columns, and drop them."""
    rows.write.format("noop").mode("overwrite").save()


def save(rows: DataFrame, path: str, options: dict[str, str]) -> None:
    rows.write.format("kafkalog").options(**options).mode("append").option("topic", TOPIC).save(path)


def merge_all(root: ObjectRoot) -> None:
    """Merge all runs of all partitions."""
    for each in root.partitions([TOPIC]):
        while True:
            merged = merge_partition(root.store, root.objects, root.log_config(TOPIC), each, clock=time_ms)
            if merged is None or not merged.segments:
                break


def bench_write(bench: Bench, spark: SparkSession) -> list[str]:
    rows = orders(spark, bench.records, PARTITIONS).cache()
    rows.count()
    local = bench.scratch / "write"

    def write_object() -> None:
        save(rows, bench.new_address().location.url, bench.options())

    beside = Contender(lambda: save(rows, str(local), {}), partial(shutil.rmtree, local))
    missed = bench.compare("Batch write, object store", write_object, beside, goal=0.7, records=bench.records)
    rows.unpersist()
    return missed


def bench_read(bench: Bench, spark: SparkSession) -> list[str]:
    rows = orders(spark, bench.records, PARTITIONS)
    address, local = bench.new_address(), bench.scratch / "read"
    save(rows, address.location.url, bench.options())
    save(rows, str(local), {})
    merge_all(ObjectRoot(address))

    def read(path: str, *, delayed: bool = False) -> None:
        drain(spark.read.format("kafkalog").options(**bench.options(delayed=delayed)).load(path))

    beside = Contender(lambda: drain(spark.read.format("kafkalog").load(str(local))))
    missed: list[str] = []
    for title, delayed, goal in (("merged", False, 0.8), (f"merged, {LATENCY_MS} ms a request", True, 0.6)):
        ours = partial(read, address.location.url, delayed=delayed)
        missed += bench.compare(f"Batch read, {title}", ours, beside, goal=goal, records=bench.records)
    return missed


def bench_delta(bench: Bench, spark: SparkSession) -> list[str]:
    """Large and small appends, and a read of what the large ones wrote, which is not merged."""
    bucket = bench.server.new_location().bucket
    ours, table = bench.new_address().location.url, f"s3a://{bucket}/table"
    rows = orders(spark, bench.records, PARTITIONS).select("key", "value").cache()
    rows.count()
    small = rows.limit(_SMALL_ROWS).coalesce(1).cache()
    small.count()

    def save_delta(frame: DataFrame, path: str) -> None:
        frame.write.format("delta").mode("append").save(path)

    def repeatedly(write: Callable[[], None]) -> None:
        for _ in range(_SMALL_WRITES):
            write()

    missed: list[str] = []
    appends = {
        OURS: Contender(partial(save, rows, ours, bench.options())),
        "delta": Contender(partial(save_delta, rows, table)),
    }
    medians = measure(appends, rounds=bench.rounds)
    missed += report("Append, beside Delta in the store", medians, records=bench.records)
    written = bench.records * (bench.rounds + 1)
    reads = {
        OURS: Contender(lambda: drain(spark.read.format("kafkalog").options(**bench.options()).load(ours))),
        "delta": Contender(lambda: drain(spark.read.format("delta").load(table))),
    }
    medians = measure(reads, rounds=bench.rounds)
    missed += report("Read, not merged, beside Delta in the store", medians, records=written)
    few = {
        OURS: Contender(partial(repeatedly, partial(save, small, f"{ours}-small", bench.options()))),
        "delta": Contender(partial(repeatedly, partial(save_delta, small, f"{table}-small"))),
    }
    medians = measure(few, rounds=bench.rounds)
    missed += report(
        f"{_SMALL_WRITES} small appends, beside Delta in the store", medians, records=_SMALL_ROWS * _SMALL_WRITES
    )
    small.unpersist()
    rows.unpersist()
    return missed


def bench_runs(bench: Bench) -> list[str]:
    address, local = bench.new_address(), bench.scratch / "runs"
    for place in (address, str(local)):
        log_dir = LogDir.open_or_create(place)
        log_dir.create_topic(TOPIC, partitions=1)
        for _ in range(_RUNS):
            log_dir.append(TOPIC, _LARGE, flush="os")
    roots = {OURS: LogDir.open(address), "local disk": LogDir.open(local)}
    records, beside = _RUNS * _LARGE.num_rows, Contender(partial(roots["local disk"].read, TOPIC))
    ours = partial(roots[OURS].read, TOPIC)
    return bench.compare(f"Read of {_RUNS:,} runs, not merged", ours, beside, goal=0.5, records=records)


def bench_commit(bench: Bench) -> list[str]:
    address = bench.new_address(delayed=True)
    log_dir = LogDir.open_or_create(address)
    log_dir.create_topic(TOPIC, partitions=1)
    missed: list[str] = []
    for title, records, limit_ms in (("in the commit", _SMALL, 110), ("with a data object", _LARGE, 110)):
        times_ms = [_milliseconds(partial(log_dir.append, TOPIC, records)) for _ in range(_COMMITS)]
        p50_ms = statistics.median(times_ms)
        missed += report_limit(f"Commit, {LATENCY_MS} ms a request, {title}, p50", p50_ms, limit_ms, "ms")
    return missed


def _milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {','.join((*PARTS, DELTA_PART))}")
    parser.add_argument("--scratch", type=Path, help="where to make the working directory")
    options = parser.parse_args()
    parts = options.only.split(",")
    missed: list[str] = []
    with (
        tempfile.TemporaryDirectory(dir=options.scratch) as scratch,
        S3Proxy(Path(scratch, "store"), on_disk=True, java_options=("-XX:+UseSerialGC",)) as server,
        server.delayed(Path(scratch, "delayed"), LATENCY_MS) as delayed,
    ):
        bench = Bench(server, delayed, Path(scratch), options.records, options.rounds)
        if "runs" in parts:
            missed += bench_runs(bench)
        if "commit" in parts:
            missed += bench_commit(bench)
        if {"write", "read", DELTA_PART} & set(parts):
            with spark_session(server if DELTA_PART in parts else None) as spark:
                missed += bench_write(bench, spark) if "write" in parts else []
                missed += bench_read(bench, spark) if "read" in parts else []
                missed += bench_delta(bench, spark) if DELTA_PART in parts else []
    print("\nGoals missed:\n  " + "\n  ".join(missed) if missed else "\nNo goal missed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
