"""A root of this package: topics, atomic writes, and recovery after crashes and user errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.root_places import RootPlace
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    InvalidOptionError,
    InvalidTopicError,
    LogDirError,
    OffsetOutOfRangeError,
    ReadOnlyLogDirError,
    TopicExistsError,
    UnknownTopicError,
)
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CHECKPOINTS,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import read_topic_id, write_topic_id
from pyspark_kafkalog.storage.names import LOG_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX, TopicPartition

SMALL_SEGMENTS = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
BAD_NAMES = ["", ".", "..", "a/b", "../up", "/etc", "a" * 250, "tab\t", "ключ", "__cluster_metadata"]


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    return LogDir.create(root_place)


def _table(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"key": [b"k%d" % (i % 10) for i in numbers], "value": [b"v%d" % i for i in numbers]})


def _values(log_dir: LogDir, topic: str = "orders") -> list[bytes]:
    log_dir.refresh()
    values: list[bytes] = log_dir.read(topic)["value"].to_pylist()
    return values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_are_read_back_as_written(log_dir: LogDir, codec: str) -> None:
    written = pa.table(
        {
            "key": pa.array([b"a", None, b"", b"\xff\x00"], pa.binary()),
            "value": pa.array(["x", "", None, "é"], pa.string()),
            "headers": pa.array(
                [[("h", b"1"), ("h", None)], [], None, [("ключ", b"")]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "timestamp": pa.array([0, 1_700_000_000_123_000, None, 1_700_000_000_000_999], pa.timestamp("us", "UTC")),
        }
    )
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", written, compression_type=codec)
    log_dir.refresh()
    found = log_dir.read("orders")
    assert found["key"].to_pylist() == [b"a", None, b"", b"\xff\x00"]
    assert found["value"].to_pylist() == [b"x", b"", None, "é".encode()]
    assert [[(h["key"], h["value"]) for h in headers] for headers in found["headers"].to_pylist()] == [
        [("h", b"1"), ("h", None)],
        [],
        [],
        [("ключ", b"")],
    ]
    milliseconds = found["timestamp"].cast("int64").to_pylist()
    assert milliseconds[0] == 0
    assert milliseconds[1] == 1_700_000_000_123
    assert milliseconds[2] > 1_700_000_000_123
    assert milliseconds[3] == 1_700_000_000_000
    assert found["offset"].to_pylist() == [0, 1, 2, 3]


def test_keys_map_to_same_partition_as_in_java_client(log_dir: LogDir) -> None:
    """Expected: org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey with 4 partitions."""
    log_dir.create_topic("orders", partitions=4)
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"a-little-bit-longer-string"]
    # Utils.murmur2 of these keys, from Kafka's own test of it.
    hashes = [-973932308, -790332482, -985981536, -1486304829]
    log_dir.append("orders", pa.table({"key": keys, "value": keys}))
    log_dir.refresh()
    found = log_dir.read("orders")
    placed = dict(zip(found["key"].to_pylist(), found["partition"].to_pylist(), strict=True))
    assert placed == {key: (value & 0x7FFFFFFF) % 4 for key, value in zip(keys, hashes, strict=True)}


def test_records_in_many_small_segments_are_read_once(log_dir: LogDir) -> None:
    log_dir.create_topic(
        "orders", partitions=2, configs={"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
    )
    for first in range(0, 2000, 100):
        log_dir.append("orders", _table(first, 100))
    log_dir.refresh()
    assert sorted(_values(log_dir)) == sorted(b"v%d" % i for i in range(2000))
    for partition in log_dir.topic("orders").partitions:
        table = log_dir.read("orders", partition=partition.partition)
        assert table["offset"].to_pylist() == list(range(partition.high_watermark))
        if partition.local_directory is not None:
            assert len(list(partition.directory.glob("*.log"))) > 5
            assert not list(partition.directory.glob("*.staged"))


def test_reader_keeps_its_snapshot_until_refresh(log_dir: LogDir) -> None:
    log_dir.append("orders", _table(0, 10))
    reader = LogDir.open(log_dir.path)
    before = reader.read("orders")
    log_dir.append("orders", _table(10, 10))
    assert reader.read("orders").equals(before)
    assert len(_values(reader)) == 20


@pytest.mark.file_roots
def test_bytes_of_crashed_writer_are_not_read_and_are_removed(log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=1, configs={"internal.segment.bytes": "3000"})
    log_dir.append("orders", _table(0, 50))
    directory = log_dir.topic("orders").partitions[0].directory
    active = max(directory.glob(f"*{LOG_SUFFIX}"))
    committed = active.read_bytes()
    for junk in (b"\0" * 10, committed, b"\xff" * 500):
        active.write_bytes(committed + junk)
        for suffix in (LOG_SUFFIX, ".index", ".timeindex", PRODUCER_SNAPSHOT_SUFFIX):
            (directory / f"{99:020d}{suffix}").write_bytes(junk)
        assert len(_values(log_dir)) == 50
    log_dir.append("orders", _table(50, 5))
    assert sorted(_values(log_dir)) == sorted(b"v%d" % i for i in range(55))
    assert not list(directory.glob(f"{99:020d}*"))


@pytest.mark.file_roots
def test_missing_committed_bytes_are_reported(log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", _table(0, 50))
    active = max(log_dir.topic("orders").partitions[0].directory.glob(f"*{LOG_SUFFIX}"))
    active.write_bytes(active.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError) as reading:
        LogDir.open(log_dir.path).read("orders")
    assert reading.value.file == str(active)
    with pytest.raises(CorruptRecordError, match="committed"):
        log_dir.append("orders", _table(50, 1))


@pytest.mark.file_roots
def test_lost_indexes_are_tolerated_and_active_one_is_rebuilt(log_dir: LogDir) -> None:
    log_dir.create_topic(
        "orders", partitions=1, configs={"index.interval.bytes": "50", "internal.segment.bytes": "1500"}
    )
    for first in range(0, 200, 20):
        log_dir.append("orders", _table(first, 20))
    directory = log_dir.topic("orders").partitions[0].directory
    kept = {path.name: path.read_bytes() for path in directory.glob("*index")}
    for path in directory.glob("*index"):
        path.unlink()
    assert len(_values(log_dir)) == 200
    log_dir.append("orders", _table(200, 20))
    assert len(_values(log_dir)) == 220
    active = max(name for name in kept if name.endswith(".index"))
    assert (directory / active).read_bytes().startswith(kept[active])


def test_recreated_topic_has_no_old_records(log_dir: LogDir) -> None:
    log_dir.append("orders", _table(0, 10))
    log_dir.refresh()
    old_id = log_dir.topic("orders").topic_id
    log_dir.delete_topic("orders")
    with pytest.raises(UnknownTopicError, match="orders"):
        log_dir.topic("orders")
    if isinstance(log_dir.path, Path):
        assert len(list(log_dir.path.glob("orders-0.*-delete"))) == 1
    log_dir.append("orders", _table(100, 3))
    log_dir.refresh()
    assert log_dir.topic("orders").topic_id != old_id
    assert len(_values(log_dir)) == 3


def test_topic_with_longest_name_can_be_deleted_and_recreated(log_dir: LogDir) -> None:
    name = "x" * 249
    log_dir.append(name, _table(0, 10))
    log_dir.delete_topic(name)
    if isinstance(log_dir.path, Path):
        (aside,) = log_dir.path.glob("x*-delete")
        assert re.fullmatch(r"x+-0\.[0-9a-f]{32}-delete", aside.name), "as Kafka has it"
    log_dir.append(name, _table(10, 2))
    assert _values(log_dir, name) == [b"v10", b"v11"]


def test_append_goes_to_what_another_has_made_of_the_topic_since(log_dir: LogDir) -> None:
    log_dir.append("orders", _table(0, 10))
    other = LogDir.open(log_dir.path)
    log_dir.add_partitions("orders", total=3)
    other.append("orders", _table(10, 1), partition=2)
    log_dir.delete_topic("orders")
    other.append("orders", _table(11, 2))
    assert _values(other) == [b"v11", b"v12"]
    log_dir.refresh()
    other.delete_topic("orders")
    made = log_dir.ensure_topic("orders")
    other.refresh()
    assert made.topic_id == other.topic("orders").topic_id
    with pytest.raises(UnknownTopicError, match="partitions 0 to 0"):
        other.append("orders", _table(0, 1), partition=1)


@pytest.mark.file_roots
def test_directory_left_of_deleted_topic_is_not_reused(log_dir: LogDir) -> None:
    log_dir.append("orders", _table(0, 10))
    log_dir.refresh()
    directory = log_dir.topic("orders").partitions[0].directory
    saved = directory.with_name("saved")
    shutil.copytree(directory, saved)
    log_dir.delete_topic("orders")
    saved.rename(directory)
    log_dir.append("orders", _table(10, 2))
    assert sorted(_values(log_dir)) == [b"v10", b"v11"]


@pytest.mark.file_roots
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["lost", "empty"])
def test_unreadable_topic_id_is_rewritten_and_records_stay(log_dir: LogDir, damage: Callable[[Path], None]) -> None:
    log_dir.append("orders", _table(0, 10))
    damage(log_dir.path / "orders-0" / "partition.metadata")
    log_dir.append("orders", _table(10, 2))
    log_dir.add_partitions("orders", total=2)
    assert len(_values(log_dir)) == 12
    assert read_topic_id(log_dir.path / "orders-0" / "partition.metadata") == log_dir.topic("orders").topic_id


@pytest.mark.file_roots
@pytest.mark.parametrize("is_lost", [True, False])
def test_directory_of_records_is_neither_renamed_nor_made_by_changes_of_its_topic(
    log_dir: LogDir, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is lost, or its partition.metadata is that of another topic."""
    log_dir.append("orders", _table(0, 10))
    directory = log_dir.path / "orders-0"
    if is_lost:
        directory.rename(log_dir.path.parent / "elsewhere")
    else:
        write_topic_id(directory / "partition.metadata", "SF4fLBrsTsCBKkm_tBhcKg")
    before = sorted(each.name for each in directory.glob("*"))
    log_dir.alter_topic("orders", add={"retention.ms": "-1"})
    log_dir.add_partitions("orders", total=3)
    assert "which has committed records" in caplog.text
    assert sorted(each.name for each in directory.glob("*")) == before
    assert not list(log_dir.path.glob("*-delete"))
    assert (log_dir.path / "orders-2").is_dir()


