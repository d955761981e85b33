"""Groups whose members speak both protocols: how they become such groups, what silent members cost, and the way back.

tests/support/kafka_processes/group_scripts.py compares the answers with those of a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.group_servers import GROUP, GroupServer

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.messages.internal_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
)
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups, groups

#: Comes before the ids that servers make, so that the assignor `range` gives it the first partitions.
CONSUMER = "!consumer"


def assigned(*partitions: int) -> bytes:
    """An assignment of partitions of topic `a`, as the leader of a classic group writes it."""
    parts = (ConsumerProtocolAssignmentTopicPartition(topic="a", partitions=partitions),) if partitions else ()
    return bytes(2) + ConsumerProtocolAssignment(assigned_partitions=parts).encode(0)


async def consumer_joins(server: GroupServer) -> int:
    """The epoch of a consumer that joins."""
    joined = await server.beat(CONSUMER, 0, server_assignor="range")
    assert joined.error_code == ErrorCode.NONE, joined
    return int(joined.member_epoch)


async def members(server: GroupServer) -> list[str]:
    """The members of the group of the consumer protocol."""
    asked = consumer_groups.ConsumerGroupDescribeRequest(group_ids=(GROUP,))
    (group,) = (await server.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, asked)).groups
    return sorted(each.member_id for each in group.members)


async def classic_group(server: GroupServer) -> Any:
    (group,) = (await server.ask(ApiKey.DESCRIBE_GROUPS, 6, groups.DescribeGroupsRequest(groups=(GROUP,)))).groups
    return group


async def test_partitions_move_one_after_the_other_also_if_servers_change(servers: Callable[[], GroupServer]) -> None:
    first, second, third = servers(), servers(), servers()
    classic = await first.become_member(assigned(0, 1))
    assert await first.commit(7, member=classic, generation=1) is ErrorCode.NONE
    epoch = await consumer_joins(second)
    assert (epoch, await members(third)) == (2, [CONSUMER, classic])
    assert await third.commit(8, member=classic, generation=1) is ErrorCode.NONE
    assert await third.heartbeat(classic, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await second.beat(CONSUMER, epoch)).assignment is None  # nothing is free yet
    joined = await second.join(classic)
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.NONE, 2, "")
    assert (await third.sync(classic, 2)).assignment == assigned(1)
    assert await second.heartbeat(classic, 2) is ErrorCode.NONE
    told = await third.beat(CONSUMER, epoch)
    assert [each.partitions for each in told.assignment.topic_partitions] == [(0,)]
    assert await first.fetch() == (8, ErrorCode.NONE)
    # The last consumer leaves: what is left is a classic group, which rebalances.
    assert (await second.beat(CONSUMER, -1)).error_code == ErrorCode.NONE
    assert await members(first) == []
    assert await second.heartbeat(classic, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    again = await second.join(classic)
    assert (again.error_code, again.generation_id, again.leader) == (ErrorCode.NONE, 3, classic)
    assert (await second.sync(classic, 3, {classic: assigned(0, 1)})).assignment == assigned(0, 1)
    assert (await classic_group(third)).group_state == "Stable"
    assert await third.fetch() == (8, ErrorCode.NONE)


async def test_classic_member_that_does_not_join_in_time_loses_its_partitions(
    servers: Callable[[], GroupServer],
) -> None:
    server = servers()
    classic = await server.become_member(assigned(0, 1))
    epoch = await consumer_joins(server)
    for _ in range(13):  # its rebalance timeout is 60 seconds
        assert await server.heartbeat(classic, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        epoch = (await server.beat(CONSUMER, epoch)).member_epoch
        assert classic in await members(server)
        await server.pass_time(5000)
        if await server.heartbeat(classic, 1) is ErrorCode.UNKNOWN_MEMBER_ID:
            break
    assert await members(server) == [CONSUMER]
    told = await server.beat(CONSUMER, epoch)
    assert [each.partitions for each in told.assignment.topic_partitions] == [(0, 1)]


async def test_classic_member_that_joins_but_does_not_fetch_its_assignment_is_removed(
    servers: Callable[[], GroupServer],
) -> None:
    server = servers()
    classic = await server.become_member(assigned(0, 1))
    epoch = await consumer_joins(server)
    assert (await server.join(classic)).error_code == ErrorCode.NONE
    for _ in range(13):
        assert await server.heartbeat(classic, 2) is ErrorCode.NONE
        epoch = (await server.beat(CONSUMER, epoch)).member_epoch
        await server.pass_time(5000)
        if classic not in await members(server):
            break
    assert await members(server) == [CONSUMER]


async def test_silent_classic_member_is_removed_after_its_own_session(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    classic = await server.become_member(assigned(0, 1))
    await consumer_joins(server)
    await server.pass_time(9_000)
    assert classic in await members(server)
    await server.pass_time(2_000)
    assert await members(server) == [CONSUMER]


async def test_group_is_classic_again_after_the_last_consumer_fell_silent(servers: Callable[[], GroupServer]) -> None:
    server, other = servers(), servers()
    classic = await server.become_member(assigned(0, 1))
    await consumer_joins(server)
    assert (await server.join(classic)).error_code == ErrorCode.NONE
    assert (await server.sync(classic, 2)).assignment == assigned(1)
    for _ in range(10):  # a session of the consumer protocol lasts 45 seconds
        await server.pass_time(5000)
        error = await server.heartbeat(classic, 2)
    assert error is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await classic_group(server)).group_state == "PreparingRebalance"
    again = await server.join(classic)
    assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 3)
    assert (await server.sync(classic, 3, {classic: assigned(0, 1)})).error_code == ErrorCode.NONE
    assert await other.heartbeat(classic, 3) is ErrorCode.NONE


async def test_members_that_wait_in_a_classic_rebalance_are_asked_to_join_again(
    servers: Callable[[], GroupServer],
) -> None:
    server = servers()
    classic = await server.become_member(assigned(0, 1))
    new = (await server.join()).member_id
    joining = asyncio.create_task(server.join(new))
    while await server.heartbeat(classic, 1) is not ErrorCode.REBALANCE_IN_PROGRESS:
        await asyncio.sleep(0)
    await consumer_joins(server)
    assert (await joining).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    joined = await server.join(new)
    assert joined.error_code == ErrorCode.NONE
    assert (await server.sync(new, joined.generation_id)).assignment == assigned()
    assert sorted((CONSUMER, classic, new)) == await members(server)


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
async def test_policy_says_which_changes_are_made(
    servers: Callable[[], GroupServer], path: Path, policy: str, upgrades: bool, downgrades: bool
) -> None:
    LogDir.open(path).alter_broker_configs(add={"group.consumer.migration.policy": policy})
    server = servers()
    classic = await server.become_member(assigned(0, 1))
    refused = await server.beat(CONSUMER, 0)
    assert refused.error_code == (ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    leaving = groups.LeaveGroupRequest(group_id=GROUP, members=(groups.MemberIdentity(member_id=classic),))
    await server.ask(ApiKey.LEAVE_GROUP, 5, leaving)
    await server.beat(CONSUMER, 0)
    # A classic member may join in any case: only then is there a group that could be downgraded.
    member = (await server.join()).member_id
    joined = await server.join(member)
    assert joined.error_code == ErrorCode.NONE
    await server.beat(CONSUMER, -1)
    assert (await members(server) == []) is downgrades
    assert ((await classic_group(server)).group_state == "PreparingRebalance") is downgrades


async def test_metadata_of_no_consumer_are_refused_by_a_group_of_the_consumer_protocol(
    servers: Callable[[], GroupServer],
) -> None:
    server = servers()
    await consumer_joins(server)
    for metadata in (b"", b"\xff\xff", b"one", b"\0\0\xff\xff"):
        body = groups.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id="classic",
            protocol_type="consumer",
            protocols=(groups.JoinGroupRequestProtocol(name="range", metadata=metadata),),
        )
        refused = await server.ask(ApiKey.JOIN_GROUP, 9, body)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert await members(server) == [CONSUMER]
