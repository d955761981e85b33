"""A LogDir whose path names another log directory, or none, neither reads nor writes there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import open_log_dir

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, LogDirError
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE
from pyspark_kafkalog.root.writes import WriteTransaction
from pyspark_kafkalog.storage.names import META_PROPERTIES

TABLE = pa.table({"value": ["x"]})

WRITES: dict[str, Callable[[LogDir], object]] = {
    "append": lambda log_dir: log_dir.append("t", TABLE),
    "append with flush os": lambda log_dir: log_dir.append("t", TABLE, flush="os"),
    "commit": lambda log_dir: log_dir.commit_staged((), transaction=WriteTransaction("id", 1, "run")),
    "create topic": lambda log_dir: log_dir.create_topic("new"),
    "delete topic": lambda log_dir: log_dir.delete_topic("t"),
    "init transaction": lambda log_dir: log_dir.init_transaction("id", "run"),
    "group commit": lambda log_dir: log_dir.group("g").commit({("t", 0): 1}),
}


def make(root: Path, appends: int = 3) -> LogDir:
    log_dir = LogDir.create(root)
    log_dir.create_topic("t", partitions=1)
    for _ in range(appends):
        log_dir.append("t", TABLE)
    return log_dir


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    made = make(tmp_path / "log")
    made.group("g").commit({("t", 0): 0})
    made.refresh()
    return made


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(each.relative_to(root)): each.read_bytes() if each.is_file() else None for each in root.rglob("*")}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_write_to_removed_log_directory_fails_and_creates_nothing(
    log_dir: LogDir, write: Callable[[LogDir], object], left: str
) -> None:
    log_dir.path.rename(log_dir.path.with_name("away"))
    if left == "an empty directory":
        log_dir.path.mkdir()
    with pytest.raises(LogDirError, match=f"expected the log directory with {log_dir.identity}, found no"):
        write(log_dir)
    assert not log_dir.path.exists() or list(log_dir.path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("appends", [0, 3, 40], ids=["shorter log", "log of the same commits", "longer log"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_write_to_replaced_log_directory_fails_and_changes_nothing(
    log_dir: LogDir, write: Callable[[LogDir], object], appends: int
) -> None:
    log_dir.path.rename(log_dir.path.with_name("away"))
    other = make(log_dir.path, appends)
    other.group("g").commit({("t", 0): 0})
    before = tree(log_dir.path)
    with pytest.raises(LogDirError, match=f"{log_dir.identity}, found the log directory with {other.identity}"):
        write(log_dir)
    assert tree(log_dir.path) == before


@pytest.mark.parametrize("appends", [0, 3, 40], ids=["shorter log", "log of the same commits", "longer log"])
def test_refresh_of_replaced_log_directory_fails(tmp_path: Path, appends: int) -> None:
    log_dir = make(tmp_path / "log")
    log_dir.refresh()
    log_dir.path.rename(tmp_path / "away")
    other = make(log_dir.path, appends)
    for _ in range(2):
        with pytest.raises(LogDirError, match=f"{log_dir.identity}, found the log directory with {other.identity}"):
            log_dir.refresh()
    assert log_dir.partition("t", 0).high_watermark == 3


def test_log_directory_moved_back_is_used_again(log_dir: LogDir) -> None:
    away = log_dir.path.with_name("away")
    log_dir.path.rename(away)
    with pytest.raises(LogDirError):
        log_dir.refresh()
    away.rename(log_dir.path)
    LogDir.open(log_dir.path).append("t", TABLE)
    log_dir.refresh()
    assert log_dir.partition("t", 0).high_watermark == 4
    log_dir.append("t", TABLE)
    assert log_dir.read("t").num_rows == 5


def test_restored_copy_is_same_log_directory_unless_it_is_older(log_dir: LogDir) -> None:
    away, older = log_dir.path.with_name("away"), log_dir.path.with_name("older")
    shutil.copytree(log_dir.path, older)
    log_dir.append("t", TABLE)
    log_dir.path.rename(away)
    shutil.copytree(away, log_dir.path)
    log_dir.append("t", TABLE)
    log_dir.refresh()
    assert log_dir.read("t").num_rows == 5
    shutil.rmtree(log_dir.path)
    shutil.copytree(older, log_dir.path)
    with pytest.raises(CorruptRecordError, match="no such file"):
        log_dir.append("t", TABLE)
    assert LogDir.open(log_dir.path).read("t").num_rows == 3


def test_changed_mode_of_marker_file_is_no_replacement(log_dir: LogDir) -> None:
    os.chmod(log_dir.path / "__cluster_metadata-0" / "kafkalog-format", 0o600)
    log_dir.append("t", TABLE)
    assert log_dir.read("t").num_rows == 4


def test_open_with_identity_rejects_another_log_directory(log_dir: LogDir, tmp_path: Path) -> None:
    assert open_log_dir(log_dir.path, identity=log_dir.identity).topics() == log_dir.topics()
    other = make(tmp_path / "other")
    with pytest.raises(LogDirError, match=f"{log_dir.identity}, found the log directory with {other.identity}"):
        open_log_dir(other.path, identity=log_dir.identity)


def test_lost_lock_file_is_recreated(log_dir: LogDir) -> None:
    (log_dir.path / LOCK_FILE).unlink()
    log_dir.append("t", TABLE)
    assert (log_dir.path / LOCK_FILE).exists()


def test_log_directory_without_readable_ids_is_used_until_replaced(log_dir: LogDir) -> None:
    (log_dir.path / META_PROPERTIES).write_text("version=1\ncluster.id=x\n")
    opened = LogDir.open(log_dir.path)
    assert opened.identity is None
    opened.append("t", TABLE)
    log_dir.path.rename(log_dir.path.with_name("away"))
    make(log_dir.path)
    with pytest.raises(LogDirError, match="not the log directory that was opened: it, or its commit log, was removed"):
        opened.append("t", TABLE)


def test_replaced_broker_directory_fails_to_refresh(kafka_fixtures: Path, tmp_path: Path) -> None:
    root = tmp_path / "log"
    shutil.copytree(kafka_fixtures / "cars", root)
    opened = LogDir.open(root)
    opened.refresh()
    shutil.rmtree(root)
    with pytest.raises(LogDirError, match="found no such directory"):
        opened.refresh()
    shutil.copytree(kafka_fixtures / "transactions", root)
    with pytest.raises(LogDirError, match=f"{opened.identity}, found the log directory with"):
        opened.refresh()
    shutil.rmtree(root)
    shutil.copytree(kafka_fixtures / "cars", root)
    opened.refresh()


def test_adopting_keeps_identity(kafka_fixtures: Path, tmp_path: Path) -> None:
    root = tmp_path / "log"
    shutil.copytree(kafka_fixtures / "cars", root)
    before = LogDir.open(root).identity
    assert before is not None
    assert LogDir.adopt(root).identity == before
