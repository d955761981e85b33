"""Compares streams with Spark's Kafka connector and a real broker, and measures their cost on the driver, in one run.

    python benchmarks/bench_stream.py [--quick] [--records N] [--rounds N] [--only PART[,PART]] [--scratch DIR]

Parts:
    rate     a query that copies a topic, in one micro-batch and in eight, none and lz4: contenders take turns, medians
    latency  from a commit's return to its rows in foreachBatch, p50 and p99
    plan     latestOffset and partitions() of a micro-batch with new records in each of 1,000 partitions
    commit   commits of a micro-batch over 8 partitions, compared with the bare fsyncs of 8 files and a directory
    replay   a query killed between the sink's commit and Spark's checkpoint commit, and restarted: duplicate records

Run it alone on the machine, and quote ratios: machines drift. Takes about 12 minutes and 15 GB of disk on two cores;
--quick, to check that everything runs, three minutes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import bench_stream_latency
import bench_stream_rate
import bench_stream_replay
from bench_frame import Bench, run_benchmark
from bench_runs import report_limit

PLANNED_PARTITIONS, PLAN_LIMIT_MS = 1000, 200
COMMIT_PARTITIONS, COMMIT_LIMIT_MS = 8, 15
HERE = Path(__file__).resolve().parent


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


PARTS = {
    "rate": bench_rate,
    "latency": bench_latency,
    "plan": bench_plan,
    "commit": bench_commit,
    "replay": bench_replay,
}


if __name__ == "__main__":
    run_benchmark(PARTS, description=__doc__, rounds=3)
