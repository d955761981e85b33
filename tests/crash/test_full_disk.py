"""A process that frees a full disk is killed at any call: the next one frees it, and no commit is overwritten."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.controlled import open_log_dir
from builders.metadata_roots import forget_images
from builders.staged_writes import SMALL_SEGMENTS, stage, written_by
from fakes.full_disks import CountingDisk
from fakes.stopping_filesystem import Killed

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.local.log import RESERVE_BYTES, RESERVE_FILES
from pyspark_kafkalog.storage.filesystem import FileSystem, time_ms
from pyspark_kafkalog.storage.names import TopicPartition

OLD, KEPT = TopicPartition("old", 0), TopicPartition("kept", 0)
_DELAY_MS = 61_000

pytestmark = pytest.mark.usefixtures("one_commit_a_file")


def make_root(root: Path) -> None:
    log_dir = LogDir.create(root)
    for where in (OLD, KEPT):
        log_dir.create_topic(where.topic, 1, SMALL_SEGMENTS)
        log_dir.commit_staged([stage(root, "first", 40, topic_partition=where)])
        log_dir.commit_staged([stage(root, "second", 3, topic_partition=where)])
    log_dir.alter_topic("kept", add={"retention.ms": "-1"})
    assert len(reserve(root)) == RESERVE_FILES


def reserve(root: Path) -> list[Path]:
    found = (root / "__cluster_metadata-0").glob("kafkalog-reserve-*")
    return [path for path in found if path.stat().st_size == RESERVE_BYTES and path.stat().st_nlink == 1]


def opened(root: Path, fs: FileSystem) -> LogDir:
    forget_images()
    return open_log_dir(root, fs=fs)


def by_retention(root: Path, fs: FileSystem) -> None:
    reports = apply_retention(opened(root, fs).root, now_ms=time_ms())
    assert [each.error for each in reports if each.error] == []


def by_delete_records(root: Path, fs: FileSystem) -> None:
    (report,) = delete_records(opened(root, fs).root, {OLD: -1})
    assert (report.error, report.log_start_offset) == (None, 215)


def by_deletion_of_the_topic(root: Path, fs: FileSystem) -> None:
    log_dir = opened(root, fs)
    if "old" in log_dir.topics():
        log_dir.delete_topic("old")


@pytest.mark.parametrize("lacks", ["blocks", "inodes"])
@pytest.mark.parametrize("free", [by_retention, by_delete_records, by_deletion_of_the_topic])
def test_full_disk_is_freed_after_kill_at_any_call(
    tmp_path: Path, free: Callable[[Path, FileSystem], None], lacks: str, report: dict[str, str]
) -> None:
    template = tmp_path / "template"
    make_root(template)
    for calls in range(200):
        root = tmp_path / str(calls)
        shutil.copytree(template, root)
        disk = CountingDisk(stops_at=calls, error=Killed)
        setattr(disk, lacks, 0)
        with contextlib.suppress(Killed):
            free(root, disk)
        disk.stops_at = None
        free(root, disk)
        check_freed(root, disk)
        shutil.rmtree(root)
        if disk.changes <= calls:
            report[f"full disk without {lacks}, freed {free.__name__.replace('_', ' ')}"] = f"{calls} points"
            assert calls > 10
            return
    raise AssertionError("it never came through")


def check_freed(root: Path, disk: CountingDisk) -> None:
    by_retention(root, disk)
    apply_retention(opened(root, disk).root, now_ms=time_ms() + _DELAY_MS)
    log_dir = opened(root, disk)
    # All commits are read, as of the first: one that was written over would not fit.
    log_dir.commit_staged([stage(root, "after", topic_partition=KEPT)])
    assert written_by(opened(root, FileSystem()), "kept") == ["first", "second", "after"]
    assert len(reserve(root)) == RESERVE_FILES
    assert len(list(log_dir.history())) > 6
    for path in root.glob("old-0*"):
        assert not list(path.glob("*.deleted"))
    if "old" in log_dir.topics():
        bounds = log_dir.topic("old").partitions[0]
        assert bounds.log_start_offset == bounds.high_watermark == 215
        log_dir.commit_staged([stage(root, "anew", topic_partition=OLD)])
        assert written_by(log_dir, "old") == ["anew"]
