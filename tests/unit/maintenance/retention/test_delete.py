"""Retention deletes the same segments as Kafka, readers see it at once, and deleted files are removed after a delay."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from fakes.clock import Clock
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError, ReadOnlyLogDirError, UnknownTopicError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    LeaderEpochCheckpoint,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import DELETED_SUFFIX, LEADER_EPOCH_CHECKPOINT, TopicPartition
from pyspark_kafkalog.storage.staged_file import StagingTask
from pyspark_kafkalog.storage.stager import stage_table

T0 = 1_700_000_000_000
DAY_MS = 86_400_000
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def log_dir(tmp_path: Path, clock: Clock) -> LogDir:
    return create_log_dir(tmp_path / "log", clock=clock)


def fill(log_dir: LogDir, writes: int = 10, *, step_ms: int = 0, topic: str = "orders") -> None:
    """Writes of 20 records, the first with timestamps of T0, the others `step_ms` after the one before."""
    for number in range(writes):
        stamps = pa.array([(T0 + number * step_ms) * 1000] * 20, pa.timestamp("us", "UTC"))
        values = [b"%d" % (number * 20 + at) + b"." * 40 for at in range(20)]
        log_dir.append(topic, pa.table({"value": values, "timestamp": stamps}), partition=0)


def make(log_dir: LogDir, *, topic: str = "orders", **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    log_dir.create_topic(topic, partitions=1, configs={**SMALL, **named})


def offsets(log_dir: LogDir, topic: str = "orders") -> list[int]:
    log_dir.refresh()
    found: list[int] = log_dir.read(topic)["offset"].to_pylist()
    return found


def directory(log_dir: LogDir) -> Path:
    return log_dir.path / "orders-0"


def test_only_segments_older_than_retention_ms_are_deleted(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_ms="1000")
    fill(log_dir, step_ms=100)
    bases = list_base_offsets(directory(log_dir))
    assert len(bases) > 4
    clock.now_ms = T0 + 1000 + 450
    [report] = apply_retention(log_dir.root)
    assert report.error is None
    # The largest timestamp of [base, next) is that of its last write: gone when 1000 ms and more have passed.
    kept = next(base for base, after in itertools.pairwise(bases) if T0 + (after - 1) // 20 * 100 >= T0 + 450)
    assert list_base_offsets(directory(log_dir)) == [base for base in bases if base >= kept]
    assert offsets(log_dir) == list(range(kept, 200))
    assert log_dir.partition("orders", 0).log_start_offset == kept
    assert report.bytes_dropped > 0


def test_dry_run_changes_nothing_and_reports_same_bytes(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_ms="1000")
    fill(log_dir, step_ms=100)
    clock.now_ms += 1500
    before = {path: path.read_bytes() for path in log_dir.path.rglob("*") if path.is_file()}
    [told] = apply_retention(log_dir.root, dry_run=True)
    assert {path: path.read_bytes() for path in log_dir.path.rglob("*") if path.is_file()} == before
    [done] = apply_retention(log_dir.root)
    assert (told.bytes_dropped, told.bytes_kept) == (done.bytes_dropped, done.bytes_kept)


def test_fewest_segments_with_retention_bytes_are_kept(log_dir: LogDir) -> None:
    make(log_dir, retention_bytes="5000")
    fill(log_dir)
    sizes = {
        base: (directory(log_dir) / f"{base:020d}.log").stat().st_size for base in list_base_offsets(directory(log_dir))
    }
    apply_retention(log_dir.root)
    kept = list_base_offsets(directory(log_dir))
    total = sum(sizes[base] for base in kept)
    assert total >= 5000 > total - sizes[kept[0]]
    assert offsets(log_dir) == list(range(kept[0], 200))


def test_expired_active_segment_is_rolled_and_deleted(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_ms="1000")
    fill(log_dir)
    clock.now_ms += 1001
    apply_retention(log_dir.root)
    assert offsets(log_dir) == []
    found = log_dir.partition("orders", 0)
    assert (found.log_start_offset, found.high_watermark, found.active_base_offset) == (200, 200, 200)
    assert list_base_offsets(directory(log_dir)) == [200]
    apply_retention(log_dir.root)
    fill(log_dir, 1)
    assert offsets(log_dir) == list(range(200, 220))
    assert LogDir.open(log_dir.path).read("orders").num_rows == 20


def test_empty_log_is_not_rolled_again(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_ms="1000")
    log_dir.append("orders", pa.table({"value": [b"x"]}))
    clock.now_ms += 5000
    apply_retention(log_dir.root)
    version = LogDir.open(log_dir.path).version
    clock.now_ms += 5000
    apply_retention(log_dir.root)
    assert LogDir.open(log_dir.path).version == version


def test_unwritten_topic_is_no_error(log_dir: LogDir) -> None:
    make(log_dir, retention_ms="1000")
    [report] = apply_retention(log_dir.root, now_ms=T0 + DAY_MS)
    assert report.error is None


def test_deleted_files_are_removed_after_file_delete_delay(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_bytes="5000", file_delete_delay_ms="60000")
    fill(log_dir)
    apply_retention(log_dir.root)
    gone = {path.name for path in directory(log_dir).glob("*" + DELETED_SUFFIX)}
    assert {name.split(".", 1)[1] for name in gone} >= {"log.deleted", "index.deleted", "timeindex.deleted"}
    clock.now_ms += 59_999
    apply_retention(log_dir.root)
    assert {path.name for path in directory(log_dir).glob("*" + DELETED_SUFFIX)} == gone
    clock.now_ms += 1
    apply_retention(log_dir.root)
    assert not list(directory(log_dir).glob("*" + DELETED_SUFFIX))


def test_timestamps_in_future_keep_segments(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_ms="1000", message_timestamp_after_max_ms="9223372036854775807")
    fill(log_dir, 3, step_ms=10 * DAY_MS)
    clock.now_ms += 10 * DAY_MS
    apply_retention(log_dir.root)
    assert offsets(log_dir)[-1] == 59
    assert offsets(log_dir)[0] in (0, 20)


def test_compacted_topic_keeps_expired_segments(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_ms="1000", cleanup_policy="compact")
    log_dir.append("orders", pa.table({"key": [b"k"] * 20, "value": [b"v" * 100] * 20}))
    clock.now_ms += DAY_MS
    apply_retention(log_dir.root)
    assert offsets(log_dir) == list(range(20))


def test_age_of_segment_with_empty_time_index_is_modification_time(log_dir: LogDir, clock: Clock) -> None:
    """Segments without timestamps have such an index; the file's modification time then decides."""
    make(log_dir, retention_ms="1000")
    fill(log_dir)
    first = directory(log_dir) / f"{0:020d}.timeindex"
    first.write_bytes(b"")
    log = first.with_suffix(".log")
    os.utime(log, ns=((T0 + 5000) * 10**6, (T0 + 5000) * 10**6))
    clock.now_ms += 2000
    apply_retention(log_dir.root)
    assert offsets(log_dir)[0] == 0
    clock.now_ms += 4001
    apply_retention(log_dir.root)
    assert offsets(log_dir) == []


