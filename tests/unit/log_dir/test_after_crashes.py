"""Leftovers of crashed writers: tails are recovered, unflushed commits are synced, abandoned files are removed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir, open_log_dir
from builders.staged_writes import (
    COPIED,
    ORDERS,
    OTHER,
    SPLICED,
    T0,
    ClockedFileSystem,
    Failing,
    check_files,
    failing_dir,
    make_log_dir,
    stage,
    staged_left,
    written_by,
)

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.filesystem import UNFLUSHED_MARKER, FileSystem, time_ms
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, TopicPartition


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    return make_log_dir(tmp_path / "log")


# Recovery


def leave_tail(log_dir: LogDir, batches: int) -> None:
    """What a writer leaves that was killed just before its publish."""
    copy = log_dir.path.with_name(uuid.uuid4().hex)
    shutil.copytree(log_dir.path, copy)
    killed = LogDir.open(copy)
    killed.commit_staged([stage(copy, "killed", batches)])
    for path in (copy / str(ORDERS)).iterdir():
        shutil.copy(path, log_dir.path / str(ORDERS))
    shutil.rmtree(copy)


@pytest.mark.parametrize("batches", [COPIED, SPLICED, 90])
def test_recovery_starts_a_leader_epoch(log_dir: LogDir, batches: int) -> None:
    log_dir.commit_staged([stage(log_dir.path, "a")])
    for crash in range(1, 4):
        leave_tail(log_dir, batches)
        if crash > 1:
            leave_tail(log_dir, 1)
        log_dir.commit_staged([stage(log_dir.path, "b")])
        log_dir.commit_staged([stage(log_dir.path, "c")])
        assert log_dir.partition("orders", 0).leader_epoch == crash
    lines = (log_dir.path / str(ORDERS) / LEADER_EPOCH_CHECKPOINT).read_text().splitlines()
    assert lines == ["0", "4", "0 0", "1 10", "2 30", "3 50"]
    check_files(log_dir)
    assert written_by(log_dir) == ["a", *["b", "c"] * 3]
    assert log_dir.partition("orders", 1).leader_epoch == 0


@pytest.mark.usefixtures("one_commit_a_file")
def test_epoch_of_writer_killed_in_recovery_is_dropped(log_dir: LogDir) -> None:
    log_dir.commit_staged([stage(log_dir.path, "a")])
    leave_tail(log_dir, 2)
    broken = failing_dir(
        log_dir, Failing(lambda call, path: call == "open" and path.endswith(".tmp") and METADATA_DIR in path)
    )
    with pytest.raises(OSError, match="No space"):
        broken.commit_staged([stage(log_dir.path, "b")])
    checkpoint = log_dir.path / str(ORDERS) / LEADER_EPOCH_CHECKPOINT
    assert checkpoint.read_text().splitlines() == ["0", "1", "0 0"]
    checkpoint.write_text("0\n2\n0 0\n1 10\n")
    log_dir.commit_staged([stage(log_dir.path, "c")])
    assert checkpoint.read_text().splitlines() == ["0", "1", "0 0"]
    assert log_dir.partition("orders", 0).leader_epoch == 0


# Flush


class CountingSyncs(FileSystem):
    def __init__(self) -> None:
        self.count = 0

    def fsync(self, fd: int) -> None:
        self.count += 1
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self.count += 1
        super().fsync_dir(directory)


def test_flush_os_commits_without_sync(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = CountingSyncs()
    counted = open_log_dir(log_dir.path, fs=fs)
    syncs: list[int] = []
    monkeypatch.setattr(os, "sync", lambda: syncs.append(1))
    for version in range(3):
        counted.commit_staged(
            [stage(log_dir.path, "a", 90)], transaction=WriteTransaction("q", version, "r"), flush="os"
        )
        counted.append("orders", pa.table({"value": ["b 0"]}), partition=0, flush="os")
    assert (fs.count, syncs) == (0, [])
    assert (log_dir.path / UNFLUSHED_MARKER).exists()
    assert counted.partition("orders", 0).high_watermark == 3 * 451
    with pytest.raises(InvalidOptionError, match="fsync, os"):
        counted.commit_staged([], flush="never")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda log_dir: log_dir.commit_staged([stage(log_dir.path, "b")]),
        lambda log_dir: log_dir.create_topic("other"),
        lambda log_dir: log_dir.init_transaction("t", "r"),
        lambda log_dir: log_dir.alter_broker_configs(add={"num.partitions": "2"}),
    ],
    ids=["write", "topic", "transaction", "configs"],
)
def test_durable_commit_first_syncs_unflushed_commits(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch, change: Callable[[LogDir], object]
) -> None:
    """Otherwise a power failure could leave a hole in the commit log."""
    syncs: list[int] = []
    monkeypatch.setattr(os, "sync", lambda: syncs.append(1))
    log_dir.commit_staged([stage(log_dir.path, "a")], flush="os")
    assert syncs == []
    change(log_dir)
    log_dir.commit_staged([stage(log_dir.path, "c")])
    assert syncs == [1]
    assert not (log_dir.path / UNFLUSHED_MARKER).exists()


# Abandoned files


def age(path: Path, at_ms: int) -> None:
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def test_abandoned_files_are_removed_and_those_of_live_write_stay(tmp_path: Path) -> None:
    fs = ClockedFileSystem(T0)
    log_dir = create_log_dir(tmp_path / "log", fs=fs)
    log_dir.create_topic("orders", partitions=2)
    log_dir.create_topic("other", partitions=1)
    log_dir.alter_broker_configs(add={"staging.retention.ms": "1000"})
    places = [ORDERS, OTHER, TopicPartition("other", 0)]
    dead = [
        stage(log_dir.path, "dead", topic_partition=place, task=at).path(log_dir.path)
        for at, place in enumerate(places)
    ]
    live = [
        stage(log_dir.path, "live", topic_partition=place, task=at).path(log_dir.path)
        for at, place in enumerate(places)
    ]
    for path in (*dead, *live):
        age(path, T0)
    fs.now_ms = T0 + 999
    log_dir.commit_staged([stage(log_dir.path, "a")])
    assert len(staged_left(log_dir)) == 6
    age(live[2], T0 + 1)
    fs.now_ms = T0 + 1000
    log_dir.commit_staged([stage(log_dir.path, "b")])
    assert staged_left(log_dir) == ["live-0.staged", "live-1.staged", "live-2.staged"]
    assert {path.stat().st_mtime_ns for path in live} == {(T0 + 1) * 1_000_000}
    fs.now_ms = T0 + 1001
    log_dir.commit_staged([stage(log_dir.path, "c")])
    assert staged_left(log_dir) == []
    assert written_by(log_dir) == ["a", "b", "c"]


@pytest.mark.parametrize("ahead_days", [0, 10])
def test_files_of_live_write_stay_when_clock_of_another_writer_is_ahead(tmp_path: Path, ahead_days: int) -> None:
    """The file system's clock alone decides their age, also for a task that has just begun."""
    ahead_ms = ahead_days * 86_400_000
    log_dir = create_log_dir(tmp_path / "log", clock=lambda: time_ms() + ahead_ms)
    log_dir.create_topic("orders", partitions=1)
    live = stage(log_dir.path, "live")
    log_dir.commit_staged([stage(log_dir.path, "a")])
    assert staged_left(log_dir) == ["live-0.staged"]
    LogDir.open(log_dir.path).commit_staged([live])
    assert written_by(log_dir) == ["a", "live"]


def test_commit_succeeds_when_cleanup_fails(log_dir: LogDir) -> None:
    log_dir.alter_broker_configs(add={"staging.retention.ms": "0"})
    stage(log_dir.path, "dead")
    stuck = failing_dir(log_dir, Failing(lambda call, path: call == "unlink" and path.endswith(".staged")))
    stuck.commit_staged([stage(log_dir.path, "a")])
    assert written_by(log_dir) == ["a"]
