"""The format version of a root: supported versions open, others are refused, and an upgrade stops open processes."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import open_log_dir
from builders.metadata_roots import as_first_format, forget_images
from fakes.stopping_filesystem import Killed, StoppingFileSystem, broken_disk
from repository import FIXTURES

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError, LogDirError, UnsupportedFormatError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata import root_format, snapshots
from pyspark_kafkalog.metadata.local.backend import LocalSnapshots
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, FormatRecord, MetadataRecord, TopicRecord
from pyspark_kafkalog.metadata.messages.records import encode_record
from pyspark_kafkalog.metadata.root_format import (
    FIRST_FORMAT_VERSION,
    FORMAT_MARKER,
    FORMAT_VERSION,
    HEAD_FILE,
    NEWEST_FORMAT_VERSION,
    OLDEST_FORMAT_VERSION,
    TIERED_FORMAT_VERSION,
    RootFormat,
    is_native_root,
    metadata_dir,
)
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.tools.main import main

COMMIT_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
ROWS = pa.table({"key": ["a", "b"], "value": ["1", "2"]})
LATER = NEWEST_FORMAT_VERSION + 1
REFUSED = (
    f"a format version from {OLDEST_FORMAT_VERSION} to {NEWEST_FORMAT_VERSION}, found format version {LATER}; "
    "upgrade pyspark_kafkalog"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "root").append("orders", ROWS)
    return tmp_path / "root"


def mark(root: Path, text: str) -> None:
    (metadata_dir(root) / FORMAT_MARKER).write_text(text)


def publish_upgrade(root: Path) -> None:
    """The commit with which a later version of this package upgrades the root."""
    log_dir = LogDir.open(root)
    assert log_dir.version is not None
    header = CommitRecord(commit_id=COMMIT_ID, operation="upgrade")
    upgrade = FormatRecord(format_version=LATER)
    LocalCommitLog(metadata_dir(root)).publish(log_dir.version, [header, upgrade], timestamp_ms=1)


def test_new_and_adopted_roots_have_current_format_version(root: Path, tmp_path: Path) -> None:
    fixture = FIXTURES / "cars"
    shutil.copytree(fixture, tmp_path / "adopted", ignore=shutil.ignore_patterns("expected"))
    adopt(tmp_path / "adopted")
    for each in (root, tmp_path / "adopted"):
        assert (metadata_dir(each) / FORMAT_MARKER).read_text() == f"version={FORMAT_VERSION}\n"
        assert LogDir.open(each).root.native().store.image.format_version == FORMAT_VERSION


def test_newer_format_marker_is_refused_by_every_way_to_open(root: Path, tmp_path: Path) -> None:
    mark(root, f"version={LATER}\n")
    for opener in (LogDir.open, LogDir.open_or_create, LogDir.adopt, lambda path: adopt(path, dry_run=True)):
        with pytest.raises(UnsupportedFormatError, match=REFUSED):
            opener(root)
    with pytest.raises(LogDirError, match="is already a log directory"):
        LogDir.create(root)


def command_lines(root: Path, tmp_path: Path) -> list[list[str]]:
    topic = ["--topic", "orders"]
    return [
        ["topics", "--list"],
        ["configs", "--entity-type", "topics", "--entity-name", "orders", "--describe"],
        ["acls", "--list"],
        ["console-producer", *topic],
        ["console-consumer", *topic, "--from-beginning", "--timeout-ms", "100"],
        ["get-offsets", *topic],
        ["consumer-groups", "--list"],
        ["transactions", "list"],
        ["transactions", "find-hanging", *topic],
        ["delete-records", "--offset-json-file", str(tmp_path / "offsets.json")],
        ["log-dirs", "--describe"],
        ["features", "describe"],
        ["features", "upgrade"],
        ["history"],
        ["report", "--file", str(tmp_path / "report.html")],
        ["metrics", "--once"],
        ["retention"],
        ["log-cleaner"],
        ["merge-segments"],
        ["reindex"],
        ["adopt"],
        ["export"],
        ["export", "--to", str(tmp_path / "copy")],
        ["verify"],
    ]


def test_newer_format_marker_is_refused_by_every_command(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offsets.json").write_text('{"partitions":[{"topic":"orders","partition":0,"offset":1}],"version":1}')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a line\n")))
    mark(root, f"version={LATER}\n")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for name, *arguments in command_lines(root, tmp_path):
        capsys.readouterr()
        code = main([name, "--path", str(root), *arguments])
        said = capsys.readouterr()
        assert code != 0, name
        assert f"format version {LATER}" in said.out + said.err, (name, said)
        assert "Traceback" not in said.err
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("text", ["", "version=\n", "version=1", "version=01\n", "version=-1\n", "\0" * 10, "v" * 200])
def test_damaged_format_marker_is_refused_with_expected_content(root: Path, text: str) -> None:
    mark(root, text)
    with pytest.raises(DiskFormatError, match=r"kafkalog-format.*expected a line version=<number>") as caught:
        LogDir.open(root)
    assert not isinstance(caught.value, UnsupportedFormatError)
    mark(root, f"version={FORMAT_VERSION}\n")
    assert LogDir.open(root).read("orders").num_rows == 2


def test_root_without_format_marker_is_not_read_as_that_of_a_broker(root: Path) -> None:
    os.remove(metadata_dir(root) / FORMAT_MARKER)
    assert is_native_root(root)
    with pytest.raises(DiskFormatError, match="no such file, although the directory has commits of this package"):
        LogDir.open(root)
    os.remove(metadata_dir(root) / HEAD_FILE)
    assert not is_native_root(root)


def test_newer_marker_stops_commits_of_open_process(root: Path) -> None:
    log_dir = LogDir.open(root)
    mark(root, f"version={LATER}\n")
    version = log_dir.version
    with pytest.raises(UnsupportedFormatError, match=REFUSED):
        log_dir.append("orders", ROWS)
    with pytest.raises(UnsupportedFormatError, match=REFUSED):
        log_dir.create_topic("returns")
    mark(root, f"version={FORMAT_VERSION}\n")
    log_dir.refresh()
    assert log_dir.version == version
    log_dir.append("orders", ROWS)
    assert log_dir.read("orders").num_rows == 4


def test_upgrade_commit_stops_reads_and_commits_of_open_process(root: Path) -> None:
    reader, writer = LogDir.open(root), LogDir.open(root)
    publish_upgrade(root)  # a crash before the marker: the commit alone decides
    with pytest.raises(UnsupportedFormatError, match=rf"\.log at byte 0: expected {REFUSED}"):
        reader.refresh()
    with pytest.raises(UnsupportedFormatError, match=REFUSED):
        writer.append("orders", ROWS)
    with pytest.raises(UnsupportedFormatError, match=REFUSED):
        LogDir.open(root)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x01\xa1\x9d\x01\x00\x00", "expected a metadata record type .*found type 20129"),
        (b"\x01" + encode_record(FormatRecord(format_version=1))[1:4] + b"\x09\x00", "found version 9"),
        (b"\x02\x02\x00\x00", "found frame version 2"),
    ],
)
def test_commit_with_unknown_record_is_refused_by_file_and_position(root: Path, value: bytes, expected: str) -> None:
    log_dir = LogDir.open(root)
    offset = log_dir.version
    assert offset is not None
    header = encode_record(CommitRecord(commit_id=COMMIT_ID, operation="x"))
    batch = [Record(offset=offset + i, timestamp_ms=1, key=None, value=each) for i, each in enumerate((header, value))]
    path = metadata_dir(root) / f"{offset:020d}.log"
    path.write_bytes(encode_batch(batch, leader_epoch=0))
    for action in (log_dir.refresh, lambda: LogDir.open(root), lambda: log_dir.append("orders", ROWS)):
        with pytest.raises(UnsupportedFormatError, match=expected) as caught:
            action()
        assert f"{path} (value of the record at offset {offset + 1})" in str(caught.value)
        assert "upgrade pyspark_kafkalog" in str(caught.value)


def test_snapshot_with_unknown_record_is_refused_despite_commits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(each: MetadataRecord) -> bytes:
        return b"\x01\xa1\x9d\x01\x00\x00" if isinstance(each, TopicRecord) else encode_record(each)

    image = LogDir.open(root).root.native().store.image
    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "encode_record", encode)
        LocalSnapshots(metadata_dir(root), LOCAL).write(image)
    forget_images()
    with pytest.raises(UnsupportedFormatError, match=r"\.checkpoint .*found type 20129; .*upgrade pyspark_kafkalog"):
        LogDir.open(root)


def test_snapshot_of_newer_format_is_refused_by_version(root: Path) -> None:
    image = replace(LogDir.open(root).root.native().store.image, format=RootFormat(LATER))
    LocalSnapshots(metadata_dir(root), LOCAL).write(image)
    forget_images()
    with pytest.raises(UnsupportedFormatError, match=rf"\.checkpoint at byte 0: expected {REFUSED}"):
        LogDir.open(root)


def test_unknown_tagged_field_of_record_is_ignored(root: Path) -> None:
    log_dir = LogDir.open(root)
    assert log_dir.version is not None
    tagged = CommitRecord(commit_id=COMMIT_ID, operation="x", unknown_tags=((31, b"later"),))
    LocalCommitLog(metadata_dir(root)).publish(log_dir.version, [tagged], timestamp_ms=1)
    log_dir.append("orders", ROWS)
    assert LogDir.open(root).read("orders").num_rows == 4


def test_next_package_version_reads_and_writes_root_of_this_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(root_format, "FORMAT_VERSION", LATER)
        patch.setattr(root_format, "NEWEST_FORMAT_VERSION", LATER)
        later = LogDir.open(root)
        later.append("orders", ROWS)
        assert later.root.native().store.image.format_version == FORMAT_VERSION
    log_dir = LogDir.open(root)
    log_dir.append("orders", ROWS)
    assert log_dir.read("orders").num_rows == 6


def test_root_older_than_supported_is_refused_with_upgrade_advice(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_format, "NEWEST_FORMAT_VERSION", LATER + 1)
    monkeypatch.setattr(root_format, "OLDEST_FORMAT_VERSION", LATER)
    said = f"from {LATER} to {LATER + 1}, found format version {FORMAT_VERSION}; upgrade the log directory first"
    with pytest.raises(UnsupportedFormatError, match=said):
        LogDir.open(root)


@pytest.mark.usefixtures("one_commit_a_file")
def test_create_over_root_without_its_first_commit_is_refused(root: Path) -> None:
    os.remove(metadata_dir(root) / "00000000000000000000.log")
    with pytest.raises(LogDirError, match="is already a log directory"):
        LogDir.create(root)
    assert not (metadata_dir(root) / "00000000000000000000.log").exists()


def test_root_whose_files_have_several_commits_is_refused_by_packages_that_read_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_format, "NEWEST_FORMAT_VERSION", TIERED_FORMAT_VERSION)
    forget_images()
    said = f"{FORMAT_MARKER} at byte 0: expected a format version from 1 to 2, found format version 3; upgrade"
    with pytest.raises(UnsupportedFormatError, match=said):
        LogDir.open(root)


def test_first_root_that_gets_remote_storage_is_refused_by_packages_that_do_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "first"
    create_root(root)
    as_first_format(root)
    LogDir.open(root).append("orders", ROWS)
    is_open = LogDir.open(root)
    LogDir.open(root).alter_broker_configs(add={"log.retention.hours": "5"})
    assert LogDir.open(root).root.native().store.image.format_version == FIRST_FORMAT_VERSION
    LogDir.open(root).alter_broker_configs(add={"rsm.config.location": "s3://bucket/tier"})
    assert (metadata_dir(root) / FORMAT_MARKER).read_text() == f"version={TIERED_FORMAT_VERSION}\n"
    assert LogDir.open(root).root.native().store.image.format_version == TIERED_FORMAT_VERSION
    LogDir.open(root).alter_broker_configs(delete=["rsm.config.location"])
    LogDir.open(root).append("orders", ROWS)
    monkeypatch.setattr(root_format, "NEWEST_FORMAT_VERSION", FIRST_FORMAT_VERSION)
    forget_images()
    mark(root, f"version={FIRST_FORMAT_VERSION}\n")  # as after a crash between the commit and the marker
    for opener in (lambda: LogDir.open(root), is_open.refresh):
        with pytest.raises(UnsupportedFormatError, match="from 1 to 1, found format version 2; upgrade"):
            opener()


@pytest.mark.parametrize("error", [Killed, broken_disk])
def test_upgrade_that_stops_anywhere_leaves_root_of_either_version_and_is_finished_by_the_next(
    error: Callable[[], BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for stops_at in range(40):
        root = tmp_path / str(stops_at)
        create_root(root)
        as_first_format(root)
        is_open = LogDir.open(root)
        is_open.append("orders", ROWS)
        fs = StoppingFileSystem(stops_at, error=error, once=error is broken_disk)
        upgrading = open_log_dir(root, fs=fs).root.native()
        with contextlib.suppress(Killed, OSError, KafkalogError):
            upgrading.raise_format()
        forget_images()
        marker = (metadata_dir(root) / FORMAT_MARKER).read_text()
        version = LogDir.open(root).root.native().store.image.format_version
        found.add((version, marker))
        if version == FORMAT_VERSION:
            with monkeypatch.context() as older:
                older.setattr(root_format, "NEWEST_FORMAT_VERSION", TIERED_FORMAT_VERSION)
                forget_images()
                with pytest.raises(UnsupportedFormatError, match=f"found format version {FORMAT_VERSION}; upgrade"):
                    LogDir.open(root)
        is_open.append("orders", ROWS)
        LogDir.open(root).root.native().raise_format()
        assert (metadata_dir(root) / FORMAT_MARKER).read_text() == f"version={FORMAT_VERSION}\n"
        is_open.append("orders", ROWS)
        assert LogDir.open(root).read("orders").num_rows == 6
        assert is_open.root.native().store.image.format_version == FORMAT_VERSION
        if not fs.has_stopped:
            break
    assert fs.changes > 6
    assert not fs.has_stopped
    assert found == {
        (1, "version=1\n"),
        (FORMAT_VERSION, "version=1\n"),
        (FORMAT_VERSION, f"version={FORMAT_VERSION}\n"),
    }
