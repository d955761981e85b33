"""Measures in turns: each round runs every contender once, so that drift of the machine affects all of them equally."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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


def measure(contenders: Mapping[str, Contender], *, rounds: int) -> dict[str, float]:
    """Median seconds of each contender over `rounds`, after one round that warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            gc.collect()
            start = time.perf_counter()
            contender.run()
            elapsed = time.perf_counter() - start
            contender.clean_up()
            if number:
                seconds[name].append(elapsed)
    return {name: statistics.median(times) for name, times in seconds.items()}


def report(title: str, medians: Mapping[str, float], *, records: int, goals: tuple[Goal, ...] = ()) -> list[str]:
    """Print rates and ratios of one measurement; returns a line for each goal that was missed."""
    print(f"\n{title}  ({records:,} records, medians)")
    ours = medians[OURS]
    wanted = {goal.peer: goal.ratio_min for goal in goals}
    missed = []
    for name, seconds in medians.items():
        line = f"  {name:<18}{seconds:8.3f} s {records / seconds / 1e6:8.2f} million/s"
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
