"""The classic protocol under any order of requests, timeouts and writes keeps its promises, and lets nobody wait.

Clients join, sync, send heartbeats, leave, fall silent and ask again, over a virtual clock, while writes to the log
take their time or fail. Clients follow the answers as Kafka's do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fakes.classic_groups import VirtualGroup
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiers import examples

from pyspark_kafkalog.groups.classic_group import ClassicState, JoinAnswer, SyncAnswer
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.groups.classic import ClassicLimits

SESSION_MS, REBALANCE_MS = 10_000, 60_000
#: Sessions, a rebalance that waits for everyone, and another one that the first one caused.
PATIENCE_MS = 2 * (SESSION_MS + REBALANCE_MS) + 300_000

clients = st.integers(0, 4)


@dataclass
class Client:
    """A consumer: its id, what it waits for, and what it knows of the group."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    joins: list[JoinAnswer] = field(default_factory=list)
    syncs: list[SyncAnswer] = field(default_factory=list)
    asked_ms: int | None = None
    is_syncing: bool = False

    def read(self) -> JoinAnswer | SyncAnswer | None:
        """The answer that it waits for, if it is there."""
        answers = self.syncs if self.is_syncing else self.joins
        if self.asked_ms is None or not answers:
            return None
        self.asked_ms = None
        return answers.pop()


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group = VirtualGroup(write_at_once=False, limits=ClassicLimits(initial_rebalance_delay_ms=3000))
        self.clients = [Client(f"i{each}" if each >= 3 else None) for each in range(5)]
        self.newest_generation = 0
        self.assignments: dict[int, dict[str, bytes]] = {}

    @rule(number=clients, has_id=st.booleans(), protocols=st.sampled_from(["r", "rs", "sr"]))
    def join(self, number: int, has_id: bool, protocols: str) -> None:
        client = self.clients[number]
        if client.asked_ms is not None:
            return
        client.joins.clear()
        self.group.join(
            client.member_id if has_id else "",
            instance_id=client.instance_id,
            protocols=tuple((name, str(number).encode()) for name in protocols),
            must_know_id=True,
            answers=client.joins,
        )
        client.asked_ms, client.is_syncing = self.group.host.clock_ms, False
        self.take(client)

    @rule(number=clients)
    def sync(self, number: int) -> None:
        client = self.clients[number]
        if client.asked_ms is not None or client.generation < 0:
            return
        client.syncs.clear()
        ids = list(self.group.group.members)
        assignments = {each: f"{each} {client.generation}".encode() for each in ids}
        self.group.sync(
            client.member_id, client.generation, assignments, instance_id=client.instance_id, answers=client.syncs
        )
        client.asked_ms, client.is_syncing = self.group.host.clock_ms, True
        self.take(client)

    @rule(number=clients)
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        if client.asked_ms is None:
            error = self.group.protocol.heartbeat(client.member_id, client.instance_id, client.generation)
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id, client.generation = "", -1

    @rule(number=clients)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.asked_ms is None and client.member_id:
            self.group.protocol.leave([(client.member_id, client.instance_id)])
            client.member_id, client.generation = "", -1

    @rule(ms=st.sampled_from([1, 500, 3000, 9_999, 10_000, 60_000]))
    def wait(self, ms: int) -> None:
        self.group.host.advance(ms)

    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    @precondition(lambda self: self.group.host.waiting)
    def finish_writes(self, error: ErrorCode) -> None:
        self.group.host.finish_writes(error)

    def take(self, client: Client) -> None:
        answer = client.read()
        if answer is None:
            return
        if isinstance(answer, JoinAnswer):
            if answer.error is ErrorCode.NONE:
                client.member_id, client.generation = answer.member_id, answer.generation
                assert (answer.leader == answer.member_id) == bool(answer.members) or answer.skip_assignment
            elif answer.error is ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
            elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id, client.generation = "", -1
        elif answer.error is ErrorCode.NONE:
            known = self.assignments.setdefault(client.generation, {})
            owner, generation = answer.assignment.decode().split(" ") if answer.assignment else ("", "")
            assert generation in ("", str(client.generation))
            # A static member that has come back has the assignment of the id that it had before.
            if owner and client.instance_id is None:
                assert owner == client.member_id
            if owner:
                assert known.setdefault(owner, answer.assignment) == answer.assignment
        elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id, client.generation = "", -1

    @invariant()
    def answers_are_read(self) -> None:
        for client in self.clients:
            self.take(client)

    @invariant()
    def group_has_one_leader_that_is_a_member(self) -> None:
        group = self.group.group
        assert (group.leader in group.members) if group.members else group.leader is None
        assert set(group.static_members.values()) <= group.members.keys()
        assert group.pending_syncs <= group.members.keys()
        assert not group.pending_joins.keys() & group.members.keys()

    @invariant()
    def generation_never_falls(self) -> None:
        assert self.group.group.generation >= self.newest_generation
        self.newest_generation = self.group.group.generation

    @invariant()
    def stable_group_waits_for_nobody_and_is_in_the_log(self) -> None:
        group = self.group.group
        if group.state is ClassicState.STABLE:
            assert all(each.answer_sync is None for each in group.members.values())
            if not self.group.host.waiting:
                written, now = self.group.host.written[-1], group.record(group.assignments())
                assert (written.generation, written.leader, written.members) == (
                    now.generation,
                    now.leader,
                    now.members,
                )

    @invariant()
    def every_member_has_a_timer(self) -> None:
        """So that it is removed if it falls silent, but while a request of it waits for the others."""
        live = self.group.host.timers
        waits = {each.member_id for each in self.group.group.members.values() if each.is_kept_without_heartbeat}
        for member_id in self.group.group.members.keys() - waits:
            assert ("heartbeat", member_id) in live

    def teardown(self) -> None:
        """When all fall silent and the log works again, everybody gets an answer, and the group becomes empty."""
        for _ in range(30):
            self.group.host.finish_writes()
            self.group.host.advance(PATIENCE_MS // 10)
        self.answers_are_read()
        assert all(each.asked_ms is None for each in self.clients)
        assert self.group.group.state is ClassicState.EMPTY
        assert not self.group.group.members


Groups.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)
TestClassicGroups = Groups.TestCase
