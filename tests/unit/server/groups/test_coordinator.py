"""The coordinator of groups over a root: what it answers, what is in the log, and what others who write there see."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.cleaned_groups import ANOTHER, delete_and_clean
from fakes.group_servers import GROUP, GroupServer

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups, groups, offsets
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.server.groups.shard import Shard
from pyspark_kafkalog.storage.names import TopicPartition

A0 = TopicPartition("a", 0)


async def test_commits_of_servers_and_of_python_are_seen_by_all(servers: Callable[[], GroupServer], path: Path) -> None:
    first, second = servers(), servers()
    assert await first.commit(1) is ErrorCode.NONE
    assert await second.fetch() == (1, ErrorCode.NONE)
    assert await second.commit(2) is ErrorCode.NONE
    assert await first.fetch() == (2, ErrorCode.NONE)
    LogDir.open(path).group(GROUP).commit({A0: 3})
    assert await first.fetch() == (3, ErrorCode.NONE)
    assert await first.commit(4, partition=1) is ErrorCode.NONE
    assert {each.partition: found.offset for each, found in LogDir.open(path).group(GROUP).fetch().items()} == {
        0: 3,
        1: 4,
    }


async def test_group_is_gone_if_its_tombstones_were_cleaned_before_they_were_read(
    servers: Callable[[], GroupServer], path: Path
) -> None:
    log_dir = LogDir.open(path)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    server = servers()
    assert await server.commit(3) is ErrorCode.NONE
    log_dir.refresh()
    delete_and_clean(log_dir, GROUP, A0)
    assert await server.fetch() == (-1, ErrorCode.NONE)
    assert await server.commit(5) is ErrorCode.NONE
    log_dir.refresh()
    assert log_dir.groups() == (ANOTHER, GROUP)


async def test_commit_is_planned_again_if_another_server_was_faster(servers: Callable[[], GroupServer]) -> None:
    first, second = servers(), servers()
    await first.commit(1)
    await second.commit(2)
    first.parts.committer.is_waiting = True
    slow = asyncio.create_task(first.commit(5))
    while not first.parts.committer._waiting:
        await asyncio.sleep(0)
    await second.commit(7, partition=1)
    first.parts.committer.is_waiting = False
    first.parts.committer.flush()
    assert await slow is ErrorCode.NONE
    assert await second.fetch() == (5, ErrorCode.NONE)
    assert await first.fetch(partition=1) == (7, ErrorCode.NONE)


async def test_group_goes_on_at_another_server_without_rebalance(servers: Callable[[], GroupServer]) -> None:
    first, second = servers(), servers()
    member = await first.become_member()
    assert await first.commit(9, member=member, generation=1) is ErrorCode.NONE
    assert await second.heartbeat(member, 1) is ErrorCode.NONE
    assert await second.commit(10, member=member, generation=1) is ErrorCode.NONE
    assert (await second.sync(member, 1)).assignment == b"all"
    assert await second.fetch() == (10, ErrorCode.NONE)


async def test_group_is_kept_if_its_own_record_is_read_before_the_commit_is_answered(
    servers: Callable[[], GroupServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers()
    commit = server.parts.committer.commit
    described = groups.DescribeGroupsRequest(groups=(GROUP,))

    async def late(unit: CommitUnit) -> tuple[AppendedRange, ...]:
        answer = await commit(unit)
        await server.ask(ApiKey.DESCRIBE_GROUPS, 6, described)  # reads the log, which has the record
        return answer

    monkeypatch.setattr(server.parts.committer, "commit", late)
    member = await server.become_member()
    assert await server.heartbeat(member, 1) is ErrorCode.NONE
    (group,) = (await server.ask(ApiKey.DESCRIBE_GROUPS, 6, described)).groups
    assert (group.group_state, [each.member_id for each in group.members]) == ("Stable", [member])


async def test_server_that_was_replaced_yields_to_the_group_in_the_log(servers: Callable[[], GroupServer]) -> None:
    first, second = servers(), servers()
    member = await first.become_member()
    await second.heartbeat(member, 1)
    leaving = groups.LeaveGroupRequest(group_id=GROUP, members=(groups.MemberIdentity(member_id=member),))
    assert (await second.ask(ApiKey.LEAVE_GROUP, 5, leaving)).members[0].error_code == ErrorCode.NONE
    await second.commit(3)  # after the record of the empty group
    assert await first.commit(8, member=member, generation=1) is not ErrorCode.NONE
    assert await first.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await first.fetch() == (3, ErrorCode.NONE)


async def test_server_that_does_not_coordinate_the_group_says_so(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    member = await server.become_member()
    joining = asyncio.create_task(server.join())
    await joining
    server.parts.cluster.coordinator_id = 2
    assert await server.heartbeat(member, 1) is ErrorCode.NOT_COORDINATOR
    assert await server.commit(1) is ErrorCode.NOT_COORDINATOR
    assert (await server.join()).error_code == ErrorCode.NOT_COORDINATOR


async def test_offsets_are_told_by_a_server_that_does_not_coordinate_the_group(
    servers: Callable[[], GroupServer],
) -> None:
    coordinator, other = servers(), servers()
    member = await coordinator.become_member()
    other.parts.cluster.coordinator_id = 2
    for offset in (3, 4):
        assert await coordinator.commit(offset, member=member, generation=1) is ErrorCode.NONE
        assert await other.fetch() == (offset, ErrorCode.NONE)
    await other.pass_time(60_000)
    assert await coordinator.heartbeat(member, 1) is ErrorCode.NONE


async def test_offsets_are_answered_if_the_coordinator_changes_while_they_are_read(
    servers: Callable[[], GroupServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up = Shard.catch_up
    server = servers()
    assert await server.commit(3) is ErrorCode.NONE

    async def losing(shard: Shard) -> None:
        server.parts.cluster.coordinator_id = 2
        server.coordinator._watch()
        await catch_up(shard)

    monkeypatch.setattr(Shard, "catch_up", losing)
    assert await server.fetch() == (3, ErrorCode.NONE)
    assert await server.commit(4) is ErrorCode.NOT_COORDINATOR


async def test_waiting_join_is_answered_when_another_server_coordinates(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    await server.coordinator.start()
    await server.become_member()
    second = await server.join()
    waiting = asyncio.create_task(server.join(second.member_id))
    await asyncio.sleep(0)
    server.parts.cluster.coordinator_id = 2
    await server.pass_time(2000)
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
    await server.coordinator.stop()


async def test_members_of_the_consumer_protocol_have_the_session_and_interval_of_their_group(
    path: Path, servers: Callable[[], GroupServer]
) -> None:
    server = servers()
    joined = await server.beat("m", 0)
    assert joined.heartbeat_interval_ms == 5000
    own = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "60000"}
    LogDir.open(path).alter_group_configs(GROUP, add=own)
    server.context.root.refresh()
    assert (await server.beat("m", joined.member_epoch)).heartbeat_interval_ms == 7000
    await server.pass_time(59_000)
    assert (await server.beat("m", joined.member_epoch)).error_code == ErrorCode.NONE
    await server.pass_time(61_000)
    assert (await server.beat("m", joined.member_epoch)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_members_are_not_expired_after_the_process_was_stopped(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    member = await server.become_member()
    server.parts.served.now_ms += 60_000
    server.coordinator.run_due()
    assert await server.heartbeat(member, 1) is ErrorCode.NONE
    await server.pass_time(11_000)
    assert await server.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_group_with_members_is_not_deleted_and_empty_one_is(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    assert await server.delete() is ErrorCode.GROUP_ID_NOT_FOUND
    member = await server.become_member()
    await server.commit(1, member=member, generation=1)
    assert await server.delete() is ErrorCode.NON_EMPTY_GROUP
    await server.pass_time(12_000)
    assert await server.delete() is ErrorCode.NONE
    assert await server.fetch() == (-1, ErrorCode.NONE)
    listed = await server.ask(ApiKey.LIST_GROUPS, 5, groups.ListGroupsRequest())
    assert listed.groups == ()


async def test_old_offsets_expire_but_not_those_of_subscribed_topics(
    servers: Callable[[], GroupServer], path: Path
) -> None:
    LogDir.open(path).create_topic("b", partitions=1)
    LogDir.open(path).alter_broker_configs(
        add={"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    )
    server = servers()
    member = await server.become_member()
    await server.commit(1, member=member, generation=1)
    await server.commit(2, topic="b", member=member, generation=1)
    for _ in range(15):
        await server.heartbeat(member, 1)
        await server.pass_time(5000)
    found = LogDir.open(path).group(GROUP).fetch()
    assert list(found) == [A0]
    await server.pass_time(90_000)
    assert LogDir.open(path).groups() == ()


async def test_refused_principal_gets_kafkas_error_codes(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    member = await server.become_member()
    denied = server.parts.permissions.denied
    denied.add((AclOperation.READ, ResourceType.TOPIC))
    assert await server.commit(1, member=member, generation=1) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied.add((AclOperation.READ, ResourceType.GROUP))
    assert await server.commit(1, member=member, generation=1) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert await server.heartbeat(member, 1) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (await server.join()).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    denied.add((AclOperation.DELETE, ResourceType.GROUP))
    assert await server.delete() is ErrorCode.GROUP_AUTHORIZATION_FAILED
    denied.add((AclOperation.DESCRIBE, ResourceType.TOPIC))
    assert (await server.fetch())[1] is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied.add((AclOperation.DESCRIBE, ResourceType.GROUP))
    assert (await server.fetch())[1] is ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_bad_commits_are_refused_one_by_one(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    assert await server.commit(1, topic="none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await server.commit(1, partition=2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await server.commit(1, committed_metadata="m" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert await server.commit(1, member="m", generation=3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert (await server.join(session_timeout_ms=1)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT


async def test_consumer_group_shares_partitions_and_drops_silent_members(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    first = await server.beat("m1", 0)
    assert [each.partitions for each in first.assignment.topic_partitions] == [(0, 1)]
    second = await server.beat("m2", 0)
    assert second.assignment.topic_partitions == ()
    less = await server.beat("m1", first.member_epoch)
    owned = owned_by(less)
    assert [each.partitions for each in owned] == [(0,)]
    await server.beat("m1", less.member_epoch, topic_partitions=owned)
    more = await server.beat("m2", second.member_epoch)
    assert [each.partitions for each in more.assignment.topic_partitions] == [(1,)]
    for _ in range(10):
        await server.pass_time(5000)
        await server.beat("m2", (await server.beat("m2", more.member_epoch)).member_epoch)
        more = await server.beat("m2", more.member_epoch)
    assert (await server.beat("m1", less.member_epoch)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    asked = consumer_groups.ConsumerGroupDescribeRequest(group_ids=(GROUP, "none"))
    described, unknown = (await server.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked)).groups
    assert (described.group_state, [each.member_id for each in described.members]) == ("Stable", ["m2"])
    assert described.members[0].assignment.topic_partitions[0].partitions == (0, 1)
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_partitions_to_give_up_are_told_until_the_member_says_what_it_has(
    servers: Callable[[], GroupServer],
) -> None:
    """librdkafka sends no full heartbeat after one that timed out, so each answer may be the lost one."""
    server = servers()
    first = await server.beat("m1", 0)
    second = await server.beat("m2", 0)
    for _ in range(20):
        less = await server.beat("m1", first.member_epoch)
        assert [each.partitions for each in less.assignment.topic_partitions] == [(0,)]
    acknowledged = await server.beat("m1", less.member_epoch, topic_partitions=owned_by(less))
    assert (await server.beat("m1", acknowledged.member_epoch)).assignment is None
    more = await server.beat("m2", second.member_epoch)
    for _ in range(3):
        again = await server.beat("m2", more.member_epoch)
        assert [each.partitions for each in again.assignment.topic_partitions] == [(1,)]
    await server.beat("m2", more.member_epoch, topic_partitions=owned_by(more))
    assert (await server.beat("m2", more.member_epoch)).assignment is None


async def test_assignment_is_told_a_few_times_to_a_member_that_says_nothing(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    joined = await server.beat("m", 0)
    told = [(await server.beat("m", joined.member_epoch)).assignment is not None for _ in range(20)]
    assert told == sorted(told, reverse=True)
    assert 5 < sum(told) < 15


async def test_assignment_of_another_server_is_told_by_one_that_had_told_an_older_one(
    servers: Callable[[], GroupServer],
) -> None:
    """A server that stood still for a moment coordinates again: the other one's answer may have been lost."""
    first, second = servers(), servers()
    one = await first.beat("m1", 0)
    two = await first.beat("m2", 0)
    for _ in range(3):
        assert (await first.beat("m2", two.member_epoch, topic_partitions=())).assignment is None
    less = await second.beat("m1", one.member_epoch)
    await second.beat("m1", less.member_epoch, topic_partitions=owned_by(less))
    more = await second.beat("m2", two.member_epoch)
    assert ([each.partitions for each in more.assignment.topic_partitions], more.member_epoch) == (
        [(1,)],
        two.member_epoch,
    )
    for _ in range(3):
        again = await first.beat("m2", two.member_epoch)
        assert [each.partitions for each in again.assignment.topic_partitions] == [(1,)]
    await first.beat("m2", two.member_epoch, topic_partitions=owned_by(more))
    assert (await first.beat("m2", two.member_epoch)).assignment is None


