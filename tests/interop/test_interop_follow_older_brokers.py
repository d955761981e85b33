"""Brokers of Kafka before 4.1 as leaders, and the least version that can be followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from follow_process import FollowProcess
from following_roots import batches_of, following, has_offsets
from kafka_clients import producing
from leader_reads import log_bytes
from older_kafka import OlderBroker
from patience import wait_until
from replica_checks import check_same_rows, ends_of

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.storage.names import TopicPartition

#: Fetches Kafka's jars of each version: the full tier alone.
pytestmark = pytest.mark.full

TOPIC = "orders"


def create_topic(broker: OlderBroker) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    # Since 4.0 the least size of segments is a megabyte.
    new = NewTopic(TOPIC, 2, 1, config={"segment.bytes": "100000", "retention.ms": "-1"})
    admin.create_topics([new])[TOPIC].result(30)


def produce(broker: OlderBroker, seed: int, **settings: Any) -> None:
    with producing(broker.bootstrap, **{"linger.ms": 5, "batch.size": 5000, **settings}) as producer:
        if "transactional.id" in settings:
            producer.init_transactions(30)
        for number in range(6):
            if "transactional.id" in settings:
                producer.begin_transaction()
            for each in range(100):
                producer.produce(TOPIC, f"{seed} {number} {each} ".encode() * 10, key=str(each), partition=each % 2)
            producer.flush(30)
            if "transactional.id" in settings:
                producer.commit_transaction(30) if number % 2 else producer.abort_transaction(30)


@pytest.mark.parametrize("version", ["3.9.1", "2.8.2", "2.7.2"])
def test_copy_of_an_older_broker_has_its_batches(version: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with OlderBroker(version, tmp_path / "broker") as broker:
        create_topic(broker)
        produce(broker, 1, **{"compression.type": "zstd"})
        with following(ClusterLeader(broker.bootstrap), copy) as running:
            produce(broker, 2, **{"transactional.id": "writer"})
            wanted = {name: end for name, (_, end) in ends_of(broker.bootstrap, [TOPIC]).items()}
            wait_until(lambda: has_offsets(copy, wanted))
        for name in wanted:
            assert b"".join(batches_of(LogDir.open(copy), name)) == log_bytes([broker.data], name)
        for isolation in ("read_uncommitted", "read_committed"):
            assert check_same_rows(copy, broker.bootstrap, TOPIC, isolation) > 500
    assert running.kinds() == {EventKind.TOPIC_ADDED, EventKind.CONFIGS_REFUSED}
    assert {each.detail.partition("=")[0] for each in running.of_kind(EventKind.CONFIGS_REFUSED)} == {"segment.bytes"}
    assert sum(wanted[TopicPartition(TOPIC, number)] for number in range(2)) > 1200


def test_broker_that_is_too_old_is_refused_with_the_least_version(tmp_path: Path) -> None:
    with OlderBroker("2.6.3", tmp_path / "broker") as broker:
        create_topic(broker)
        produce(broker, 1)
        with FollowProcess(broker.bootstrap, tmp_path / "copy", tmp_path, "--once") as follow:
            assert follow.wait() == 1
        assert "Kafka 2.7" in follow.said()
