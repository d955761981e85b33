"""Groups and producers at a server over the directory of a broker that is gone: what the broker said, goes on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from kafka_processes.clients import producing
from kafka_processes.oracle import Broker, run_tool
from kafka_processes.served import serve
from repository import FIXTURES

from pyspark_kafkalog.server.config import Address, ServerConfig

pytestmark = [pytest.mark.interop, pytest.mark.full]

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
PARTITIONS, RECORDS = 2, 200
SERVED = ServerConfig(listen=Address("127.0.0.1", 0))


def values(partition: int, start: int = 0) -> list[str]:
    return [f"{partition}-{number}" for number in range(start, RECORDS)]


@pytest.fixture(scope="module")
def stopped(start_broker: Callable[..., Broker]) -> tuple[Path, str, str]:
    """A stopped broker's directory, and what Kafka's tool printed of its groups while it ran: list and description.

    Group `mid` has read 150 of partition 0 and nothing of 1; `done` has read all as a member.
    """
    from confluent_kafka import Consumer, TopicPartition

    broker = start_broker({"offsets.topic.num.partitions": "3", "group.initial.rebalance.delay.ms": "0"})
    run_tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", broker.bootstrap, "--create", "--topic", "orders", "--partitions", str(PARTITIONS)),
    )
    with producing(broker.bootstrap) as producer:
        for partition in range(PARTITIONS):
            for value in values(partition):
                producer.produce("orders", value.encode(), partition=partition)
    mid = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "mid"})
    mid.commit(offsets=[TopicPartition("orders", 0, 150), TopicPartition("orders", 1, 0)], asynchronous=False)
    mid.close()
    assert sorted(subscribed(broker.bootstrap, "done")) == sorted([*values(0), *values(1)])
    printed = [groups(broker.bootstrap, *each) for each in (("--list", "--state"), ("--describe", "--all-groups"))]
    broker.stop()
    return broker.data, printed[0], printed[1]


def groups(bootstrap: str, *arguments: str) -> str:
    done = run_tool(GROUPS, "--bootstrap-server", bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cells(text: str) -> list[list[str]]:
    return sorted(re.split(r" +", line.strip()) for line in text.splitlines() if line.strip())


def subscribed(bootstrap: str, group: str, **settings: object) -> list[str]:
    """What a new member of the group reads until the ends of its partitions; it commits what it has read."""
    from confluent_kafka import Consumer, KafkaError

    common = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer: Any = Consumer({**common, "enable.partition.eof": True, **settings})
    read, at_end = [], set()
    try:
        consumer.subscribe(["orders"])
        while len(at_end) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None, "nothing to read"
            if message.error() is None:
                read.append(message.value().decode())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
    finally:
        consumer.close()
    return read


def contents(directory: Path) -> dict[str, str]:
    files = (each for each in directory.rglob("*") if each.is_file())
    return {str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def committed(bootstrap: str, group: str, partitions: Iterable[tuple[str, int]]) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        return [each.offset for each in consumer.committed([TopicPartition(*each) for each in partitions], timeout=60)]
    finally:
        consumer.close()


def test_groups_of_a_gone_broker_are_shown_as_by_it_and_go_on_in_memory(stopped: tuple[Path, str, str]) -> None:
    path, listed, described = stopped
    both = [("orders", number) for number in range(PARTITIONS)]
    before = contents(path)
    with serve(path, SERVED) as bootstrap:
        assert cells(groups(bootstrap, "--list", "--state")) == cells(listed)
        assert cells(groups(bootstrap, "--describe", "--all-groups")) == cells(described)
        assert committed(bootstrap, "mid", both) == [150, 0]
        assert sorted(subscribed(bootstrap, "mid")) == sorted([*values(0, 150), *values(1)])
        assert committed(bootstrap, "mid", both) == [RECORDS, RECORDS]
        everything = sorted([*values(0), *values(1)])
        assert sorted(subscribed(bootstrap, "fresh", **{"group.protocol": "consumer"})) == everything
        assert committed(bootstrap, "fresh", both) == [RECORDS, RECORDS]
        done = run_tool(
            CONSUMER,
            *("--bootstrap-server", bootstrap, "--topic", "orders", "--group", "console", "--from-beginning"),
            *("--max-messages", str(PARTITIONS * RECORDS), "--timeout-ms", "30000"),
        )
        assert sorted(done.stdout.split()) == everything, done.stderr
        assert committed(bootstrap, "console", both) == [RECORDS, RECORDS]
    with serve(path, SERVED) as bootstrap:
        assert committed(bootstrap, "mid", both) == [150, 0]
        assert cells(groups(bootstrap, "--list", "--state")) == cells(listed)
    assert contents(path) == before


def test_groups_of_all_kinds_have_the_offsets_that_the_broker_printed() -> None:
    expected = FIXTURES / "consumer-offsets" / "expected" / "tools"
    rows = [line.split() for line in (expected / "kafka-consumer-groups-describe.txt").read_text().splitlines()]
    offsets = {(row[0], row[1], int(row[2])): int(row[3]) for row in rows if len(row) > 6 and row[2].isdigit()}
    assert len(offsets) >= 8
    with serve(FIXTURES / "consumer-offsets", SERVED) as bootstrap:
        listed = (expected / "kafka-consumer-groups-list.txt").read_text()
        assert sorted(groups(bootstrap, "--list").split()) == sorted(listed.split())
        for (group, topic, partition), offset in offsets.items():
            assert committed(bootstrap, group, [(topic, partition)]) == [offset]


def test_producers_of_all_kinds_are_refused_at_once(stopped: tuple[Path, str, str]) -> None:
    from confluent_kafka import KafkaException, Producer

    with serve(stopped[0], SERVED) as bootstrap:
        errors: list[Any] = []
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        plain = Producer({**common, "on_delivery": lambda error, _: errors.append(error.name())})
        plain.produce("orders", b"v")
        assert (plain.flush(60), errors) == (0, ["POLICY_VIOLATION"])
        idempotent = Producer({**common, "enable.idempotence": True})
        idempotent.produce("orders", b"v")
        with pytest.raises(KafkaException, match="Cluster authorization failed"):
            idempotent.flush(60)
        transactional = Producer({**common, "transactional.id": "t"})
        with pytest.raises(KafkaException, match=r"(?i)authorization"):
            transactional.init_transactions(60)
        done = run_tool(PRODUCER, "--bootstrap-server", bootstrap, "--topic", "orders", stdin="v\n")
        assert "ClusterAuthorizationException" in done.stdout + done.stderr
