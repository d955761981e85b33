"""The common part of benchmarks with Spark: options, starting the peers, running the parts, reporting missed goals."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench_peers import Broker, make_broker, standin_jar, start_spark
from pyspark.sql import SparkSession

CORES = 2
RECORDS, QUICK_RECORDS = 4_000_000, 100_000


@dataclass
class Bench:
    """One run: its session and peers, where it works, how much it does, what it found wanting."""

    spark: SparkSession
    scratch: Path
    standin: Path | None
    broker: Broker | None
    records: int
    rounds: int
    quick: bool
    missed: list[str] = field(default_factory=list)


Part = Callable[[Bench], None]


def run_benchmark(parts: Mapping[str, Part], *, description: str | None, rounds: int) -> None:
    """Carry out the command line: those of `parts` that it asks for, each `rounds` times unless it says otherwise."""
    arguments = _parse_arguments(parts, description, rounds)
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-", dir=arguments.scratch) as scratch:
        _run(parts, arguments, Path(scratch), rounds)


def _parse_arguments(parts: Mapping[str, Part], description: str | None, rounds: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: do the figures come at all?")
    parser.add_argument("--records", type=int, help=f"records of one measurement (default {RECORDS:,})")
    parser.add_argument("--rounds", type=int, help=f"rounds that count (default {rounds})")
    parser.add_argument("--only", default=",".join(parts), help=f"parts to run, of {','.join(parts)}")
    parser.add_argument("--scratch", type=Path, help="where to make the working directory")
    arguments = parser.parse_args()
    arguments.parts = arguments.only.split(",")
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return arguments


def _run(parts: Mapping[str, Part], arguments: argparse.Namespace, scratch: Path, rounds: int) -> None:
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
    quick = arguments.quick
    bench = Bench(
        spark=spark,
        scratch=scratch,
        standin=standin,
        broker=make_broker(scratch) if standin else None,
        records=arguments.records or (QUICK_RECORDS if quick else RECORDS),
        rounds=arguments.rounds or (1 if quick else rounds),
        quick=quick,
    )
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
