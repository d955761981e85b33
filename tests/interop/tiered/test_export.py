"""Tiered logs go back to a broker, which serves what this package tiered, tiers on, and deletes it by retention."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.tiered_exports import (
    METADATA_PARTITIONS,
    consumed,
    drop_local_segments,
    new_broker,
    offsets_at,
    offsets_of,
    set_leader_epoch,
    tier_closed_segments,
)
from builders.tiered_fixtures import ALL, ISOLATIONS, TieredFixture
from builders.tiered_roots import SMALL_SEGMENTS, TOPIC, tiered_root
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka_processes.clients import producing
from kafka_processes.oracle import Broker
from kafka_processes.s3_proxy import S3Proxy
from patience import wait_until

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.settings import store_settings
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import OwnLayout, index_place, log_key
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.tools.main import main

PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
ENVIRONMENT = {
    "storeEndpoint": "AWS_ENDPOINT_URL",
    "storeRegion": "AWS_REGION",
    "storeAccessKey": "AWS_ACCESS_KEY_ID",
    "storeSecretKey": "AWS_SECRET_ACCESS_KEY",
}
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


@pytest.mark.full
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
    log_dir.refresh()
    assert rows(log_dir) == expected  # across remote and local segments
    own = {path.name for path in store.rglob("*.log")}
    assert len(own) == sum(tiered.values()) > 20
    broker = new_broker(tmp_path / "broker", tier)
    export = ["export", "--path", str(log_dir.path), "--to", str(broker.data), "--new-broker", "--tiered"]
    assert main([*export, "--metadata-partitions", str(METADATA_PARTITIONS)]) == 0

    with broker:
        served = consumed(broker, TOPIC)
        assert [(each.partition, each.offset, each.timestamp_ms, each.key, each.value) for each in served] == expected
        found = [log_dir.partition(TOPIC, number) for number in (0, 1)]
        assert offsets_at(broker, TOPIC, 0) == {each.partition: each.log_start_offset for each in found}
        assert offsets_of(broker, TOPIC, "earliest-local") == {
            each.partition: each.local_log_start_offset for each in found
        }
        assert {each.partition: each.local_log_start_offset for each in found} == local_starts
        assert min(local_starts.values()) > 300
        assert offsets_of(broker, TOPIC, "latest-tiered") == {
            each.partition: each.latest_tiered_offset for each in found
        }
        for time_ms in (FROM_MS, FROM_MS + 5007, FROM_MS + 19_030):
            first = {each: first_at(expected, each, time_ms) for each in (0, 1)}
            assert offsets_at(broker, TOPIC, time_ms) == first

        with producing(broker.bootstrap, **{"batch.size": 500}) as producer:
            for number in range(400):
                producer.produce(TOPIC, value=b"by the broker %d" % number, partition=number % 2)
        wait_until(lambda: len({path.name for path in store.rglob("*.log")}) > len(own) + 4, "the broker tiers on")
        assert own <= {path.name for path in store.rglob("*.log")}
        assert len(consumed(broker, TOPIC)) == len(expected) + 400

        # The broker's records take over 5,000 bytes of a partition, and its segments at most 2,000: one must go.
        alter_topic(broker, {"retention.bytes": "3000", "local.retention.bytes": "2000"})
        wait_until(lambda: not own & {path.name for path in store.rglob("*.log")}, "the broker deletes by retention")
        wait_until(lambda: min(offsets_at(broker, TOPIC, 0).values()) > 800, "the broker deletes a segment of its own")
        assert not {path.name.partition(".")[0] for path in store.rglob("*.*")} & {each[:-4] for each in own}
        left = consumed(broker, TOPIC)
        assert 0 < len(left) < 400
        assert {each.value for each in left} <= {b"by the broker %d" % number for number in range(400)}


@pytest.mark.full
def test_broker_serves_merged_segments_of_object_root_from_where_they_are(
    s3_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = s3_proxy.new_location().below("log")
    for option, variable in ENVIRONMENT.items():
        monkeypatch.setenv(variable, s3_proxy.options()[option])
    log_dir = LogDir.open_or_create(StoreAddress(location, store_settings(location, {})))
    log_dir.create_topic(TOPIC, partitions=2, configs={**SMALL_SEGMENTS, "retention.ms": "-1"})
    fill(log_dir, PARTITIONS[0], range(12))
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    config = broker_config(root.store.refresh()).log_config(SMALL_SEGMENTS)
    assert merge_partition(root.store, root.objects, config, PARTITIONS[0], clock=root.clock) is not None
    for of in PARTITIONS:
        fill(log_dir, of, range(12, 16))
    log_dir.refresh()
    expected = rows(log_dir)
    store = tmp_path / "tier" / "kafka-tiered-storage"
    segments = put_in_local_layout(root, store)
    assert len(segments) > 5
    broker = new_broker(tmp_path / "broker", tmp_path / "tier")
    export = ["export", "--path", location.url, "--to", str(broker.data), "--new-broker", "--tiered"]
    assert main([*export, "--metadata-partitions", str(METADATA_PARTITIONS)]) == 0

    with broker:
        served = consumed(broker, TOPIC)
        assert [(each.partition, each.offset, each.timestamp_ms, each.key, each.value) for each in served] == expected
        assert offsets_at(broker, TOPIC, 0) == {0: 0, 1: 0}
        assert offsets_of(broker, TOPIC, "earliest-local") == {0: segments[-1].end_offset, 1: 0}
        with producing(broker.bootstrap, **{"batch.size": 500}) as producer:
            for number in range(200):
                producer.produce(TOPIC, value=b"by the broker %d" % number, partition=number % 2)
        wait_until(lambda: len(list(store.rglob("*.log"))) > len(segments) + 2, "the broker tiers on")
        assert len(consumed(broker, TOPIC)) == len(expected) + 200


def put_in_local_layout(root: ObjectRoot, directory: Path) -> list[SegmentObject]:
    """The segment objects as LocalTieredStorage finds them: there is no broker here that reads Aiven's layout."""
    topic = root.store.refresh().topic(TOPIC)
    found = []
    for partition in topic.partitions:
        of = TopicIdPartition(TOPIC, topic.topic_id, partition.partition)
        for segment in partition.segments:
            extent = RemoteExtent(root.objects, of, segment, OwnLayout.AIVEN)
            log = directory / log_key(of, segment, OwnLayout.LOCAL)
            log.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(extent.open()) as source:
                log.write_bytes(bytes(source.read(0, segment.size_bytes)))
            for kind in IndexKind:
                key, place = index_place(of, segment, kind, OwnLayout.LOCAL)
                if place is not None or kind is not IndexKind.TRANSACTION:
                    (directory / key).write_bytes(extent.index_bytes(kind))
            found.append(segment)
    return found