@pytest.mark.file_roots
def test_recreated_topic_has_no_checkpoint_lines_of_deleted_topic(log_dir: LogDir) -> None:
    lines = {TopicPartition("orders", 0): 500, TopicPartition("others", 0): 7}
    log_dir.append("orders", _table(0, 10))
    for name in CHECKPOINTS:
        write_offset_checkpoint(log_dir.path / name, lines)
    log_dir.append("orders", _table(10, 2))
    assert all(read_offset_checkpoint(log_dir.path / name) == lines for name in CHECKPOINTS)
    log_dir.delete_topic("orders")
    log_dir.append("orders", _table(0, 3))
    for name in CHECKPOINTS:
        assert read_offset_checkpoint(log_dir.path / name) == {TopicPartition("others", 0): 7}


def test_files_of_deleted_topic_are_removed_after_delay(tmp_path: Path) -> None:
    now = [1_000_000]
    log_dir = create_log_dir(tmp_path / "log", clock=lambda: now[0])
    for name in ("a", "b"):
        log_dir.create_topic(name, partitions=1, configs={"file.delete.delay.ms": "60000"})
    log_dir.delete_topic("a")
    (aside,) = log_dir.path.glob("a-0.*-delete")
    os.utime(aside, ns=(now[0] * 1_000_000, now[0] * 1_000_000))
    now[0] += 60_001
    log_dir.delete_topic("b")
    assert not aside.exists()
    assert len(list(log_dir.path.glob("b-0.*-delete"))) == 1


