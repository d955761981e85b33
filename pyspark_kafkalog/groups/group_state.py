"""The kind, state and members of a group, from a broker's records in `__consumer_offsets`.

Two kinds of groups have consumers: classic groups, whose members, protocol and assignments are one record, and groups
of the consumer protocol, with a record for each member and assignment. A group that has only offsets is a classic group
without members. Members are as last written: a broker that was stopped or killed leaves them in the records.

Source of the rules: org.apache.kafka.coordinator.group.classic.ClassicGroup and modern.consumer.ConsumerGroup.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.offset_records import group_of_key, parse_value
from pyspark_kafkalog.metadata.messages.codec import MessageSchema
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
_CLASSIC, _CONSUMER, _MEMBER, _TARGET_EPOCH, _TARGET, _CURRENT = 2, 3, 5, 6, 7, 8
_SHARE_TYPES: Final = range(10, 16)
_STREAMS_TYPES: Final = range(17, 24)
_CONSUMER_PROTOCOL: Final = "consumer"
_DEFAULT_ASSIGNOR: Final = "uniform"
_MEMBER_STABLE: Final = 0

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
    if any(each in by_type for each in _SHARE_TYPES):
        return GroupDescription(group_id=group_id, type="Share", state="Empty")
    if _CONSUMER in by_type:
        return _describe_consumer(group_id, by_type, topic_names, with_members)
    return _describe_classic(group_id, by_type.get(_CLASSIC, {}), with_members)


def _describe_classic(group_id: str, records: Mapping[bytes, bytes], with_members: bool) -> GroupDescription:
    for value in records.values():
        fields = parse_value("GroupMetadataValue", value)
        members = tuple(map(_classic_member, fields["members"])) if with_members else ()
        return GroupDescription(
            group_id=group_id,
            type="Classic",
            state="Stable" if members else "Empty",
            protocol_type=fields["protocolType"],
            assignor=(fields["protocol"] or "") if members else "",
            members=members,
        )
    return GroupDescription(group_id=group_id, type="Classic", state="Empty")


def _classic_member(fields: Mapping[str, Any]) -> GroupMember:
    return GroupMember(
        member_id=fields["memberId"],
        instance_id=fields["groupInstanceId"],
        client_id=fields["clientId"],
        host=fields["clientHost"],
        assignment=_consumer_assignment(fields["assignment"]),
    )


def _consumer_assignment(blob: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a consumer's assignment message; none if a client of another protocol wrote it."""
    if len(blob) < _INT16.size:
        return ()
    schema = MessageSchema.load("ConsumerProtocolAssignment")
    version = min(int(_INT16.unpack_from(blob)[0]), schema.highest_version)  # later versions only add to the end
    try:
        fields = schema.decode(version, blob[_INT16.size :], allow_trailing=True)
    except KafkalogError:
        return ()
    return tuple(
        sorted(
            TopicPartition(each["topic"], number)
            for each in fields["assignedPartitions"]
            for number in each["partitions"]
        )
    )


def _describe_consumer(
    group_id: str, by_type: Mapping[int, Mapping[bytes, bytes]], topic_names: TopicNames, with_members: bool
) -> GroupDescription:
    epoch = _first(by_type, _CONSUMER, "ConsumerGroupMetadataValue", "epoch")
    target_epoch = _first(by_type, _TARGET_EPOCH, "ConsumerGroupTargetAssignmentMetadataValue", "assignmentEpoch")
    members = _by_member(by_type, _MEMBER, "ConsumerGroupMemberMetadata") if with_members else {}
    targets = _by_member(by_type, _TARGET, "ConsumerGroupTargetAssignmentMember")
    current = _by_member(by_type, _CURRENT, "ConsumerGroupCurrentMemberAssignment")
    described = []
    is_reconciled = True
    for member_id, fields in members.items():
        now = current.get(member_id, {"memberEpoch": 0, "assignedPartitions": (), "state": _MEMBER_STABLE})
        is_reconciled &= now["state"] == _MEMBER_STABLE and now["memberEpoch"] == target_epoch
        described.append(
            GroupMember(
                member_id=member_id,
                instance_id=fields["instanceId"],
                client_id=fields["clientId"],
                host=fields["clientHost"],
                assignment=_named(now["assignedPartitions"], topic_names),
                target_assignment=_named(targets.get(member_id, {}).get("topicPartitions", ()), topic_names),
                epoch=now["memberEpoch"],
                is_upgraded=fields["classicMemberMetadata"] is None,
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


def _preferred_assignor(members: Iterable[Mapping[str, Any]]) -> str:
    """The assignor that most members request; the broker's first one if no member requests one."""
    asked = [each["serverAssignor"] for each in members if each["serverAssignor"]]
    return max(sorted(set(asked)), key=asked.count) if asked else _DEFAULT_ASSIGNOR


def _first(by_type: Mapping[int, Mapping[bytes, bytes]], record_type: int, schema_name: str, field: str) -> int:
    for value in by_type.get(record_type, {}).values():
        return int(parse_value(schema_name, value)[field])
    return 0


def _by_member(by_type: Mapping[int, Mapping[bytes, bytes]], record_type: int, name: str) -> dict[str, dict[str, Any]]:
    schema = MessageSchema.load(f"{name}Key")
    return {
        schema.decode(0, key[_INT16.size :])["memberId"]: parse_value(f"{name}Value", value)
        for key, value in by_type.get(record_type, {}).items()
    }


def _named(partitions: Iterable[Mapping[str, Any]], topic_names: TopicNames) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic_names(each["topicId"]), number) for each in partitions for number in each["partitions"]
        )
    )
