"""Measures `kafkalog follow` beside other ways to copy a topic out of a running broker.

    python benchmarks/bench_follow.py [--gigabytes N] [--rounds N] [--only PART[,PART]] [--json FILE] [--scratch DIR]

Parts:
    backfill     a topic of a real broker into a new log directory by `kafkalog follow --once`, beside Spark's Kafka
                 source with our sink, and MirrorMaker 2 into another broker
    broker-cpu   the broker's CPU time for that follower, beside that for Kafka's ConsumerPerformance
    lag          from the acknowledgement of a record, at 5,000 a second, until the follower's root has it: p50 and p99
    root         one root to another, beside `cp -r` of the same files, both from the page cache and without fsync

All run on the same two cores, where the broker runs, too. The start of processes counts for none: Spark has its
session already, MirrorMaker's time begins with the first record that it writes, and the follower's when it makes its
log directory, up to the end of its process. That of its whole process is printed beside it.

Each contender begins with nothing of the others to be written out, their output removed, and as much free memory as it
is going to fill used shortly before: pages that a virtual machine has not used lately cost several times as much.

Quote ratios: machines drift. Seconds of CPU tell what a rate is bound by, also on a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from bench_peers import make_broker, standin_jar, start_spark
from bench_server import Load, consume_mb_per_s, process_cpu_s, produce
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from kafka_processes.java_processes import cache_dir, fetch_jars, java, start_server
from kafka_processes.oracle import KAFKA_VERSION, Broker

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.main import main as kafkalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS: Final = ("backfill", "broker-cpu", "lag", "root")
TOPIC: Final = "orders"
MIRRORED: Final = f"source.{TOPIC}"
LAG_TOPIC: Final = "lag"
PARTITIONS: Final = 4
RECORD_BYTES: Final = 1024
CORES: Final = 2
SPARK_GOAL, MIRROR_GOAL, CP_GOAL = 5.0, 3.0, 0.8
LAG_RATE: Final = 5_000
LAG_SECONDS: Final = 20
LAG_TICK_S: Final = 0.005
LAG_WARM_UP_S: Final = 3.0
SECONDS_MAX: Final = 600
USED_GIGABYTES_MAX: Final = 4
_MIRROR_JARS: Final = (f"connect-mirror-{KAFKA_VERSION}.jar", f"connect-mirror-client-{KAFKA_VERSION}.jar")
_MIRROR_DEPENDENCY: Final = (
    f'<dependency org="org.apache.kafka" name="connect-mirror" rev="{KAFKA_VERSION}" conf="*->default"/>\n'
)


@dataclass
class Bench:
    """One run: the broker with the topic, and what was found."""

    scratch: Path
    gigabytes: float
    rounds: int
    broker: Broker
    figures: dict[str, Any] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    _is_filled: bool = False

    @property
    def records(self) -> int:
        return int(self.gigabytes * 1e9 / RECORD_BYTES)

    def fill(self) -> None:
        """Produce the records of the topic, once."""
        if self._is_filled:
            return
        self._is_filled = True
        self.broker.create_topic(TOPIC, PARTITIONS)
        load = Load("", RECORD_BYTES, ("compression.type=none", "batch.size=262144", "linger.ms=5"), 0)
        print(
            f"produced: {produce(self.broker.bootstrap, TOPIC, load, self.gigabytes * 1000).splitlines()[-1]}",
            flush=True,
        )

    def new_directory(self, name: str) -> Path:
        """A path without a file, for a contender that begins now: brings the machine's memory into the same state."""
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        os.sync()
        np.ones(int(min(self.gigabytes, USED_GIGABYTES_MAX) * 1e9), np.uint8)
        return path

    def note(self, name: str, value: float, unit: str, goal: tuple[str, float] | None = None) -> None:
        """Print a figure and keep it; with a goal, `value` must meet it ("min" or "max")."""
        self.figures[name] = {"value": round(value, 4), "unit": unit}
        line = f"  {name:<44}{value:10.2f} {unit}"
        if goal is not None:
            kind, limit = goal
            is_met = value >= limit if kind == "min" else value <= limit
            self.figures[name] |= {"goal": limit, "met": is_met}
            line += f"   (goal {limit:g}: {'met' if is_met else 'MISSED'})"
            if not is_met:
                self.missed.append(f"{name}: {value:.2f} {unit}, goal {limit:g}")
        print(line, flush=True)


