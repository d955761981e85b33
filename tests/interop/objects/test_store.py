"""The client of object stores against S3Proxy: what a real server answers to what we send."""

from __future__ import annotations

import os
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fakes.http_relay import HttpRelay, Request
from kafka_processes.s3_proxy import S3Proxy

from pyspark_kafkalog.object_store.client import PART_BYTES, WHOLE_BYTES, open_store
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.retries import PROBE_FOLDER, Created, check_store, create_once
from pyspark_kafkalog.object_store.settings import StoreSettings, store_settings
from pyspark_kafkalog.object_store.store import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreAccessError,
    StoreNotFoundError,
)


@pytest.fixture(scope="module")
def relay(s3_proxy: S3Proxy) -> Iterator[HttpRelay]:
    with HttpRelay(s3_proxy.endpoint) as relay:
        yield relay


@pytest.fixture
def location(s3_proxy: S3Proxy) -> ObjectLocation:
    return s3_proxy.new_location().below("a log/dir")


@pytest.fixture
def settings(s3_proxy: S3Proxy, relay: HttpRelay, location: ObjectLocation) -> StoreSettings:
    return store_settings(location, s3_proxy.options(relay.endpoint))


@pytest.fixture
def store(location: ObjectLocation, settings: StoreSettings, relay: HttpRelay) -> ObjectStore:
    relay.reset()
    return open_store(location, settings)


def test_each_request_does_what_the_protocol_says(store: ObjectStore, relay: HttpRelay) -> None:
    store.create("a/1", b"one")
    with pytest.raises(ObjectExistsError, match=r"a log/dir/a/1: create found an object .*412"):
        store.create("a/1", b"other")
    store.put("a/2", memoryview(b"two"))
    store.put("a/2", np.frombuffer(b"second", np.uint8))
    assert store.get("a/1", max_bytes=3) == b"one"
    assert store.get("a/2", max_bytes=6) == b"second"
    store.put("empty", b"")
    assert store.get("empty", max_bytes=0) == b""
    metadata = store.head("a/2")
    assert (metadata.key, metadata.size_bytes) == ("a/2", 6)
    assert metadata.last_modified_ms > 1_700_000_000_000
    store.copy("a/2", "b")
    assert store.get("b", max_bytes=6) == b"second"
    assert relay.requests == {"PUT": 6, "GET": 4, "HEAD": 1}
    with pytest.raises(ObjectStoreError, match="expected at most 5 bytes, found 6"):
        store.get("a/2", max_bytes=5)


def test_missing_objects_are_named(store: ObjectStore) -> None:
    for request in (
        lambda: store.get("no", max_bytes=9),
        lambda: store.head("no"),
        lambda: store.get_range("no", ByteRange(0, 1)),
        lambda: store.copy("no", "b"),
    ):
        with pytest.raises(ObjectNotFoundError, match=f"{store.url}/no: there is no such object"):
            request()


def test_ranges_are_clamped_to_the_object(store: ObjectStore, relay: HttpRelay) -> None:
    body = np.random.default_rng(0).integers(0, 256, 5 << 20, dtype=np.uint8).tobytes()
    store.put("key", body)
    relay.reset()
    for asked in (ByteRange(4 << 20, 10), ByteRange(5, 1 << 20), ByteRange(2000, 1)):
        assert bytes(store.get_range("key", asked)) == body[asked.start : asked.end]
    assert relay.requests == {"GET": 3}
    for beyond in (ByteRange(len(body) - 3, 10), ByteRange(len(body) + 50, 10), ByteRange(5, 9 << 20)):
        assert bytes(store.get_range("key", beyond)) == body[beyond.start : beyond.end]


def test_listings_are_in_order_below_whole_folders_and_after_a_key(store: ObjectStore) -> None:
    names = [*(f"a/{number:04}" for number in range(1100)), "a-b", "ab/c", "b"]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: store.put(name, b"x"), names))
    assert [each.key for each in store.list_objects("")] == sorted(names)
    assert [each.key for each in store.list_objects("a")] == names[:1100]
    assert [each.key for each in store.list_objects("a", after="a/1096")] == ["a/1097", "a/1098", "a/1099"]
    assert [each.key for each in store.list_objects("", after="a/1098")] == ["a/1099", "ab/c", "b"]
    assert list(store.list_objects("none")) == []


