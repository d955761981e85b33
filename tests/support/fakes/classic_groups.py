"""A classic group with a virtual clock and a log that is written when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_kafkalog.groups.classic_group import ClassicGroup, JoinAnswer, SyncAnswer
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataValue
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.groups.classic import ClassicLimits, ClassicProtocol, JoinRequest, SyncRequest, TimerKey
from pyspark_kafkalog.server.groups.coordinator import Timers


class VirtualHost:
    """The owner of one group. `written` are the records in the log, `waiting` those on the way to it."""

    def __init__(self, *, write_at_once: bool = True) -> None:
        self.clock_ms = 0
        self.timers = Timers(lambda: self.clock_ms)
        self.ids = 0
        self.write_at_once = write_at_once
        self.written: list[GroupMetadataValue] = []
        self.waiting: list[tuple[GroupMetadataValue, Callable[[ErrorCode], None]]] = []

    def now_ms(self) -> int:
        return self.clock_ms

    def new_member_id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}-{self.ids}"

    def schedule(self, key: TimerKey, delay_ms: int, callback: Callable[[], None]) -> None:
        self.timers.schedule(key, delay_ms, callback)

    def cancel(self, key: TimerKey) -> None:
        self.timers.cancel(key)

    def write(self, value: GroupMetadataValue, done: Callable[[ErrorCode], None]) -> None:
        self.waiting.append((value, done))
        if self.write_at_once:
            self.finish_writes()

    def finish_writes(self, error: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self.waiting = self.waiting, []
        for value, done in waiting:
            if error is ErrorCode.NONE:
                self.written.append(value)
            done(error)

    def advance(self, ms: int) -> None:
        """Let time pass; timers run at their times."""
        end_ms = self.clock_ms + ms
        while (due_ms := self.timers.next_due_ms()) is not None and due_ms <= end_ms:
            self.clock_ms = max(due_ms, self.clock_ms)
            self.timers.run_due()
        self.clock_ms = end_ms


class VirtualGroup:
    """One group, and the answers that its requests got, newest last."""

    def __init__(self, *, write_at_once: bool = True, limits: ClassicLimits | None = None) -> None:
        self.host = VirtualHost(write_at_once=write_at_once)
        self.group = ClassicGroup("g", now_ms=0)
        self.protocol = ClassicProtocol(self.group, self.host, limits or ClassicLimits(initial_rebalance_delay_ms=0))
        self.joins: list[JoinAnswer] = []
        self.syncs: list[SyncAnswer] = []

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"r"),),
        protocol_type: str = "consumer",
        must_know_id: bool = False,
        may_skip_assignment: bool = True,
        answers: list[JoinAnswer] | None = None,
    ) -> None:
        request = JoinRequest(
            member_id=member_id,
            instance_id=instance_id,
            client_id="c",
            client_host="/127.0.0.1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type=protocol_type,
            protocols=protocols,
            must_know_id=must_know_id,
            may_skip_assignment=may_skip_assignment,
        )
        self.protocol.join(request, (self.joins if answers is None else answers).append)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_name: str | None = None,
        answers: list[SyncAnswer] | None = None,
    ) -> None:
        request = SyncRequest(
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            protocol_type=None,
            protocol_name=protocol_name,
            assignments=assignments or {},
        )
        self.protocol.sync(request, (self.syncs if answers is None else answers).append)

    def stable(self, count: int) -> list[str]:
        """Make the group stable with `count` new dynamic members; their ids, the leader's first."""
        for _ in range(count):
            self.join()
            self.host.advance(0)
        ids = list(self.group.members)
        for member_id in ids:
            if self.group.members[member_id].answer_join is None:
                self.join(member_id)
        self.host.advance(0)
        leader = self.group.leader
        assert leader is not None
        for member_id in ids:
            if member_id != leader:
                self.sync(member_id, self.group.generation)
        self.sync(leader, self.group.generation, {each: each.encode() for each in ids})
        return [leader, *(each for each in ids if each != leader)]
