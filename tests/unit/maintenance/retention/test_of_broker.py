"""Retention and delete-records leave the same segments as a real broker (fixture `retention`)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import DELETED_SUFFIX, TopicPartition

FIXTURE = FIXTURES / "retention"
SEGMENTS = {"internal.segment.bytes": "3000", "index.interval.bytes": "200"}


def adopted(tmp_path: Path) -> LogDir:
    """The fixture as it was before the broker's retention, made ours."""
    root = tmp_path / "log"
    shutil.copytree(FIXTURE, root, ignore=shutil.ignore_patterns("*-delete", "expected"))
    for path in (root / "retention-bytes-0").glob("*" + DELETED_SUFFIX):
        path.rename(path.with_name(path.name.removesuffix(DELETED_SUFFIX)))
    return LogDir.adopt(root)


@pytest.mark.parametrize("retention_bytes", [3328, 5000, 6273])
def test_retention_by_size_deletes_same_segments_as_broker(tmp_path: Path, retention_bytes: int) -> None:
    """The fixture does not record its retention.bytes; between these values only the broker's choice is possible."""
    log_dir = adopted(tmp_path)
    log_dir.alter_topic(
        "retention-bytes", add={**SEGMENTS, "retention.bytes": str(retention_bytes), "retention.ms": "-1"}
    )
    [report] = apply_retention(log_dir.root, topics=["retention-bytes"])
    assert (report.error, report.log_start_offset) == (None, 247)
    directory = log_dir.path / "retention-bytes-0"
    assert list_base_offsets(directory) == list_base_offsets(FIXTURE / "retention-bytes-0")
    gone = {name for name in os.listdir(FIXTURE / "retention-bytes-0") if name.endswith(DELETED_SUFFIX)}
    assert {name for name in os.listdir(directory) if name.endswith(DELETED_SUFFIX)} == gone
    for name in ("leader-epoch-checkpoint", *gone):
        assert (directory / name).read_bytes() == (FIXTURE / "retention-bytes-0" / name).read_bytes()
    log_dir.refresh()
    with (FIXTURE / "expected/records/retention-bytes.read_uncommitted.jsonl").open() as lines:
        expected = [json.loads(line)["offset"] for line in lines]
    assert log_dir.read("retention-bytes")["offset"].to_pylist() == expected


@pytest.mark.parametrize("retention_bytes", [3327, 6274])
def test_retention_bytes_one_outside_broker_range_deletes_other_segments(tmp_path: Path, retention_bytes: int) -> None:
    log_dir = adopted(tmp_path)
    log_dir.alter_topic(
        "retention-bytes", add={**SEGMENTS, "retention.bytes": str(retention_bytes), "retention.ms": "-1"}
    )
    [report] = apply_retention(log_dir.root, topics=["retention-bytes"])
    assert report.log_start_offset == (329 if retention_bytes == 3327 else 170)


def test_deleted_records_of_broker_stay_deleted_after_retention(tmp_path: Path) -> None:
    log_dir = adopted(tmp_path)
    log_dir.alter_topic("delete-records", add={**SEGMENTS, "retention.ms": "-1"})
    [report] = apply_retention(log_dir.root, topics=["delete-records"])
    assert (report.error, report.log_start_offset, report.segments_dropped) == (None, 137, 0)
    log_dir.refresh()
    with (FIXTURE / "expected/records/delete-records.read_uncommitted.jsonl").open() as lines:
        expected = [json.loads(line)["offset"] for line in lines]
    assert log_dir.read("delete-records")["offset"].to_pylist() == expected
    assert log_dir.read("delete-records", partition=0, start_offset=137)["offset"].to_pylist() == expected
    [moved] = delete_records(log_dir.root, {TopicPartition("delete-records", 0): 171})
    assert moved.log_start_offset == 171
    [report] = apply_retention(log_dir.root, topics=["delete-records"])
    assert list_base_offsets(log_dir.path / "delete-records-0") == [171]
