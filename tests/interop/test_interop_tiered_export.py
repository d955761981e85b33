"""Tiered logs go back to a broker, which serves what this package tiered, tiers on, and deletes it by retention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka_clients import producing
from kafka_oracle import Broker
from tiered_exports import (
    METADATA_PARTITIONS,
    consumed,
    drop_local_segments,
    new_broker,
    offsets_of,
    set_leader_epoch,
    tier_closed_segments,
    wait_until,
)
from tiered_roots import TOPIC, tiered_root

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
FROM_MS = 1_795_000_000_000


def fill(log_dir: LogDir, of: TopicPartition, rounds: range) -> None:
    for number in rounds:
        keys = [f"{number} {each}" for each in range(40)]
        stamps = pa.array([FROM_MS + 1000 * number + each for each in range(40)], pa.timestamp("ms"))
        table = pa.table({"key": keys, "value": [each * 5 for each in keys], "timestamp": stamps})
        log_dir.append(TOPIC, table, partition=of.partition)


def rows(log_dir: LogDir) -> list[tuple[Any, ...]]:
    columns = ["partition", "offset", "timestamp", "key", "value"]
    found = log_dir.read(TOPIC, columns=columns)
    stamps = found["timestamp"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
    return sorted(
        (row["partition"], row["offset"], stamp, row["key"], row["value"])
        for row, stamp in zip(found.to_pylist(), stamps, strict=True)
    )


def first_at(expected: list[tuple[Any, ...]], partition: int, time_ms: int) -> int:
    """The first offset of the partition whose record has that timestamp or a later one."""
    offset: int = next(row[1] for row in expected if row[0] == partition and row[2] >= time_ms)
    return offset


def alter_topic(broker: Broker, configs: dict[str, str]) -> None:
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    for name, value in configs.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_broker_serves_tiered_file_root_tiers_on_and_deletes_by_retention(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    store = tier / "kafka-tiered-storage"
    store.mkdir(parents=True)
    log_dir = tiered_root(tmp_path / "root", store, layout="local", partitions=2, retention_ms="-1")
    for of in PARTITIONS:
        fill(log_dir, of, range(12))
        set_leader_epoch(log_dir, of)
        fill(log_dir, of, range(12, 20))
    log_dir.refresh()
    expected = rows(log_dir)
    assert len(expected) == 1600
    tiered = {of: tier_closed_segments(log_dir, of) for of in PARTITIONS}
    local_starts = {of.partition: drop_local_segments(log_dir, of, kept_bytes=5000) for of in PARTITIONS}
    own = {path.name for path in store.rglob("*.log")}
    assert len(own) == sum(tiered.values()) > 20
    broker = new_broker(tmp_path / "broker", tier)
    export = ["export", "--path", str(log_dir.path), "--to", str(broker.data), "--new-broker", "--tiered"]
    assert main([*export, "--metadata-partitions", str(METADATA_PARTITIONS)]) == 0

    with broker:
        served = consumed(broker, TOPIC)
        assert [(each.partition, each.offset, each.timestamp_ms, each.key, each.value) for each in served] == expected
        image = log_dir.root.native().store.refresh()
        partitions = image.topic(TOPIC).partitions
        assert offsets_of(broker, TOPIC, "earliest") == {0: 0, 1: 0}
        assert offsets_of(broker, TOPIC, "earliest-local") == local_starts
        assert min(local_starts.values()) > 300
        highest = {each.partition: each.segments[-1].end_offset - 1 for each in partitions}
        assert offsets_of(broker, TOPIC, "latest-tiered") == highest
        for time_ms in (FROM_MS, FROM_MS + 5007, FROM_MS + 19_030):
            first = {each: first_at(expected, each, time_ms) for each in (0, 1)}
            assert offsets_of(broker, TOPIC, str(time_ms)) == first

        with producing(broker.bootstrap, **{"batch.size": 500}) as producer:
            for number in range(400):
                producer.produce(TOPIC, value=b"by the broker %d" % number, partition=number % 2)
        wait_until(lambda: len({path.name for path in store.rglob("*.log")}) > len(own) + 4, "the broker tiers on")
        assert own <= {path.name for path in store.rglob("*.log")}
        assert len(consumed(broker, TOPIC)) == len(expected) + 400

        alter_topic(broker, {"retention.bytes": "4000", "local.retention.bytes": "2000"})
        wait_until(lambda: not own & {path.name for path in store.rglob("*.log")}, "the broker deletes by retention")
        assert not {path.name.partition(".")[0] for path in store.rglob("*.*")} & {each[:-4] for each in own}
        left = consumed(broker, TOPIC)
        assert 0 < len(left) < 400
        assert {each.value for each in left} <= {b"by the broker %d" % number for number in range(400)}
