"""Damaged objects of a root in a store, and a store that lies: the right rows, or an error that names the object.

The root has all kinds of objects: ids, marker, start, commits that carry others, a snapshot and its pointer, data
inside commits, data objects, and merged segments with indexes and manifest.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from builders.root_places import client_address, memory_root, store_of
from fakes.faulty_store import FaultyStore, MemoryBucket, StoredObject
from tiers import TIER

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.metadata.objects.backend import POINTER_KEY
from pyspark_kafkalog.metadata.objects.log import parse_commit_key
from pyspark_kafkalog.object_store.store import ByteRange, ObjectMetadata
from pyspark_kafkalog.root import object_log as object_extents
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered import objects as remote_objects

ROUNDS = {"check": 40, "test": 150, "full": 5000}[TIER]
#: One read of the root takes some milliseconds.
CALLS_MAX = 200


@functools.cache
def healthy() -> tuple[str, dict[str, StoredObject]]:
    """The root's URL, and its objects."""
    url = memory_root()
    log_dir = LogDir.create(url)
    root = log_dir.root
    assert isinstance(root, ObjectRoot)
    log_dir.create_topic("t", partitions=2)
    for number in range(8):
        log_dir.append("t", values(number, 20, 10), partition=number % 2)
    for number in (8, 9):
        log_dir.append("t", values(number, 300, 1000), partition=0)
    root.store._backend.snapshots.write(root.store.image)  # type: ignore[attr-defined]
    for number in range(2):
        log_dir.append("t", values(number, 5, 10), partition=0)
    of = TopicPartition("t", 0)
    assert merge_partition(root.store, root.objects, root.log_config("t"), of, clock=time_ms) is not None
    for number in range(10, 14):
        log_dir.append("t", values(number, 300, 1000), partition=number % 2)
        log_dir.append("t", values(number, 10, 10), partition=number % 2)
    objects = dict(store_of(url).bucket.objects)
    assert POINTER_KEY in objects
    assert {key.rpartition(".")[2] for key in objects} >= {"log", "batches", "indexes", "rsm-manifest", "checkpoint"}
    return url, objects


def values(number: int, count: int, size_bytes: int) -> pa.Table:
    return pa.table({"value": [f"{number}-{each}-".ljust(size_bytes, "x") for each in range(count)]})


def rows_through(store: FaultyStore) -> Any:
    """All rows, as a new process reads them."""
    forget_images()
    object_extents._caches.cache_clear()
    remote_objects._cache.cache_clear()
    log_dir = LogDir.open(client_address(healthy()[0], store))
    return [log_dir.read("t", partition=number).drop_columns("timestamp").to_pydict() for number in (0, 1)]


@functools.cache
def expected() -> Any:
    return rows_through(store_with(healthy()[1]))


def store_with(
    objects: dict[str, StoredObject], of: Callable[[MemoryBucket], FaultyStore] = FaultyStore
) -> FaultyStore:
    bucket = MemoryBucket()
    bucket.objects.update(objects)
    return of(bucket)


def check(store: FaultyStore, about: object) -> str:
    """How the root is read: "right", or the class of an error that says where."""
    try:
        outcome: Any = rows_through(store)
    except KafkalogError as error:
        outcome = error
    assert len(store.calls) < CALLS_MAX, about
    if not isinstance(outcome, KafkalogError):
        assert outcome == expected(), about
        return "right"
    text = str(outcome)
    assert store.url in text or "s3://in-memory" in text, (about, text)
    if isinstance(outcome, DiskFormatError):
        assert outcome.position >= 0, (about, text)
        assert outcome.expected, (about, text)
        assert outcome.found, (about, text)
    return type(outcome).__name__


def mutations(rng: random.Random, body: bytes, others: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    at = rng.randrange(len(body)) if body else 0
    yield "a flipped bit", body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :] if body else b"\0"
    yield "cut off", body[:at]
    yield "longer", body + rng.randbytes(rng.choice([1, 24, 100]))
    yield "zeros from there", body[:at] + bytes(len(body) - at)
    yield "garbage", rng.randbytes(rng.choice([0, 1, 61, 1000]))
    yield "a piece left out", body[:at] + body[at + rng.randrange(1, 200) :]
    yield "huge numbers", body[:at] + b"\x7f\xff\xff\xff\xff\xff\xff\xff" + body[at + 8 :]
    yield "another object", rng.choice(others)