def follow_command(source: str, root: Path, topic: str, *options: str) -> list[str]:
    places = ["--from", source, "--path", str(root), "--topics", topic]
    return [sys.executable, "-m", "pyspark_kafkalog", "follow", *places, *options]


def check_copied(root: Path, topic: str, records: int) -> None:
    copied = sum(each.high_watermark for each in LogDir.open(root).topic(topic).partitions)
    if copied != records:
        raise SystemExit(f"{root} has {copied:,} records of {topic}, expected {records:,}")


# The contenders of a back-fill: each returns its seconds


def children_cpu_s() -> float:
    """CPU time of the processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


@dataclass(frozen=True)
class Copied:
    """What a run of the follower has taken: the process, without its start, and of the CPU."""

    process_s: float
    copy_s: float
    cpu_s: float


def follow_once(bench: Bench) -> Copied:
    root = bench.new_directory("followed")
    began_s, began_cpu_s = time.perf_counter(), children_cpu_s()
    command = follow_command(bench.broker.bootstrap, root, TOPIC, "--once")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not root.exists() and process.poll() is None:
        time.sleep(0.002)
    ready_s = time.perf_counter()
    if process.wait():
        raise SystemExit("following the broker failed")
    ended_s = time.perf_counter()
    check_copied(root, TOPIC, bench.records)
    return Copied(ended_s - began_s, ended_s - ready_s, children_cpu_s() - began_cpu_s)


def spark_copy(bench: Bench, spark: SparkSession) -> float:
    root = bench.new_directory("spark")
    LogDir.create(root).create_topic(TOPIC, PARTITIONS)
    began_s = time.perf_counter()
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", bench.broker.bootstrap)
    copy = rows.option("subscribe", TOPIC).load().select("key", "value", "partition", "timestamp")
    copy.write.format("kafkalog").mode("append").option("topic", TOPIC).save(str(root))
    elapsed_s = time.perf_counter() - began_s
    check_copied(root, TOPIC, bench.records)
    shutil.rmtree(root)
    return elapsed_s


def mirror_copy(bench: Bench) -> float:
    """From the first record that MirrorMaker 2 writes to the target until the last one."""
    lib = fetch_jars(cache_dir() / f"kafka-connect-mirror-{KAFKA_VERSION}", _MIRROR_DEPENDENCY, _MIRROR_JARS)
    home = bench.new_directory("mirror")
    with Broker(home / "target", {"auto.create.topics.enable": "true"}, ("-Xms1g", "-Xmx1g")) as target:
        properties = home / "mirror.properties"
        properties.write_text(_mirror_properties(bench.broker.bootstrap, target.bootstrap))
        options = ["-Xms512m", "-Xmx1g", "-cp", f"{lib}/*"]
        with (home / "mirror.log").open("wb") as log:
            main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
            process = start_server([java(), *options, main_class, str(properties)], log)
        try:
            began_s = time.perf_counter()
            _wait_for_records(target.bootstrap, 1, process, home / "mirror.log")
            first_s = time.perf_counter()
            print(f"  MirrorMaker 2 was ready after {first_s - began_s:.1f} s", flush=True)
            _wait_for_records(target.bootstrap, bench.records, process, home / "mirror.log")
            elapsed_s = time.perf_counter() - first_s
        finally:
            process.kill()
            process.wait()
    shutil.rmtree(home)
    return elapsed_s


def _mirror_properties(source: str, target: str) -> str:
    topics = ("", "checkpoints.topic.", "heartbeats.topic.", "offset-syncs.topic.")
    stores = ("offset.storage.", "status.storage.", "config.storage.")
    settings = {
        "clusters": "source, target",
        "source.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        "source->target.enabled": "true",
        "source->target.topics": TOPIC,
        "target->source.enabled": "false",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "tasks.max": str(CORES),
        **{f"{each}replication.factor": "1" for each in (*topics, *stores)},
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _wait_for_records(bootstrap: str, records: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the mirrored topic has so many. Raises SystemExit if MirrorMaker ends, or takes too long."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "log_level": 0})
    deadline_s = time.monotonic() + SECONDS_MAX
    try:
        while time.monotonic() < deadline_s and process.poll() is None:
            with contextlib.suppress(KafkaException):
                known = consumer.list_topics(timeout=5).topics
                found = known[MIRRORED].partitions if MIRRORED in known else {}
                ends = [consumer.get_watermark_offsets(TopicPartition(MIRRORED, each), timeout=5)[1] for each in found]
                if sum(ends) >= records:
                    return
            time.sleep(0.05)
    finally:
        consumer.close()
    raise SystemExit(f"MirrorMaker 2 did not copy {records:,} records:\n{log.read_text(errors='replace')[-3000:]}")


# The parts


def bench_backfill(bench: Bench) -> None:
    bench.fill()
    print(f"\nBack-fill of {bench.gigabytes:g} GB from a broker", flush=True)
    runs: list[Copied] = []

    def follow() -> float:
        runs.append(follow_once(bench))
        return runs[-1].copy_s

    contenders: dict[str, Callable[[], float]] = {"follow": follow, "MirrorMaker 2": lambda: mirror_copy(bench)}
    standin = standin_jar(bench.scratch)
    spark = None if standin is None else start_spark(bench.scratch, standin, cores=CORES)
    if spark is None:
        print("  without Spark's Kafka source: that needs a javac, or KAFKALOG_BENCH_STANDIN_JAR")
    else:
        contenders["Spark"] = lambda: spark_copy(bench, spark)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(bench.rounds):
        for name, run in contenders.items():
            seconds[name].append(run())
    if spark is not None:
        spark.stop()
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, median in medians.items():
        bench.note(f"back-fill, {name}", bench.gigabytes * 1000 / median, "MB/s")
    process_s = statistics.median(each.process_s for each in runs)
    bench.note("back-fill, follow with its start", bench.gigabytes * 1000 / process_s, "MB/s")
    bench.note("back-fill, CPU of follow", statistics.median(each.cpu_s for each in runs) / bench.gigabytes, "s/GB")
    for name, goal in (("Spark", SPARK_GOAL), ("MirrorMaker 2", MIRROR_GOAL)):
        if name in medians:
            bench.note(f"back-fill, follow beside {name}", medians[name] / medians["follow"], "x", ("min", goal))


def bench_broker_cpu(bench: Bench) -> None:
    bench.fill()
    print("\nThe broker's CPU", flush=True)
    found: dict[str, list[float]] = {"a follower": [], "a Java consumer": []}
    runs: dict[str, Callable[[], object]] = {
        "a follower": lambda: follow_once(bench),
        "a Java consumer": lambda: consume_mb_per_s(bench.broker.bootstrap, TOPIC, bench.records),
    }
    for _ in range(bench.rounds):
        for name, run in runs.items():
            began_s = process_cpu_s(bench.broker.pid)
            run()
            found[name].append((process_cpu_s(bench.broker.pid) - began_s) / bench.gigabytes)
    medians = {name: statistics.median(each) for name, each in found.items()}
    for name, median in medians.items():
        bench.note(f"broker's CPU for {name}", median, "s/GB")
    bench.note("broker's CPU, follower / consumer", medians["a follower"] / medians["a Java consumer"], "x")


def bench_lag(bench: Bench) -> None:
    print(f"\nLag at {LAG_RATE:,} records a second, {LAG_SECONDS} s", flush=True)
    bench.broker.create_topic(LAG_TOPIC, PARTITIONS)
    root = bench.new_directory("lag")
    process = subprocess.Popen(follow_command(bench.broker.bootstrap, root, LAG_TOPIC))
    try:
        lags_ms = sorted(_lags_ms(bench.broker.bootstrap, root, process))
    finally:
        process.terminate()
        process.wait()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        bench.note(f"lag, {name}", lags_ms[int(share * (len(lags_ms) - 1))], "ms")


def _lags_ms(bootstrap: str, root: Path, process: subprocess.Popen[bytes]) -> Iterator[float]:
    """Of each record from its acknowledgement until its offset is below the high watermark of the root."""
    acked: list[dict[int, float]] = [{} for _ in range(PARTITIONS)]

    def acknowledge(error: object, message: Message) -> None:
        if error is not None:
            raise SystemExit(f"a record was not acknowledged: {error}")
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        acked[partition][offset] = time.monotonic()

    log_dir = _opened(root, process)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1})
    value = os.urandom(RECORD_BYTES)
    began_s = time.monotonic()
    warm_s, end_s = began_s + LAG_WARM_UP_S, began_s + LAG_WARM_UP_S + LAG_SECONDS
    seen = [0] * PARTITIONS
    sent = 0
    while (now_s := time.monotonic()) < end_s or any(acked):
        due = int(min(now_s, end_s) - began_s) * LAG_RATE + int((min(now_s, end_s) - began_s) % 1 * LAG_RATE)
        for number in range(sent, due):
            producer.produce(LAG_TOPIC, value, partition=number % PARTITIONS, on_delivery=acknowledge)
        sent = max(sent, due)
        producer.poll(0)
        log_dir.refresh()
        looked_s = time.monotonic()
        for number, times in enumerate(acked):
            end = log_dir.partition(LAG_TOPIC, number).high_watermark
            for offset in range(seen[number], end):
                acked_s = times.pop(offset, None)
                if acked_s is None:  # it was visible before its acknowledgement came here
                    acked_s = looked_s
                if acked_s >= warm_s:
                    yield (looked_s - acked_s) * 1000
            seen[number] = end
            for offset in [each for each in times if each < end]:
                del times[offset]
        if now_s > end_s + SECONDS_MAX or process.poll() is not None:
            raise SystemExit("the follower does not keep up, or has ended")
        time.sleep(max(LAG_TICK_S / 5 - (time.monotonic() - now_s), 0))
    producer.flush()


def _opened(root: Path, process: subprocess.Popen[bytes]) -> LogDir:
    """The follower's root once it has the topic."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(LogDirError):
            log_dir = LogDir.open(root)
            if LAG_TOPIC in log_dir.topics():
                return log_dir
        time.sleep(0.05)
    raise SystemExit("the follower did not begin to follow")


