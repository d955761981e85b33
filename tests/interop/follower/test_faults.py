"""A root that follows a cluster of three real brokers under load, while brokers, network and follower fail."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from builders.leader_reads import log_bytes
from fakes.full_disks import FILLER, fill_blocks, mounted
from kafka_processes.clients import consume, delete_before, producing
from kafka_processes.cluster_load import GROUP, LATEST, PAYMENTS, PLAIN, TOPICS, ClusterLoad, create_topics
from kafka_processes.follow_process import FollowProcess
from kafka_processes.oracle import Broker
from kafka_processes.relayed_cluster import RelayedCluster
from kafka_processes.replica_checks import (
    Row,
    check_replica,
    check_rows_are_a_beginning,
    check_same_group,
    check_same_log,
    check_same_rows,
    ends_of,
    wait_until_caught_up,
)
from kafka_processes.server_processes import serving
from patience import wait_until
from pyspark.sql import SparkSession
from tiers import SEED

from pyspark_kafkalog.errors import LogDirError, UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main
from tests.interop.samples import assert_dumps_clean

#: Starts brokers: the full tier alone.
pytestmark = pytest.mark.full

INTERNAL = ("__consumer_offsets", "__transaction_state")
#: Partitions of the load that node 1 leads as long as it runs.
LED_BY_1 = tuple(TopicPartition(topic, 0) for topic in TOPICS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedCluster]:
    settings = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
    with RelayedCluster(tmp_path_factory.mktemp("cluster"), settings) as cluster:
        yield cluster


def values(name: str, first: int, end: int) -> list[str]:
    return [f"{name} {number:06d} " * 10 for number in range(first, end)]


def cut_files(copy: Path, name: TopicPartition) -> list[Path]:
    """What was cut of a partition, in the order of the cuts."""
    return sorted(copy.glob(f"diverged-{name.topic}-{name.partition}-*.log"), key=lambda path: path.stat().st_mtime_ns)


def end_of(copy: Path, name: TopicPartition) -> int:
    """The log end in the copy, -1 while the copy has no such partition."""
    try:
        return LogDir.open(copy).partition(name.topic, name.partition).log_end_offset
    except (LogDirError, UnknownTopicError):
        return -1


def test_copy_of_a_cluster_under_load_survives_the_death_of_a_leader(cluster: RelayedCluster, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    create_topics(cluster, min_insync_replicas="2")
    with FollowProcess(cluster.relayed, copy, tmp_path) as follow:
        with ClusterLoad(lambda: cluster.bootstrap, random.Random(SEED), tmp_path / "java.log") as load:
            load.wait_for_more()
            wait_until(lambda: all(end_of(copy, each) > 0 for each in LED_BY_1), "records of the first leader")
            cluster.kill(1)
            for each in LED_BY_1:
                cluster.wait_for(lambda: cluster.partition(each.topic, each.partition).leader in (2, 3))  # noqa: B023
            load.wait_for_more()
            cluster.start(1)
            load.wait_for_more()
        print(load.done)
        wait_until_caught_up(copy, cluster.bootstrap, (*TOPICS, *INTERNAL), follow.check_running)
        assert follow.stop() == 0
    compared = check_replica(copy, cluster, (*TOPICS, *INTERNAL), compacted={LATEST}, steady_nodes=(2, 3))
    assert compared > 100
    assert_dumps_clean(
        [copy / f"{topic}-{number}" for topic in (PLAIN, PAYMENTS) for number in range(TOPICS[topic])], batches_min=100
    )
    check_same_group(copy, cluster.bootstrap, GROUP, ends_of(cluster.bootstrap, [PLAIN, PAYMENTS]))
    for isolation in ("read_committed", "read_uncommitted"):
        assert check_same_rows(copy, cluster.bootstrap, PAYMENTS, isolation) > 10
    assert follow.events("leader-changed")
    assert not [each for each in ("gap", "cut", "diverged", "partition-stopped") if follow.events(each)]


def rows_of_log_dir(copy: Path, topics: Sequence[str]) -> list[Row]:
    log_dir, rows = LogDir.open(copy), list[Row]()
    for topic in topics:
        table = log_dir.read(topic, isolation="read_uncommitted")
        columns = [table[name].to_pylist() for name in ("partition", "offset", "key", "value")]
        rows += [(topic, *row) for row in zip(*columns, strict=True)]
    return rows


def rows_of_spark(spark: SparkSession, copy: Path, topics: Sequence[str]) -> list[Row]:
    reader = spark.read.format("kafkalog").option("subscribe", ",".join(topics))
    frame = reader.option("isolationLevel", "read_uncommitted").load(str(copy))
    found = frame.select("topic", "partition", "offset", "key", "value").collect()
    return [
        (topic, partition, offset, *(None if each is None else bytes(each) for each in (key, value)))
        for topic, partition, offset, key, value in found
    ]


@pytest.mark.spark
def test_copy_is_read_while_it_follows_and_mounted_by_a_broker(
    spark: SparkSession, cluster: RelayedCluster, start_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    copy, topics = tmp_path / "copy", ("read-a", "read-b")
    for topic in topics:
        cluster.create_topic(topic, [[1, 2, 3], [2, 3, 1]], segment_bytes="1048576")
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(2)]
    seen: list[list[Row]] = []
    with FollowProcess(cluster.relayed, copy, tmp_path, "--topics", "read-.*") as follow:
        for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd", "none")):
            rng = random.Random(number)
            with producing(
                cluster.bootstrap, **{"compression.type": codec, "linger.ms": 20, "batch.size": 20_000}
            ) as producer:
                for _ in range(1200):
                    topic, key, value = rng.choice(topics), rng.randbytes(3), rng.randbytes(rng.choice((10, 2000)))
                    producer.produce(topic, value, key=key, partition=rng.randrange(2), headers={"h": key})
                wait_until(lambda: all(end_of(copy, each) > 0 for each in partitions))
                if number:
                    seen += [rows_of_log_dir(copy, topics), rows_of_spark(spark, copy, topics)]
        wait_until_caught_up(copy, cluster.bootstrap, topics, follow.check_running)
        assert follow.stop() == 0
    counts = [check_rows_are_a_beginning(rows, cluster.bootstrap, topics) for rows in seen]
    assert counts == sorted(counts)
    assert counts[-1] > 3000
    assert check_rows_are_a_beginning(rows_of_spark(spark, copy, topics), cluster.bootstrap, topics) == 6000
    assert check_replica(copy, cluster, topics) >= 20
    assert_dumps_clean([copy / str(each) for each in partitions], batches_min=20)
    broker = start_broker()
    broker.mount(copy, dict.fromkeys(topics, 2), {"segment.bytes": "1048576"})
    for topic in topics:
        assert consume(broker.bootstrap, topic) == consume(cluster.bootstrap, topic)


def test_records_deleted_before_they_are_copied_are_a_gap(cluster: RelayedCluster, tmp_path: Path) -> None:
    short, copy = TopicPartition("short", 0), tmp_path / "copy"
    cluster.create_topic("short", [[1, 2, 3]])
    cluster.produce("short", 0, values("first", 0, 100))
    with FollowProcess(cluster.relayed, copy, tmp_path, "--topics", "short") as follow:
        wait_until(lambda: end_of(copy, short) == 100)
        delete_before(cluster.bootstrap, "short", 0, 40)
        wait_until(lambda: LogDir.open(copy).partition("short", 0).log_start_offset == 40)
        follow.kill()
        cluster.produce("short", 0, values("gone", 100, 300))
        delete_before(cluster.bootstrap, "short", 0, 255)  # inside of a batch
        follow.start()
        wait_until_caught_up(copy, cluster.bootstrap, ["short"], follow.check_running)
        assert follow.stop() == 0
    (gap,) = follow.events("gap")
    assert (gap["first_offset"], gap["end_offset"]) == (100, 255)
    assert LogDir.open(copy).partition("short", 0).log_start_offset == 255
    assert check_same_log(copy, cluster.disk(1), short) == 5
    assert check_same_rows(copy, cluster.bootstrap, "short", "read_uncommitted") == 45


def test_topic_created_again_is_reported_and_replaced_if_permitted(cluster: RelayedCluster, tmp_path: Path) -> None:
    again, copy = TopicPartition("again", 0), tmp_path / "copy"
    cluster.create_topic("again", [[1, 2, 3]])
    cluster.produce("again", 0, values("first", 0, 100))
    with FollowProcess(cluster.relayed, copy, tmp_path, "--topics", "again") as follow:
        wait_until(lambda: end_of(copy, again) == 100)
        before = log_bytes([copy], again)
        cluster.delete_topic("again")
        cluster.create_topic("again", [[2, 3, 1], [3, 1, 2]])
        cluster.produce("again", 0, values("second", 0, 30))
        wait_until(lambda: "topic-recreated again" in follow.log.read_text())
        assert end_of(copy, again) == 100
        assert follow.stop() == 1
        follow.options = (*follow.options, "--on-divergence", "truncate")
        follow.start()
        wait_until(lambda: end_of(copy, again) == 30)
        wait_until_caught_up(copy, cluster.bootstrap, ["again"], follow.check_running)
        assert follow.stop() == 0
    assert [each["topic"] for each in follow.events("topic-replaced")] == ["again"]
    (cut,) = follow.events("cut")
    assert (cut["first_offset"], cut["end_offset"]) == (0, 100)
    assert check_same_log(copy, cluster.disk(2), again) == 3
    (file,) = cut_files(copy, again)
    assert file.read_bytes() == before


def test_full_disk_is_waited_for(cluster: RelayedCluster, tmp_path: Path) -> None:
    big = TopicPartition("big", 0)
    cluster.create_topic("big", [[1, 2, 3]])
    cluster.produce("big", 0, values("first", 0, 100))
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(mounted("tmpfs", tmp_path / "disk"))
        except PermissionError as error:
            pytest.skip(str(error))
        copy = place / "copy"
        follow = stack.enter_context(FollowProcess(cluster.relayed, copy, tmp_path, "--topics", "big"))
        wait_until(lambda: end_of(copy, big) == 100)
        fill_blocks(place)
        cluster.produce("big", 0, values("more", 100, 600))
        wait_until(lambda: "commit-error" in follow.log.read_text())
        follow.kill()
        reported = follow.log.read_text().count("commit-error")
        follow.start()
        wait_until(lambda: follow.log.read_text().count("commit-error") > reported)
        follow.check_running()
        (place / FILLER).unlink()
        wait_until_caught_up(copy, cluster.bootstrap, ["big"], follow.check_running)
        assert follow.stop() == 0
        assert check_same_log(copy, cluster.disk(1), big) == 60
        assert verify(LogDir.open(copy).root).is_sound


def test_leader_that_stands_still_is_left_for_the_next_one(cluster: RelayedCluster, tmp_path: Path) -> None:
    still, copy = TopicPartition("still", 0), tmp_path / "copy"
    cluster.create_topic("still", [[1, 2, 3]], min_insync_replicas="2")
    cluster.produce("still", 0, values("first", 0, 100))
    with FollowProcess(cluster.relayed, copy, tmp_path, "--topics", "still") as follow:
        wait_until(lambda: end_of(copy, still) == 100)
        os.kill(cluster.nodes[1].pid, signal.SIGSTOP)
        try:
            cluster.wait_for(lambda: cluster.partition("still", 0).leader in (2, 3))
            others = ",".join(cluster.nodes[node].bootstrap for node in (2, 3))
            with producing(others) as producer:
                for value in values("more", 100, 200):
                    producer.produce("still", value, partition=0)
            wait_until(lambda: end_of(copy, still) == 200)
        finally:
            os.kill(cluster.nodes[1].pid, signal.SIGCONT)
        cluster.wait_for(lambda: len(cluster.partition("still", 0).isrs) == 3)
        cluster.produce("still", 0, values("last", 200, 250))
        wait_until_caught_up(copy, cluster.bootstrap, ["still"], follow.check_running)
        assert follow.stop() == 0
    check_same_log(copy, cluster.disk(2), still)
    assert not [each for each in ("gap", "cut", "diverged", "partition-stopped") if follow.events(each)]


def test_promoted_copy_takes_writes_and_another_copy_joins_it(cluster: RelayedCluster, tmp_path: Path) -> None:
    """Writers on three sides after the promotion: at the cluster, at the promoted copy, and at a second one."""
    name = TopicPartition("moved", 0)
    first, second = tmp_path / "first", tmp_path / "second"
    cluster.create_topic("moved", [[1, 2, 3]])
    cluster.produce("moved", 0, values("cluster", 0, 100))
    topics = ("--topics", "moved")
    with (
        FollowProcess(cluster.relayed, first, tmp_path / "f", *topics) as one,
        FollowProcess(cluster.relayed, second, tmp_path / "s", *topics) as two,
    ):
        wait_until(lambda: end_of(first, name) == end_of(second, name) == 100)
        assert main(["promote", "--path", str(first)]) == 0
        cluster.produce("moved", 0, values("cluster", 100, 150))
        wait_until(lambda: end_of(second, name) == 150)
        assert one.wait() != 0
        assert "promoted" in one.said()
        assert two.stop() == 0
    agreed = log_bytes([first], name)
    with serving(first) as server, producing(server.bootstrap) as producer:
        for value in values("promoted", 100, 200):
            producer.produce("moved", value, partition=0)
    assert main(["promote", "--path", str(second)]) == 0
    with serving(second) as server, producing(server.bootstrap) as producer:
        for value in values("second", 150, 170):
            producer.produce("moved", value, partition=0)
    before = log_bytes([second], name)
    assert before.startswith(agreed)
    joined = FollowProcess(
        str(first), second, tmp_path / "j", *topics, "--demote", "--on-divergence", "truncate", "--once"
    )
    joined.start()
    assert joined.wait() == 0, joined.said()
    assert log_bytes([second], name) == log_bytes([first], name)
    assert log_bytes([first], name).startswith(agreed)
    assert end_of(second, name) == 200
    cut = b"".join(path.read_bytes() for path in reversed(cut_files(second, name)))
    assert agreed + cut == before
    offsets = sorted((each["first_offset"], each["end_offset"]) for each in joined.events("cut"))
    assert offsets[0][0] == 100
    assert offsets[-1][1] == 170
    assert verify(LogDir.open(second).root).is_sound
