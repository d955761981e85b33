"""Servers and their clients on an object root, beside Spark's writers and all maintenance, under every fault.

See support/served_simulation.py for what must hold.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from commit_simulation import CRASHES, ERRORS
from root_simulation import one_process
from served_simulation import ServedSimulation
from tiers import TIER, examples

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures(one_process.__name__)]

__all__ = ["one_process"]

RUNS = examples(15)
STEPS = int(os.environ.get("KAFKALOG_SIMULATION_STEPS", "6000" if TIER == "full" else "600"))
EVENTS = (
    *(each.name for each in (*ERRORS, *CRASHES)),
    *("batches", "repeated batches", "committed", "aborted", "merge-segments", "writes", "killed", "slept"),
)
seen: Counter[str] = Counter()


@pytest.mark.parametrize("run", range(RUNS))
def test_each_batch_is_there_once_and_each_transaction_whole(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKALOG_SIMULATION_STEPS: how many steps in all runs; a failure prints its seed."""
    simulation = ServedSimulation(run + 1, monkeypatch)
    try:
        while simulation.steps < STEPS // RUNS:
            for _ in range(60):
                simulation.step()
            simulation.check()
        simulation.end()
    finally:
        print(f"seed {run + 1}: {simulation.steps} steps, {dict(simulation.counts)}")
        simulation.close()
    seen.update(simulation.counts)
    if run == RUNS - 1 and TIER == "full":
        assert not [each for each in EVENTS if not seen[each]]
