"""Offsets that end with their topic, and those of open transactions, at the coordinator of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.leader_writers import mark, marker
from fakes.group_servers import GROUP, GroupServer

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import groups, offsets
from pyspark_kafkalog.protocol.messages.transactions import TxnOffsetCommitRequestPartition
from pyspark_kafkalog.server.groups.shard import Planned
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.transactions.decisions import ProducerIdAndEpoch
from pyspark_kafkalog.server.transactions.producing import offsets_batch
from pyspark_kafkalog.storage.names import TopicPartition

A0 = TopicPartition("a", 0)


async def test_offsets_of_open_transaction_are_unstable_until_its_marker(servers: Callable[[], GroupServer]) -> None:
    server = servers()
    await server.commit(1)
    place = (await server.coordinator.shard_of(GROUP)).partition
    topic_id = server.context.image().topic("a").topic_id
    for producer, is_commit, expected in ((5, True, 20), (6, False, 20)):
        offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=15 + producer)
        data = offsets_batch(GROUP, ProducerIdAndEpoch(producer, 0), {A0: (offset, topic_id)}, now_ms=1)
        server.parts.served.append(mark(data, "__consumer_offsets", place))
        before = await server.fetch()
        assert before[1] is ErrorCode.NONE
        assert await server.fetch(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        server.parts.served.append(mark(marker(producer, 0, is_commit=is_commit), "__consumer_offsets", place))
        assert await server.fetch(require_stable=True) == (expected, ErrorCode.NONE)


async def test_append_time_of_the_offsets_topic_applies(servers: Callable[[], GroupServer], path: Path) -> None:
    server = servers()
    assert await server.commit(1) is ErrorCode.NONE
    LogDir.open(path).alter_topic("__consumer_offsets", add={"message.timestamp.type": "LogAppendTime"})
    assert await server.commit(2) is ErrorCode.NONE
    assert await servers().fetch() == (2, ErrorCode.NONE)


async def test_write_is_refused_only_by_what_others_have_written(servers: Callable[[], GroupServer]) -> None:
    server, other = servers(), servers()
    await server.commit(1)
    await other.commit(2, partition=1)
    shard = server.coordinator.loaded_shard_of(GROUP)
    assert shard is not None
    states: list[int] = []

    def plan() -> Planned:
        states.append(len(shard.log.records(GROUP)))
        if len(states) == 1:
            raise RequestError(ErrorCode.ILLEGAL_GENERATION)
        return Planned({}, "planned")

    assert await shard.write(GROUP, plan, may_be_behind=True) == "planned"
    assert states == [1, 2]
    states.clear()
    with pytest.raises(RequestError):
        await shard.write(GROUP, plan)
    assert states == [2]


async def commit_expiring(server: GroupServer, offset: int) -> ErrorCode:
    """OffsetCommit for A0 with a retention time, as clients before 2.1: the record has no room for the topic's id."""
    one = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    body = offsets.OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        retention_time_ms=86_400_000,
        topics=(offsets.OffsetCommitRequestTopic(name="a", partitions=(one,)),),
    )
    response = await server.ask(ApiKey.OFFSET_COMMIT, 4, body)
    return ErrorCode(response.topics[0].partitions[0].error_code)  # type: ignore[call-arg]


def recreate(path: Path) -> None:
    log_dir = LogDir.open(path)
    log_dir.delete_topic("a")
    log_dir.create_topic("a", partitions=2)


@pytest.mark.parametrize("way", ["committed", "pending", "expiring", "late"])
async def test_offsets_end_with_their_topic(servers: Callable[[], GroupServer], path: Path, way: str) -> None:
    """`pending`: the transaction ends after the topic. `late`: a commit that was accepted before comes after that."""
    first, second = servers(), servers()
    await first.commit(1, partition=1)
    if way in ("committed", "pending"):
        producer = await first.parts.begin()
        assert await first.commit_in_transaction(producer, 20) is ErrorCode.NONE
        if way == "committed":
            await first.parts.end(producer)
        recreate(path)
        assert await second.fetch(require_stable=True) == (-1, ErrorCode.NONE)
        if way == "pending":
            await first.parts.end(producer)
    elif way == "expiring":
        assert await commit_expiring(first, 20) is ErrorCode.NONE
        assert await second.fetch() == (20, ErrorCode.NONE)
        recreate(path)
    else:
        first.parts.committer.is_waiting = True
        late = asyncio.create_task(commit_expiring(first, 20))
        while not first.parts.committer._waiting:
            await asyncio.sleep(0)
        recreate(path)
        first.parts.committer.is_waiting = False
        first.parts.committer.flush()
        assert await late is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for server in (first, second, servers()):
        assert await server.fetch(require_stable=True) == (-1, ErrorCode.NONE)
    assert LogDir.open(path).group(GROUP).fetch() == {}


