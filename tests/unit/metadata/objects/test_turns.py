"""Writers of an object root give way to each other: by the rules alone, and racing in virtual time over one bucket."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from builders.root_places import ObjectPlace, forget_images
from fakes.faulty_store import Call, FaultyStore, VirtualClock
from fakes.virtual_threads import VirtualThreads
from simulations.object_commits import one_after_the_other as one_after_the_other

from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import TransactionalIdRecord
from pyspark_kafkalog.metadata.objects.backend import ObjectMetadataStore
from pyspark_kafkalog.metadata.objects.turns import ALONE_SECONDS, COMMITS_A_TURN, GAP_COMMITS, WriterTurns
from pyspark_kafkalog.object_store.retries import Waiting

COMMIT_S = 0.1


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def turns(clock: VirtualClock) -> WriterTurns:
    return WriterTurns(clock.monotonic, lambda: 0.5)


def commit(turns: WriterTurns, clock: VirtualClock, count: int = 1) -> None:
    for _ in range(count):
        clock.sleep(COMMIT_S)
        turns.committed(COMMIT_S)


def test_writer_alone_waits_only_after_seconds_of_commits_and_then_for_a_gap(
    turns: WriterTurns, clock: VirtualClock
) -> None:
    pauses = []
    for _ in range(round(2 * ALONE_SECONDS / COMMIT_S)):
        pauses.append(turns.pause_seconds())
        clock.sleep(pauses[-1])
        commit(turns, clock)
    waited = [each for each in pauses if each]
    assert waited == pytest.approx([GAP_COMMITS * COMMIT_S])
    assert sum(pauses[: round(ALONE_SECONDS / COMMIT_S)]) == 0


def test_writer_that_was_idle_for_a_gap_does_not_wait(turns: WriterTurns, clock: VirtualClock) -> None:
    commit(turns, clock, round(2 * ALONE_SECONDS / COMMIT_S))
    clock.sleep(GAP_COMMITS * COMMIT_S)
    assert turns.pause_seconds() == pytest.approx(0, abs=1e-9)


def test_writer_that_has_met_others_waits_after_a_turn_as_long_as_they_need(
    turns: WriterTurns, clock: VirtualClock
) -> None:
    for _ in range(20):
        turns.met_others(12)
        assert turns.pause_seconds() == 0  # they have had their turn
        commit(turns, clock, COMMITS_A_TURN - 1)
        assert turns.pause_seconds() == pytest.approx(0, abs=1e-9)
        commit(turns, clock)
    assert turns.pause_seconds() == pytest.approx(12 * COMMIT_S, rel=0.05)
    assert turns.pause_seconds() == 0  # it has waited


def test_others_that_were_not_met_for_long_are_not_waited_for(turns: WriterTurns, clock: VirtualClock) -> None:
    turns.met_others(12)
    clock.sleep(60)
    commit(turns, clock, COMMITS_A_TURN)
    assert turns.pause_seconds() == pytest.approx(0, abs=1e-9)


def test_pause_is_bounded_behind_a_store_that_hangs(turns: WriterTurns, clock: VirtualClock) -> None:
    turns.met_others(1)
    for _ in range(COMMITS_A_TURN):
        turns.committed(600.0)
    assert turns.pause_seconds() == 2


def test_loser_tries_again_at_once_and_later_within_the_time_of_a_commit(turns: WriterTurns) -> None:
    turns.lost(2 * COMMIT_S)
    assert [turns.back_off_seconds(attempt) for attempt in (0, 1, 50)] == [0, COMMIT_S / 2, COMMIT_S / 2]


@dataclass
class Racer:
    """A process that always has something to commit; `slowness` multiplies the time of its requests."""

    number: int
    slowness: float = 1.0
    ends_s: list[float] = field(default_factory=list)

    def longest_wait_s(self, until_s: float) -> float:
        times = [0.0, *self.ends_s, until_s]
        return max(later - earlier for earlier, later in pairwise(times))


def race(racers: Sequence[Racer], seed: int, *, until_s: float) -> None:
    threads, place = VirtualThreads(), ObjectPlace()
    place.create()
    drawn = random.Random(seed)

    def body_of(racer: Racer) -> None:
        def pass_time(_call: Call) -> None:
            threads.wait(0.02 * racer.slowness * drawn.uniform(0.25, 0.75))

        client = FaultyStore(place.bucket, before=pass_time, after=pass_time)
        waiting = Waiting(lambda: threads.now_s, threads.wait, drawn.random)
        forget_images()
        store = ObjectMetadataStore.open(client, clock=place.clock, rng=drawn, waiting=waiting)

        def build(_image: MetadataImage) -> list[TransactionalIdRecord]:
            return [TransactionalIdRecord(transactional_id=f"racer-{racer.number}", version=len(racer.ends_s))]

        while True:
            store.commit(build, operation="race")
            racer.ends_s.append(threads.now_s)

    threads.run([lambda racer=racer: body_of(racer) for racer in racers], until_s=until_s)  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_none_of_several_busy_writers_waits_long(seed: int) -> None:
    racers = [Racer(number) for number in range(4)]
    race(racers, seed, until_s=20)
    assert max(each.longest_wait_s(20) for each in racers[1:]) < ALONE_SECONDS + 4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_slower_writer_is_not_kept_out_by_fast_ones(seed: int) -> None:
    racers = [Racer(0), Racer(1), Racer(2, slowness=2)]
    race(racers, seed, until_s=20)
    assert racers[2].longest_wait_s(20) < ALONE_SECONDS + 4
    assert len(racers[2].ends_s) >= 10
