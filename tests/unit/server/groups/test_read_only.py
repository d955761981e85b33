"""Groups at a server that only reads its log directory: they begin as in the log, and go on in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.cleaned_groups import delete_and_clean
from fakes.group_servers import GROUP, GroupServer

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata, group_key, offset_key, offset_value
from pyspark_kafkalog.metadata.messages.internal_records import ConsumerGroupMemberMetadataKey, GroupMetadataKey
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import groups
from pyspark_kafkalog.server.groups.local_shard import OwnGroups
from pyspark_kafkalog.storage.names import TopicPartition

A0 = TopicPartition("a", 0)


@pytest.fixture
def server(path: Path) -> Iterator[GroupServer]:
    made = GroupServer(path, read_only=True)
    yield made
    made.close()


def logged(path: Path) -> dict[int, int]:
    return {each.partition: found.offset for each, found in LogDir.open(path).group(GROUP).fetch().items()}


async def listed(server: GroupServer) -> dict[str, str]:
    response = await server.ask(ApiKey.LIST_GROUPS, 5, groups.ListGroupsRequest())
    return {each.group_id: each.group_state for each in response.groups}


async def test_group_follows_the_log_until_it_is_committed_to_here(server: GroupServer, path: Path) -> None:
    LogDir.open(path).group(GROUP).commit({A0: 3})
    assert await server.fetch() == (3, ErrorCode.NONE)
    LogDir.open(path).group(GROUP).commit({A0: 4})
    await server.pass_time(1000)
    assert await server.fetch() == (4, ErrorCode.NONE)
    assert await server.commit(7, partition=1) is ErrorCode.NONE
    LogDir.open(path).group(GROUP).commit({A0: 5})
    await server.pass_time(1000)
    assert await server.fetch() == (4, ErrorCode.NONE)
    assert await server.fetch(partition=1) == (7, ErrorCode.NONE)
    assert logged(path) == {0: 5}


async def test_group_is_gone_if_its_tombstones_were_cleaned_before_they_were_read(
    server: GroupServer, path: Path
) -> None:
    log_dir = LogDir.open(path)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    log_dir.group(GROUP).commit({A0: 3})
    assert await server.fetch() == (3, ErrorCode.NONE)
    delete_and_clean(log_dir, GROUP, A0)
    await server.pass_time(1000)
    assert await server.fetch() == (-1, ErrorCode.NONE)


async def test_group_is_rebalanced_and_commits_without_a_topic_of_offsets(server: GroupServer, path: Path) -> None:
    assert await server.fetch() == (-1, ErrorCode.NONE)
    assert await listed(server) == {}
    member = await server.become_member()
    assert await server.commit(2, member=member, generation=1) is ErrorCode.NONE
    assert await server.heartbeat(member, 1) is ErrorCode.NONE
    assert await listed(server) == {GROUP: "Stable"}
    await server.pass_time(11_000)
    assert await listed(server) == {GROUP: "Empty"}
    assert await server.fetch() == (2, ErrorCode.NONE)
    assert LogDir.open(path).topics() == ("a",)


async def test_member_of_the_consumer_protocol_has_partitions_and_commits(server: GroupServer, path: Path) -> None:
    LogDir.open(path).group(GROUP).commit({A0: 3})
    joined = await server.beat("m", 0)
    assert joined.error_code == ErrorCode.NONE
    assert [each.partitions for each in joined.assignment.topic_partitions] == [(0, 1)]
    assert await server.fetch() == (3, ErrorCode.NONE)
    assert await server.commit(9, member="m", generation=joined.member_epoch) is ErrorCode.NONE
    assert await server.fetch() == (9, ErrorCode.NONE)
    await server.pass_time(50_000)
    assert (await server.beat("m", joined.member_epoch)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert logged(path) == {0: 3}


async def test_members_in_the_log_are_shown_but_do_not_hold_up_a_group_that_is_taken_over(
    server: GroupServer, path: Path
) -> None:
    other = GroupServer(path)
    held = await other.become_member()
    assert await other.commit(6, member=held, generation=1) is ErrorCode.NONE
    await server.pass_time(1000)
    assert await listed(server) == {GROUP: "Stable"}
    await server.pass_time(60_000)  # nobody's session ends here
    assert await listed(server) == {GROUP: "Stable"}
    member = await server.become_member()
    assert member != held
    assert await server.heartbeat(held, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await server.fetch() == (6, ErrorCode.NONE)
    assert await other.heartbeat(held, 1) is ErrorCode.NONE
    other.close()


async def test_memory_outlives_a_stop_of_the_process(server: GroupServer) -> None:
    member = await server.become_member()
    await server.commit(2, member=member, generation=1)
    server.parts.served.now_ms += 60_000
    server.coordinator.run_due()
    assert not server.coordinator._shards
    assert await server.heartbeat(member, 1) is ErrorCode.NONE
    assert await server.fetch() == (2, ErrorCode.NONE)


async def test_deleted_group_is_gone_here_and_stays_in_the_log(server: GroupServer, path: Path) -> None:
    LogDir.open(path).group(GROUP).commit({A0: 3})
    assert await server.delete() is ErrorCode.NONE
    assert await listed(server) == {}
    assert await server.fetch() == (-1, ErrorCode.NONE)
    assert await server.commit(1) is ErrorCode.NONE
    assert await server.fetch() == (1, ErrorCode.NONE)
    assert logged(path) == {0: 3}


async def test_offsets_in_memory_expire_and_those_of_the_log_live_on_from_when_they_were_taken_over(
    server: GroupServer, path: Path
) -> None:
    LogDir.open(path).alter_broker_configs(
        add={"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    )
    writing = GroupServer(path)
    assert await writing.commit(3) is ErrorCode.NONE
    writing.close()
    await server.pass_time(90_000)
    assert await server.fetch() == (3, ErrorCode.NONE)  # nobody has taken it over
    assert await server.commit(7, partition=1) is ErrorCode.NONE
    await server.pass_time(50_000)
    assert await server.fetch() == (3, ErrorCode.NONE)
    assert await server.commit(8, partition=1) is ErrorCode.NONE
    await server.pass_time(50_000)
    assert await server.fetch() == (-1, ErrorCode.NONE)
    assert await server.fetch(partition=1) == (8, ErrorCode.NONE)
    await server.pass_time(50_000)
    assert await server.fetch(partition=1) == (-1, ErrorCode.NONE)
    assert not server.coordinator.own.records.get(GROUP)
    assert logged(path) == {0: 3}


def offset_at(offset: int, commit_ms: int) -> bytes:
    return offset_value(OffsetAndMetadata(offset=offset, commit_timestamp_ms=commit_ms))


TAKEN, HERE, THERE = offset_at(1, 100), offset_at(2, 200), offset_at(3, 300)
KEY = offset_key(GROUP, A0)
OTHER_KEY = offset_key(GROUP, TopicPartition("a", 1))
MEMBERS = group_key(GroupMetadataKey(group=GROUP))


@pytest.mark.parametrize(
    ("taken", "own", "logged", "expected"),
    [
        ({KEY: TAKEN}, {KEY: TAKEN}, {KEY: THERE}, {}),
        ({KEY: TAKEN}, {KEY: HERE}, {KEY: TAKEN}, {KEY: HERE}),
        ({KEY: TAKEN}, {KEY: HERE}, {KEY: HERE}, {}),
        ({KEY: TAKEN}, {KEY: HERE}, {KEY: THERE}, {}),
        ({KEY: TAKEN}, {KEY: THERE}, {KEY: HERE}, {KEY: THERE}),
        ({KEY: TAKEN}, {}, {KEY: TAKEN}, {KEY: None}),
        ({KEY: TAKEN}, {}, {KEY: THERE}, {}),
        ({KEY: TAKEN}, {KEY: HERE}, {}, {KEY: HERE}),
        ({}, {KEY: HERE}, {}, {KEY: HERE}),
        ({KEY: TAKEN}, {KEY: HERE}, {KEY: TAKEN, OTHER_KEY: THERE}, {KEY: HERE}),
        ({MEMBERS: b"old"}, {}, {MEMBERS: b"old"}, {}),
        ({MEMBERS: b"old"}, {MEMBERS: b"here"}, {MEMBERS: b"old"}, {MEMBERS: b"here"}),
        ({MEMBERS: b"old"}, {MEMBERS: b"here"}, {MEMBERS: b"there"}, {}),
        ({}, {MEMBERS: b"here", KEY: HERE}, {}, {MEMBERS: b"here", KEY: HERE}),
    ],
    ids=[
        "changed there only",
        "changed here only",
        "both alike",
        "later there",
        "later here",
        "deleted here",
        "deleted here, committed there",
        "committed here, deleted there",
        "new here",
        "another partition there",
        "members of the log, none here",
        "members here",
        "members here and others there",
        "new group with members",
    ],
)
def test_log_of_a_promoted_root_gets_what_is_newer_here(
    taken: dict[bytes, bytes], own: dict[bytes, bytes], logged: dict[bytes, bytes], expected: dict[bytes, bytes | None]
) -> None:
    assert OwnGroups({GROUP: own}, {GROUP: taken}).changes(GROUP, logged) == expected


def test_members_of_the_log_that_are_replaced_leave_no_record() -> None:
    member = group_key(ConsumerGroupMemberMetadataKey(group_id=GROUP, member_id="m"))
    own = OwnGroups({GROUP: {MEMBERS: b"here"}}, {GROUP: {member: b"old"}})
    assert own.changes(GROUP, {member: b"old"}) == {member: None, MEMBERS: b"here"}


async def test_groups_in_memory_are_committed_once_and_those_with_damaged_offsets_are_left(
    server: GroupServer, path: Path
) -> None:
    LogDir.open(path).group(GROUP).commit({A0: 3})
    LogDir.open(path).group("damaged").commit({A0: 3})
    await server.pass_time(1000)
    assert await server.commit(7) is ErrorCode.NONE
    own = server.coordinator.own
    damaged = offset_key("damaged", A0)
    own.records["damaged"], own.taken["damaged"] = {damaged: HERE}, {damaged: b"\0\4"}
    writing = GroupServer(path)
    own.records["damaged"][damaged] = b"\0\4damaged"
    await writing.coordinator.take_in(own)
    assert logged(path) == {0: 7}
    version = LogDir.open(path).version
    await writing.coordinator.take_in(own)
    assert LogDir.open(path).version == version
    assert LogDir.open(path).group("damaged").fetch()[A0].offset == 3
    writing.close()
