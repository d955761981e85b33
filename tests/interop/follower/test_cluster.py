"""A root that follows a cluster of three brokers: leaders that die, and an unclean election that loses records."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import pytest
from builders.following_roots import Following, batches_of, following, has_offsets
from builders.leader_reads import log_bytes
from kafka_processes.clients import producing
from kafka_processes.cluster import Cluster
from kafka_processes.replica_checks import check_same_indexes, log_ends_of
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


def segments_of(disk: Path) -> dict[str, int]:
    """The sizes of the partition's segments by their names."""
    return {path.name: path.stat().st_size for path in (disk / "orders-0").glob("*.log")}


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
                cluster.wait_for_replicas(name)  # node 2 may have been out of sync
        for name in names:
            assert bytes_of(copy, name) == log_bytes([cluster.disk(2)], name)
    assert EventKind.LEADER_CHANGED in running.kinds()
    assert not {EventKind.DIVERGED, EventKind.GAP, EventKind.PARTITION_STOPPED} & running.kinds()


def test_copy_has_the_leaders_indexes_where_a_replica_was_truncated(tmp_path: Path) -> None:
    """Node 3 gets a batch that node 2 does not, which is elected: node 3 truncates, and counts its entries from there.

    The signals must be faster than the times after which a broker counts as dead, and a replica as out of sync.
    """
    copy, segment = tmp_path / "copy", Path("orders-0") / f"{0:020}.log"
    settings = {"broker.session.timeout.ms": "9000", "replica.lag.time.max.ms": "60000"}
    with Cluster(tmp_path, settings) as cluster:

        def size_of(node: int) -> int:
            return (cluster.disk(node) / segment).stat().st_size

        cluster.create_topic("orders", [[1, 2, 3]], min_insync_replicas="1", segment_bytes="1048576")
        with following(ClusterLeader(cluster.bootstrap), copy) as running:
            cluster.produce("orders", 0, values(0, 2000))
            wait_until(lambda: size_of(1) == size_of(2) == size_of(3))
            os.kill(cluster.nodes[2].pid, signal.SIGSTOP)
            # A fetch of node 2 waits at the leader, which answers it with the first batch; the second one it lacks.
            for _ in range(2):
                with producing(cluster.nodes[1].bootstrap, acks=1) as producer:
                    producer.produce("orders", "only here" * 100, partition=0)
                wait_until(lambda: size_of(3) == size_of(1))
            truncated_bytes = size_of(3)
            cluster.kill(1)
            os.kill(cluster.nodes[2].pid, signal.SIGCONT)
            cluster.wait_for(lambda: cluster.partition("orders", 0).leader == 2)
            wait_until(lambda: size_of(3) < truncated_bytes, "the truncation")
            cluster.produce("orders", 0, values(2000, 12_000))
            wait_until(lambda: has_offsets(copy, log_ends_of(cluster.bootstrap, ["orders"])))
            wait_until(lambda: segments_of(cluster.disk(3)) == segments_of(cluster.disk(2)))
    assert not {EventKind.DIVERGED, EventKind.GAP, EventKind.PARTITION_STOPPED} & running.kinds()
    ours, leaders, truncated = (place / segment for place in (copy, cluster.disk(2), cluster.disk(3)))
    assert ours.read_bytes() == leaders.read_bytes() == truncated.read_bytes()
    for suffix in (".index", ".timeindex"):
        assert ours.with_suffix(suffix).read_bytes() == leaders.with_suffix(suffix).read_bytes()
    assert truncated.with_suffix(".index").read_bytes() != leaders.with_suffix(".index").read_bytes()
    assert not check_same_indexes(ours, truncated)


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
