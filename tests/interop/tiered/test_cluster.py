"""The disks of a real cluster that tiers: segments that different leaders copied, read as one root."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from kafka_processes.cluster import Cluster
from kafka_processes.oracle import tiering
from kafka_processes.tiering_brokers import SEGMENTS

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify

pytestmark = [pytest.mark.interop, pytest.mark.full]

PADDING = "." * 400


def produce(cluster: Cluster, start: int, end: int) -> None:
    cluster.produce("orders", 0, [f"{number:06d}{PADDING}" for number in range(start, end)])


def latest_tiered(cluster: Cluster, tier: Path, node: int) -> int:
    return LogDir.open(cluster.disk(node), remote_storage=tier).partition("orders", 0).latest_tiered_offset


def test_disks_of_a_cluster_whose_leaders_changed_read_as_its_consumers_did(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    replication = {"rlmm.config.remote.log.metadata.topic.replication.factor": "3"}
    with Cluster(tmp_path / "cluster", {**tiering(tier), **replication}) as cluster:
        cluster.create_topic("orders", [[1, 2, 3]], **{name.replace(".", "_"): text for name, text in SEGMENTS.items()})
        produce(cluster, 0, 300)
        cluster.wait_for(lambda: latest_tiered(cluster, tier, 1) > 200)
        cluster.kill(1)
        cluster.wait_for(lambda: cluster.partition("orders", 0).leader == 2)
        produce(cluster, 300, 600)
        cluster.wait_for(lambda: latest_tiered(cluster, tier, 2) > 500)
        consumed = cluster.consume("orders")
        cluster.stop(2, 3)
    assert len(consumed) == 600
    disks = [cluster.disk(node) for node in (1, 2, 3)]
    for paths in [*permutations(disks), disks[1:], disks[1:2]]:
        log_dir = LogDir.open(list(paths), remote_storage=tier)
        found = log_dir.read("orders", columns=["partition", "offset", "timestamp", "value"]).to_pydict()
        times_ms = [round(each.timestamp() * 1000) for each in found["timestamp"]]
        assert list(zip(found["partition"], found["offset"], times_ms, found["value"], strict=True)) == consumed
    partition = LogDir.open(disks, remote_storage=tier).partition("orders", 0)
    assert partition.log_start_offset == 0
    assert partition.leader_epoch >= 1  # a slow controller may elect a leader once more
    assert partition.local_log_start_offset > 500
    verification = verify(LogDir.open(disks, remote_storage=tier).root, are_records_checked=True)
    assert verification.is_sound, verification.findings
