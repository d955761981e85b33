"""A changed adopted directory goes back to its broker by the steps of docs/MIGRATING.md, "Back to Kafka"."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from documented import blocks_of
from kafka_processes.clients import ConsumedRecord, consume, producing
from kafka_processes.oracle import CONFIG_COMMAND, Broker, run_tool, write_tool_scripts
from repository import REPOSITORY

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.acl import Acl, AclFilter, AclOperation, PatternType, PermissionType, ResourceType

#: Starts brokers, or Kafka's tools many times: the full tier alone.
pytestmark = pytest.mark.full

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.retention.hours": "-1",
    "offsets.topic.num.partitions": "2",
}
WRITE_ORDERS = Acl(
    ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:ann", "*", AclOperation.WRITE, PermissionType.ALLOW
)
DENY_PREFIX = Acl(
    ResourceType.TOPIC, "pay", PatternType.PREFIXED, "User:eve", "10.0.0.1", AclOperation.ALL, PermissionType.DENY
)
ALTER_CLUSTER = Acl(
    ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, "User:ops", "*", AclOperation.ALTER_CONFIGS,
    PermissionType.ALLOW,
)  # fmt: skip
Rows = list[tuple[int, int, bytes | None, bytes | None]]


@dataclass
class Returned:
    """The broker that has its directory back; `ours` is what was read here before, by topic and isolation."""

    broker: Broker
    script: str
    refusal: str
    ours: dict[tuple[str, str], Rows] = field(default_factory=dict)


def guide() -> list[str]:
    """The commands of the guide, in order."""
    text = (REPOSITORY / "docs" / "MIGRATING.md").read_text(encoding="utf-8")
    part = text.partition("**An adopted directory**")[2].partition("\n**")[0]
    commands = [command for block in blocks_of(part) for command, _ in block.commands()]
    assert len(commands) == 8
    return commands


def append(log_dir: LogDir, topic: str, partition: int, text: str, rows: int = 20) -> None:
    table = pa.table({"key": [f"k{n % 3}" for n in range(rows)], "value": [f"{text} {n}" for n in range(rows)]})
    log_dir.append(topic, table, partition=partition)


def serve_before(broker: Broker) -> Any:
    for topic, partitions in (("orders", 2), ("gone", 1), ("again", 1), ("shrunk", 3), ("payments", 1)):
        broker.create_topic(topic, partitions, {"cleanup.policy": "delete", "segment.bytes": "2000000"})
        with producing(broker.bootstrap, **{"enable.idempotence": True}) as producer:
            for number in range(40):
                producer.produce(topic, value=f"before {number}".encode(), partition=number % partitions)
    from confluent_kafka import Consumer, Producer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    consumer.close()
    holders = []
    for name in ("left-open", "aborted-here"):
        holder = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 900_000,
                "log_level": 0,
            }
        )
        holder.init_transactions(30)
        holder.begin_transaction()
        holder.produce("payments" if name == "left-open" else "orders", value=name.encode(), partition=0)
        holder.flush(30)
        holders.append(holder)
    for principal, operation in (("User:ann", "Read"), ("User:bob", "Read")):
        options = ("--allow-principal", principal, "--operation", operation, "--topic", "orders")
        done = run_tool("org.apache.kafka.tools.AclCommand", "--bootstrap-server", broker.bootstrap, "--add", *options)
        assert done.returncode == 0, done.stderr
    return holders


def change(log_dir: LogDir) -> None:
    """All that can change in a log directory."""
    append(log_dir, "orders", 0, "changed")
    log_dir.create_topic("new.topic", partitions=2, configs={"cleanup.policy": "compact,delete", "segment.ms": "70000"})
    log_dir.create_topic("newxtopic", partitions=1)
    for partition in (0, 1):
        append(log_dir, "new.topic", partition, "new")
    log_dir.add_partitions("orders", total=4)
    append(log_dir, "orders", 3, "extended")
    for name in ("gone", "again", "shrunk"):
        log_dir.delete_topic(name)
    log_dir.create_topic("again", partitions=2)
    append(log_dir, "again", 0, "again")
    append(log_dir, "again", 1, "again")
    log_dir.create_topic("shrunk", partitions=1)
    append(log_dir, "shrunk", 0, "shrunk")
    log_dir.alter_topic("orders", add={"cleanup.policy": "compact,delete"}, delete=["segment.bytes"])
    log_dir.alter_broker_configs(add={"log.segment.bytes": "123456789", "num.partitions": "3"})
    control = log_dir.access_control()
    control.remove(AclFilter(principal="User:bob"))
    control.add([WRITE_ORDERS, DENY_PREFIX, ALTER_CLUSTER])
    log_dir.group("readers").commit({("orders", 0): 33})
    log_dir.group("created here").commit({("again", 1): 7})


@pytest.fixture(scope="module")
def returned(start_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory) -> Returned:
    broker = start_broker(SETTINGS)
    home = tmp_path_factory.mktemp("guide")
    holders = serve_before(broker)
    broker.stop()
    for holder in holders:
        holder.purge()
    properties = broker.home / "server.properties"
    log_dir = LogDir.adopt(broker.data, server_properties=properties)
    log_dir.refresh()
    return _follow(broker, log_dir, home)


def _follow(broker: Broker, log_dir: LogDir, home: Path) -> Returned:
    write_tool_scripts(home / "bin")
    kafkalog = home / "bin" / "kafkalog"
    kafkalog.write_text(f'#!/bin/sh\nexec {sys.executable} -m pyspark_kafkalog "$@"\n')
    kafkalog.chmod(0o755)
    environment = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        for name, there in (
            ("/var/lib/kafka/data", str(broker.data)),
            ("/var/lib/kafka/set-aside", str(home / "set-aside")),
            ("/etc/kafka/server.properties", str(broker.home / "server.properties")),
            ("localhost:9092", broker.bootstrap),
        ):
            command = command.replace(name, there)
        return subprocess.run(["sh", "-c", command], cwd=home, env=environment, capture_output=True, text=True)

    def abort(topic: str) -> None:
        done = shell(
            f"kafkalog transactions --path /var/lib/kafka/data abort --topic {topic} --partition 0 "
            f"--start-offset {log_dir.last_stable_offset(topic, 0)}"
        )
        assert done.returncode == 0, done.stderr

    abort("orders")
    change(log_dir)
    log_dir.refresh()
    ours = {
        (topic, isolation): _rows(log_dir.read(topic, isolation=isolation))  # type: ignore[arg-type]
        for topic in log_dir.topics()
        if not topic.startswith("__")
        for isolation in ("read_uncommitted", "read_committed")
    }
    refused = shell("kafkalog export --path /var/lib/kafka/data --server-properties /etc/kafka/server.properties")
    assert (refused.returncode, refused.stdout) == (1, "")
    for command in guide():
        if command.startswith("kafka-server-start.sh"):
            broker.start()
        elif command == "kafka-server-stop.sh":
            broker.stop()
        else:
            done = shell(command)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return Returned(broker, (home / "back-to-kafka.sh").read_text(), refused.stderr, ours)


def _rows(table: pa.Table) -> Rows:
    columns = [table[name].to_pylist() for name in ("partition", "offset", "key", "value")]
    return list(zip(*columns, strict=True))


def _served(records: list[ConsumedRecord]) -> Rows:
    return [(each.partition, each.offset, each.key, each.value) for each in records]


def kafkas(returned: Returned, main_class: str, *arguments: str) -> str:
    done = run_tool(main_class, "--bootstrap-server", returned.broker.bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_export_without_set_aside_names_every_difference(returned: Returned) -> None:
    for difference in (
        "topic new.topic was created",
        "topic newxtopic was created",
        "topic orders was extended from 2 to 4 partitions",
        "topic again was deleted and re-created",
        "topic shrunk was deleted and re-created",
        "topic gone was deleted",
        "configurations of topic orders were changed (cleanup.policy, segment.bytes)",
        "broker-level settings were changed (log.segment.bytes, num.partitions)",
        "3 access control entries were added",
        "1 access control entries were removed",
    ):
        assert difference in returned.refusal
        assert f"# {difference}" in returned.script
    assert "With --set-aside DIR" in returned.refusal


def test_broker_serves_every_record_at_its_offset(returned: Returned) -> None:
    assert len(returned.ours) == 2 * 6
    for (topic, isolation), expected in returned.ours.items():
        if (topic, isolation) == ("payments", "read_committed"):
            continue  # ends at the open transaction, which librdkafka waits for
        assert _served(consume(returned.broker.bootstrap, topic, isolation=isolation)) == expected, topic


def test_broker_has_topics_and_configurations_of_exported_directory(returned: Returned) -> None:
    listed = kafkas(returned, "org.apache.kafka.tools.TopicCommand", "--describe", "--exclude-internal")
    partitions = dict(re.findall(r"Topic: (\S+)\s+TopicId: \S+\s+PartitionCount: (\d+)", listed))
    assert partitions == {
        "orders": "4", "new.topic": "2", "newxtopic": "1", "again": "2", "shrunk": "1", "payments": "1"
    }  # fmt: skip
    configs = kafkas(returned, CONFIG_COMMAND, "--entity-type", "topics", "--describe")
    orders = configs.partition("Dynamic configs for topic orders are:")[2].partition("Dynamic configs for")[0]
    assert "cleanup.policy=compact,delete " in orders
    assert "segment.bytes" not in orders
    new = configs.partition("Dynamic configs for topic new.topic are:")[2].partition("Dynamic configs for")[0]
    assert "cleanup.policy=compact,delete " in new
    assert "segment.ms=70000 " in new
    brokers = kafkas(returned, CONFIG_COMMAND, "--entity-type", "brokers", "--entity-default", "--describe")
    assert "log.segment.bytes=123456789" in brokers
    assert "# in the broker's server.properties, before it is started: num.partitions=3\n" in returned.script


def test_broker_has_exported_access_control_entries(returned: Returned) -> None:
    listed = kafkas(returned, "org.apache.kafka.tools.AclCommand", "--list")
    entries = re.findall(r"\(principal=(\S+), host=(\S+), operation=(\S+), permissionType=(\S+)\)", listed)
    assert sorted(entries) == [
        ("User:ann", "*", "READ", "ALLOW"),
        ("User:ann", "*", "WRITE", "ALLOW"),
        ("User:eve", "10.0.0.1", "ALL", "DENY"),
        ("User:ops", "*", "ALTER_CONFIGS", "ALLOW"),
    ]


def test_broker_has_exported_groups(returned: Returned) -> None:
    described = kafkas(
        returned,
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "--describe",
        "--all-groups",
        "--offsets",
    )
    found = re.findall(r"^(readers|created here)\s+(\S+)\s+(\d+)\s+(\d+)\s", described, re.MULTILINE)
    assert sorted(found) == [("created here", "again", "1", "7"), ("readers", "orders", "0", "33")]


def test_broker_ends_transaction_that_was_left_open(returned: Returned) -> None:
    from confluent_kafka import Producer

    holder = Producer({"bootstrap.servers": returned.broker.bootstrap, "transactional.id": "left-open"})
    holder.init_transactions(60)
    committed = consume(returned.broker.bootstrap, "payments", isolation="read_committed")
    assert _served(committed) == returned.ours["payments", "read_committed"]


def test_idempotent_producers_continue_to_write(returned: Returned) -> None:
    partitions = (("orders", 0), ("orders", 3), ("again", 0))
    with producing(returned.broker.bootstrap, **{"enable.idempotence": True}) as producer:
        for topic, partition in partitions:
            producer.produce(topic, key=b"k", value=b"after", partition=partition)
    for topic, partition in partitions:
        values = [each.value for each in consume(returned.broker.bootstrap, topic) if each.partition == partition]
        before = [row for row in returned.ours[topic, "read_uncommitted"] if row[0] == partition]
        assert (len(values), values[-1]) == (len(before) + 1, b"after")
