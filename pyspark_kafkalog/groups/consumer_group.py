"""A group of the consumer protocol (KIP-848): what its records in `__consumer_offsets` say.

    group epoch               rises when members, subscriptions or their topics change
    target assignment         what each member shall have, as of its epoch (of the group)
    current assignment        what each member has, as of its epoch: a member goes to the target's epoch once it has
                              given up what it shall no longer have
    regular expressions       the topics that each one matches

The state is immutable: a request makes records of it (`heartbeat`), and `replay` makes the next state from them, both
for what this server has written and for what it reads. Records are values by key, without their frames. Its mappings
share what a change leaves as it was (`LayeredMap`).

Source of the rules: org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroup, ConsumerGroupMember, and
GroupMetadataManager.replay.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar, overload

from pyspark_kafkalog.groups.group_state import (
    CONSUMER_PROTOCOL_TYPE,
    DEFAULT_ASSIGNOR,
    GroupDescription,
    GroupMember,
    GroupType,
    TopicNames,
)
from pyspark_kafkalog.groups.offset_records import group_key, parse_value
from pyspark_kafkalog.metadata.messages import internal_records as records
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.storage.names import TopicPartition

_K = TypeVar("_K")
_V = TypeVar("_V")
_T = TypeVar("_T")

_DIFFERENCES_MIN: Final = 32
_SHARED: Final[Any] = object()


class LayeredMap(Mapping[_K, _V], Generic[_K, _V]):
    """An immutable mapping without values of None, which shares most of its entries with others. Used by one thread.

    It is a dict that it shares, and the few entries that differ from it. When these grow to the square root of the
    whole, they are merged into a dict of their own: so a change costs far less than a copy. Reading all entries merges
    them, too.
    """

    __slots__ = ("_count", "_differences", "_shared")

    def __init__(self, entries: Mapping[_K, _V] | None = None) -> None:
        self._shared: dict[_K, _V] = dict(entries or {})
        self._differences: dict[_K, _V | None] = {}
        self._count = len(self._shared)

    def with_changes(self, changes: Mapping[_K, _V | None]) -> LayeredMap[_K, _V]:
        """The mapping with these values; None removes a key."""
        if not changes:
            return self
        after: LayeredMap[_K, _V] = LayeredMap.__new__(LayeredMap)
        after._shared = self._shared
        after._differences = {**self._differences, **changes}
        after._count = self._count + sum(
            (value is not None) - (self.get(key) is not None) for key, value in changes.items()
        )
        if len(after._differences) > _DIFFERENCES_MIN and len(after._differences) ** 2 > 2 * len(self._shared):
            after._merge()
        return after

    def _merge(self) -> dict[_K, _V]:
        """Have all entries in one dict, which is not changed any more."""
        if self._differences:
            merged = dict(self._shared)
            for key, value in self._differences.items():
                if value is None:
                    merged.pop(key, None)
                else:
                    merged[key] = value
            self._shared, self._differences = merged, {}
        return self._shared

    def __getitem__(self, key: _K) -> _V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    @overload
    def get(self, key: _K, /) -> _V | None: ...
    @overload
    def get(self, key: _K, /, default: _V | _T) -> _V | _T: ...
    def get(self, key: _K, /, default: Any = None) -> Any:
        """As of a dict; that of Mapping costs several times as much."""
        found = self._differences.get(key, _SHARED)
        if found is _SHARED:
            return self._shared.get(key, default)
        return default if found is None else found

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_K]:
        return iter(self._merge())

    def keys(self) -> KeysView[_K]:
        return self._merge().keys()

    def values(self) -> ValuesView[_V]:
        return self._merge().values()

    def items(self) -> ItemsView[_K, _V]:
        return self._merge().items()


#: Partitions by topic id.
Assignment: TypeAlias = Mapping[str, frozenset[int]]
NO_PARTITIONS: Final[Assignment] = MappingProxyType({})
#: Names of topics, and a regular expression.
Subscription: TypeAlias = "tuple[tuple[str, ...], str | None]"
_NOBODY: Final[tuple[str, ...]] = ()
#: A record before it is encoded: key, and value or None for a tombstone.
GroupRecord: TypeAlias = tuple[Message, "Message | None"]

#: Epoch of a static member that has left for a while.
LEFT_FOR_A_WHILE: Final = -2

_INT16: Final = struct.Struct(">h")
_VERSION: Final = b"\0\0"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Topics(Protocol):
    """The topics as of some time; `version` grows with each change, or is 0."""

    @property
    def version(self) -> int: ...

    def topic_id(self, name: str) -> str | None: ...

    def partition_numbers(self, topic_id: str) -> Sequence[int]: ...


class MemberState(IntEnum):
    """Numbers as in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member: its subscription, and its current assignment.

    `assigned` is what it may consume. `revoking` it has to give up first: until it has, no other member gets it.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: records.ClassicMemberMetadata | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=lambda: NO_PARTITIONS)
    revoking: Assignment = field(default_factory=lambda: NO_PARTITIONS)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def subscription_record(self, group_id: str) -> GroupRecord:
        key = records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=self.member_id)
        value = records.ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=self.topics,
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=self.classic,
        )
        return key, value

    def current_record(self, group_id: str) -> GroupRecord:
        """The record of the member's epoch and partitions, without AssignmentEpochs, as of Kafka 4.1.

        Later brokers write these to accept commits of members with an earlier epoch (KIP-1251); the server refuses such
        commits as Kafka 4.1 does. A later broker that loads the record takes the member's epoch for all partitions.
        """
        key = records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=self.member_id)
        value = records.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            assigned_partitions=tuple(
                records.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
                for topic_id, numbers in sorted(self.assigned.items())
            ),
            partitions_pending_revocation=tuple(
                records.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
                for topic_id, numbers in sorted(self.revoking.items())
            ),
        )
        return key, value


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIndex:
    """What the members of a group have together, kept up to date with each change: looking it up costs no loop.

    - `instances`: the member of each instance id
    - `owners`: the members that have a partition, or have not given it up yet; more than one only if the records of a
      group that was upgraded say so
    - `subscriptions`: how many members have each subscription: names of topics, and a regular expression
    - `assignors`: how many members ask for each assignor

    Source: the maps of org.apache.kafka.coordinator.group.modern.ModernGroup and modern.consumer.ConsumerGroup.
    """

    instances: LayeredMap[str, str] = field(default_factory=LayeredMap)
    owners: LayeredMap[tuple[str, int], tuple[str, ...]] = field(default_factory=LayeredMap)
    subscriptions: LayeredMap[Subscription, int] = field(default_factory=LayeredMap)
    regexes: LayeredMap[str, int] = field(default_factory=LayeredMap)
    assignors: LayeredMap[str, int] = field(default_factory=LayeredMap)

    def after(self, changes: Iterable[tuple[ConsumerMember | None, ConsumerMember | None]]) -> GroupIndex:
        """The index after changes of members, each given as it was and as it is."""
        changed = [each for each in changes if each[0] is not each[1]]
        if not changed:
            return self
        before = [old for old, _ in changed if old is not None]
        after = [new for _, new in changed if new is not None]
        return GroupIndex(
            instances=self._instances_after(before, after),
            owners=self._owners_after(changed),
            subscriptions=_counted(self.subscriptions, map(_subscription, before), map(_subscription, after)),
            regexes=_counted(self.regexes, map(_regex, before), map(_regex, after)),
            assignors=_counted(self.assignors, map(_assignor, before), map(_assignor, after)),
        )

    def same_topics(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names in the tuple that members with the same subscription have, so that they share it."""
        return next((each for each, _ in self.subscriptions if each == names), names)

    def is_free_for(self, member_id: str, partition: tuple[str, int]) -> bool:
        """Whether no other member has the partition."""
        return all(each == member_id for each in self.owners.get(partition, _NOBODY))

    def _instances_after(
        self, before: Iterable[ConsumerMember], after: Iterable[ConsumerMember]
    ) -> LayeredMap[str, str]:
        changes: dict[str, str | None] = {
            each.instance_id: None
            for each in before
            if each.instance_id is not None and self.instances.get(each.instance_id) == each.member_id
        }
        changes |= {each.instance_id: each.member_id for each in after if each.instance_id is not None}
        return self.instances.with_changes(changes)

    def _owners_after(
        self, changed: Iterable[tuple[ConsumerMember | None, ConsumerMember | None]]
    ) -> LayeredMap[tuple[str, int], tuple[str, ...]]:
        changes: dict[tuple[str, int], tuple[str, ...] | None] = {}

        def owners_of(partition: tuple[str, int]) -> tuple[str, ...]:
            found = changes[partition] if partition in changes else self.owners.get(partition)
            return found or _NOBODY

        for old, new in changed:
            had, has = _partitions(old), _partitions(new)
            for member, topics, others in ((old, had, has), (new, has, had)):
                if member is None:
                    continue
                mine = (member.member_id,)
                for topic_id, numbers in topics.items():
                    for number in numbers - others.get(topic_id, frozenset()):
                        partition = topic_id, number
                        owners = owners_of(partition)
                        if member is new:
                            changes[partition] = owners + mine if owners else mine
                        elif owners == mine:
                            changes[partition] = None
                        else:
                            changes[partition] = tuple(each for each in owners if each != member.member_id) or None
        return self.owners.with_changes(changes)


def _partitions(member: ConsumerMember | None) -> Mapping[str, frozenset[int]]:
    """What the member has, or has not given up yet."""
    if member is None:
        return {}
    if not member.revoking:
        return member.assigned
    both = dict(member.assigned)
    for topic_id, numbers in member.revoking.items():
        both[topic_id] = both.get(topic_id, frozenset()) | numbers
    return both


def _subscription(member: ConsumerMember) -> Subscription:
    return member.topics, member.regex


def _regex(member: ConsumerMember) -> str | None:
    return member.regex or None


def _assignor(member: ConsumerMember) -> str | None:
    return member.assignor


def _counted(
    counts: LayeredMap[_K, int], before: Iterable[_K | None], after: Iterable[_K | None]
) -> LayeredMap[_K, int]:
    more: Counter[_K] = Counter(each for each in after if each is not None)
    more.subtract(each for each in before if each is not None)
    return counts.with_changes({key: counts.get(key, 0) + count or None for key, count in more.items() if count})


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matches, as of a version of the metadata, found at a time in ms."""

    topics: frozenset[str] = frozenset()
    version: int = 0
    timestamp_ms: int = 0


class TopicsHash:
    """A number that differs if the ids or the numbers of partitions of these topics do; 0 if none of them exists.

    Another hash than a broker's: a broker that takes over raises the epoch once. The last one is kept.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        self._version = 0
        self._found: list[tuple[str, Sequence[int]]] = []
        self._hash = 0

    def of(self, topics: Topics) -> int:
        if topics.version and topics.version == self._version:
            return self._hash
        ids = ((name, topics.topic_id(name)) for name in self._names)
        found = [
            (f"{name} {topic_id}", topics.partition_numbers(topic_id)) for name, topic_id in ids if topic_id is not None
        ]
        if found != self._found:
            text = "".join(f"{named} {_text_of(numbers)}\n" for named, numbers in found)
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            self._found, self._hash = found, int.from_bytes(digest, "big", signed=True) if found else 0
        self._version = topics.version
        return self._hash


def _text_of(numbers: Sequence[int]) -> str:
    """The count of partitions; their numbers where some are missing, as in a broker's directory."""
    is_whole = not numbers or numbers[-1] == len(numbers) - 1
    return str(len(numbers)) if is_whole else str(numbers)


@dataclass(frozen=True, kw_only=True)
class ConsumerGroup:
    """One group. All its changes are those of `replay`."""

    kind: ClassVar[GroupType] = "Consumer"
    protocol_type: ClassVar[str] = CONSUMER_PROTOCOL_TYPE
    #: Its offsets expire by their own age.
    empty_since_ms: ClassVar[int] = -1

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    members: LayeredMap[str, ConsumerMember] = field(default_factory=LayeredMap)
    targets: LayeredMap[str, Assignment] = field(default_factory=LayeredMap)
    regexes: Mapping[str, ResolvedRegex] = field(default_factory=lambda: _NOTHING)
    #: A broker before 4.1 wrote a record of the topics' partitions; the next change deletes it.
    has_partition_record: bool = False
    #: What follows from the members.
    index: GroupIndex = field(default_factory=GroupIndex, compare=False, repr=False)
    #: What follows from the subscriptions: None until it is asked for.
    topics_hash: TopicsHash | None = field(default=None, compare=False, repr=False)

    @property
    def static_members(self) -> Mapping[str, str]:
        """Member id by instance id."""
        return self.index.instances

    @property
    def is_empty(self) -> bool:
        return not self.members

    @cached_property
    def state_name(self) -> str:
        """The state as Kafka's tools spell it."""
        if self.is_empty:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        is_reconciled = all(each.is_reconciled_to(self.target_epoch) for each in self.members.values())
        return "Stable" if is_reconciled else "Reconciling"

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of the topics that the member subscribes to. A regular expression not resolved yet has none."""
        return self.topics_in((member.topics, member.regex))

    def topics_in(self, subscription: Subscription) -> frozenset[str]:
        names, regex = subscription
        found = self.regexes.get(regex or "")
        return frozenset(names) if found is None else found.topics.union(names)

    @cached_property
    def subscribed_topics(self) -> frozenset[str]:
        """The topics that members consume, whose offsets neither expire nor can be deleted."""
        return frozenset[str]().union(*map(self.topics_in, self.index.subscriptions))

    def preferred_assignor(self, known: Collection[str] | None = None) -> str:
        """The assignor that most members ask for, of those that are `known`."""
        votes = {name: count for name, count in self.index.assignors.items() if known is None or name in known}
        return max(sorted(votes), key=votes.__getitem__) if votes else DEFAULT_ASSIGNOR

    def commit_error(self, member_id: str, instance_id: str | None, epoch: int, *, is_transactional: bool) -> ErrorCode:
        """Whether a member may commit offsets, or anybody if the group has no members."""
        if epoch < 0 and self.is_empty:
            return ErrorCode.NONE
        if is_transactional and epoch == -1 and not member_id and instance_id is None:
            return ErrorCode.NONE
        return self.member_epoch_error(member_id, epoch)

    def member_epoch_error(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether it is a member, and knows its epoch."""
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.epoch != epoch:
            return ErrorCode.ILLEGAL_GENERATION if member.classic is not None else ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def described(self, topic_names: TopicNames) -> GroupDescription:
        """The group for commands, with the names of its topics."""

        def named(assignment: Assignment) -> tuple[TopicPartition, ...]:
            parts = ((topic_names(topic_id), numbers) for topic_id, numbers in assignment.items())
            return tuple(sorted(TopicPartition(name, number) for name, numbers in parts for number in numbers))

        return GroupDescription(
            group_id=self.group_id,
            type=self.kind,
            state=self.state_name,
            protocol_type=self.protocol_type,
            assignor=self.preferred_assignor(),
            members=tuple(
                GroupMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client_id,
                    host=each.client_host,
                    assignment=named(each.assigned),
                    target_assignment=named(self.targets.get(each.member_id, NO_PARTITIONS)),
                    epoch=each.epoch,
                    is_upgraded=each.classic is None,
                )
                for each in self.members.values()
            ),
            epoch=self.epoch,
            target_assignment_epoch=self.target_epoch,
        )

    def hash_of(self, topics: Topics) -> int:
        """The hash of the topics that members subscribe to, as they are now."""
        if self.topics_hash is None:
            object.__setattr__(self, "topics_hash", TopicsHash(self.subscribed_topics))
        assert self.topics_hash is not None
        return self.topics_hash.of(topics)


