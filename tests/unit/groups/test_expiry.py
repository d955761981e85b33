"""Offsets of groups expire by the rule of Kafka's group coordinator, as a step of retention."""

from __future__ import annotations

import struct

import pytest
from builders.controlled import create_log_dir
from builders.root_places import RootPlace
from fakes.clock import Clock

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import UnknownGroupError
from pyspark_kafkalog.groups.group import expire_offsets
from pyspark_kafkalog.groups.offset_records import (
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    group_key,
    group_partition,
    offset_key,
    offset_value,
)
from pyspark_kafkalog.groups.offsets_topic import Expired, GroupLog, find_expired
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataKey, GroupMetadataValue
from pyspark_kafkalog.storage.names import TopicPartition

NOW_MS = 1_700_000_000_000
WEEK_MS = 7 * 86_400_000
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def log_dir(root_place: RootPlace, clock: Clock) -> LogDir:
    """Groups "idle", which committed a week and a ms ago, and "live", which has committed P1 again since."""
    log_dir = create_log_dir(root_place, clock=clock)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "3"})
    log_dir.create_topic("orders", partitions=2)
    log_dir.group("idle").commit({P0: 0, P1: 0})
    log_dir.group("live").commit({P0: 0, P1: 0})
    clock.now_ms += WEEK_MS + 1
    log_dir.group("live").commit({P1: 0})
    return log_dir


def expired_in(reports: list[PartitionReport]) -> dict[int, int | None]:
    return {each.partition: each.offsets_expired for each in reports if each.topic == OFFSETS_TOPIC}


def test_retention_deletes_expired_offsets_and_groups_without_offsets(log_dir: LogDir) -> None:
    reports = apply_retention(log_dir.root)
    idle, live = group_partition("idle", 3), group_partition("live", 3)
    expected = dict.fromkeys(range(3), 0)
    expected[idle] += 2
    expected[live] += 1
    assert expired_in(reports) == expected
    assert {each.offsets_expired for each in reports if each.topic == "orders"} == {None}
    assert all(each.error is None for each in reports)
    log_dir.refresh()
    assert log_dir.groups() == ("live",)
    assert list(log_dir.group("live").fetch()) == [P1]
    assert sum(filter(None, expired_in(apply_retention(log_dir.root)).values())) == 0


def test_groups_of_one_partition_expire_in_one_commit(log_dir: LogDir, clock: Clock) -> None:
    names = [f"group-{number}" for number in range(20)]
    for name in names:
        log_dir.group(name).commit({P0: 0}, flush="os")
    clock.now_ms += WEEK_MS + 1
    log_dir.refresh()
    version = log_dir.version
    assert expire_offsets(log_dir.root).keys() == {"idle", "live", *names}
    log_dir.refresh()
    assert len([each for each in log_dir.history() if each.offset >= version]) == 3
    assert log_dir.groups() == ()


def test_dry_run_counts_expired_offsets_and_deletes_none(log_dir: LogDir) -> None:
    version = log_dir.version
    assert sum(filter(None, expired_in(apply_retention(log_dir.root, dry_run=True)).values())) == 3
    log_dir.refresh()
    assert log_dir.version == version
    assert log_dir.groups() == ("idle", "live")


def test_retention_of_other_topics_expires_no_offsets(log_dir: LogDir) -> None:
    apply_retention(log_dir.root, topics=["orders"])
    log_dir.refresh()
    assert log_dir.groups() == ("idle", "live")


def test_time_of_the_run_decides_what_expires(log_dir: LogDir, clock: Clock) -> None:
    assert sum(filter(None, expired_in(apply_retention(log_dir.root, now_ms=NOW_MS)).values())) == 0
    assert sum(filter(None, expired_in(apply_retention(log_dir.root, now_ms=clock.now_ms + WEEK_MS + 1)).values())) == 4
    log_dir.refresh()
    assert log_dir.groups() == ()


def test_expiring_offsets_of_unknown_group_is_refused(log_dir: LogDir) -> None:
    with pytest.raises(UnknownGroupError):
        log_dir.group("other").expire_offsets(NOW_MS)


def committed(*, at_ms: int, expires_ms: int = -1) -> dict[bytes, bytes]:
    value = offset_value(OffsetAndMetadata(offset=1, commit_timestamp_ms=at_ms))
    if expires_ms >= 0:  # version 1, of brokers before 2.1
        value = struct.pack(">hqhqq", 1, 1, 0, at_ms, expires_ms)
    return {offset_key("g", P0): value}


def classic_group(*, state_ms: int, members: list[object] | None = None) -> dict[bytes, bytes]:
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, current_state_timestamp=state_ms, members=tuple(members or ())
    )
    return {group_key(GroupMetadataKey(group="g")): struct.pack(">h", 3) + value.encode(3)}


def expired_of(records: dict[bytes, bytes]) -> Expired:
    """What expires at 1000 ms of group g, if what is older than 100 ms does and all topics exist."""
    log = GroupLog(0)
    log.advance(0, len(records), records)
    return find_expired(log, log.group("g"), lambda *committed: True, older_than_ms=100, now_ms=1000)


@pytest.mark.parametrize(
    ("records", "expires"),
    [
        (committed(at_ms=99), True),
        (committed(at_ms=100), False),
        (committed(at_ms=99) | classic_group(state_ms=99), True),
        (committed(at_ms=99) | classic_group(state_ms=100), False),
        (committed(at_ms=500, expires_ms=1000), True),
        (committed(at_ms=0, expires_ms=1001), False),
    ],
)
def test_age_counts_from_commit_or_from_loss_of_last_member(records: dict[bytes, bytes], expires: bool) -> None:
    found = expired_of(records)
    assert found == (Expired(tuple(records), (P0,)) if expires else Expired())


def test_classic_group_without_offsets_is_deleted() -> None:
    records = classic_group(state_ms=500)
    assert expired_of(records) == Expired(tuple(records), ())


def test_share_group_never_expires() -> None:
    records = {struct.pack(">hh", 11, 1) + b"g": struct.pack(">h", 0) + bytes(5)}
    assert expired_of(records) == Expired()
