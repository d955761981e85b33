"""The kind, state and members of a group, from a broker's records in `__consumer_offsets`.

Two kinds of groups have consumers: classic groups, whose members, protocol and assignments are one record, and groups
of the consumer protocol, with a record for each member and assignment. A group that has only offsets is a classic group
without members. Members are as last written: a broker that was stopped or killed leaves them in the records.

Source of the rules: org.apache.kafka.coordinator.group.classic.ClassicGroup and modern.consumer.ConsumerGroup.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.offset_records import group_of_key, parse_value
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMemberValueTopicPartition,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataValue,
    MemberMetadata,
    TopicPartitions,
)
from pyspark_kafkalog.storage.names import TopicPartition

GroupType: TypeAlias = Literal["Classic", "Consumer", "Share", "Streams"]

#: States of consumer groups, as Kafka's tools spell them.
GROUP_STATES: Final = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Empty",
    "Assigning",
    "Reconciling",
)

_INT16: Final = struct.Struct(">h")
_CLASSIC, _CONSUMER, _MEMBER, _TARGET_EPOCH, _TARGET, _CURRENT, _REGEX = 2, 3, 5, 6, 7, 8, 16
SHARE_TYPES: Final = range(10, 16)
_STREAMS_TYPES: Final = range(17, 24)
_CONSUMER_PROTOCOL: Final = "consumer"
_DEFAULT_ASSIGNOR: Final = "uniform"
_MEMBER_STABLE: Final = 0

_V = TypeVar("_V", bound=Message)
_MemberKey: TypeAlias = (
    ConsumerGroupMemberMetadataKey | ConsumerGroupTargetAssignmentMemberKey | ConsumerGroupCurrentMemberAssignmentKey
)

#: Maps a topic id to the topic's name, or to the id itself if it is unknown.
TopicNames: TypeAlias = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member. Epochs, target and `is_upgraded` (to the consumer protocol) are None or empty in classic groups."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    target_assignment: tuple[TopicPartition, ...] = ()
    epoch: int | None = None
    is_upgraded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group. `assignor` is "" if no strategy was chosen; only groups of the consumer protocol have epochs."""

    group_id: str
    type: GroupType
    state: str
    protocol_type: str = ""
    assignor: str = ""
    members: tuple[GroupMember, ...] = ()
    epoch: int | None = None
    target_assignment_epoch: int | None = None

    @property
    def is_of_consumers(self) -> bool:
        """Whether tools for consumer groups show it; false for share and streams groups, and other protocols."""
        return self.type == "Consumer" or (self.type == "Classic" and self.protocol_type in ("", _CONSUMER_PROTOCOL))


def describe_group(
    group_id: str, records: Mapping[bytes, bytes], *, topic_names: TopicNames, with_members: bool
) -> GroupDescription:
    """The group with these live records. `with_members` is False for a log that no broker serves any more.

    Raises CorruptRecordError.
    """
    by_type: dict[int, dict[bytes, bytes]] = {}
    for key, value in records.items():
        named = group_of_key(key)
        if named is not None:
            by_type.setdefault(named[0], {})[key] = value
    if any(each in by_type for each in _STREAMS_TYPES):
        return GroupDescription(group_id=group_id, type="Streams", state="Empty")
    if any(each in by_type for each in SHARE_TYPES):
        return GroupDescription(group_id=group_id, type="Share", state="Empty")
    if _CONSUMER in by_type:
        return _describe_consumer(group_id, by_type, topic_names, with_members)
    return _describe_classic(group_id, by_type.get(_CLASSIC, {}), with_members)


def _describe_classic(group_id: str, records: Mapping[bytes, bytes], with_members: bool) -> GroupDescription:
    for value in records.values():
        group = parse_value(GroupMetadataValue, value)
        members = tuple(map(_classic_member, group.members)) if with_members else ()
        return GroupDescription(
            group_id=group_id,
            type="Classic",
            state="Stable" if members else "Empty",
            protocol_type=group.protocol_type,
            assignor=(group.protocol or "") if members else "",
            members=members,
        )
    return GroupDescription(group_id=group_id, type="Classic", state="Empty")


def empty_since_ms(records: Mapping[bytes, bytes]) -> int:
    """When a classic group lost its last member, in ms; -1 if its records do not say so."""
    for key, value in records.items():
        named = group_of_key(key)
        if named is not None and named[0] == _CLASSIC:
            group = parse_value(GroupMetadataValue, value)
            return -1 if group.members else group.current_state_timestamp
    return -1


def kept_topics(records: Mapping[bytes, bytes]) -> frozenset[str] | None:
    """The topics that the group's members subscribe to, whose offsets do not expire; None: those of all topics.

    Members are as last written. Those that are gone are removed by the server that coordinates the group.
    """
    by_type: dict[int, list[bytes]] = {}
    for key, value in records.items():
        named = group_of_key(key)
        if named is not None:
            by_type.setdefault(named[0], []).append(value)
    topics: set[str] = set()
    for value in by_type.get(_MEMBER, ()):
        topics.update(parse_value(ConsumerGroupMemberMetadataValue, value).subscribed_topic_names)
    for value in by_type.get(_REGEX, ()):
        topics.update(parse_value(ConsumerGroupRegularExpressionValue, value).topics)
    for value in by_type.get(_CLASSIC, ()):
        group = parse_value(GroupMetadataValue, value)
        for member in group.members:
            subscription = parse_subscription(member.subscription)
            if group.protocol_type != _CONSUMER_PROTOCOL or subscription is None:
                return None
            topics.update(subscription.topics)
    return frozenset(topics)


