"""Real clients read from a server over every kind of root: librdkafka, which checks CRCs and offsets itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.engine_fixtures import expected_records, partitions_with_offsets
from builders.tiered_roots import TOPIC, append_rounds, tiered_root
from kafka_processes.clients import consume
from kafka_processes.server_processes import ServerProcess, serving
from patience import PATIENCE_S
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.tier import tier_segments

pytestmark = pytest.mark.interop


def test_consumer_reads_a_native_root_and_waits_for_what_is_appended(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=3, configs={"internal.segment.bytes": "100000"})
    expected: list[list[str]] = [[], [], []]

    def append(count: int) -> None:
        for partition, values in enumerate(expected):
            new = [f"{partition} {len(values) + number} {'x' * 100}" for number in range(count)]
            log_dir.append("orders", pa.table({"value": new}), partition=partition, flush="os")
            values += new

    for _ in range(8):
        append(500)
    with serving(log_dir.path) as server:
        found = consume(server.bootstrap, "orders")
        assert [each.value for each in found] == [value.encode() for values in expected for value in values]
        follow(server, "orders", 4000, lambda: append(10))


def follow(server: ServerProcess, topic: str, start: int, append: Any) -> None:
    """Append ten records to each of three partitions; a consumer that waits at their ends gets them."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "follow", "fetch.wait.max.ms": 20_000})
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition in range(3)])
        assert consumer.consume(1, timeout=2) == []
        append()
        assert len(consumer.consume(30, timeout=PATIENCE_S)) == 30
    finally:
        consumer.close()


@pytest.mark.full
@pytest.mark.parametrize("fixture", ["transactions", "compacted-4-cleaned", "codecs-zstd"])
def test_consumer_reads_a_brokers_directory_as_from_the_broker(fixture: str) -> None:
    parts = [each for each in partitions_with_offsets() if each.fixture == fixture]
    with serving(FIXTURES / fixture) as server:
        for topic in sorted({each.topic for each in parts}):
            for isolation in ("read_uncommitted", "read_committed"):
                found = [
                    (each.partition, each.offset) for each in consume(server.bootstrap, topic, isolation=isolation)
                ]
                of_topic = [each for each in parts if each.topic == topic]
                expected = [
                    (each.partition, record["offset"])
                    for each in of_topic
                    for record in expected_records(each, isolation)
                ]
                assert found == sorted(expected)


@pytest.mark.full
def test_consumer_reads_over_the_seam_of_a_tiered_topic(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "remote", local_retention_bytes="2000")
    append_rounds(log_dir, 40)
    tier_segments(log_dir.root)
    apply_retention(log_dir.root)
    assert log_dir.partition(TOPIC, 0).local_log_start_offset > 0
    with serving(log_dir.path) as server:
        assert [each.offset for each in consume(server.bootstrap, TOPIC)] == list(range(800))
