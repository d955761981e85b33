"""Records that real clients produce are read from the broker's directory while it runs, is stopped, and is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from kafka_processes.clients import ConsumedRecord, consume, producing
from kafka_processes.oracle import Broker

from pyspark_kafkalog import LogDir
from tests.interop.samples import CODECS, sample_records

PARTITIONS = 2
RECORDS = 1500
# librdkafka sends what fits one of its batches; small ones make several a segment.
BATCHING = {"linger.ms": 20, "batch.num.messages": 200}


def read(root: Path, topic: str, isolation: str = "read_uncommitted") -> list[ConsumedRecord]:
    """The topic as this package reads it, in the form and order in which `consume` gives it."""
    rows = LogDir.open(root).read(topic, isolation=isolation).to_pylist()
    records = [
        ConsumedRecord(
            partition=row["partition"],
            offset=row["offset"],
            timestamp_ms=round(row["timestamp"].timestamp() * 1000),
            timestamp_type=row["timestampType"],
            key=row["key"],
            value=row["value"],
            headers=tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in rows
    ]
    return sorted(records, key=lambda record: (record.partition, record.offset))


def produce_samples(broker: Broker, topic: str, codec: str) -> None:
    with producing(broker.bootstrap, **{"compression.type": codec, **BATCHING}) as producer:
        for partition in range(PARTITIONS):
            for record in sample_records(RECORDS, seed=partition, partition=partition):
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                )
                producer.poll(0)


def produce_transactions(broker: Broker, topic: str) -> None:
    """Commits and aborts by turns, then one transaction that stays open."""
    from confluent_kafka import Producer

    for number, end in enumerate(("commit", "abort", "commit", "abort", "commit", "open")):
        settings = {"transactional.id": f"writer-{number}", "transaction.timeout.ms": 600_000, "log_level": 0}
        producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        producer.init_transactions(30)
        producer.begin_transaction()
        for i in range(20):
            producer.produce(topic, value=f"{number} {end} {i}".encode(), partition=i % PARTITIONS)
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)


@pytest.fixture(scope="module")
def broker(start_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker with a topic a codec, one with transactions and one with LogAppendTime; segments roll in each."""
    # Readers of a running broker's disk see what its high watermark checkpoint says; have it written often.
    broker = start_broker({"replica.high.watermark.checkpoint.interval.ms": "100"}).start()
    configs: Mapping[str, str] = {"internal.segment.bytes": "200000"}
    for codec in CODECS:
        broker.create_topic(f"live-{codec}", PARTITIONS, configs)
        produce_samples(broker, f"live-{codec}", codec)
    broker.create_topic("live-append-time", PARTITIONS, {**configs, "message.timestamp.type": "LogAppendTime"})
    produce_samples(broker, "live-append-time", "lz4")
    broker.create_topic("live-transactions", PARTITIONS, configs)
    produce_transactions(broker, "live-transactions")
    return broker


TOPICS = [*(f"live-{codec}" for codec in CODECS), "live-append-time"]


@pytest.fixture(scope="module")
def served(broker: Broker) -> dict[tuple[str, str], list[ConsumedRecord]]:
    """What the running broker serves, by topic and isolation."""
    answers = {(topic, "read_uncommitted"): consume(broker.bootstrap, topic) for topic in TOPICS}
    for isolation in ("read_uncommitted", "read_committed"):
        topic = "live-transactions"
        answers[topic, isolation] = consume(broker.bootstrap, topic, isolation=isolation)
    return answers


def test_directory_of_running_broker_is_read_as_served(
    broker: Broker, served: dict[tuple[str, str], list[ConsumedRecord]]
) -> None:
    assert broker.is_running
    for topic, _ in served:
        broker.wait_for_checkpoint(topic)
    for (topic, isolation), expected in served.items():
        assert read(broker.data, topic, isolation) == expected, (topic, isolation)
    assert broker.is_running


@pytest.mark.full
def test_directory_of_killed_and_of_stopped_broker_is_read_as_served(
    broker: Broker, served: dict[tuple[str, str], list[ConsumedRecord]]
) -> None:
    assert len(served["live-none", "read_uncommitted"]) == PARTITIONS * RECORDS
    broker.kill()
    for (topic, isolation), expected in served.items():
        assert read(broker.data, topic, isolation) == expected, (topic, isolation, "killed")
    broker.start()
    broker.stop()
    for (topic, isolation), expected in served.items():
        assert read(broker.data, topic, isolation) == expected, (topic, isolation, "stopped")
