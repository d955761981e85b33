"""Cleaning keeps the latest record of each key beside readers, writers, other runs and kills."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.controlled import adopt_log_dir, create_log_dir, open_log_dir
from builders.engine_fixtures import manifest
from builders.root_places import RootPlace, is_object_place
from fakes.stopping_filesystem import Killed, StoppingFileSystem
from repository import FIXTURES

from pyspark_kafkalog.errors import LogDirError, ReadOnlyLogDirError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner import clean as cleaner
from pyspark_kafkalog.maintenance.cleaner import record_chunks
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.cleaner.logs import CleanedFiles
from pyspark_kafkalog.maintenance.jobs.partition import partition_lock
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.reindex import reindex
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.swap import has_unfinished
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import TopicPartition

NOW_MS = 1_795_400_000_000
ORDERS = TopicPartition("orders", 0)
CONFIGS = {"cleanup.policy": "compact", "internal.segment.bytes": "1500", "index.interval.bytes": "200"}


def append(log_dir: LogDir, keys: list[str], values: list[str | None], at_ms: int = NOW_MS - 1000) -> None:
    stamps = pa.array([at_ms * 1000] * len(keys), pa.timestamp("us", "UTC"))
    log_dir.append("orders", pa.table({"key": keys, "value": pa.array(values, pa.string()), "timestamp": stamps}))


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """Some ten segments, of which four fit a new one; keys 0 to 9, in each write two of them."""
    log_dir = create_log_dir(root_place, clock=lambda: NOW_MS)
    log_dir.create_topic("orders", partitions=1, configs=CONFIGS)
    for number in range(40):
        keys = [str(number % 10), str(number * 7 % 10)] * 4
        append(log_dir, keys, [f"{number}-{at}" + "." * 20 for at in range(8)])
    if is_object_place(root_place):
        merge_segments(log_dir.root)
    log_dir.alter_topic("orders", add={"internal.segment.bytes": "6000"})
    return log_dir


def records(log_dir: LogDir) -> list[tuple[int, bytes, bytes | None]]:
    table = log_dir.read("orders", columns=["offset", "key", "value"])
    rows = zip(table["offset"].to_pylist(), table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    found = [(offset, key, value) for offset, key, value in rows]
    assert [each[0] for each in found] == sorted({each[0] for each in found})
    return found


def latest(found: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, tuple[int, bytes | None]]:
    return {key: (offset, value) for offset, key, value in found}


def clean_below(log_dir: LogDir) -> int:
    """The end of the clean part: the cleaner's checkpoint."""
    root = log_dir.root.native()
    if isinstance(root, ObjectRoot):
        segments = root.store.refresh().partition("orders", 0).segments
        return [each.end_offset for each in segments if each.is_cleaned][-1]
    return read_offset_checkpoint(Path(log_dir.path) / CLEANER_OFFSET_CHECKPOINT)[ORDERS]


def directory(log_dir: LogDir) -> Path:
    return log_dir.path / "orders-0"


def test_cleaning_keeps_only_latest_record_of_each_key(log_dir: LogDir) -> None:
    before = records(log_dir)
    report = clean_partition(log_dir.root, "orders", 0)
    after = records(log_dir)
    assert (report.error, report.skipped) == (None, None)
    assert set(after) <= set(before)
    assert latest(after) == latest(before)
    closed = [each for each in after if each[0] < (report.first_uncleanable_offset or 0)]
    assert len(closed) == len({key for _, key, _ in closed})
    assert report.records_dropped == len(before) - len(after)
    assert report.recopy_percent is not None
    assert report.recopy_percent < 30
    assert report.segments_dropped > 3
    assert clean_below(log_dir) == report.first_uncleanable_offset


@pytest.mark.parametrize("buffer_bytes", [1 << 20, 24 * 12], ids=["one map", "many maps"])
def test_records_without_key_that_were_written_before_compaction_are_removed_and_counted(
    log_dir: LogDir, buffer_bytes: int
) -> None:
    log_dir.create_topic("late", partitions=1, configs={"internal.segment.bytes": "600"})
    for number in range(20):
        keys = [f"{number}", None, f"{number}-b", None, None]
        log_dir.append("late", pa.table({"key": keys, "value": ["." * 100] * len(keys)}), partition=0, flush="os")
    log_dir.alter_topic("late", add={"cleanup.policy": "compact"})
    before = log_dir.read("late").to_pylist()
    report = clean_partition(log_dir.root, "late", 0, dedupe_buffer_bytes=buffer_bytes)
    end_offset = report.first_uncleanable_offset or 0
    expected = sum(row["key"] is None for row in before if row["offset"] < end_offset)
    assert (report.error, report.records_without_key, report.records_dropped) == (None, expected, expected)
    assert expected > 10
    assert (report.key_shards == 1) == (buffer_bytes == 1 << 20)
    assert not any(row["key"] is None for row in log_dir.read("late").to_pylist() if row["offset"] < end_offset)


