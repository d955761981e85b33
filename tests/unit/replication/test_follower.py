"""A root that follows another one: records, topics, groups, losses and restarts, while the leader is written to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from builders.following_roots import check_equal, copy_once, following, has_all
from builders.root_places import RootPlace, forget, memory_root
from patience import wait_until

from pyspark_kafkalog.errors import FollowingRootError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.replication.root_leader import RootLeader
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.names import TopicPartition

ORDERS = TopicPartition("orders", 0)


def rows(first: int, count: int, *, value_bytes: int = 20) -> pa.Table:
    values = [f"value {number}".ljust(value_bytes, ".") for number in range(first, first + count)]
    return pa.table({"key": [f"key {number % 50}" for number in range(first, first + count)], "value": values})


def topic_id_of(log_dir: LogDir) -> str | None:
    return log_dir.topic("orders").topic_id if "orders" in log_dir.topics() else None


@pytest.fixture
def leader_dir(root_place: RootPlace) -> LogDir:
    made = LogDir.create(root_place)
    made.create_topic("orders", 3, {"segment.bytes": "1048576", "retention.ms": "-1"})
    return made


@pytest.fixture(params=["file", pytest.param("object", marks=pytest.mark.full)])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RootPlace]:
    """Where the follower's root is."""
    if request.param == "file":
        yield tmp_path / "copy"
        return
    place = memory_root()
    yield place
    forget(place)


def test_once_copies_all_that_there_is_and_ends(root_place: RootPlace, leader_dir: LogDir, copy: RootPlace) -> None:
    for number in range(10):
        leader_dir.append("orders", rows(500 * number, 500, value_bytes=1000), compression_type="lz4")
    leader_dir.append("payments", rows(0, 10))
    leader_dir.group("readers").commit({("orders", 0): 12, ("orders", 1): 7})
    leader_dir.alter_group_configs("readers", add={"consumer.session.timeout.ms": "50000"})
    events = copy_once(root_place, copy)
    check_equal(root_place, copy)
    assert LogDir.open(copy).group_configs() == {"readers": {"consumer.session.timeout.ms": "50000"}}
    assert {each.topic for each in events if each.kind is EventKind.TOPIC_ADDED} >= {"orders", "payments"}
    offsets = LogDir.open(copy).group("readers").fetch()
    assert {(each.topic, each.partition): found.offset for each, found in offsets.items()} == {
        ("orders", 0): 12,
        ("orders", 1): 7,
    }


@pytest.mark.full
def test_second_run_copies_what_is_new(root_place: RootPlace, leader_dir: LogDir, copy: RootPlace) -> None:
    for number in range(3):
        leader_dir.append("orders", rows(100 * number, 100))
        assert not [each for each in copy_once(root_place, copy) if each.kind is EventKind.DIVERGED]
        check_equal(root_place, copy)


def test_follower_keeps_up_with_records_topics_partitions_and_configurations(
    root_place: RootPlace, leader_dir: LogDir, copy: RootPlace
) -> None:
    with following(RootLeader(open_root(root_place)), copy) as running:
        for number in range(5):
            leader_dir.append("orders", rows(100 * number, 100))
        wait_until(lambda: has_all(leader_dir, copy))
        leader_dir.create_topic("late", 1, {"cleanup.policy": "compact"})
        leader_dir.append("late", rows(0, 10))
        leader_dir.add_partitions("orders", 5)
        leader_dir.append("orders", rows(0, 10), partition=4)
        leader_dir.alter_topic("orders", add={"retention.ms": "12345678"}, delete=["segment.bytes"])
        leader_dir.alter_broker_configs(add={"log.segment.bytes": "2000000"})
        wait_until(lambda: has_all(leader_dir, copy))
        wait_until(lambda: LogDir.open(copy).topic("orders").configs == {"retention.ms": "12345678"})
        wait_until(lambda: LogDir.open(copy).broker_configs() == {"log.segment.bytes": "2000000"})
    check_equal(root_place, copy)
    assert {EventKind.TOPIC_ADDED, EventKind.PARTITIONS_ADDED, EventKind.CONFIGS_CHANGED} <= running.kinds()


@pytest.mark.full
def test_deleted_records_move_the_log_start(root_place: RootPlace, leader_dir: LogDir, copy: RootPlace) -> None:
    for number in range(4):
        leader_dir.append("orders", rows(10 * number, 10), partition=0)
    with following(RootLeader(open_root(root_place)), copy) as running:
        wait_until(lambda: has_all(leader_dir, copy))
        delete_records(leader_dir.root, {ORDERS: 25})
        wait_until(lambda: LogDir.open(copy).partition("orders", 0).log_start_offset == 25)
    check_equal(root_place, copy)
    assert EventKind.GAP not in running.kinds()


def test_records_deleted_before_they_were_copied_are_a_gap(
    root_place: RootPlace, leader_dir: LogDir, copy: RootPlace
) -> None:
    leader_dir.append("orders", rows(0, 10), partition=0)
    copy_once(root_place, copy)
    leader_dir.append("orders", rows(10, 10), partition=0)
    leader_dir.append("orders", rows(20, 10), partition=0)
    delete_records(leader_dir.root, {ORDERS: 22})
    events = copy_once(root_place, copy)
    check_equal(root_place, copy)
    (gap,) = [each for each in events if each.kind is EventKind.GAP]
    assert (gap.topic, gap.partition, gap.first_offset, gap.end_offset) == ("orders", 0, 10, 22)