def test_age_of_segment_with_lost_or_torn_time_index_comes_from_log(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_ms="1000")
    fill(log_dir, step_ms=100)
    bases = list_base_offsets(directory(log_dir))
    (directory(log_dir) / f"{bases[0]:020d}.timeindex").unlink()
    (directory(log_dir) / f"{bases[1]:020d}.timeindex").write_bytes(b"torn")
    clock.now_ms += 1000 + (bases[2] - 1) // 20 * 100
    apply_retention(log_dir.root)
    assert offsets(log_dir)[0] == bases[1]


def test_retention_updates_leader_epochs_and_log_start_checkpoint(log_dir: LogDir) -> None:
    make(log_dir, retention_bytes="5000")
    fill(log_dir)
    apply_retention(log_dir.root)
    first = list_base_offsets(directory(log_dir))[0]
    epochs = LeaderEpochCheckpoint.open(directory(log_dir) / LEADER_EPOCH_CHECKPOINT)
    assert epochs.entries[0].start_offset == first
    assert read_offset_checkpoint(log_dir.path / LOG_START_OFFSET_CHECKPOINT) == {}


def test_reader_of_deleted_records_gets_offset_out_of_range(log_dir: LogDir, clock: Clock) -> None:
    make(log_dir, retention_bytes="5000")
    fill(log_dir)
    early = LogDir.open(log_dir.path)
    reader = early.reader("orders", 0)
    runs = reader.runs(0, 200)
    assert next(runs).batches["base_offset"][0] == 0
    apply_retention(log_dir.root)
    with pytest.raises(OffsetOutOfRangeError):
        list(runs)
    with pytest.raises(OffsetOutOfRangeError):
        early.read("orders")
    early.refresh()
    assert early.read("orders")["offset"].to_pylist() == offsets(log_dir)


