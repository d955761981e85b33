"""The time from a commit until a streaming query has its records.

    python benchmarks/bench_stream_latency.py kafkalog ROOT COMMITS
    python benchmarks/bench_stream_latency.py kafka BOOTSTRAP COMMITS

As a script, this module is the writer: after a line on standard input it commits a few records every 100 to 300 ms,
each of which contains the commit's number, and prints as JSON when each commit returned, by the machine's monotonic
clock, which all processes share. `run` starts a writer beside a query whose foreachBatch collects the rows.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_peers import Broker
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "latency"
PARTITIONS = 4
RECORDS_A_COMMIT = 8
PAUSE_S = (0.1, 0.3)
WARM_UP_COMMITS = 25  # about five seconds: the query's first triggers are slow
WAIT_S_MAX = 120
PHASES = ("triggerExecution", "latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")


# The writer's process


def write_ours(root: str) -> Callable[[int], None]:
    import pyarrow as pa

    from pyspark_kafkalog import LogDir

    log_dir = LogDir.open(root)

    def commit(number: int) -> None:
        values = [str(number).encode()] * RECORDS_A_COMMIT
        keys = [b"%d" % key for key in range(RECORDS_A_COMMIT)]
        log_dir.append(TOPIC, pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))

    return commit


def write_kafka(bootstrap: str) -> Callable[[int], None]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})

    def commit(number: int) -> None:
        for key in range(RECORDS_A_COMMIT):
            producer.produce(TOPIC, key=b"%d" % key, value=b"%d" % number)
        assert producer.flush(30) == 0

    return commit


def main() -> None:
    kind, where, commits = sys.argv[1], sys.argv[2], int(sys.argv[3])
    commit = {"kafkalog": write_ours, "kafka": write_kafka}[kind](where)
    pauses = random.Random(1)
    sys.stdin.readline()
    returned_ns = []
    for number in range(commits):
        time.sleep(pauses.uniform(*PAUSE_S))
        commit(number)
        returned_ns.append(time.monotonic_ns())
    print(json.dumps(returned_ns))


# The query's side


class Arrivals:
    """foreachBatch function: when the last record of each commit was in the query's hands."""

    def __init__(self, commits: int) -> None:
        self._left = [RECORDS_A_COMMIT] * commits
        self._open = commits
        self.seen_ns = [0] * commits
        self.all_seen = threading.Event()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        numbers = [int(value) for (value,) in rows.select("value").collect()]
        now_ns = time.monotonic_ns()
        for number in numbers:
            self._left[number] -= 1
            if self._left[number] == 0:
                self.seen_ns[number] = now_ns
                self._open -= 1
        if self._open == 0:
            self.all_seen.set()


def latencies_ms(rows: DataFrame, kind: str, where: str, commits: int, checkpoint: Path) -> tuple[list[float], Any]:
    """One latency a commit, the first few left out, and the progress reports of the query."""
    arrivals = Arrivals(commits)
    writer = subprocess.Popen(
        [sys.executable, __file__, kind, where, str(commits)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    query = rows.writeStream.foreachBatch(arrivals).option("checkpointLocation", str(checkpoint)).start()
    try:
        while query.status["message"] == "Initializing sources":
            time.sleep(0.05)
        printed, _ = writer.communicate("begin\n", timeout=commits * PAUSE_S[1] + WAIT_S_MAX)
        returned_ns = json.loads(printed)
        if not arrivals.all_seen.wait(WAIT_S_MAX):
            raise RuntimeError(f"{sum(map(bool, arrivals.seen_ns))} of {commits} commits came: {query.exception()}")
        progress = query.recentProgress
    finally:
        writer.kill()
        query.stop()
    found = [(seen - done) / 1e6 for seen, done in zip(arrivals.seen_ns, returned_ns, strict=True)]
    return found[WARM_UP_COMMITS:], progress


def run(spark: SparkSession, scratch: Path, broker: Broker | None, *, commits: int) -> None:
    """Print p50 and p99 for both kinds, ours also with a group to commit to, and where a trigger's time goes."""
    from pyspark_kafkalog import LogDir

    total = commits + WARM_UP_COMMITS
    print(f"\nLatency from a commit's return to its rows in foreachBatch  ({commits} commits)", flush=True)
    for name, options in (("kafkalog", {}), ("kafkalog, group", {"kafka.group.id": "latency"})):
        root = scratch / name
        LogDir.create(root).create_topic(TOPIC, partitions=PARTITIONS)
        rows = spark.readStream.format("kafkalog").option("path", str(root)).option("subscribe", TOPIC)
        rows = rows.option("startingOffsets", "earliest").options(**options).load()
        _report(name, *latencies_ms(rows, "kafkalog", str(root), total, scratch / f"checkpoint-{name}"))
    if broker:
        broker.start().create_topic(TOPIC, PARTITIONS)
        rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
        rows = rows.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
        found = latencies_ms(rows, "kafka", broker.bootstrap, total, scratch / "checkpoint-latency-kafka")
        _report("spark-sql-kafka", *found)


def _report(name: str, found_ms: list[float], progress: list[Any]) -> None:
    print(f"  {name:<18}{percentiles(found_ms)}", flush=True)
    full = [each["durationMs"] for each in progress if each["numInputRows"]]
    phases = {phase: [each[phase] for each in full if phase in each] for phase in PHASES}
    spent = ", ".join(f"{phase} {statistics.median(times):.0f}" for phase, times in phases.items() if times)
    print(f"  {'':<18}median ms of {len(full)} triggers with rows: {spent}", flush=True)


def percentiles(found_ms: list[float]) -> str:
    ordered = sorted(found_ms)
    p99 = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
    return f"p50 {statistics.median(ordered):8.1f} ms   p99 {p99:8.1f} ms"


if __name__ == "__main__":
    main()
