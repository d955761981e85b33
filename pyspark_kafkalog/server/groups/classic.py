"""The classic protocol: what JoinGroup, SyncGroup, Heartbeat, LeaveGroup and timeouts do to a group.

A join waits until all members have joined, at most the longest rebalance timeout of a member; those that have not are
removed, static members excepted. The first rebalance of an empty group also waits group.initial.rebalance.delay.ms for
further members. Then all get the new generation, and the leader all metadata; a sync waits for the leader's assignment,
which is answered once its record is in the log. A member that does not sync within the rebalance timeout is removed.

The clock, timers, member ids and the log are the owner's (`ClassicHost`); nothing here waits or does I/O. A write that
fails ends the rebalance with its error, and the group rebalances again.

Source of the rules: the methods classicGroup... of org.apache.kafka.coordinator.group.GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from pyspark_kafkalog.groups.classic_group import (
    ClassicGroup,
    ClassicMember,
    ClassicState,
    JoinAnswer,
    SyncAnswer,
    protocols_bytes,
)
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataValue
from pyspark_kafkalog.protocol.error_codes import ErrorCode

#: Ids given out and not used yet, over which the oldest is forgotten: clients make them at will.
PENDING_JOINS_MAX: Final = 10_000

_REBALANCING: Final = (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)


class ClassicHost(Protocol):
    """What a group needs of its coordinator. Timers are by group and key."""

    def now_ms(self) -> int:
        """Wall time."""
        ...

    def new_member_id(self, prefix: str) -> str: ...

    def schedule(self, key: TimerKey, delay_ms: int, callback: Callable[[], None]) -> None: ...

    def cancel(self, key: TimerKey) -> None: ...

    def write(self, value: GroupMetadataValue, done: Callable[[ErrorCode], None]) -> None:
        """Append the group's record; `done` is called once it is in the log, or with the error."""
        ...


