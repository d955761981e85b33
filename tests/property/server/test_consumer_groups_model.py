"""The consumer protocol under any order of heartbeats, lost answers, leaves and changes of topics.

No partition ever has two owners among the clients, the state read back from the records is the state that was planned,
and when things calm down the group is stable and every partition has an owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tiers import examples

from pyspark_kafkalog.groups.consumer_group import (
    LEFT_FOR_A_WHILE,
    Assignment,
    ConsumerGroup,
    consumer_group_of,
    encoded,
)
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.groups.heartbeat import Heartbeat, HeartbeatResult, answered, heartbeat, leave
from pyspark_kafkalog.server.request_errors import RequestError

TOPIC_IDS = {"a": "A" * 21 + "A", "b": "B" * 21 + "A"}
SUBSCRIPTIONS = [("a",), ("b",), ("a", "b"), ()]

numbers = st.integers(0, 4)


class Topics:
    def __init__(self) -> None:
        self.counts = {"a": 5, "b": 3}

    @property
    def version(self) -> int:
        return 1 + sum(self.counts.values())

    def topic_id(self, name: str) -> str | None:
        return TOPIC_IDS[name] if name in self.counts else None

    def partition_numbers(self, topic_id: str) -> range:
        return next(range(count) for name, count in self.counts.items() if TOPIC_IDS[name] == topic_id)


@dataclass
class Client:
    """A consumer: what it owns, and what it was told to have."""

    name: str
    instance_id: str | None
    topics: tuple[str, ...] = ("a",)
    is_member: bool = False
    epoch: int = 0
    owned: Assignment = field(default_factory=dict)
    joins: int = 0

    @property
    def member_id(self) -> str:
        return f"{self.name}-{self.joins}"

    def abandon(self) -> None:
        self.epoch, self.owned = 0, {}


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = Topics()
        self.group = ConsumerGroup(group_id="g")
        self.log: dict[bytes, bytes] = {}
        self.clients = [Client(f"m{each}", f"i{each}" if each >= 3 else None) for each in range(5)]

    def beat(self, client: Client, assignor: str | None = None) -> HeartbeatResult:
        request = Heartbeat(
            member_id=client.member_id,
            epoch=client.epoch,
            instance_id=client.instance_id,
            rack_id=None,
            rebalance_timeout_ms=1000,
            topics=client.topics,
            regex=None,
            assignor=assignor,
            owned=client.owned,
            client_id="",
            client_host="",
            resolved={},
        )
        # What is answered without a write is what a write would come to, without records.
        answer = answered(self.group, request, self.topics)
        result = heartbeat(self.group, request, self.topics, max_size=100)
        assert answer == (None if result.records else result)
        return result

    def write(self, result: HeartbeatResult) -> None:
        for key, value in encoded(result.records).items():
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value
        self.group = result.group

    @rule(number=numbers, topics=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, number: int, topics: tuple[str, ...]) -> None:
        self.clients[number].topics = topics

    @rule(number=numbers, is_lost=st.booleans(), assignor=st.sampled_from([None, "uniform", "range"]))
    def heartbeat(self, number: int, is_lost: bool, assignor: str | None) -> None:
        client = self.clients[number]
        if not client.is_member:
            client.is_member, client.joins = True, client.joins + 1
        try:
            result = self.beat(client, assignor)
        except RequestError as error:
            if error.code is not ErrorCode.FENCED_MEMBER_EPOCH:
                raise
            client.abandon()
            return
        self.write(result)
        if not is_lost:
            self.take(client, result)

    def take(self, client: Client, result: HeartbeatResult) -> None:
        client.epoch = result.member_epoch
        if result.assignment is not None:
            client.owned = result.assignment

    @rule(number=numbers, for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        client = self.clients[number]
        if not client.is_member or client.member_id not in self.group.members:
            return
        epoch = LEFT_FOR_A_WHILE if for_a_while and client.instance_id is not None else -1
        self.write(leave(self.group, client.member_id, client.instance_id, epoch, self.topics))
        client.is_member = False
        client.abandon()

    @rule()
    def add_partition(self) -> None:
        self.topics.counts["a"] = min(self.topics.counts["a"] + 1, 9)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = [
            (topic_id, number) for client in self.clients for topic_id, mine in client.owned.items() for number in mine
        ]
        assert len(owned) == len(set(owned))

    @invariant()
    def group_is_what_its_records_say(self) -> None:
        found = consumer_group_of("g", self.log)
        assert (found, found.index) == (self.group, self.group.index)

    def teardown(self) -> None:
        members = [each for each in self.clients if each.is_member]
        for _ in range(12):
            for client in members:
                try:
                    result = self.beat(client)
                except RequestError:
                    client.abandon()
                    continue
                self.write(result)
                self.take(client, result)
        # A static member that has left for a while keeps its partitions until its session ends.
        away = [each for each in self.clients if not each.is_member and each.instance_id in self.group.static_members]
        for client in away:
            self.write(leave(self.group, client.member_id, client.instance_id, -1, self.topics))
        for _ in range(4):
            for client in members:
                result = self.beat(client)
                self.write(result)
                self.take(client, result)
        wanted = {name for each in members for name in each.topics}
        partitions = {(TOPIC_IDS[name], each) for name in wanted for each in range(self.topics.counts[name])}
        owned = {(topic_id, each) for client in members for topic_id, mine in client.owned.items() for each in mine}
        assert owned == partitions
        assert self.group.state_name == ("Stable" if members else "Empty")


Groups.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
TestConsumerGroups = Groups.TestCase
