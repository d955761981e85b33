"""The system calls of a short commit to a file system, and that it still finds out what others have done meanwhile."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.leader_writers import Served, append, batch
from open_files import descriptors, descriptors_before

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError, LogDirError, UnsupportedFormatError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.local import log
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, FormatRecord
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    HEAD_FILE,
    NEWEST_FORMAT_VERSION,
    mark_unfinished_copy,
    metadata_dir,
    write_marker,
)
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, LockHeldError, root_lock
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.root.commit.file_engine import FileEngine
from pyspark_kafkalog.storage.filesystem import LOCAL

LOG = "0" * 20 + ".log"
UNIT = CommitUnit.of(append(batch([b"x"])))

#: Those of a commit to one partition that wait for nothing, in their order, each with the file that it is about.
CALLS = [
    "flock .lock",
    "fcntl .lock",
    "stat .lock",
    "stat kafkalog-format",
    "stat kafkalog-head",
    "stat __cluster_metadata-0",
    "open <last commit>",
    "fstat <last commit>",
    "flock <last commit>",
    "fstat <last commit>",
    "open <next commit>",
    "stat a-0",
    f"open {LOG}",
    f"fstat {LOG}",
    f"close {LOG}",
    f"stat {LOG[:20]}.index",
    f"stat {LOG[:20]}.timeindex",
    "open <next segment>",
    "stat leader-epoch-checkpoint",
    f"pwrite {LOG}",
    "urandom",
    "stat .unflushed",
    "pwrite <last commit>",
    "flock <last commit>",
    "close <last commit>",
    "fcntl .lock",
    "flock .lock",
]
COUNTED = (
    "open",
    "close",
    "stat",
    "lstat",
    "fstat",
    "pread",
    "pwrite",
    "link",
    "unlink",
    "replace",
    "scandir",
    "urandom",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("a", 2)
    return tmp_path / "root"


@pytest.fixture
def server(root: Path) -> Served:
    """A server whose log is open."""
    server = Served(root)
    for _ in range(2):
        commit(server)
    return server


def commit(server: Served) -> AppendedRange:
    (result,) = server.writer.commit([UNIT])
    assert not isinstance(result, KafkalogError), result
    return result[0]


def is_made_at_once(server: Served) -> bool:
    """Whether the server's log is as it was left: nothing has to be opened or read."""
    return server.writer.commit_at_once([UNIT]) is not None