async def test_offsets_of_deleted_topics_are_deleted_in_the_log_with_the_next_check(
    servers: Callable[[], GroupServer], path: Path
) -> None:
    LogDir.open(path).alter_broker_configs(add={"offsets.retention.check.interval.ms": "1000"})
    server = servers()
    await server.commit(1)
    recreate(path)
    await server.pass_time(2000)
    assert LogDir.open(path).groups() == ()


@pytest.mark.parametrize("deletes_group", [True, False])
async def test_group_with_only_pending_offsets_exists_until_they_are_deleted(
    servers: Callable[[], GroupServer], path: Path, deletes_group: bool
) -> None:
    first, second = servers(), servers()
    producer = await first.parts.begin()
    assert await first.commit_in_transaction(producer, 7) is ErrorCode.NONE
    for server in (first, second):
        (listed,) = (await server.ask(ApiKey.LIST_GROUPS, 5, groups.ListGroupsRequest())).groups
        assert (listed.group_id, listed.group_state, listed.group_type) == (GROUP, "Empty", "classic")
        described = await server.ask(ApiKey.DESCRIBE_GROUPS, 6, groups.DescribeGroupsRequest(groups=(GROUP,)))
        assert described.groups[0].error_code == ErrorCode.NONE
    assert LogDir.open(path).groups() == (GROUP,)
    assert LogDir.open(path).group(GROUP).describe().state == "Empty"
    assert await second.fetch(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    if deletes_group:
        assert await second.delete() is ErrorCode.NONE
    else:
        one = offsets.OffsetDeleteRequestTopic(
            name="a", partitions=(offsets.OffsetDeleteRequestPartition(partition_index=0),)
        )
        deleted = await second.ask(ApiKey.OFFSET_DELETE, 0, offsets.OffsetDeleteRequest(group_id=GROUP, topics=(one,)))
        assert (deleted.error_code, deleted.topics[0].partitions[0].error_code) == (0, 0)
    for server in (first, second, servers()):
        assert await server.fetch(require_stable=True) == (-1, ErrorCode.NONE)
    await first.parts.end(producer)
    for server in (first, second, servers()):
        assert await server.fetch() == (-1, ErrorCode.NONE)
    assert LogDir.open(path).groups() == ()


@pytest.mark.parametrize("deletes_group", [True, False])
async def test_python_deletes_pending_offsets_too(
    servers: Callable[[], GroupServer], path: Path, deletes_group: bool
) -> None:
    server = servers()
    producer = await server.parts.begin()
    assert await server.commit_in_transaction(producer, 7) is ErrorCode.NONE
    group = LogDir.open(path).group(GROUP)
    assert group.expire_offsets(1 << 60, now_ms=1 << 60) == []
    if deletes_group:
        group.delete()
    else:
        assert group.delete_offsets([A0]) == [A0]
    assert await server.fetch(require_stable=True) == (-1, ErrorCode.NONE)
    await server.parts.end(producer)
    assert await server.fetch() == (-1, ErrorCode.NONE)


async def test_offsets_of_a_member_that_was_replaced_meanwhile_do_not_join_the_transaction(
    servers: Callable[[], GroupServer],
) -> None:
    """The server of the old member stands still between its look at the group and the commit."""
    first, second = servers(), servers()
    member = await first.become_member()
    producer = await first.parts.begin()
    first.parts.committer.is_waiting = True
    late = asyncio.create_task(first.commit_in_transaction(producer, 7, member=member, generation=1))
    while not first.parts.committer._waiting:
        await asyncio.sleep(0)
    leaving = groups.LeaveGroupRequest(group_id=GROUP, members=(groups.MemberIdentity(member_id=member),))
    await second.ask(ApiKey.LEAVE_GROUP, 5, leaving)
    await second.become_member()
    assert await second.fetch(require_stable=True) == (-1, ErrorCode.NONE)
    first.parts.committer.is_waiting = False
    first.parts.committer.flush()
    assert await late is ErrorCode.UNKNOWN_MEMBER_ID
    assert await second.fetch(require_stable=True) == (-1, ErrorCode.NONE)


async def test_offsets_join_the_transaction_though_others_commit_offsets_meanwhile(
    servers: Callable[[], GroupServer],
) -> None:
    first, second = servers(), servers()
    member = await first.become_member()
    producer = await first.parts.begin()
    first.parts.committer.is_waiting = True
    late = asyncio.create_task(first.commit_in_transaction(producer, 7, member=member, generation=1))
    while not first.parts.committer._waiting:
        await asyncio.sleep(0)
    assert await second.commit(3, member=member, generation=1, partition=1) is ErrorCode.NONE
    first.parts.committer.is_waiting = False
    first.parts.committer.flush()
    assert await late is ErrorCode.NONE
    assert await second.fetch(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    await first.parts.end(producer)
    assert await second.fetch(require_stable=True) == (7, ErrorCode.NONE)
