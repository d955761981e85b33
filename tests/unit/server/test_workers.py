"""The supervisor starts processes, again with pauses if they die, and ends their groups from the last to the first."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import partial

import pytest

from pyspark_kafkalog.server.workers import Supervisor


class FakeProcess:
    """A process of which a test says when it ends. `ends_after_s`: after SIGTERM; None: it does not."""

    def __init__(self, machine: Machine, name: str) -> None:
        self._machine = machine
        self.name = name
        self.returncode: int | None = None
        self.ends_after_s: float | None = 0.0
        self._terminated_s: float | None = None

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self._machine.events.append(f"terminate {self.name}")
        self._terminated_s = self._machine.now_s

    def kill(self) -> None:
        self._machine.events.append(f"kill {self.name}")
        self.returncode = -9

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            assert self._terminated_s is not None
            rest_s = None if self.ends_after_s is None else self._terminated_s + self.ends_after_s - self._machine.now_s
            if timeout is not None and (rest_s is None or rest_s > timeout):
                self._machine.now_s += timeout
                raise subprocess.TimeoutExpired(self.name, timeout)
            assert rest_s is not None
            self._machine.now_s += max(rest_s, 0)
            self.returncode = 0
        self._machine.events.append(f"{self.name} ended")
        return self.returncode


class Machine:
    """Starts processes, and has the time. `events` are in their order."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.events: list[str] = []
        self.running: dict[str, FakeProcess] = {}

    def popen(self, command: Sequence[str]) -> FakeProcess:
        (name,) = command
        self.events.append(f"start {name}")
        self.running[name] = FakeProcess(self, name)
        return self.running[name]

    def supervisor(self, *groups: Sequence[str]) -> Supervisor:
        commands = [[(name, partial(list, [name])) for name in group] for group in groups]
        return Supervisor(*commands, monotonic=lambda: self.now_s, popen=self.popen)  # type: ignore[arg-type]

    def starts(self, supervisor: Supervisor, seconds: float) -> list[float]:
        """When processes are started in the next seconds, of which each is looked at ten times."""
        began, found = self.now_s, list[float]()
        for step in range(round(seconds * 10)):
            self.now_s = began + step / 10
            before = len(self.events)
            supervisor.look_after()
            found += [round(self.now_s - began, 1)] * (len(self.events) - before)
        return found


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_committer_starts_before_the_workers_and_ends_after_them(machine: Machine) -> None:
    supervisor = machine.supervisor(["committer"], ["worker 0", "worker 1"])
    supervisor.look_after()
    assert machine.events == ["start committer", "start worker 0", "start worker 1"]
    machine.events.clear()
    supervisor.stop()
    assert machine.events == [
        "terminate worker 0",
        "terminate worker 1",
        "worker 0 ended",
        "worker 1 ended",
        "terminate committer",
        "committer ended",
    ]


def test_workers_without_a_committer_are_a_group_alone(machine: Machine) -> None:
    supervisor = machine.supervisor([], ["worker 0"])
    supervisor.look_after()
    supervisor.stop()
    assert machine.events == ["start worker 0", "terminate worker 0", "worker 0 ended"]


def test_killed_process_is_started_again_after_a_pause_and_the_others_stay(machine: Machine) -> None:
    supervisor = machine.supervisor(["committer"], ["worker 0"])
    supervisor.look_after()
    machine.now_s += 100
    supervisor.look_after()
    machine.events.clear()
    machine.running["committer"].returncode = -9
    assert machine.starts(supervisor, 2) == [0.5]
    assert machine.events == ["start committer"]


def test_pauses_of_a_process_that_ends_at_its_start_grow_up_to_half_a_minute(machine: Machine) -> None:
    supervisor = machine.supervisor(["committer"], ["worker 0"])
    pauses = []
    for _ in range(9):
        supervisor.look_after()
        machine.running["committer"].returncode = 1
        (pause_s,) = machine.starts(supervisor, 31)
        pauses.append(pause_s)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_pause_is_short_again_once_a_process_has_run_for_a_minute(machine: Machine) -> None:
    supervisor = machine.supervisor(["committer"])
    supervisor.look_after()
    for _ in range(4):
        machine.running["committer"].returncode = 1
        machine.starts(supervisor, 10)
    machine.now_s += 61
    supervisor.look_after()
    machine.running["committer"].returncode = 1
    assert machine.starts(supervisor, 10) == [0.5]


def test_processes_that_do_not_end_are_killed_and_the_committer_gets_the_rest_of_the_time(machine: Machine) -> None:
    supervisor = machine.supervisor(["committer"], ["worker 0", "worker 1"])
    supervisor.look_after()
    machine.running["worker 0"].ends_after_s = None
    machine.running["worker 1"].ends_after_s = 20
    machine.running["committer"].ends_after_s = None
    machine.events.clear()
    began = machine.now_s
    supervisor.stop()
    assert machine.now_s == began + 30
    assert machine.events == [
        "terminate worker 0",
        "terminate worker 1",
        "kill worker 0",
        "worker 0 ended",
        "worker 1 ended",
        "terminate committer",
        "kill committer",
        "committer ended",
    ]


def test_process_that_waits_for_its_start_is_not_ended(machine: Machine) -> None:
    supervisor = machine.supervisor(["committer"], ["worker 0"])
    supervisor.look_after()
    machine.running["committer"].returncode = 1
    supervisor.look_after()
    machine.events.clear()
    supervisor.stop()
    assert machine.events == ["terminate worker 0", "worker 0 ended"]
