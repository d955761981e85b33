"""Streams beside Spark's Kafka connector with a real broker, and what they cost the driver, in one run.

    python benchmarks/bench_stream.py [--quick] [--records N] [--rounds N] [--only PART[,PART]] [--scratch DIR]

Parts:
    rate     a query that copies a topic, in one micro-batch and in eight, none and lz4: contenders take turns, medians
    latency  from a commit's return to its rows in foreachBatch, p50 and p99
    plan     latestOffset and partitions() of a micro-batch with news in each of 1,000 partitions
    commit   commits of a micro-batch over 8 partitions, beside the bare fsyncs of 8 files and a directory
    replay   a query killed between the sink's commit and Spark's checkpoint commit, started again: what is there twice

Run it alone on the machine, and quote ratios: machines drift. Takes about 12 minutes and 15 GB of disk on two cores;
--quick, for a look at whether it all runs, three minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import bench_stream_latency
import bench_stream_rate
import bench_stream_replay
from bench_peers import Broker, make_broker, standin_jar, start_spark
from bench_runs import report_limit
from pyspark.sql import SparkSession

PARTS = ("rate", "latency", "plan", "commit", "replay")
CORES = 2
PLANNED_PARTITIONS, PLAN_LIMIT_MS = 1000, 200
COMMIT_PARTITIONS, COMMIT_LIMIT_MS = 8, 15
HERE = Path(__file__).resolve().parent


@dataclass
class Bench:
    """One run: its session, where it works, how much it does, what it found wanting."""

    spark: SparkSession
    scratch: Path
    standin: Path | None
    broker: Broker | None
    records: int
    rounds: int
    quick: bool
    missed: list[str] = field(default_factory=list)


def bench_rate(bench: Bench) -> None:
    bench.missed += bench_stream_rate.run(
        bench.spark, bench.scratch, bench.broker, records=bench.records, rounds=bench.rounds
    )


def bench_latency(bench: Bench) -> None:
    bench_stream_latency.run(bench.spark, bench.scratch, bench.broker, commits=20 if bench.quick else 200)


def bench_plan(bench: Bench) -> None:
    partitions = 100 if bench.quick else PLANNED_PARTITIONS
    found = _run_driver("plan", bench.scratch, partitions, 2 if bench.quick else 10)
    for name in ("latestOffset", "partitions", "without news"):
        print(f"  {name:<14}{bench_stream_latency.percentiles(found[name])}")
    median_ms = statistics.median(found["together"])
    bench.missed += report_limit(f"Planning over {partitions:,} partitions, p50", median_ms, PLAN_LIMIT_MS, "ms")


def bench_commit(bench: Bench) -> None:
    found = _run_driver("commit", bench.scratch, COMMIT_PARTITIONS, 20 if bench.quick else 500)
    for name in ("commit", "bare fsyncs", "stage"):
        print(f"  {name:<14}{bench_stream_latency.percentiles(found[name])}")
    median_ms = statistics.median(found["commit"])
    bench.missed += report_limit(f"Commit over {COMMIT_PARTITIONS} partitions, p50", median_ms, COMMIT_LIMIT_MS, "ms")


def _run_driver(action: str, scratch: Path, partitions: int, rounds: int) -> dict[str, list[float]]:
    """Run bench_stream_driver.py in a process of its own; its notes are shown, its last line is the figures."""
    command = [sys.executable, HERE / "bench_stream_driver.py", action, scratch, str(partitions), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    *notes, figures = done.stdout.splitlines()
    print(f"\n{action.capitalize()} over {partitions:,} partitions, {rounds} rounds")
    for note in notes:
        print(f"  {note}")
    found: dict[str, list[float]] = json.loads(figures)
    return found


def bench_replay(bench: Bench) -> None:
    bench.missed += bench_stream_replay.run(bench.spark, bench.scratch, bench.broker, bench.standin)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: do the figures come at all?")
    parser.add_argument("--records", type=int, help="records that a query copies (default 4,000,000)")
    parser.add_argument("--rounds", type=int, help="rounds of copies that count (default 3)")
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
            "spark-sql-kafka is left out: it needs a javac, or a jar of benchmarks/standin in "
            "KAFKALOG_BENCH_STANDIN_JAR"
        )
    spark = start_spark(scratch, standin, cores=CORES)
    from bench_ceiling import CountOnly, ReadyBatches

    spark.dataSource.register(ReadyBatches)
    spark.dataSource.register(CountOnly)
    bench = Bench(
        spark=spark,
        scratch=scratch,
        standin=standin,
        broker=make_broker(scratch) if standin else None,
        records=arguments.records or (100_000 if quick else 4_000_000),
        rounds=arguments.rounds or (1 if quick else 3),
        quick=quick,
    )
    parts = {
        "rate": bench_rate,
        "latency": bench_latency,
        "plan": bench_plan,
        "commit": bench_commit,
        "replay": bench_replay,
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
