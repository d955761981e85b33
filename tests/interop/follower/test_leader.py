"""One real broker as a leader to follow: batches as they lie in its log, configurations, offsets, epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from builders.leader_reads import log_bytes, read_topics
from kafka_processes.clients import allow
from kafka_processes.oracle import CONFIG_COMMAND, Broker

from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.metadata.users import quota_entity
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.leader import EpochEnd, FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.storage.names import TopicPartition

#: Starts a broker: the full tier alone.
pytestmark = pytest.mark.full

TOPIC: Final = "orders"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker(
        {
            "log.retention.ms": "86400000",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
    )
    broker.create_topic(TOPIC, len(CODECS), {"segment.bytes": "1048576", "max.message.bytes": "3000000"})
    for partition, codec in enumerate(CODECS):
        produce(broker, TOPIC, partition, codec, count=3000)
    return broker


def produce(broker: Broker, topic: str, partition: int, codec: str, *, count: int, size: int = 200) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.type": codec,
            "linger.ms": 5,
            "enable.idempotence": partition % 2 == 1,
            "message.max.bytes": 3_000_000,
        }
    )
    for number in range(count):
        producer.produce(topic, f"{number:010d}".encode() * (size // 10), key=str(number % 7), partition=partition)
        if number % 500 == 0:
            producer.flush(30)
    assert producer.flush(60) == 0


@pytest.fixture
def leader(broker: Broker) -> Iterator[ClusterLeader]:
    leader = ClusterLeader(broker.bootstrap)
    yield leader
    leader.close()


def position_of(leader: ClusterLeader, topic: str, partition: int = 0, **fields: int) -> FetchPosition:
    described = leader.describe(lambda name: name == topic).topics[topic]
    values = {"offset": 0, "leader_epoch": described.leader_epochs[partition]} | fields
    return FetchPosition(topic_partition=TopicPartition(topic, partition), topic_id=described.topic_id, **values)


def fetch(leader: ClusterLeader, position: FetchPosition, **limits: int) -> LeaderAnswer:
    (source,) = leader.sources([position.topic_partition])
    values = {"wait_ms": 100, "max_bytes": 1 << 20, "partition_bytes": 1 << 20} | limits
    (answer,) = leader.fetch(source, [position], **values)
    return answer


@pytest.mark.parametrize("max_bytes", [1, 10_000, 1 << 22])
def test_batches_of_all_codecs_equal_the_log(broker: Broker, leader: ClusterLeader, max_bytes: int) -> None:
    found = read_topics(leader, [TOPIC], max_bytes=max_bytes, partition_bytes=max(max_bytes // 2, 1))
    assert found.keys() == {TopicPartition(TOPIC, each) for each in range(len(CODECS))}
    assert all(len(data) > 10_000 for data in found.values())
    for partition, data in found.items():
        assert data == log_bytes([broker.data], partition)


def test_description_has_what_was_set_and_nothing_else(broker: Broker, leader: ClusterLeader) -> None:
    broker.create_topic("with.defaults", 2)
    found = leader.describe(lambda name: not name.startswith("__"))
    assert found.cluster_id == "kafkalog-tests-cluster"
    topic = found.topics[TOPIC]
    assert len(topic.topic_id) == 22
    assert topic.leader_epochs == (0,) * len(CODECS)
    assert dict(topic.configs) == {
        "segment.bytes": "1048576",
        "max.message.bytes": "3000000",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    assert not found.unreadable
    assert found.cluster_configs["log.retention.ms"] == "86400000"
    assert "log.segment.bytes" not in found.cluster_configs
    assert len(found.topics["with.defaults"].leader_epochs) == 2


def test_access_control_quotas_and_configurations_of_groups_are_read(broker: Broker) -> None:
    from kafka_processes.oracle import run_tool

    leader = ClusterLeader(broker.bootstrap, monotonic_s=lambda: 0.0)  # what it has read does not become old
    before = leader.describe(lambda _: False)
    assert before.acls == ()
    assert before.quotas == {}
    assert before.group_configs == {}
    allow(broker.bootstrap, "PREFIXED", "ord", "User:ann", "READ")
    for entity_type, name, config in (
        ("users", "ann", "consumer_byte_rate=1000000"),
        ("groups", "copiers", "consumer.session.timeout.ms=50000,share.session.timeout.ms=50000"),
    ):
        done = run_tool(
            CONFIG_COMMAND,
            *("--bootstrap-server", broker.bootstrap, "--alter", "--add-config", config),
            *("--entity-type", entity_type, "--entity-name", name),
        )
        assert done.returncode == 0, done.stderr
    assert leader.describe(lambda _: False).acls == ()
    leader.close()
    later = ClusterLeader(broker.bootstrap)
    after = later.describe(lambda _: False)
    later.close()
    assert after.acls is not None
    assert [(each.resource_name, each.principal, each.operation.name) for each in after.acls] == [
        ("ord", "User:ann", "READ")
    ]
    assert after.group_configs == {
        "copiers": {"consumer.session.timeout.ms": "50000", "share.session.timeout.ms": "50000"}
    }
    assert after.quotas == {quota_entity([("user", "ann")]): {"consumer_byte_rate": 1_000_000.0}}


def test_range_follows_deleted_records(broker: Broker, leader: ClusterLeader) -> None:
    from confluent_kafka import TopicPartition as Partition
    from confluent_kafka.admin import AdminClient

    broker.create_topic("shrinking")
    produce(broker, "shrinking", 0, "none", count=100)
    position = position_of(leader, "shrinking")
    assert leader.range_of(position) == (0, 100)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([Partition("shrinking", 0, 40)]).values():
        future.result(30)
    assert leader.range_of(position) == (40, 100)
    assert fetch(leader, position).outcome == FetchOutcome.OUT_OF_RANGE
    assert fetch(leader, position_of(leader, "shrinking", offset=101)).outcome == FetchOutcome.OUT_OF_RANGE
    answer = fetch(leader, position_of(leader, "shrinking", offset=40, last_epoch=0))
    assert (answer.log_start_offset, answer.high_watermark) == (40, 100)


def test_end_of_the_only_epoch_is_the_log_end(leader: ClusterLeader) -> None:
    answer = fetch(leader, position_of(leader, TOPIC, offset=10, last_epoch=-1))
    assert answer.outcome == FetchOutcome.RECORDS
    assert leader.epoch_end(position_of(leader, TOPIC), 0) == EpochEnd(0, 3000)
    assert leader.epoch_end(position_of(leader, TOPIC), 5) is None


def test_batch_larger_than_all_limits_comes_whole(broker: Broker, leader: ClusterLeader) -> None:
    broker.create_topic("large", 1, {"max.message.bytes": "3000000"})
    produce(broker, "large", 0, "none", count=1, size=2_500_000)
    answer = fetch(leader, position_of(leader, "large"), max_bytes=1000, partition_bytes=1000)
    assert bytes(answer.data) == log_bytes([broker.data], TopicPartition("large", 0))


def test_topic_that_was_created_again_is_noticed(broker: Broker, leader: ClusterLeader) -> None:
    from confluent_kafka.admin import AdminClient

    broker.create_topic("again")
    produce(broker, "again", 0, "none", count=10)
    position = position_of(leader, "again")
    assert fetch(leader, position).outcome == FetchOutcome.RECORDS
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["again"])["again"].result(30)
    assert fetch(leader, position).outcome == FetchOutcome.TOPIC_CHANGED
    broker.create_topic("again")
    assert fetch(leader, position).outcome == FetchOutcome.TOPIC_CHANGED
    assert leader.describe(lambda name: name == "again").topics["again"].topic_id != position.topic_id


def test_topics_are_not_created_by_asking(leader: ClusterLeader) -> None:
    description = leader.describe(lambda name: name == "nowhere")
    assert not description.topics
    assert not leader.sources([TopicPartition("nowhere", 0)])


def test_server_that_is_not_there_is_an_error_that_names_it() -> None:
    leader = ClusterLeader("127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(LeaderUnavailableError, match=r"127.0.0.1:1 does not answer METADATA.*; 127.0.0.1:2"):
        leader.describe(lambda _: True)