@pytest.mark.file_roots
@pytest.mark.parametrize("name", BAD_NAMES)
def test_invalid_topic_name_is_rejected_and_creates_no_file(log_dir: LogDir, name: str) -> None:
    before = sorted(log_dir.path.parent.rglob("*"))
    with pytest.raises(InvalidTopicError):
        log_dir.create_topic(name, partitions=1)
    with pytest.raises(InvalidTopicError):
        log_dir.append(name, _table(0, 1))
    after = sorted(path for path in log_dir.path.parent.rglob("*") if path.name != ".lock")
    assert [path for path in before if path.name != ".lock"] == after


def test_duplicate_topic_and_fewer_partitions_are_rejected(log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=3)
    with pytest.raises(TopicExistsError):
        log_dir.create_topic("orders")
    with pytest.raises(InvalidTopicError):
        log_dir.add_partitions("orders", 2)
    log_dir.add_partitions("orders", 5)
    assert len(log_dir.topic("orders").partitions) == 5
    log_dir.append("orders", _table(0, 1), partition=4)
    log_dir.refresh()
    assert log_dir.partition("orders", 4).high_watermark == 1
    with pytest.raises(UnknownTopicError):
        log_dir.append("orders", _table(0, 1), partition=5)


def test_broker_configs_apply_after_reopening(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("num.partitions=3\nlog.segment.bytes=2097152\nauto.create.topics.enable=false\nlisteners=X\n")
    LogDir.create(tmp_path / "log", server_properties=properties).create_topic("orders")
    log_dir = LogDir.open(tmp_path / "log")
    assert len(log_dir.topic("orders").partitions) == 3
    assert log_dir.log_config("orders").segment_bytes == 2097152
    with pytest.raises(UnknownTopicError):
        log_dir.append("other", _table(0, 1))
    log_dir.alter_topic("orders", add={"segment.bytes": "1048576"})
    assert log_dir.log_config("orders").segment_bytes == 1048576
    log_dir.alter_topic("orders", delete=["segment.bytes"])
    assert log_dir.log_config("orders").segment_bytes == 2097152
    with pytest.raises(InvalidConfigError, match=r"segment\.bytes"):
        log_dir.alter_topic("orders", add={"segment.bytes": "1"})


def test_offsets_outside_log_are_rejected(log_dir: LogDir) -> None:
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", _table(0, 10))
    log_dir.refresh()
    assert log_dir.read("orders", partition=0, start_offset=4, end_offset=6)["offset"].to_pylist() == [4, 5]
    assert log_dir.read("orders", partition=0, start_offset=10).num_rows == 0
    for start in (-1, 11):
        with pytest.raises(OffsetOutOfRangeError):
            log_dir.read("orders", partition=0, start_offset=start)
    with pytest.raises(UnknownTopicError):
        log_dir.read("orders", partition=1)
    with pytest.raises(UnknownTopicError, match="orders"):
        log_dir.read("order")


def test_broker_directory_is_read_only(tmp_path: Path) -> None:
    root = tmp_path / "cars"
    shutil.copytree(FIXTURES / "cars", root)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}
    log_dir = LogDir.open_or_create(root)
    assert log_dir.is_broker_directory
    log_dir.read("cars", isolation="read_committed")
    for change in (
        lambda: log_dir.append("cars", _table(0, 1)),
        lambda: log_dir.create_topic("new"),
        lambda: log_dir.delete_topic("cars"),
        lambda: LogDir.create(root),
    ):
        with pytest.raises(ReadOnlyLogDirError):
            change()
    after = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*") if path.name != ".lock"}
    assert {path: value for path, value in after.items() if path != root} == {
        path: value for path, value in before.items() if path != root
    }