@pytest.mark.full
def test_log_without_records_whose_leader_has_lost_some_starts_again(tmp_path: Path) -> None:
    root, copy = tmp_path / "leader", tmp_path / "copy"
    leader_dir = LogDir.create(root)
    leader_dir.create_topic("orders", partitions=1)
    leader_dir.append("orders", rows(0, 10), partition=0)
    shutil.copytree(root, tmp_path / "earlier")
    leader_dir.append("orders", rows(10, 10), partition=0)
    delete_records(leader_dir.root, {ORDERS: 20})
    copy_once(root, copy)
    shutil.rmtree(root)
    (tmp_path / "earlier").rename(root)
    events = copy_once(root, copy)
    check_equal(root, copy)
    (diverged,) = [each for each in events if each.kind is EventKind.DIVERGED]
    assert (diverged.first_offset, diverged.end_offset) == (0, 20)


@pytest.mark.full
def test_log_that_begins_inside_a_batch_is_copied_from_that_batch_on(
    root_place: RootPlace, leader_dir: LogDir, copy: RootPlace
) -> None:
    leader_dir.append("orders", rows(0, 10), partition=0)
    delete_records(leader_dir.root, {ORDERS: 5})
    events = copy_once(root_place, copy)
    check_equal(root_place, copy)
    assert EventKind.GAP not in {each.kind for each in events}


@pytest.mark.full
def test_topic_created_again_stops_its_partitions(root_place: RootPlace, leader_dir: LogDir, copy: RootPlace) -> None:
    leader_dir.append("orders", rows(0, 10), partition=0)
    leader_dir.append("others", rows(0, 10))
    with following(RootLeader(open_root(root_place)), copy) as running:
        wait_until(lambda: has_all(leader_dir, copy))
        before = LogDir.open(copy).topic("orders").topic_id
        leader_dir.delete_topic("orders")
        wait_until(lambda: EventKind.TOPIC_DELETED in running.kinds())
        leader_dir.create_topic("orders", 1)
        leader_dir.append("orders", rows(100, 5), partition=0)
        wait_until(lambda: EventKind.TOPIC_RECREATED in running.kinds())
        leader_dir.append("others", rows(10, 10))
        wait_until(lambda: LogDir.open(copy).partition("others", 0).high_watermark == 20)
    mine = LogDir.open(copy)
    assert mine.topic("orders").topic_id == before
    assert mine.partition("orders", 0).high_watermark == 10
    assert EventKind.CUT not in running.kinds()


def test_topic_created_again_is_replaced_if_cuts_are_allowed(
    root_place: RootPlace, leader_dir: LogDir, copy: RootPlace
) -> None:
    leader_dir.append("orders", rows(0, 10), partition=0)
    with following(RootLeader(open_root(root_place)), copy, may_cut=True) as running:
        wait_until(lambda: has_all(leader_dir, copy))
        leader_dir.delete_topic("orders")
        leader_dir.create_topic("orders", 2)
        leader_dir.append("orders", rows(100, 5), partition=0)
        wait_until(lambda: EventKind.TOPIC_REPLACED in running.kinds())
        wait_until(lambda: topic_id_of(LogDir.open(copy)) == topic_id_of(leader_dir))
        wait_until(lambda: has_all(leader_dir, copy))
    check_equal(root_place, copy)
    (cut,) = running.of_kind(EventKind.CUT)
    assert (cut.topic, cut.partition, cut.first_offset, cut.end_offset) == ("orders", 0, 0, 10)


@pytest.mark.full
def test_other_cluster_at_the_same_root_is_refused(root_place: RootPlace, leader_dir: LogDir, tmp_path: Path) -> None:
    leader_dir.append("orders", rows(0, 10))
    copy_once(root_place, tmp_path / "copy")
    other = LogDir.create(tmp_path / "other")
    other.append("orders", rows(0, 10))
    with pytest.raises(FollowingRootError, match="promote"):
        copy_once(tmp_path / "other", tmp_path / "copy")


@pytest.mark.full
def test_same_offsets_with_other_records_are_found_by_the_last_batch(tmp_path: Path, copy: RootPlace) -> None:
    leader_dir = LogDir.create(tmp_path / "leader")
    leader_dir.create_topic("orders", 1)
    leader_dir.append("orders", rows(0, 10), partition=0)
    shutil.copytree(tmp_path / "leader", tmp_path / "restored")
    leader_dir.append("orders", rows(10, 10), partition=0)
    copy_once(tmp_path / "leader", copy)
    shutil.rmtree(tmp_path / "leader")
    (tmp_path / "restored").rename(tmp_path / "leader")
    restored = LogDir.open(tmp_path / "leader")
    restored.append("orders", rows(500, 10), partition=0)
    stopped = copy_once(tmp_path / "leader", copy)
    assert {EventKind.DIVERGED, EventKind.PARTITION_STOPPED} <= {each.kind for each in stopped}
    assert LogDir.open(copy).read("orders")["value"].to_pylist()[10] == b"value 10".ljust(20, b".")
    cut = copy_once(tmp_path / "leader", copy, may_cut=True)
    check_equal(tmp_path / "leader", copy)
    assert [(each.first_offset, each.end_offset) for each in cut if each.kind is EventKind.CUT] == [(10, 20)]
