"""What large consumer groups cost a server: milliseconds of CPU for joins, heartbeats, commits and what ends members.

    python benchmarks/bench_groups.py [--members N] [--partitions N] [--topics N] [--assignor NAME] [--at-once N] ...

Members of one group speak to the handlers of a server, without sockets: so the figures are those of the coordinator
and of its commits, and of encoding the answers. The members do what Kafka's consumers do: they give up what they are
told to, and say so in their next heartbeat. Each phase ends when every member has what it shall have:

    join         all members join, some of them at once
    steady       heartbeats that change nothing
    commits      each member commits offsets, and sends a heartbeat
    grow         a topic gets a tenth more partitions
    leave        a tenth of the members leaves
    load         another server takes the group over, as after a restart
    expire       all members that are left time out at the same time
    classic      the same number of members in a group of the classic protocol: one cycle of JoinGroup and SyncGroup

`--profile PHASE` prints where the time of a phase goes.

examples:
  python benchmarks/bench_groups.py
  python benchmarks/bench_groups.py --members 200 --partitions 2000 --topics 100 --subscriptions mixed
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from fakes.group_servers import GROUP, GroupServer, subscription

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.image import TopicImage
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups, groups, offsets

PHASES: Final = ("join", "steady", "commits", "grow", "leave", "load", "expire", "classic")
#: Rounds of heartbeats in which every member has to have what it shall have.
_ROUNDS_MAX: Final = 50
_STEADY_ROUNDS: Final = 3
_CLASSIC_GROUP: Final = "classic"


@dataclass
class Member:
    """A consumer: what it has, and what it says of it with its next heartbeat."""

    member_id: str
    topics: tuple[str, ...]
    epoch: int = 0
    owned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    has_changed: bool = False

    async def beat(self, server: GroupServer, assignor: str) -> bool:
        """Send a heartbeat; whether its answer says something new."""
        is_joining = self.epoch == 0
        body = consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            server_assignor=assignor if is_joining else None,
            rebalance_timeout_ms=300_000 if is_joining else -1,
            subscribed_topic_names=self.topics if is_joining else None,
            topic_partitions=self._said() if is_joining or self.has_changed else None,
        )
        answer = await server.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
        if answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH:
            self.epoch, self.owned, self.has_changed = 0, {}, False
            return True
        if answer.error_code:
            raise SystemExit(f"{self.member_id}: {answer.error_code} {answer.error_message}")
        is_new = answer.member_epoch != self.epoch or self.has_changed
        self.epoch, self.has_changed = answer.member_epoch, False
        if answer.assignment is not None:
            told = {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}
            self.has_changed = told != self.owned
            self.owned = told
        return is_new or self.has_changed

    def _said(self) -> tuple[consumer_groups.ConsumerGroupHeartbeatRequestTopicPartitions, ...]:
        return tuple(
            consumer_groups.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in self.owned.items()
        )

    async def commit(self, server: GroupServer, names: dict[str, str]) -> None:
        """Commit an offset of each partition."""
        body = offsets.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=tuple(
                offsets.OffsetCommitRequestTopic(
                    name=names[topic_id],
                    partitions=tuple(
                        offsets.OffsetCommitRequestPartition(partition_index=number, committed_offset=1)
                        for number in numbers
                    ),
                )
                for topic_id, numbers in self.owned.items()
            ),
        )
        answer = await server.ask(ApiKey.OFFSET_COMMIT, 9, body)
        assert not any(each.error_code for topic in answer.topics for each in topic.partitions)


class Group:
    """The members of one group, and the server that coordinates it."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self._path, self._options = path, options
        self.server = GroupServer(path)
        names = [f"t{each}" for each in range(options.topics)]
        mixed = (tuple(names), tuple(names[: max(len(names) // 2, 1)]))
        self.members = [
            Member(f"m{each}", mixed[each % 2 if options.subscriptions == "mixed" else 0])
            for each in range(options.members)
        ]

    async def beats(self, members: Iterable[Member]) -> int:
        """A heartbeat of each member; how many of the answers say something new."""
        assignor = self._options.assignor
        return sum(await self._together(each.beat(self.server, assignor) for each in members))

    async def settle(self) -> int:
        """Heartbeats until none says anything new; how many."""
        rounds = 1
        while await self.beats(self.members) and rounds < _ROUNDS_MAX:
            rounds += 1
        if rounds == _ROUNDS_MAX:
            raise SystemExit(f"the group is not stable after {_ROUNDS_MAX} rounds")
        count = sum(len(numbers) for each in self.members for numbers in each.owned.values())
        owned = {
            (topic, number) for each in self.members for topic, numbers in each.owned.items() for number in numbers
        }
        expected = sum(len(each.partitions) for name, each in self._topics().items() if name.startswith("t"))
        assert count == len(owned) == expected, (count, len(owned), expected)
        return rounds * len(self.members)

    async def join(self) -> int:
        await self.beats(self.members)
        return await self.settle() + len(self.members)

    async def steady(self) -> int:
        for _ in range(_STEADY_ROUNDS):
            await self.beats(self.members)
        return _STEADY_ROUNDS * len(self.members)

    async def commits(self) -> int:
        names = {topic.topic_id: name for name, topic in self._topics().items()}

        async def one(member: Member) -> None:
            await member.commit(self.server, names)
            await member.beat(self.server, self._options.assignor)

        await self._together(one(each) for each in self.members)
        return 2 * len(self.members)

    async def grow(self) -> int:
        count = self._options.partitions // self._options.topics
        LogDir.open(self._path).add_partitions("t0", count + max(self._options.partitions // 10, 1))
        return await self.settle()

    async def leave(self) -> int:
        gone = self.members[::10]
        self.members = [each for at, each in enumerate(self.members) if at % 10]

        async def leave(member: Member) -> None:
            body = consumer_groups.ConsumerGroupHeartbeatRequest(
                group_id=GROUP, member_id=member.member_id, member_epoch=-1
            )
            await self.server.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)

        await self._together(map(leave, gone))
        return await self.settle() + len(gone)

    async def load(self) -> int:
        await self.server.coordinator.stop()
        self.server.close()
        self.server = GroupServer(self._path)
        shard = await self.server.coordinator.shard_of(GROUP)
        group = shard.consumer(GROUP)
        assert group is not None
        assert len(group.members) == len(self.members)
        return 1

    async def expire(self) -> int:
        session_ms = self.server.context.broker_config().group_consumer_session_timeout_ms
        await self.server.pass_time(session_ms + 1000)
        shard = await self.server.coordinator.shard_of(GROUP)
        group = shard.consumer(GROUP)
        assert group is not None
        assert not group.members
        return len(self.members)

    async def classic(self) -> int:
        count, server, topics = (
            self._options.members,
            self.server,
            tuple(f"t{at}" for at in range(self._options.topics)),
        )
        metadata = subscription(*topics)

        def joining(member_id: str) -> Awaitable[groups.JoinGroupResponse]:
            body = groups.JoinGroupRequest(
                group_id=_CLASSIC_GROUP,
                session_timeout_ms=45_000,
                rebalance_timeout_ms=300_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=(groups.JoinGroupRequestProtocol(name="range", metadata=metadata),),
            )
            return server.ask(ApiKey.JOIN_GROUP, 9, body)

        named = [(await joining("")).member_id for _ in range(count)]
        waiting = asyncio.gather(*map(joining, named))
        while not waiting.done():
            await asyncio.sleep(0)
            await server.pass_time(1000)
        joined = {each.member_id: each for each in waiting.result()}
        leader = next(each.leader for each in joined.values())

        def syncing(member_id: str) -> Awaitable[groups.SyncGroupResponse]:
            given = named if member_id == leader else ()
            body = groups.SyncGroupRequest(
                group_id=_CLASSIC_GROUP,
                generation_id=joined[member_id].generation_id,
                member_id=member_id,
                assignments=tuple(
                    groups.SyncGroupRequestAssignment(member_id=each, assignment=b"p" * 100) for each in given
                ),
            )
            return server.ask(ApiKey.SYNC_GROUP, 5, body)

        synced = await asyncio.gather(*map(syncing, named))
        assert all(len(each.assignment) == 100 for each in synced)
        return 3 * count

    def _topics(self) -> dict[str, TopicImage]:
        self.server.context.root.refresh()
        return dict(self.server.context.image().topics)

    async def _together(self, work: Iterable[Awaitable[int | None]]) -> list[int]:
        """The results of the work, so many at once as the options say."""
        remaining, results = list(work), []
        for at in range(0, len(remaining), self._options.at_once):
            results += await asyncio.gather(*remaining[at : at + self._options.at_once])
        return [each or 0 for each in results]


async def _measure(group: Group, phases: Sequence[str], profiled: str | None) -> None:
    print(f"{'phase':10} {'requests':>9} {'CPU s':>8} {'ms each':>9} {'s':>8} {'longest ms':>11}")
    for phase in phases:
        work: Callable[[], Awaitable[int]] = getattr(group, phase)
        profile = cProfile.Profile()
        if phase == profiled:
            profile.enable()
        hold = asyncio.create_task(_longest_hold())
        cpu_s, wall_s = time.process_time(), time.monotonic()
        count = await work()
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        hold.cancel()
        longest_ms = (await hold) * 1000
        profile.disable()
        print(f"{phase:10} {count:9,} {cpu_s:8.2f} {cpu_s * 1000 / count:9.3f} {wall_s:8.2f} {longest_ms:11.1f}")
        if phase == profiled:
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


async def _longest_hold() -> float:
    """The longest time in seconds for which nobody else was served, until it is cancelled."""
    longest = 0.0
    try:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - before)
    except asyncio.CancelledError:
        return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=10_000, help="of all topics together")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--assignor", choices=("uniform", "range"), default="uniform")
    parser.add_argument("--subscriptions", choices=("same", "mixed"), default="same", help="mixed: half to less")
    parser.add_argument("--at-once", type=int, default=50, help="requests under way at the same time")
    parser.add_argument("--phases", default=",".join(PHASES), help="default: %(default)s")
    parser.add_argument("--profile", choices=PHASES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "log"
        log_dir = LogDir.create(path)
        log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
        for number in range(options.topics):
            log_dir.create_topic(f"t{number}", partitions=options.partitions // options.topics)
        group = Group(path, options)
        try:
            asyncio.run(_measure(group, options.phases.split(","), options.profile))
        finally:
            group.server.close()


if __name__ == "__main__":
    main()
