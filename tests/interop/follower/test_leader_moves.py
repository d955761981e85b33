"""Leaders to follow besides one broker: a cluster whose leaders change, racks, tiered topics, a root that is served."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from builders.leader_reads import log_bytes, read_topics
from kafka_processes.cluster import Cluster
from kafka_processes.oracle import Broker, tiering
from kafka_processes.server_processes import serving
from kafka_processes.tiering_brokers import SEGMENTS

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.leader import EpochEnd, FetchOutcome, FetchPosition, LeaderAnswer
from pyspark_kafkalog.storage.artefacts.marker_files import read_identity
from pyspark_kafkalog.storage.names import TopicPartition

#: Starts brokers: the full tier alone.
pytestmark = pytest.mark.full

FIRST: Final = TopicPartition("orders", 0)


def values(first: int, end: int) -> list[str]:
    return [f"{number:06d}" * 20 for number in range(first, end)]


def fetch(leader: ClusterLeader, position: FetchPosition) -> LeaderAnswer:
    (source,) = leader.sources([position.topic_partition])
    (answer,) = leader.fetch(source, [position], wait_ms=200, max_bytes=1 << 20, partition_bytes=1 << 20)
    return answer


def position_of(leader: ClusterLeader, **fields: int) -> FetchPosition:
    topic = leader.describe(lambda name: name == FIRST.topic).topics[FIRST.topic]
    found = {"offset": 0, "leader_epoch": topic.leader_epochs[FIRST.partition]} | fields
    return FetchPosition(topic_partition=FIRST, topic_id=topic.topic_id, **found)


def test_leader_that_dies_is_followed_to_the_next_one(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.create_topic("orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
        leader = ClusterLeader(cluster.bootstrap)
        for partition in range(3):
            cluster.produce("orders", partition, values(0, 100))
        before = read_topics(leader, ["orders"])
        position = position_of(leader, offset=100, last_epoch=0)
        cluster.kill(1)
        with pytest.raises(LeaderUnavailableError, match="broker 1 "):
            fetch(leader, position)
        cluster.wait_for(lambda: cluster.partition("orders", 0).leader in (2, 3))
        cluster.produce("orders", 0, values(100, 200))
        after = read_topics(leader, ["orders"])
        assert after[FIRST].startswith(before[FIRST])
        assert all(after[each] == log_bytes([cluster.disk(2)], each) for each in after)
        diverging = fetch(leader, position_of(leader, offset=150, last_epoch=0))
        assert (diverging.outcome, diverging.diverging) == (FetchOutcome.DIVERGING, EpochEnd(0, 100))
        now = position_of(leader)
        assert leader.epoch_end(now, 0) == EpochEnd(0, 100)
        assert leader.epoch_end(now, now.leader_epoch) == EpochEnd(now.leader_epoch, 200)
        leader.close()


def test_follower_reads_from_the_replica_of_its_rack(tmp_path: Path) -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    cluster = Cluster(tmp_path, {"replica.selector.class": selector})
    for node, broker in cluster.nodes.items():
        broker.settings = {**broker.settings, "broker.rack": f"rack-{node}"}
    with cluster:
        cluster.create_topic("orders", [[1, 2, 3]])
        cluster.produce("orders", 0, values(0, 100))
        leader = ClusterLeader(cluster.bootstrap, ClientSettings(rack="rack-3"))
        position = position_of(leader)
        assert fetch(leader, position).outcome == FetchOutcome.LEADER_MOVED
        (source,) = leader.sources([FIRST])
        assert source.startswith("broker 3 ")
        whole = {FIRST: log_bytes([cluster.disk(1)], FIRST)}
        cluster.wait_for(lambda: read_topics(leader, ["orders"]) == whole)  # a follower learns the high watermark later
        cluster.kill(3)
        with pytest.raises(LeaderUnavailableError):
            fetch(leader, position)
        (source,) = leader.sources([FIRST])
        assert source.startswith("broker 1 ")
        leader.close()


def test_tiered_topic_is_read_from_its_beginning(tmp_path: Path, start_broker: Callable[..., Broker]) -> None:
    tier = tmp_path / "tier"
    broker = start_broker(tiering(tier))
    broker.create_topic("orders", 1, SEGMENTS)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number, value in enumerate(values(0, 1500)):
        producer.produce("orders", value, partition=0)
        if number % 10 == 9:
            producer.flush(30)
    producer.flush(30)
    directory = broker.data / str(FIRST)
    deadline = time.monotonic() + 60
    while len(list(directory.glob("*.log"))) > 1 or (directory / f"{0:020d}.log").exists():
        assert time.monotonic() < deadline, sorted(directory.iterdir())
        time.sleep(0.2)
    leader = ClusterLeader(broker.bootstrap)
    found = read_topics(leader, ["orders"], max_bytes=100_000)[FIRST]
    batches = scan_batches(found, file="found").batches
    assert int(batches["records_count"].sum()) == 1500
    assert batches["base_offset"].tolist() == [0, *(batches["last_offset"][:-1] + 1).tolist()]
    files = [*tier.rglob("*.log"), *directory.glob("*.log")]
    assert len(files) > 5
    assert all(file.read_bytes() in found for file in files)
    leader.close()


def test_root_that_is_served_can_be_followed(tmp_path: Path) -> None:
    import pyarrow as pa

    root = tmp_path / "root"
    log_dir = LogDir.create(root)
    log_dir.create_topic("orders", 2, {"retention.ms": "-1"})
    log_dir.append("orders", pa.table({"value": pa.array([each.encode() for each in values(0, 3000)])}))
    with serving(root) as server:
        leader = ClusterLeader(server.bootstrap)
        found = read_topics(leader, ["orders"], max_bytes=100_000, partition_bytes=50_000)
        description = leader.describe(lambda _: True)
        now = position_of(leader)
        assert leader.epoch_end(now, now.leader_epoch) == EpochEnd(0, leader.range_of(now)[1])
        leader.close()
    assert found == {each: log_bytes([root], each) for each in (FIRST, TopicPartition("orders", 1))}
    assert all(found.values())
    identity = read_identity(root)
    assert identity is not None
    assert description.cluster_id == identity.cluster_id
    assert dict(description.topics["orders"].configs) == {"retention.ms": "-1"}
    assert description.topics["orders"].topic_id == log_dir.topic("orders").topic_id
