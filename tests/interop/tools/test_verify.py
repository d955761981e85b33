"""Verification reports no error in logs that a real broker is writing, has closed, or has left when it was killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_processes.clients import producing
from kafka_processes.oracle import Broker

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.findings import Finding, Severity
from pyspark_kafkalog.maintenance.verify.verify import verify

CONFIGS = {"internal.segment.bytes": "30000", "index.interval.bytes": "500", "cleanup.policy": "delete"}


def errors_in(root: Path) -> list[Finding]:
    return [each for each in verify(LogDir.open(root).root, are_records_checked=True).findings if _is_error(each)]


def _is_error(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR


def write(broker: Broker, topic: str, stop: threading.Event) -> None:
    """Transactions, every third one aborted, until told to stop."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"to {topic}", "log_level": 0})
    producer.init_transactions(30)
    number = 0
    while not stop.is_set():
        producer.begin_transaction()
        for at in range(50):
            producer.produce(
                topic, key=b"%d" % (at % 7), value=b"%d of %d" % (at, number) + b"." * 60, partition=at % 2
            )
        if number % 3 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
        number += 1


@pytest.mark.full
def test_verify_reports_no_error_in_logs_of_real_broker(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker({"log.cleaner.backoff.ms": "200"}).start()
    broker.create_topic("written", 2, CONFIGS)
    broker.create_topic(
        "cleaned", 2, CONFIGS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500"}
    )
    with producing(broker.bootstrap, **{"compression.type": "lz4", "batch.num.messages": 20}) as producer:
        for at in range(2000):
            producer.produce("cleaned", key=b"%d" % (at % 50), value=b"%d" % at * 20, partition=at % 2)
            producer.poll(0)
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(broker, topic, stop)) for topic in ("written", "cleaned")]
    for writer in writers:
        writer.start()
    try:
        for _ in range(4):
            assert errors_in(broker.data) == []
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert errors_in(broker.data) == []
    broker.kill()
    assert errors_in(broker.data) == []
    broker.start()
    broker.stop()
    found = verify(LogDir.open(broker.data).root, are_records_checked=True).findings
    assert [each for each in found if each.severity is not Severity.INFO] == []
