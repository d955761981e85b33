"""Repair of a log whose transactions began in remote storage and were aborted in the local part."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from builders.tiered_exports import tier_closed_segments
from builders.tiered_roots import append_rounds, file_root, tiered_root
from builders.verify_roots import check_again_at_once, findings_in
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.reindex import reindex
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.root.commit.log_starts import LogStartMove, move_log_starts
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.names import PRODUCER_SNAPSHOT_SUFFIX, TopicPartition, segment_file

TOPIC = "transactions"
PARTITION = TopicPartition(TOPIC, 1)
ROUNDS = 6
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def log_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogDir:
    """What a broker wrote, adopted; its last transaction was aborted in the first local segment."""
    check_again_at_once(monkeypatch)
    remote = tmp_path / "remote"
    remote.mkdir()
    shutil.copytree(FIXTURES / TOPIC, tmp_path / "root", ignore=shutil.ignore_patterns("expected"))
    log_dir = LogDir.adopt(tmp_path / "root", create_missing=True)
    log_dir.alter_broker_configs(add={"rsm.config.location": str(remote), "remote.log.storage.system.enable": "true"})
    configs = {"remote.storage.enable": "true", "internal.segment.bytes": "2000", "retention.ms": "-1"}
    log_dir.alter_topic(TOPIC, add={**configs, "local.retention.ms": "-2"})
    for _ in range(ROUNDS):
        log_dir.append(TOPIC, pa.table({"value": [b"." * 40] * 20}), partition=PARTITION.partition, flush="os")
    assert tier_closed_segments(log_dir, PARTITION)
    log_dir.alter_topic(TOPIC, add={"local.retention.bytes": "9000"})
    [report] = apply_retention(log_dir.root, partitions=[PARTITION])
    assert report.local_segments_dropped
    return log_dir


def committed(log_dir: LogDir) -> list[Any]:
    log_dir.refresh()
    offsets: list[Any] = log_dir.read(TOPIC, partition=1, isolation="read_committed")["offset"].to_pylist()
    return offsets


def directory(log_dir: LogDir) -> Path:
    return Path(str(log_dir.path)) / str(PARTITION)


def remove_snapshots(log_dir: LogDir) -> Path:
    """Remove all producer snapshots; returns the path of the first, where the local log begins."""
    listing = PartitionListing.read(directory(log_dir))
    paths = [segment_file(directory(log_dir), at, PRODUCER_SNAPSHOT_SUFFIX) for at in listing.snapshot_offsets]
    assert listing.snapshot_offsets[0] == listing.base_offsets[0] > 0
    for path in paths:
        path.unlink()
    return paths[0]


def test_missing_snapshot_at_the_local_start_is_found_and_not_taken_for_wrong_indexes(log_dir: LogDir) -> None:
    first = remove_snapshots(log_dir)

    found = [each for each in findings_in(directory(log_dir).parent) if each.partition == PARTITION]

    assert {each.what for each in found} == {"producer-snapshot-missing"}
    assert found[0].file == str(first)


def test_reindexing_takes_the_snapshot_at_the_local_start_from_remote_storage(log_dir: LogDir) -> None:
    before = committed(log_dir)
    aborted = sorted(directory(log_dir).glob("*.txnindex"))
    entries = [each.read_bytes() for each in aborted]
    path = segment_file(
        directory(log_dir), PartitionListing.read(directory(log_dir)).base_offsets[0], PRODUCER_SNAPSHOT_SUFFIX
    )
    snapshot = path.read_bytes()
    assert aborted
    assert remove_snapshots(log_dir) == path

    [report] = reindex(log_dir.root, partitions=[PARTITION])

    assert report.error is None
    assert path.read_bytes() == snapshot
    assert [each.read_bytes() for each in aborted] == entries
    forget_images()
    assert committed(LogDir.open(directory(log_dir).parent)) == before
    assert [each for each in findings_in(directory(log_dir).parent) if each.partition == PARTITION] == []


def test_files_that_a_killed_retention_has_left_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    log_dir = tiered_root(tmp_path / "root", tmp_path / "remote")
    append_rounds(log_dir, 6)
    assert tier_closed_segments(log_dir, ORDERS) == 2
    move = LogStartMove(topic_partition=ORDERS, log_start_offset=0, local_log_start_offset=40)
    move_log_starts(file_root(log_dir), [move], operation="retention")

    [report] = reindex(log_dir.root, partitions=[ORDERS])

    assert report.error is None
    assert report.files_written == 0
    log_dir.alter_topic(ORDERS.topic, add={"internal.segment.bytes": "20000"})
    [merged] = merge_segments(log_dir.root, partitions=[ORDERS])
    assert merged.error is None
    assert PartitionListing.read(tmp_path / "root" / str(ORDERS)).base_offsets == [0, 40, 80]


def test_reindexing_changes_nothing_while_remote_storage_has_no_copy(log_dir: LogDir, tmp_path: Path) -> None:
    (tmp_path / "remote").rename(tmp_path / "elsewhere")
    remove_snapshots(log_dir)
    before = {each.name: each.read_bytes() for each in directory(log_dir).iterdir()}

    [report] = reindex(log_dir.root, partitions=[PARTITION])

    assert report.error is not None
    assert report.files_written == 0
    assert {each.name: each.read_bytes() for each in directory(log_dir).iterdir()} == before
