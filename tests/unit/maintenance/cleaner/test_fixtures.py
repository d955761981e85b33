"""Cleaning leaves the same files as Kafka's own cleaner, byte for byte.

The clock decides only the delete horizons that the pass sets (now + delete.retention.ms). The tests read Kafka's clock
at its pass back from those, so the horizons are equal. Only these files may differ:

    leader-epoch-checkpoint   adopting a broker's directory begins a leader epoch
    .maintenance-lock         written only by this package
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.engine_fixtures import files_of, manifest
from fakes.thread_tasks import ThreadTasks
from repository import FIXTURES
from simulations.cleaner_reference import decode, stored_batches

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition

_PAIRS = [("compacted-1-dirty", "compacted-2-cleaned"), ("compacted-3-dirty", "compacted-4-cleaned")]
_TOPICS = ["compacted-plain", "compacted-batched", "compacted-idempotent", "compacted-txn"]
_NOT_COMPARED = {"leader-epoch-checkpoint", ".maintenance-lock"}
_SMALL_BUFFER_BYTES = 24 * 8


def _adopt(fixture: str, root: Path) -> LogDir:
    """A copy of the broker's directory, made ours, with the topics' configurations."""
    shutil.copytree(FIXTURES / fixture, root, ignore=shutil.ignore_patterns("expected"))
    log_dir = LogDir.adopt(root)
    for topic, described in manifest(fixture)["topics"].items():
        log_dir.alter_topic(topic, add=described["configs"])
    return log_dir


def _horizons(directory: Path) -> set[int]:
    found = (decode(each).header.delete_horizon_ms for each in stored_batches(directory))
    return {each for each in found if each is not None}


def _kafkas_clock_ms(before: Path, after: Path, configs: dict[str, str]) -> int:
    """When Kafka's pass began, by the horizon it has set; where it has set none, any time after those there were."""
    there = _horizons(before)
    (*new,) = _horizons(after) - there
    assert len(new) <= 1
    return new[0] - int(configs["delete.retention.ms"]) if new else max(there) + 1


@pytest.mark.parametrize("topic", _TOPICS)
@pytest.mark.parametrize(("dirty", "cleaned"), _PAIRS)
@pytest.mark.parametrize("buffer_bytes", [None, _SMALL_BUFFER_BYTES], ids=["one map", "many maps"])
def test_cleaned_files_match_kafka_cleaner(
    tmp_path: Path, dirty: str, cleaned: str, topic: str, buffer_bytes: int | None
) -> None:
    log_dir = _adopt(dirty, tmp_path / "root")
    before = FIXTURES / dirty / f"{topic}-0"
    kafkas = FIXTURES / cleaned / f"{topic}-0"
    now_ms = _kafkas_clock_ms(before, kafkas, manifest(dirty)["topics"][topic]["configs"])
    report = clean_partition(log_dir.root, topic, 0, now_ms=now_ms, dedupe_buffer_bytes=buffer_bytes)
    assert report.error is None
    assert report.skipped is None
    assert (report.key_shards == 1) == (buffer_bytes is None)
    ours = files_of(tmp_path / "root" / f"{topic}-0")
    expected = files_of(kafkas)
    assert sorted(ours.keys() - _NOT_COMPARED) == sorted(expected.keys() - _NOT_COMPARED)
    for name in expected.keys() - _NOT_COMPARED:
        assert ours[name] == expected[name], name
    where = TopicPartition(topic, 0)
    kafkas_checkpoint = read_offset_checkpoint(FIXTURES / cleaned / CLEANER_OFFSET_CHECKPOINT)
    assert read_offset_checkpoint(tmp_path / "root" / CLEANER_OFFSET_CHECKPOINT)[where] == kafkas_checkpoint[where]


