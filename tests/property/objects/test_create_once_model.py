"""The rule for put-if-absent against a store that does all that stores do, by the model that only one can win.

Several writers create one name. Each of their calls meets a fault or none, and before any call of a writer another one
may run to its end. Whatever happens, also what lands when all have given up: a writer that was told "created" is the
one whose object is there, one that was told "taken" was told by whom, and one that was refused left nothing.
"""

from __future__ import annotations

import threading

from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket
from fakes.stopping_filesystem import Killed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.object_store.retries import Created, Taken, Waiting, create_once
from pyspark_kafkalog.object_store.store import StoreAccessError

Outcome = Created | Taken | type[BaseException]
WRITERS = 3
CALLS = 12


def write(store: FaultyStore, body: bytes) -> Outcome:
    clock = store.bucket.clock
    waiting = Waiting(clock.monotonic, clock.sleep, lambda: 0.5, 20)
    try:
        return create_once(store, "key", body, is_own=lambda found: found == body, max_bytes=100, waiting=waiting)
    except (CommitStateUnknownError, StoreAccessError, Killed) as error:
        return type(error)


def check(bucket: MemoryBucket, outcomes: dict[bytes, Outcome]) -> None:
    bucket.land()
    winner = bucket.body("key") if "key" in bucket else None
    assert winner is None or winner in outcomes
    for body, outcome in outcomes.items():
        if outcome == Created():
            assert winner == body
        elif isinstance(outcome, Taken):
            assert winner == outcome.body != body
        elif outcome is StoreAccessError:
            assert winner != body


PLANS = st.lists(
    st.lists(st.one_of(st.none(), st.sampled_from(Fault)), min_size=CALLS, max_size=CALLS),
    min_size=WRITERS,
    max_size=WRITERS,
)
ENTRANCES = st.lists(st.integers(0, CALLS), min_size=WRITERS - 1, max_size=WRITERS - 1)


@settings(max_examples=examples(3000), deadline=None)
@given(PLANS, ENTRANCES, st.one_of(st.none(), st.integers(1, 6)))
@example([[Fault.LANDS_LATE] * CALLS] * WRITERS, [1, 1], None)
@example([[Fault.LANDS_LATE, None, Fault.DENIED] + [None] * 9] * WRITERS, [2, 2], 3)
def test_one_writer_wins_and_each_knows_whether_it_did(
    plans: list[list[Fault | None]], entrances: list[int], late_calls: int | None
) -> None:
    bucket = MemoryBucket(late_calls=late_calls)
    outcomes: dict[bytes, Outcome] = {}

    def run(writer: int) -> None:
        def enter(call: Call) -> None:
            following = writer + 1
            if following < WRITERS and call.number == entrances[writer] and body_of(following) not in outcomes:
                run(following)

        def fault(call: Call) -> Fault | None:
            return plans[writer][call.number % CALLS]

        outcomes[body_of(writer)] = write(FaultyStore(bucket, faults=fault, before=enter), body_of(writer))

    run(0)
    check(bucket, outcomes)


def body_of(writer: int) -> bytes:
    return b"writer %d" % writer


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from(Fault)), min_size=8 * CALLS, max_size=8 * CALLS))
def test_writers_in_threads_agree_on_the_winner(plan: list[Fault | None]) -> None:
    bucket = MemoryBucket(late_calls=3)
    outcomes: dict[bytes, Outcome] = {}
    start = threading.Barrier(8)

    def run(writer: int) -> None:
        store = FaultyStore(bucket, faults=lambda call: plan[writer * CALLS + call.number % CALLS])
        start.wait()
        outcomes[body_of(writer)] = write(store, body_of(writer))

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    check(bucket, outcomes)
