"""Clients that make groups large, or without end: they are refused, and other groups of the partition go on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from counted_steps import counted_steps
from fakes.group_servers import GROUP, GroupServer

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.classic_group import classic_value
from pyspark_kafkalog.groups.offset_records import group_key
from pyspark_kafkalog.java_regex.patterns import compile_re2_pattern
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataKey, GroupMetadataValue
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups, groups, offsets
from pyspark_kafkalog.server.groups import subscribed_regexes
from pyspark_kafkalog.server.groups.coordinator import expire_groups
from pyspark_kafkalog.server.groups.shard import Planned
from pyspark_kafkalog.server.groups.subscribed_regexes import SubscribedRegexes
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.units import DAY_MS

RECORD_MAX = 4000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GroupServer]:
    log_dir = LogDir.create(tmp_path / "log")
    settings = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    log_dir.alter_broker_configs(add={**settings, "message.max.bytes": str(RECORD_MAX)})
    log_dir.create_topic("a", partitions=2)
    made = GroupServer(tmp_path / "log")
    yield made
    made.close()


def joining(group: str, *protocols: tuple[str, int], member_id: str = "") -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=tuple(
            groups.JoinGroupRequestProtocol(name=name, metadata=b"m" * size_bytes) for name, size_bytes in protocols
        ),
    )


async def join(server: GroupServer, *protocols: tuple[str, int], version: int = 3) -> groups.JoinGroupResponse:
    """Join with a version in which a member needs no id first."""
    found = asyncio.create_task(server.ask(ApiKey.JOIN_GROUP, version, joining(GROUP, *protocols)))
    while not found.done():
        await asyncio.sleep(0)
        server.coordinator.run_due()
    joined: groups.JoinGroupResponse = found.result()
    return joined


async def test_members_whose_protocols_are_larger_than_any_record_are_refused(server: GroupServer) -> None:
    refused = await join(server, ("range", 10), ("other", 8 * RECORD_MAX))
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    member = await join(server, ("range", 10), ("other", 2 * RECORD_MAX))
    assert member.error_code == ErrorCode.NONE
    shard = await server.coordinator.shard_of(GROUP)
    machine = shard.classic(GROUP)
    assert machine is not None
    held = machine.group.protocols_bytes
    assert held == 2 * RECORD_MAX + 20
    again = joining(GROUP, ("range", 10), ("other", 7 * RECORD_MAX), member_id=member.member_id)
    assert (await server.ask(ApiKey.JOIN_GROUP, 3, again)).error_code == ErrorCode.NONE
    assert machine.group.protocols_bytes == held + 5 * RECORD_MAX
    leaving = groups.LeaveGroupRequest(group_id=GROUP, member_id=member.member_id)
    await server.ask(ApiKey.LEAVE_GROUP, 2, leaving)
    assert machine.group.protocols_bytes == 0


async def test_group_whose_record_is_too_large_gets_the_error_of_a_broker_and_no_other_does(
    server: GroupServer,
) -> None:
    member = await join(server, ("range", RECORD_MAX))
    assert member.error_code == ErrorCode.NONE
    shard = await server.coordinator.shard_of("other")
    sync = groups.SyncGroupRequest(
        group_id=GROUP,
        generation_id=member.generation_id,
        member_id=member.member_id,
        assignments=(groups.SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"a"),),
    )
    written: list[str] = []
    small = Planned({}, done=lambda: written.append("other"))
    answers = await asyncio.gather(
        server.ask(ApiKey.SYNC_GROUP, 3, sync), shard.write("other", lambda: small), return_exceptions=True
    )
    assert getattr(answers[0], "error_code", None) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert written == ["other"]
    assert await server.commit(3) is not ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_large_record_fails_alone_among_writes_of_one_commit(server: GroupServer) -> None:
    assert await server.commit(1) is ErrorCode.NONE
    shard = await server.coordinator.shard_of(GROUP)
    large = shard.write("large", lambda: Planned({b"\0\2\0\5large": b"x" * RECORD_MAX}))
    results = await asyncio.gather(large, server.commit(2), return_exceptions=True)
    assert isinstance(results[0], RequestError)
    assert results[0].code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert results[1] is ErrorCode.NONE


async def test_names_of_groups_that_are_only_asked_for_leave_nothing_behind(server: GroupServer) -> None:
    assert await server.commit(1) is ErrorCode.NONE
    shard = await server.coordinator.shard_of(GROUP)
    before = set(shard.classics), set(shard._modern), set(server.coordinator._timers._live)
    for at in range(20):
        name = f"made-up-{at}"
        asked = offsets.OffsetFetchRequestGroup(group_id=name, topics=None)
        for api, version, body in (
            (ApiKey.DESCRIBE_GROUPS, 5, groups.DescribeGroupsRequest(groups=(name,))),
            (ApiKey.HEARTBEAT, 4, groups.HeartbeatRequest(group_id=name, generation_id=1, member_id="m")),
            (ApiKey.LEAVE_GROUP, 2, groups.LeaveGroupRequest(group_id=name, member_id="m")),
            (ApiKey.OFFSET_FETCH, 8, offsets.OffsetFetchRequest(groups=(asked,))),
            (ApiKey.DELETE_GROUPS, 2, groups.DeleteGroupsRequest(groups_names=(name,))),
            (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, consumer_groups.ConsumerGroupDescribeRequest(group_ids=(name,))),
        ):
            await server.ask(api, version, body)
    assert (set(shard.classics), set(shard._modern), set(server.coordinator._timers._live)) == before


async def test_many_records_are_written_together_though_one_batch_has_no_room_for_them(server: GroupServer) -> None:
    found = await server.coordinator.shard_of(GROUP)

    value = classic_value(GroupMetadataValue(protocol_type="t" * 100, protocol=None, leader=None))

    def plan(number: int) -> Planned:
        return Planned({group_key(GroupMetadataKey(group=f"group-{number}")): value})

    await asyncio.gather(*(found.write(f"group-{each}", partial(plan, each)) for each in range(100)))
    assert len(found.log.groups()) == 100
    await found.load()
    assert len(found.log.groups()) == 100


async def test_groups_of_made_up_names_are_gone_when_nobody_joins_them(server: GroupServer) -> None:
    for number in range(300):
        answer = await server.ask(ApiKey.JOIN_GROUP, 9, joining(f"made-up-{number}", ("range", 10)))
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    found = await server.coordinator.shard_of(GROUP)
    assert len(found.classics) == len(found.group_ids()) == 300
    await server.pass_time(11_000)  # the ids that were given out are forgotten
    await expire_groups(server.context, found)
    assert (found.classics, found.group_ids()) == ({}, set())
    assert len(server.coordinator._timers) == 1  # that of the partition


async def test_joins_of_a_full_group_are_refused_at_the_same_cost_each_however_many_wait(server: GroupServer) -> None:
    server.context.native.alter_broker_configs(add={"group.consumer.max.size": "1"})
    server.context.root.refresh()
    member = await server.beat("m", 0)
    assert member.error_code == ErrorCode.NONE

    async def cost(count: int) -> int:
        with counted_steps() as steps:
            answers = await asyncio.gather(*(server.beat(f"other-{each}", 0) for each in range(count)))
        assert {each.error_code for each in answers} == {ErrorCode.GROUP_MAX_SIZE_REACHED}
        return steps.count

    few, many = await cost(50), await cost(400)
    assert many < 12 * few  # it would be 64 times as much if each saw all that wait
    assert (await server.beat("m", member.member_epoch)).error_code == ErrorCode.NONE


async def commit_offsets(server: GroupServer, group: str) -> None:
    one = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    body = offsets.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=(offsets.OffsetCommitRequestTopic(name="a", partitions=(one,)),),
    )
    answer = await server.ask(ApiKey.OFFSET_COMMIT, 9, body)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


async def test_groups_that_have_only_offsets_are_listed_without_taking_memory_for_members(server: GroupServer) -> None:
    names = {f"offsets-{each}" for each in range(20)}
    await asyncio.gather(*(commit_offsets(server, each) for each in names))
    listed = await server.ask(ApiKey.LIST_GROUPS, 5, groups.ListGroupsRequest())
    assert {each.group_id for each in listed.groups} == names
    assert {(each.group_state, each.group_type, each.protocol_type) for each in listed.groups} == {
        ("Empty", "classic", "")
    }
    assert (await server.coordinator.shard_of(GROUP)).classics == {}


async def test_offsets_of_many_groups_expire_in_few_commits(
    server: GroupServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.gather(*(commit_offsets(server, f"old-{each}") for each in range(300)))
    server.parts.served.now_ms += 8 * DAY_MS
    await commit_offsets(server, "new")
    shard = await server.coordinator.shard_of(GROUP)
    commits: list[object] = []
    submit = server.parts.committer.submit
    monkeypatch.setattr(server.parts.committer, "submit", lambda unit: commits.append(unit) or submit(unit))
    await expire_groups(server.context, shard)
    assert shard.group_ids() == {"new"}
    assert len(commits) == 2  # 500 records each, a group and its offset count as two


async def subscribe(server: GroupServer, member: str, regex: str) -> consumer_groups.ConsumerGroupHeartbeatResponse:
    answer: consumer_groups.ConsumerGroupHeartbeatResponse = await server.beat(
        member, 0, subscribed_topic_names=None, subscribed_topic_regex=regex
    )
    return answer


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expressions that the server has looked up so far."""
    found: list[str] = []

    def compiled(regex: str) -> Callable[[str], bool]:
        found.append(regex)
        return compile_re2_pattern(regex)

    monkeypatch.setattr(subscribed_regexes, "compile_re2_pattern", compiled)
    return found