@pytest.mark.full
@pytest.mark.parametrize("fixture", ALL, ids=lambda each: each.name)
def test_new_broker_serves_what_another_one_tiered(fixture: TieredFixture, tmp_path: Path) -> None:
    disk, tier = tmp_path / "disk", tmp_path / "tier"
    shutil.copytree(fixture.log_dir, disk)
    shutil.copytree(fixture.remote, tier)
    # The records are years old, and so is a transaction that is open.
    old = {"log_retention_ms": "-1", "transaction_abort_timed_out_transaction_cleanup_interval_ms": "3600000"}
    broker = new_broker(tmp_path / "broker", tier, **old)
    export = ["export", "--path", str(disk), "--remote-storage", str(tier), "--to", str(broker.data), "--new-broker"]
    assert main([*export, "--tiered", "--metadata-partitions", str(METADATA_PARTITIONS)]) == 0
    left = sorted(path for path in disk.rglob("*") if path.is_file())
    assert [path.read_bytes() for path in left] == [
        path.read_bytes() for path in sorted(fixture.log_dir.rglob("*")) if path.is_file()
    ]

    with broker:
        for topic in fixture.topics():
            for isolation in ISOLATIONS if topic == fixture.manifest()["names"]["main"] else ISOLATIONS[1:]:
                served = [
                    (each.partition, each.offset, each.timestamp_ms, each.key, each.value, each.headers)
                    for each in consumed(broker, topic, isolation)
                ]
                assert served == fixture.rows(topic, isolation), (topic, isolation)
        if fixture is not ALL[0]:
            return  # segments that were being copied are copied meanwhile
        offsets = fixture.manifest()["offsets"]["tiered"]
        told = {each["partition"]: (each["earliest_local"], each["latest_tiered"]) for each in offsets}
        local, tiered = offsets_of(broker, "tiered", "earliest-local"), offsets_of(broker, "tiered", "latest-tiered")
        assert {number: (local[number], tiered[number]) for number in told} == told
