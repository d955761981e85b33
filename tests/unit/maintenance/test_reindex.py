"""Reindexing restores lost and damaged indexes from the log, and keeps correct ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.jobs.partition import partition_lock
from pyspark_kafkalog.maintenance.reindex import reindex
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets

KINDS = (".index", ".timeindex", ".txnindex", ".snapshot")
T0 = 1_700_000_000_000


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    log_dir = create_log_dir(tmp_path / "log", clock=lambda: T0)
    log_dir.create_topic(
        "orders", partitions=1, configs={"internal.segment.bytes": "3000", "index.interval.bytes": "100"}
    )
    for number in range(10):
        values = [b"%d" % (number * 20 + at) + b"." * 40 for at in range(20)]
        log_dir.append("orders", pa.table({"value": values}), partition=0)
    log_dir.refresh()
    return log_dir


def hints(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix in KINDS}


def test_sound_log_is_not_changed(log_dir: LogDir) -> None:
    before = hints(log_dir.path / "orders-0")
    [report] = reindex(log_dir.root)
    assert (report.error, report.files_written) == (None, 0)
    assert hints(log_dir.path / "orders-0") == before


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("damage", ["gone", "short", "garbage", "long"])
@pytest.mark.slow
def test_lost_or_damaged_file_is_rebuilt(log_dir: LogDir, kind: str, damage: str) -> None:
    directory = log_dir.path / "orders-0"
    before = hints(directory)
    for path in sorted(directory.glob("*" + kind)):
        content = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes({"short": content[:-3], "garbage": b"\x7f" * 24, "long": content + b"\0" * 96}[damage])
    changed = {name for name, content in before.items() if hints(directory).get(name) != content}
    [told] = reindex(log_dir.root, dry_run=True)
    assert told.files_written == len(changed)
    [report] = reindex(log_dir.root)
    assert (report.error, report.files_written) == (None, len(changed))
    assert hints(directory) == before
    log_dir.append("orders", pa.table({"value": [b"x"]}), partition=0)
    log_dir.refresh()
    assert log_dir.read("orders").num_rows == 201


def test_rebuilt_transaction_indexes_and_snapshots_match_broker(tmp_path: Path) -> None:
    root = tmp_path / "log"
    shutil.copytree(FIXTURES / "transactions", root)
    log_dir = LogDir.adopt(root, create_missing=True)
    found = [partition for topic in log_dir.topics() for partition in log_dir.topic(topic).partitions]
    expected = {each.directory: hints(each.directory) for each in found}
    assert any(name.endswith(".txnindex") for names in expected.values() for name in names)
    for directory in expected:
        for path in directory.glob("*.txnindex"):
            path.unlink()
    reports = reindex(log_dir.root)
    assert [each.error for each in reports] == [None] * len(reports)
    for directory, before in expected.items():
        after = hints(directory)
        for name, content in before.items():
            if name.endswith(".txnindex"):
                assert after.get(name, b"") == content
            elif name.endswith(".snapshot"):
                assert after[name] == content


def test_damaged_log_is_reported_and_not_changed(log_dir: LogDir) -> None:
    directory = log_dir.path / "orders-0"
    base = list_base_offsets(directory)[1]
    path = directory / f"{base:020d}.log"
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    [report] = reindex(log_dir.root)
    assert path.name in (report.error or "")
    assert path.read_bytes() == content


def test_uncommitted_tail_is_not_indexed(log_dir: LogDir) -> None:
    directory = log_dir.path / "orders-0"
    path = directory / f"{list_base_offsets(directory)[-1]:020d}.log"
    first = (directory / f"{0:020d}.log").read_bytes()
    with path.open("ab") as file:
        file.write(first)
    [report] = reindex(log_dir.root)
    assert (report.error, report.files_written) == (None, 0)
    assert path.read_bytes().endswith(first)


def test_partition_locked_by_another_run_is_skipped(log_dir: LogDir) -> None:
    with partition_lock(log_dir.path / "orders-0"):
        assert [each.skipped for each in reindex(log_dir.root)] == ["another run has the partition"]


def test_index_written_with_other_settings_is_replaced_only_with_force(log_dir: LogDir) -> None:
    before = hints(log_dir.path / "orders-0")
    log_dir.alter_topic("orders", add={"index.interval.bytes": "4096"})
    [report] = reindex(log_dir.root)
    assert (report.files_written, hints(log_dir.path / "orders-0")) == (0, before)
    [report] = reindex(log_dir.root, force=True)
    assert report.files_written > 0
    assert (log_dir.path / "orders-0" / f"{0:020d}.index").read_bytes() == b""
    log_dir.append("orders", pa.table({"value": [b"x"]}), partition=0)


def test_indexes_past_damage_are_kept(log_dir: LogDir) -> None:
    directory = log_dir.path / "orders-0"
    before = hints(directory)
    path = directory / f"{list_base_offsets(directory)[1]:020d}.log"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    [report] = reindex(log_dir.root)
    assert (report.files_written, hints(directory)) == (0, before)


def test_no_snapshot_is_created_from_damaged_log(log_dir: LogDir) -> None:
    directory = log_dir.path / "orders-0"
    _, second, third, *_ = list_base_offsets(directory)
    path = directory / f"{second:020d}.log"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    snapshot = directory / f"{third:020d}.snapshot"
    snapshot.unlink()
    reindex(log_dir.root)
    assert not snapshot.exists()
