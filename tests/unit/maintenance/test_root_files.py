"""Files of the whole root that jobs update for each partition: a run writes them few times, and a kill loses little.

Lines are counted: those of all writes together may be a few times the partitions, not their square.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from fakes.clock import Clock
from simulations.compacted_model import InlineTasks

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner import run_record
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.cleaner.logs import CLEAN_ACTION
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRecord, CleanOffset, RecordFiles, read_uncleanable
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report, failed
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, run_once
from pyspark_kafkalog.maintenance.retention import delete_records
from pyspark_kafkalog.maintenance.retention.delete import RETENTION_JOB
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.storage.artefacts import checkpoint_file
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.names import TopicPartition

PARTITIONS = 1_500
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "300"}
NOW_MS = 1_700_000_000_000


class Lines:
    """Counts the lines that are written to checkpoints, and the files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.files: list[int] = []
        write = checkpoint_file.write_offset_checkpoint

        def counted(path: Path, offsets: Mapping[TopicPartition, int], **more: Any) -> None:
            self.files.append(len(offsets))
            write(path, offsets, **more)

        for module in modules:
            monkeypatch.setattr(module, "write_offset_checkpoint", counted)


class OneTask(InlineTasks):
    slots = 1


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> FileRoot:
    log_dir = create_log_dir(tmp_path_factory.mktemp("many") / "root", clock=Clock(NOW_MS))
    log_dir.create_topic("users", partitions=PARTITIONS, configs=COMPACTED)
    return on_file_system(log_dir.root)


def clean_offset(root: FileRoot, number: int, offset: int = 0) -> CleanOffset:
    image = root.store.image
    return CleanOffset(TopicPartition("users", number), image.topic("users").topic_id, image.next_offset, offset)


def report_of(number: int) -> PartitionReport:
    return empty_report(TopicPartition("users", number), CLEAN_ACTION)


