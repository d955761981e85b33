"""The rule for put-if-absent, case by case; all faults together: tests/property/objects/test_create_once_model.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket

from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.object_store.retries import Created, Taken, Waiting, create_once
from pyspark_kafkalog.object_store.store import StoreAccessError, StoreRefusedError
from pyspark_kafkalog.record.header import Buffer


def waiting(bucket: MemoryBucket, patience_seconds: float = 120) -> Waiting:
    return Waiting(bucket.clock.monotonic, bucket.clock.sleep, lambda: 0.5, patience_seconds)


def create(store: FaultyStore, body: bytes = b"ours") -> Created | Taken:
    return create_once(
        store, "key", body, is_own=lambda found: found == body, max_bytes=100, waiting=waiting(store.bucket)
    )


def faults(*planned: Fault | None) -> dict[int, Fault]:
    return {number: fault for number, fault in enumerate(planned) if fault is not None}


def test_a_free_name_takes_one_request() -> None:
    store = FaultyStore()
    assert create(store) == Created()
    assert store.requests == {"create": 1}


def test_a_taken_name_takes_two_requests_and_gives_the_winners_body() -> None:
    store = FaultyStore()
    store.bucket.write("key", b"theirs")
    assert create(store) == Taken(b"theirs")
    assert store.requests == {"create": 1, "get": 1}


@pytest.mark.parametrize(
    ("planned", "requests"),
    [
        ((Fault.FAILS_AFTER,), {"create": 1, "get": 1}),
        ((Fault.FAILS_BEFORE,), {"create": 2, "get": 1}),
        ((Fault.CONFLICT,), {"create": 2, "get": 1}),
        ((Fault.UNAVAILABLE, None, Fault.TIMEOUT), {"create": 3, "get": 2}),
        ((Fault.FAILS_AFTER, Fault.UNAVAILABLE), {"create": 2, "get": 2}),
        ((Fault.LANDS_LATE,), {"create": 2, "get": 2}),
        ((Fault.FAILS_BEFORE, None, Fault.DENIED), {"create": 3, "get": 2}),
    ],
)
def test_a_lost_answer_is_followed_by_a_look_and_the_same_request(
    planned: Sequence[Fault | None], requests: dict[str, int]
) -> None:
    store = FaultyStore(faults=faults(*planned))
    assert create(store) == Created()
    assert store.requests == requests
    store.bucket.land()
    assert store.bucket.body("key") == b"ours"


def test_a_request_that_lands_after_another_writers_has_no_effect() -> None:
    bucket = MemoryBucket(late_calls=None)
    other = FaultyStore(bucket)

    def overtake(call: Call) -> None:
        if call.number == 2:
            other.create("key", b"theirs")

    store = FaultyStore(bucket, faults=faults(Fault.LANDS_LATE), before=overtake)
    assert create(store) == Taken(b"theirs")
    bucket.land()
    assert bucket.body("key") == b"theirs"


def test_a_request_that_lands_between_look_and_repetition_is_recognised() -> None:
    bucket = MemoryBucket(late_calls=None)

    def land(call: Call) -> None:
        if call.number == 2:
            bucket.land()

    assert create(FaultyStore(bucket, faults=faults(Fault.LANDS_LATE), before=land)) == Created()
    assert bucket.body("key") == b"ours"


def test_a_store_that_goes_on_refusing_is_believed() -> None:
    store = FaultyStore(faults=lambda call: Fault.DENIED)
    with pytest.raises(StoreAccessError):
        create(store)
    assert store.requests == {"create": 3}


def test_a_refusal_that_passes_is_forgotten() -> None:
    store = FaultyStore(faults=faults(Fault.DENIED, Fault.DENIED))
    assert create(store) == Created()
    assert store.requests == {"create": 3}


def test_a_refusal_after_a_lost_answer_is_no_answer_to_the_first() -> None:
    bucket = MemoryBucket(late_calls=None)
    store = FaultyStore(bucket, faults=lambda call: Fault.LANDS_LATE if call.number == 0 else Fault.DENIED)
    with pytest.raises(CommitStateUnknownError, match=r"bucket/key: .*403 not permitted"):
        create(store)
    bucket.land()
    assert bucket.body("key") == b"ours"


class Refuses(FaultyStore):
    """A store whose answer to the first create is lost, and that refuses all others."""

    def __init__(self, refusal: StoreRefusedError) -> None:
        super().__init__(faults=lambda call: Fault.UNAVAILABLE if call.number == 0 else None)
        self._refusal = refusal
        self._is_first = True

    def create(self, key: str, body: Buffer) -> None:
        if not self._is_first:
            raise self._refusal
        self._is_first = False
        super().create(key, body)


@pytest.mark.parametrize(
    ("refusal", "requests"), [(StoreAccessError("403 denied"), 4), (StoreRefusedError("400 key disabled"), 2)]
)
def test_a_refusal_for_good_after_a_lost_answer_ends_at_once(refusal: StoreRefusedError, requests: int) -> None:
    store = Refuses(refusal)
    began = store.bucket.clock.monotonic()
    with pytest.raises(
        CommitStateUnknownError, match=rf"after {requests} requests; it may exist, or may appear later.*{refusal}"
    ):
        create(store)
    assert store.bucket.clock.monotonic() - began < 2


def test_no_answer_within_the_patience_is_an_unknown_state() -> None:
    store = FaultyStore(faults=lambda call: Fault.UNAVAILABLE)
    began = store.bucket.clock.monotonic()
    with pytest.raises(CommitStateUnknownError, match=r"may exist, or may appear later.* 503 slow down"):
        create(store)
    assert 120 <= store.bucket.clock.monotonic() - began < 126
    assert 20 < store.requests["create"] < 60


def test_a_winner_that_is_too_large_to_read_leaves_the_state_unknown() -> None:
    store = FaultyStore()
    store.bucket.write("key", bytes(101))
    with pytest.raises(CommitStateUnknownError, match="expected at most 100 bytes, found 101"):
        create(store)
