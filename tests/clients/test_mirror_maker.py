"""MirrorMaker 2 copies a broker's topics into the server exactly once, with groups, settings and access control."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from kafka_processes.client_programs import mirror_maker
from kafka_processes.clients import consume, producing
from kafka_processes.java_processes import start_server
from kafka_processes.oracle import Broker, java_command
from kafka_processes.server_processes import serving

from pyspark_kafkalog import LogDir

RECORDS = 900
#: Up to where a group has read partition 0.
READ = 300
EVERY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
ACCESS_CONTROL = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_WAIT_SECONDS_MAX = 90


@pytest.fixture
def source(tmp_path: Path) -> Iterator[str]:
    """The address of a broker with a topic of transactions, a group in the middle of it, and an entry for it."""
    with Broker(tmp_path / "broker", ACCESS_CONTROL) as broker:
        broker.create_topic("orders", 2, {"retention.ms": "1234567890123", "compression.type": "zstd"})
        write_transactions(broker.bootstrap)
        commit_offset(broker.bootstrap, READ)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (created,) = admin.create_acls([entry("orders")]).values()
        created.result(30)
        yield broker.bootstrap


def write_transactions(bootstrap: str) -> None:
    """Thirty transactions, of which every third one is aborted."""
    with producing(bootstrap, **{"transactional.id": "orders", "linger.ms": 1}) as producer:
        producer.init_transactions(30)
        for i in range(RECORDS):
            if i % 30 == 0:
                producer.begin_transaction()
            key, value = (None, b"", b"key")[i % 3], None if i % 7 == 0 else b"value %d" % i
            headers = [("none", None), ("", b""), ("twice", b"\xff"), ("twice", b"2")][: i % 5]
            producer.produce("orders", value, key, i % 2, timestamp=1_700_000_000_000 + i, headers=headers)
            if i % 30 == 29:
                producer.flush(30)
                (producer.abort_transaction if i // 30 % 3 == 2 else producer.commit_transaction)(30)


def commit_offset(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "app"})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def entry(topic: str) -> AclBinding:
    literal, read, allow = ResourcePatternType.LITERAL, AclOperation.READ, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, topic, literal, "User:ann", "*", read, allow)


def settings(source: str, target: str) -> dict[str, object]:
    here = "source->target."
    found: dict[str, object] = {
        "clusters": "source,target",
        "source.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        "source.consumer.isolation.level": "read_committed",
        "target.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": "http://127.0.0.1:0",
        "replication.factor": 1,
        "offset.lag.max": 0,
        f"{here}enabled": "true",
        f"{here}emit.heartbeats.enabled": "false",
        f"{here}topics": "orders",
        f"{here}groups": "app",
        f"{here}sync.group.offsets.enabled": "true",
        f"{here}sync.topic.acls.enabled": "true",
    }
    for each in ("checkpoints", "heartbeats", "offset-syncs"):
        found[f"{each}.topic.replication.factor"] = 1
    for each in ("offset", "status", "config"):
        found[f"{each}.storage.replication.factor"] = 1
    for each in ("sync.group.offsets", "emit.checkpoints", "refresh.groups", "sync.topic.acls", "sync.topic.configs"):
        found[f"{here}{each}.interval.seconds"] = 1
    return found


def copied(bootstrap: str, topic: str) -> list[object]:
    """What a copy keeps of each committed record; its offset is another one."""
    return [
        (each.partition, each.timestamp_ms, each.key, each.value, each.headers)
        for each in consume(bootstrap, topic, isolation="read_committed")
    ]


def wait_for(holds: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.3)


def test_copies_records_once_with_offsets_of_groups_settings_and_access_control(source: str, tmp_path: Path) -> None:
    root, log = tmp_path / "log", tmp_path / "mirror.log"
    few = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    LogDir.create(root).alter_broker_configs(add=few | {"group.initial.rebalance.delay.ms": "0"} | ACCESS_CONTROL)
    with serving(root) as server:
        file = tmp_path / "mirror.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings(source, server.bootstrap).items()))
        main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
        with log.open("wb") as output:
            process = start_server(java_command(main_class, str(file), more_jars=mirror_maker()), output)
        try:
            check_copy(source, server.bootstrap, log)
        finally:
            process.kill()
            process.wait()


def check_copy(source: str, target: str, log: Path) -> None:
    expected = copied(source, "orders")
    assert len(expected) == RECORDS * 2 // 3
    admin = AdminClient({"bootstrap.servers": target})
    wait_for(lambda: "source.orders" in admin.list_topics(timeout=10).topics, log)
    wait_for(lambda: len(copied(target, "source.orders")) >= len(expected), log)
    assert copied(target, "source.orders") == expected
    wait_for(lambda: committed(target) > 0, log)
    # MirrorMaker may translate an offset to an earlier record, never past one that the group has not read.
    read = [each for each in consume(source, "orders", isolation="read_committed") if each.offset < READ]
    assert committed(target) <= sum(each.partition == 0 for each in read)
    configs = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "source.orders")])
    (described,) = (each.result(30) for each in configs.values())
    assert (described["retention.ms"].value, described["compression.type"].value) == ("1234567890123", "zstd")
    wait_for(lambda: admin.describe_acls(EVERY).result(30) == [entry("source.orders")], log)


def committed(bootstrap: str) -> int:
    """The group's offset in the copy, below 0 if it has none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "app"})
    try:
        (found,) = consumer.committed([TopicPartition("source.orders", 0)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()
