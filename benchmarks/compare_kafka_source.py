"""The differential test: compares Spark's Kafka source and sink with kafkalog, on the same data, with the same options.

    python benchmarks/compare_kafka_source.py [--parts batch,repeat,stream,sink] [--only REGEX] [--scratch DIR]

The test starts a broker on this machine and fills it with topics of every kind. Spark's Kafka source reads them over
the network, kafkalog reads the broker's disk. The test compares rows and their order in each partition, schemas,
numbers of tasks, and errors by kind. The sink cases write to topics of the broker and to a log directory, and compare
the records that are readable afterwards.

Exits with 1 if a difference is found that `differential/known_differences.py` does not list, or if a listed one no
longer occurs. docs/MIGRATING.md, "What differs", has a row for each listed difference. Nothing is random. A run takes
about 15 minutes on two cores; the first one fetches the connector and Kafka from the package registry.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from bench_peers import KAFKA_CONNECTOR, TOKEN_PROVIDER, Broker, standin_jar
from differential.batch_run import run_batches
from differential.broker_topics import SETTINGS
from differential.repeated_queries import run_repeated_queries
from differential.report import Tally, late_errors_are_gone, summary
from differential.sink_run import run_sinks
from differential.stream_run import run_streams
from pyspark.sql import SparkSession

PARTS = {"batch": run_batches, "repeat": run_repeated_queries, "stream": run_streams, "sink": run_sinks}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to run, of {','.join(PARTS)}")
    parser.add_argument("--only", default="", help="run the cases in whose names this regular expression is found")
    parser.add_argument("--scratch", type=Path, help="where to make the working directory")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="kafkalog-differential-", dir=arguments.scratch) as scratch:
        return _run(Path(scratch), parts, re.compile(arguments.only))


def _run(scratch: Path, parts: list[str], only: re.Pattern[str]) -> int:
    standin = standin_jar(scratch)
    if standin is None:
        print("a javac is needed, or a jar of benchmarks/standin in KAFKALOG_BENCH_STANDIN_JAR", file=sys.stderr)
        return 2
    spark = _start_spark(scratch, standin)
    tallies = []
    for part in parts:
        with Broker(scratch / f"broker-{part}", SETTINGS) as broker:
            tallies.append(_run_part(part, spark, broker, only))
    spark.stop()
    print("\n".join(["", *summary(tallies)]))
    is_whole = not only.pattern and set(parts) == set(PARTS)
    if is_whole and late_errors_are_gone(tallies):
        print("VANISHED  no error of kafkalog comes later than the Kafka source's")
        return 1
    return int(any(each.failed for each in tallies))


def _run_part(part: str, spark: SparkSession, broker: Broker, only: re.Pattern[str]) -> Tally:
    tally, started = Tally(part), time.monotonic()
    for compared in PARTS[part](spark, broker, only):
        if line := tally.add(compared):
            print(line, flush=True)
        if tally.cases % 50 == 0:
            print(f"{part}: {tally.cases} cases, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{part}: {tally.cases} cases, {time.monotonic() - started:.0f} s", flush=True)
    return tally


def _start_spark(scratch: Path, standin: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.appName("kafkalog differential")
        .master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.jars.packages", KAFKA_CONNECTOR)
        .config("spark.jars.excludes", TOKEN_PROVIDER)
        .config("spark.jars", str(standin))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


if __name__ == "__main__":
    sys.exit(main())
