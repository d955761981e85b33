"""Retention, delete-records and deletion of topics free a disk without free blocks or inodes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from builders.controlled import create_log_dir, open_log_dir
from builders.metadata_roots import forget_images
from builders.staged_writes import SMALL_SEGMENTS, stage, written_by
from builders.verify_roots import check_again_at_once, findings_in
from fakes.full_disks import FILLER, CountingDisk, fill_blocks, fill_inodes, mounted
from fakes.thread_tasks import ThreadTasks

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.partition import partition_lock, shared_partition_lock
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, run_once
from pyspark_kafkalog.maintenance.retention.delete import RETENTION_JOB, apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.local.log import RESERVE_BYTES, RESERVE_FILES
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, time_ms
from pyspark_kafkalog.storage.names import TopicPartition

OLD, KEPT, GONE = (TopicPartition(topic, 0) for topic in ("old", "kept", "gone"))
#: A little more than file.delete.delay.ms.
DELAY_MS = 61_000

pytestmark = pytest.mark.usefixtures("one_commit_a_file")


@dataclass(frozen=True)
class Disk:
    """A disk that lacks `blocks` or `inodes` once it is filled."""

    root: Path
    fs: FileSystem
    lacks: str

    def open(self) -> LogDir:
        forget_images()
        return open_log_dir(self.root, fs=self.fs)

    def fill(self) -> None:
        if isinstance(self.fs, CountingDisk):
            setattr(self.fs, self.lacks, 0)
        else:
            {"blocks": fill_blocks, "inodes": fill_inodes}[self.lacks](self.root.parent)

    def reserve(self) -> list[Path]:
        found = sorted((self.root / "__cluster_metadata-0").glob("kafkalog-reserve-*"))
        return [path for path in found if path.stat().st_size == RESERVE_BYTES]


def prepare(disk: Disk) -> LogDir:
    """Topics whose records are old, of which one is kept for ever; retention has never run."""
    log_dir = create_log_dir(disk.root, fs=disk.fs)
    for where in (OLD, KEPT, GONE):
        log_dir.create_topic(where.topic, 1, SMALL_SEGMENTS)
        log_dir.commit_staged([stage(disk.root, "first", 40, topic_partition=where)])
        log_dir.commit_staged([stage(disk.root, "second", 3, topic_partition=where)])
    for where in (KEPT, GONE):
        log_dir.alter_topic(where.topic, add={"retention.ms": "-1"})
    assert len(disk.reserve()) == RESERVE_FILES
    return log_dir


@pytest.fixture(params=["blocks", "inodes"])
def lacks(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["counted", "ext4", "tmpfs"])
def disk(request: pytest.FixtureRequest, lacks: str, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "counted":
        yield Disk(tmp_path / "log", CountingDisk(), lacks)
        return
    try:
        with mounted(request.param, tmp_path / "disk") as path:
            yield Disk(path / "log", LOCAL, lacks)
    except PermissionError as error:
        pytest.skip(str(error))


def assert_full(disk: Disk) -> None:
    """Neither a write nor another commit finds room, and the error says where and what to do."""
    for write in (
        lambda: disk.open().commit_staged([stage(disk.root, "new", 200, topic_partition=KEPT)]),
        lambda: disk.open().create_topic("another", 1),
    ):
        with pytest.raises(OSError, match="No space left on device") as caught:
            write()
        assert not isinstance(caught.value, KafkalogError)
    assert caught.value.errno == errno.ENOSPC
    if disk.fs is LOCAL:
        assert str(disk.root) in str(caught.value)
        assert "kafkalog retention" in str(caught.value)
    for left in disk.root.glob("*/new-*.staged"):
        left.unlink()


def assert_freed(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write finds room, the reserve is whole, and nothing is wrong."""
    if not isinstance(disk.fs, CountingDisk):
        assert (disk.root.parent / FILLER).exists() or (disk.root.parent / f"{FILLER}-inodes").exists()
    log_dir = disk.open()
    log_dir.commit_staged([stage(disk.root, "after", topic_partition=KEPT)])
    assert written_by(log_dir, "kept") == ["first", "second", "after"]
    assert len(disk.reserve()) == RESERVE_FILES
    check_again_at_once(monkeypatch)
    assert [each for each in findings_in(disk.root) if each.severity != "info"] == []


def run_retention(disk: Disk, after_ms: int = 0) -> None:
    reports = apply_retention(disk.open().root, now_ms=time_ms() + after_ms)
    assert [report for report in reports if report.error] == []


def drop_by_retention(disk: Disk) -> None:
    run_retention(disk)
    bounds = disk.open().topic("old").partitions[0]
    assert bounds.log_start_offset == bounds.high_watermark == 215


def drop_records(disk: Disk) -> None:
    (report,) = delete_records(disk.open().root, {OLD: 200})
    assert (report.error, report.log_start_offset) == (None, 200)


def drop_topic(disk: Disk) -> None:
    disk.open().delete_topic("gone")
    assert disk.open().topics() == ("kept", "old")


def lower_retention(disk: Disk) -> None:
    disk.open().alter_topic("gone", add={"retention.ms": "1000"})
    run_retention(disk)
    assert disk.open().topic("gone").partitions[0].log_start_offset == 215


