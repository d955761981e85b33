"""Local and total retention of a tiered log keep the same segments, here and in the store, as a real tiering broker."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from builders.tiered_roots import file_root
from kafka_processes.oracle import Broker, tiering

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.local_layout import parse_file, parse_folder

BATCHES = range(30)
BATCHES_LATER = range(30, 36)
ROWS = 20
HOUR_MS = 3_600_000
HALF_MS = HOUR_MS // 2
#: Some rounds of the broker's tasks, each half a second apart.
QUIET_S = 4
COMMON = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "4000",
    "index.interval.bytes": "300",
    "retention.ms": "-1",
    "file.delete.delay.ms": "1000",
}
#: What changes when all closed segments are copied. A broker that copies meanwhile counts some bytes twice. Batches are
#: an hour apart, the last one is an hour old.
TOPICS: Mapping[str, Mapping[str, str]] = {
    "kept": {},
    "local-size": {"local.retention.bytes": "9000"},
    "both-sizes": {"local.retention.bytes": "6000", "retention.bytes": "25000"},
    "local-time": {"local.retention.ms": str(10 * HOUR_MS + HALF_MS)},
    "both-times": {"local.retention.ms": str(5 * HOUR_MS + HALF_MS), "retention.ms": str(15 * HOUR_MS + HALF_MS)},
    "size-and-time": {"local.retention.ms": str(10 * HOUR_MS + HALF_MS), "retention.bytes": "20000"},
    "all-is-remote": {"local.retention.ms": "1000"},
    "all-is-due": {"local.retention.ms": "1000", "retention.ms": "1000"},
    "as-total": {"retention.bytes": "20000"},
    "cut": {"local.retention.bytes": "9000"},
    "switched-off": {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
    "not-copied-any-more": {"remote.log.copy.disable": "true", "retention.ms": str(5 * HOUR_MS + HALF_MS)},
}
CUT = TopicPartition("cut", 0)
CUT_AT = 250
#: Get further batches in the end.
GROWING = ("kept", "local-size", "cut", "switched-off", "not-copied-any-more")


@dataclass(frozen=True)
class Kept:
    """The log start offset, and the base offsets of the segments that are left."""

    start: int
    local: list[int]
    remote: list[int]


def values(batch: int) -> list[bytes]:
    return [b"%06d" % (batch * ROWS + at) + b"." * 60 for at in range(ROWS)]


class KafkaLogs:
    """The topics at a broker."""

    def __init__(self, broker: Broker, tier: Path) -> None:
        from confluent_kafka import Consumer, Producer
        from confluent_kafka.admin import AdminClient

        self._broker = broker
        self._tier = tier
        common = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self._admin = AdminClient(common)
        self._consumer = Consumer({**common, "group.id": "any"})
        self._producer = Producer({**common, "linger.ms": 10_000})
        for topic in TOPICS:
            broker.create_topic(topic, 1, COMMON)

    def append(self, batches: Sequence[int], newest_ms: int, topics: Collection[str]) -> None:
        for number in batches:
            for topic in topics:
                for value in values(number):
                    timestamp_ms = newest_ms - (batches[-1] - number) * HOUR_MS
                    self._producer.produce(topic, value=value, partition=0, timestamp=timestamp_ms)
            if number == 0:
                time.sleep(2)  # what is flushed while the metadata arrive becomes two batches
            assert self._producer.flush(60) == 0

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def cut(self) -> None:
        from confluent_kafka import TopicPartition as Offset

        for future in self._admin.delete_records([Offset(CUT.topic, CUT.partition, CUT_AT)]).values():
            future.result(30)

    def settle(self) -> dict[str, Kept]:
        """What is left, once the broker has changed nothing for some time."""
        found, since = self._look(), time.monotonic()
        while time.monotonic() < since + QUIET_S:
            time.sleep(0.5)
            now = self._look()
            if now != found:
                found, since = now, time.monotonic()
        return found

    def _look(self) -> dict[str, Kept]:
        from confluent_kafka import TopicPartition as Offset

        remote: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        for path in self._tier.rglob("*.log"):
            of, file = parse_folder(path.parent.name), parse_file(path.name)
            if of is not None and file is not None:
                remote[of.topic].append(file.start_offset)
        return {
            topic: Kept(
                self._consumer.get_watermark_offsets(Offset(topic, 0), 30, cached=False)[0],
                list_base_offsets(self._broker.data / str(TopicPartition(topic, 0))),
                sorted(remote[topic]),
            )
            for topic in TOPICS
        }


class OwnLogs:
    """The same topics in a log directory."""

    def __init__(self, path: Path) -> None:
        (path / "tier").mkdir(parents=True)
        self._log_dir = LogDir.create(path / "log")
        self._log_dir.alter_broker_configs(
            add={
                "rsm.config.location": str(path / "tier"),
                "rsm.config.layout": "local",
                "remote.log.storage.system.enable": "true",
            }
        )
        for topic in TOPICS:
            self._log_dir.create_topic(topic, 1, COMMON)

    def append(self, batches: Sequence[int], newest_ms: int, topics: Collection[str]) -> None:
        for number in batches:
            timestamp_ms = newest_ms - (batches[-1] - number) * HOUR_MS
            stamps = pa.array([timestamp_ms * 1000] * ROWS, pa.timestamp("us", "UTC"))
            rows = pa.table({"value": values(number), "timestamp": stamps})
            for topic in topics:
                self._log_dir.append(topic, rows, partition=0, compression_type="none")

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        self._log_dir.alter_topic(topic, add=configs)

    def cut(self) -> None:
        delete_records(self._log_dir.root, {CUT: CUT_AT})

    def settle(self) -> dict[str, Kept]:
        """What the jobs tier and retention leave, when they have nothing to do any more."""
        version = -1
        while version != self._log_dir.version:
            version = self._log_dir.version
            reports = [*tier_segments(self._log_dir.root), *apply_retention(self._log_dir.root)]
            assert [each.error for each in reports if each.error] == []
            self._log_dir.refresh()
        root = file_root(self._log_dir)
        partitions = {topic: root.store.image.partition(topic, 0) for topic in TOPICS}
        return {
            topic: Kept(
                partition.state.log_start_offset,
                list_base_offsets(root.path / str(TopicPartition(topic, 0))),
                [each.base_offset for each in partition.segments],
            )
            for topic, partition in partitions.items()
        }


def run(logs: KafkaLogs | OwnLogs, now_ms: int) -> tuple[dict[str, Kept], ...]:
    logs.append(BATCHES, now_ms - HOUR_MS, TOPICS)
    copied = logs.settle()
    for topic, configs in TOPICS.items():
        if configs:
            logs.alter(topic, configs)
    logs.cut()
    retained = logs.settle()
    logs.append(BATCHES_LATER, now_ms, GROWING)
    logs.alter("not-copied-any-more", {"retention.ms": "1000"})
    return copied, retained, logs.settle()


@pytest.mark.full
def test_jobs_keep_the_same_segments_as_a_broker(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    with Broker(tmp_path / "broker", settings=tiering(tmp_path / "tier")) as broker:
        expected = run(KafkaLogs(broker, tmp_path / "tier"), now_ms)
    found = run(OwnLogs(tmp_path / "own"), now_ms)
    copied, retained, grown = expected
    assert len(copied["kept"].local) > 10
    assert retained["local-size"].local[0] > 0
    assert retained["both-sizes"].remote[0] > 0
    assert grown["switched-off"].remote == []
    assert retained["not-copied-any-more"].remote
    assert grown["not-copied-any-more"] == Kept(720, [720], [])
    for topic in TOPICS:
        for step, (own, kafka) in enumerate(zip(found, expected, strict=True)):
            assert (topic, step, own[topic]) == (topic, step, kafka[topic])
