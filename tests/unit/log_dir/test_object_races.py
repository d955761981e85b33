"""Writers of one object root beside each other, over a store that fails: each record once, in order, also to readers.

Threads stand for processes: each has a client and a LogDir of its own. Which requests fail is drawn by a seed that the
report prints; how the threads take turns is not.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
from builders.root_places import client_address, forget, memory_root
from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket
from tiers import SEED

from pyspark_kafkalog.log_dir import LogDir

COMMITS = 15
FAULTS = (Fault.FAILS_AFTER, Fault.FAILS_BEFORE, Fault.CONFLICT, Fault.UNAVAILABLE)
#: One commit request in so many fails.
FAULT_EVERY = 6


class Client(FaultyStore):
    """Of its commits' creates some fail; `create_once` has to find out what became of them."""

    def __init__(self, bucket: MemoryBucket, seed: str) -> None:
        rng = random.Random(seed)

        def faults(call: Call) -> Fault | None:
            return rng.choice(FAULTS) if call.kind == "create" and rng.randrange(FAULT_EVERY) == 0 else None

        super().__init__(bucket, faults=faults)


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def url(bucket: MemoryBucket) -> Iterator[str]:
    url = memory_root(FaultyStore(bucket))
    yield url
    forget(url)


def run_all(*tasks: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(tasks)) as threads:
        for each in [threads.submit(task) for task in tasks]:
            each.result()


def test_processes_that_create_a_root_at_once_all_open_the_same(bucket: MemoryBucket, url: str) -> None:
    barrier = threading.Barrier(8)
    opened: list[LogDir] = []

    def open_it() -> None:
        address = client_address(url, FaultyStore(bucket))
        barrier.wait()
        opened.append(LogDir.open_or_create(address))

    run_all(*[open_it] * 8)
    assert len({each.identity for each in opened}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "writers_count", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.full)]
)
def test_racing_writers_over_a_failing_store_write_each_record_once_in_order(
    bucket: MemoryBucket, url: str, writers_count: int
) -> None:
    LogDir.create(url).create_topic("orders", partitions=2)
    is_over = threading.Event()

    def write(writer: int) -> None:
        log_dir = LogDir.open(client_address(url, Client(bucket, f"{SEED} {writer}")))
        for sequence in range(COMMITS):
            values = [f"{writer} {sequence} {at}" for at in range(3)]
            log_dir.append("orders", pa.table({"value": values}), partition=sequence % 2)
            log_dir.group(f"group {writer}").commit({("orders", 0): sequence})

    def read() -> None:
        log_dir = LogDir.open(client_address(url, FaultyStore(bucket)))
        seen: dict[int, list[str]] = {0: [], 1: []}
        while not is_over.is_set():
            log_dir.refresh()
            for partition, before in seen.items():
                found = log_dir.read("orders", partition=partition)
                assert found["offset"].to_pylist() == list(range(len(found)))
                seen[partition] = found["value"].to_pylist()
                assert seen[partition][: len(before)] == before

    def change_topics() -> None:
        log_dir = LogDir.open(client_address(url, FaultyStore(bucket)))
        while not is_over.is_set():
            log_dir.append("passing", pa.table({"value": ["x"]}))
            log_dir.delete_topic("passing")

    with ThreadPoolExecutor(3) as threads:
        beside = [threads.submit(each) for each in (read, read, change_topics)]
        try:
            run_all(*[partial(write, writer) for writer in range(writers_count)])
        finally:
            is_over.set()
        for each in beside:
            each.result()
    log_dir = LogDir.open(url)
    for partition in (0, 1):
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for value in log_dir.read("orders", partition=partition)["value"].to_pylist():
            writer, sequence, at = map(int, value.split())
            found[writer].append((sequence, at))
        expected = [(sequence, at) for sequence in range(partition, COMMITS, 2) for at in range(3)]
        assert found == dict.fromkeys(range(writers_count), expected)
    for writer in range(writers_count):
        offsets = log_dir.group(f"group {writer}").fetch().values()
        assert [each.offset for each in offsets] == [COMMITS - 1]