@pytest.mark.parametrize(("dirty", "cleaned"), _PAIRS)
def test_records_after_cleaning_match_kafka_consumer(tmp_path: Path, dirty: str, cleaned: str) -> None:
    log_dir = _adopt(dirty, tmp_path / "root")
    for topic in _TOPICS:
        configs = manifest(dirty)["topics"][topic]["configs"]
        before, after = FIXTURES / dirty / f"{topic}-0", FIXTURES / cleaned / f"{topic}-0"
        clean_partition(log_dir.root, topic, 0, now_ms=_kafkas_clock_ms(before, after, configs))
        files = manifest(cleaned)["records"][topic]
        lines = (FIXTURES / cleaned / files["read_committed"]["file"]).read_text().splitlines()
        expected: list[dict[str, Any]] = [json.loads(line) for line in lines]
        table = log_dir.read(topic, isolation="read_committed", columns=["offset", "key", "value"])
        assert table["offset"].to_pylist() == [each["offset"] for each in expected]


def test_cleaner_job_cleans_all_partitions_dirtiest_first(tmp_path: Path) -> None:
    root = tmp_path / "root"
    _adopt("compacted-3-dirty", root)
    job_run = JobRun(path=root)
    job = CleanerJob()
    chosen = job.choose(job_run)
    reports = [each for each in job.run(ThreadTasks(slots=1), job_run, chosen) if each.skipped is None]
    assert [each.error for each in reports] == [None] * len(reports)
    assert sorted(each.topic for each in reports) == sorted(_TOPICS)
    ratios = [each.dirty_percent or 0 for each in reports]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > ratios[-1]
    assert all(each.skipped is not None for each in job.run(ThreadTasks(slots=1), job_run, chosen))


@pytest.mark.parametrize(("partitions", "passes"), [(1, 1), (2, 2)])
def test_buffer_is_divided_by_the_partitions_that_are_cleaned_not_by_the_tasks(
    tmp_path: Path, partitions: int, passes: int
) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.alter_broker_configs(add={"log.cleaner.dedupe.buffer.size": str(2 << 20)})
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "300000"}
    log_dir.create_topic("t", partitions=partitions, configs=configs)
    keys = pa.table({"key": [str(each) for each in range(60_000)], "value": ["x"] * 60_000})
    for partition in range(partitions):
        log_dir.append("t", keys, partition=partition)
    job_run = JobRun(path=log_dir.path)
    reports = list(CleanerJob().run(ThreadTasks(slots=8), job_run, CleanerJob().choose(job_run)))
    assert [(each.error, each.skipped, each.key_shards) for each in reports] == [(None, None, passes)] * partitions


def test_cleaning_clean_log_changes_nothing(tmp_path: Path) -> None:
    log_dir = _adopt("compacted-1-dirty", tmp_path / "root")
    now_ms = 1_795_300_000_000
    for topic in _TOPICS:
        directory = tmp_path / "root" / f"{topic}-0"
        clean_partition(log_dir.root, topic, 0, now_ms=now_ms)
        before = files_of(directory)
        report = clean_partition(log_dir.root, topic, 0, now_ms=now_ms + 10_000_000)
        assert report.skipped == "nothing to clean"
        assert files_of(directory) == before


def test_dry_run_reports_dirty_range_and_changes_nothing(tmp_path: Path) -> None:
    log_dir = _adopt("compacted-1-dirty", tmp_path / "root")
    directory = tmp_path / "root" / "compacted-plain-0"
    before = files_of(directory)
    report = clean_partition(log_dir.root, "compacted-plain", 0, dry_run=True)
    assert report.dirty_percent == 100.0
    assert (report.first_dirty_offset, report.first_uncleanable_offset) == (0, 205)
    assert {name: data for name, data in files_of(directory).items() if name not in _NOT_COMPARED} == {
        name: data for name, data in before.items() if name not in _NOT_COMPARED
    }
    assert not (tmp_path / "root" / CLEANER_OFFSET_CHECKPOINT).exists()


def test_damaged_batch_is_reported_and_partition_is_unchanged(tmp_path: Path) -> None:
    log_dir = _adopt("compacted-1-dirty", tmp_path / "root")
    path = tmp_path / "root" / "compacted-plain-0" / "00000000000000000073.log"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    before = files_of(path.parent)
    report = clean_partition(log_dir.root, "compacted-plain", 0)
    assert report.error is not None
    assert str(path) in report.error
    assert {name: each for name, each in files_of(path.parent).items() if name != ".maintenance-lock"} == before
