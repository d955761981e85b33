"""What every store must do for a log directory, against real servers: S3Proxy, and with make test-stores also others.

A bucket of one's own on a cloud can be tried in the same way, see `OWN_URL`; its credentials come from the environment.
"""

from __future__ import annotations

import os
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.store_servers import TEST_STORES, AzuriteServer, MinioServer

from pyspark_kafkalog.object_store.client import PART_BYTES, WHOLE_BYTES, open_store
from pyspark_kafkalog.object_store.location import ObjectLocation, parse_location
from pyspark_kafkalog.object_store.retries import Created, Taken, check_store, create_once
from pyspark_kafkalog.object_store.settings import store_settings
from pyspark_kafkalog.object_store.store import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreAccessError,
    StoreNotFoundError,
)

#: A place to which the tests may write as well: s3://bucket/scratch.
OWN_URL: Final = os.environ.get("KAFKALOG_TEST_STORE_URL", "")

Place = tuple[ObjectLocation, dict[str, str]]


@pytest.fixture(scope="module", params=[*TEST_STORES, *(["own"] if OWN_URL else [])])
def new_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Place]]:
    if request.param == "own":
        own = parse_location(OWN_URL)
        assert not isinstance(own, Path)
        yield lambda: (own.below(f"test-{uuid.uuid4()}"), {})
        return
    if request.param == "s3proxy":
        s3_proxy: S3Proxy = request.getfixturevalue("s3_proxy")
        yield lambda: (s3_proxy.new_location().below("a log/dir"), s3_proxy.options())
        return
    server_class = {"minio": MinioServer, "azurite": AzuriteServer}[request.param]
    with server_class(tmp_path_factory.mktemp(request.param)) as server:
        yield lambda: (server.new_location().below("a log/dir"), server.options())


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


@pytest.fixture
def store(place: Place) -> Iterator[ObjectStore]:
    location, options = place
    store = open_store(location, store_settings(location, options))
    yield store
    store.delete([each.key for each in store.list_objects("")])


def test_objects_are_written_read_copied_and_deleted(store: ObjectStore) -> None:
    store.create("a/1", b"one")
    with pytest.raises(ObjectExistsError):
        store.create("a/1", b"other")
    store.put("a/2", b"two")
    store.put("a/2", b"second")
    store.put("empty", b"")
    assert store.get("a/1", max_bytes=3) == b"one"
    assert store.get("a/2", max_bytes=6) == b"second"
    assert store.get("empty", max_bytes=0) == b""
    assert store.head("a/2").size_bytes == 6
    store.copy("a/2", "b")
    assert store.get("b", max_bytes=6) == b"second"
    store.delete(["a/1", "missing 1", "b", "missing 2"])
    assert [each.key for each in store.list_objects("")] == ["a/2", "empty"]
    store.create("a/1", b"again")
    assert store.get("a/1", max_bytes=9) == b"again"


def test_missing_objects_are_found_missing(store: ObjectStore) -> None:
    for request in (
        lambda: store.get("no", max_bytes=9),
        lambda: store.head("no"),
        lambda: store.get_range("no", ByteRange(0, 1)),
        lambda: store.copy("no", "b"),
    ):
        with pytest.raises(ObjectNotFoundError):
            request()
    store.delete(["no"])


def test_ranges_end_with_the_object(store: ObjectStore) -> None:
    body = os.urandom(3 << 20)
    store.put("key", body)
    asked = [ByteRange(5, 100), ByteRange((3 << 20) - 3, 10), ByteRange(9 << 20, 1), ByteRange(1 << 20, 1)]
    for each in asked:
        assert bytes(store.get_range("key", each)) == body[each.start : each.end]


def test_large_objects_go_in_parts(store: ObjectStore) -> None:
    body = os.urandom(WHOLE_BYTES + 1)
    store.put("parts", body)
    assert store.get("parts", max_bytes=len(body)) == body
    store.create("created", body[: PART_BYTES + 1])
    assert store.head("created").size_bytes == PART_BYTES + 1


def test_listings_are_in_order_and_begin_after_a_key(store: ObjectStore) -> None:
    names = [*(f"a/{number:03}" for number in range(300)), "a-b", "ab/c", "b/ü", "b/z +%"]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: store.put(name, b"x"), names))
    assert [each.key for each in store.list_objects("")] == sorted(names)
    assert [each.key for each in store.list_objects("a")] == names[:300]
    assert [each.key for each in store.list_objects("a", after="a/298")] == ["a/299"]
    assert [each.key for each in store.list_objects("b")] == ["b/z +%", "b/ü"]


def test_of_eight_racing_writers_one_wins(store: ObjectStore) -> None:
    for race in range(20):
        start = threading.Barrier(8)

        def write(writer: int, start: threading.Barrier = start, key: str = f"race/{race}") -> Created | Taken:
            start.wait()
            body = b"writer %d" % writer
            return create_once(store, key, body, is_own=lambda found: found == body, max_bytes=100)

        with ThreadPoolExecutor(8) as threads:
            outcomes = list(threads.map(write, range(8)))
        winner = outcomes.index(Created())
        assert [each for each in outcomes if each != Created()] == [Taken(b"writer %d" % winner)] * 7
    check_store(store, uuid.uuid4().hex)


def test_a_signed_url_gives_the_object_to_everyone(new_place: Callable[[], Place]) -> None:
    location, options = new_place()
    plain = replace(location, prefix=location.prefix.replace(" ", "-"))
    store = open_store(plain, store_settings(plain, options))
    store.put("a-key", b"body")
    with urllib.request.urlopen(store.sign("a-key", expires_in_seconds=60)) as answer:
        assert answer.read() == b"body"
    if location.scheme == "az":
        with pytest.raises(ObjectStoreError, match="signs wrong URLs for Azure"):
            store.sign("a key", expires_in_seconds=60)
    store.delete(["a-key"])


def test_wrong_secrets_are_refused(place: Place) -> None:
    location, options = place
    if not options:
        pytest.skip("the credentials are those of the environment")
    store = open_store(location, store_settings(location, options | {"storeSecretKey": "d3Jvbmc="}))
    with pytest.raises(StoreAccessError):
        store.create("key", b"")
    with pytest.raises(StoreAccessError):
        store.get("key", max_bytes=9)


def test_a_missing_bucket_is_found_missing(place: Place) -> None:
    location, options = place
    missing = ObjectLocation(location.scheme, f"missing-{uuid.uuid4()}", account=location.account)
    store = open_store(missing, store_settings(missing, options))
    for request in (lambda: store.create("key", b""), lambda: list(store.list_objects(""))):
        with pytest.raises(StoreNotFoundError):
            request()
