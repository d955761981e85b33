"""The commit of a write by many tasks to many partitions: what it copies and opens, and what decides its records."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders.controlled import open_log_dir
from builders.staged_writes import check_files

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.partitioner import Partitioner
from pyspark_kafkalog.storage import staged_file
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, flushing_file_system
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask
from pyspark_kafkalog.storage.stager import Rows, Selected, TopicStager

NOW_MS = 1_700_000_000_000
PARTITIONS = 20


class Counting(FileSystem):
    """Counts the calls that change segments, and the bytes that they write; a linked file keeps its staged name."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes = 0

    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        self._count("write", fd, len(memoryview(data).cast("B")))
        super().pwrite_all(fd, data, position)

    def copy_range(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        self._count("copy", fd, length)
        super().copy_range(source_fd, source_position, fd, position, length)

    def link(self, source: Path, target: Path) -> None:
        self.calls["link"] += target.name.endswith(".log") and "__cluster_metadata" not in str(target)
        super().link(source, target)

    def _count(self, call: str, fd: int, size_bytes: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith((".log", ".staged")) and "__cluster_metadata" not in name:
            self.calls[call] += 1
            self.bytes += size_bytes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "log").create_topic("orders", partitions=PARTITIONS)
    return tmp_path / "log"


def stage(root: Path, task: int, rows: list[tuple[int, bytes]], *, rounds: int = 1) -> list[StagedFile]:
    """Stage the values in their partitions, in so many rounds, each an append of its own to the files."""
    log_dir = LogDir.open(root)
    stager = TopicStager(
        StagingTask(root=root, write_id="w", task=task),
        "orders",
        PARTITIONS,
        log_dir.log_config("orders"),
        partitioner=Partitioner(PARTITIONS, turn_bytes=1),
        asked_compression=None,
        batch_size_bytes=4000,
        clock_ms=lambda: NOW_MS,
        fs=flushing_file_system(LOCAL, "os"),
    )
    for at in range(rounds):
        some = rows[at::rounds]
        values = Rows({"value": pa.array([value for _, value in some], pa.binary())}, NOW_MS)
        stager.add([Selected(values.columns, None, np.array([partition for partition, _ in some], np.int32))])
    return stager.finish()


@pytest.mark.parametrize("tasks", [2, 20, 200])
def test_bytes_and_writes_of_a_commit_do_not_grow_with_its_tasks(root: Path, tasks: int) -> None:
    records = 4000 // tasks
    staged = []
    for task in range(tasks):
        staged += stage(root, task, [(number % PARTITIONS, b"%4d %4d" % (task, number)) for number in range(records)])
    assert len(staged) == len(list(root.glob("*/*.staged"))) == tasks
    fs = Counting()
    result = open_log_dir(root, fs=fs).commit_staged(staged, flush="os")
    assert sum(each.records for each in result.partitions) == 4000
    # Each byte is written once, and a partition's batches of all tasks together.
    assert fs.bytes == sum(each.size_bytes for each in staged) == sum(each.bytes for each in result.partitions)
    assert fs.calls == Counter(write=PARTITIONS)
    assert not list(root.glob("*/*.staged"))
    log_dir = LogDir.open(root)
    check_files(log_dir)
    for partition in range(PARTITIONS):
        values = log_dir.read("orders", partition=partition)["value"].to_pylist()
        assert values == sorted(values)


def test_large_part_of_a_task_is_linked_and_small_parts_are_copied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_file, "SHARED_BYTES", 5000)
    LogDir.open(root).alter_topic("orders", add={"internal.segment.bytes": "100000"})
    small = [(partition, b"a %d" % partition) for partition in range(PARTITIONS)]
    large = [(3, b"large %6d %s" % (number, b"x" * 80)) for number in range(900)]
    first, second = stage(root, 0, small + large, rounds=10), stage(root, 1, small)
    shared, own = first
    assert own.size_bytes > 50_000
    inode = own.path(root).stat().st_ino
    fs = Counting()
    open_log_dir(root, fs=fs).commit_staged([*first, *second], flush="os")
    assert fs.calls["link"] == 1
    assert inode in {each.stat().st_ino for each in (root / "orders-3").glob("*.log")}
    patched = 16 * len(own.batches)
    assert fs.bytes == shared.size_bytes + second[0].size_bytes + patched
    check_files(LogDir.open(root))
    values = LogDir.open(root).read("orders", partition=3)["value"].to_pylist()
    assert sorted(values) == sorted([b"a 3", b"a 3", *(value for _, value in large)])
    assert values[-1] == b"a 3"  # of the second task
    assert not list(root.glob("*/*.staged"))


def test_topic_created_again_under_the_name_gets_no_records_of_the_old_one(root: Path) -> None:
    log_dir = LogDir.open(root)
    old_id = log_dir.topic("orders").topic_id
    assert old_id is not None
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=PARTITIONS)
    (staged,) = stage(root, 0, [(0, b"old"), (1, b"old")])
    with pytest.raises(UnknownTopicError, match=f"deleted and created again.*expected the id {old_id}"):
        log_dir.commit_staged([replace(staged, topic_id=old_id)])
    assert staged.path(root).exists()
    log_dir.refresh()
    assert log_dir.read("orders").num_rows == 0


def test_missing_file_of_a_task_leaves_no_record_of_the_others(root: Path) -> None:
    staged = [*stage(root, 0, [(0, b"a"), (1, b"a")]), *stage(root, 1, [(1, b"b"), (2, b"b")])]
    staged[1].path(root).unlink()
    log_dir = LogDir.open(root)
    with pytest.raises(UnknownTopicError, match=r"expected the staged file w-1\.staged, found none"):
        log_dir.commit_staged(staged)
    log_dir.refresh()
    assert log_dir.read("orders").num_rows == 0
    log_dir.commit_staged(staged[:1])
    check_files(log_dir)
    assert log_dir.read("orders").num_rows == 2


def test_directory_left_by_a_deleted_topic_is_replaced_before_it_gets_batches(root: Path) -> None:
    log_dir = LogDir.open(root)
    log_dir.commit_staged(stage(root, 0, [(1, b"old")]))
    shutil.copytree(root / "orders-1", root / "kept")
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=PARTITIONS)
    shutil.rmtree(root / "orders-1")
    (root / "kept").rename(root / "orders-1")
    (staged,) = stage(root, 1, [(0, b"new"), (1, b"new"), (2, b"new")])
    assert staged.topic_partition.partition == 0
    log_dir.commit_staged([staged])
    log_dir.refresh()
    assert log_dir.read("orders")["value"].to_pylist() == [b"new"] * 3
    check_files(log_dir)
