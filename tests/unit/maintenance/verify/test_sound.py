"""Verification reports nothing for sound logs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.verify_roots import T0, findings_in, make_root
from repository import FIXTURES
from simulations.cleaner_reference import write_segment

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.findings import Severity
from pyspark_kafkalog.maintenance.verify.verify import plan_verification, run_unit, verify
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.producer_snapshot import read_snapshot, write_snapshot
from pyspark_kafkalog.storage.artefacts.transaction_index import parse_aborted
from pyspark_kafkalog.storage.names import TopicPartition

NAMES = sorted(path.parent.parent.name for path in FIXTURES.glob("*/expected/manifest.json"))


pytestmark = pytest.mark.usefixtures("without_waits")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "unclean"])
def test_broker_directory_is_sound(name: str) -> None:
    result = verify(LogDir.open(FIXTURES / name).root, are_records_checked=True)
    assert [each for each in result.findings if each.severity is not Severity.INFO] == []
    assert result.is_sound


@pytest.mark.parametrize("name", ["transactions", "compacted-2-cleaned", "compacted-4-cleaned", "unclean", "retention"])
def test_adopted_directory_has_no_findings(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / "log")
    LogDir.adopt(tmp_path / "log", create_missing=True)
    assert findings_in(tmp_path / "log") == []


def test_transaction_below_log_start_needs_no_index_entry(tmp_path: Path) -> None:
    """Kafka's cleaner keeps the data, which is never read, and removes the entry."""
    root = tmp_path / "log"
    shutil.copytree(FIXTURES / "transactions", root)
    index = root / "transactions-0" / "00000000000000000013.txnindex"
    last = parse_aborted(index.read_bytes(), file=str(index))[-1]
    index.unlink()
    for log_start_offset, found in (
        (last.last_offset + 1, []),
        (last.last_offset, []),  # only the marker is left, and a writer that rebuilds the state now makes no entry
        (last.first_offset, ["txn-index-missing"]),
    ):
        lines = {TopicPartition("transactions", 0): log_start_offset}
        write_offset_checkpoint(root / LOG_START_OFFSET_CHECKPOINT, lines)
        assert [each.what for each in findings_in(root)] == found


def test_index_entry_of_transaction_below_log_start_is_not_checked(tmp_path: Path) -> None:
    root = tmp_path / "log"
    shutil.copytree(FIXTURES / "transactions", root)
    index = root / "transactions-0" / "00000000000000000013.txnindex"
    last_marker = int.from_bytes(index.read_bytes()[-16:-8], "big")
    of_another_producer = index.read_bytes()[:-32] + bytes(8) + index.read_bytes()[-24:]
    index.write_bytes(of_another_producer)
    for log_start_offset, found in ((last_marker + 1, []), (last_marker, ["txn-index-entry"])):
        lines = {TopicPartition("transactions", 0): log_start_offset}
        write_offset_checkpoint(root / LOG_START_OFFSET_CHECKPOINT, lines)
        assert [each.what for each in findings_in(root)] == found


def test_tails_of_killed_broker_are_warnings_and_lost_indexes_errors() -> None:
    result = verify(LogDir.open(FIXTURES / "unclean").root)
    found = [
        (finding.severity.value, finding.what, Path(finding.file).parent.name, finding.position, finding.offset)
        for finding in result.findings
    ]
    assert found == [
        ("warning", "batch-crc", "unclean-badcrc-0", 1959, 340),
        ("warning", "batch-header", "unclean-garbage-0", 1976, 350),
        ("error", "index-missing", "unclean-noindex-0", None, None),
        ("error", "index-length", "unclean-noindex-0", 0, None),
        ("warning", "time-index-end", "unclean-noindex-0", 0, None),
        ("warning", "torn-batch", "unclean-torn-0", 2330, 349),
    ]