def test_clean_offsets_of_many_partitions_are_written_in_few_lines(
    many: FileRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = CleanerRecord(JobRun(path=many.path))
    lines = Lines(monkeypatch, run_record)
    for number in range(PARTITIONS):
        record.took(report_of(number), [clean_offset(many, number)])
    record.close()
    assert len(read_offset_checkpoint(many.path / CLEANER_OFFSET_CHECKPOINT)) == PARTITIONS
    assert PARTITIONS <= sum(lines.files) <= 10 * PARTITIONS
    assert len(lines.files) > 4  # a kill loses a part


def test_marks_of_many_partitions_are_written_in_few_lines(many: FileRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    record = CleanerRecord(JobRun(path=many.path))
    counts: list[int] = []
    write = run_record._write
    monkeypatch.setattr(run_record, "_write", lambda *given: counts.append(len(given[-1])) or write(*given))
    for number in range(PARTITIONS):
        record.took(failed(TopicPartition("users", number), CLEAN_ACTION, KafkalogError("damaged")))
    record.close()
    assert len(read_uncleanable(RecordFiles(many.path))) == PARTITIONS
    assert sum(counts) <= 10 * PARTITIONS
    record = CleanerRecord(JobRun(path=many.path))
    counts.clear()
    for number in range(PARTITIONS):
        record.took(report_of(number))
    record.close()
    assert read_uncleanable(RecordFiles(many.path)) == {}
    assert sum(counts) <= 10 * PARTITIONS


def test_clean_offsets_wait_ten_seconds_at_most(many: FileRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(NOW_MS)
    monkeypatch.setattr(type(many), "clock", property(lambda _: clock))
    record = CleanerRecord(JobRun(path=many.path))
    lines = Lines(monkeypatch, run_record)
    for number in range(3):
        record.took(report_of(number), [clean_offset(many, number, 0)])
    assert lines.files == []
    clock.now_ms += 10_000
    (many.path / CLEANER_OFFSET_CHECKPOINT).unlink(missing_ok=True)
    record.took(report_of(3), [clean_offset(many, 3)])
    assert lines.files == [4]


def test_retention_writes_log_starts_once_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = 300
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", partitions=partitions)
    keys = [str(each) for each in range(12 * partitions)]
    log_dir.append("orders", pa.table({"key": keys, "value": keys}), flush="os")
    starts = {TopicPartition("orders", number): 1 for number in range(partitions)}
    image = log_dir.root.native().store.refresh()
    starts = {each: 1 for each in starts if image.partition(each.topic, each.partition).state.log_end_offset > 1}
    reports = delete_records.delete_records(log_dir.root, starts)
    assert all(each.error is None for each in reports)
    (tmp_path / "root" / LOG_START_OFFSET_CHECKPOINT).unlink()
    lines = Lines(monkeypatch, delete_records)
    reads: list[Path] = []
    read = checkpoint_file.read_offset_checkpoint
    monkeypatch.setattr(checkpoint_file, "read_offset_checkpoint", lambda path: reads.append(path) or read(path))
    assert run_once(RETENTION_JOB, lambda _: OneTask(), JobRun(path=tmp_path / "root"), []) == 0
    assert lines.files == [len(starts)]
    assert read_offset_checkpoint(tmp_path / "root" / LOG_START_OFFSET_CHECKPOINT) == starts
    lines.files.clear()
    for _ in range(3):
        assert run_once(RETENTION_JOB, lambda _: OneTask(), JobRun(path=tmp_path / "root"), []) == 0
    assert lines.files == []
    assert len(reads) <= 1


# What a kill loses


@pytest.fixture
def dirty(tmp_path: Path) -> LogDir:
    log_dir = create_log_dir(tmp_path / "root", clock=lambda: NOW_MS)
    log_dir.create_topic("users", partitions=4, configs=COMPACTED)
    for number in range(6):
        for partition in range(4):
            values = pa.table({"key": ["a", "b"], "value": [f"{number}", f"{number}"]})
            log_dir.append("users", values, partition=partition, flush="os")
    return log_dir


def latest(log_dir: LogDir) -> list[tuple[int, bytes, bytes]]:
    table = log_dir.read("users", columns=["partition", "key", "value"])
    return sorted(set(zip(*(table[name].to_pylist() for name in ("partition", "key")), strict=True)))


def run(log_dir: LogDir) -> Iterator[PartitionReport]:
    job, job_run = CleanerJob(), JobRun(path=Path(log_dir.path), now_ms=NOW_MS)
    return job.run(InlineTasks(), job_run, job.choose(job_run))


def test_run_that_is_stopped_stores_what_it_has_cleaned(dirty: LogDir) -> None:
    reports = run(dirty)
    done = [next(reports).topic_partition for _ in range(2)]
    reports.close()  # type: ignore[attr-defined]  # as a stop does
    assert set(read_offset_checkpoint(Path(dirty.path) / CLEANER_OFFSET_CHECKPOINT)) == set(done)
    assert [each.skipped is None for each in run(dirty)].count(True) == 2


def test_lost_lines_mean_cleaning_again_and_nothing_else(dirty: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    before = latest(dirty)

    def full_disk(*_: Any) -> int:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(run_record, "store_clean_offsets", full_disk)
        with pytest.raises(OSError, match="no space"):
            list(run(dirty))
    assert read_offset_checkpoint(Path(dirty.path) / CLEANER_OFFSET_CHECKPOINT) == {}
    assert latest(dirty) == before
    again = list(run(dirty))
    assert [(each.error, each.skipped) for each in again] == [(None, None)] * 4
    assert latest(dirty) == before
    assert all(each.skipped == "nothing to clean" for each in run(dirty))


def test_line_of_a_topic_made_anew_or_of_a_log_that_was_cleaned_further_is_not_written(dirty: LogDir) -> None:
    root = on_file_system(dirty.root)
    path = root.path / CLEANER_OFFSET_CHECKPOINT
    first = clean_offset(root, 0, 2)
    run_record.store_clean_offsets(root, [first, clean_offset(root, 1, 4)])
    run_record.store_clean_offsets(root, [clean_offset(root, 1, 2)])
    assert read_offset_checkpoint(path) == {TopicPartition("users", 0): 2, TopicPartition("users", 1): 4}
    dirty.delete_topic("users")
    dirty.create_topic("users", partitions=4, configs=COMPACTED)
    run_record.store_clean_offsets(root, [first])
    assert read_offset_checkpoint(path) == {}
