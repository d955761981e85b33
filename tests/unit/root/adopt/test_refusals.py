"""Adoption refused or continued: running brokers, other directories, missing and damaged files."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from builders.adopted_roots import ID_A, clock, contents, copy_of
from builders.controlled import adopt_log_dir

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, LogDirError
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.root.adopt import adopt as adopt_module
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.storage.filesystem import FileSystem

_HOLD_LOCK = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_directory_of_running_broker_is_refused(tmp_path: Path) -> None:
    root = copy_of("cars", tmp_path)
    before = sorted(path.name for path in root.rglob("*"))
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(root / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LogDirError, match="a Kafka broker is running on"):
            adopt(root, clock=clock)
        with pytest.raises(LogDirError, match="a Kafka broker is running on"):
            adopt(root, clock=clock, dry_run=True)
    finally:
        holder.communicate("")
    assert sorted(path.name for path in root.rglob("*") if path.name != ".lock") == before
    adopt(root, clock=clock)


def test_lock_is_held_during_adoption_and_free_afterwards(tmp_path: Path) -> None:
    try_lock = (
        "import fcntl, sys\n"
        "try: fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('held')\n"
        "else: print('free')\n"
    )

    def ask() -> str:
        return subprocess.run(
            [sys.executable, "-c", try_lock, str(tmp_path / ".lock")], check=True, capture_output=True, text=True
        ).stdout.strip()

    with adopt_module.adoption_lock(tmp_path, fs=FileSystem()):
        assert ask() == "held"
        with (
            pytest.raises(LogDirError, match="held by another process"),
            adopt_module.adoption_lock(tmp_path, fs=FileSystem()),
        ):
            pass
    assert ask() == "free"


def test_checkpoint_written_without_lock_refuses_adoption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("unclean", tmp_path)
    checkpoint = root / "replication-offset-checkpoint"
    os.utime(checkpoint)
    monkeypatch.setattr(adopt_module, "WATCH_S", 5.0)
    monkeypatch.setattr(adopt_module, "_POLL_S", 0.01)
    timer = threading.Timer(0.2, os.utime, (checkpoint, (1, 1)))
    timer.start()
    with pytest.raises(LogDirError, match="replication-offset-checkpoint has just been written"):
        adopt(root, clock=clock)
    timer.join()
    adopt(root, clock=clock)  # now the file is old


def test_fresh_copy_without_writer_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("unclean", tmp_path)
    os.utime(root / "replication-offset-checkpoint")
    monkeypatch.setattr(adopt_module, "WATCH_S", 0.1)
    assert not adopt(root, clock=clock).was_native


def test_missing_or_other_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match="is not a directory"):
        adopt(tmp_path / "nothing", clock=clock)
    with pytest.raises(LogDirError, match="is not a log directory"):
        adopt(tmp_path, clock=clock)
    (tmp_path / "dbus-1").mkdir()
    with pytest.raises(LogDirError, match="is not a log directory"):
        adopt(tmp_path, clock=clock)


def test_missing_partition_is_refused_and_created_on_request(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    shutil.rmtree(root / "codecs-none-1")
    with pytest.raises(LogDirError, match=r"missing are codecs-none: 1 of 3: .*--create-missing"):
        adopt(root, clock=clock)
    assert not is_native_root(root)
    assert (root / ".kafka_cleanshutdown").exists()
    log_dir = adopt_log_dir(root, create_missing=True, clock=clock)
    offsets = [(each.log_start_offset, each.high_watermark) for each in log_dir.topic("codecs-none").partitions]
    assert offsets[1] == (0, 0)
    assert offsets[0][1] > 0
    log_dir.append("codecs-none", pa.table({"value": ["a"]}), partition=1)
    assert log_dir.read("codecs-none", partition=1)["value"].to_pylist() == [b"a"]


def test_directory_with_huge_partition_number_is_refused(tmp_path: Path) -> None:
    root = copy_of("cars", tmp_path)
    (root / "backup-2147483647").mkdir()
    for create_missing in (False, True):
        with pytest.raises(LogDirError, match="holds backup-2147483647, but only 1 of 2147483648 partitions"):
            adopt(root, create_missing=create_missing, clock=clock)


def test_partitions_with_different_topic_ids_are_refused(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    (root / "codecs-none-2" / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID_A}")
    with pytest.raises(LogDirError, match="have different topic ids"):
        adopt(root, clock=clock)


def test_lost_topic_ids_are_restored_from_other_partitions(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    known = LogDir.open(root).topic("codecs-none").topic_id
    (root / "codecs-none-0" / "partition.metadata").unlink()
    (root / "codecs-none-1" / "partition.metadata").write_bytes(b"\xff")
    before = contents(root)
    log_dir = adopt_log_dir(root, clock=clock)
    assert log_dir.topic("codecs-none").topic_id == known
    log_dir.add_partitions("codecs-none", 4)  # puts directories of other topics aside
    assert contents(root)["codecs-none"][0] == before["codecs-none"][0]


def test_damage_after_clean_shutdown_is_reported_and_not_truncated(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    log = max((root / "codecs-none-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-10])
    with pytest.raises(CorruptRecordError, match=log.name):
        adopt(root, clock=clock)
    assert (root / ".kafka_cleanshutdown").exists(), "the next try would recover, and lose records"


@pytest.mark.full
def test_damaged_recovery_checkpoint_is_noted_and_adoption_succeeds(tmp_path: Path) -> None:
    root = copy_of("unclean", tmp_path)
    before = contents(root)
    (root / "recovery-point-offset-checkpoint").write_text("0\nx\n")
    outcome = adopt(root, clock=clock)
    assert any("recovery-point-offset-checkpoint is damaged" in note for note in outcome.notes)
    assert contents(root) == before


def test_deleted_future_and_stray_directories_stay_unadopted(tmp_path: Path) -> None:
    root = copy_of("retention", tmp_path)
    (aside,) = [path.name for path in root.iterdir() if path.name.endswith("-delete")]
    for name in ("moved-0.0123456789abcdef0123456789abcdef-future", "odd-0.0123456789abcdef0123456789abcdef-stray"):
        (root / name).mkdir()
    outcome = adopt(root, clock=clock)
    assert f"{aside} is left unchanged" in outcome.notes
    assert sum(note.endswith("is left unchanged") for note in outcome.notes) == 3
    assert (root / aside).is_dir()
    assert LogDir.open(root).topics() == ("delete-records", "retention-bytes")


def test_open_file_description_locks_exist_on_linux() -> None:
    assert hasattr(fcntl, "F_OFD_SETLK") or sys.platform != "linux"