def replay(group: ConsumerGroup, changes: Iterable[GroupRecord]) -> ConsumerGroup:
    """The group after these records, in their order."""
    if not isinstance(changes, Sequence):
        changes = tuple(changes)
    if not changes:
        return group
    members: dict[str, ConsumerMember | None] = {}
    targets: dict[str, Assignment | None] = {}
    regexes = dict(group.regexes)
    values: dict[str, Any] = {}
    same_topics: dict[tuple[str, ...], tuple[str, ...]] = {}

    def member(member_id: str) -> ConsumerMember | None:
        return members[member_id] if member_id in members else group.members.get(member_id)

    for key, value in changes:
        match key, value:
            case records.ConsumerGroupMetadataKey(), records.ConsumerGroupMetadataValue():
                values |= {"epoch": value.epoch, "metadata_hash": value.metadata_hash}
            case records.ConsumerGroupMetadataKey(), None:
                values |= {"epoch": 0, "metadata_hash": 0}
            case records.ConsumerGroupPartitionMetadataKey(), _:
                values["has_partition_record"] = value is not None
            case (
                records.ConsumerGroupTargetAssignmentMetadataKey(),
                records.ConsumerGroupTargetAssignmentMetadataValue(),
            ):
                values["target_epoch"] = value.assignment_epoch
            case records.ConsumerGroupTargetAssignmentMetadataKey(), None:
                values["target_epoch"] = 0
            case records.ConsumerGroupMemberMetadataKey(), records.ConsumerGroupMemberMetadataValue():
                known = member(key.member_id) or ConsumerMember(member_id=key.member_id)
                names = value.subscribed_topic_names
                if names not in same_topics:
                    same_topics[names] = group.index.same_topics(names)
                members[key.member_id] = _with_subscription(known, value, topics=same_topics[names])
            case records.ConsumerGroupMemberMetadataKey(), None:
                members[key.member_id] = None
            case (
                records.ConsumerGroupCurrentMemberAssignmentKey(),
                records.ConsumerGroupCurrentMemberAssignmentValue(),
            ):
                known = member(key.member_id) or ConsumerMember(member_id=key.member_id)
                members[key.member_id] = _with_assignment(known, value)
            case records.ConsumerGroupCurrentMemberAssignmentKey(), None:
                known_or_none = member(key.member_id)
                if known_or_none is not None:
                    members[key.member_id] = _without_assignment(known_or_none)
            case (records.ConsumerGroupTargetAssignmentMemberKey(), records.ConsumerGroupTargetAssignmentMemberValue()):
                targets[key.member_id] = _assignment(value.topic_partitions)
            case records.ConsumerGroupTargetAssignmentMemberKey(), None:
                targets[key.member_id] = None
            case records.ConsumerGroupRegularExpressionKey(), records.ConsumerGroupRegularExpressionValue():
                regexes[key.regular_expression] = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            case records.ConsumerGroupRegularExpressionKey(), None:
                regexes.pop(key.regular_expression, None)
    index = group.index.after((group.members.get(member_id), after) for member_id, after in members.items())
    has_same_topics = index.subscriptions is group.index.subscriptions and regexes == group.regexes
    return replace(
        group,
        members=group.members.with_changes(members),
        targets=group.targets.with_changes(targets),
        regexes=regexes,
        index=index,
        topics_hash=group.topics_hash if has_same_topics else None,
        **values,
    )


