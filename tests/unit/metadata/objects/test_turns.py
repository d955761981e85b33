"""Writers of an object root take turns: by the rules alone, and racing in virtual time over one bucket."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from builders.root_places import ObjectPlace, commit_names, forget_images
from fakes.faulty_store import FaultyStore, VirtualClock
from fakes.virtual_threads import VirtualThreads
from simulations.object_commits import one_after_the_other as one_after_the_other

from pyspark_kafkalog.metadata.backend import Look, Pause
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, TransactionalIdRecord, WriterTurn
from pyspark_kafkalog.metadata.objects.backend import ObjectMetadataStore
from pyspark_kafkalog.metadata.objects.turns import ALONE_TURN, LONGEST_TURN, LONGEST_WAIT_S, WriterTurns
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.object_store.retries import Waiting

REQUEST_S = 0.03
CLAIM = "kafkalog-waiting-0000002a-30"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


class Alone:
    """A writer without a store. `others` is what a look at the log finds, `winner` what a lost race shows."""

    def __init__(self, clock: VirtualClock) -> None:
        self.turns = WriterTurns(clock.monotonic, writer=1)
        self.clock = clock
        self.offset = 10
        self.looks: Counter[Look] = Counter()
        self.waited_s: list[float] = []
        self.others: Callable[[], object] = lambda: None
        self.winner: Callable[[], object] = lambda: None

    def wait(self, lost: int = 0) -> float:
        """The pauses before one create, and how long they took."""
        began = self.clock.monotonic()
        for seconds, look in self.turns.pauses(lost, lambda: 0.5):
            self.clock.sleep(seconds)
            self.looks[look] += 1
            if look is Look.KNOWN:
                self.winner()
            else:
                self.clock.sleep(REQUEST_S)
                self.others()
                self.turns.looked()
        return self.clock.monotonic() - began

    def commit(self) -> WriterTurn:
        self.waited_s.append(self.wait())
        stated = self.turns.announce()
        self.clock.sleep(REQUEST_S)
        self.offset += 2
        self.turns.committed(self.offset, REQUEST_S)
        return stated

    def saw(self, writer: int, left_ms: int, *, request_ms: int = 30) -> None:
        self.offset += 2
        turn = WriterTurn(writer=writer, request_ms=request_ms, left_ms=left_ms)
        self.turns.saw(self.offset, turn, self.clock.monotonic())


@pytest.fixture
def writer(clock: VirtualClock) -> Alone:
    return Alone(clock)


def test_writer_alone_looks_for_claims_once_in_thirty_commits_and_never_waits(writer: Alone) -> None:
    for _ in range(10 * ALONE_TURN):
        writer.commit()
    assert writer.looks == {Look.LISTED: 10}
    assert max(writer.waited_s) < 2 * REQUEST_S


def test_writer_with_time_between_its_commits_neither_looks_nor_waits(writer: Alone) -> None:
    for _ in range(50):
        assert writer.commit().left_ms == -1
        writer.clock.sleep(1)
    assert not writer.looks


def test_writer_alone_looks_for_claims_once_in_ten_commits_however_long_these_take(writer: Alone) -> None:
    for _ in range(4):
        writer.commit()
        writer.clock.sleep(12 * REQUEST_S)  # a part of the commit: what follows its create
        writer.turns.ended()
    assert not writer.looks
    for _ in range(10 * ALONE_TURN):
        writer.commit()
        writer.clock.sleep(12 * REQUEST_S)
        writer.turns.ended()
    assert writer.looks == {Look.LISTED: 3 * 10}


def test_writer_with_slow_commits_looks_before_each_beside_a_busy_one(writer: Alone) -> None:
    writer.commit()
    for _ in range(6):
        writer.saw(7, left_ms=0)
        writer.commit()
        writer.clock.sleep(12 * REQUEST_S)
        writer.turns.ended()
    assert writer.looks.total() == 5, "all but the first, of which it was not known whether another follows"


def test_busy_writer_states_how_long_its_turn_still_lasts(writer: Alone) -> None:
    left_ms = [writer.commit().left_ms for _ in range(LONGEST_TURN + 1)]
    assert left_ms[0] == -1, "it is not known yet whether another commit follows"
    assert left_ms[1:] == sorted(left_ms[1:], reverse=True)
    assert left_ms[1] == pytest.approx(1000 * (LONGEST_TURN - 1.5) * REQUEST_S, abs=1)
    assert left_ms[-1] < 1000 * REQUEST_S


def test_writer_waits_after_its_turn_for_the_turn_of_a_busy_one(writer: Alone) -> None:
    for _ in range(LONGEST_TURN):
        writer.commit()
    writer.saw(7, left_ms=100)  # it has come in
    writer.clock.sleep(0.2)
    writer.saw(7, left_ms=0)
    while writer.commit().left_ms != 0:
        writer.clock.sleep(0.001)
    assert writer.wait() > 5 * REQUEST_S
    assert writer.wait() < 2 * REQUEST_S, "it did not come, and is not awaited again"


def test_claim_gets_the_next_turn_and_is_removed_if_its_writer_does_not_come(writer: Alone) -> None:
    def others() -> None:
        writer.turns.saw_claims(["kafkalog-start", CLAIM], writer.clock.monotonic())

    writer.others = others
    for _ in range(4 * ALONE_TURN):
        writer.commit()
    long = [each for each in writer.waited_s if each > 2 * REQUEST_S]
    assert len(long) == 1, "once is enough, also if the claim is still there"
    assert long[0] == pytest.approx(3.5 * REQUEST_S, abs=3 * REQUEST_S)
    assert writer.turns.claims_to_delete() == [CLAIM]
    assert writer.turns.claims_to_delete() == []


def test_loser_to_a_writer_in_no_turn_tries_again_at_once(writer: Alone) -> None:
    writer.commit()
    writer.clock.sleep(1)
    writer.winner = lambda: writer.saw(7, left_ms=-1)
    assert writer.wait(lost=1) <= REQUEST_S
    assert writer.turns.claim_to_put() is None


def test_loser_waits_for_the_end_of_the_turn_and_claims_the_next_if_it_loses_again(writer: Alone) -> None:
    writer.commit()
    writer.clock.sleep(1)
    writer.winner = lambda: writer.saw(7, left_ms=200)
    assert 0.2 <= writer.wait(lost=1) <= 0.2 + 5 * REQUEST_S
    assert writer.turns.claim_to_put() is None
    writer.wait(lost=2)
    claim = writer.turns.claim_to_put()
    assert claim is not None
    writer.commit()
    assert writer.turns.claims_to_delete(own=True) == [claim]


def test_slow_writer_that_the_others_do_not_know_claims_a_turn_at_once(writer: Alone) -> None:
    writer.commit()
    writer.clock.sleep(1)
    writer.winner = lambda: writer.saw(7, left_ms=200, request_ms=10)
    writer.wait(lost=1)
    assert writer.turns.claim_to_put() is not None


@pytest.mark.parametrize("moves", [False, True])
def test_waits_are_bounded_whatever_others_state(writer: Alone, moves: bool) -> None:
    def others() -> None:
        if moves:
            writer.saw(random.randrange(1000), left_ms=32_767, request_ms=32_767)
        writer.turns.saw_claims([f"kafkalog-waiting-{each:08x}-99999" for each in range(5000)], 0.0)

    for number in range(1000):
        writer.saw(number, left_ms=-32_768 if number % 2 else 32_767, request_ms=-5 if number % 3 else 32_767)
    writer.others = others
    for lost in (0, 1, 5):
        assert writer.wait(lost) <= LONGEST_WAIT_S + 2 * REQUEST_S
    assert len(writer.turns.claims_to_delete()) < 1000


def test_pauses_end_though_the_clock_stands_still() -> None:
    turns = WriterTurns(lambda: 0.0, writer=1)
    turns.saw(5, WriterTurn(writer=7, request_ms=30, left_ms=1000), 0.0)
    assert len(list(turns.pauses(1, lambda: 0.5))) < 100


# Races in virtual time


@dataclass
class Racer:
    """A process that commits from `begins_s` to `ends_s`, and between two commits rests about `rests_s` seconds.

    `slowness` multiplies the time of its requests. `obeys`: it is of this version. `host`: what it shares with others.
    At `stops_s` it stands still for a long time while it makes a commit.
    """

    number: int
    slowness: float = 1.0
    begins_s: float = 0.0
    ends_s: float = 1e9
    rests_s: float = 0.0
    obeys: bool = True
    host: Path | None = None
    stops_s: float = 1e9
    opened_s: float | None = None
    took_s: list[tuple[float, float]] = field(default_factory=list)  # of each commit, when it began and ended
    requests: Counter[str] = field(default_factory=Counter)

    def longest_wait_s(self, until_s: float) -> float:
        """The longest commit, also one that has not ended."""
        waits = [end - begin for begin, end in self.took_s]
        if self.rests_s:
            return max(waits)
        last = [self.opened_s or 0.0, *(end for _, end in self.took_s)]
        return max(later - earlier for earlier, later in pairwise([*last, min(until_s, max(self.ends_s, last[-1]))]))


class TimedStore(FaultyStore):
    """A store whose requests take time until they arrive, and again until the answer does, also if it is a refusal.

    A listing takes as long as `listing` other requests.
    """

    def __init__(self, place: ObjectPlace, pass_time: Callable[[float], None], listing: float) -> None:
        super().__init__(place.bucket)
        self._pass_time = pass_time
        self._listing = listing

    def _call(self, kind: str, keys: tuple[str, ...], effect: Callable[[], Any], *, requests: int = 1) -> Any:
        times = self._listing if kind == "list" else 1.0
        self._pass_time(times)
        try:
            return super()._call(kind, keys, effect, requests=requests)
        finally:
            self._pass_time(times)


def like_an_earlier_version(store: ObjectMetadataStore, racer: Racer) -> None:
    """Let the store state nothing, and after four commits wait for as long as ten requests."""

    def header(commit_id: str, operation: str) -> CommitRecord:
        return CommitRecord(commit_id=commit_id, operation=operation)

    def pauses(lost: int, _jitter: Callable[[], float]) -> Iterator[Pause]:
        if not lost and len(racer.took_s) % 4 == 0:
            yield Pause(10 * 0.035, Look.NONE)

    store._backend.header, store._backend.pauses = header, pauses  # type: ignore[method-assign]


def race(
    racers: Sequence[Racer], seed: int, *, until_s: float, claim: str | None = None, listing: float = 1.0
) -> ObjectPlace:
    """Let the racers commit, over a store whose requests take 20 to 50 ms, and in which `claim` was left.

    A listing takes as long as `listing` other requests.
    """
    threads, place = VirtualThreads(), ObjectPlace()
    place.create()
    if claim is not None:
        place.write(claim, b"")
    drawn = random.Random(seed)

    def body_of(racer: Racer) -> None:
        if racer.begins_s:
            threads.wait(racer.begins_s)

        def pass_time(times: float) -> None:
            threads.wait(times * racer.slowness * drawn.uniform(0.01, 0.025))

        client = TimedStore(place, pass_time, listing)
        # Claims go by the number of their writer: a seed always gives the same run.
        number = racer.number + 1
        waiting = Waiting(lambda: threads.now_s, threads.wait, drawn.random, new_writer=lambda: number)
        skew_ms = drawn.randrange(1_000_000)
        forget_images()
        store = ObjectMetadataStore.open(
            client, clock=lambda: round(1000 * threads.now_s) + skew_ms, rng=drawn, waiting=waiting
        )
        if racer.host is not None:
            store.join_host(racer.host)
            store._backend.log.turns._writer = int(racer.host.name) + 1
        if not racer.obeys:
            like_an_earlier_version(store, racer)
        client.requests.clear()
        racer.requests, racer.opened_s = client.requests, threads.now_s

        def build(_image: MetadataImage) -> list[TransactionalIdRecord]:
            if threads.now_s >= racer.stops_s:
                threads.wait(until_s)
            return [TransactionalIdRecord(transactional_id=f"racer-{racer.number}", version=len(racer.took_s))]

        while threads.now_s < racer.ends_s:
            began = threads.now_s
            store.commit(build, operation="race")
            racer.took_s.append((began, threads.now_s))
            if racer.rests_s:
                threads.wait(racer.rests_s * drawn.uniform(0.5, 1.5))

    threads.run([lambda racer=racer: body_of(racer) for racer in racers], until_s=until_s)  # type: ignore[misc]
    made = ObjectMetadataStore.open(place.client(), clock=place.clock, waiting=place.waiting).image
    for racer in racers:
        known = made.transactional_ids.get(f"racer-{racer.number}")
        count = 0 if known is None else known.version + 1
        assert count - len(racer.took_s) in (0, 1), "each commit was made once; the last has perhaps not returned"
    return place


def requests_a_commit(racers: Sequence[Racer]) -> float:
    return sum(each.requests.total() for each in racers) / sum(len(each.took_s) for each in racers)


def longest_wait_s(racers: Sequence[Racer], until_s: float) -> float:
    return max(each.longest_wait_s(until_s) for each in racers)


@pytest.mark.parametrize(
    ("writers", "most_requests", "least_commits_a_second", "longest_s"),
    [(1, 1.06, 25, 0.4), (2, 1.6, 22, 1.6), (4, 2.0, 20, 1.8), (8, 3.2, 17, 2.4)],
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_busy_writers_share_with_few_requests_and_none_waits_long(
    writers: int, most_requests: float, least_commits_a_second: float, longest_s: float, seed: int
) -> None:
    racers = [Racer(number) for number in range(writers)]
    place = race(racers, seed, until_s=20)
    assert requests_a_commit(racers) <= most_requests
    assert len(commit_names(place)) >= 20 * least_commits_a_second
    assert longest_wait_s(racers, 20) <= longest_s


@pytest.mark.parametrize(("listing", "least_commits_a_second"), [(10, 12), (30, 12), (60, 9)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_slow_listings_keep_no_writer_out(listing: float, least_commits_a_second: float, seed: int) -> None:
    racers = [Racer(number) for number in range(5)]
    place = race(racers, seed, until_s=20, listing=listing)
    assert len(commit_names(place)) >= 20 * least_commits_a_second
    assert longest_wait_s(racers, 20) <= 5
    assert sum(each.requests["list"] for each in racers) <= len(commit_names(place)) / 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_writer_with_slow_requests_is_not_kept_out(seed: int) -> None:
    racers = [Racer(0), Racer(1), Racer(2), Racer(3, slowness=4)]
    race(racers, seed, until_s=20)
    assert longest_wait_s(racers, 20) <= 2.6
    assert requests_a_commit(racers) <= 2.5
    assert len(racers[3].took_s) >= 20


def racers_of_hosts(folder: Path, hosts: int) -> list[Racer]:
    """The busy committer of each host, and two workers, which have a commit of their own now and then."""
    racers = []
    for number in range(hosts):
        host = folder / str(100 * number)
        host.mkdir()
        racers += [Racer(len(racers) + at, rests_s=rests_s, host=host) for at, rests_s in enumerate((0.0, 0.2, 0.3))]
    return racers


@pytest.mark.parametrize(
    ("hosts", "most_requests", "least_commits_a_second", "longest_s", "usual_s"),
    [(1, 1.1, 24, 1.0, 0.1), (2, 1.7, 20, 3.0, 0.6), (3, 1.9, 18, 3.5, 1.0)],
)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_processes_of_a_host_do_not_race_each_other(
    hosts: int,
    most_requests: float,
    least_commits_a_second: float,
    longest_s: float,
    usual_s: float,
    seed: int,
    tmp_path: Path,
) -> None:
    racers = racers_of_hosts(tmp_path, hosts)
    place = race(racers, seed, until_s=20)
    assert requests_a_commit(racers) <= most_requests
    assert len(commit_names(place)) >= 20 * least_commits_a_second
    assert longest_wait_s(racers, 20) <= longest_s
    for each in racers:
        assert sum(end - begin for begin, end in each.took_s) / len(each.took_s) <= usual_s


@pytest.mark.usefixtures("one_after_the_other")
def test_process_that_stands_still_holds_up_its_host_for_some_seconds(tmp_path: Path) -> None:
    racers = racers_of_hosts(tmp_path, 2)
    racers[1].stops_s = 5
    race(racers, 0, until_s=20)
    others = [each for each in racers if each is not racers[1]]
    assert longest_wait_s(others, 20) <= 6
    assert min(len(each.took_s) for each in others) >= 10


@pytest.mark.parametrize("slowness", [1, 4])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_writer_that_comes_to_a_busy_one_gets_its_share(slowness: float, seed: int) -> None:
    racers = [Racer(0), Racer(1, begins_s=5, slowness=slowness)]
    race(racers, seed, until_s=15)
    assert longest_wait_s(racers, 15) <= 2.4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_writers_that_come_and_go_keep_no_other_waiting(seed: int) -> None:
    racers = [Racer(0)]
    racers += [Racer(number, begins_s=1.5 * number, ends_s=1.5 * number + 4) for number in range(1, 8)]
    place = race(racers, seed, until_s=18)
    assert longest_wait_s(racers, 18) <= 2.6
    assert requests_a_commit(racers) <= 2.5
    assert not [each for each in place.bucket.keys(METADATA_DIR) if "waiting" in each]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_writers_that_rest_between_commits_wait_little_beside_each_other(seed: int) -> None:
    racers = [Racer(number, rests_s=0.5) for number in range(3)]
    race(racers, seed, until_s=20)
    assert longest_wait_s(racers, 20) <= 0.6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_claim_of_a_killed_writer_holds_the_others_up_once(seed: int) -> None:
    racers = [Racer(number) for number in range(3)]
    place = race(racers, seed, until_s=10, claim=CLAIM)
    assert not [each for each in place.bucket.keys(METADATA_DIR) if "waiting" in each]
    assert longest_wait_s(racers, 10) <= 2.0
    assert len(commit_names(place)) >= 10 * 18


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("one_after_the_other")
def test_writer_of_an_earlier_version_neither_stops_the_others_nor_is_stopped(seed: int) -> None:
    racers = [Racer(0), Racer(1), Racer(2, obeys=False)]
    race(racers, seed, until_s=20)
    assert all(len(each.took_s) >= 20 for each in racers)
    assert longest_wait_s(racers[:2], 20) <= 2
