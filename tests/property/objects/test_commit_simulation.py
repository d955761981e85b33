"""Commits to an object root under every fault at every request, in races, after long stops, and in long random runs."""

from __future__ import annotations

import os
import random
import threading

import pytest
from builders.root_places import ObjectPlace, commit_names, snapshot_names
from fakes.faulty_store import Call, Fault
from simulations.object_commits import (
    CRASHES,
    ERRORS,
    HOUR_MS,
    Simulation,
    Writer,
    check,
    count_in,
    make_counts,
    one_after_the_other,
    printed_seed,
)
from tiers import examples

pytestmark = pytest.mark.usefixtures(one_after_the_other.__name__)

__all__ = ["one_after_the_other"]


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["alone", "with others between"])
@pytest.mark.parametrize("fault", [*ERRORS, *CRASHES], ids=lambda fault: fault.name.lower())
@pytest.mark.slow
def test_fault_at_any_request_loses_and_doubles_no_commit(fault: Fault, is_interrupted: bool) -> None:
    """The writer opens the root, commits three times, over a snapshot and clean-up; at each request once it fails."""
    for number in range(200):
        place = ObjectPlace()
        make_counts(place)
        writer, other = (Writer(place, each) for each in range(2))
        other.count()
        for _ in range(6):
            other.count()
        place.clock.now_ms += 2 * HOUR_MS
        calls: list[Call] = []

        def before(call: Call, calls: list[Call] = calls, place: ObjectPlace = place, other: Writer = other) -> None:
            calls.append(call)
            if is_interrupted and call.is_write and sum(each.is_write for each in calls) % 2:
                other.count()

        def faults(call: Call, calls: list[Call] = calls, number: int = number) -> Fault | None:
            return fault if len(calls) == number + 1 else None

        for _ in range(3):
            writer.count(before=before, faults=faults)
            check(place, [writer, other])
        place.bucket.land()
        check(place, [writer, other])
        other.count()
        writer.count()
        assert writer.pending is None
        check(place, [writer, other])
        if len(calls) <= number:
            assert number > 14
            print(f"{fault.name}: {number} points")
            return
    raise AssertionError("the writer never came through")


@pytest.mark.parametrize("writers", range(2, 9))
def test_racing_writers_commit_all(writers: int) -> None:
    place = ObjectPlace()
    make_counts(place, snapshot_bytes=3000)
    racing = [Writer(place, number) for number in range(writers)]
    start = threading.Barrier(writers)

    def race(writer: Writer) -> None:
        rng = random.Random(writer.number)
        start.wait()
        for _ in range(12):
            writer.count(faults=lambda call: rng.choice(ERRORS) if rng.random() < 0.05 else None)

    threads = [threading.Thread(target=race, args=(writer,)) for writer in racing]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place.bucket.land()
    image = check(place, racing)
    assert sum(count_in(image, each) for each in range(writers)) > 6 * writers


@pytest.mark.parametrize("is_late", [False, True], ids=["request sent late", "request lands late"])
def test_writer_that_wakes_after_clean_up_makes_no_commit_at_removed_name(is_late: bool) -> None:
    place = ObjectPlace()
    place.bucket.late_calls = None
    make_counts(place)
    stopped, other = (Writer(place, number) for number in range(2))
    stopped.count()
    before = commit_names(place)
    created: list[Call] = []
    slept: list[Call] = []

    def sleep(call: Call) -> None:
        created.extend([call] if call.kind == "create" else [])
        if slept or not created or (is_late and call.kind == "create"):
            return
        slept.append(call)
        for _ in range(4):
            place.clock.now_ms += 2 * HOUR_MS
            for _ in range(10):
                other.count()
        assert not set(before) & set(commit_names(place))
        place.bucket.land()
        assert (created[0].keys[0] in place.bucket) == is_late

    def faults(call: Call) -> Fault | None:
        return Fault.LANDS_LATE if is_late and created == [call] else None

    stopped.count(before=sleep, faults=faults)
    assert slept
    assert stopped.pending is None
    image = check(place, [stopped, other])
    assert count_in(image, 0) == 2
    assert created[0].keys[0] not in place.bucket


def test_commit_of_zombie_that_died_at_removed_name_is_read_by_nobody_and_removed() -> None:
    place = ObjectPlace()
    make_counts(place)
    zombie, other = (Writer(place, number) for number in range(2))
    zombie.count()
    reader = place.open()

    def sleep(call: Call) -> None:
        if call.kind == "create":
            zombie.client.before = None  # type: ignore[union-attr]
            for _ in range(4):
                place.clock.now_ms += 2 * HOUR_MS
                for _ in range(10):
                    other.count()

    zombie.count(before=sleep, faults=lambda call: Fault.CRASH_AFTER if call.kind == "create" else None)
    at = f"{reader.image.next_offset:020d}.log"
    assert at in commit_names(place)
    image = check(place, [zombie, other])
    assert count_in(image, 0) == 1
    assert reader.refresh() == image
    place.clock.now_ms += 2 * HOUR_MS
    for _ in range(6):
        other.count()
    assert at not in commit_names(place)


def test_clean_up_keeps_newest_snapshot_and_what_it_needs() -> None:
    place = ObjectPlace()
    make_counts(place)
    writer = Writer(place, 0)
    for _ in range(40):
        place.clock.now_ms += HOUR_MS // 2
        writer.count()
        check(place, [writer])
    assert 1 <= len(snapshot_names(place)) <= 4
    assert 1 <= len(commit_names(place)) <= 12


@pytest.mark.slow
@pytest.mark.all_cases
@pytest.mark.parametrize("run", range(examples(6)))
def test_long_random_run_keeps_every_commit_once(run: int) -> None:
    """KAFKALOG_SIMULATION_STEPS: how many steps in all runs; a failure prints its seed."""
    steps = int(os.environ.get("KAFKALOG_SIMULATION_STEPS", "4000")) // examples(6)
    with printed_seed(run + 1) as rng:
        simulation = Simulation(rng, writers=2 + run % 5)
        while simulation.steps < steps:
            simulation.step()
            if simulation.steps % 50 == 0:
                check(simulation.place, simulation.writers)
        simulation.end()