TimerKey: TypeAlias = tuple[str, str]
_JOIN: Final[TimerKey] = ("join", "")
_SYNC: Final[TimerKey] = ("sync", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicLimits:
    """group.max.size, group.initial.rebalance.delay.ms, and how long a new member may take to join.

    `max_protocol_bytes` is what the protocols of all members may have together: names and metadata.
    """

    max_size: int = 0x7FFFFFFF
    max_protocol_bytes: int = 8 << 20
    initial_rebalance_delay_ms: int = 3000
    new_member_join_timeout_ms: int = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup of any version. `must_know_id`: a dynamic member gets its id first (v4+)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_know_id: bool
    may_skip_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup of any version; the protocol is None before v5."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class _Returned:
    """A static member that has come back: `new`, with another member id, in the place of `old`."""

    old: ClassicMember
    new: ClassicMember
    old_leader: str | None
    may_skip_assignment: bool


class ClassicProtocol:
    """One group, and all that happens to it. All calls are made by one thread."""

    def __init__(self, group: ClassicGroup, host: ClassicHost, limits: ClassicLimits) -> None:
        self.group = group
        #: The group's newest record in the log; None if it has none.
        self.last_record: bytes | None = None
        #: The record that is being committed now.
        self.record_under_way: bytes | None = None
        self._host = host
        self._limits = limits
        #: Static members that have come back, and wait until the write that is under way has ended.
        self._returned: list[_Returned] = []
        self._writes_returned = False

    def resume(self) -> None:
        """Take over a group that was read from the log: its members have a whole session to send a heartbeat."""
        for member in self.group.members.values():
            self._await_heartbeat(member)
        if len(self.group.members) > self._limits.max_size:
            self._prepare_rebalance()

    def rebalance(self) -> None:
        """Ask all members to join again: the group has lost members while it was one of the other protocol."""
        self._prepare_rebalance()

    def close(self, error: ErrorCode) -> None:
        """Forget the group: it was deleted, or another server coordinates it. Who waits is answered with `error`."""
        for member in self.group.members.values():
            self._answer_join(member, JoinAnswer(error=error, member_id=member.member_id))
            self._answer_sync(member, SyncAnswer(error=error))
            self._host.cancel(_heartbeat_of(member.member_id))
        for member_id in self.group.pending_joins:
            self._host.cancel(_heartbeat_of(member_id))
        self._host.cancel(_JOIN)
        self._host.cancel(_SYNC)
        self.group.transition_to(ClassicState.DEAD, now_ms=self._host.now_ms())

    # JoinGroup

    def join(self, request: JoinRequest, answer: Callable[[JoinAnswer], None]) -> None:
        group = self.group
        refused = self._refuses_join(request)
        if refused is not ErrorCode.NONE:
            is_full = refused is ErrorCode.GROUP_MAX_SIZE_REACHED
            if is_full:
                self._forget_pending(request.member_id)
            answer(JoinAnswer(error=refused, member_id="" if is_full else request.member_id))
        elif not request.member_id:
            self._join_new(request, answer)
        elif request.member_id in group.pending_joins and request.instance_id is None:
            self._add_member(request, request.member_id, answer)
        else:
            error = group.member_error(request.member_id, request.instance_id)
            if error is ErrorCode.NONE and group.state is ClassicState.EMPTY:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            if error is not ErrorCode.NONE:
                answer(JoinAnswer(error=error, member_id=request.member_id))
            else:
                self._rejoin(group.members[request.member_id], request, answer)

    def _refuses_join(self, request: JoinRequest) -> ErrorCode:
        if self.group.state is ClassicState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._has_room_for(request.member_id) or not self._has_memory_for(request):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self.group.supports(request.protocol_type, request.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _has_room_for(self, member_id: str) -> bool:
        group, max_size = self.group, self._limits.max_size
        member = group.members.get(member_id)
        if group.state is ClassicState.PREPARING_REBALANCE:
            has_joined = member is not None and member.answer_join is not None
            return has_joined or len(group.members) < max_size or group.joined_count < max_size
        return group.state is ClassicState.EMPTY or member is not None or len(group.members) < max_size

    def _has_memory_for(self, request: JoinRequest) -> bool:
        member = self.group.members.get(request.member_id)
        held_bytes = 0 if member is None else protocols_bytes(member.protocols)
        asked_bytes = protocols_bytes(request.protocols)
        return self.group.protocols_bytes - held_bytes + asked_bytes <= self._limits.max_protocol_bytes

    def _join_new(self, request: JoinRequest, answer: Callable[[JoinAnswer], None]) -> None:
        group = self.group
        member_id = self._host.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None:
            held_by = group.static_members.get(request.instance_id)
            if held_by is None:
                self._add_member(request, member_id, answer)
            else:
                self._replace_static(group.members[held_by], member_id, request, answer)
        elif request.must_know_id:
            group.pending_joins[member_id] = None
            if len(group.pending_joins) > PENDING_JOINS_MAX:
                self._forget_pending(next(iter(group.pending_joins)))
            self._host.schedule(
                _heartbeat_of(member_id), request.session_timeout_ms, lambda: self._expire_member(member_id)
            )
            answer(JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add_member(request, member_id, answer)

    def _forget_pending(self, member_id: str) -> None:
        if self.group.pending_joins.pop(member_id, member_id) is None:
            self._host.cancel(_heartbeat_of(member_id))

    def _rejoin(self, member: ClassicMember, request: JoinRequest, answer: Callable[[JoinAnswer], None]) -> None:
        state = self.group.state
        is_leader = self.group.leader == member.member_id
        is_same = member.protocols == request.protocols
        if state is ClassicState.COMPLETING_REBALANCE and is_same:
            answer(self._joined(member))  # the member did not get the answer of this generation
        elif state is ClassicState.STABLE and is_same and not is_leader:
            answer(self._joined(member))
        else:  # the leader of a stable group joins again because the topics' partitions changed
            self._update_member(member, request, answer)
            self._rebalance_or_complete()

    def _joined(self, member: ClassicMember) -> JoinAnswer:
        group = self.group
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if group.leader == member.member_id:
            members = tuple(
                (each.member_id, each.instance_id, each.metadata(group.protocol_name))
                for each in group.members.values()
            )
        return JoinAnswer(
            member_id=member.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader or "",
            members=members,
        )

    def _update_member(self, member: ClassicMember, request: JoinRequest, answer: Callable[[JoinAnswer], None]) -> None:
        # A client that asks again has given up the first request; its answer would not be read.
        self._answer_join(member, JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        self.group.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.answer_join = answer

    def _add_member(self, request: JoinRequest, member_id: str, answer: Callable[[JoinAnswer], None]) -> None:
        group = self.group
        if group.state is ClassicState.PREPARING_REBALANCE and group.previous_state is ClassicState.EMPTY:
            group.new_member_added = True
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            answer_join=answer,
        )
        group.add(member, request.protocol_type)
        self._await_heartbeat(member, self._limits.new_member_join_timeout_ms)
        self._rebalance_or_complete()

    def _replace_static(
        self, old: ClassicMember, new_id: str, request: JoinRequest, answer: Callable[[JoinAnswer], None]
    ) -> None:
        """A static member comes back without its id: it gets a new one, and a user of the old one is fenced."""
        group = self.group
        old_leader = group.leader
        self._answer_join(old, JoinAnswer(error=ErrorCode.FENCED_INSTANCE_ID, member_id=old.member_id))
        self._answer_sync(old, SyncAnswer(error=ErrorCode.FENCED_INSTANCE_ID))
        self._host.cancel(_heartbeat_of(old.member_id))
        new = replace(old, member_id=new_id, is_new=False)
        group.replace_static(old, new)
        self._update_member(new, request, answer)
        self._await_heartbeat(new)
        has_same_names = [name for name, _ in old.protocols] == [name for name, _ in new.protocols]
        if group.state is ClassicState.STABLE and (has_same_names or group.protocol_name == group.select_protocol()):
            self._keep_generation(_Returned(old, new, old_leader, request.may_skip_assignment))
        elif group.state is ClassicState.PREPARING_REBALANCE:
            self._complete_if_all_joined()
        else:
            self._prepare_rebalance()

    def _keep_generation(self, returned: _Returned) -> None:
        """Write the new member id; the generation, and all assignments, stay.

        The record has all members. When many come back at the same time, those that come during a write share the next
        one.
        """
        self._returned.append(returned)
        if not self._writes_returned:
            self._write_returned()

    def _write_returned(self) -> None:
        returned, self._returned = self._returned, []
        if not returned or self.group.state is not ClassicState.STABLE:
            return  # a rebalance has begun: it answers them, and its record has their ids

        def done(error: ErrorCode) -> None:
            self._writes_returned = False
            # The last one first: a member may have come back twice.
            for each in reversed(returned):
                self._end_return(each, error)
            self._write_returned()

        self._writes_returned = True
        self._host.write(self.group.record(self.group.assignments()), done)

    def _end_return(self, returned: _Returned, error: ErrorCode) -> None:
        group, old, new = self.group, returned.old, returned.new
        if group.members.get(new.member_id) is not new or group.state is ClassicState.DEAD:
            return
        if error is not ErrorCode.NONE:
            self._answer_join(new, JoinAnswer(error=error))
            self._host.cancel(_heartbeat_of(new.member_id))
            group.replace_static(new, old)
            self._await_heartbeat(old)
            return
        joined = self._joined(new)
        if returned.may_skip_assignment:
            self._answer_join(new, replace(joined, skip_assignment=group.leader == new.member_id))
        else:  # the old leader's name, so that the client does not compute an assignment
            self._answer_join(new, replace(joined, leader=returned.old_leader or "", members=()))

    # The rebalance

    def _rebalance_or_complete(self) -> None:
        if self.group.state is ClassicState.PREPARING_REBALANCE:
            self._complete_if_all_joined()
        else:
            self._prepare_rebalance()

    def _complete_if_all_joined(self) -> None:
        # The first rebalance of a group that was empty ends with its delay.
        if self.group.have_all_joined and self.group.previous_state is not ClassicState.EMPTY:
            self._complete_join()

    def _prepare_rebalance(self) -> None:
        group = self.group
        if group.state is ClassicState.COMPLETING_REBALANCE:
            self._end_sync(dict.fromkeys(group.members, b""), ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._host.cancel(_SYNC)
        was_empty = group.state is ClassicState.EMPTY
        group.transition_to(ClassicState.PREPARING_REBALANCE, now_ms=self._host.now_ms())
        if was_empty:
            delay_ms = self._limits.initial_rebalance_delay_ms
            self._wait_for_first(delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
        elif group.have_all_joined:
            self._complete_join()
        else:
            self._host.schedule(_JOIN, group.rebalance_timeout_ms, self._complete_join)

    def _wait_for_first(self, delay_ms: int, remaining_ms: int) -> None:
        def due() -> None:
            if self.group.new_member_added and remaining_ms > 0:
                self.group.new_member_added = False
                next_delay_ms = min(self._limits.initial_rebalance_delay_ms, remaining_ms)
                self._wait_for_first(next_delay_ms, max(remaining_ms - delay_ms, 0))
            else:
                self._complete_join()

        self._host.schedule(_JOIN, delay_ms, due)

    def _complete_join(self) -> None:
        """Begin the next generation with the members that have joined."""
        group = self.group
        if group.state is not ClassicState.PREPARING_REBALANCE:
            return
        self._host.cancel(_JOIN)
        gone = [each for each in group.members.values() if each.answer_join is None and each.instance_id is None]
        for member in gone:
            group.remove(member.member_id)
            self._host.cancel(_heartbeat_of(member.member_id))
        if group.members and not group.elect_joined_leader():
            # Only static members, and none of them is back yet.
            self._host.schedule(_JOIN, group.rebalance_timeout_ms, self._complete_join)
            return
        group.begin_generation(now_ms=self._host.now_ms())
        if not group.members:
            self._host.write(group.record({}), lambda error: None)
            return
        for member in list(group.members.values()):
            self._answer_join(member, self._joined(member))
            self._await_heartbeat(member)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        generation = group.generation
        self._host.schedule(_SYNC, group.rebalance_timeout_ms, lambda: self._expire_syncs(generation))

    # SyncGroup

    def sync(self, request: SyncRequest, answer: Callable[[SyncAnswer], None]) -> None:
        group = self.group
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            answer(SyncAnswer(error=error))
            return
        member = group.members[request.member_id]
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self._host.cancel(_SYNC)
        if group.state is ClassicState.STABLE:
            answer(self._synced(member))
            return
        self._answer_sync(member, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.answer_sync = answer
        if group.leader == member.member_id:
            self._store_assignments(request.assignments)

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        group = self.group
        if group.state is ClassicState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = group.member_error(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, group.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name not in (None, group.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _store_assignments(self, given: Mapping[str, bytes]) -> None:
        group = self.group
        generation = group.generation
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def done(error: ErrorCode) -> None:
            if group.state is not ClassicState.COMPLETING_REBALANCE or group.generation != generation:
                return
            if error is not ErrorCode.NONE:
                self._end_sync(dict.fromkeys(group.members, b""), error)
                self._prepare_rebalance()
                return
            group.transition_to(ClassicState.STABLE, now_ms=self._host.now_ms())
            self._end_sync(assignments, ErrorCode.NONE)

        self._host.write(group.record(assignments), done)

    def _end_sync(self, assignments: Mapping[str, bytes], error: ErrorCode) -> None:
        for member in list(self.group.members.values()):
            member.assignment = assignments.get(member.member_id, b"")
            is_ok = error is ErrorCode.NONE
            if self._answer_sync(member, self._synced(member) if is_ok else SyncAnswer(error=error)):
                self._await_heartbeat(member)

    def _synced(self, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.group.protocol_type, protocol_name=self.group.protocol_name, assignment=member.assignment
        )

    def _expire_syncs(self, generation: int) -> None:
        group = self.group
        if generation == group.generation and group.state in _REBALANCING and group.pending_syncs:
            for member_id in list(group.pending_syncs):
                self._drop(member_id)
            self._prepare_rebalance()

    # Heartbeat, LeaveGroup, OffsetCommit

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = self.group
        error = self._member_error(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._await_heartbeat(group.members[member_id])
        is_preparing = group.state is ClassicState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def _member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.group.state is ClassicState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.group.member_error(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def leave(self, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, given as (member id, instance id); the id is empty if the instance alone is meant."""
        if self.group.state is ClassicState.DEAD:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(members)
        errors = [self._leave(*each) for each in members]
        if ErrorCode.NONE in errors:
            self._after_removal()
        return errors

    def _leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if not member_id:
            held_by = None if instance_id is None else self.group.static_members.get(instance_id)
            if held_by is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            self._drop(held_by)
            return ErrorCode.NONE
        if member_id in self.group.pending_joins:
            self._forget_pending(member_id)
            return ErrorCode.NONE
        error = self.group.member_error(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._drop(member_id)
        return error

    def commit_error(
        self, member_id: str, instance_id: str | None, generation: int, *, is_transactional: bool
    ) -> ErrorCode:
        """Whether a member, or with generation -1 a consumer outside of the group, may commit offsets."""
        group = self.group
        if group.state is ClassicState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and group.state is ClassicState.EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            error = self._member_error(member_id, instance_id, generation)
            if error is not ErrorCode.NONE:
                return error
        elif not is_transactional and group.state is not ClassicState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not is_transactional and group.state is ClassicState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        member = group.members.get(member_id)
        if member is not None:
            self._await_heartbeat(member)
        return ErrorCode.NONE

    # Sessions

    def _await_heartbeat(self, member: ClassicMember, timeout_ms: int | None = None) -> None:
        member_id = member.member_id
        self._host.schedule(
            _heartbeat_of(member_id),
            member.session_timeout_ms if timeout_ms is None else timeout_ms,
            lambda: self._expire_member(member_id),
        )

    def _expire_member(self, member_id: str) -> None:
        member = self.group.members.get(member_id)
        if member_id in self.group.pending_joins:
            self._forget_pending(member_id)
            if self.group.state is ClassicState.PREPARING_REBALANCE:
                self._complete_if_all_joined()
        elif member is not None and not member.is_kept_without_heartbeat:
            self._drop(member_id)
            self._after_removal()

    def _drop(self, member_id: str) -> None:
        member = self.group.members[member_id]
        self._host.cancel(_heartbeat_of(member_id))
        self._answer_join(member, JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self._answer_sync(member, SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self.group.remove(member_id)

    def _after_removal(self) -> None:
        if self.group.state in _REBALANCING:
            self._prepare_rebalance()
        elif self.group.state is ClassicState.PREPARING_REBALANCE:
            self._complete_if_all_joined()

    # Answers

    def _answer_join(self, member: ClassicMember, answer: JoinAnswer) -> None:
        if member.answer_join is not None:
            waiting, member.answer_join = member.answer_join, None
            waiting(answer)

    def _answer_sync(self, member: ClassicMember, answer: SyncAnswer) -> bool:
        if member.answer_sync is None:
            return False
        waiting, member.answer_sync = member.answer_sync, None
        waiting(answer)
        return True


def _heartbeat_of(member_id: str) -> TimerKey:
    return "heartbeat", member_id