def test_repr_names_path_kind_and_topics(tmp_path: Path, kafka_fixtures: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("cars")
    assert repr(log_dir) == f"LogDir('{tmp_path}/log', native, version {log_dir.version}, 1 topic)"
    assert repr(LogDir.open(kafka_fixtures / "cars")) == (
        f"LogDir('{kafka_fixtures}/cars', a broker's directory, 1 topic)"
    )


def test_path_that_is_no_log_directory_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LogDirError):
        LogDir.open(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogDirError, match="not a log directory"):
        LogDir.open(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogDirError):
        LogDir.open(tmp_path / "file")
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter.txt").write_text("x")
    with pytest.raises(LogDirError, match="not a log directory"):
        LogDir.open_or_create(tmp_path / "documents")


@pytest.mark.parametrize("create", [LogDir.create, LogDir.open_or_create])
def test_directory_that_cannot_be_created_is_named_by_the_error(
    tmp_path: Path, create: Callable[[Path], LogDir]
) -> None:
    with pytest.raises(LogDirError, match=r"cannot create the directory: .*'/proc/none'"):
        create(Path("/proc/none/log"))
    (tmp_path / "file").touch()
    with pytest.raises(LogDirError, match=f"cannot create the directory: .*'{tmp_path}/file/log'"):
        create(tmp_path / "file" / "log")