def test_own_root_has_no_findings_after_each_maintenance_step(tmp_path: Path) -> None:
    log_dir = make_root(tmp_path / "log")
    assert findings_in(log_dir.path) == []
    log_dir.alter_topic("orders", add={"retention.bytes": "3500"})
    apply_retention(log_dir.root, topics=["orders"])
    assert findings_in(log_dir.path) == []
    log_dir.alter_topic("orders", add={"internal.segment.bytes": "100000", "retention.bytes": "-1"})
    merge_segments(log_dir.root, topics=["orders"])
    assert findings_in(log_dir.path) == []
    log_dir.delete_topic("orders")
    assert findings_in(log_dir.path) == []


def test_units_of_partition_cover_all_its_segments_once(tmp_path: Path) -> None:
    log_dir = make_root(tmp_path / "log")
    plan = plan_verification(log_dir.root, unit_bytes=1)
    assert max(len(each.units) for each in plan) >= 4
    for each in plan:
        assert [unit.is_first for unit in each.units] == [at == 0 for at in range(len(each.units))]
        segments = [segment for unit in each.units for segment in run_unit(unit, lambda: log_dir.root).segments]
        assert [segment.findings for segment in segments] == [()] * len(segments)
        assert sorted(segment.base_offset for segment in segments) == each.scope.bases()


def test_bytes_and_records_read_are_counted(tmp_path: Path) -> None:
    log_dir = make_root(tmp_path / "log")
    reports = {(each.topic, each.partition): each for each in verify(log_dir.root).reports}
    for number in (0, 1):
        size_bytes = sum(path.stat().st_size for path in (log_dir.path / f"orders-{number}").glob("*.log"))
        report = reports["orders", number]
        assert (report.bytes_read, report.records_read, report.is_fine) == (size_bytes, 80, True)
    assert reports["empty", 1].bytes_read == 0


def test_timestamp_zero_in_time_index_is_valid(tmp_path: Path) -> None:
    log_dir = create_log_dir(tmp_path / "log", clock=lambda: T0)
    log_dir.create_topic("old", partitions=1, configs={"internal.segment.bytes": "300", "index.interval.bytes": "1"})
    for first_ms in (0, 0, 5):
        timestamps = pa.array([first_ms] * 5, pa.timestamp("ms"))
        log_dir.append("old", pa.table({"value": [b"x" * 20] * 5, "timestamp": timestamps}), partition=0)
    assert findings_in(log_dir.path) == []


def test_offsets_near_int64_maximum_are_within_their_segment(tmp_path: Path) -> None:
    offset = 2**63 - 50
    directory = tmp_path / "log" / "orders-0"
    directory.mkdir(parents=True)
    record = Record(offset=offset, timestamp_ms=T0, key=b"k", value=b"v")
    write_segment(directory, offset, [encode_batch([record], leader_epoch=0)], LogConfig())
    assert "offset-past-segment" not in [each.what for each in findings_in(tmp_path / "log")]


def test_batch_larger_than_read_buffer_is_sound(tmp_path: Path) -> None:
    log_dir = create_log_dir(tmp_path / "log", clock=lambda: T0)
    log_dir.create_topic("large", partitions=1, configs={"max.message.bytes": str(32 << 20)})
    log_dir.append("large", pa.table({"value": [b"a", b"b" * (9 << 20), b"c"]}), partition=0)
    assert findings_in(log_dir.path) == []


def test_snapshot_without_what_lies_below_the_log_start_is_sound(tmp_path: Path) -> None:
    """A writer that has rebuilt the producers' state since the log start has moved knows no more, as a broker."""
    root = tmp_path / "log"
    shutil.copytree(FIXTURES / "transactions", root)
    logs = sorted((root / "transactions-0").glob("*.log"))
    path = next(each.with_suffix(".snapshot") for each in logs[1:] if read_snapshot(each.with_suffix(".snapshot")))
    *others, entry = read_snapshot(path)
    forgotten = replace(entry, last_sequence=-1, last_offset=-1, offset_delta=0, current_txn_first_offset=-1)
    write_snapshot(path, [*others, forgotten])
    log_dir = LogDir.adopt(root, create_missing=True)
    for log_start_offset, found in ((entry.last_offset, ["producer-snapshot-differs"]), (entry.last_offset + 1, [])):
        delete_records(log_dir.root, {TopicPartition("transactions", 0): log_start_offset})
        assert [each.what for each in findings_in(root)] == found
