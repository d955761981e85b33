"""The store that other tests rely on: does it fail as it says, and is it a store otherwise?"""

from __future__ import annotations

import pytest
from fakes.faulty_store import TIMEOUT_MS, Call, Fault, FaultyStore, MemoryBucket
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.object_store.store import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreAccessError,
)


def test_without_faults_it_is_a_store() -> None:
    store: ObjectStore = FaultyStore(page_size=2)
    store.create("a/1", b"one")
    store.put("a/2", memoryview(b"two"))
    store.put("a/2", bytearray(b"second"))
    store.copy("a/2", "ab")
    with pytest.raises(ObjectExistsError):
        store.create("a/1", b"other")
    assert store.get("a/1", max_bytes=3) == b"one"
    with pytest.raises(ObjectStoreError, match="at most 2 bytes, found 3"):
        store.get("a/1", max_bytes=2)
    assert [bytes(store.get_range("a/2", each)) for each in (ByteRange(0, 2), ByteRange(4, 9))] == [b"se", b"nd"]
    assert store.head("ab").size_bytes == 6
    assert store.head("ab").last_modified_ms > store.head("a/1").last_modified_ms
    store.put("a/3", b"")
    assert [each.key for each in store.list_objects("")] == ["a/1", "a/2", "a/3", "ab"]
    assert [each.key for each in store.list_objects("a")] == ["a/1", "a/2", "a/3"]
    assert [each.key for each in store.list_objects("a", after="a/1")] == ["a/2", "a/3"]
    store.delete(["a/1", "a/2", "missing"])
    assert [each.key for each in store.list_objects("")] == ["a/3", "ab"]
    for request in (
        lambda: store.get("a/1", max_bytes=9),
        lambda: store.head("a/1"),
        lambda: store.get_range("a/1", ByteRange(0, 1)),
        lambda: store.copy("a/1", "b"),
    ):
        with pytest.raises(ObjectNotFoundError):
            request()


def test_requests_are_counted_as_a_server_would() -> None:
    store = FaultyStore(page_size=2)
    for name in "abc":
        store.put(name, b"12345")
    list(store.list_objects(""))
    store.get_range("a", ByteRange(0, 1))
    store.delete([f"k{number}" for number in range(1001)])
    assert store.requests == {"put": 3, "list": 2, "get_range": 1, "delete": 2}
    assert [call.kind for call in store.calls] == ["put"] * 3 + ["list"] * 2 + ["get_range"] + ["delete"] * 2


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (Fault.FAILS_BEFORE, ObjectStoreError, False),
        (Fault.FAILS_AFTER, ObjectStoreError, True),
        (Fault.CONFLICT, ObjectExistsError, False),
        (Fault.UNAVAILABLE, ObjectStoreError, False),
        (Fault.DENIED, StoreAccessError, False),
        (Fault.TIMEOUT, ObjectStoreError, False),
        (Fault.CRASH_BEFORE, Killed, False),
        (Fault.CRASH_AFTER, Killed, True),
    ],
)
def test_a_create_meets_its_fault(fault: Fault, error: type[BaseException], applied: bool) -> None:
    bucket = MemoryBucket()
    store = FaultyStore(bucket, faults={0: fault})
    with pytest.raises(error) as raised:
        store.create("key", b"body")
    assert raised.type is error
    assert ("key" in bucket) is applied
    assert bucket.land() == 0


def test_a_lost_answer_hides_that_the_object_existed() -> None:
    bucket = MemoryBucket()
    bucket.write("key", b"theirs")
    with pytest.raises(ObjectStoreError) as raised:
        FaultyStore(bucket, faults={0: Fault.FAILS_AFTER}).create("key", b"ours")
    assert raised.type is ObjectStoreError
    assert bucket.body("key") == b"theirs"


def test_a_late_request_lands_after_later_calls() -> None:
    bucket = MemoryBucket(late_calls=2)
    store = FaultyStore(bucket, faults={0: Fault.LANDS_LATE})
    began_ms = bucket.clock.now_ms()
    with pytest.raises(ObjectStoreError, match="no answer"):
        store.create("key", b"body")
    assert bucket.clock.now_ms() >= began_ms + TIMEOUT_MS
    with pytest.raises(ObjectNotFoundError):
        store.get("key", max_bytes=9)
    assert store.get("key", max_bytes=9) == b"body"


def test_a_late_create_does_not_replace_what_came_before_it() -> None:
    bucket = MemoryBucket(late_calls=None)
    slow = FaultyStore(bucket, faults={0: Fault.LANDS_LATE})
    with pytest.raises(ObjectStoreError):
        slow.create("key", b"late")
    FaultyStore(bucket).create("key", b"first")
    assert bucket.land() == 1
    assert bucket.body("key") == b"first"


def test_a_killed_client_can_do_nothing_more_but_its_request_may_land() -> None:
    bucket = MemoryBucket(late_calls=None)
    store = FaultyStore(bucket, faults={0: Fault.CRASH_IN_FLIGHT})
    with pytest.raises(Killed):
        store.put("key", b"body")
    with pytest.raises(Killed):
        store.head("key")
    assert "key" not in bucket
    bucket.land()
    assert bucket.body("key") == b"body"
    assert FaultyStore(bucket).get("key", max_bytes=4) == b"body"


def test_a_hook_runs_between_the_calls_of_a_writer() -> None:
    bucket = MemoryBucket()
    other = FaultyStore(bucket)

    def overtake(call: Call) -> None:
        if call.kind == "create":
            other.create(*call.keys, b"theirs")

    with pytest.raises(ObjectExistsError):
        FaultyStore(bucket, before=overtake).create("key", b"ours")
    assert bucket.body("key") == b"theirs"
