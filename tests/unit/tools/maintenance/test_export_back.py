"""`kafkalog export` of an adopted directory names changes that the broker does not know, and sets them aside."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from builders.adopted_roots import ID_A, ID_B, ID_C, METADATA_DIR, config_record, topic_records, write_metadata_log
from builders.controlled import open_log_dir
from builders.metadata_roots import forget_images
from builders.tiered_exports import drop_local_segments, tier_closed_segments
from builders.verify_roots import check_again_at_once, findings_in
from fakes.stopping_filesystem import Killed, StoppingFileSystem
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.export import broker_differences
from pyspark_kafkalog.maintenance.export.export import return_to_broker
from pyspark_kafkalog.metadata.acl import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    acl_record,
)
from pyspark_kafkalog.root.bootstrap import is_vacant
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.maintenance import migration

SHARED = "AAAAAAAAAAAAAAAAAAAASg"
DIRECTORY, OTHER_DIRECTORY = "AAAAAAAAAAAAAAAAAAABBQ", "AAAAAAAAAAAAAAAAAAABBg"
KEPT = f"{METADATA_DIR}.kafka-stray"
BROKER = '--bootstrap-server "${BOOTSTRAP:-localhost:9092}"'
ANN = Acl(ResourceType.TOPIC, "a.b", PatternType.LITERAL, "User:ann", "*", AclOperation.READ, PermissionType.ALLOW)
OPS = Acl(
    ResourceType.CLUSTER,
    "kafka-cluster",
    PatternType.LITERAL,
    "User:CN=it's ops",
    "10.0.0.1",
    AclOperation.DESCRIBE_CONFIGS,
    PermissionType.DENY,
)


def partition_directory(root: Path, topic: str, partition: int, topic_id: str) -> None:
    directory = root / f"{topic}-{partition}"
    directory.mkdir(parents=True)
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Adopted: a.b with two partitions, old with one; other nodes and directories have more."""
    check_again_at_once(monkeypatch)
    root = tmp_path / "data"
    here = {"directories": (DIRECTORY,)}
    for topic, partition, topic_id in (("a.b", 0, ID_A), ("a.b", 1, ID_A), ("old", 0, ID_B), ("shared", 0, SHARED)):
        partition_directory(root, topic, partition, topic_id)
    (root / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id=c\ndirectory.id={DIRECTORY}\n")
    write_metadata_log(
        root,
        [
            *topic_records("a.b", ID_A, here, here, retention_ms="1000", segment_bytes="2000000"),
            *topic_records("old", ID_B, here),
            *topic_records("shared", SHARED, here, {"replicas": (2,), "isr": (2,), "directories": (OTHER_DIRECTORY,)}),
            *topic_records("on-another-node", ID_C, {"replicas": (2,), "isr": (2,), "directories": (DIRECTORY,)}),
            *topic_records("in-another-directory", "AAAAAAAAAAAAAAAAAAAARA", {"directories": (OTHER_DIRECTORY,)}),
            config_record(4, "", "log.retention.ms", "5000"),
            config_record(4, "1", "log.segment.bytes", "3000000"),
            acl_record("AAAAAAAAAAAAAAAAAAAARQ", ANN),
        ],
    )
    LogDir.adopt(root, create_missing=True)
    return Command("export", root, capsys)


def append(log_dir: LogDir, topic: str, partition: int, text: str) -> None:
    rows = pa.table({"key": ["k"] * 3, "value": [f"{text} {n}" for n in range(3)]})
    log_dir.append(topic, rows, partition=partition)


def script_of(tool: Command, target: Path, *arguments: str) -> list[str]:
    return tool("--set-aside", str(target), *arguments).splitlines()


def test_unchanged_directory_is_exported_without_flag(tool: Command, tmp_path: Path) -> None:
    append(LogDir.open(tool.root), "a.b", 1, "more")
    assert tool() == "Wrote the checkpoints of 5 partitions.\n"
    (line,) = script_of(tool, tmp_path / "aside")
    assert "there is nothing to run" in line
    assert not (tmp_path / "aside").exists()


def test_configurations_that_kafka_does_not_have_are_left_out(
    tool: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (broker_differences, migration):
        monkeypatch.setattr(module, "OWN_CONFIGS", frozenset({"flush.ms", "staging.retention.ms"}))
    log_dir = LogDir.open(tool.root)
    log_dir.alter_topic("a.b", add={"flush.ms": "7"})
    log_dir.alter_broker_configs(add={"staging.retention.ms": "7"})
    assert "there is nothing to run" in script_of(tool, tmp_path / "aside")[0]
    log_dir.create_topic("new", configs={"flush.ms": "7", "segment.bytes": "2000000"})
    commands = [line for line in script_of(tool, tmp_path / "aside") if not line.startswith("#")]
    assert commands == [
        f"kafka-topics.sh {BROKER} --create --if-not-exists --topic new --partitions 1 --config segment.bytes=2000000"
    ]


def test_topics_unknown_to_broker_are_set_aside(tool: Command, tmp_path: Path) -> None:
    log_dir = LogDir.open(tool.root)
    append(log_dir, "a.b", 0, "known")
    log_dir.add_partitions("a.b", total=4)
    append(log_dir, "a.b", 3, "added")
    log_dir.create_topic("new.1", partitions=2, configs={"cleanup.policy": "compact,delete"})
    append(log_dir, "new.1", 0, "new")
    log_dir.delete_topic("old")
    refused = tool.fails()
    for difference in ("a.b was extended from 2 to 4 partitions", "new.1 was created", "old was deleted"):
        assert f"topic {difference}" in refused
    assert "another" not in refused
    assert not (tool.root / "replication-offset-checkpoint").exists()
    script = script_of(tool, tmp_path / "aside")
    assert [line for line in script if not line.startswith("#")] == [
        f"kafka-topics.sh {BROKER} --alter --topic 'a\\.b' --partitions 4",
        f"kafka-topics.sh {BROKER} --create --if-not-exists --topic new.1 --partitions 2 "
        "--config cleanup.policy=compact,delete",
        f"kafka-topics.sh {BROKER} --delete --if-exists --topic old",
    ]
    assert script[-1] == f"#   kafkalog export --path {tmp_path / 'aside'} --to {tool.root}"
    assert (tool.root / "replication-offset-checkpoint").exists()
    aside = LogDir.open(tmp_path / "aside")
    assert aside.topics() == ("a.b", "new.1")
    assert [each.high_watermark for each in aside.topic("a.b").partitions] == [0, 0, 0, 3]
    assert aside.read("new.1")["value"].to_pylist() == [b"new 0", b"new 1", b"new 2"]
    assert findings_in(tmp_path / "aside") == []
    assert LogDir.open(tool.root).read("a.b").num_rows == 6, "nothing was moved"
    assert "name another" in tool.try_to("--set-aside", str(tmp_path / "aside"))[2]
    assert "name another" in tool.try_to("--set-aside", str(tool.root / "aside"))[2]


def test_set_aside_partitions_are_mounted_beside_returned_ones(tool: Command, tmp_path: Path) -> None:
    log_dir = LogDir.open(tool.root)
    append(log_dir, "a.b", 0, "known")
    log_dir.add_partitions("a.b", total=3)
    append(log_dir, "a.b", 2, "added")
    script_of(tool, tmp_path / "aside")
    broker = tmp_path / "broker"
    for partition in range(3):
        partition_directory(broker, "a.b", partition, ID_A)
    (broker / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    (broker / "a.b-0" / "00000000000000000000.log").write_bytes(b"went back in place")
    (broker / "replication-offset-checkpoint").write_text("0\n1\na.b 0 3\n")
    assert Command("export", tmp_path / "aside", tool._capsys)("--to", str(broker)).startswith("Exported 2 partitions")
    assert (broker / "a.b-0" / "00000000000000000000.log").read_bytes() == b"went back in place"
    assert (broker / "a.b-2" / "00000000000000000000.log").stat().st_size
    assert sorted((broker / "replication-offset-checkpoint").read_text().splitlines()[2:]) == [
        "a.b 0 3",
        "a.b 1 0",
        "a.b 2 3",
    ]


def test_recreated_topic_is_replaced_only_where_it_has_fewer_partitions(tool: Command, tmp_path: Path) -> None:
    log_dir = LogDir.open(tool.root)
    for name, partitions in (("a.b", 1), ("old", 2)):
        log_dir.delete_topic(name)
        log_dir.create_topic(name, partitions=partitions, configs={"segment.bytes": "4000000"})
        append(log_dir, name, 0, name)
    assert tool.fails().count("was deleted and re-created") == 2
    script = script_of(tool, tmp_path / "aside")
    assert [line for line in script if not line.startswith("#")] == [
        f"kafka-topics.sh {BROKER} --delete --if-exists --topic 'a\\.b'",
        f"kafka-topics.sh {BROKER} --create --if-not-exists --topic a.b --partitions 1 --config segment.bytes=4000000",
        f"kafka-topics.sh {BROKER} --alter --topic old --partitions 2",
        f"kafka-configs.sh {BROKER} --alter --entity-type topics --entity-name old --add-config segment.bytes=4000000",
    ]
    assert LogDir.open(tmp_path / "aside").read("a.b").num_rows == 3


def test_configurations_and_access_control_become_commands(tool: Command, tmp_path: Path) -> None:
    log_dir = LogDir.open(tool.root)
    log_dir.alter_topic("a.b", add={"cleanup.policy": "compact,delete"}, delete=["retention.ms"])
    log_dir.alter_broker_configs(
        add={
            "log.segment.bytes": "4000000",
            "num.partitions": "7",
            "log.roll.ms": "70000",
            "staging.retention.ms": "1",
        },
        delete=["log.retention.ms"],
    )
    log_dir.access_control().add([OPS])
    log_dir.access_control().remove(AclFilter(principal="User:ann"))
    refused = tool.fails()
    assert "configurations of topic a.b were changed (cleanup.policy, retention.ms)" in refused
    assert "(log.retention.ms, log.roll.ms, num.partitions)" in refused
    script = script_of(tool, tmp_path / "aside")
    assert not (tmp_path / "aside").exists()
    brokers = f"kafka-configs.sh {BROKER} --alter --entity-type brokers"
    assert script[
        1 + next(n for n, line in enumerate(script) if "1 access control entries were removed" in line) :
    ] == [
        f"kafka-configs.sh {BROKER} --alter --entity-type topics --entity-name a.b "
        "--add-config 'cleanup.policy=[compact,delete]'",
        f"kafka-configs.sh {BROKER} --alter --entity-type topics --entity-name a.b --delete-config retention.ms",
        f"{brokers} --entity-default --add-config log.roll.ms=70000",
        f"{brokers} --entity-default --delete-config log.retention.ms",
        "# in the broker's server.properties, before it is started: num.partitions=7",
        f"{brokers} --entity-name 1 --add-config log.segment.bytes=4000000",
        f"""kafka-acls.sh {BROKER} --add --deny-principal 'User:CN=it'"'"'s ops' --deny-host 10.0.0.1 """
        "--operation DescribeConfigs --cluster --resource-pattern-type literal",
        f"kafka-acls.sh {BROKER} --remove --force --allow-principal User:ann --allow-host '*' "
        "--operation Read --topic a.b --resource-pattern-type literal",
    ]


def test_configs_in_server_properties_are_no_difference(tool: Command, tmp_path: Path) -> None:
    LogDir.open(tool.root).alter_broker_configs(add={"log.retention.hours": "3"})
    assert "broker-level settings were changed (log.retention.hours)" in tool.fails()
    properties = tmp_path / "server.properties"
    properties.write_text("log.retention.hours=3\nlisteners=PLAINTEXT://:9092\n")
    tool("--server-properties", str(properties))
    properties.write_text("log.retention.hours=3\nlog.cleaner.threads=2\n")
    assert "(log.cleaner.threads)" in tool.fails("--server-properties", str(properties))


def test_written_partition_of_another_node_is_a_difference(tool: Command, tmp_path: Path) -> None:
    append(LogDir.open(tool.root), "shared", 0, "of this node")
    tool()
    append(LogDir.open(tool.root), "shared", 1, "of node 2")
    assert "shared-1 was written to, which the cluster assigns to other nodes" in tool.fails()
    assert any("shared-1 was written to" in line for line in script_of(tool, tmp_path / "aside"))


def test_damaged_metadata_log_of_broker_is_a_difference(tool: Command) -> None:
    log = tool.root / KEPT / "00000000000000000000.log"
    log.write_bytes(log.read_bytes() + b"\0" * 30 + b"x" * 70)
    assert "the broker's metadata log is damaged" in tool.fails()


def test_invalid_option_combinations_are_rejected(tool: Command, tmp_path: Path) -> None:
    aside = ("--set-aside", str(tmp_path / "aside"))
    assert "cannot be used with --to" in tool.fails(*aside, "--to", str(tmp_path / "copy"))
    assert "--output json cannot" in tool.fails(*aside, "--output", "json")
    (tool.root / KEPT).rename(tmp_path / "kept")
    assert "there is no metadata log to compare with" in tool.fails(*aside)


def test_kill_while_setting_aside_loses_nothing_and_can_be_repeated(tool: Command, tmp_path: Path) -> None:
    log_dir = LogDir.open(tool.root)
    log_dir.create_topic("new", partitions=2)
    append(log_dir, "new", 1, "new")
    counting = StoppingFileSystem(10**9)
    return_to_broker(open_log_dir(tool.root, fs=counting).root.native(), set_aside=tmp_path / "whole")
    is_refused = False
    for stops_at in range(2, counting.changes, 5):
        aside = tmp_path / f"aside-{stops_at}"
        with pytest.raises(Killed):
            return_to_broker(open_log_dir(tool.root, fs=StoppingFileSystem(stops_at)).root.native(), set_aside=aside)
        forget_images()
        assert LogDir.open(tool.root).read("new")["value"].to_pylist() == [b"new 0", b"new 1", b"new 2"]
        is_begun = not is_vacant(aside)
        try:
            is_whole = is_begun and bool(LogDir.open(aside).topics())
        except LogDirError:
            is_whole, is_refused = False, True
        if not is_whole:  # else it was killed in the second step, when all was set aside
            return_to_broker(LogDir.open(tool.root).root.native(), set_aside=aside)
        forget_images()
        assert LogDir.open(aside).read("new")["value"].to_pylist() == [b"new 0", b"new 1", b"new 2"]
    assert is_refused


@pytest.mark.parametrize("topic", ["a.b", "new"])
def test_logs_that_begin_in_remote_storage_are_set_aside_whole_or_refused(
    tool: Command, tmp_path: Path, topic: str
) -> None:
    log_dir = LogDir.open(tool.root)
    (tmp_path / "tier").mkdir()
    storage = {"rsm.config.location": str(tmp_path / "tier"), "remote.log.storage.system.enable": "true"}
    log_dir.alter_broker_configs(add=storage)
    log_dir.create_topic("new", partitions=1)
    configs = {"remote.storage.enable": "true", "internal.segment.bytes": "300", "retention.ms": "-1"}
    log_dir.alter_topic(topic, add=configs)
    for number in range(12):
        append(log_dir, topic, 0, f"write {number}")
    of = TopicPartition(topic, 0)
    log_dir.refresh()
    expected = log_dir.read(topic).to_pylist()
    assert tier_closed_segments(log_dir, of) > 3
    assert drop_local_segments(log_dir, of, kept_bytes=600) > 10
    forget_images()
    code, _, err = tool.try_to("--set-aside", str(tmp_path / "aside"))
    if topic == "a.b":
        assert code == 1
        assert "of a.b-0" in err
        assert "which the directory's broker does not know" in err
        assert not (tmp_path / "aside").exists()
        return
    assert code == 0, err
    forget_images()
    assert LogDir.open(tmp_path / "aside").read("new").to_pylist() == expected