def test_many_objects_are_deleted_at_once(store: ObjectStore, relay: HttpRelay) -> None:
    for number in range(20):
        store.put(f"key {number}", b"")
    relay.reset()
    store.delete([*(f"key {number}" for number in range(20)), *(f"missing {number}" for number in range(1000))])
    assert relay.requests == {"POST?delete": 2}
    assert list(store.list_objects("")) == []
    store.delete([])


def test_only_large_objects_go_in_parts(store: ObjectStore, relay: HttpRelay) -> None:
    body = np.random.default_rng(0).integers(0, 256, WHOLE_BYTES + 1, dtype=np.uint8)
    store.put("whole", body[:WHOLE_BYTES])
    store.create("created", body[: PART_BYTES + 1])
    assert relay.requests == {"PUT": 2}
    relay.reset()
    store.put("parts", body)
    assert relay.requests == {"POST?uploads": 1, "PUT?uploadId": WHOLE_BYTES // PART_BYTES + 1, "POST?uploadId": 1}
    assert store.get("parts", max_bytes=len(body)) == body.tobytes()
    assert store.head("created").size_bytes == PART_BYTES + 1


def test_a_signed_url_gives_the_object_to_everyone(store: ObjectStore) -> None:
    store.put("key", b"body")
    url = store.sign("key", expires_in_seconds=60)
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"body"


def test_a_created_object_is_recognised_when_the_answer_is_lost(s3_proxy: S3Proxy, location: ObjectLocation) -> None:
    lost = []

    def lose(request: Request) -> object:
        if request.method == "PUT" and not lost:
            lost.append(request)
            return HttpRelay.HANG_UP
        return None

    with HttpRelay(s3_proxy.endpoint, answer=lose) as relay:
        store = open_store(location, store_settings(location, s3_proxy.options(relay.endpoint)))
        assert create_once(store, "key", b"ours", is_own=lambda found: found == b"ours", max_bytes=9) == Created()
    assert relay.requests == {"PUT": 1, "GET": 1}


def test_the_probe_accepts_the_server_and_leaves_nothing(store: ObjectStore) -> None:
    check_store(store, "id")
    assert list(store.list_objects(PROBE_FOLDER)) == []


def test_wrong_credentials_are_refused_without_showing_them(s3_proxy: S3Proxy, location: ObjectLocation) -> None:
    for wrong in ({"storeAccessKey": "wrong"}, {"storeSecretKey": "hidden"}):
        store = open_store(location, store_settings(location, s3_proxy.options() | wrong))
        for request in (lambda: store.get("key", max_bytes=9), lambda: store.create("key", b"")):  # noqa: B023
            with pytest.raises(StoreAccessError, match="check key, secret and session token") as refused:
                request()
            shown = "".join(traceback.format_exception(refused.value))
            assert not {s3_proxy.access_key, s3_proxy.secret_key, "hidden"} & set(shown.replace('"', " ").split())


def test_a_missing_bucket_is_named(s3_proxy: S3Proxy) -> None:
    location = ObjectLocation("s3", "no-such-bucket")
    store = open_store(location, store_settings(location, s3_proxy.options()))
    requests: tuple[Callable[[], object], ...] = (
        lambda: store.get("key", max_bytes=9),
        lambda: store.put("key", b""),
        lambda: store.create("key", b""),
        lambda: list(store.list_objects("")),
        lambda: check_store(store, "id"),
    )
    for request in requests:
        with pytest.raises(StoreNotFoundError, match=r"s3://no-such-bucket.*there is no such bucket"):
            request()


def test_keys_with_odd_characters_come_back(store: ObjectStore) -> None:
    names = ["a b+c&d=e?f#g%h", "ü/ß", "x:y;z,(1)[2]{3}|4~5*'\"", "100%25"]
    for name in names:
        store.put(name, name.encode())
    assert [each.key for each in store.list_objects("")] == sorted(names)
    for name in names:
        assert store.get(name, max_bytes=100) == name.encode()
    store.delete(names)
    assert list(store.list_objects("")) == []


def test_a_store_says_so_in_a_process_forked_after_a_request(store: ObjectStore) -> None:
    store.put("key", b"")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.head("key")
            os.write(write, b"no error")
        except BaseException as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert "forked from process" in answer.read()
    os.waitpid(child, 0)
