"""Roots in every earlier format version can be read, written and maintained."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.controlled import open_log_dir
from builders.format_roots import ROOTS, T0, TIERED_ROOT, contents, remote_in, rows
from builders.leader_writers import Served, append, batch
from builders.metadata_roots import commit_files, forget_images
from builders.tiered_logs import fill
from builders.verify_roots import check_again_at_once, findings_in
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import UnsupportedFormatError
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.export.export import export_to
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata import root_format
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    FORMAT_VERSION,
    OLDEST_FORMAT_VERSION,
    TIERED_FORMAT_VERSION,
)
from pyspark_kafkalog.storage.names import TopicPartition

FORMATS = sorted(path.name for path in ROOTS.iterdir())
NOW_MS = T0 + 3 * 3_600_000
METADATA_DIR = "__cluster_metadata-0"


@pytest.fixture(params=FORMATS)
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of a kept root, and what it holds."""
    kept = ROOTS / request.param
    shutil.copytree(kept / "root", tmp_path / "root")
    forget_images()
    return tmp_path / "root", json.loads((kept / "expected.json").read_text())


def opened(root: Path) -> LogDir:
    """As by a new process."""
    forget_images()
    return open_log_dir(root, clock=lambda: NOW_MS)


def test_every_supported_version_has_its_root() -> None:
    versions = {*range(OLDEST_FORMAT_VERSION, FORMAT_VERSION + 1)} - {TIERED_FORMAT_VERSION}  # that of TIERED_ROOT
    assert {f"format-{version}" for version in versions} <= set(FORMATS)