def test_root_half_created_by_crash_can_be_opened(tmp_path: Path) -> None:
    root = tmp_path / "made" / "log"
    LogDir.open_or_create(root).append("orders", _table(0, 1))
    shutil.rmtree(root / "__cluster_metadata-0")
    (root / "__cluster_metadata-0").mkdir()
    (root / "__cluster_metadata-0" / "kafkalog-format").write_text("version=1\n")
    assert LogDir.open_or_create(root).topics() == ()


def test_root_whose_creation_was_killed_before_its_marker_is_writable(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / ".lock").touch()
    log_dir = LogDir.open_or_create(tmp_path)
    log_dir.append("orders", _table(0, 1))
    assert log_dir.read("orders").num_rows == 1


def test_topic_whose_creation_was_killed_before_its_directories_is_empty(tmp_path: Path) -> None:
    root = tmp_path / "log"
    LogDir.create(root).create_topic("orders", partitions=1)
    shutil.rmtree(root / "orders-0")
    for isolation in ("read_uncommitted", "read_committed"):
        assert LogDir.open(root).read("orders", isolation=isolation).num_rows == 0


_READ_AS_NOBODY = """
import os, sys
from pyspark_kafkalog import LogDir
LogDir.open(sys.argv[2]).read("cars")
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
try:
    LogDir.open(sys.argv[1]).read("cars")
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that every user may enter. Those of pytest are its user's: each session that begins sees to it."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.parametrize("closed", [".", "cars-0", "cars-0/00000000000000000106.log"])
@pytest.mark.slow
def test_path_without_permission_is_named_in_error(open_to_all: Path, closed: str) -> None:
    root = open_to_all / "cars"
    shutil.copytree(FIXTURES / "cars", root)
    (root / closed).chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _READ_AS_NOBODY, str(root), str(FIXTURES / "cars")],
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        (root / closed).chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert "Permission denied" in done.stdout
    assert str((root / closed).resolve()) in done.stdout


@pytest.mark.parametrize("place", ["hdfs://node/log", "dbfs:/log", Path("s3://bucket/log")])
@pytest.mark.parametrize("open_it", [LogDir.open, LogDir.create, LogDir.open_or_create])
def test_a_url_that_is_no_place_for_a_log_directory_becomes_no_directory(
    place: str | Path, open_it: Callable[[str | Path], LogDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOptionError, match="expected a path, file://, s3://"):
        open_it(place)
    assert list(tmp_path.iterdir()) == []


def test_a_file_url_names_a_path(tmp_path: Path) -> None:
    LogDir.create((tmp_path / "root").as_uri()).create_topic("t", partitions=1)
    assert LogDir.open(tmp_path / "root").topics() == ("t",)