def test_second_cleaning_changes_nothing(log_dir: LogDir) -> None:
    clean_partition(log_dir.root, "orders", 0)
    before = records(log_dir)
    assert clean_partition(log_dir.root, "orders", 0, force=True).skipped == "nothing to clean"
    assert records(log_dir) == before


def test_records_written_after_cleaning_are_cleaned_by_next_run(log_dir: LogDir) -> None:
    clean_partition(log_dir.root, "orders", 0)
    for number in range(12):
        append(log_dir, [str(at) for at in range(8)], [f"new-{number}" + "." * 30] * 8)
    before = records(log_dir)
    report = clean_partition(log_dir.root, "orders", 0)
    assert report.skipped is None
    assert report.first_dirty_offset is not None
    assert report.first_dirty_offset > 0
    after = records(log_dir)
    assert latest(after) == latest(before)
    assert len(after) < len(before)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_record_larger_than_the_topic_allows_after_decompression_stops_cleaning_until_it_is_allowed(
    log_dir: LogDir, codec: str
) -> None:
    log_dir.alter_topic("orders", add={"compression.type": codec, "internal.segment.bytes": "500"})
    for number in range(40):
        append(log_dir, ["1", "2"], [f"{number}" + "v" * (20_000 if number == 5 else 1)] * 2)
    log_dir.alter_topic("orders", add={"max.decompressed.message.bytes": "20000"})
    before = records(log_dir)
    report = clean_partition(log_dir.root, "orders", 0, dedupe_buffer_bytes=24 * 12)
    assert "max.decompressed.message.bytes=20000" in str(report.error)
    assert records(log_dir) == before
    log_dir.alter_topic("orders", delete=["max.decompressed.message.bytes"])
    report = clean_partition(log_dir.root, "orders", 0)
    assert (report.error, report.skipped) == (None, None)
    assert len(records(log_dir)) < len(before)


def test_tombstones_are_removed_at_their_delete_horizon(log_dir: LogDir) -> None:
    log_dir.alter_topic("orders", add={**CONFIGS, "delete.retention.ms": "5000", "min.cleanable.dirty.ratio": "0"})
    append(log_dir, ["0", "1", "2"], [None] * 3)
    for number in range(8):
        append(log_dir, [str(at) for at in range(3, 10)], [f"{number}" + "." * 40] * 7)

    def tombstones() -> set[bytes]:
        return {key for _, key, value in records(log_dir) if value is None}

    gone = {b"0", b"1", b"2"}
    clean_partition(log_dir.root, "orders", 0, now_ms=NOW_MS)
    assert tombstones() == gone  # they have their horizon now
    fill = 0
    for now_ms, expected in ((NOW_MS + 4999, gone), (NOW_MS + 5000, set())):
        for _ in range(8):
            fill += 1
            append(log_dir, [str(at) for at in range(3, 10)], [f"more-{fill}" + "." * 40] * 7)
        clean_partition(log_dir.root, "orders", 0, now_ms=now_ms)
        assert tombstones() == expected
    assert {key for _, key, _ in records(log_dir)} == {b"%d" % each for each in range(3, 10)}


def test_tombstones_with_unlimited_retention_are_kept(log_dir: LogDir) -> None:
    log_dir.alter_topic("orders", add={"delete.retention.ms": str(2**63 - 1)})
    append(log_dir, ["gone"], [None])
    for number in range(10):
        append(log_dir, ["1"] * 8, [str(number)] * 8)
    for now_ms in (NOW_MS, 2 * NOW_MS):
        assert clean_partition(log_dir.root, "orders", 0, now_ms=now_ms, force=True).error is None
        assert any(key == b"gone" and value is None for _, key, value in records(log_dir))
        for number in range(10):
            append(log_dir, ["1"] * 8, [str(number)] * 8)


