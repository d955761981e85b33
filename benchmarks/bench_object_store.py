"""Compares a log directory on an object store with the same one on a local disk, and with Delta in the same store.

    python benchmarks/bench_object_store.py [--store s3proxy|minio] [--records N] [--rounds N] [--only PART[,PART]]
                                            [--scratch DIR]

Parts:
    write    a batch write by Spark
    read     a batch read by Spark of the merged log, without added latency and with 30 ms a request
    runs     a read in one process of 1,000 small writes that are not merged
    commit   commits with 30 ms a request: a small write inside its commit, and one with a data object
    delta    batch writes and reads, large and small, beside Delta over S3A; its jars are fetched on first use. Not run
             without --only: a session has the jars from its start

The store runs on this machine, with its objects on the same disk, so it takes processor time from the contenders: the
ratios are lower bounds. So with each are printed the processor time of the contenders and of the store, and the ratio
of the processor times without the store's. Where a read is compared, so is `only the bytes`: a loop that gets the same
bytes by the same client, and does nothing with them. The store is warmed up before, as one in production is: S3Proxy's
first requests are interpreted, and take several times as long. Latency is added by a second S3Proxy for the same
objects; with MinIO there is none. Quote ratios: machines drift.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from bench_data import TOPIC, orders
from bench_peers import DELTA, HERE
from bench_processor import processor_seconds
from bench_runs import OURS, Contender, Goal, measure, report, report_limit
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir, register
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import time_ms

sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.s3_requests import REGION
from kafka_processes.store_servers import MinioServer

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
LOCAL = "local disk"
BYTES = "only the bytes"
#: One collector and all of the heap from the start: its memory is touched before anything is measured.
_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-Xms512m", "-XX:+AlwaysPreTouch")
_WARM_UP_OBJECTS = 200
_WARM_UP_GETS = 4000
_GETS_AT_ONCE = 32
_WINDOW_BYTES = 4 << 20


class Bench:
    """The store, the same one with latency if it can have any, and a directory."""

    def __init__(
        self, server: S3Proxy | MinioServer, delayed: S3Proxy | None, scratch: Path, records: int, rounds: int
    ) -> None:
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
        if not delayed:
            return self.server.options()
        assert self.delayed is not None
        return self.delayed.options()

    def warm_up(self) -> None:
        """Put and get objects until nothing of it is new to the store."""
        for delayed in (False, True) if self.delayed is not None else (False,):
            warm_up(self.new_address(delayed=delayed))

    def compare(
        self,
        title: str,
        run: Callable[[], object],
        local: Contender,
        *,
        goal: float,
        records: int,
        only_bytes: Callable[[], object] | None = None,
    ) -> list[str]:
        """Measure `run`, which uses the store, beside `local`; a line for a missed goal."""
        contenders = {OURS: Contender(run), LOCAL: local}
        if only_bytes is not None:
            contenders[BYTES] = Contender(only_bytes)
        used: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        medians = measure(
            {name: self._counted(each, used[name]) for name, each in contenders.items()}, rounds=self.rounds
        )
        missed = report(title, medians, records=records, goals=(Goal(LOCAL, goal),))
        own_seconds = {name: statistics.median(own for own, _ in times[1:]) for name, times in used.items()}
        print(f"  {'':<18}processor time, own and the store's")
        for name, times in used.items():
            store_seconds = statistics.median(store for _, store in times[1:])
            print(f"  {name:<18}{own_seconds[name]:8.2f} s {store_seconds:8.2f} s")
        print(f"  {LOCAL} / {OURS}, by own processor time: {own_seconds[LOCAL] / own_seconds[OURS]:.2f}")
        if BYTES in medians:
            print(f"  {LOCAL} / {BYTES}, by time: {medians[LOCAL].seconds / medians[BYTES].seconds:.2f}", flush=True)
        return missed

    def _counted(self, contender: Contender, used: list[tuple[float, float]]) -> Contender:
        def run() -> None:
            before = self._used_seconds()
            contender.run()
            after = self._used_seconds()
            used.append((after[0] - before[0], after[1] - before[1]))

        return Contender(run, contender.clean_up)

    def _used_seconds(self) -> tuple[float, float]:
        """Processor time so far: of all but the stores, and of the stores."""
        stores = [self.server] if self.delayed is None else [self.server, self.delayed]
        without = frozenset(each.pid for each in stores)
        return processor_seconds(without=without), sum(each.processor_seconds() for each in stores)


def warm_up(address: StoreAddress) -> None:
    """Put and get objects, which remain."""
    store, body = address.open(), bytes(1 << 20)
    keys = [f"{number}" for number in range(_WARM_UP_OBJECTS)]
    with ThreadPoolExecutor(_GETS_AT_ONCE) as threads:
        list(threads.map(lambda key: store.put(key, body), keys))
    whole = ByteRange(0, len(body))
    get_all(address, [(keys[number % len(keys)], whole) for number in range(_WARM_UP_GETS)])


def get_all(address: StoreAddress, ranges: Sequence[tuple[str, ByteRange]]) -> None:
    """Get the ranges of objects, many at once, and drop them."""
    store = address.open()
    with ThreadPoolExecutor(_GETS_AT_ONCE) as threads:
        list(threads.map(lambda each: len(store.get_range(*each)), ranges))


def windows_of(address: StoreAddress, folder: str, suffix: str) -> list[tuple[str, ByteRange]]:
    """The objects below `folder` with that suffix, in windows of the size that a reader requests."""
    return [
        (each.key, ByteRange(start, min(_WINDOW_BYTES, each.size_bytes - start)))
        for each in address.open().list_objects(folder)
        if each.key.endswith(suffix)
        for start in range(0, each.size_bytes, _WINDOW_BYTES)
    ]


@contextmanager
def spark_session(delta_at: S3Proxy | MinioServer | None = None) -> Iterator[SparkSession]:
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
    windows = windows_of(address, "", ".log")
    missed: list[str] = []
    for title, delayed, goal in (("merged", False, 0.8), (f"merged, {LATENCY_MS} ms a request", True, 0.6)):
        if delayed and bench.delayed is None:
            continue
        ours = partial(read, address.location.url, delayed=delayed)
        only_bytes = partial(get_all, bench.address(address.location.url, delayed=delayed), windows)
        missed += bench.compare(
            f"Batch read, {title}", ours, beside, goal=goal, records=bench.records, only_bytes=only_bytes
        )
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
    only_bytes = partial(get_all, address, windows_of(address, "data", ".batches"))
    title = f"Read of {_RUNS:,} runs, not merged"
    return bench.compare(title, ours, beside, goal=0.5, records=records, only_bytes=only_bytes)


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
    parser.add_argument("--store", choices=("s3proxy", "minio"), default="s3proxy")
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {','.join((*PARTS, DELTA_PART))}")
    parser.add_argument("--scratch", type=Path, help="where to make the working directory")
    options = parser.parse_args()
    parts = options.only.split(",")
    missed: list[str] = []
    with ExitStack() as open_now:
        scratch = Path(open_now.enter_context(tempfile.TemporaryDirectory(dir=options.scratch)))
        server: S3Proxy | MinioServer
        delayed: S3Proxy | None = None
        if options.store == "minio":
            server = open_now.enter_context(MinioServer(scratch / "store"))
        else:
            server = open_now.enter_context(S3Proxy(scratch / "store", on_disk=True, java_options=_JAVA_OPTIONS))
            delayed = open_now.enter_context(server.delayed(scratch / "delayed", LATENCY_MS))
        bench = Bench(server, delayed, scratch, options.records, options.rounds)
        bench.warm_up()
        if "runs" in parts:
            missed += bench_runs(bench)
        if "commit" in parts and delayed is not None:
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
