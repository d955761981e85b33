"""Stores that a probe accepts, and those that let two writers win."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from faulty_store import Fault, FaultyStore, MemoryBucket

from pyspark_kafkalog.object_store.probe import PROBE_FOLDER, check_store
from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectStoreError,
    StoreAccessError,
    StoreUnsuitableError,
)


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


@pytest.mark.parametrize(("fault", "error"), [(Fault.UNAVAILABLE, ObjectStoreError), (Fault.DENIED, StoreAccessError)])
def test_a_store_that_fails_is_not_called_unsuitable(fault: Fault, error: type[Exception]) -> None:
    bucket = MemoryBucket()
    with pytest.raises(error) as raised:
        check_store(FaultyStore(bucket, faults={3: fault}), "id")
    assert raised.type is error
    assert bucket.keys(PROBE_FOLDER) == bucket.keys()
