"""A real broker killed right after its last writes: offsets above its checkpoint are reported, and read when asked for.

The broker's own recovery is the reference: it serves after its restart what was read to the log end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from kafka_processes.clients import consume, producing
from kafka_processes.oracle import Broker

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.storage.artefacts.marker_files import BrokerProcess, broker_process

Found = list[tuple[int, int, bytes | None]]


def produce(broker: Broker, count: int) -> None:
    with producing(broker.bootstrap, **{"linger.ms": 5, "batch.num.messages": 50}) as producer:
        for number in range(count):
            producer.produce("orders", value=f"{number}", partition=number % 3)


def transaction(broker: Broker, name: str, end: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce("orders", value=name, partition=partition)
    producer.flush(30)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)


def read(root: Path, isolation: str, *, read_to_log_end: bool = True) -> Found:
    table = LogDir.open(root, read_to_log_end=read_to_log_end).read("orders", isolation=isolation)  # type: ignore[arg-type]
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    return sorted(zip(*columns, strict=True))


def served(broker: Broker, isolation: str) -> Found:
    return [
        (each.partition, each.offset, each.value) for each in consume(broker.bootstrap, "orders", isolation=isolation)
    ]


@pytest.mark.full
def test_read_to_log_end_equals_what_broker_serves_after_recovery(start_broker: Callable[..., Broker]) -> None:
    # High watermarks are then checkpointed by the clean stop only, whatever time the rest takes.
    broker = start_broker(settings={"replica.high.watermark.checkpoint.interval.ms": "3600000"})
    broker.create_topic("orders", 3)
    produce(broker, 90)
    broker.stop()
    broker.start()
    assert broker_process(broker.data) is BrokerProcess.RUNNING
    produce(broker, 600)
    transaction(broker, "aborted", "abort")
    transaction(broker, "committed", "commit")
    with contextlib.suppress(KafkaException):
        transaction(broker, "open", "leave")
    broker.kill()

    assert broker_process(broker.data) is BrokerProcess.KILLED
    above = [each.offsets_above_high_watermark for each in LogDir.open(broker.data).topic("orders").partitions]
    uncommitted, committed = read(broker.data, "read_uncommitted"), read(broker.data, "read_committed")
    assert len(uncommitted) == 699
    assert len(committed) == 693
    assert above == [205] * 3  # two of them are markers
    assert len(read(broker.data, "read_uncommitted", read_to_log_end=False)) == 90

    broker.start()
    assert served(broker, "read_uncommitted") == uncommitted
    assert served(broker, "read_committed") == committed
    broker.stop()
    assert broker_process(broker.data) is BrokerProcess.STOPPED
    assert [each.offsets_above_high_watermark for each in LogDir.open(broker.data).topic("orders").partitions] == [
        0
    ] * 3
