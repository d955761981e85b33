"""Delete-records moves the log start of a partition to a valid offset, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.root_places import RootPlace
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError, ReadOnlyLogDirError
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.spark.options.positions import Earliest, GlobalTimestamp, Latest, Subscribe
from pyspark_kafkalog.spark.read.plan import OffsetResolver
from pyspark_kafkalog.spark.stream.plan import plan_latest, plan_read, take_view
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    LeaderEpochCheckpoint,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, TopicPartition

T0 = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    log_dir = create_log_dir(root_place, clock=lambda: T0)
    log_dir.create_topic("orders", partitions=1, configs=SMALL)
    for number in range(10):
        stamps = pa.array([(T0 - 1000 + number) * 1000] * 20, pa.timestamp("us", "UTC"))
        values = [b"%d" % (number * 20 + at) + b"." * 40 for at in range(20)]
        log_dir.append("orders", pa.table({"value": values, "timestamp": stamps}), partition=0)
    log_dir.refresh()
    return log_dir


def error_of(log_dir: LogDir, offset: int, where: TopicPartition = ORDERS) -> str | None:
    [report] = delete_records(log_dir.root, {where: offset})
    return report.error


def test_records_below_log_start_inside_batch_are_not_read(log_dir: LogDir) -> None:
    [report] = delete_records(log_dir.root, {ORDERS: 67})
    assert (report.error, report.log_start_offset) == (None, 67)
    for found in (log_dir, LogDir.open(log_dir.path)):
        found.refresh()
        assert found.read("orders")["offset"].to_pylist() == list(range(67, 200))
        with pytest.raises(OffsetOutOfRangeError):
            found.read("orders", partition=0, start_offset=66)
    log_dir.append("orders", pa.table({"value": [b"x"]}), partition=0)
    log_dir.refresh()
    assert log_dir.read("orders")["offset"].to_pylist() == list(range(67, 201))


def test_offsets_of_batch_query_begin_at_log_start(log_dir: LogDir) -> None:
    delete_records(log_dir.root, {ORDERS: 67})
    log_dir.refresh()
    resolver = OffsetResolver(
        log_dir.root, log_dir.topic("orders").partitions, committed=False, on_no_match="error", fail_on_data_loss=True
    )
    assert [(each.start_offset, each.end_offset) for each in resolver.resolve(Earliest(), Latest())] == [(67, 200)]
    # All records of the write that the log start is in have this timestamp or an earlier one.
    assert resolver.resolve_starts(GlobalTimestamp(T0 - 1000)) == {ORDERS: 67}
    assert resolver.resolve_starts(GlobalTimestamp(T0 - 997)) == {ORDERS: 67}
    assert resolver.resolve_starts(GlobalTimestamp(T0 - 996)) == {ORDERS: 80}


def test_stream_begins_at_log_start_and_reports_lost_offsets(log_dir: LogDir) -> None:
    delete_records(log_dir.root, {ORDERS: 67})
    log_dir.refresh()
    view = take_view(log_dir.root, Subscribe(("orders",)), committed=False)
    assert plan_latest({ORDERS: 67}, view, {}).losses == []
    assert "available are log start 67" in plan_latest({ORDERS: 66}, view, {}).losses[0]
    read = plan_read({ORDERS: 20}, {ORDERS: 90}, view, is_initial=False)
    assert [(each.start_offset, each.end_offset) for each in read.ranges] == [(67, 90)]
    assert len(read.losses) == 1


def test_offset_minus_one_deletes_up_to_high_watermark(log_dir: LogDir) -> None:
    [report] = delete_records(log_dir.root, {ORDERS: -1})
    assert report.log_start_offset == 200
    log_dir.refresh()
    assert log_dir.read("orders").num_rows == 0
    apply_retention(log_dir.root)
    if isinstance(log_dir.path, Path):
        assert len(list_base_offsets(log_dir.path / "orders-0")) == 1  # the active segment, as with Kafka
    log_dir.append("orders", pa.table({"value": [b"x"]}), partition=0)
    log_dir.refresh()
    assert log_dir.read("orders")["offset"].to_pylist() == [200]


def test_invalid_offsets_do_not_move_log_start(log_dir: LogDir) -> None:
    assert "the high watermark is 200" in (error_of(log_dir, 201) or "")
    assert "not valid" in (error_of(log_dir, -2) or "")
    assert "nothing" in (error_of(log_dir, 5, TopicPartition("nothing", 0)) or "")
    assert error_of(log_dir, 5, TopicPartition("orders", 7)) is not None
    log_dir.refresh()
    assert log_dir.partition("orders", 0).log_start_offset == 0
    assert error_of(log_dir, 50) is None
    [report] = delete_records(log_dir.root, {ORDERS: 20})
    assert (report.error, report.log_start_offset) == (None, 50)


def test_error_of_one_partition_does_not_stop_others(log_dir: LogDir) -> None:
    log_dir.create_topic("kept", partitions=1, configs={"cleanup.policy": "compact"})
    log_dir.create_topic("__consumer_offsets", partitions=1)
    asked = {TopicPartition("kept", 0): 0, TopicPartition("__consumer_offsets", 0): 0, ORDERS: 10}
    reports = {each.topic: each for each in delete_records(log_dir.root, asked)}
    assert "cleanup.policy" in (reports["kept"].error or "")
    assert "internal" in (reports["__consumer_offsets"].error or "")
    assert reports["orders"].log_start_offset == 10


def test_dry_run_changes_nothing(log_dir: LogDir) -> None:
    before = log_dir.version
    [report] = delete_records(log_dir.root, {ORDERS: 10}, dry_run=True)
    assert report.log_start_offset == 10
    assert "high watermark" in (delete_records(log_dir.root, {ORDERS: 201}, dry_run=True)[0].error or "")
    log_dir.refresh()
    assert log_dir.version == before


@pytest.mark.file_roots
def test_segments_below_log_start_are_deleted_with_any_cleanup_policy(log_dir: LogDir) -> None:
    delete_records(log_dir.root, {ORDERS: 67})
    log_dir.alter_topic("orders", add={"cleanup.policy": "compact", "retention.ms": "-1"})
    directory = log_dir.path / "orders-0"
    bases = list_base_offsets(directory)
    [report] = apply_retention(log_dir.root)
    kept = max(base for base in bases if base <= 67)
    assert list_base_offsets(directory) == [base for base in bases if base >= kept]
    assert report.segments_dropped == bases.index(kept)
    assert report.log_start_offset == 67
    log_dir.refresh()
    assert log_dir.read("orders")["offset"].to_pylist() == list(range(67, 200))


@pytest.mark.file_roots
def test_log_start_is_written_to_checkpoint_and_leader_epochs(log_dir: LogDir) -> None:
    delete_records(log_dir.root, {ORDERS: 67})
    path = log_dir.path / LOG_START_OFFSET_CHECKPOINT
    assert read_offset_checkpoint(path) == {ORDERS: 67}
    epochs = LeaderEpochCheckpoint.open(log_dir.path / "orders-0" / LEADER_EPOCH_CHECKPOINT)
    assert [tuple(each) for each in epochs.entries] == [(0, 67)]
    apply_retention(log_dir.root)
    assert read_offset_checkpoint(path) == {ORDERS: 67}
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=1, configs=SMALL)
    apply_retention(log_dir.root)
    assert read_offset_checkpoint(path) == {}


def test_delete_records_in_broker_directory_is_rejected() -> None:
    fixture = FIXTURES / "retention"
    with pytest.raises(ReadOnlyLogDirError):
        delete_records(LogDir.open(fixture).root, {ORDERS: 1})