def test_log_that_is_not_dirty_enough_is_cleaned_only_with_force(log_dir: LogDir) -> None:
    log_dir.alter_topic("orders", add=CONFIGS)
    clean_partition(log_dir.root, "orders", 0)
    for _ in range(2):
        append(log_dir, ["0"] * 8, ["." * 150] * 8)
    log_dir.alter_topic("orders", add={"min.cleanable.dirty.ratio": "0.99"})
    assert clean_partition(log_dir.root, "orders", 0).skipped == "not dirty enough"
    assert clean_partition(log_dir.root, "orders", 0, force=True).skipped is None


@pytest.mark.file_roots
def test_partition_locked_by_another_run_is_skipped(log_dir: LogDir) -> None:
    with partition_lock(directory(log_dir)):
        assert clean_partition(log_dir.root, "orders", 0).skipped == "another run has the partition"
    assert clean_partition(log_dir.root, "orders", 0).skipped is None


def test_topic_is_cleaned_only_with_cleanup_policy_compact(log_dir: LogDir) -> None:
    log_dir.alter_topic("orders", add={"cleanup.policy": "delete"})
    assert clean_partition(log_dir.root, "orders", 0).skipped == "cleanup.policy is not compact"
    log_dir.alter_topic("orders", add={"cleanup.policy": "compact,delete"})
    assert clean_partition(log_dir.root, "orders", 0).skipped is None


@pytest.mark.file_roots
def test_unwritten_partition_without_directory_is_skipped(log_dir: LogDir) -> None:
    log_dir.create_topic("empty", partitions=1, configs=CONFIGS)
    shutil.rmtree(log_dir.path / "empty-0")
    assert clean_partition(log_dir.root, "empty", 0).skipped == "nothing was ever written to it"
    with pytest.raises(UnknownTopicError):
        clean_partition(log_dir.root, "missing", 0)


@pytest.mark.file_roots
def test_lost_directory_of_written_partition_is_reported(log_dir: LogDir) -> None:
    shutil.rmtree(directory(log_dir))
    reports = [
        clean_partition(log_dir.root, "orders", 0),
        *apply_retention(log_dir.root),
        *merge_segments(log_dir.root),
        *reindex(log_dir.root),
    ]
    assert ["restore it" in str(each.error) for each in reports] == [True] * 4


def test_cleaning_of_broker_directory_is_rejected() -> None:
    with pytest.raises(ReadOnlyLogDirError):
        clean_partition(LogDir.open(FIXTURES / "compacted-1-dirty").root, "compacted-plain", 0)


@pytest.mark.file_roots
def test_files_of_cleaned_segments_are_deleted_after_delay(log_dir: LogDir) -> None:
    def deleted() -> list[Path]:
        return list(directory(log_dir).glob("*.deleted"))

    clean_partition(log_dir.root, "orders", 0, now_ms=NOW_MS)
    assert deleted()
    clean_partition(log_dir.root, "orders", 0, now_ms=NOW_MS + 59_999)
    assert deleted()
    clean_partition(log_dir.root, "orders", 0, now_ms=NOW_MS + 60_000)
    assert not deleted()


@pytest.mark.file_roots
@pytest.mark.parametrize(("tail_bytes", "times"), [(64 << 20, 1), (0, 2)])
def test_batches_of_the_dirty_part_are_decoded_once_while_what_stays_fits_memory(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch, tail_bytes: int, times: int
) -> None:
    decoded: list[int] = []
    open_sections = record_chunks.open_sections

    def count(log: Any, batches: Any, **arguments: Any) -> Any:
        decoded.extend(batches["base_offset"].tolist())
        return open_sections(log, batches, **arguments)

    monkeypatch.setattr(record_chunks, "open_sections", count)
    monkeypatch.setattr("pyspark_kafkalog.maintenance.cleaner.copy._TAIL_BYTES", tail_bytes)
    expected = latest(records(log_dir))
    report = clean_partition(log_dir.root, "orders", 0, force=True)
    assert report.error is None
    log_dir.refresh()
    assert latest(records(log_dir)) == expected
    assert max(Counter(decoded).values()) == times


@pytest.mark.file_roots
def test_topic_recreated_during_cleaning_is_not_changed(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    find = cleaner.find_survivors

    def and_meanwhile(*arguments: Any) -> Any:
        found = find(*arguments)
        other = open_log_dir(log_dir.path, clock=lambda: NOW_MS)
        other.delete_topic("orders")
        other.create_topic("orders", partitions=1, configs=CONFIGS)
        append(other, ["a"], ["b"])
        return found

    monkeypatch.setattr(cleaner, "find_survivors", and_meanwhile)
    report = clean_partition(log_dir.root, "orders", 0)
    assert report.error is not None
    log_dir.refresh()
    assert records(log_dir) == [(0, b"a", b"b")]
    monkeypatch.undo()
    clean_partition(log_dir.root, "orders", 0)
    assert not has_unfinished(directory(log_dir))
    assert records(log_dir) == [(0, b"a", b"b")]


def make_anew(log_dir: LogDir) -> None:
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=1, configs=CONFIGS)