def bench_root(bench: Bench) -> None:
    bench.fill()
    leader = bench.scratch / "followed"
    if not leader.exists():
        follow_once(bench)
    print("\nRoot to root, from the page cache", flush=True)

    def follow() -> None:
        places = ["--from", str(leader), "--path", str(bench.scratch / "second")]
        with contextlib.redirect_stdout(io.StringIO()):
            if kafkalog(["follow", *places, "--once", "--flush", "os"]):
                raise SystemExit("following the root failed")

    def cp() -> None:
        subprocess.run(["cp", "-r", str(leader), str(bench.scratch / "second")], check=True)

    seconds: dict[str, list[float]] = {"follow": [], "cp -r": []}
    for number in range(bench.rounds + 1):
        for name, run in (("cp -r", cp), ("follow", follow)):
            bench.new_directory("second")
            began_s = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - began_s)
    check_copied(bench.scratch / "second", TOPIC, bench.records)
    bench.new_directory("second")
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, median in medians.items():
        bench.note(f"root to root, {name}", bench.gigabytes * 1000 / median, "MB/s")
    bench.note("root to root, follow beside cp -r", medians["cp -r"] / medians["follow"], "x", ("min", CP_GOAL))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the topic (default: 2)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of each part; medians count (default: 1)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {','.join(PARTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--scratch", type=Path, help="where to make the working directory")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    # An installed package has its bytecode: a follower that compiled all modules anew would start half a second later.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    run = {"backfill": bench_backfill, "broker-cpu": bench_broker_cpu, "lag": bench_lag, "root": bench_root}
    with tempfile.TemporaryDirectory(prefix="kafkalog-follow-", dir=options.scratch) as scratch:
        broker = make_broker(Path(scratch)).start()
        bench = Bench(Path(scratch), options.gigabytes, options.rounds, broker)
        try:
            for part in parts:
                run[part](bench)
        finally:
            broker.kill()
    if options.json is not None:
        options.json.write_text(json.dumps(bench.figures, indent=2) + "\n")
    print("\n" + ("\n".join(f"MISSED  {each}" for each in bench.missed) or "all goals met"))
    return int(bool(bench.missed))


if __name__ == "__main__":
    sys.exit(main())
