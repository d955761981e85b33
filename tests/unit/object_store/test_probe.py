"""Stores that a probe accepts, and those that let two writers win."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fakes.faulty_store import Fault, FaultyStore, MemoryBucket

from pyspark_kafkalog.object_store.retries import PROBE_FOLDER, Waiting, check_store
from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectStoreError,
    StoreAccessError,
    StoreUnsuitableError,
)
from pyspark_kafkalog.units import HOUR_MS


class ChecksThenWrites(FaultyStore):
    """A store whose creates all look before any of them writes."""

    def __init__(self) -> None:
        super().__init__()
        self._looked = threading.Barrier(8)

    def create(self, key: str, body: Any) -> None:
        exists = key in self.bucket
        self._looked.wait()
        if exists:
            raise ObjectExistsError(key)
        self.put(key, body)


class KeepsTheLast(FaultyStore):
    """A store that tells one writer that it has won, and keeps the object of another."""

    def create(self, key: str, body: Any) -> None:
        try:
            super().create(key, body)
        except ObjectExistsError:
            self.put(key, b"of another")
            raise


def test_a_store_with_atomic_creates_is_accepted_and_left_clean() -> None:
    store = FaultyStore()
    check_store(store, "id")
    assert store.bucket.keys() == []
    assert store.requests["create"] == 24


def test_a_store_that_checks_and_then_writes_is_refused() -> None:
    store = ChecksThenWrites()
    with pytest.raises(StoreUnsuitableError, match=r"memory://bucket: expected one of 8 .* to win, found 8"):
        check_store(store, "id")
    assert store.bucket.keys() == []


def test_a_store_that_keeps_another_writers_object_is_refused() -> None:
    with pytest.raises(StoreUnsuitableError, match="found another that no create was said to have made"):
        check_store(KeepsTheLast(), "id")


def test_a_race_in_which_all_requests_conflict_is_repeated() -> None:
    store = FaultyStore(faults=lambda call: Fault.CONFLICT if call.number < 8 else None)
    check_store(store, "id")
    assert store.requests["create"] == 32


def test_a_store_in_which_nobody_ever_wins_is_refused() -> None:
    store = FaultyStore(faults=lambda call: Fault.CONFLICT if call.kind == "create" else None)
    with pytest.raises(StoreUnsuitableError, match="none did in 8 of 8 races"):
        check_store(store, "id")


def waiting(bucket: MemoryBucket) -> Waiting:
    return Waiting(bucket.clock.monotonic, bucket.clock.sleep, lambda: 0.5)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.FAILS_BEFORE, Fault.FAILS_AFTER, Fault.TIMEOUT])
@pytest.mark.parametrize("number", [0, 9, 23])
def test_a_race_with_a_lost_answer_is_repeated(fault: Fault, number: int) -> None:
    bucket = MemoryBucket()
    check_store(FaultyStore(bucket, faults={number: fault}), "id", waiting=waiting(bucket))
    assert bucket.keys() == []


@pytest.mark.parametrize(
    ("fault", "error", "seconds"), [(Fault.UNAVAILABLE, ObjectStoreError, 120), (Fault.DENIED, StoreAccessError, 0)]
)
def test_a_store_that_fails_is_not_called_unsuitable(fault: Fault, error: type[Exception], seconds: int) -> None:
    bucket = MemoryBucket()
    store = FaultyStore(bucket, faults=lambda call: fault if call.number % 8 == 3 and call.kind == "create" else None)
    began = bucket.clock.monotonic()
    with pytest.raises(error) as raised:
        check_store(store, "id", waiting=waiting(bucket))
    assert raised.type is error
    assert seconds <= bucket.clock.monotonic() - began < seconds + 6
    assert bucket.keys() == []


def test_what_earlier_probes_left_is_removed_after_an_hour() -> None:
    bucket = MemoryBucket()
    bucket.write(f"{PROBE_FOLDER}/killed-0", b"old")
    bucket.write(f"{PROBE_FOLDER}/a folder/of others", b"old")
    bucket.clock.advance(HOUR_MS)
    bucket.write(f"{PROBE_FOLDER}/running-0", b"new")
    bucket.clock.advance(1000)
    check_store(FaultyStore(bucket), "id")
    assert bucket.keys() == [f"{PROBE_FOLDER}/a folder/of others", f"{PROBE_FOLDER}/running-0"]