def count(calls: list[str], monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    readlink = os.readlink

    def counted(module: Any, function: str) -> None:
        real = getattr(module, function)

        def call(*arguments: Any, **named: Any) -> Any:
            of = arguments[0]
            path = readlink(f"/proc/self/fd/{of}") if isinstance(of, int) and function != "urandom" else of
            name = os.path.basename(path) if function != "urandom" else ""
            name = names.get(name, name)
            calls.append(f"{function} {name}".rstrip())
            return real(*arguments, **named)

        monkeypatch.setattr(module, function, call)

    for each in COUNTED:
        counted(os, each)
    for each in ("flock", "fcntl"):
        counted(fcntl, each)


def test_short_commit_makes_each_call_once(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(log, "COMMIT_FILE_BYTES", 0)  # so that the file has another name than the log
        commit(server)
    store = server.root.store
    last_file, _, next_file = store.next_places()
    last, following = os.path.basename(last_file), os.path.basename(next_file)
    end = server.state().log_end_offset
    calls: list[str] = []
    names = {last: "<last commit>", following: "<next commit>", f"{end:020d}.log": "<next segment>"}
    with monkeypatch.context() as patched:
        count(calls, patched, names)
        assert is_made_at_once(server)
    assert store.image.next_offset > int(following[:20])
    assert calls == CALLS


def replace_directory(directory: Path) -> None:
    """Put a copy of a directory in its place."""
    directory.rename(directory.with_name("was"))
    shutil.copytree(directory.with_name("was"), directory)
    shutil.rmtree(directory.with_name("was"))


def replace_file(path: Path) -> None:
    """Put a copy of a file in its place."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(60))


CHANGES: dict[str, Callable[[Path], object]] = {
    "bytes after the log": lambda directory: grow(directory / LOG),
    "entries after the index": lambda directory: grow(directory / LOG.replace(".log", ".index")),
    "another log": lambda directory: replace_file(directory / LOG),
    "another index": lambda directory: replace_file(directory / LOG.replace(".log", ".index")),
    "another time index": lambda directory: replace_file(directory / LOG.replace(".log", ".timeindex")),
    "other leader epochs": lambda directory: (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n"),
    "a following segment": lambda directory: (directory / f"{2:020d}.log").touch(),
    "another directory": replace_directory,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_log_that_was_changed_outside_is_opened_again(
    root: Path, server: Served, change: Callable[[Path], object]
) -> None:
    change(root / "a-0")
    assert not is_made_at_once(server)
    assert commit(server).first_offset == 2
    assert is_made_at_once(server)
    assert server.values() == [b"x"] * 4
    assert Served(root).values() == [b"x"] * 4


def test_directory_that_became_a_link_is_refused(root: Path, server: Served) -> None:
    (root / "a-0").rename(root.with_name("elsewhere"))
    (root / "a-0").symlink_to(root.with_name("elsewhere"))
    before = (root.with_name("elsewhere") / LOG).read_bytes()
    (result,) = server.writer.commit([UNIT])
    assert isinstance(result, LogDirError)
    assert "symbolic link" in str(result)
    assert (root.with_name("elsewhere") / LOG).read_bytes() == before


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_lock_file_with_another_place_is_opened_again(root: Path, server: Served, change: str) -> None:
    if change == "removed":
        (root / LOCK_FILE).unlink()
    else:
        replace_file(root / LOCK_FILE)
    commit(server)
    with root_lock(root):  # the file that other writers find
        assert not is_made_at_once(server)
    assert is_made_at_once(server)


def test_lock_file_that_became_a_link_is_refused(root: Path, server: Served) -> None:
    (root / LOCK_FILE).replace(root.with_name("elsewhere"))
    (root / LOCK_FILE).symlink_to(root.with_name("elsewhere"))
    with pytest.raises(LogDirError, match="symbolic link"):
        server.writer.commit([UNIT])


@pytest.mark.parametrize("left", ["nothing", "an empty directory", "another root"])
def test_commit_to_root_that_was_moved_away_is_refused_and_locks_nothing(root: Path, server: Served, left: str) -> None:
    away = root.with_name("away")
    root.rename(away)
    if left == "an empty directory":
        root.mkdir()
    elif left == "another root":
        LogDir.create(root).create_topic("a", 2)
    before = sorted(root.rglob("*"))
    for _ in range(2):
        with pytest.raises(LogDirError, match="expected the log directory with"):
            server.writer.commit([UNIT])
    assert sorted(root.rglob("*")) == before
    with root_lock(away, timeout_s=0):
        pass
    shutil.rmtree(root, ignore_errors=True)
    away.rename(root)
    assert commit(server).first_offset == 2


def test_root_restored_in_place_is_read_again(root: Path, server: Served) -> None:
    """With its lock file, as rsync restores it: the marker alone is another file."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    for _ in range(3):
        commit(server)
    lock = os.stat(root / LOCK_FILE).st_ino
    for each in root.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
            shutil.copytree(copy / each.name, each)
    assert os.stat(root / LOCK_FILE).st_ino == lock
    with pytest.raises(CorruptRecordError, match="no such file"):
        server.writer.commit([UNIT])


def test_marker_of_an_upgrade_by_another_process_stops_commits(root: Path, server: Served) -> None:
    write_marker(metadata_dir(root), LOCAL, NEWEST_FORMAT_VERSION + 1)
    with pytest.raises(UnsupportedFormatError, match=FORMAT_MARKER):
        server.writer.commit([UNIT])
    mark_unfinished_copy(metadata_dir(root), LOCAL)
    with pytest.raises(LogDirError, match="has not finished"):
        server.writer.commit([UNIT])
    write_marker(metadata_dir(root), LOCAL)
    assert commit(server).first_offset == 2


def test_upgrade_stops_commits_before_its_marker_is_seen(root: Path, server: Served) -> None:
    """As on a network file system that answers for some time from memory."""
    commits = LocalCommitLog(metadata_dir(root))
    upgrade = [CommitRecord(commit_id="AAAAAAAAAAAAAAAAAAAAAQ", operation="upgrade"), FormatRecord(format_version=9)]
    commits.publish(server.root.store.image.next_offset, upgrade, timestamp_ms=1)
    with pytest.raises(UnsupportedFormatError):
        server.writer.commit([UNIT])


def test_lost_commit_of_another_process_is_reported(root: Path, server: Served) -> None:
    before = (metadata_dir(root) / HEAD_FILE).read_bytes()
    other = Served(root, flush="fsync")
    commit(other)
    assert (metadata_dir(root) / HEAD_FILE).read_bytes() != before
    lost = Path(other.root.store.next_places()[0])
    lost.unlink()
    with pytest.raises(CorruptRecordError, match=lost.name):
        server.writer.commit([UNIT])


def test_own_last_commit_that_is_gone_is_reported(server: Served) -> None:
    last = Path(server.root.store.next_places()[0])
    last.unlink()
    with pytest.raises(CorruptRecordError, match=last.name):
        server.writer.commit([UNIT])


def test_forked_child_does_not_share_the_lock(server: Served) -> None:
    engine = server.writer._engine
    assert isinstance(engine, FileEngine)
    with engine.locked():
        child = os.fork()
        if not child:
            try:
                with engine.locked(0):
                    os._exit(1)
            except LockHeldError:
                os._exit(0)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_closed_writer_has_no_open_files(root: Path) -> None:
    before = descriptors_before()
    server = Served(root)
    commit(server)
    assert descriptors() > before
    server.writer.close()
    assert descriptors() == before
    commit(server)
    server.writer.close()
    assert descriptors() == before
