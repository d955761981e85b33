"""`kafkalog export` writes checkpoints and copies for a broker, and rejects targets that it must not change."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import open_log_dir
from fakes.stopping_filesystem import Killed, StoppingFileSystem
from kafkalog_command import Command

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.export.export import export_to
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_offset_checkpoint
from pyspark_kafkalog.storage.names import TopicPartition

ORDERS = [TopicPartition("orders", number) for number in (0, 1)]


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", partitions=2, configs={"internal.segment.bytes": "300"})
    log_dir.create_topic("empty", partitions=1)
    for value in range(8):
        log_dir.append("orders", pa.table({"value": [str(value) * 100]}), partition=1)
    delete_records(log_dir.root, {ORDERS[1]: 3})
    return Command("export", tmp_path / "root", capsys)


def checkpoints(directory: Path) -> dict[str, dict[TopicPartition, int]]:
    names = ("recovery-point", "replication", "log-start", "cleaner")
    return {name: read_offset_checkpoint(directory / f"{name}-offset-checkpoint") for name in names}


def contents(log_dir: LogDir) -> list[tuple[int, bytes]]:
    table = log_dir.read("orders", partition=1, columns=["offset", "value"])
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_checkpoints_match_last_commit(tool: Command) -> None:
    code, out, err = tool.try_to()
    assert (code, out) == (0, "Wrote the checkpoints of 3 partitions.\n")
    assert "No metadata log of a broker is kept here" in err
    found = checkpoints(tool.root)
    ends = {TopicPartition("empty", 0): 0, ORDERS[0]: 0, ORDERS[1]: 8}
    assert found["recovery-point"] == found["replication"] == ends
    assert found["log-start"] == {ORDERS[1]: 3}
    assert not LogDir.open(tool.root).is_broker_directory


def test_uncommitted_bytes_are_not_exported(tool: Command, tmp_path: Path) -> None:
    last = max((tool.root / "orders-1").glob("*.log"))
    committed = last.read_bytes()
    expected = contents(LogDir.open(tool.root))
    for target in ("--to", str(tmp_path / "copy")), ():
        last.write_bytes(committed + committed)
        (tool.root / "orders-1" / "00000000000000000099.log").write_bytes(b"left by a crash")
        assert tool.try_to(*target)[0] == 0
    assert last.read_bytes() == committed
    for root in (tmp_path / "copy", tool.root):
        assert max((root / "orders-1").glob("*.log")).read_bytes() == committed
        assert contents(LogDir.open(root)) == expected


def test_closed_segments_of_copy_are_links_and_active_one_is_not(tool: Command, tmp_path: Path) -> None:
    (trees) = {each["partition"]: each for each in tool.json("--to", str(tmp_path / "copy"), "--topic", "ord.*")}
    assert (trees[1]["logStartOffset"], trees[1]["highWatermark"], trees[0]["highWatermark"]) == (3, 8, 0)
    assert trees[1]["linkedBytes"] > 0
    assert not (tmp_path / "copy" / "empty-0").exists()
    *closed, active = sorted((tmp_path / "copy" / "orders-1").glob("*.log"))
    assert all(path.stat().st_nlink == 2 for path in closed)
    assert active.stat().st_nlink == 1
    copy = LogDir.open(tmp_path / "copy")
    assert not copy.is_broker_directory
    assert contents(copy) == contents(LogDir.open(tool.root))
    assert copy.topic("orders").topic_id == LogDir.open(tool.root).topic("orders").topic_id
    assert (tmp_path / "copy" / "orders-1" / "00000000000000000008.snapshot").exists()
    (copied,) = [each for each in tool.json("--to", str(tmp_path / "other"), "--copy") if each["partition"] == 1]
    assert copied["linkedBytes"] == 0
    assert {path.stat().st_nlink for path in (tmp_path / "other").rglob("*.log")} == {1}
    assert not list(tool.root.glob("*-stray"))


def test_writes_to_copy_leave_original_unchanged(tool: Command, tmp_path: Path) -> None:
    tool("--to", str(tmp_path / "copy"))
    expected = contents(LogDir.open(tool.root))
    copy = LogDir.open(tmp_path / "copy")
    copy.append("orders", pa.table({"value": ["new"]}), partition=1)
    assert contents(copy) == [*expected, (8, b"new")]
    assert contents(LogDir.open(tool.root)) == expected


def test_mount_keeps_topic_ids_and_other_checkpoints_of_broker(tool: Command, tmp_path: Path) -> None:
    broker = tmp_path / "broker"
    for name in ("orders-0", "orders-1", "theirs-0"):
        (broker / name).mkdir(parents=True)
        (broker / name / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
        (broker / name / "00000000000000000000.log").write_bytes(b"")
    (broker / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    for name in ("recovery-point", "replication", "log-start", "cleaner"):
        (broker / f"{name}-offset-checkpoint").write_text("0\n2\norders 1 1\ntheirs 0 7\n")
    tool("--to", str(broker), "--topic", "orders")
    assert (broker / "orders-1" / "partition.metadata").read_text().endswith("AAAAAAAAAAAAAAAAAAAAAA")
    found = checkpoints(broker)
    theirs = TopicPartition("theirs", 0)
    assert found["replication"] == found["recovery-point"] == {ORDERS[0]: 0, ORDERS[1]: 8, theirs: 7}
    assert (found["log-start"], found["cleaner"]) == ({theirs: 7}, {theirs: 7})
    assert (broker / "orders-1" / "00000000000000000003.log").stat().st_size
    assert not (broker / "orders-1" / "00000000000000000000.log").exists()  # wholly below the log start
    assert "has records" in tool.fails("--to", str(broker), "--topic", "orders")
    tool("--to", str(broker), "--topic", "orders", "--overwrite")
    assert "create topic empty on the broker" in tool.fails("--to", str(broker))


def test_invalid_targets_are_rejected_and_original_is_unchanged(tool: Command, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "is neither empty nor a broker's log directory" in tool.fails("--to", str(tmp_path / "full"))
    (tmp_path / "same").symlink_to(tool.root)
    LogDir.create(tmp_path / "another")
    before = contents(LogDir.open(tool.root))
    for target in (tool.root, tmp_path / "same", tool.root / "below", tmp_path / "another"):
        assert "name another" in tool.fails("--to", str(target), "--overwrite")
    assert contents(LogDir.open(tool.root)) == before
    assert "there is no topic nope" in tool.fails("--to", str(tmp_path / "copy"), "--topic", "nope")
    assert "need --to" in tool.fails("--copy")


def test_killed_mount_is_finished_with_overwrite(tool: Command, tmp_path: Path) -> None:
    expected = contents(LogDir.open(tool.root))
    counting = StoppingFileSystem(10**9)
    export_to(open_log_dir(tool.root, fs=counting).root.native(), broker_directory(tmp_path / "first"))
    for stops_at in range(8, counting.changes, 9):
        broker = broker_directory(tmp_path / f"broker-{stops_at}")
        with pytest.raises(Killed):
            export_to(open_log_dir(tool.root, fs=StoppingFileSystem(stops_at)).root.native(), broker)
        assert tool.try_to("--to", str(broker), "--overwrite")[0] == 0
        assert contents(LogDir.open(broker)) == expected
        assert checkpoints(broker)["replication"][ORDERS[1]] == 8
    assert contents(LogDir.open(tool.root)) == expected


def broker_directory(broker: Path) -> Path:
    for name in ("orders-0", "orders-1", "empty-0"):
        (broker / name).mkdir(parents=True)
        (broker / name / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
        (broker / name / "00000000000000000000.log").write_bytes(b"")
    (broker / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    return broker