@pytest.mark.slow
def test_damaged_object_gives_an_error_that_names_it_and_no_wrong_row() -> None:
    _, objects = healthy()
    rng = random.Random(20)
    keys = sorted(objects)
    kinds = {key.rpartition("/")[2].rpartition(".")[2]: key for key in keys}
    outcomes: dict[str, int] = {}
    for number in range(ROUNDS):
        key = rng.choice(keys) if number % 2 else kinds[rng.choice(sorted(kinds))]
        body = objects[key].body
        others = [each.body for other, each in objects.items() if other.partition("/")[0] != key.partition("/")[0]]
        how, damaged = rng.choice(list(mutations(rng, body, others)))
        outcome = check(store_with({**objects, key: StoredObject(damaged, 0)}), (key, how))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(outcomes)
    assert outcomes["CorruptRecordError"] > ROUNDS // 20
    assert outcomes["right"] > ROUNDS // 20


@pytest.mark.slow
def test_lost_object_gives_an_error_or_the_right_rows() -> None:
    _, objects = healthy()
    last = max(filter(None, map(parse_commit_key, objects)))
    outcomes = {}
    for key in objects:
        if parse_commit_key(key) != last:  # without its last commit the log is a shorter one
            outcomes[key] = check(store_with({each: found for each, found in objects.items() if each != key}), key)
    assert outcomes[POINTER_KEY] == "right"
    assert {outcome for key, outcome in outcomes.items() if key.endswith(".batches")} == {
        "right",  # merged
        "OffsetOutOfRangeError",
    }


class LyingStore(FaultyStore):
    """A store that answers `lie` of the requests with other bytes, sizes or names than it should."""

    def __init__(self, bucket: MemoryBucket, rng: random.Random, *, lie: str) -> None:
        super().__init__(bucket)
        self._rng = rng
        self._lie = lie

    def _lies(self, about: str) -> bool:
        return self._lie == about and self._rng.random() < 0.3

    def get(self, key: str, *, max_bytes: int, once: bool = False) -> bytes:
        body = super().get(key, max_bytes=max_bytes)
        return body[: self._rng.randrange(len(body) + 1)] if self._lies("whole objects are cut off") else body

    def get_range(self, key: str, wanted: ByteRange) -> Any:
        found = super().get_range(key, wanted)
        if self._lies("ranges are short"):
            return found[: self._rng.randrange(len(found) + 1)]
        if self._lies("ranges are elsewhere"):
            by = self._rng.choice([1, 61, 1000])
            return super().get_range(key, ByteRange(wanted.start + by, wanted.size_bytes))
        if self._lies("ranges are long"):
            return bytes(found) + b"\0" * self._rng.randrange(100)
        return found

    def head(self, key: str) -> ObjectMetadata:
        found = super().head(key)
        size_bytes = self._rng.choice([0, 1, found.size_bytes + 1, 1 << 62])
        return ObjectMetadata(key, size_bytes, 0) if self._lies("sizes are wrong") else found

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMetadata]:
        for each in super().list_objects(prefix, after=after):
            if self._lies("listings have strange names"):
                for name in (
                    "../../etc/passwd",
                    "a/../b",
                    f"{each.key}/..",
                    "/",
                    "\n",
                    f"{prefix}/99999999999999999999.log",
                ):
                    yield ObjectMetadata(name, 1, 0)
            if not self._lies("listings leave names out"):
                size_bytes = self._rng.randrange(1 << 40) if self._lies("listed sizes are wrong") else each.size_bytes
                yield ObjectMetadata(each.key, size_bytes, each.last_modified_ms)


LIES = (
    "whole objects are cut off",
    "ranges are short",
    "ranges are elsewhere",
    "ranges are long",
    "sizes are wrong",
    "listings have strange names",
    "listings leave names out",
    "listed sizes are wrong",
)


@pytest.mark.parametrize("lie", LIES)
def test_store_that_lies_is_not_believed(lie: str) -> None:
    _, objects = healthy()
    rng = random.Random(lie)
    outcomes = {
        check(store_with(objects, lambda bucket: LyingStore(bucket, rng, lie=lie)), lie)
        for _ in range(max(ROUNDS // 15, 5))
    }
    assert outcomes