async def test_new_expression_is_looked_up_without_the_others_of_its_group(
    server: GroupServer, looked_up: list[str]
) -> None:
    members = [await subscribe(server, f"m{each}", f"a{{1,{each + 1}}}") for each in range(20)]
    assert {each.error_code for each in members} == {ErrorCode.NONE}
    assert looked_up == [f"a{{1,{each + 1}}}" for each in range(20)]
    server.parts.served.log_dir.create_topic("new", partitions=1)
    server.parts.served.now_ms += 11_000
    await asyncio.gather(*(server.beat(f"m{each}", members[each].member_epoch) for each in range(20)))
    assert sorted(looked_up[20:]) == sorted(looked_up[:20])  # all again, by one of the members


async def test_expressions_are_looked_up_again_after_a_change_or_ten_minutes(
    server: GroupServer, looked_up: list[str]
) -> None:
    log_dir = server.parts.served.log_dir
    joined = await subscribe(server, "m", "a+")

    async def beat_after(seconds: int) -> int:
        """How many expressions are looked up by a heartbeat some time later."""
        before = len(looked_up)
        log_dir.append("a", pa.table({"value": [b"v"]}))  # a commit that changes no topic
        server.parts.served.now_ms += seconds * 1000
        assert (await server.beat("m", joined.member_epoch)).error_code == ErrorCode.NONE
        return len(looked_up) - before

    assert [await beat_after(11) for _ in range(3)] == [0, 0, 0]
    log_dir.create_topic("new", partitions=1)
    assert await beat_after(11) == 1
    log_dir.delete_topic("new")
    assert [await beat_after(1), await beat_after(10)] == [0, 1]
    log_dir.alter_broker_configs(add={"super.users": "User:ann"})
    assert [await beat_after(11) for _ in range(2)] == [1, 0]
    assert [await beat_after(580), await beat_after(10), await beat_after(10)] == [0, 1, 0]