def test_partition_locked_by_another_run_is_skipped(log_dir: LogDir) -> None:
    from pyspark_kafkalog.maintenance.jobs.partition import partition_lock

    make(log_dir, retention_bytes="5000")
    make(log_dir, topic="other", retention_bytes="5000")
    fill(log_dir)
    with partition_lock(directory(log_dir)):
        reports = apply_retention(log_dir.root)
        assert [each.skipped is not None for each in reports] == [True, False]
        assert offsets(log_dir)[0] == 0
    assert [each.skipped for each in apply_retention(log_dir.root)] == [None, None]
    assert offsets(log_dir)[0] > 0


def test_unknown_topics_and_broker_directories_are_rejected(log_dir: LogDir) -> None:
    with pytest.raises(UnknownTopicError):
        apply_retention(log_dir.root, topics=["nothing"])
    fixture = FIXTURES / "retention"
    with pytest.raises(ReadOnlyLogDirError):
        apply_retention(LogDir.open(fixture).root)


@pytest.mark.parametrize("act", [apply_retention, merge_segments])
def test_retry_with_staged_file_of_deleted_segment_is_rejected(
    log_dir: LogDir, act: Callable[[Root], list[PartitionReport]]
) -> None:
    """A crash after the commit leaves the name of the staged file, which identifies its segment as committed."""
    log_dir.create_topic("orders", partitions=1, configs={"retention.bytes": "0", "internal.segment.bytes": "4000"})
    staged = stage_table(
        StagingTask(root=log_dir.path, write_id="w", task=0),
        "orders",
        pa.table({"value": [b"." * 100] * 30}),
        partitions_count=1,
        partition=0,
        config=log_dir.log_config("orders"),
        asked_compression=None,
        batch_size_bytes=500,
        clock_ms=lambda: T0,
        fs=LOCAL,
    )
    log_dir.commit_staged(staged)
    for _ in range(2):
        log_dir.append("orders", pa.table({"value": [b"x" * 3000]}), partition=0)
    os.link(directory(log_dir) / f"{0:020d}.log", staged[0].path(log_dir.path))
    log_dir.alter_topic("orders", add={"internal.segment.bytes": "100000"})
    assert act(log_dir.root)[0].segments_dropped > 0
    with pytest.raises(UnknownTopicError):
        log_dir.commit_staged(staged)


def test_staged_files_of_abandoned_writes_are_removed_by_age_also_where_nobody_writes(log_dir: LogDir) -> None:
    log_dir.alter_broker_configs(add={"staging.retention.ms": str(DAY_MS)})
    log_dir.create_topic("orders", partitions=3)
    root = log_dir.path
    assert isinstance(root, Path)
    now_s = (root / "orders-0").stat().st_mtime
    for write, ages_s in (("dead", [90_000, 200_000]), ("live", [90_000, 10]), ("new", [10])):
        for partition, age_s in enumerate(ages_s, start=1):
            path = root / f"orders-{partition}" / f"{write}-0.staged"
            path.write_bytes(b"x")
            os.utime(path, (now_s - age_s, now_s - age_s))
    apply_retention(log_dir.root, dry_run=True)
    assert len(list(root.glob("*/dead-0.staged"))) == 2
    apply_retention(log_dir.root, topics=["orders"])
    assert sorted(path.name for path in root.glob("*/*.staged")) == ["live-0.staged", "live-0.staged", "new-0.staged"]
