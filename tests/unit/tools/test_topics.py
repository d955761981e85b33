"""`kafkalog topics` creates, describes, alters, lists and deletes topics like kafka-topics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders.root_places import RootPlace
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.main import main


@pytest.fixture
def tool(root_place: RootPlace, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command("topics", root_place, capsys)


def foreign(fixture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    shutil.copytree(FIXTURES / fixture, tmp_path / fixture)
    return Command("topics", tmp_path / fixture, capsys)


def test_created_topic_has_its_partitions_and_configs(tool: Command) -> None:
    shape = ("--partitions", "3", "--replication-factor", "1", "--config", "segment.ms=5")
    assert tool("--create", "--topic", "orders", *shape) == "Created topic orders.\n"
    topic = LogDir.open(tool.root).topic("orders")
    assert len(topic.partitions) == 3
    assert dict(topic.configs) == {"segment.ms": "5"}


def test_topic_name_with_dot_prints_metric_name_warning(tool: Command) -> None:
    warning, created = tool("--create", "--topic", "orders.eu").splitlines()
    assert warning.startswith("WARNING: Due to limitations in metric names")
    assert created == "Created topic orders.eu."


def test_description_matches_kafka_topics(tool: Command) -> None:
    tool("--create", "--topic", "a", "--partitions", "2", "--config", "retention.ms=-1", "--config", "flush.ms=7")
    topic_id = LogDir.open(tool.root).topic("a").topic_id
    assert tool("--describe").split("\n") == [
        f"Topic: a\tTopicId: {topic_id}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: flush.ms=7,retention.ms=-1",
        "\tTopic: a\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: ",
        "\tTopic: a\tPartition: 1\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: ",
        "",
    ]


def test_description_includes_broker_default_configs(tool: Command) -> None:
    tool("--create", "--topic", "a", "--config", "retention.ms=-1")
    LogDir.open(tool.root).alter_broker_configs(add={"log.segment.bytes": "2000000", "num.partitions": "3"})
    assert tool("--describe").splitlines()[0].endswith("\tConfigs: retention.ms=-1,segment.bytes=2000000")


def test_description_of_broker_directory_matches_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("cars", tmp_path, capsys)
    topic_id = json.loads((FIXTURES / "cars/expected/manifest.json").read_text("utf-8"))["topics"]["cars"]["topicId"]
    assert tool("--describe", "--topic", "cars") == (
        f"Topic: cars\tTopicId: {topic_id}\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: \n"
        "\tTopic: cars\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: \n"
    )
    assert tool("--list") == "cars\n"
    described = json.loads(tool("--describe", "--output", "json"))
    assert described["topicId"] == topic_id
    assert described["partitions"][0]["highWatermark"] > 0


def test_broker_directory_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("cars", tmp_path, capsys)
    before = sorted(tool.root.rglob("*"))
    assert "broker's log directory" in tool.fails("--create", "--topic", "x")
    assert "broker's log directory" in tool.fails("--alter", "--topic", "cars", "--partitions", "4")
    assert "broker's log directory" in tool.fails("--delete", "--topic", "cars")
    assert sorted(tool.root.rglob("*")) == before


def test_alter_and_delete_change_topic(tool: Command) -> None:
    tool("--create", "--topic", "a", "--config", "segment.ms=7", "--config", "retention.ms=8")
    assert tool("--alter", "--topic", "a", "--partitions", "2", "--config", "flush.ms=9") == ""
    assert tool("--alter", "--topic", "a", "--delete-config", "segment.ms") == ""
    topic = LogDir.open(tool.root).topic("a")
    assert len(topic.partitions) == 2
    assert dict(topic.configs) == {"retention.ms": "8", "flush.ms": "9"}
    assert tool("--delete", "--topic", "a") == ""
    assert tool("--list") == ""


def test_pattern_matches_same_topics_as_kafka(tool: Command) -> None:
    for name in ("a.b", "axb", "c"):
        tool("--create", "--topic", name)
    assert tool("--list", "--topic", "a.b") == "a.b\n"  # the topic of that very name, not the pattern
    assert tool("--list", "--topic", "a?xb,c") == "axb\nc\n"
    assert tool("--list", "--topic", "'a.*'") == "a.b\naxb\n"
    assert tool("--list", "--topic", "b") == ""
    assert tool("--list", "--topic", "[a-c&&[^c]]\\p{Punct}?.*") == "a.b\naxb\n"
    assert "a group is not closed, at position 1" in tool.fails("--list", "--topic", "a(")


def test_internal_topics_are_listed_unless_excluded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = foreign("consumer-offsets", tmp_path, capsys)
    assert "__consumer_offsets" in tool("--list").split()
    assert "__consumer_offsets" not in tool("--list", "--exclude-internal").split()


def test_missing_and_existing_topics_are_rejected_unless_flag_permits(tool: Command) -> None:
    tool("--create", "--topic", "a")
    assert "'a' already exists" in tool.fails("--create", "--topic", "a")
    assert tool("--create", "--topic", "a", "--if-not-exists") == ""
    for action in (["--describe"], ["--delete"], ["--alter", "--partitions", "3"]):
        assert "Topic 'b' does not exist as expected" in tool.fails(*action, "--topic", "b")
        assert tool(*action, "--topic", "b", "--if-exists") == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--create", "--topic", "../x"], "topic name '../x' is invalid"),
        (["--create", "--topic", "x", "--partitions", "0"], "The partitions must be greater than 0"),
        (["--create", "--topic", "x", "--replication-factor", "3"], "a log directory has one replica"),
        (["--list", "--replication-factor", "1"], "--replication-factor can't be used with --list"),
        (["--create", "--topic", "x", "--config", "segment.ms"], "must be in the format name=value"),
        (["--create", "--topic", "x", "--config", "no.such=1"], "no.such"),
        (["--create", "--topic", "x", "--config", "segment.ms=soon"], "segment.ms"),
        (["--create"], "--create needs --topic"),
        (["--delete"], "--delete needs --topic"),
        (["--list", "--partitions", "3"], "--partitions can't be used with --list"),
        (["--describe", "--config", "a=b"], "--config can't be used with --describe"),
        (["--alter", "--topic", "a"], "--alter needs --partitions, --config or --delete-config"),
        (["--create", "--list", "--topic", "x"], "not allowed with argument"),
        (["--create", "--topic", "x", "--partitions", "many"], "invalid int value"),
        ([], "one of the arguments --create --list --describe --alter --delete is required"),
    ],
)
def test_invalid_options_are_rejected(tool: Command, arguments: list[str], said: str) -> None:
    assert said in tool.fails(*arguments)


@pytest.mark.file_roots
def test_rejected_topic_name_creates_no_log_directory(tool: Command) -> None:
    tool.fails("--create", "--topic", "a/b")
    assert not tool.root.exists()


def test_missing_path_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["topics", "--list"])
    assert exited.value.code == 2
    assert "--path" in capsys.readouterr().err


@pytest.mark.file_roots
def test_list_does_not_create_absent_log_directory(tool: Command) -> None:
    assert str(tool.root) in tool.fails("--list")
    assert not tool.root.exists()


def test_json_is_one_object_per_topic(tool: Command) -> None:
    created = json.loads(tool("--create", "--topic", "a", "--partitions", "2", "--output", "json"))
    assert (created["topic"], created["partitionCount"]) == ("a", 2)
    tool("--create", "--topic", "b")
    assert [json.loads(line) for line in tool("--list", "--output", "json").splitlines()] == [
        {"topic": "a"},
        {"topic": "b"},
    ]
    described = [json.loads(line) for line in tool("--describe", "--output", "json").splitlines()]
    assert [topic["topic"] for topic in described] == ["a", "b"]
    assert described[0] == created
    assert json.loads(tool("--delete", "--topic", "a", "--output", "json")) == {"topic": "a", "deleted": True}
