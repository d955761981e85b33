"""A group of the classic protocol: its members, generation, protocol and leader.

    Empty ─> PreparingRebalance ─> CompletingRebalance ─> Stable
      ^         |       ^                   |               |
      └─────────┘       └───────────────────┴───────────────┘

A join begins a rebalance. When all members have joined, or the time is over, the group completes it: the leader assigns
partitions, and the group is stable until a member joins, changes, leaves or expires. Without a member it is empty. It
is Dead once it was deleted or its coordinator gave it up.

What requests and timeouts do to it is in `classic`. Its record, a GroupMetadataValue, is written when a generation has
its assignment, when the last member is gone, and when a static member is replaced without a rebalance. A coordinator
that takes over knows the members of that record, as a Stable group; a rebalance that was going on begins again, because
its members get UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION, and join.

Source of the rules: org.apache.kafka.coordinator.group.classic.ClassicGroup and ClassicGroupMember.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final

from pyspark_kafkalog.groups.group_state import (
    CONSUMER_PROTOCOL_TYPE,
    GroupDescription,
    GroupMember,
    GroupType,
    TopicNames,
    embedded,
)
from pyspark_kafkalog.groups.offset_records import group_key, parse_value
from pyspark_kafkalog.metadata.messages.internal_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.storage.names import TopicPartition

_VALUE_VERSION: Final = 3


class ClassicState(Enum):
    """The values are the names in Kafka's tools."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """What a JoinGroup is answered. `members` are (member id, instance id, metadata), only for the leader."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """What a SyncGroup is answered. The assignment is empty with an error, never null."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member. `is_new` until its first rebalance completes; the answers are functions while a request waits."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    answer_join: Callable[[JoinAnswer], None] | None = field(default=None, repr=False)
    answer_sync: Callable[[SyncAnswer], None] | None = field(default=None, repr=False)

    @property
    def is_kept_without_heartbeat(self) -> bool:
        """Whether the session continues without a heartbeat, because a request of the member waits.

        A new member may have gone while it waits: it has no session yet.
        """
        return not self.is_new and (self.answer_join is not None or self.answer_sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


def classic_key(group_id: str) -> bytes:
    """The key of a classic group's record."""
    return group_key(GroupMetadataKey(group=group_id))


def classic_value(value: GroupMetadataValue) -> bytes:
    """The value of a classic group's record, in the version that Kafka 4.1 writes."""
    return _VALUE_VERSION.to_bytes(2, "big") + value.encode(_VALUE_VERSION)


class ClassicGroup:
    """The state of one group. `classic.ClassicProtocol` changes it."""

    kind: ClassVar[GroupType] = "Classic"

    def __init__(self, group_id: str, *, now_ms: int) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.previous_state = ClassicState.DEAD
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        #: How many members know each protocol.
        self._supporters: Counter[str] = Counter()
        #: What the protocols of all members have together.
        self.protocols_bytes = 0
        self.static_members: dict[str, str] = {}
        #: Ids that were given to clients that have not joined with them yet, in their order.
        self.pending_joins: dict[str, None] = {}
        self.pending_syncs: set[str] = set()
        self.new_member_added = False
        #: Ids of members that had not joined when all were looked at; some may have since.
        self._awaited: list[str] = []

    # Records

    @classmethod
    def of_records(cls, group_id: str, records: Mapping[bytes, bytes], *, now_ms: int = -1) -> ClassicGroup:
        """The group with these live records; one without a record of its own begins at `now_ms`."""
        raw = records.get(classic_key(group_id))
        return cls(group_id, now_ms=now_ms) if raw is None else cls.of_record(group_id, raw)

    @classmethod
    def of_record(cls, group_id: str, raw: bytes) -> ClassicGroup:
        """The group as its newest record has it. Raises CorruptRecordError, UnsupportedFormatError."""
        value, has_rebalance_timeout = parse_value(GroupMetadataValue, raw), raw[:2] != b"\0\0"
        group = cls(group_id, now_ms=value.current_state_timestamp)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        group.leader = value.leader
        for each in value.members:
            member = group.members[each.member_id] = ClassicMember(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout_ms=each.rebalance_timeout if has_rebalance_timeout else each.session_timeout,
                session_timeout_ms=each.session_timeout,
                protocols=((value.protocol or "", each.subscription),),
                assignment=each.assignment,
            )
            group._count_protocols(member.protocols)
            if each.group_instance_id is not None:
                group.static_members[each.group_instance_id] = each.member_id
        if group.members:
            group.state = ClassicState.STABLE
            if group.leader not in group.members:
                group.leader = next(iter(group.members))
        return group

    def record(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """The group's record, with these assignments by member."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=tuple(
                MemberMetadata(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    rebalance_timeout=each.rebalance_timeout_ms,
                    session_timeout=each.session_timeout_ms,
                    subscription=each.metadata(self.protocol_name),
                    assignment=assignments[each.member_id],
                )
                for each in self.members.values()
            ),
        )

    def assignments(self) -> dict[str, bytes]:
        return {each.member_id: each.assignment for each in self.members.values()}

    # Members

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
            self.leader = None
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member.protocols)
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending one. If it was the leader, another member becomes it."""
        removed = self.members.pop(member_id, None)
        if removed is not None:
            self._discount_protocols(removed.protocols)
        if removed is not None and removed.instance_id is not None:
            self.static_members.pop(removed.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.discard(member_id)

    def set_protocols(self, member: ClassicMember, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._discount_protocols(member.protocols)
        member.protocols = protocols
        self._count_protocols(protocols)

    def _count_protocols(self, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._supporters.update(_names(protocols))
        self.protocols_bytes += protocols_bytes(protocols)

    def _discount_protocols(self, protocols: tuple[tuple[str, bytes], ...]) -> None:
        for name in _names(protocols):
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]
        self.protocols_bytes -= protocols_bytes(protocols)

    def replace_static(self, old: ClassicMember, new: ClassicMember) -> None:
        """Give the place of a static member to the same instance with a new member id."""
        assert new.instance_id is not None
        del self.members[old.member_id]
        self.members[new.member_id] = new
        self._discount_protocols(old.protocols)
        self._count_protocols(new.protocols)
        if old.member_id in self.pending_syncs:
            self.pending_syncs.discard(old.member_id)
            self.pending_syncs.add(new.member_id)
        if self.leader == old.member_id:
            self.leader = new.member_id
        self.static_members[new.instance_id] = new.member_id

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if this is a member of the group, and the one that holds its instance id."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def joined_count(self) -> int:
        return sum(each.answer_join is not None for each in self.members.values())

    @property
    def have_all_joined(self) -> bool:
        """Whether no member is awaited; asked at each join: it looks at all members only when it has seen all join."""
        if self.pending_joins:
            return False
        while True:
            while self._awaited:
                member = self.members.get(self._awaited[-1])
                if member is not None and member.answer_join is None:
                    return False
                self._awaited.pop()
            self._awaited = [each.member_id for each in self.members.values() if each.answer_join is None]
            if not self._awaited:
                return True

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Whether the leader has joined; if not, the first member that has becomes the leader."""
        if self.leader is None:
            return False
        if self.members[self.leader].answer_join is not None:
            return True
        joined = next((each.member_id for each in self.members.values() if each.answer_join is not None), None)
        self.leader = self.leader if joined is None else joined
        return joined is not None

    # Protocols

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols can be in the group: one of them is known to all members."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        if not self.members:  # all have left, and the rebalance waits for those with a new id
            return bool(protocols)
        return any(self._supporters[name] == len(self.members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes; each member votes for its first one that all members support."""
        candidates = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _common_protocols(self) -> set[str]:
        return {name for name, count in self._supporters.items() if count == len(self.members)}

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the members consume; None if the protocol does not say so: it may be any."""
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            # All versions begin with version 0.
            found = embedded(ConsumerProtocolSubscription, member.metadata(self.protocol_name), highest=0)
            if found is None:
                return None
            topics.update(found.topics)
        return frozenset(topics)

    # States

    @property
    def state_name(self) -> str:
        """The state as Kafka's tools spell it."""
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def empty_since_ms(self) -> int:
        """When the group lost its last member; -1 if it has members, or its records do not say so."""
        return self.state_since_ms if self.is_empty else -1

    def described(self, topic_names: TopicNames) -> GroupDescription:
        """The group for commands."""
        return GroupDescription(
            group_id=self.group_id,
            type=self.kind,
            state=self.state_name,
            protocol_type=self.protocol_type or "",
            assignor=(self.protocol_name or "") if self.members else "",
            members=tuple(
                GroupMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client_id,
                    host=each.client_host,
                    assignment=_named_partitions(each.assignment),
                )
                for each in self.members.values()
            ),
        )

    def transition_to(self, state: ClassicState, *, now_ms: int) -> None:
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms

    def begin_generation(self, *, now_ms: int) -> None:
        """The next generation, of the members that there are."""
        self.generation = self.generation + 1 if self.generation < 0x7FFFFFFF else 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(ClassicState.COMPLETING_REBALANCE, now_ms=now_ms)
        else:
            self.protocol_name = None
            self.transition_to(ClassicState.EMPTY, now_ms=now_ms)


def _names(protocols: tuple[tuple[str, bytes], ...]) -> frozenset[str]:
    return frozenset(name for name, _ in protocols)


def protocols_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """The characters of the names, and the bytes of the metadata."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def _named_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a consumer's assignment; none if a client of another protocol wrote it."""
    message = embedded(ConsumerProtocolAssignment, assignment)
    parts = () if message is None else message.assigned_partitions
    return tuple(sorted(TopicPartition(each.topic, number) for each in parts for number in each.partitions))
