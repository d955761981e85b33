"""An object root under every fault at every request of every action, and under everything at once in long random runs.

See tests/support/simulations/object_root.py for who takes part, and for what must hold.
"""

from __future__ import annotations

import os
import random

import pytest
from fakes.faulty_store import Call, Fault, FaultyStore
from simulations.object_commits import CRASHES, ERRORS
from simulations.object_root import Actor, Job, Simulation, Writer, one_process, simulated
from tiers import SEED, TIER, examples

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures(one_process.__name__)]

__all__ = ["one_process"]

RUNS = examples(15)
STEPS = int(os.environ.get("KAFKALOG_SIMULATION_STEPS", "6000"))
#: What a run of a thousand steps meets.
EVENTS = (
    *(each.name for each in (*ERRORS, *CRASHES)),
    *("writes", "rows read", "tasks", "merge-segments", "retention", "delete-records", "clean", "records cleaned"),
    *("dropped objects deleted", "orphans deleted", "killed", "slept"),
)
calls_of: dict[str, int] = {}
ACTIONS = (
    "write",
    "version",
    "merge",
    "clean",
    "clean_in_tasks",
    "retain",
    "remove_records",
    "clean_up",
    "change_topics",
)


@pytest.mark.all_cases
@pytest.mark.parametrize("run", range(RUNS))
def test_long_random_run_loses_doubles_and_changes_no_record(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKALOG_SIMULATION_STEPS: how many steps in all runs; a failure prints its seed.

    With the runs of test_object_commit_simulation.py they are 10,000, unless more are asked for.
    """
    with simulated(run + 1, monkeypatch) as simulation:
        while simulation.steps < STEPS // RUNS:
            for _ in range(60):
                simulation.step()
            simulation.check()
        simulation.end()
    print(f"seed {run + 1}: {simulation.steps} steps, {dict(simulation.counts)}")
    assert not [each for each in EVENTS if not simulation.counts[each]]


def actor_of(simulation: Simulation, action: str) -> Actor:
    if action in ("write", "version"):
        writer = Writer(simulation, action, is_transactional=action == "version")
        simulation.writers.append(writer)
        return writer
    return next(Job(simulation, action, job.work) for job in simulation.jobs if job.name == action)


def run_with(
    monkeypatch: pytest.MonkeyPatch, action: str, fault: Fault | None, number: int, *, sleeps: bool = False
) -> int:
    """The action on a root that others have worked on, with the fault at its call `number`; how many calls it made.

    With `sleeps`, it is stopped before that call until clean-up has passed by.
    """
    with simulated(len(action), monkeypatch, is_calm=True) as simulation:
        simulation.let_hours_pass(1)
        actor = actor_of(simulation, action)
        client: FaultyStore = actor.log_dir.root.native()._objects  # type: ignore[attr-defined]
        first = len(client.calls)

        def meet(call: Call) -> Fault | None:
            if call.number != first + number or fault is None:
                return None
            actor.faults += 1
            return fault

        def before(call: Call) -> None:
            if sleeps and call.number == first + number:
                simulation.let_hours_pass(2)

        client.faults, client.before = meet, before
        simulation.act(actor)
        calls = len(client.calls) - first
        client.faults, client.before = {}, None
        simulation.check()
        simulation.end()
    return calls


@pytest.mark.parametrize("fault", [*ERRORS, *CRASHES, None], ids=lambda each: each.name.lower() if each else "sleeps")
@pytest.mark.parametrize("action", ACTIONS)
def test_fault_at_any_request_of_an_action_loses_doubles_and_changes_no_record(
    monkeypatch: pytest.MonkeyPatch, action: str, fault: Fault | None
) -> None:
    """At each of them in the full tier, else at one that is drawn."""
    if action not in calls_of:
        calls_of[action] = run_with(monkeypatch, action, None, 0)
    calls = calls_of[action]
    drawn = random.Random(f"{SEED} {action} {fault}").randrange(calls)
    chosen = range(calls) if TIER == "full" else [drawn]
    for number in chosen:
        run_with(monkeypatch, action, fault, number, sleeps=fault is None)
    print(f"{action}, {fault.name if fault else 'sleeps'}: {len(chosen)} of {calls} points")
