"""A root that follows a real broker: batches as in the broker's log, groups, transactions, topics, deletions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from builders.following_roots import Following, batches_of, ends, following, has_offsets
from builders.leader_reads import log_bytes
from kafka_processes.clients import consume, delete_before, producing
from kafka_processes.oracle import Broker
from kafka_processes.replica_checks import log_ends_of
from patience import wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.storage.names import TopicPartition

SMALL_SEGMENTS: Final = {"segment.bytes": "1048576", "max.message.bytes": "900000"}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(start_broker: Callable[..., Broker]) -> Broker:
    return start_broker({"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"})


def produce(broker: Broker, topic: str, count: int, *, codec: str = "none", **settings: Any) -> None:
    with producing(broker.bootstrap, **{"compression.type": codec, "linger.ms": 5, **settings}) as producer:
        for number in range(count):
            producer.produce(
                topic, f"{number:010d}".encode() * 20, key=str(number % 97), headers={"n": str(number).encode()}
            )
            if number % 1000 == 999:
                producer.flush(30)


def transactions(broker: Broker, topic: str) -> None:
    """Committed and aborted ones."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for each in range(50):
            producer.produce(topic, f"transaction {number} record {each}", key=str(each))
        producer.flush(30)
        producer.commit_transaction(30) if number % 2 else producer.abort_transaction(30)


def commit_group(broker: Broker, topic: str, partitions: int) -> dict[int, int]:
    """Let a group read all; returns its offsets."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as ClientPartition

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    silent = 0
    while silent < 3:
        found = consumer.consume(500, timeout=1)
        silent = 0 if found or not consumer.assignment() else silent + 1
    consumer.commit(asynchronous=False)
    committed = consumer.committed([ClientPartition(topic, each) for each in range(partitions)], timeout=30)
    consumer.close()
    return {each.partition: each.offset for each in committed}


def check_logs(broker: Broker, copy: Path, topic: str, partitions: int) -> None:
    log_dir = LogDir.open(copy)
    for partition in range(partitions):
        name = TopicPartition(topic, partition)
        ours = b"".join(batches_of(log_dir, name))
        assert ours == log_bytes([broker.data], name)
        assert len(ours) > 1000


def run_following(broker: Broker, copy: Path) -> Any:
    return following(ClusterLeader(broker.bootstrap), copy)


def test_follower_has_the_brokers_batches_groups_and_transactions(broker: Broker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    broker.create_topic("orders", 3, SMALL_SEGMENTS)
    produce(broker, "orders", 3000)
    running: Following
    with run_following(broker, copy) as running:
        for codec in CODECS:
            produce(broker, "orders", 2000, codec=codec, **{"enable.idempotence": codec == "lz4"})
        transactions(broker, "orders")
        positions = commit_group(broker, "orders", 3)
        wanted = log_ends_of(broker.bootstrap, ["orders"])
        wait_until(lambda: has_offsets(copy, wanted))
        wait_until(lambda: LogDir.open(copy).group("readers").fetch() != {})
    check_logs(broker, copy, "orders", 3)
    log_dir = LogDir.open(copy)
    offsets = {each.partition: found.offset for each, found in log_dir.group("readers").fetch().items()}
    assert offsets == positions
    read = consume(broker.bootstrap, "orders", isolation="read_committed")
    theirs = [(each.partition, each.offset, each.value) for each in read]
    table = log_dir.read("orders", isolation="read_committed")
    rows = zip(*(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
    assert sorted(rows) == theirs
    assert EventKind.DIVERGED not in running.kinds()
    assert EventKind.GAP not in running.kinds()


@pytest.mark.full
def test_follower_keeps_up_with_topics_partitions_and_deletions(broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    copy = tmp_path / "copy"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    broker.create_topic("events", 1, SMALL_SEGMENTS)
    produce(broker, "events", 2000)
    with run_following(broker, copy) as running:
        wait_until(lambda: has_offsets(copy, log_ends_of(broker.bootstrap, ["events"])))
        broker.create_topic("late", 1, {"cleanup.policy": "compact"})
        produce(broker, "late", 100)
        admin.create_partitions([NewPartitions("events", 2)])["events"].result(30)
        produce(broker, "events", 2000)
        wait_until(lambda: has_offsets(copy, log_ends_of(broker.bootstrap, ["events", "late"])))
        delete_before(broker.bootstrap, "events", 0, 700)
        wait_until(lambda: LogDir.open(copy).partition("events", 0).log_start_offset == 700)
        admin.delete_topics(["late"])["late"].result(30)
        wait_until(lambda: any(each.topic == "late" for each in running.of_kind(EventKind.TOPIC_DELETED)))
    assert LogDir.open(copy).topic("late").configs["cleanup.policy"] == "compact"
    assert ends(LogDir.open(copy))[TopicPartition("late", 0)] == 100
    assert {each.topic for each in running.of_kind(EventKind.PARTITIONS_ADDED)} == {"events"}


@pytest.mark.full
def test_follower_goes_on_after_the_broker_has_got_another_address(broker: Broker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    broker.create_topic("steady", 1, SMALL_SEGMENTS)
    for _ in range(2):
        produce(broker, "steady", 500)
        wanted = log_ends_of(broker.bootstrap, ["steady"])
        with run_following(broker, copy) as running:
            wait_until(lambda: has_offsets(copy, wanted))  # noqa: B023
        assert EventKind.DIVERGED not in running.kinds()
        broker.stop()
        broker.start()
    check_logs(broker, copy, "steady", 1)
