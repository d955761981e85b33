"""A repair restores everything that follows from the log, reports each step, and leaves committed records alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from builders.metadata_roots import forget_images
from builders.verify_roots import T0, findings_in, flip
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import ReadOnlyLogDirError
from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata, group_partition, offset_key, offset_value
from pyspark_kafkalog.groups.offsets_topic import append_records, ensure_offsets_topic
from pyspark_kafkalog.maintenance.jobs.partition import LOCK_FILE, PartitionReport, partition_lock
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, run_once
from pyspark_kafkalog.maintenance.jobs.tasks import TaskFailedError
from pyspark_kafkalog.maintenance.verify.findings import Finding, Severity
from pyspark_kafkalog.maintenance.verify.job import VerifyJob
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.metadata.image import UNKNOWN_ENDS
from pyspark_kafkalog.metadata.local.backend import LocalSnapshots
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_offset_checkpoint, write_offset_checkpoint
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

T = TypeVar("T")
pytestmark = pytest.mark.usefixtures("without_waits")

METADATA = "__cluster_metadata-0"
DAY_MS = 86_400_000  # staging.retention.ms


class TasksHere:
    """Tasks of this process, one after the other; those that `is_lost` says are lost."""

    slots = 2

    def __init__(self, is_lost: Callable[[int], bool] = lambda number: False) -> None:
        self._is_lost = is_lost
        self.submitted = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self.submitted += 1
        if self._is_lost(self.submitted):
            future.set_exception(TaskFailedError("the task was lost: Killed"))
        else:
            future.set_result(work())
        return future

    def as_completed(self, futures: Collection[Future[T]]) -> Iterator[Future[T]]:
        return iter(list(futures))


@dataclass
class Run:
    """What a run has told."""

    status: int = -1
    told: list[dict[str, Any]] = field(default_factory=list)
    reports: list[PartitionReport] = field(default_factory=list)

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        self.partitions_count = partitions_count

    def take(self, report: PartitionReport) -> None:
        self.reports.append(report)

    def end(self) -> None:
        assert len(self.reports) == self.partitions_count

    def steps(self, state: str) -> list[tuple[str, str | None]]:
        """The steps that were reported with that state, with the topic."""
        return [(each["step"], each["topic"]) for each in self.told if each.get("state") == state]


def run(root: Path, *, tasks: TasksHere | None = None, dry_run: bool = False, repair: bool = True) -> Run:
    forget_images()
    result = Run()
    job_run = JobRun(path=root, dry_run=dry_run, now_ms=T0 + DAY_MS)
    result.status = run_once(
        VerifyJob(result.told.append, is_repairing=repair), lambda _: tasks or TasksHere(), job_run, [result]
    )
    return result


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def logs(root: Path, partition: str = "orders-1") -> list[Path]:
    return sorted((root / partition).glob("*.log"))


def damage_all_that_can_be_derived(root: Path) -> None:
    logs(root)[0].with_suffix(".index").unlink()
    flip(logs(root)[1].with_suffix(".timeindex"), 2)
    flip(logs(root)[1].with_suffix(".snapshot"), 3)
    logs(root)[2].with_suffix(".snapshot").unlink()
    for path in (root / "transactions-0").glob("*.txnindex"):
        path.unlink()
    (root / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\nx 0\n")
    (root / "orders-0" / "partition.metadata").write_text("")
    (root / "orders-0" / f"{0:020d}.log.cleaned").write_bytes(b"half a segm")
    staged = root / "orders-0" / "00ff-1.staged"
    staged.write_bytes(b"left by a dead writer")
    os.utime(staged, (T0 / 1000, T0 / 1000))
    shutil.rmtree(root / "empty-1")
    for name in ("recovery-point", "replication", "log-start", "cleaner"):
        (root / f"{name}-offset-checkpoint").write_text("0\nmany\n")
    for name in ("kafkalog-head", "kafkalog-start", "kafkalog-newest-snapshot"):
        (root / METADATA / name).write_bytes(b"garbage")
    (root / METADATA / "partition.metadata").unlink()


def test_derived_files_are_repaired_as_planned(root: Path, whole: Path) -> None:
    damage_all_that_can_be_derived(root)
    broken = contents(root)
    found = findings_in(root)
    assert len({finding.what for finding in found}) >= 9
    planned = run(root, dry_run=True)
    assert planned.status == 1
    assert contents(root) == broken
    done = run(root)
    assert (done.status, done.steps("failed")) == (0, [])
    assert done.steps("done") == done.steps("planned") == planned.steps("planned")
    assert findings_in(root) == []
    before, after = contents(whole), contents(root)
    for name, content in before.items():
        if name.endswith((".log", ".index", ".timeindex", ".txnindex", "leader-epoch-checkpoint", ".metadata")):
            assert after[name] == content, name
    assert not list(root.rglob("*.staged")) + list(root.rglob("*.cleaned"))
    assert read_offset_checkpoint(root / "log-start-offset-checkpoint") == {TopicPartition("orders", 0): 5}
    again = run(root)
    assert (again.status, again.steps("planned")) == (0, [])
    assert contents(root) == after


def test_verification_without_repair_changes_nothing(root: Path) -> None:
    damage_all_that_can_be_derived(root)
    broken = contents(root)
    result = run(root, repair=False)
    assert (result.status, result.steps("planned")) == (1, [])
    assert contents(root) == broken


def test_damaged_records_and_their_indexes_are_not_changed(root: Path) -> None:
    flip(logs(root)[0], 90)
    flip(logs(root)[0].with_suffix(".index"), 7)
    before = contents(root)
    result = run(root)
    assert result.status == 1
    assert contents(root) == before
    [told, *_] = [each for each in result.told if each.get("what") == "batch-crc"]
    assert "restore" in told["advice"]
    assert [step for step, _ in result.steps("failed")] == ["reindex"]


def test_repair_of_broker_directory_is_rejected() -> None:
    with pytest.raises(ReadOnlyLogDirError):
        run(FIXTURES / "unclean")


def test_producer_snapshot_that_contradicts_log_is_rebuilt(root: Path) -> None:
    from tests.unit.maintenance.verify.test_damage import change_snapshot, snapshot_with_producers

    path = snapshot_with_producers(root)
    before = path.read_bytes()
    change_snapshot(path)
    result = run(root)
    assert result.steps("done") == [("drop-snapshots", "transactions"), ("reindex", "transactions")]
    assert result.status == 0
    assert 10 < path.stat().st_size <= len(before)


def test_damaged_metadata_snapshot_is_repaired(root: Path) -> None:
    forget_images()
    LocalSnapshots(root / METADATA, LOCAL).write(LogDir.open(root).root.native().store.image)
    path = next((root / METADATA).glob("*.checkpoint"))
    flip(path, -90)
    result = run(root)
    assert (result.status, result.steps("done")) == (0, [("metadata-snapshot", None)])


def test_snapshot_of_an_earlier_version_is_a_warning_and_gets_the_ends_of_offsets_from_the_commits(
    tmp_path: Path,
) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.create_topic("orders", partitions=1)
    number = group_partition("billing", ensure_offsets_topic(log_dir.root))
    committed = OffsetAndMetadata(offset=20, commit_timestamp_ms=T0)  # without a topic id, as in a transaction
    append_records(log_dir.root, number, {offset_key("billing", TopicPartition("orders", 0)): offset_value(committed)})
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=1)
    log_dir.refresh()
    image = log_dir.root.native().store.image
    topics = {name: replace(topic, offsets_ends=UNKNOWN_ENDS) for name, topic in image.topics.items()}
    LocalSnapshots(tmp_path / METADATA, LOCAL).write(replace(image, topics=topics))

    forget_images()
    assert len(LogDir.open(tmp_path).group("billing").fetch()) == 1
    assert [(each.severity, each.what) for each in findings_in(tmp_path)] == [
        (Severity.WARNING, "snapshot-without-ends")
    ]
    result = run(tmp_path)

    assert (result.status, result.steps("done")) == (0, [("offsets-ends", None), ("remove-deleted-topics", None)])
    assert findings_in(tmp_path) == []
    assert LogDir.open(tmp_path).group("billing").fetch() == {}


def _without_topic_id(root: Path) -> list[Finding]:
    forget_images()
    return [each for each in verify(LogDir.open(root).root).findings if each.what == "offset-without-topic-id"]


def test_offsets_without_id_are_told_where_nothing_says_when_their_topic_was_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.create_topic("orders", partitions=1)
    number = group_partition("billing", ensure_offsets_topic(log_dir.root))
    orders = TopicPartition("orders", 0)
    committed = OffsetAndMetadata(offset=20, commit_timestamp_ms=T0)
    append_records(log_dir.root, number, {offset_key("billing", orders): offset_value(committed)})
    log_dir.refresh()
    log_dir.group("of-now").commit({orders: 0})
    assert _without_topic_id(tmp_path) == []
    log_dir.refresh()
    image = log_dir.root.native().store.image
    topics = {name: replace(topic, offsets_ends=UNKNOWN_ENDS) for name, topic in image.topics.items()}
    LocalSnapshots(tmp_path / METADATA, LOCAL).write(replace(image, topics=topics))
    for path in (tmp_path / METADATA).glob("0*.log"):
        path.unlink()

    (told,) = _without_topic_id(tmp_path)
    assert told.severity is Severity.INFO
    command = told.advice.partition("run kafkalog ")[2].split()
    assert main([command[0], "--path", str(tmp_path), *command[1:]]) == 0
    capsys.readouterr()
    assert _without_topic_id(tmp_path) == []
    assert LogDir.open(tmp_path).groups() == ("of-now",)


def test_repair_removes_only_wrong_checkpoint_lines(root: Path) -> None:
    path = root / "cleaner-offset-checkpoint"
    write_offset_checkpoint(path, {TopicPartition("orders", 0): 999, TopicPartition("orders", 1): 10})
    result = run(root)
    assert (result.status, result.steps("done")) == (0, [("checkpoints", None)])
    assert read_offset_checkpoint(path) == {TopicPartition("orders", 1): 10}


def test_repair_fails_for_partition_locked_by_another_run(root: Path) -> None:
    logs(root)[0].with_suffix(".index").unlink()
    with partition_lock(root / "orders-1"):
        result = run(root)
    assert (result.status, result.steps("failed")) == (1, [("reindex", "orders")])
    assert run(root).status == 0


def test_lost_directory_with_records_is_reported_and_not_recreated(root: Path) -> None:
    shutil.rmtree(root / "orders-1")
    result = run(root)
    assert (result.status, result.steps("failed")) == (1, [("make-directory", "orders")])
    assert not (root / "orders-1").exists()


def test_partition_of_lost_task_is_reported_as_failed(root: Path) -> None:
    result = run(root, tasks=TasksHere(lambda number: number == 1), repair=False)
    assert result.status == 1
    assert any(report.error is not None and "Killed" in report.error for report in result.reports)


def test_repaired_log_is_read_and_written_as_before(root: Path, whole: Path) -> None:
    forget_images()
    expected = LogDir.open(whole).read("transactions", isolation="read_committed")
    damage_all_that_can_be_derived(root)
    run(root)
    forget_images()
    log_dir = LogDir.open(root)
    assert log_dir.read("transactions", isolation="read_committed").equals(expected)
    log_dir.append("orders", log_dir.read("orders", partition=1, columns=["value"]), partition=1)
    assert findings_in(root) == []