async def test_expressions_are_looked_up_again_when_the_heartbeat_that_did_it_was_refused(
    server: GroupServer, looked_up: list[str]
) -> None:
    joined = await subscribe(server, "m", "a+")
    server.parts.served.log_dir.create_topic("aa", partitions=1)
    server.parts.served.now_ms += 11_000
    refused = await server.beat("m", joined.member_epoch + 7)
    assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    server.parts.served.now_ms += 11_000
    later = await server.beat("m", joined.member_epoch)
    assert len(later.assignment.topic_partitions) == 2
    assert looked_up == ["a+"] * 3


async def test_expression_that_takes_too_long_is_refused_and_a_known_one_keeps_its_topics(
    server: GroupServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = server._handlers[ApiKey.CONSUMER_GROUP_HEARTBEAT].__self__
    joined = await subscribe(server, "m", "a+")
    assert [len(each.partitions) for each in joined.assignment.topic_partitions] == [2]
    seconds = itertools.count()
    handlers._regexes = SubscribedRegexes(lambda: float(next(seconds)))
    slow = await subscribe(server, "n", "(a?)+")
    assert slow.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "takes more than 0.2 s to match" in (slow.error_message or "")
    server.parts.served.now_ms += 11_000
    kept = await server.beat("m", joined.member_epoch, topic_partitions=())
    assert (kept.error_code, kept.member_epoch) == (ErrorCode.NONE, joined.member_epoch)
    assert next(seconds) >= 4  # it was tried