def has_members(records: Mapping[bytes, bytes]) -> bool:
    """Whether the group had members when its records were last written."""
    for key, value in records.items():
        named = group_of_key(key)
        if named is not None and named[0] == _MEMBER:
            return True
        if named is not None and named[0] == _CLASSIC and parse_value(GroupMetadataValue, value).members:
            return True
    return False


def parse_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """The consumer's subscription in a classic member's metadata; None if it is not one.

    It is read as version 0, with which all versions begin.
    """
    if len(metadata) < _INT16.size:
        return None
    try:
        return ConsumerProtocolSubscription.decode(0, metadata[_INT16.size :], allow_trailing=True)
    except KafkalogError:
        return None


def _classic_member(member: MemberMetadata) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=_consumer_assignment(member.assignment),
    )


def _consumer_assignment(blob: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a consumer's assignment message; none if a client of another protocol wrote it."""
    if len(blob) < _INT16.size:
        return ()
    # Later versions only add fields at the end.
    version = min(int(_INT16.unpack_from(blob)[0]), ConsumerProtocolAssignment.schema().highest_version)
    try:
        message = ConsumerProtocolAssignment.decode(version, blob[_INT16.size :], allow_trailing=True)
    except KafkalogError:
        return ()
    return tuple(
        sorted(TopicPartition(each.topic, number) for each in message.assigned_partitions for number in each.partitions)
    )


def _describe_consumer(
    group_id: str, by_type: Mapping[int, Mapping[bytes, bytes]], topic_names: TopicNames, with_members: bool
) -> GroupDescription:
    epoch = next((each.epoch for each in _values(by_type, _CONSUMER, ConsumerGroupMetadataValue)), 0)
    targets_of_group = _values(by_type, _TARGET_EPOCH, ConsumerGroupTargetAssignmentMetadataValue)
    target_epoch = next((each.assignment_epoch for each in targets_of_group), 0)
    members = (
        _by_member(by_type, _MEMBER, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue)
        if with_members
        else {}
    )
    targets = _by_member(
        by_type, _TARGET, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue
    )
    current = _by_member(
        by_type, _CURRENT, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue
    )
    described = []
    is_reconciled = True
    for member_id, member in members.items():
        now = current.get(member_id, ConsumerGroupCurrentMemberAssignmentValue(state=_MEMBER_STABLE))
        target = targets.get(member_id, ConsumerGroupTargetAssignmentMemberValue())
        is_reconciled &= now.state == _MEMBER_STABLE and now.member_epoch == target_epoch
        described.append(
            GroupMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_named(now.assigned_partitions, topic_names),
                target_assignment=_named(target.topic_partitions, topic_names),
                epoch=now.member_epoch,
                is_upgraded=member.classic_member_metadata is None,
            )
        )
    return GroupDescription(
        group_id=group_id,
        type="Consumer",
        state=_consumer_state(bool(described), epoch, target_epoch, is_reconciled),
        protocol_type=_CONSUMER_PROTOCOL,
        assignor=_preferred_assignor(members.values()),
        members=tuple(described),
        epoch=epoch,
        target_assignment_epoch=target_epoch,
    )


def _consumer_state(has_members: bool, epoch: int, target_epoch: int, is_reconciled: bool) -> str:
    if not has_members:
        return "Empty"
    if epoch > target_epoch:
        return "Assigning"
    return "Stable" if is_reconciled else "Reconciling"


def _preferred_assignor(members: Iterable[ConsumerGroupMemberMetadataValue]) -> str:
    """The assignor that most members request; the broker's first one if no member requests one."""
    requested = [each.server_assignor for each in members if each.server_assignor]
    return max(sorted(set(requested)), key=requested.count) if requested else _DEFAULT_ASSIGNOR


def _values(by_type: Mapping[int, Mapping[bytes, bytes]], record_type: int, message: type[_V]) -> Iterator[_V]:
    """The values of one record type."""
    for value in by_type.get(record_type, {}).values():
        yield parse_value(message, value)


def _by_member(
    by_type: Mapping[int, Mapping[bytes, bytes]], record_type: int, key_message: type[_MemberKey], message: type[_V]
) -> dict[str, _V]:
    """The values of one record type, by member id."""
    return {
        key_message.decode(0, key[_INT16.size :]).member_id: parse_value(message, value)
        for key, value in by_type.get(record_type, {}).items()
    }


def _named(
    partitions: Iterable[ConsumerGroupTargetAssignmentMemberValueTopicPartition | TopicPartitions],
    topic_names: TopicNames,
) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(TopicPartition(topic_names(each.topic_id), number) for each in partitions for number in each.partitions)
    )
