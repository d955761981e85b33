"""Members of KIP-848 whose coordinator moves between servers that stood still: each partition has one member.

Three servers serve one root, and one of them coordinates at a time; the others stand still, with what they knew, until
one of them takes over. Members say no more than Kafka's clients do: what they own until that was answered, everything
after a heartbeat that failed, as Java's, or not even then, as librdkafka's. Requests and answers are lost, requests are
handled twice, servers restart, members join, leave and die, partitions are added.

After every step no partition is two members' in the log, and what a member believes to own, whose epoch is the log's,
is its own there. When things calm down, each partition has one owner among the members.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from builders.leader_writers import T0
from fakes.group_servers import GROUP, GroupServer
from tiers import SEED, rest_full

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.groups.consumer_group import ConsumerGroup, consumer_group_of
from pyspark_kafkalog.groups.offsets_topic import GroupLog
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequestTopicPartitions

SERVERS = 3
EPISODES = 12
STEPS = 25
MEMBERS_MAX = 5
PARTITIONS, PARTITIONS_MAX = 4, 9
SESSION_MS = 6_000
#: A server that stands still for longer notices that by itself.
STANDSTILL_MS = (500, 3_500, 4_500, 9_000)
CALM_ROUNDS = 14


@dataclass
class Member:
    """A consumer. `is_full_after_failure`: whether it states everything after a heartbeat that failed.

    `says` is what its last heartbeat says that it owns, `told` what the last one said that was answered.
    """

    member_id: str
    is_full_after_failure: bool
    epoch: int = 0
    owned: frozenset[int] = frozenset()
    says: frozenset[int] = frozenset()
    told: frozenset[int] | None = None
    has_failed: bool = False

    def fields(self, topic_id: str) -> dict[str, Any]:
        """What its next heartbeat says, but for who it is."""
        is_full = self.epoch == 0 or (self.has_failed and self.is_full_after_failure)
        fields: dict[str, Any] = {}
        if is_full:
            fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ("a",)}
        if is_full or self.owned != self.told:
            parts = ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=topic_id, partitions=tuple(sorted(self.owned))
            )
            fields["topic_partitions"] = (parts,) if self.owned else ()
        self.says = self.owned
        return fields

    def take(self, answer: Any) -> None:
        self.has_failed = bool(answer.error_code)
        if answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, frozenset()
        elif not answer.error_code:
            self.told = self.says
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                parts = answer.assignment.topic_partitions
                self.owned = frozenset(number for each in parts for number in each.partitions)


class MovingGroup:
    """The servers, the members and the log."""

    def __init__(self, path: Path, drawn: random.Random) -> None:
        self.path, self.drawn = path, drawn
        self.log_dir = LogDir.create(path)
        self.log_dir.alter_broker_configs(
            add={"offsets.topic.num.partitions": "1", "group.consumer.session.timeout.ms": str(SESSION_MS)}
        )
        self.log_dir.create_topic("a", PARTITIONS)
        self.topic_id = self.log_dir.topic("a").topic_id or ""
        self.now_ms = T0
        self.servers = [self.new_server() for _ in range(SERVERS)]
        self.at = 0
        self.members: list[Member] = []
        self.count = 0
        self.records = GroupLog(0)

    def new_server(self) -> GroupServer:
        return GroupServer(self.path, now_ms=self.now_ms)

    def close(self) -> None:
        for each in self.servers:
            each.close()

    async def run(self) -> None:
        for _ in range(EPISODES):
            for _ in range(STEPS):
                await self.step()
                self.check()
            await self.calm_down()

    async def step(self) -> None:
        kind = self.drawn.random()
        if kind < 0.05 or not self.members:
            self.join()
        elif kind < 0.08:
            self.members.remove(self.drawn.choice(self.members))  # it dies
        elif kind < 0.10:
            member = self.drawn.choice(self.members)
            self.members.remove(member)
            await self.servers[self.at].beat(member.member_id, -1)
        elif kind < 0.12:
            self.servers[self.at].close()
            self.servers[self.at] = self.new_server()
        elif kind < 0.13:
            count = len(self.log_dir.partition_numbers("a"))
            if count < PARTITIONS_MAX:
                self.log_dir.add_partitions("a", count + 1)
        elif kind < 0.22:
            await self.move()
        elif kind < 0.32:
            await self.pass_time(1_000)
        else:
            await self.beat(self.drawn.choice(self.members))

    def join(self) -> None:
        if len(self.members) < MEMBERS_MAX:
            self.count += 1
            self.members.append(Member(f"m{self.count}", self.drawn.random() < 0.5))

    async def beat(self, member: Member) -> None:
        fate = self.drawn.random()
        if fate < 0.05:  # the request is lost
            member.fields(self.topic_id)
            member.has_failed = True
            return
        fields = member.fields(self.topic_id)
        answer = await self.servers[self.at].beat(member.member_id, member.epoch, **fields)
        if fate < 0.15:  # the answer is lost
            member.has_failed = True
            return
        if fate < 0.20:  # the connection has delivered it twice
            await self.servers[self.at].beat(member.member_id, member.epoch, **fields)
        member.take(answer)

    async def move(self) -> None:
        """Another server goes on, and members ask it. Its timers may run before the first of them does, or later."""
        await self.pass_time(0)
        self.now_ms += self.drawn.choice(STANDSTILL_MS)
        self.at = self.drawn.choice([each for each in range(SERVERS) if each != self.at])
        self.servers[self.at].parts.served.now_ms = self.now_ms
        if self.drawn.random() < 0.5:
            await self.pass_time(0)

    async def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        server = self.servers[self.at]
        server.parts.served.now_ms = self.now_ms
        server.coordinator.run_due()
        while server.coordinator._tasks:
            await asyncio.sleep(0)

    def group(self) -> ConsumerGroup | None:
        self.log_dir.refresh()
        if "__consumer_offsets" not in self.log_dir.root.topics():
            return None
        self.records.catch_up(self.log_dir.root, self.log_dir.topic("__consumer_offsets").topic_id)
        return consumer_group_of(GROUP, self.records.records(GROUP))

    def check(self) -> None:
        group = self.group()
        if group is None:
            return
        numbers = {
            each.member_id: [*each.assigned.get(self.topic_id, ()), *each.revoking.get(self.topic_id, ())]
            for each in group.members.values()
        }
        taken = [each for of_member in numbers.values() for each in of_member]
        assert len(taken) == len(set(taken)), numbers
        for member in self.members:
            if member.member_id in numbers and group.members[member.member_id].epoch == member.epoch:
                assert member.owned <= set(numbers[member.member_id]), (member, numbers)

    async def calm_down(self) -> None:
        self.join()
        for _ in range(CALM_ROUNDS):
            await self.pass_time(1_000)
            for member in self.members:
                member.take(
                    await self.servers[self.at].beat(member.member_id, member.epoch, **member.fields(self.topic_id))
                )
        self.check()
        group = self.group()
        assert group is not None
        assert group.state_name == "Stable"
        owned = sorted(number for member in self.members for number in member.owned)
        assert owned == list(range(len(self.log_dir.partition_numbers("a")))), self.members


@pytest.mark.parametrize("number", rest_full(range(30), kept=4))
def test_each_partition_has_one_member_whoever_coordinates(tmp_path: Path, number: int) -> None:
    moving = MovingGroup(tmp_path / "log", random.Random(f"{SEED} {number}"))
    try:
        asyncio.run(asyncio.wait_for(moving.run(), 120))
    finally:
        moving.close()