async def test_member_that_joined_at_another_server_and_died_is_removed(servers: Callable[[], GroupServer]) -> None:
    first, second = servers(), servers()
    await first.beat("m1", 0)
    two = await second.beat("m2", 0)
    for _ in range(12):
        await first.pass_time(5_000)
        one = await first.beat("m1", 0)
    assert [each.partitions for each in one.assignment.topic_partitions] == [(0, 1)]
    assert (await first.beat("m2", two.member_epoch)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def owned_by(answer: Any) -> tuple[consumer_groups.ConsumerGroupHeartbeatRequestTopicPartitions, ...]:
    """What a member that has taken over the answer's assignment says that it has."""
    return tuple(
        consumer_groups.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
        for each in answer.assignment.topic_partitions
    )


async def test_consumer_group_goes_on_at_another_server(servers: Callable[[], GroupServer]) -> None:
    first, second = servers(), servers()
    joined = await first.beat("m", 0)
    again = await second.beat("m", joined.member_epoch)
    assert (again.error_code, again.member_epoch) == (0, joined.member_epoch)
    assert again.assignment == joined.assignment  # whether it got the first answer is not known here
    assert await second.commit(4, member="m", generation=joined.member_epoch) is ErrorCode.NONE
    assert await first.commit(5, member="m", generation=99) is ErrorCode.STALE_MEMBER_EPOCH
    assert (await second.beat("m", -1)).member_epoch == -1
    assert (await first.beat("m", joined.member_epoch)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert await first.commit(6, member="m", generation=joined.member_epoch) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_empty_group_changes_its_protocol_and_keeps_its_offsets(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    await server.become_member()
    assert (await server.beat("m", 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await server.pass_time(12_000)
    await server.commit(4)
    assert (await server.beat("m", 0)).error_code == ErrorCode.NONE
    assert await server.fetch() == (4, ErrorCode.NONE)
    await server.beat("m", -1)
    member = await server.become_member()
    assert await server.heartbeat(member, 1) is ErrorCode.NONE
    assert await server.fetch() == (4, ErrorCode.NONE)


async def test_regular_expression_subscribes_to_later_topics_too(
    servers: Callable[[], GroupServer], path: Path
) -> None:
    server = servers()
    joined = await server.beat("m", 0, subscribed_topic_names=None, subscribed_topic_regex="a.*")
    assert len(joined.assignment.topic_partitions) == 1
    LogDir.open(path).create_topic("ab", partitions=1)
    server.context.root.refresh()
    await server.pass_time(11_000)
    later = await server.beat("m", joined.member_epoch)
    assert len(later.assignment.topic_partitions) == 2
    bad = await server.beat("n", 0, subscribed_topic_names=None, subscribed_topic_regex="(")
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_regular_expression_that_would_backtrack_for_ever_holds_nobody_up(
    servers: Callable[[], GroupServer], path: Path
) -> None:
    LogDir.open(path).create_topic("a" * 200, partitions=1)
    server = servers()
    joined = await server.beat("m", 0, subscribed_topic_names=None, subscribed_topic_regex="(a+)+b")
    assert joined.error_code == ErrorCode.NONE
    assert joined.assignment.topic_partitions == ()


async def test_without_re2_new_expressions_are_refused_and_known_ones_keep_their_topics(
    servers: Callable[[], GroupServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers()
    joined = await server.beat("m", 0, subscribed_topic_names=None, subscribed_topic_regex="a.*")
    assert len(joined.assignment.topic_partitions) == 1
    monkeypatch.setitem(sys.modules, "re2", None)
    refused = await server.beat("n", 0, subscribed_topic_names=None, subscribed_topic_regex="b.*")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "pyspark_kafkalog[server]" in (refused.error_message or "")
    await server.pass_time(11_000)
    later = await server.beat("m", joined.member_epoch)
    assert later.error_code == ErrorCode.NONE
    assert later.member_epoch == joined.member_epoch


@pytest.mark.parametrize(
    "body",
    [
        groups.JoinGroupRequest(group_id=GROUP, session_timeout_ms=10_000, member_id="unknown"),
        groups.SyncGroupRequest(group_id=GROUP),
        groups.HeartbeatRequest(group_id=GROUP),
        groups.LeaveGroupRequest(group_id=GROUP, member_id="m", members=(groups.MemberIdentity(member_id="m"),)),
        groups.DescribeGroupsRequest(groups=(GROUP, "none")),
        groups.ListGroupsRequest(),
        groups.DeleteGroupsRequest(groups_names=("none",)),
        offsets.OffsetDeleteRequest(group_id=GROUP),
        offsets.OffsetFetchRequest(group_id=GROUP, topics=(offsets.OffsetFetchRequestTopic(name="a"),)),
        offsets.OffsetCommitRequest(group_id=GROUP),
        consumer_groups.ConsumerGroupDescribeRequest(group_ids=(GROUP,)),
        consumer_groups.ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=4),
    ],
    ids=lambda body: type(body).__name__,
)
async def test_every_version_is_answered(servers: Callable[[], GroupServer], body: groups.JoinGroupRequest) -> None:
    server = servers()
    await server.become_member()
    (api,) = [each for each in APIS.values() if each.request is type(body)]
    for version in api.versions:
        await server.ask(api.key, version, body)
