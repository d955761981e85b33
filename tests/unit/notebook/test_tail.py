"""Following a log beside its writer: every record once, in order, up to the stop or the timeout."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.names import TopicPartition

APPENDS = 20


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    LogDir.create(root_place).create_topic("t", partitions=2, configs={"internal.segment.bytes": "600"})
    return root_place


def _append(root: RootPlace, first: int, count: int, partition: int = 0) -> None:
    values = [str(number) for number in range(first, first + count)]
    LogDir.open(root).append("t", pa.table({"value": values}), partition=partition, flush="os")


def test_tail_beside_writer_reads_each_record_once(root: RootPlace) -> None:
    def write() -> None:
        for number in range(APPENDS):
            _append(root, 5 * number, 5, partition=number % 2)

    topic = LogDir.open(root)["t"]
    seen: list[int] = []
    tail = topic.tail(stop=lambda: len(seen) == 5 * APPENDS, timeout_seconds=20, poll_seconds=0.002)
    writer = threading.Thread(target=write)
    writer.start()
    by_partition: dict[int, list[int]] = {0: [], 1: []}
    for batch in tail:
        seen += map(int, batch["value"].to_pylist())
        by_partition[batch["partition"][0].as_py()] += batch["offset"].to_pylist()
    writer.join()
    assert sorted(seen) == list(range(5 * APPENDS))
    assert by_partition == {0: list(range(50)), 1: list(range(50))}


def test_tail_starts_at_given_offset_or_time_or_end(root: RootPlace) -> None:
    _append(root, 0, 30)
    log = LogDir.open(root)["t", 0]

    def values(start: int | str | None) -> list[str]:
        batches = log.tail(start, timeout_seconds=0, columns=["value"], text=True)
        return [value for batch in batches for value in batch["value"].to_pylist()]

    assert values(None) == []
    assert values(-3) == ["27", "28", "29"]
    assert values(0) == [str(number) for number in range(30)]
    assert len(values("2020-01-01")) == 30
    assert values("2100-01-01") == []


def test_tail_starts_when_it_is_created(root: RootPlace) -> None:
    log = LogDir.open(root)["t", 0]
    tail = log.tail(timeout_seconds=0)
    _append(root, 0, 3)
    assert [batch.num_rows for batch in tail] == [3]


def test_tail_of_slice_ends_at_its_end(root: RootPlace) -> None:
    _append(root, 0, 10)
    log = LogDir.open(root)["t", 0][:5]
    assert [batch.num_rows for batch in log.tail(0)] == [5]


def test_timeout_or_stop_ends_tail(root: RootPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogDir.open(root)["t", 0]
    passed_s = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(passed_s))
    assert list(log.tail(timeout_seconds=20, poll_seconds=0)) == []
    assert next(passed_s) > 20
    asked = iter([False, False, True])
    assert list(log.tail(stop=lambda: next(asked), poll_seconds=0)) == []


def test_tail_fails_when_next_records_were_deleted(root: RootPlace) -> None:
    _append(root, 0, 10)
    log = LogDir.open(root)["t", 0]
    tail = log.tail(0, poll_seconds=0.001, timeout_seconds=60)
    assert next(tail).num_rows == 10
    _append(root, 10, 10)
    delete_records(LogDir.open(root).root, {TopicPartition("t", 0): 15})
    with pytest.raises(OffsetOutOfRangeError, match="offset 10 of t-0, which is next"):
        next(tail)


def test_tail_follows_directory_of_running_broker(tmp_path: Path) -> None:
    root = tmp_path / "broker"
    shutil.copytree(FIXTURES / "cars", root)
    checkpoint = root / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\ncars 0 300\n")
    log = LogDir.open(root)["cars", 0]
    tail = log.tail(290, poll_seconds=0.001, timeout_seconds=5, columns=["offset"])
    assert next(tail)["offset"].to_pylist() == list(range(290, 300))
    checkpoint.with_suffix(".tmp").write_text("0\n1\ncars 0 310\n")
    checkpoint.with_suffix(".tmp").rename(checkpoint)
    assert next(tail)["offset"].to_pylist() == list(range(300, 310))


def test_poll_without_new_commit_lists_no_directory(root: RootPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll costs one open that fails: nothing is listed or read."""
    log = LogDir.open(root)["t", 0]
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return looks > 50

    def fail(*_: object) -> None:
        raise AssertionError("a directory was listed")

    tail = log.tail(stop=stop, poll_seconds=0)
    monkeypatch.setattr("os.scandir", fail)
    monkeypatch.setattr("os.listdir", fail)
    assert list(tail) == []
