"""A writer stopped at every call that changes the file system: nothing committed is lost, doubled or half written.

Each scenario is run once to count its calls. Then, for every one of them (below the full tier: for a sample by the
run's seed, see tiers.py), a writer is killed (SIGKILL) in front of it or half way through its bytes, and another gets
ENOSPC, EIO or writes only a few bytes at a time; and the power is cut. A kill after a call leaves the same as a kill in
front of the next one. In every case a reader that takes no lock sees a commit whole or not at all, the same writer or a
new one continues, and in the end a reader sees what it would have seen with no crash, in files that Kafka's own tool
finds valid.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from kafka_processes.oracle import dump_log, kafka_lib
from tiers import Sample

from tests.crash.checks import FileChecks
from tests.crash.faults import CountingFileSystem, inside_seam
from tests.crash.runs import Points, Runs, cut_power, run_in_child, try_calls
from tests.crash.scenarios import SCENARIOS, Scenario

_FILES_A_RUN = 1500


@pytest.fixture(params=SCENARIOS.values(), ids=lambda scenario: scenario.name.replace(" ", "-"), scope="module")
def scenario(request: pytest.FixtureRequest) -> Scenario:
    found: Scenario = request.param
    return found


@pytest.fixture(scope="module")
def runs(scenario: Scenario, files: FileChecks, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(scenario, tmp_path_factory.mktemp("crash"), files)


def _check(runs: Runs, points: Points) -> None:
    assert not points.failures, f"{len(points.failures)} failures:\n" + "\n".join(points.failures[:20])
    calls, calls_min = len(runs.call_names), runs.scenario.calls_min
    assert calls >= calls_min, f"only {calls} calls: are there changes made past the seam?"


def test_writer_stopped_at_any_call_keeps_each_record_once(runs: Runs, report: dict[str, str]) -> None:
    chosen = Sample.of_tier().calls(runs.scenario.name, len(runs.call_names))
    points = try_calls(runs, chosen)
    calls = len(runs.call_names)
    report[runs.scenario.name] = (
        f"{len(chosen)} of {calls} calls, {points.total} points: {points.kills} kills in front, "
        f"{points.torn} half way, {points.errors} errors, {points.short} short writes"
    )
    _check(runs, points)
    # In a commit over several partitions the calls of a run may be some more or less than those of another.
    assert points.kills >= len(chosen) * 0.9
    assert points.errors >= len(chosen) * 1.8


def test_power_cut_at_any_call_keeps_committed_records(runs: Runs, report: dict[str, str]) -> None:
    if not runs.scenario.is_durable:
        return
    chosen = Sample.of_tier().calls(f"{runs.scenario.name}, power", len(runs.call_names) + 1)
    points = cut_power(runs, chosen)
    report[f"{runs.scenario.name}, power"] = f"{points.total} points"
    _check(runs, points)
    assert points.power >= len(chosen) * 0.5


def test_every_change_goes_through_file_system_seam(runs: Runs) -> None:
    """By Python's audit events, which leave out the bytes written to a file that the seam has opened."""
    home = runs.copy()
    past: Path = home.parent / "past"

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if getattr(inside_seam, "now", False) or event not in _CHANGES:
            return
        path = str(arguments[_CHANGES[event]])
        changes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & 0o1103)
        if changes and path.startswith(str(home)):
            with open(os.open(past, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a") as file:
                file.write(f"{event} {path}\n")

    run_in_child(home, CountingFileSystem(), runs.scenario.steps, first=lambda: sys.addaudithook(audit))
    found = past.read_text() if past.exists() else ""
    assert not found, found


_CHANGES = {
    "open": 0,
    "os.rename": 0,
    "os.link": 0,
    "os.remove": 0,
    "os.mkdir": 0,
    "os.rmdir": 0,
    "os.truncate": 0,
    "os.symlink": 0,
    "shutil.rmtree": 0,
}


@pytest.mark.interop
def test_kafka_finds_batches_and_indexes_valid(files: FileChecks, report: dict[str, str]) -> None:
    """Kafka's dump tool over all files that the tests above have left, one of each."""
    kafka_lib()
    logs = sorted(log for directory in files.directories for log in directory.glob("*.log"))
    assert logs, "run it with the tests that leave files"
    indexes = [log.with_suffix(suffix) for log in logs for suffix in (".index", ".timeindex")]
    snapshots = sorted(each for directory in files.directories for each in directory.glob("*.snapshot"))
    batches = 0
    everything = [*logs, *(index for index in indexes if index.stat().st_size), *snapshots]
    for first in range(0, len(everything), _FILES_A_RUN):
        dumped = dump_log(everything[first : first + _FILES_A_RUN], "--deep-iteration")
        assert dumped.returncode == 0, dumped.stderr[-3000:]
        assert dumped.stderr == "", dumped.stderr[-3000:]
        verdicts = re.findall(r"isvalid: (\w+)", dumped.stdout)
        batches += len(verdicts)
        assert set(verdicts) <= {"true"}
        complaints = re.findall(r"^.*(?:mismatch|invalid|out of order|Found|corrupt).*$", dumped.stdout, re.I | re.M)
        complaints = [line for line in complaints if "isvalid: true" not in line]
        assert not complaints, complaints[:10]
    report["Kafka's dump"] = f"{batches} batches valid, {len(logs)} segments, {len(files.directories)} partitions"
    assert batches >= len(logs) > 20