@pytest.mark.parametrize("kept", [ROOTS, TIERED_ROOT], ids=lambda kept: kept.name)
def test_kept_roots_are_under_version_control_whole(kept: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=kept, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    found = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    assert set(filter(None, listed.stdout.split("\0"))) == found


def test_kept_root_holds_every_kind_of_state(copied: tuple[Path, dict[str, Any]]) -> None:
    root, _ = copied
    names = {path.name for path in root.rglob("*")}
    for needed in (FORMAT_MARKER, "kafkalog-newest-snapshot", "kafkalog-head", "replication-offset-checkpoint"):
        assert needed in names
    for suffix in (".staged", ".checkpoint", ".txnindex", ".snapshot", ".timeindex", "-delete"):
        assert any(name.endswith(suffix) for name in names), suffix
    log_dir = opened(root)
    assert all(log_dir.root.native().store.image.transactional_ids["query"].fenced)
    assert [len(each["leaderEpochs"]) for each in contents(log_dir)["topics"]["orders"]["partitions"]] == [1, 2]


def test_kept_root_is_read_completely(copied: tuple[Path, dict[str, Any]]) -> None:
    root, expected = copied
    found = contents(opened(root))
    for part in expected:
        assert found[part] == expected[part], part


def test_kept_root_is_sound_and_takes_writes_and_maintenance(
    copied: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, expected = copied
    check_again_at_once(monkeypatch)
    assert findings_in(root) == []
    log_dir = opened(root)
    for topic, found in expected["topics"].items():
        if not topic.startswith("__"):
            for partition in range(len(found["partitions"])):
                log_dir.append(topic, rows(5000, 3), partition=partition, compression_type="zstd")
    assert log_dir.append("orders", rows(0, 1), transactional_id="nightly", transaction_version=2).is_duplicate
    log_dir.append("orders", rows(5003, 1), partition=0, transactional_id="nightly", transaction_version=3)
    log_dir.group("readers").commit({("orders", 1): 9})
    log_dir.create_topic("later", partitions=1)
    log_dir.alter_topic("later", add={"retention.ms": "1000"})
    log_dir.add_partitions("empty", 2)
    delete_records(log_dir.root, {TopicPartition("orders", 1): 3})
    assert [report.error for report in apply_retention(log_dir.root, topics=["aged", "orders"])] == [None] * 3
    assert clean_partition(log_dir.root, "cleaned", 0, force=True).error is None
    assert [report.error for report in merge_segments(log_dir.root, topics=["orders"])] == [None] * 2

    log_dir.delete_topic("aged")
    after = contents(opened(root))
    assert after["formatVersion"] == expected["formatVersion"]
    assert (root / METADATA_DIR / FORMAT_MARKER).read_text() == f"version={expected['formatVersion']}\n"
    for topic in ("orders", "codecs", "transactions"):
        pairs = zip(expected["topics"][topic]["partitions"], after["topics"][topic]["partitions"], strict=True)
        for number, (was, now) in enumerate(pairs):
            start = now["offsets"][0]
            kept = [each for each in was["records"] if each[0] >= start]
            added = 4 if (topic, number) == ("orders", 0) else 3
            assert now["records"][: len(kept)] == kept
            assert len(now["records"]) == len(kept) + added
            committed = [offset for offset in was["committed"] if offset >= start]
            assert now["committed"][: len(committed)] == committed
    assert after["groups"]["readers"]["orders-1"] == [9, ""]
    assert after["groups"]["others"] == expected["groups"]["others"]
    assert after["acls"] == expected["acls"]
    assert findings_in(root) == []
    export_to(opened(root).root.native(), tmp_path / "copy")
    copied_rows = LogDir.open(tmp_path / "copy").read("orders")
    assert copied_rows.num_rows == opened(root).read("orders").num_rows


def test_kept_root_without_snapshot_is_read_from_commits(copied: tuple[Path, dict[str, Any]]) -> None:
    root, expected = copied
    for path in (root / METADATA_DIR).iterdir():
        if path.suffix == ".checkpoint":
            path.unlink()
    found = contents(opened(root))
    assert found["topics"] == expected["topics"]
    opened(root).append("orders", pa.table({"value": ["x"]}), partition=0)


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A copy of the kept root that tiers, with its remote storage."""
    shutil.copytree(TIERED_ROOT, tmp_path / "tiered")
    forget_images()
    with remote_in(tmp_path / "tiered" / "remote"):
        yield tmp_path / "tiered" / "root", json.loads((TIERED_ROOT / "expected.json").read_text())


def test_kept_tiered_root_is_read_completely(tiered: tuple[Path, dict[str, Any]]) -> None:
    root, expected = tiered
    log_dir = opened(root)
    assert contents(log_dir) == expected
    assert (expected["formatVersion"], expected["topics"]["orders"]["partitions"][0]["offsets"][0]) == (2, 31)
    assert log_dir.partition("orders", 0).local_log_start_offset > 100
    assert len(expected["topics"]["orders"]["partitions"][0]["leaderEpochs"]) > 2


def test_kept_tiered_root_is_sound_and_takes_writes_and_maintenance(
    tiered: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, expected = tiered
    check_again_at_once(monkeypatch)
    assert findings_in(root) == []
    log_dir = opened(root)
    before = log_dir.partition("orders", 0)
    fill(log_dir, random.Random(2), 30)
    assert [report.error for report in tier_segments(log_dir.root)] == [None]
    assert [report.error for report in apply_retention(log_dir.root, topics=["orders"])] == [None]
    delete_records(log_dir.root, {TopicPartition("orders", 0): 60})
    assert findings_in(root) == []
    after = opened(root).partition("orders", 0)
    assert after.local_log_start_offset > before.local_log_start_offset
    assert after.latest_tiered_offset > before.latest_tiered_offset
    records = [each for each in expected["topics"]["orders"]["partitions"][0]["records"] if each[0] >= 60]
    found = contents(opened(root))["topics"]["orders"]["partitions"][0]["records"]
    assert found[: len(records)] == records
    export_to(opened(root).root.native(), tmp_path / "copy")
    assert LogDir.open(tmp_path / "copy").read("orders").num_rows == len(found)


def test_raised_root_is_sound_and_processes_that_have_it_open_write_on_in_shared_files(
    tiered: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, expected = tiered
    check_again_at_once(monkeypatch)
    server, writer, reader = Served(root, now_ms=NOW_MS), opened(root), opened(root)
    added = rows(9000, 2)
    writer.append("orders", added, partition=0)
    features = Command("features", root, capsys)
    assert features("describe").endswith("SupportedMaxVersion: 3\tFinalizedVersionLevel: 2\n")
    assert features("upgrade") == "format.version was upgraded to 3.\n"
    files = len(commit_files(root))
    for _ in range(3):
        assert server.append(append(batch([b"served"]), "orders")).last_offset > 0  # type: ignore[union-attr]
        writer.append("orders", added, partition=0)
    writer.create_topic("later", partitions=1)
    assert len(commit_files(root)) == files + 1  # after the upgrade a snapshot was due: the next commit begins a file
    assert features("upgrade") == "format.version is 3 already: there is nothing to upgrade.\n"
    reader.refresh()
    assert contents(reader) == contents(opened(root))
    was = expected["topics"]["orders"]["partitions"][0]["records"]
    now = contents(opened(root))["topics"]["orders"]["partitions"][0]["records"]
    assert now[: len(was)] == was
    assert [each[3] for each in now[len(was) + 2 :]] == 3 * ["served", *added["value"].to_pylist()]
    assert findings_in(root) == []
    with monkeypatch.context() as older:
        older.setattr(root_format, "NEWEST_FORMAT_VERSION", TIERED_FORMAT_VERSION)
        with pytest.raises(UnsupportedFormatError, match=f"{FORMAT_MARKER} .*found format version 3; upgrade"):
            opened(root)
