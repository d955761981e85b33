"""The disks of a real cluster of three brokers, one of them killed before it caught up, read as one root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka_processes.cluster import Cluster

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.findings import Severity
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.storage.names import TopicPartition

Row = tuple[int, int, int, bytes]


#: Starts several brokers: the full tier alone.
pytestmark = pytest.mark.full


@dataclass(frozen=True)
class Disks:
    """The nodes' disks, what consumers got of each topic, and what was read of it while brokers ran."""

    paths: list[Path]
    consumed: dict[str, list[Row]]
    live: dict[str, list[Row]]


def values(name: str, count: int) -> list[str]:
    return [f"{name}-{number:04d}" for number in range(count)]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    """Node 2 is killed first. Node 1, which alone has the last records of topic elected then, is killed too, and node 2
    comes back as its unclean leader."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        small = {"internal_segment_bytes": "4096"}
        cluster.create_topic("orders", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], **small)
        cluster.create_topic("compacted", [[1, 2, 3]], cleanup_policy="compact", **small)
        cluster.create_topic("elected", [[1, 2]], unclean_leader_election_enable="true")
        for partition in range(3):
            cluster.produce("orders", partition, values("all", 200))
        cluster.produce("elected", 0, values("both", 50))
        log_dir = LogDir.open([cluster.disk(node) for node in (1, 2, 3)])
        cluster.kill(2)
        cluster.wait_for(lambda: 2 not in cluster.partition("elected", 0).isrs)
        cluster.produce("elected", 0, values("lost", 30))
        cluster.produce("orders", 0, values("two", 100))
        cluster.commit("billing", "orders", 0, 250)
        cluster.wait_for(lambda: _checkpointed(cluster.disk(1), "elected", 0) == 80)
        cluster.kill(1)
        cluster.start(2)
        cluster.wait_for(lambda: cluster.partition("elected", 0).leader == 2)
        cluster.produce("elected", 0, values("won", 70))
        for partition in range(3):
            cluster.wait_for(lambda: cluster.partition("orders", partition).leader in (2, 3))  # noqa: B023
            cluster.produce("orders", partition, values("later", 150))
        cluster.wait_for(lambda: all(len(cluster.partition("orders", each).isrs) == 2 for each in range(3)))
        consumed = {topic: cluster.consume(topic) for topic in ("orders", "elected")}
        cluster.wait_for(lambda: _refreshed_end(log_dir) == len(consumed["orders"]))
        live = {topic: rows(log_dir, topic) for topic in consumed}
        cluster.stop(2, 3)
        yield Disks([cluster.disk(node) for node in (1, 2, 3)], consumed, live)


def _refreshed_end(log_dir: LogDir) -> int:
    """The number of readable offsets of topic orders now."""
    log_dir.refresh()
    return sum(each.high_watermark for each in log_dir.topic("orders").partitions)


def _checkpointed(root: Path, topic: str, partition: int) -> int | None:
    """A high watermark in a broker's checkpoint."""
    path = root / "replication-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    offsets = {(name, int(number)): int(offset) for name, number, offset in (line.split() for line in lines)}
    return offsets.get((topic, partition))


def rows(log_dir: LogDir, topic: str) -> list[Row]:
    found = log_dir.read(topic, columns=["partition", "offset", "timestamp", "value"]).to_pydict()
    times_ms = [round(each.timestamp() * 1000) for each in found["timestamp"]]
    return sorted(zip(found["partition"], found["offset"], times_ms, found["value"], strict=True))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_rows_are_those_of_a_consumer(disks: Disks, order: tuple[int, ...]) -> None:
    log_dir = LogDir.open([disks.paths[each] for each in order])
    for topic, consumed in disks.consumed.items():
        assert rows(log_dir, topic) == consumed
    assert len(disks.consumed["orders"]) == 3 * 350 + 100
    assert len(disks.consumed["elected"]) == 120
    (committed,) = log_dir.group("billing").fetch().values()
    assert committed.offset == 250


def test_rows_are_the_same_while_brokers_run_once_their_checkpoints_are_written(disks: Disks) -> None:
    assert disks.live == disks.consumed


def test_dead_node_is_behind_and_differs_where_the_election_was_unclean(disks: Disks) -> None:
    log_dir = LogDir.open(disks.paths)
    for found in log_dir.topic("orders").partitions:
        ends = {each.node_id: each.log_end_offset for each in found.replicas}
        assert ends[1] < ends[2] == ends[3] == found.high_watermark
        assert [each.difference for each in found.replicas] == [None, None, None]
    (elected,) = log_dir.topic("elected").partitions
    best, other = elected.replicas
    assert (best.node_id, other.node_id) == (2, 1)
    assert other.difference is not None
    assert (other.difference.offset, other.difference.end_offset) == (50, 80)


def test_verification_finds_the_unclean_election_and_nothing_else(disks: Disks) -> None:
    found = [each for each in verify(LogDir.open(disks.paths).root).findings if each.severity is not Severity.INFO]
    assert [(each.what, each.partition, each.offset) for each in found] == [
        ("replica-differs", TopicPartition("elected", 0), 50)
    ]


def test_each_disk_alone_lacks_rows(disks: Disks) -> None:
    alone = [len(rows(LogDir.open(path), "orders")) for path in disks.paths]
    assert alone[0] < alone[1] == alone[2] == len(disks.consumed["orders"])
