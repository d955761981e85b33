"""Retention, delete-records and merge leave a log that Kafka's tools and a broker accept, record for record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_processes.clients import consume, producing
from kafka_processes.oracle import Broker

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.reindex import reindex
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.names import TopicPartition
from tests.interop.samples import assert_dumps_clean

#: Topic to configs; all begin with the same 600 records in about 30 segments.
TOPICS = {
    "retained": {"retention.bytes": "20000", "retention.ms": "-1"},
    "emptied": {"retention.ms": "1"},
    "cut": {"retention.ms": "-1"},
    "merged": {"retention.ms": "-1"},
}
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}
WRITES = 30


@pytest.fixture(scope="module")
def maintained(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    log_dir = LogDir.create(tmp_path_factory.mktemp("maintained"))
    for topic, configs in TOPICS.items():
        log_dir.create_topic(topic, partitions=1, configs={**SMALL, **configs})
        for number in range(WRITES):
            values = [b"%06d" % (number * 20 + at) + b"." * 60 for at in range(20)]
            log_dir.append(topic, pa.table({"value": values}), partition=0, compression_type="none")
    log_dir.alter_topic("merged", add={"internal.segment.bytes": "12000"})
    reports = delete_records(log_dir.root, {TopicPartition("cut", 0): 333})
    reports += merge_segments(log_dir.root, topics=["merged"])
    reports += apply_retention(log_dir.root, now_ms=log_dir.root.native().clock() + 60_000)
    reports += reindex(log_dir.root)
    assert [each.error for each in reports] == [None] * len(reports)
    log_dir.refresh()
    return log_dir


@pytest.fixture(scope="module")
def broker(maintained: LogDir, start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker()
    broker.mount(maintained.path, dict.fromkeys(TOPICS, 1), SMALL)
    return broker


def test_kafka_finds_segments_valid_after_maintenance(maintained: LogDir) -> None:
    starts = {topic: maintained.partition(topic, 0).log_start_offset for topic in TOPICS}
    assert (starts["cut"], starts["emptied"], starts["merged"]) == (333, 600, 0)
    assert 0 < starts["retained"] < 600
    directories: list[Path] = [maintained.partition(topic, 0).directory for topic in TOPICS if topic != "emptied"]
    assert len(list(directories[-1].glob("*.log"))) < 10
    assert_dumps_clean(directories, batches_min=30)


@pytest.mark.full
@pytest.mark.parametrize("topic", TOPICS)
def test_broker_serves_records_left_by_maintenance(maintained: LogDir, broker: Broker, topic: str) -> None:
    rows = maintained.read(topic, columns=["offset", "value"]).to_pylist()
    served = [(each.offset, each.value) for each in consume(broker.bootstrap, topic)]
    assert served == [(row["offset"], row["value"]) for row in rows]


@pytest.mark.full
@pytest.mark.parametrize("topic", TOPICS)
def test_broker_appends_at_next_offset_after_maintenance(maintained: LogDir, broker: Broker, topic: str) -> None:
    with producing(broker.bootstrap) as producer:
        producer.produce(topic, value=b"after", partition=0)
    last = consume(broker.bootstrap, topic)[-1]
    assert (last.offset, last.value) == (600, b"after")
