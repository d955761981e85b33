"""`kafkalog follow` beside a cluster of three brokers of which each dies once: the same bytes in the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from java_processes import start_server
from kafka_cluster import Cluster
from leader_reads import log_bytes

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.storage.names import TopicPartition

#: Starts brokers: the full tier alone.
pytestmark = pytest.mark.full

NODES: Final = (1, 2, 3)
METADATA: Final = TopicPartition("__cluster_metadata", 0)


def values(first: int, end: int) -> list[str]:
    return [f"{number:08d}" * 30 for number in range(first, end)]


def high_watermarks(root: Path, partitions: Sequence[TopicPartition]) -> list[int]:
    try:
        log_dir = LogDir.open(root)
        return [log_dir.partition(each.topic, each.partition).high_watermark for each in partitions]
    except (KafkalogError, OSError):
        return []


def test_cluster_is_followed_while_each_of_its_brokers_dies_once(tmp_path: Path) -> None:
    root, metadata, report = tmp_path / "root", tmp_path / "metadata", tmp_path / "report.json"
    orders = [TopicPartition("orders", each) for each in range(3)]
    late = TopicPartition("orders-late", 0)
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.create_topic("orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="1")
        controllers = ",".join(f"127.0.0.1:{node.controller_port}" for node in cluster.nodes.values())
        command = [sys.executable, "-m", "pyspark_kafkalog.tools.main", "follow", "--from", cluster.bootstrap]
        command += ["--path", str(root), "--topics", "orders.*", "--report", str(report)]
        command += ["--controllers", controllers, "--metadata-path", str(metadata)]
        with (tmp_path / "follow.log").open("wb") as log:
            follower = start_server(command, log)
        try:
            for dead in NODES:
                for each in orders:
                    cluster.produce("orders", each.partition, values(dead * 200, dead * 200 + 100))
                cluster.kill(dead)
                cluster.wait_for(lambda dead=dead: all(cluster.partition(*_of(each)).leader != dead for each in orders))
                for each in orders:
                    cluster.produce("orders", each.partition, values(dead * 200 + 100, dead * 200 + 200))
                cluster.start(dead)
                cluster.wait_for(lambda: all(len(cluster.partition(*_of(each)).isrs) == 3 for each in orders))
            cluster.create_topic(late.topic, [[2, 1]])
            cluster.produce(late.topic, 0, values(0, 50))
            deadline = time.monotonic() + 60
            while high_watermarks(root, [*orders, late]) != [600, 600, 600, 50]:
                assert follower.poll() is None, (tmp_path / "follow.log").read_text()
                assert time.monotonic() < deadline, high_watermarks(root, [*orders, late])
                time.sleep(0.2)
            follower.terminate()
            assert follower.wait(60) == 0
        finally:
            follower.kill()
            follower.wait()
        for each in orders:
            assert {log_bytes([cluster.disk(node)], each) for node in NODES} == {log_bytes([root], each)}
        copied = log_bytes([metadata], METADATA)
        assert late.topic.encode() in copied
        assert any(log_bytes([cluster.disk(node)], METADATA).startswith(copied) for node in NODES)
    events = {each["event"] for each in json.loads(report.read_text())["events"]}
    assert {"leader-changed", "leader-unavailable", "topic-added"} <= events


def _of(partition: TopicPartition) -> tuple[str, int]:
    return partition.topic, partition.partition
