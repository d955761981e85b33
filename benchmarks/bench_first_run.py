"""A first run beside Parquet: seconds and CPU seconds of a new process that writes 100,000 rows and reads them.

    python benchmarks/bench_first_run.py [--rounds N]

Each flow is a process with a session of its own: Parquet, kafkalog with compiled kernels (warm), and kafkalog that
compiles them (cold). CPU is that of all processes of the flow: the driver, the JVM and the Python workers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES: Final = 2
ROWS: Final = 100_000
FLOWS: Final = ("parquet", "kafkalog, warm", "kafkalog, cold")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the flows in turn, each `--rounds` times, and print the steps of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--flow", choices=FLOWS, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flow:
        run_flow(arguments.flow, arguments.scratch)
        return
    print(f"{'flow':<16} {'step':<14} {'seconds':>8} {'CPU s':>8}")
    with tempfile.TemporaryDirectory(prefix="kafkalog-first-run-") as scratch:
        subprocess.run([sys.executable, "-m", "pyspark_kafkalog", "warm-up"], check=True, capture_output=True)
        for number in range(arguments.rounds):
            for at, flow in enumerate(FLOWS):
                start_flow(flow, Path(scratch) / f"{number}-{at}")


def start_flow(flow: str, scratch: Path) -> None:
    """Run one flow in a process of its own, with an empty cache of kernels if it is to compile."""
    scratch.mkdir()
    environment = dict(os.environ)
    if flow.endswith("cold"):
        environment["NUMBA_CACHE_DIR"] = str(scratch / "kernels")
    command = [sys.executable, __file__, "--flow", flow, "--scratch", str(scratch)]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)


def run_flow(flow: str, scratch: Path) -> None:
    """The steps of a first program: each is timed, with the CPU that all processes have used in it."""
    source, target = flow.partition(",")[0], str(scratch / "data")
    spark = step(flow, "session", start_session)
    rows = spark.range(ROWS).selectExpr("CAST(id % 500 AS STRING) AS key", "CAST(id AS STRING) AS value")
    writer = rows.write.format(source).mode("append")
    writer = writer.option("topic", "orders") if source == "kafkalog" else writer
    reader = spark.read.format(source)
    step(flow, "first write", lambda: writer.save(target))
    step(flow, "second write", lambda: writer.save(target))
    step(flow, "first read", lambda: reader.load(target).select("key", "value").toPandas())
    step(flow, "second read", lambda: reader.load(target).select("key", "value").toPandas())
    spark.stop()


def start_session() -> SparkSession:
    """Import pyspark, and start a session with one job, as any flow needs it."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.range(10).toPandas()
    return spark


def step(flow: str, name: str, work: Callable[[], object]) -> SparkSession:
    """Do the work, and print what it took."""
    began_s, began_cpu_s = time.monotonic(), tree_cpu_s()
    result = work()
    seconds, cpu_s = time.monotonic() - began_s, tree_cpu_s() - began_cpu_s
    print(f"{flow:<16} {name:<14} {seconds:8.1f} {cpu_s:8.1f}", flush=True)
    return result  # type: ignore[return-value]


def tree_cpu_s() -> float:
    """CPU of this process and its descendants, those that have ended included."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        stats[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    tree = {os.getpid()}
    while more := {pid for pid, (parent, _) in stats.items() if parent in tree} - tree:
        tree |= more
    return sum(stats[pid][1] for pid in tree if pid in stats) / _TICKS


if __name__ == "__main__":
    main()
