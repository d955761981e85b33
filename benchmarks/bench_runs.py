"""Measures in turns: each round runs every contender once, so that drift of the machine affects all of them equally.

Beside the time of a run stands the CPU time of the process tree: this process, Spark's JVM, its Python workers, and
servers that this process has started. It hardly depends on what else the machine does.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.metadata.commit_log import headers_of_commits
from pyspark_kafkalog.metadata.root_format import METADATA_DIR

OURS = "kafkalog"


@dataclass(frozen=True, slots=True)
class Contender:
    """`run` is timed; `clean_up`, which is not, follows each run."""

    run: Callable[[], object]
    clean_up: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Goal:
    """Ours must be at least `ratio_min` times as fast as `peer`."""

    peer: str
    ratio_min: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of one contender: the time of a run, and the CPU time of the process tree in it."""

    seconds: float
    cpu_s: float


def process_cpu_s(pid: int) -> float:
    """User and system time of a process and of the children that it has waited for (proc(5): stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s() -> float:
    """CPU time of this process and of all that descend from it, also of those that have ended and were waited for."""
    found, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            found += process_cpu_s(pid)
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            waiting += [int(each) for task in tasks for each in (task / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
    return found


def commits_in(root: Path) -> int:
    """How many commits the root on a file system keeps, of which a file has one or more."""
    files = root.joinpath(METADATA_DIR).glob("*.log")
    return sum(1 for each in files for _ in headers_of_commits(each.read_bytes(), int(each.stem), str(each)))


def measure(contenders: Mapping[str, Contender], *, rounds: int) -> dict[str, Measured]:
    """Medians of each contender over `rounds`, after one round that warms up and does not count."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            gc.collect()
            cpu_before, start = tree_cpu_s(), time.perf_counter()
            contender.run()
            elapsed, cpu_s = time.perf_counter() - start, tree_cpu_s() - cpu_before
            contender.clean_up()
            if number:
                runs[name].append((elapsed, cpu_s))
    medians = {name: [statistics.median(each) for each in zip(*found, strict=True)] for name, found in runs.items()}
    return {name: Measured(seconds, cpu_s) for name, (seconds, cpu_s) in medians.items()}


def report(title: str, medians: Mapping[str, Measured], *, records: int, goals: tuple[Goal, ...] = ()) -> list[str]:
    """Print rates, CPU times and ratios of one measurement; returns a line for each goal that was missed."""
    print(f"\n{title}  ({records:,} records, medians)")
    ours = medians[OURS].seconds
    wanted = {goal.peer: goal.ratio_min for goal in goals}
    missed = []
    for name, found in medians.items():
        seconds = found.seconds
        line = f"  {name:<18}{seconds:8.3f} s {records / seconds / 1e6:8.2f} million/s {found.cpu_s:8.2f} s of CPU"
        if name != OURS:
            ratio = seconds / ours
            line += f"   ours is {ratio:6.2f} x"
            if name in wanted:
                verdict = "met" if ratio >= wanted[name] else "MISSED"
                line += f"  (goal {wanted[name]:.2f}: {verdict})"
                if verdict == "MISSED":
                    missed.append(f"{title}: {ratio:.2f} x {name}, goal {wanted[name]:.2f}")
        print(line, flush=True)
    return missed


def report_limit(title: str, found: float, limit: float, unit: str) -> list[str]:
    """Print one figure that must stay at or below `limit`; returns a line when it does not."""
    verdict = "met" if found <= limit else "MISSED"
    print(f"\n{title}: {found:,.1f} {unit}  (limit {limit:,.0f}: {verdict})", flush=True)
    return [] if verdict == "met" else [f"{title}: {found:,.1f} {unit}, limit {limit:,.0f}"]