@pytest.mark.slow
@pytest.mark.parametrize("drop", [drop_by_retention, drop_records, drop_topic, lower_retention])
def test_full_disk_is_freed(disk: Disk, drop: Callable[[Disk], None], monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(disk)
    disk.fill()
    assert_full(disk)
    drop(disk)
    run_retention(disk)
    run_retention(disk, DELAY_MS)
    assert_freed(disk, monkeypatch)


def test_several_commits_in_a_row_free_disk_that_stays_full(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(disk)
    disk.fill()
    delete_records(disk.open().root, {OLD: 10})
    disk.fill()
    assert disk.open().topic("old").partitions[0].log_start_offset == 10
    drop_topic(disk)
    run_retention(disk, DELAY_MS)
    assert_freed(disk, monkeypatch)


def test_roll_without_files_commits_same_state_as_normal_roll(tmp_path: Path) -> None:
    """The next writer continues from there, and creates the segment."""
    states = []
    for lacks in (None, "inodes"):
        fs = CountingDisk()
        disk = Disk(tmp_path / str(lacks), fs, str(lacks))
        prepare(disk)
        if lacks:
            disk.fill()
        run_retention(disk)
        states.append(disk.open().root.native().store.image.partition("old", 0).state)
        has_segment = (disk.root / "old-0" / f"{215:020d}.log").exists()
        assert has_segment is (lacks is None)
        fs.inodes = None
        log_dir = disk.open()
        assert log_dir.read("old").num_rows == 0
        log_dir.commit_staged([stage(disk.root, "after", topic_partition=OLD)])
        assert written_by(log_dir, "old") == ["after"]
        assert log_dir.topic("old").partitions[0].high_watermark == 225
    assert states[0] == states[1]


def test_run_that_locked_directory_excludes_others(tmp_path: Path) -> None:
    """Other runs are excluded even if they can create the lock file meanwhile."""
    disk = CountingDisk(inodes=0)
    with partition_lock(tmp_path, fs=disk) as first:
        assert first
        assert os.listdir(tmp_path) == []
        with partition_lock(tmp_path, fs=disk) as second:
            assert not second
        with partition_lock(tmp_path) as third, shared_partition_lock(tmp_path) as ticket:
            assert not third
            assert ticket is None
    (tmp_path / ".maintenance-lock").unlink()
    with partition_lock(tmp_path) as first:
        assert first
        (tmp_path / ".maintenance-lock").unlink()
        with partition_lock(tmp_path, fs=disk) as second:
            assert not second


class NoRoomForNames(CountingDisk):
    """Directories have no room for longer names."""

    def rename(self, source: Path, target: Path) -> None:
        if len(target.name) > len(source.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))
        super().rename(source, target)


def test_files_are_deleted_at_once_if_longer_names_do_not_fit(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "log", NoRoomForNames(), "blocks")
    log_dir = prepare(disk)
    log_dir.delete_topic("gone")
    assert not list(disk.root.glob("gone*"))
    run_retention(disk)
    assert not [path for path in (disk.root / "old-0").iterdir() if path.name.startswith(f"{0:020d}")]
    assert written_by(log_dir, "kept") == ["first", "second"]


def test_retention_removes_directories_of_deleted_topics_after_delay(tmp_path: Path) -> None:
    """This needs neither the deletion of another topic nor a remaining topic."""
    disk = Disk(tmp_path / "log", FileSystem(), "blocks")
    prepare(disk)
    for topic in ("old", "kept", "gone"):
        disk.open().delete_topic(topic)
    job = JobRun(path=disk.root, now_ms=None)
    assert len(list(disk.root.glob("*-delete"))) == 3
    run_once(RETENTION_JOB, lambda _: ThreadTasks(), job, [])
    assert len(list(disk.root.glob("*-delete"))) == 3
    run_once(RETENTION_JOB, lambda _: ThreadTasks(), replace(job, now_ms=time_ms() + DELAY_MS, dry_run=True), [])
    assert len(list(disk.root.glob("*-delete"))) == 3
    run_once(RETENTION_JOB, lambda _: ThreadTasks(), replace(job, now_ms=time_ms() + DELAY_MS), [])
    assert list(disk.root.glob("*-delete")) == []


def test_retention_removes_leftovers_of_killed_deletion_and_keeps_foreign_directories(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "log", FileSystem(), "blocks")
    log_dir = prepare(disk)
    shutil.copytree(disk.root / "gone-0", tmp_path / "gone-0")
    shutil.copytree(disk.root / "gone-0", disk.root / "theirs-0")
    (disk.root / "theirs-0" / "partition.metadata").write_text("version: 0\ntopic_id: 5UEaURSRQaKMvclSpFFazg")
    log_dir.delete_topic("gone")
    shutil.copytree(tmp_path / "gone-0", disk.root / "gone-0")
    apply_retention(disk.open().root, topics=["kept"])
    assert not (disk.root / "gone-0").exists()
    apply_retention(disk.open().root, topics=["kept"], now_ms=time_ms() + DELAY_MS)
    assert list(disk.root.glob("gone*")) == []
    assert (disk.root / "theirs-0").exists()