def _with_subscription(
    member: ConsumerMember, value: records.ConsumerGroupMemberMetadataValue, *, topics: tuple[str, ...]
) -> ConsumerMember:
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=topics,
        regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=value.classic_member_metadata,
    )


def _with_assignment(
    member: ConsumerMember, value: records.ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerMember:
    is_known = value.state in MemberState._value2member_map_
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if is_known else MemberState.UNKNOWN,
        assigned=_assignment(value.assigned_partitions),
        revoking=_assignment(value.partitions_pending_revocation),
    )


def _without_assignment(member: ConsumerMember) -> ConsumerMember:
    return replace(
        member,
        epoch=LEFT_FOR_A_WHILE + 1,
        previous_epoch=LEFT_FOR_A_WHILE + 1,
        state=MemberState.STABLE,
        assigned=NO_PARTITIONS,
        revoking=NO_PARTITIONS,
    )


def _assignment(
    parts: Iterable[records.TopicPartitions | records.ConsumerGroupTargetAssignmentMemberValueTopicPartition],
) -> Assignment:
    return {each.topic_id: frozenset(each.partitions) for each in parts}


# The bytes of records

RECORD_TYPES: Final[Mapping[int, tuple[type[Message], type[Message] | None]]] = {
    3: (records.ConsumerGroupMetadataKey, records.ConsumerGroupMetadataValue),
    4: (records.ConsumerGroupPartitionMetadataKey, None),
    5: (records.ConsumerGroupMemberMetadataKey, records.ConsumerGroupMemberMetadataValue),
    6: (records.ConsumerGroupTargetAssignmentMetadataKey, records.ConsumerGroupTargetAssignmentMetadataValue),
    7: (records.ConsumerGroupTargetAssignmentMemberKey, records.ConsumerGroupTargetAssignmentMemberValue),
    8: (records.ConsumerGroupCurrentMemberAssignmentKey, records.ConsumerGroupCurrentMemberAssignmentValue),
    16: (records.ConsumerGroupRegularExpressionKey, records.ConsumerGroupRegularExpressionValue),
}


def consumer_group_of(group_id: str, live: Mapping[bytes, bytes]) -> ConsumerGroup:
    """The group with these live records, of which those of other types are ignored.

    Raises CorruptRecordError, UnsupportedFormatError.
    """
    changes: list[GroupRecord] = []
    for key, value in live.items():
        types = RECORD_TYPES.get(_INT16.unpack_from(key)[0])
        if types is not None:
            key_type, value_type = types
            # What a value of a former record type says does not matter: it is there.
            parsed = records.ConsumerGroupMetadataValue() if value_type is None else parse_value(value_type, value)
            changes.append((key_type.decode(0, key[_INT16.size :]), parsed))
    return replay(ConsumerGroup(group_id=group_id), changes)


def encoded(changes: Iterable[GroupRecord]) -> dict[bytes, bytes | None]:
    """The records as values by key, in version 0, as Kafka 4.1 writes them; the last one of a key counts."""
    out: dict[bytes, bytes | None] = {}
    for key, value in changes:
        name = group_key(key)
        out.pop(name, None)
        out[name] = None if value is None else _VERSION + value.encode(0)
    return out
