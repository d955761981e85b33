"""Symbolic links and pipes in a log directory are not followed or waited for, so nothing outside is read or written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError, LogDirError
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.spark.data_source import read_schema
from pyspark_kafkalog.spark.options.parse import parse_read_options
from pyspark_kafkalog.spark.options.positions import Assign, Subscribe
from pyspark_kafkalog.spark.read.reader import KafkalogBatchReader
from pyspark_kafkalog.spark.stream.plan import take_view
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

TABLE = pa.table({"value": ["x"]})
SEGMENT = "00000000000000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", TABLE)
    return log_dir.path


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def move_away(path: Path, to: Path) -> Path:
    """Move a file or directory out of the log directory, with a link in its place."""
    target = to / path.name
    shutil.move(path, target)
    path.symlink_to(target)
    return target


def refuses(action: Callable[[], object]) -> None:
    with pytest.raises((KafkalogError, OSError)):
        action()


def test_partition_that_is_symbolic_link_is_neither_read_nor_written(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = move_away(root / "orders-0", outside)
    before = contents(target)
    log_dir = LogDir.open(root)
    with pytest.raises(KafkalogError, match=r"orders-0 is a symbolic link"):
        log_dir.read("orders")
    with pytest.raises(KafkalogError, match=r"orders-0 is a symbolic link"):
        log_dir.append("orders", TABLE)
    for report in (
        *apply_retention(log_dir.root),
        *merge_segments(log_dir.root),
        clean_partition(log_dir.root, "orders", 0),
    ):
        assert report.error is not None
        assert "symbolic link" in report.error
    assert contents(target) == before


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A broker's directory with two partitions of three elsewhere and a link in place of one."""
    log_dir = LogDir.create(tmp_path / "broker")
    log_dir.create_topic("orders", partitions=3)
    for partition in range(3):
        log_dir.append("orders", TABLE, partition=partition)
    shutil.rmtree(log_dir.path / "__cluster_metadata-0")
    move_away(log_dir.path / "orders-1", tmp_path)
    return log_dir.path


def rows_of(made: KafkalogBatchReader) -> int:
    return sum(len(batch) for each in made.partitions() for batch in made.read(each))


def test_partitions_beside_link_are_described_and_link_is_named(
    linked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = LogDir.open(linked).topic("orders", readable_only=True)
    assert ([each.partition for each in described.partitions], list(described.unreadable)) == ([0, 2], [1])
    for name, *arguments in (("topics", "--describe"), ("get-offsets",), ("log-dirs", "--describe")):
        assert main([name, "--path", str(linked), *arguments]) == 1
        printed = capsys.readouterr()
        assert f"kafkalog {name}: orders-1: {linked / 'orders-1'} is a symbolic link" in printed.err
        assert all(each in printed.out for each in (("orders:0:1", "orders:2:1") if name == "get-offsets" else ()))


def test_groups_beside_linked_offsets_partition_are_listed_and_link_is_named(
    linked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native = LogDir.create(tmp_path / "native")
    native.create_topic("orders", partitions=1)
    native.alter_broker_configs(add={"offsets.topic.num.partitions": "2"})
    for name in ("a", "b", "c", "d"):
        native.group(name).commit({("orders", 0): 0})
    for each in native.path.glob("__consumer_offsets-*"):
        shutil.move(each, linked / each.name)
    move_away(linked / "__consumer_offsets-1", tmp_path)
    assert main(["consumer-groups", "--path", str(linked), "--list"]) == 1
    printed = capsys.readouterr()
    assert 0 < len(printed.out.splitlines()) < 4
    assert "__consumer_offsets-1 is a symbolic link, which is not followed" in printed.err


def test_partitions_beside_link_are_read_and_whole_topic_is_rejected(linked: Path) -> None:
    def batch(**options: str) -> KafkalogBatchReader:
        return KafkalogBatchReader(parse_read_options({"path": str(linked), **options}), read_schema(False))

    assert rows_of(batch(assign='{"orders":[0,2]}')) == 2
    subscription = Assign((TopicPartition("orders", 2),))
    assert len(take_view(LogDir.open(linked).root, subscription, committed=False)) == 1
    assert LogDir.open(linked).read("orders", partition=0).num_rows == 1
    for options in ({"subscribe": "orders"}, {"assign": '{"orders":[0,1]}'}):
        with pytest.raises(LogDirError, match=r"orders-1 is a symbolic link"):
            rows_of(batch(**options))
    for subscribed in (Assign((TopicPartition("orders", 1),)), Subscribe(("orders",))):
        with pytest.raises(LogDirError, match=r"orders-1 is a symbolic link"):
            take_view(LogDir.open(linked).root, subscribed, committed=False)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_segment_file_that_is_symbolic_link_is_not_written(root: Path, tmp_path: Path, suffix: str) -> None:
    target = move_away(root / "orders-0" / f"{SEGMENT}{suffix}", tmp_path)
    before = target.read_bytes()
    refuses(lambda: LogDir.open(root).append("orders", TABLE))
    assert target.read_bytes() == before
    assert LogDir.open(root).topic("orders").partitions[0].high_watermark == 1


def test_log_file_that_is_symbolic_link_is_not_read(root: Path, tmp_path: Path) -> None:
    move_away(root / "orders-0" / f"{SEGMENT}.log", tmp_path)
    refuses(lambda: LogDir.open(root).read("orders"))


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "transactions-0/leader-epoch-checkpoint"])
def test_error_does_not_show_content_of_linked_file(kafka_fixtures: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(kafka_fixtures / "transactions", copy, ignore=shutil.ignore_patterns("expected"))
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    (copy / name).unlink()
    (copy / name).symlink_to(secret)

    def look() -> None:
        log_dir = LogDir.open(copy)
        for topic in log_dir.topics():
            log_dir.topic(topic)

    with pytest.raises((OSError, KafkalogError)) as caught:
        look()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_pipe_in_place_of_file_is_named_and_not_waited_for(root: Path, suffix: str) -> None:
    path = root / "orders-0" / f"{SEGMENT}{suffix}"
    path.unlink()
    os.mkfifo(path)
    log_dir = LogDir.open(root)
    if suffix == ".index":
        assert log_dir.read("orders").num_rows == 1  # an index is only a hint
    with pytest.raises(LogDirError, match=f"{path.name} is a named pipe"):
        log_dir.append("orders", TABLE)


@pytest.mark.usefixtures("one_commit_a_file")
def test_pipe_in_place_of_old_commit_is_not_waited_for(root: Path) -> None:
    path = root / METADATA_DIR / f"{SEGMENT}.log"
    path.unlink()
    os.mkfifo(path)
    log_dir = LogDir.open(root)
    log_dir.append("orders", TABLE)
    forget_images()
    refuses(lambda: LogDir.open(root))