def test_recreated_topic_does_not_inherit_cleaner_checkpoint(log_dir: LogDir) -> None:
    cleaned = clean_partition(log_dir.root, "orders", 0)
    make_anew(log_dir)
    for number in range(50):
        append(log_dir, ["a"] * 8, [str(number)] * 8)
    report = clean_partition(log_dir.root, "orders", 0)
    assert (report.skipped, report.first_dirty_offset) == (None, 0)
    assert (report.first_uncleanable_offset or 0) > (cleaned.first_uncleanable_offset or 0)


@pytest.mark.file_roots
def test_topic_recreated_as_cleaning_finishes_gets_no_checkpoint(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = CleanedFiles.finish

    def first_made_anew(*arguments: Any, **named: Any) -> Any:
        make_anew(open_log_dir(log_dir.path, clock=lambda: NOW_MS))
        return finish(*arguments, **named)

    monkeypatch.setattr(CleanedFiles, "finish", first_made_anew)
    report = clean_partition(log_dir.root, "orders", 0)
    assert report.error is not None
    assert "deleted meanwhile" in report.error
    assert read_offset_checkpoint(log_dir.path / CLEANER_OFFSET_CHECKPOINT) == {}


def _roots() -> list[tuple[str, Callable[[Path], LogDir], str]]:
    def of_a_broker(root: Path) -> LogDir:
        shutil.copytree(FIXTURES / "compacted-3-dirty", root, ignore=shutil.ignore_patterns("expected"))
        log_dir = adopt_log_dir(root, clock=lambda: NOW_MS)
        configs = {**manifest("compacted-3-dirty")["topics"]["compacted-txn"]["configs"], **CONFIGS}
        log_dir.alter_topic("compacted-txn", add={**configs, "internal.segment.bytes": "15000"})
        return log_dir

    return [("transactions", of_a_broker, "compacted-txn")]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "topic"), [(make, topic) for _, make, topic in _roots()], ids=["transactions"])
def test_cleaning_killed_at_any_change_loses_nothing(
    tmp_path: Path, make: Callable[[Path], LogDir], topic: str
) -> None:
    make(tmp_path / "root")

    def read(root: Path) -> list[tuple[int, bytes, bytes | None]]:
        table = LogDir.open(root).read(topic, isolation="read_committed", columns=["offset", "key", "value"])
        rows = zip(table["offset"].to_pylist(), table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
        found = [(offset, key, value) for offset, key, value in rows]
        assert [each[0] for each in found] == sorted({each[0] for each in found})
        return found

    before = read(tmp_path / "root")
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "root", whole)
    assert clean_partition(open_log_dir(whole, clock=lambda: NOW_MS).root, topic, 0).error is None
    after = read(whole)
    died_at, killed = 0, True
    while killed:
        root = tmp_path / f"{died_at}"
        shutil.copytree(tmp_path / "root", root)
        fs = StoppingFileSystem()
        log_dir = open_log_dir(root, clock=lambda: NOW_MS, fs=fs)
        fs.stops_at = died_at
        try:
            clean_partition(log_dir.root, topic, 0)
            killed = False
        except Killed:
            pass
        found = read(root)
        assert set(after) <= set(found) <= set(before)
        assert clean_partition(open_log_dir(root, clock=lambda: NOW_MS).root, topic, 0).error is None
        assert read(root) == after
        assert not has_unfinished(root / f"{topic}-0")
        shutil.rmtree(root)
        died_at += 3
    assert died_at > 60


@pytest.mark.file_roots
def test_cleaning_on_full_disk_fails_and_keeps_latest_records(log_dir: LogDir) -> None:
    class Full(FileSystem):
        def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
            raise LogDirError(28, "No space left on device")

    before = records(log_dir)
    full = open_log_dir(log_dir.path, clock=lambda: NOW_MS, fs=Full())
    report = clean_partition(full.root, "orders", 0)
    assert report.error is not None
    assert "No space left" in report.error
    assert set(records(log_dir)) <= set(before)
    assert latest(records(log_dir)) == latest(before)
    assert not has_unfinished(directory(log_dir))
    assert clean_partition(log_dir.root, "orders", 0).error is None
