"""Tiered logs that are given back to a broker: how they come about, and what a broker says of their offsets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from kafka_processes.clients import ConsumedRecord, consume
from kafka_processes.java_processes import free_port
from kafka_processes.oracle import Broker, KafkaOracleError, run_tool, tiering
from patience import PATIENCE_S

from builders.tiered_roots import file_root
from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata.messages.metadata_records import PartitionChangeRecord
from pyspark_kafkalog.storage.names import TopicPartition

METADATA_PARTITIONS: Final = 3
_OFFSET_TOOL: Final = "org.apache.kafka.tools.GetOffsetShell"


def set_leader_epoch(log_dir: LogDir, of: TopicPartition) -> None:
    """Elect a leader again: later batches have the next epoch."""
    root = file_root(log_dir)
    topic_id = root.store.refresh().topic(of.topic).topic_id
    record = PartitionChangeRecord(partition_id=of.partition, topic_id=topic_id, leader=1)
    root.store.commit(lambda _: [record], operation="elect leader")


def tier_closed_segments(log_dir: LogDir, of: TopicPartition) -> int:
    """Copy all closed segments of the partition to the root's remote storage; returns their number."""
    (report,) = tier_segments(file_root(log_dir), partitions=[of])
    assert report.error is None
    return report.segments_copied


def drop_local_segments(log_dir: LogDir, of: TopicPartition, *, kept_bytes: int) -> int:
    """Local retention by size; returns the local log start offset."""
    root = file_root(log_dir)
    log_dir.alter_topic(of.topic, add={"local.retention.bytes": str(kept_bytes)})
    (report,) = apply_retention(root, partitions=[of])
    assert report.error is None
    return root.store.refresh().partition(of.topic, of.partition).state.local_log_start_offset


def new_broker(home: Path, tier: Path, **settings: str) -> Broker:
    """A broker, not started, whose `data` an export makes; it tiers to `tier` by LocalTieredStorage.

    `settings` have `_` for `.`.
    """
    home.mkdir()
    port = free_port()
    more = {name.replace("_", "."): value for name, value in settings.items()}
    voters = {"controller.quorum.voters": f"1@127.0.0.1:{port}"}
    return Broker(home, settings={**tiering(tier), **voters, **more}, controller_port=port)


def consumed(broker: Broker, topic: str, isolation: str = "read_uncommitted") -> list[ConsumedRecord]:
    """All records of the topic; a broker that has just started refuses reads of remote segments for a moment."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return consume(broker.bootstrap, topic, isolation=isolation)
        except KafkaOracleError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def offsets_of(broker: Broker, topic: str, spec: str) -> dict[int, int]:
    """The offset of each partition as Kafka's own tool lists it, which costs a JVM: earliest-local, latest-tiered."""
    done = run_tool(_OFFSET_TOOL, "--bootstrap-server", broker.bootstrap, "--topic", topic, "--time", spec)
    assert done.returncode == 0, done.stderr
    lines = (line.rsplit(":", 2) for line in done.stdout.splitlines())
    return {int(partition): int(offset) for _, partition, offset in lines}


def offsets_at(broker: Broker, topic: str, time_ms: int) -> dict[int, int]:
    """The first offset of each partition with that timestamp or a later one; 0 ms: the log start."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "kafkalog-tests"})
    try:
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        asked = [TopicPartition(topic, number, time_ms) for number in numbers]
        return {each.partition: each.offset for each in consumer.offsets_for_times(asked, timeout=30)}
    finally:
        consumer.close()
