"""Merging by object: each data object is got once for all partitions of a task, and nothing is lost on the way."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from builders.data_objects import Plan, some_batches
from builders.object_roots import StoredRoot
from builders.root_places import forget, memory_root, store_of
from fakes.faulty_store import Fault, FaultyStore
from fakes.stopping_filesystem import Killed
from fakes.thread_tasks import ThreadTasks

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.maintenance.merge import MERGE_JOB
from pyspark_kafkalog.maintenance.objects import merge as merging
from pyspark_kafkalog.maintenance.objects.merge import MergeRound, merge_round, merge_tasks
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.store import ByteRange, ObjectStore
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects import spool as spool_module
from pyspark_kafkalog.storage.objects.spool import Spool

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}
PARTITIONS, WRITES = 8, 12


def written(writes: int = WRITES) -> tuple[LogDir, str]:
    """A root with as many objects as writes, each with a run of every partition."""
    import pyarrow as pa

    url = memory_root()
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", partitions=PARTITIONS)
    rows = 2000
    for number in range(writes):
        values = [random.Random(number * rows + row).randbytes(100) for row in range(rows)]
        keys = pa.array([str(row) for row in range(rows)], pa.string())
        log_dir.append("orders", pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
    return log_dir, url


def values(log_dir: LogDir) -> list[tuple[int, int, bytes]]:
    log_dir.refresh()
    table = log_dir.read("orders", columns=["partition", "offset", "value"])
    return sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def data_requests(store: FaultyStore) -> int:
    return sum(each.kind == "get_range" and each.keys[0].startswith("data/") for each in store.calls)


@pytest.mark.parametrize("slots", [1, 4])
def test_each_object_is_got_once_by_each_task(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "TASK_BYTES", 1 << 16)
    log_dir, url = written()
    before = values(log_dir)
    store = store_of(url)
    first, commits = data_requests(store), store.requests["create"]
    reports = list(
        MERGE_JOB.run(
            ThreadTasks(slots), JobRun(path=url), [TopicPartition("orders", each) for each in range(PARTITIONS)]
        )
    )
    assert [each.error for each in reports] == [None] * PARTITIONS
    assert {each.segments_dropped for each in reports} == {WRITES - 1}
    assert data_requests(store) - first == slots * WRITES
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    merges = [each for each in log_dir.history() if each.operation == "merge"]
    assert len(merges) == slots
    if slots == 1:  # several commit at once, and some of them again
        assert store.requests["create"] - commits == 2  # and that of the staging horizon
    assert values(log_dir) == before
    forget(url)


def test_work_is_divided_into_slices_of_about_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir, url = written(2)
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    image = root.store.refresh()
    partitions = [TopicPartition("orders", each) for each in range(PARTITIONS)]
    assert merge_tasks(image, partitions, 4) == [partitions]
    monkeypatch.setattr(merging, "TASK_BYTES", 1 << 10)
    slices = merge_tasks(image, partitions, 4)
    assert [each for some in slices for each in some] == partitions
    assert [len(each) for each in slices] == [2, 2, 2, 2]
    assert merge_tasks(image, [], 4) == []
    forget(url)


def test_round_takes_oldest_objects_within_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir, url = written(5)
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    image = root.store.refresh()
    sizes = [each.size_bytes for each in image.objects]
    monkeypatch.setattr(merging, "ROUND_BYTES", sizes[0] + sizes[1])
    partitions = [TopicPartition("orders", each) for each in range(PARTITIONS)]
    planned = MergeRound.of(image, partitions, {"orders": 1 << 20})
    assert [each.runs_count for each in planned.plans] == [2] * PARTITIONS
    assert list(planned.ranges) == [each.object_id for each in image.objects][:2]
    few = MergeRound.of(image, partitions, {"orders": 1 << 20}, last_object_id=next(iter(image.objects)).object_id)
    assert [each.runs_count for each in few.plans] == [1] * PARTITIONS
    assert MergeRound.of(image, partitions, {"orders": 1 << 20}, last_object_id=0).plans == ()
    forget(url)


def test_object_that_is_mostly_of_others_is_not_got_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir, url = written(1)
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    image = root.store.refresh()
    ends = [TopicPartition("orders", each) for each in (0, PARTITIONS - 1)]
    assert len(MergeRound.of(image, ends, {"orders": 1 << 20}).ranges) == 1  # the rest is less than a request is worth
    monkeypatch.setattr(merging, "_WASTE_BYTES_MAX", 0)
    assert MergeRound.of(image, ends, {"orders": 1 << 20}).ranges == {}
    assert len(MergeRound.of(image, [ends[0], TopicPartition("orders", 1)], {"orders": 1 << 20}).ranges) == 1
    forget(url)


def round_of_both(root: StoredRoot, objects: ObjectStore, metadata: MetadataStore) -> None:
    merge_round(metadata, objects, {"orders": root.config}, [A, B], clock=root.place.clock)


def check_merged(root: StoredRoot, scratch: Path) -> None:
    assert [len(root.image.partition("orders", each).runs) for each in (0, 1)] == [0, 0]
    root.check(scratch)


def write_some(root: StoredRoot, scratch: Path, count: int) -> None:
    rng = random.Random(1)
    for number in range(count):
        plans = [Plan(each, some_batches(rng, rng.randint(1, 4)), 40) for each in (A, B)]
        root.write(scratch, *plans, inline_bytes=100_000 if number % 2 else 0)


@pytest.mark.parametrize("fault", [Fault.FAILS_BEFORE, Fault.FAILS_AFTER, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.slow
def test_round_stopped_at_any_request_loses_nothing(tmp_path: Path, fault: Fault) -> None:
    call, is_done = 0, False
    while not is_done:
        root = StoredRoot(SMALL)
        write_some(root, tmp_path / f"{fault}-{call}", 4)
        client = root.place.client()
        metadata = root.place.open_with(client)
        first = len(client.calls)
        client.faults = {first + call: fault}
        try:
            round_of_both(root, client, metadata)
            is_done = len(client.calls) <= first + call
        except (Killed, KafkalogError):
            pass
        root.check(tmp_path)
        round_of_both(root, root.objects, root.metadata)
        check_merged(root, tmp_path)
        call += 1
    assert call > 10


def test_partition_that_fails_leaves_the_others_merged(tmp_path: Path) -> None:
    root = StoredRoot(SMALL)
    write_some(root, tmp_path, 3)
    key = next(each.key for each in root.image.objects if each.key)
    body = bytearray(root.place.bucket.body(key))
    row = root.image.partition("orders", 1).runs.table[0]
    body[int(row["position"]) + 8] ^= 1  # the length of the first batch of B
    root.place.bucket.write(key, bytes(body))
    results = merge_round(root.metadata, root.objects, {"orders": root.config}, [A, B], clock=root.place.clock)
    assert [each.error is None for each in results] == [True, False]
    assert "batch length" in str(results[1].error)
    assert key in str(results[1].error)
    assert [len(root.image.partition("orders", each).runs) for each in (0, 1)] == [0, 3]


# The spool.


class Counted:
    """Object bytes that count requests; of `short` less than asked for arrives."""

    def __init__(self, body: bytes, *, short: bool = False) -> None:
        self.body = body
        self.short = short
        self.requests: list[tuple[int, int]] = []

    def name(self, object_id: int) -> str:
        return f"object {object_id}"

    def read(self, object_id: int, start: int, size_bytes: int) -> Buffer:
        self.requests.append((start, size_bytes))
        return self.body[start : start + size_bytes - self.short]


def test_spool_gets_its_range_once_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "WINDOW_BYTES", 40)
    body = np.arange(200, dtype=np.uint8).tobytes()
    objects = Counted(body)
    with Spool({7: ByteRange(50, 100), 8: ByteRange(0, 10)}, tmp_path) as spool:
        through = spool.over(objects)
        assert through.name(7) == "object 7"
        assert bytes(through.read(7, 60, 20)) == body[60:80]
        assert bytes(through.read(7, 50, 100)) == body[50:150]
        assert objects.requests == [(50, 40), (90, 40), (130, 20)]
        assert bytes(through.read(7, 40, 20)) == body[40:60]  # not in the range as a whole
        assert bytes(through.read(9, 0, 5)) == body[:5]
        assert objects.requests[3:] == [(40, 20), (0, 5)]
    assert list(tmp_path.iterdir()) == []


def test_spool_leaves_short_answers_to_the_reader(tmp_path: Path) -> None:
    with Spool({7: ByteRange(0, 100)}, tmp_path) as spool:
        assert len(spool.over(Counted(bytes(200), short=True)).read(7, 0, 10)) == 9
