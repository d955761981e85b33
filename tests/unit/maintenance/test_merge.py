"""Merging keeps every batch once and leaves segments that Kafka, readers and writers can use."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.indexes import rebuild_indexes

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.jobs.partition import partition_lock
from pyspark_kafkalog.maintenance.merge import merge_segments, plan_merge
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.stored import StoredSegment

T0 = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    """Twenty segments of a write each, and limits under which about seven of them make one."""
    log_dir = create_log_dir(tmp_path / "log", clock=lambda: T0)
    log_dir.create_topic("orders", partitions=1, configs={"internal.segment.bytes": "1000"})
    for number in range(20):
        stamps = pa.array([(T0 - 1000 + number * 7 % 13) * 1000] * 20, pa.timestamp("us", "UTC"))
        values = [b"%d" % (number * 20 + at) + b"." * 40 for at in range(20)]
        log_dir.append("orders", pa.table({"value": values, "timestamp": stamps}), partition=0)
    configs = {"internal.segment.bytes": "10000", "index.interval.bytes": "100", "file.delete.delay.ms": "1000"}
    log_dir.alter_topic("orders", add=configs)
    log_dir.refresh()
    return log_dir


def directory(log_dir: LogDir) -> Path:
    return log_dir.path / "orders-0"


def all_bytes(log_dir: LogDir) -> bytes:
    where = directory(log_dir)
    return b"".join((where / f"{base:020d}.log").read_bytes() for base in list_base_offsets(where))


def test_merged_segments_are_larger_and_batches_unchanged(log_dir: LogDir) -> None:
    before, table = all_bytes(log_dir), log_dir.read("orders")
    bases = list_base_offsets(directory(log_dir))
    [report] = merge_segments(log_dir.root)
    assert report.error is None
    assert all_bytes(log_dir) == before
    after = list_base_offsets(directory(log_dir))
    assert set(after) < set(bases)
    assert report.segments_dropped == len(bases) - len(after)
    sizes = [(directory(log_dir) / f"{base:020d}.log").stat().st_size for base in after[:-1]]
    assert max(sizes) <= 10000
    assert min(sizes[:-1]) > 5000
    assert LogDir.open(log_dir.path).read("orders").equals(table)


def test_second_merge_changes_nothing(log_dir: LogDir) -> None:
    merge_segments(log_dir.root)
    before = {path.name: path.stat().st_ino for path in directory(log_dir).iterdir()}
    [report] = merge_segments(log_dir.root)
    assert (report.bytes_read, report.segments_dropped) == (0, 0)
    assert {path.name: path.stat().st_ino for path in directory(log_dir).iterdir()} == before


def test_indexes_of_merged_segments_match_rebuilt_indexes(log_dir: LogDir) -> None:
    merge_segments(log_dir.root)
    where = directory(log_dir)
    for base in list_base_offsets(where)[:-1]:
        paths = [where / f"{base:020d}{suffix}" for suffix in (".index", ".timeindex")]
        merged = [path.read_bytes() for path in paths]
        rebuild_indexes(where, base, log_dir.log_config("orders"))
        assert merged == [path.read_bytes() for path in paths]
        assert len(merged[0]) > 0


def test_dry_run_changes_nothing_and_reports_same_totals(log_dir: LogDir) -> None:
    before = {path: path.stat().st_mtime_ns for path in log_dir.path.rglob("*")}
    [told] = merge_segments(log_dir.root, dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in log_dir.path.rglob("*")} == before
    [done] = merge_segments(log_dir.root)
    assert (told.bytes_read, told.segments_dropped) == (done.bytes_read, done.segments_dropped)


def test_merged_segment_has_age_of_its_newest_part(log_dir: LogDir) -> None:
    where = directory(log_dir)
    for number, base in enumerate(list_base_offsets(where)):
        os.utime(where / f"{base:020d}.log", ns=(10**15, (T0 + number) * 10**6))
    ends = list_base_offsets(where)
    merge_segments(log_dir.root)
    bases = list_base_offsets(where)
    for base, following in itertools.pairwise(bases):
        assert (where / f"{base:020d}.log").stat().st_mtime_ns == (T0 + ends.index(following) - 1) * 10**6


def test_old_files_are_deleted_after_delay(log_dir: LogDir) -> None:
    merge_segments(log_dir.root)
    assert list(directory(log_dir).glob("*.log.deleted"))
    merge_segments(log_dir.root, now_ms=T0 + 1000)
    assert not [path.name for path in directory(log_dir).iterdir() if path.suffix in (".deleted", ".swap", ".cleaned")]


def test_damaged_segment_is_reported_and_not_merged(log_dir: LogDir) -> None:
    where = directory(log_dir)
    bases = list_base_offsets(where)
    with (where / f"{bases[2]:020d}.log").open("r+b") as file:
        file.truncate(500)
    before = all_bytes(log_dir)
    [report] = merge_segments(log_dir.root)
    assert "torn batch" in (report.error or "")
    assert all_bytes(log_dir) == before
    assert not list(where.glob("*.cleaned"))


def test_segments_below_log_start_are_not_merged(log_dir: LogDir) -> None:
    bases = list_base_offsets(directory(log_dir))
    delete_records(log_dir.root, {ORDERS: bases[5] + 3})
    merge_segments(log_dir.root)
    assert list_base_offsets(directory(log_dir))[:6] == bases[:6]
    log_dir.refresh()
    assert log_dir.read("orders")["offset"].to_pylist() == list(range(bases[5] + 3, 400))


def test_partition_locked_by_another_run_is_skipped(log_dir: LogDir) -> None:
    with partition_lock(directory(log_dir)):
        assert [each.skipped for each in merge_segments(log_dir.root)] == ["another run has the partition"]


def test_writer_appends_after_merge(log_dir: LogDir) -> None:
    for number in range(3):
        merge_segments(log_dir.root)
        log_dir.append("orders", pa.table({"value": [b"n" * 3000]}), partition=0)
        log_dir.refresh()
        assert log_dir.read("orders")["offset"].to_pylist() == list(range(401 + number))


def test_reader_with_old_listing_reads_every_batch_once(log_dir: LogDir) -> None:
    expected = [
        int(offset) for run in log_dir.reader("orders", 0).runs(0, 400) for offset in run.batches["last_offset"]
    ]
    runs = log_dir.reader("orders", 0).runs(0, 400)
    found = [int(offset) for offset in next(runs).batches["last_offset"]]
    merge_segments(log_dir.root)
    found += [int(offset) for run in runs for offset in run.batches["last_offset"]]
    assert found == expected


def segment(base: int, size: int, *, count: int = 10, index: int = 0) -> StoredSegment:
    return StoredSegment(base, base + count, size, index, index, 0)


def groups(
    segments: list[StoredSegment], *boundaries: int, segment_bytes: int = 100, index_bytes: int = 1000
) -> list[list[int]]:
    config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=index_bytes)
    return [[each.base_offset for each in group] for group in plan_merge(segments, config, boundaries=boundaries)]


def test_groups_stay_within_bounds_of_segment_and_indexes() -> None:
    assert groups([segment(0, 30), segment(10, 30), segment(20, 40), segment(30, 1)]) == [[0, 10, 20]]
    assert groups([segment(0, 30), segment(10, 50), segment(20, 30)]) == []
    assert groups([segment(0, 40), segment(10, 1), segment(20, 1)]) == []
    assert groups([segment(0, 40), segment(10, 10), segment(20, 10)]) == [[0, 10, 20]]
    assert groups([segment(0, 10), segment(10, 10), segment(20, 10), segment(30, 10)], 20) == [[0, 10], [20, 30]]
    assert groups([segment(0, 10), segment(10, 10), segment(20, 10), segment(30, 10)], 15) == [[0, 10], [20, 30]]
    large = [segment(0, 10, index=400), segment(10, 10, index=400), segment(20, 10, index=400)]
    assert groups(large) == [[0, 10]]
    assert groups([segment(0, 10, count=1 << 30), segment(1 << 30, 10, count=1 << 31)]) == []
    assert groups([]) == []
