"""A partition or a group that cannot be read: each command shows the others, names it, and ends with status 1."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from fakes.admin_requests import AdminRequests
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_partition, offset_key
from pyspark_kafkalog.groups.offsets_topic import append_records
from pyspark_kafkalog.maintenance.metrics import collect_metrics
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from pyspark_kafkalog.protocol.messages.replicas import DescribeLogDirsRequest, DescribeLogDirsResponse
from pyspark_kafkalog.spark.options.positions import Subscribe
from pyspark_kafkalog.spark.stream.plan import take_view
from pyspark_kafkalog.storage.names import TopicPartition

TABLE = pa.table({"value": ["x", "y"]})


def zeroed_checkpoint(directory: Path) -> None:
    (directory / "leader-epoch-checkpoint").write_bytes(bytes(8))


def pipe_as_log(directory: Path) -> None:
    (log,) = directory.glob("*.log")
    log.unlink()
    os.mkfifo(log)


def link(directory: Path) -> None:
    target = directory.parent.parent / directory.name
    shutil.move(directory, target)
    directory.symlink_to(target)


DAMAGE: dict[str, Callable[[Path], None]] = {"checkpoint": zeroed_checkpoint, "pipe": pipe_as_log, "link": link}
COMMANDS = {
    "get-offsets": ["get-offsets"],
    "get-offsets at a time": ["get-offsets", "--time", "0"],
    "log-dirs": ["log-dirs", "--describe"],
    "topics": ["topics", "--describe"],
    "find-hanging": ["transactions", "find-hanging"],
    "groups": ["consumer-groups", "--describe", "--all-groups"],
    "verify": ["verify"],
}
#: What each shows of the good topic; nothing is open in it.
SHOWN = {"get-offsets": "good:0:2", "get-offsets at a time": "good:0:0", "find-hanging": "Topic"}


@pytest.fixture(params=DAMAGE)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A broker's directory with topic good between two whose partitions 0 cannot be read, and a group of all."""
    log_dir = LogDir.create(tmp_path / "broker")
    for name in ("bad", "good", "worse"):
        log_dir.create_topic(name, partitions=2)
        for partition in range(2):
            log_dir.append(name, TABLE, partition=partition)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    log_dir.group("g").commit({(name, 0): 1 for name in ("bad", "good", "worse")})
    shutil.rmtree(log_dir.path / "__cluster_metadata-0")
    for name in ("bad", "worse"):
        DAMAGE[str(request.param)](log_dir.path / f"{name}-0")
    return log_dir.path


@pytest.mark.parametrize("case", COMMANDS)
def test_other_partitions_are_shown_and_bad_ones_named(
    disk: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    name, *arguments = COMMANDS[case]
    code, out, err = Command(name, disk, capsys).try_to(*arguments)
    assert code == 1
    assert SHOWN.get(case, "good") in out
    named = out if name == "verify" else err
    assert all(each in named for each in ("bad-0", "worse-0"))
    assert "good-0" not in err


@pytest.mark.parametrize("arguments", ["get-offsets --topic good", "log-dirs --describe --topic-list good"])
def test_commands_for_good_topic_look_at_no_other(
    disk: Path, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    name, *rest = arguments.split()
    assert "good" in Command(name, disk, capsys)(*rest)


def test_configurations_are_described_without_logs(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = Command("configs", disk, capsys)("--describe", "--entity-type", "topics")
    assert all(f"topic {name} are" in printed for name in ("bad", "good", "worse"))


def test_readers_of_good_topic_do_not_notice(disk: Path) -> None:
    log_dir = LogDir.open(disk)
    assert log_dir.read("good").num_rows == 4
    assert len(take_view(log_dir.root, Subscribe(("good",)), committed=True)) == 2
    assert [each.partition for each in log_dir.topic("bad", readable_only=True).partitions] == [1]


def test_server_answers_with_an_error_of_the_partition_alone(disk: Path) -> None:
    admin = AdminRequests(LogDir.open(disk).root)
    metadata = admin.ask(ApiKey.METADATA, MetadataRequest(topics=None), MetadataResponse)
    none, offline = (ErrorCode.NONE, True), (ErrorCode.LEADER_NOT_AVAILABLE, False)
    expected = {"bad": [offline, none], "good": [none, none], "worse": [offline, none]}
    found = {
        topic.name: [(each.error_code, each.leader_id >= 0) for each in topic.partitions] for topic in metadata.topics
    }
    assert {name: found[name] for name in expected} == expected
    pages = admin.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitionsRequest(), DescribeTopicPartitionsResponse
    )
    paged = {
        topic.name: [(each.error_code, each.leader_id >= 0) for each in topic.partitions] for topic in pages.topics
    }
    assert {name: paged[name] for name in expected} == expected
    (result,) = admin.ask(
        ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
    ).results
    sized = {each.name: [of.partition_index for of in each.partitions] for each in result.topics}
    assert result.error_code == ErrorCode.NONE
    assert {name: sized[name] for name in expected} == {"bad": [1], "good": [0, 1], "worse": [1]}


NAMES = [f"group-{number}" for number in range(8)]


@pytest.fixture
def groups(tmp_path: Path) -> LogDir:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.append("orders", TABLE)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "3"})
    for name in NAMES:
        log_dir.group(name).commit({("orders", 0): 1})
    return log_dir


def lags(log_dir: LogDir) -> set[str]:
    found = {each.name: each.values for each in collect_metrics(LogDir.open(log_dir.path).root, now_ms=0)}
    return {labels[0] for labels in found["records-lag"]}


def check_groups(log_dir: LogDir, capsys: pytest.CaptureFixture[str], others: set[str], bad: str) -> None:
    command = Command("consumer-groups", log_dir.path, capsys)
    for arguments in (["--list"], ["--list", "--state"], ["--describe", "--all-groups"]):
        code, out, err = command.try_to(*arguments)
        assert code == 1
        assert {name for name in NAMES if name in out} == others
        assert bad in err
    assert lags(log_dir) == others


def test_damaged_partition_hides_only_its_own_groups(groups: LogDir, capsys: pytest.CaptureFixture[str]) -> None:
    log = groups.path / f"{OFFSETS_TOPIC}-1" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[80] ^= 1
    log.write_bytes(data)
    others = {name for name in NAMES if group_partition(name, 3) != 1}
    assert len(others) < len(NAMES)
    check_groups(groups, capsys, others, f"{OFFSETS_TOPIC}-1")
    with pytest.raises(CorruptRecordError):  # a list that lacks some is no answer
        LogDir.open(groups.path).groups()


def test_undecodable_value_hides_only_its_own_group(
    groups: LogDir, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    number = group_partition(NAMES[0], 3)
    append_records(groups.root, number, {offset_key(NAMES[0], TopicPartition("orders", 0)): b"\x00\x63?"})
    with caplog.at_level(logging.WARNING):
        assert lags(groups) == {*NAMES[1:]}
    assert f"group {NAMES[0]} is omitted" in caplog.text
    code, out, err = Command("consumer-groups", groups.path, capsys).try_to("--describe", "--all-groups")
    assert (code, {name for name in NAMES[1:] if name in out}) == (1, {*NAMES[1:]})
    assert f"group {NAMES[0]}" in err
