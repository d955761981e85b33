"""A broker starts on an exported directory as on its own: topics, groups, users, settings, epochs, transactions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from builders.tiered_exports import consumed, new_broker
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType, ScramMechanism

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.tools.main import main


def rows(log_dir: LogDir, topic: str) -> list[tuple[int, int, bytes]]:
    found = log_dir.read(topic, columns=["partition", "offset", "value"]).to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in found)


def test_broker_starts_on_export_and_goes_on(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "3", "log.retention.ms": "-1"})
    log_dir.create_topic("orders", partitions=2, configs={"internal.segment.bytes": "4000"})
    log_dir.create_topic("users", partitions=1, configs={"cleanup.policy": "compact"})
    for number in range(10):
        table = pa.table(
            {"key": [f"k{each}" for each in range(50)], "value": [f"{number} {each}" for each in range(50)]}
        )
        log_dir.append("orders", table, transactional_id="job", transaction_version=number)
        log_dir.append("users", table)
    ann = ("--entity-type", "users", "--entity-name", "ann")
    password = ("--add-config", "SCRAM-SHA-256=[iterations=5000,password=secret]")
    assert main(["configs", "--path", str(log_dir.path), "--alter", *ann, *password]) == 0
    log_dir.group("readers").commit({("orders", 0): 17, ("orders", 1): 3}, "note")
    log_dir.refresh()
    topic_id = log_dir.topic("orders").topic_id
    broker = new_broker(tmp_path / "broker", tmp_path / "tier", offsets_topic_num_partitions="3")
    assert main(["export", "--path", str(log_dir.path), "--to", str(broker.data), "--new-broker"]) == 0

    with broker:
        for topic in ("orders", "users"):
            served = [(each.partition, each.offset, each.value) for each in consumed(broker, topic)]
            assert served == rows(log_dir, topic)
        group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
        found = group.committed([Position("orders", 0), Position("orders", 1)], timeout=20)
        group.close()
        assert [(each.partition, each.offset) for each in found] == [(0, 17), (1, 3)]
        resource = ConfigResource(ResourceType.TOPIC, "users")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        configs = admin.describe_configs([resource])[resource].result(20)
        assert (configs["cleanup.policy"].value, configs["retention.ms"].value) == ("compact", "-1")
        (credential,) = admin.describe_user_scram_credentials(["ann"])["ann"].result(20).scram_credential_infos
        assert (credential.mechanism, credential.iterations) == (ScramMechanism.SCRAM_SHA_256, 5000)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "own", "batch.size": 500})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("orders", b"by the broker", partition=1)
        producer.commit_transaction(30)
        del producer, admin
        broker.stop()
        broker.start()
        committed = [each.value for each in consumed(broker, "orders", "read_committed") if each.partition == 1]
        assert committed[-1] == b"by the broker"
        assert len(committed) == log_dir.partition("orders", 1).high_watermark + 1
        broker.stop()

    left = LogDir.open(broker.data)
    assert left.topic("orders").topic_id == topic_id
    assert left.partition("orders", 1).leader_epoch > log_dir.partition("orders", 1).leader_epoch
