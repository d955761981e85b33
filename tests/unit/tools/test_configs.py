"""`kafkalog configs` prints and changes configurations like kafka-configs, and rejects invalid ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders.root_places import RootPlace
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.config.entries import broker_entries, topic_entries
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.configs import parse_settings


@pytest.fixture
def tool(root_place: RootPlace, capsys: pytest.CaptureFixture[str]) -> Command:
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("orders", partitions=1, configs={"retention.ms": "7"})
    return Command("configs", root_place, capsys)


def configs_of(tool: Command, topic: str = "orders") -> dict[str, str]:
    return dict(LogDir.open(tool.root).topic(topic).configs)


def test_alter_sets_and_deletes_configs(tool: Command) -> None:
    out = tool(
        "--entity-type",
        "topics",
        "--entity-name",
        "orders",
        "--alter",
        "--add-config",
        "cleanup.policy=[compact,delete],segment.ms = 5",
        "--delete-config",
        "retention.ms",
    )
    assert out == "Completed updating config for topic orders.\n"
    assert configs_of(tool) == {"cleanup.policy": "compact,delete", "segment.ms": "5"}


def test_change_is_one_commit(tool: Command) -> None:
    before = len(list(LogDir.open(tool.root).history()))
    tool("--topic", "orders", "--alter", "--add-config", "segment.ms=5,flush.ms=6", "--delete-config", "retention.ms")
    assert len(list(LogDir.open(tool.root).history())) == before + 1


def test_internal_segment_bytes_is_accepted_and_shown_only_when_set(tool: Command) -> None:
    assert "internal.segment.bytes" not in tool("--topic", "orders", "--describe", "--all")
    tool("--topic", "orders", "--alter", "--add-config", "internal.segment.bytes=1000")
    assert LogDir.open(tool.root).log_config("orders").segment_bytes == 1000
    assert "internal.segment.bytes=1000" in tool("--topic", "orders", "--describe")


def test_description_matches_kafka_configs(tool: Command) -> None:
    tool("--broker-defaults", "--alter", "--add-config", "log.segment.bytes=2000000")
    tool("--topic", "orders", "--alter", "--add-config", "segment.bytes=1048576")
    assert tool("--topic", "orders", "--describe").split("\n") == [
        "Dynamic configs for topic orders are:",
        "  retention.ms=7 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=7}",
        "  segment.bytes=1048576 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=1048576, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=2000000, DEFAULT_CONFIG:log.segment.bytes=1073741824}",
        "",
    ]
    everything = tool("--topic", "orders", "--describe", "--all").split("\n")
    assert everything[0] == "All configs for topic orders are:"
    assert "  segment.ms=604800000 sensitive=false synonyms={}" in everything
    assert (
        "  max.message.bytes=1048588 sensitive=false synonyms={DEFAULT_CONFIG:message.max.bytes=1048588}" in everything
    )


def test_all_topics_are_described_without_a_name(tool: Command) -> None:
    LogDir.open(tool.root).create_topic("other", partitions=1)
    out = tool("--entity-type", "topics", "--describe")
    assert out.split("\n")[::2] == ["Dynamic configs for topic orders are:", "Dynamic configs for topic other are:"]


def test_broker_defaults_apply_to_topics(tool: Command) -> None:
    out = tool("--entity-type", "brokers", "--entity-default", "--alter", "--add-config", "log.segment.bytes=2000000")
    assert out == "Completed updating default config for brokers in the cluster.\n"
    assert LogDir.open(tool.root).log_config("orders").segment_bytes == 2_000_000
    assert tool("--entity-type", "brokers", "--describe") == (
        "Dynamic configs for broker 1 are:\n"
        "Default configs for brokers in the cluster are:\n"
        "  log.segment.bytes=2000000 sensitive=false "
        "synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.bytes=2000000}\n"
    )
    assert "  num.partitions=1 sensitive" in tool("--broker", "1", "--describe", "--all")
    tool("--broker-defaults", "--alter", "--delete-config", "log.segment.bytes")
    assert LogDir.open(tool.root).log_config("orders").segment_bytes == 1 << 30


def test_group_has_its_own_configs_until_they_are_deleted(tool: Command) -> None:
    group = ("--entity-type", "groups", "--entity-name", "readers")
    setting = "consumer.heartbeat.interval.ms=6000"
    assert tool(*group, "--alter", "--add-config", setting) == "Completed updating config for group readers.\n"
    line = f"  {setting} sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{setting}}}\n"
    assert tool("--entity-type", "groups", "--describe") == f"Dynamic configs for group readers are:\n{line}"
    everything = tool("--group", "others", "--describe", "--all")
    described = [each.split()[0] for each in everything.splitlines()[1:]]
    assert [each.partition("=")[0] for each in described] == sorted(GROUP_CONFIGS)
    assert {"consumer.heartbeat.interval.ms=5000", "streams.assignor.name=null"} <= set(described)
    tool("--group", "readers", "--alter", "--delete-config", "consumer.heartbeat.interval.ms")
    assert tool("--entity-type", "groups", "--describe") == ""


def test_configs_are_added_from_file(tool: Command, tmp_path: Path) -> None:
    (tmp_path / "new.properties").write_text("segment.ms=9\ncleanup.policy=compact,delete\n")
    tool("--topic", "orders", "--alter", "--add-config-file", str(tmp_path / "new.properties"))
    assert configs_of(tool) == {"retention.ms": "7", "segment.ms": "9", "cleanup.policy": "compact,delete"}


def test_json_is_one_object_per_line(tool: Command) -> None:
    changed = json.loads(tool("--topic", "orders", "--alter", "--add-config", "segment.ms=9", "--output", "json"))
    assert (changed["entityType"], changed["entityName"]) == ("topics", "orders")
    assert {each["name"]: each["value"] for each in changed["configs"]} == {"retention.ms": "7", "segment.ms": "9"}
    lines = tool("--entity-type", "brokers", "--describe", "--output", "json").splitlines()
    assert [json.loads(line).get("entityName") for line in lines] == ["1", None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topic", "orders", "--alter", "--add-config", "segment.bytes=10"), "segment.bytes=10 is not allowed"),
        (("--topic", "orders", "--alter", "--add-config", "segment.size=10"), "segment.size is no topic config"),
        (("--topic", "orders", "--alter", "--add-config", "segment.ms"), 'in the format "key=val"'),
        (("--topic", "orders", "--alter", "--add-config", "segment.ms=1=2"), 'in the format "key=val"'),
        (("--topic", "orders", "--alter", "--add-config", "a b=1"), "Invalid character found for config key: a b"),
        (("--topic", "orders", "--alter", "--delete-config", "flush.ms"), "Invalid config(s): flush.ms"),
        (("--topic", "nope", "--alter", "--add-config", "segment.ms=1"), "there is no topic 'nope'"),
        (("--topic", "nope", "--describe"), "The topic 'nope' doesn't exist"),
        (("--topic", "orders", "--alter"), "At least one of --add-config"),
        (("--entity-type", "topics", "--alter", "--add-config", "a=b"), "An entity name must be specified"),
        (("--entity-type", "topics", "--entity-default", "--describe"), "can't be used with topics"),
        (("--topic", "orders", "--describe", "--add-config", "a=b"), "can't be used with --describe"),
        (("--topic", "orders", "--entity-type", "topics", "--describe"), "should not be used in conjunction"),
        (("--topic", "orders", "--broker", "1", "--describe"), "only one entity"),
        (("--describe",), "--entity-type topics, groups or brokers"),
        (("--broker", "one", "--describe"), "must be a valid integer broker id"),
        (("--broker", "7", "--describe"), "The broker '7' doesn't exist"),
        (("--broker", "1", "--alter", "--add-config", "num.partitions=2"), "use --entity-default"),
        (
            ("--broker-defaults", "--alter", "--add-config", "num.partition=2"),
            "num.partition: no such broker-level config",
        ),
        (("--broker-defaults", "--alter", "--add-config", "num.partitions=0"), "num.partitions=0 is not allowed"),
        (("--entity-type", "tables", "--describe"), "invalid choice: 'tables'"),
    ],
)
def test_rejected_change_names_cause_and_changes_nothing(
    tool: Command, arguments: tuple[str, ...], message: str
) -> None:
    assert message in tool.fails(*arguments)
    assert configs_of(tool) == {"retention.ms": "7"}


def test_broker_config_that_contradicts_topic_config_is_rejected(tool: Command) -> None:
    tool("--topic", "orders", "--alter", "--add-config", "max.compaction.lag.ms=50")
    said = tool.fails("--broker-defaults", "--alter", "--add-config", "log.cleaner.min.compaction.lag.ms=100")
    assert "the configuration of topic orders would not be allowed" in said


def test_broker_directory_is_described_and_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FIXTURES / "cluster-metadata", tmp_path / "theirs")
    (tmp_path / "theirs" / "meta-0-2-0").mkdir()
    tool = Command("configs", tmp_path / "theirs", capsys)
    assert tool("--entity-type", "topics", "--describe") == (
        "Dynamic configs for topic meta-0-2 are:\n"
        "  retention.ms=962180866 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=962180866}\n"
    )
    assert "is a Kafka broker's" in tool.fails("--entity-type", "topics", "--describe", "--all")
    assert "is a Kafka broker's" in tool.fails("--topic", "meta-0-2", "--alter", "--add-config", "segment.ms=5")


def test_brackets_keep_commas_and_equals_signs() -> None:
    assert parse_settings(["a=[1,2],b=", " c = [x=y] "]) == {"a": "1,2", "b": "", "c": "x=y"}


def test_synonyms_are_in_same_order_as_kafka() -> None:
    (entry,) = [each for each in topic_entries({}, {"log.retention.hours": "1"}) if each.name == "retention.ms"]
    assert (entry.value, entry.synonyms) == ("3600000", ())
    (entry,) = [each for each in topic_entries({}, {"log.retention.ms": "5"}) if each.name == "retention.ms"]
    assert str(entry.synonyms[0]) == "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=5"
    assert {each.name for each in broker_entries({})} >= {"num.partitions", "log.segment.bytes"}


def test_entries_without_value_and_numbers_are_written_as_kafka_writes_them() -> None:
    entries = {each.name: each for each in broker_entries({"log.cleaner.io.buffer.load.factor": "0.25"})}
    assert str(entries["log.roll.ms"]) == "log.roll.ms=null sensitive=false synonyms={}"
    assert entries["log.cleaner.io.max.bytes.per.second"].value == "1.7976931348623157E308"
    assert entries["log.cleaner.io.buffer.load.factor"].source.name == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    doubles = {"min.cleanable.dirty.ratio": "5e-4"}
    (ratio,) = [each for each in topic_entries(doubles, {}) if each.name == "min.cleanable.dirty.ratio"]
    assert (ratio.value, ratio.is_set_by_topic) == ("5.0E-4", True)
