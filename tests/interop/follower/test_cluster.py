"""A root that follows a cluster of three brokers: leaders that die, and an unclean election that loses records."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from builders.following_roots import Following, batches_of, following, has_offsets
from builders.leader_reads import log_bytes
from kafka_processes.cluster import Cluster
from patience import wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.storage.names import TopicPartition

#: Starts brokers: the full tier alone.
pytestmark = pytest.mark.full

FIRST: Final = TopicPartition("orders", 0)


def values(first: int, end: int) -> list[str]:
    return [f"{number:06d}" * 20 for number in range(first, end)]


def bytes_of(copy: Path, name: TopicPartition) -> bytes:
    return b"".join(batches_of(LogDir.open(copy), name))


def test_follower_goes_on_with_the_next_leader(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    names = [TopicPartition("orders", each) for each in range(3)]
    with Cluster(tmp_path) as cluster:
        cluster.create_topic("orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
        for partition in range(3):
            cluster.produce("orders", partition, values(0, 100))
        with following(ClusterLeader(cluster.bootstrap), copy) as running:
            wait_until(lambda: has_offsets(copy, dict.fromkeys(names, 100)))
            cluster.kill(1)
            cluster.wait_for(lambda: cluster.partition("orders", 0).leader in (2, 3))
            for partition in range(3):
                cluster.produce("orders", partition, values(100, 200))
            wait_until(lambda: has_offsets(copy, dict.fromkeys(names, 200)))
            cluster.start(1)
            cluster.produce("orders", 0, values(200, 300))
            wait_until(lambda: has_offsets(copy, {FIRST: 300}))
        for name in names:
            assert bytes_of(copy, name) == log_bytes([cluster.disk(2)], name)
    assert EventKind.LEADER_CHANGED in running.kinds()
    assert not {EventKind.DIVERGED, EventKind.GAP, EventKind.PARTITION_STOPPED} & running.kinds()


def test_records_lost_by_an_unclean_election_stop_the_partition_or_are_cut_into_a_file(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Cluster(tmp_path) as cluster:
        cluster.create_topic("orders", [[1, 2]], unclean_leader_election_enable="true", min_insync_replicas="1")
        cluster.produce("orders", 0, values(0, 100))
        running: Following
        with following(ClusterLeader(cluster.bootstrap), copy) as running:
            wait_until(lambda: has_offsets(copy, {FIRST: 100}))
            cluster.kill(2)
            cluster.produce("orders", 0, values(100, 150), acks="1")
            wait_until(lambda: has_offsets(copy, {FIRST: 150}))
        lost = b"".join(batches_of(LogDir.open(copy), FIRST)[10:])
        cluster.kill(1)
        cluster.start(2)
        cluster.wait_for(lambda: cluster.partition("orders", 0).leader == 2)
        cluster.produce("orders", 0, values(500, 530), acks="1")
        with following(ClusterLeader(cluster.bootstrap), copy) as running:
            wait_until(lambda: EventKind.PARTITION_STOPPED in running.kinds())
        (diverged,) = running.of_kind(EventKind.DIVERGED)
        assert (diverged.first_offset, diverged.end_offset) == (100, 150)
        assert has_offsets(copy, {FIRST: 150})
        with following(ClusterLeader(cluster.bootstrap), copy, may_cut=True) as running:
            wait_until(lambda: has_offsets(copy, {FIRST: 130}))
        (cut,) = running.of_kind(EventKind.CUT)
        assert (cut.first_offset, cut.end_offset) == (100, 150)
        assert bytes_of(copy, FIRST) == log_bytes([cluster.disk(2)], FIRST)
    assert [each.read_bytes() for each in copy.glob("diverged-orders-0-*.log")] == [lost]
