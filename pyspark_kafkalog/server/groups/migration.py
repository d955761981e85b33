"""Groups with members of both protocols, and the change of a group from one protocol to the other with its members.

    upgrade      a member of the consumer protocol joins a classic group of consumers: its members become members of a
                 group of the consumer protocol, each with the partitions that it has
    classic      members that continue with JoinGroup, SyncGroup and Heartbeat: the generation is the member's epoch, a
    members      join is one step to the target, and a heartbeat asks for a join as long as there is a step to make
    downgrade    the last member of the consumer protocol has gone: the rest is a classic group again

group.consumer.migration.policy says which of the two changes are made. All functions are pure: what they return is
written in one commit, so a coordinator that takes over finds a group of one protocol or of the other.

Source of the rules: org.apache.kafka.coordinator.group.GroupMetadataManager, classicGroup…ToConsumerGroup and
convertTo…Group; ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.groups.classic_group import ClassicGroup, ClassicMember, SyncAnswer
from pyspark_kafkalog.groups.consumer_group import (
    NO_PARTITIONS,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    GroupRecord,
    MemberState,
)
from pyspark_kafkalog.groups.group_state import CONSUMER_PROTOCOL_TYPE, embedded, embedded_version
from pyspark_kafkalog.metadata.messages import internal_records as records
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.groups.classic import JoinRequest, SyncRequest
from pyspark_kafkalog.server.groups.heartbeat import Heartbeat, epoch_record, target_epoch_record, target_record
from pyspark_kafkalog.server.metadata import KnownTopics
from pyspark_kafkalog.server.request_errors import RequestError

_UPGRADES: Final = ("bidirectional", "upgrade")
_DOWNGRADES: Final = ("bidirectional", "downgrade")
_INT16: Final = struct.Struct(">h")


# Upgrade


def upgraded(group: ClassicGroup, topics: KnownTopics, config: BrokerConfig) -> list[GroupRecord]:
    """The records of the consumer protocol for a classic group with members.

    Raises RequestError if the group has to stay what it is.
    """
    if (
        config.group_consumer_migration_policy not in _UPGRADES
        or group.protocol_type != CONSUMER_PROTOCOL_TYPE
        or len(group.members) > config.group_consumer_max_size
    ):
        raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")
    members = [_upgraded_member(group, each, topics) for each in group.members.values()]
    return [
        *(each.subscription_record(group.group_id) for each in members),
        epoch_record(group.group_id, group.generation, 0),
        *(target_record(group.group_id, each.member_id, each.assigned) for each in members),
        target_epoch_record(group.group_id, group.generation),
        *(each.current_record(group.group_id) for each in members),
    ]


def _upgraded_member(group: ClassicGroup, member: ClassicMember, topics: KnownTopics) -> ConsumerMember:
    # Before its first generation a group has no protocol yet.
    metadata = member.metadata(group.protocol_name) if group.protocol_name else member.protocols[0][1]
    subscription, assigned = (
        embedded(records.ConsumerProtocolSubscription, metadata),
        _assignment(member.assignment, topics),
    )
    if subscription is None or assigned is None:
        raise RequestError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade the classic group {group.group_id} to consumer group because the embedded consumer "
            "protocol is malformed.",
        )
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=_classic_metadata(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=assigned,
    )


# Classic members


def supports(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Whether a classic member can be in the group: all classic members know one of its protocols."""
    known = [
        {each.name for each in member.classic.supported_protocols}
        for member in group.members.values()
        if member.classic is not None
    ]
    return request.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
        all(name in names for names in known) for name, _ in request.protocols
    )


def join_as_heartbeat(request: JoinRequest, member_id: str, topics: KnownTopics) -> Heartbeat:
    """What a JoinGroup says in the words of the consumer protocol.

    Raises RequestError for metadata that are not those of a consumer.
    """
    subscription = embedded(records.ConsumerProtocolSubscription, request.protocols[0][1])
    if subscription is None:
        raise RequestError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "Malformed embedded consumer protocol in the member's metadata."
        )
    owned = ((each.topic, each.partitions) for each in subscription.owned_partitions)
    return Heartbeat(
        member_id=member_id,
        epoch=-1 if request.member_id else 0,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=subscription.topics,
        regex=None,
        assignor=None,
        owned=_by_id(owned, topics),
        client_id=request.client_id,
        client_host=request.client_host,
        resolved={},
        classic=_classic_metadata(request.session_timeout_ms, request.protocols),
    )


def sync(group: ConsumerGroup, request: SyncRequest, topics: KnownTopics) -> SyncAnswer:
    """The assignment of a classic member. Raises RequestError."""
    member = classic_member(group, request.member_id, request.instance_id)
    assert member.classic is not None
    if member.epoch != request.generation:
        raise RequestError(ErrorCode.ILLEGAL_GENERATION)
    protocol = member.classic.supported_protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        protocol.name,
    ):
        raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # A member that has to give up partitions has joined again: it does so first.
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS)
    return SyncAnswer(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=_encoded_assignment(member.assigned, protocol.metadata, topics),
    )


def heartbeat_error(group: ConsumerGroup, member: ConsumerMember, generation: int) -> ErrorCode:
    """REBALANCE_IN_PROGRESS if the classic member has to join again, to learn of its next step."""
    if member.epoch != generation:
        return ErrorCode.ILLEGAL_GENERATION
    has_step = (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
    )
    return ErrorCode.REBALANCE_IN_PROGRESS if has_step else ErrorCode.NONE


def classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """A member that uses the classic protocol. Raises RequestError."""
    if instance_id is not None:
        held_by = group.static_members.get(instance_id)
        if held_by is None:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        if held_by != member_id:
            raise RequestError(ErrorCode.FENCED_INSTANCE_ID)
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    return any(
        number not in member.assigned.get(topic_id, ()) and (topic_id, number) in group.index.owners
        for topic_id, numbers in group.targets.get(member.member_id, NO_PARTITIONS).items()
        for number in numbers
    )


# Downgrade


def downgraded(
    group: ConsumerGroup, topics: KnownTopics, config: BrokerConfig, *, generation: int, now_ms: int
) -> records.GroupMetadataValue | None:
    """The record of the classic group that a group becomes; None if it stays one of the consumer protocol."""
    if (
        config.group_consumer_migration_policy not in _DOWNGRADES
        or not 0 < len(group.members) <= config.group_max_size
        or any(each.classic is None for each in group.members.values())
    ):
        return None
    classic = ClassicGroup(group.group_id, now_ms=now_ms)
    for each in group.members.values():
        assert each.classic is not None
        protocols = tuple((one.name, one.metadata) for one in each.classic.supported_protocols)
        member = ClassicMember(
            member_id=each.member_id,
            instance_id=each.instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            session_timeout_ms=each.classic.session_timeout_ms,
            protocols=protocols,
            assignment=_encoded_assignment(group.targets.get(each.member_id, NO_PARTITIONS), protocols[0][1], topics),
        )
        classic.add(member, CONSUMER_PROTOCOL_TYPE)
    classic.generation = generation
    classic.protocol_name = classic.select_protocol()
    return classic.record(classic.assignments())


# What consumers put into the classic protocol


def _classic_metadata(session_timeout_ms: int, protocols: Iterable[tuple[str, bytes]]) -> records.ClassicMemberMetadata:
    return records.ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=tuple(
            records.ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols
        ),
    )


def _assignment(blob: bytes, topics: KnownTopics) -> Assignment | None:
    """The partitions of a member; none for a member that has not got an assignment yet, None for damage."""
    if not blob:
        return {}
    found = embedded(records.ConsumerProtocolAssignment, blob)
    return (
        None if found is None else _by_id(((each.topic, each.partitions) for each in found.assigned_partitions), topics)
    )


def _encoded_assignment(assignment: Assignment, metadata: bytes, topics: KnownTopics) -> bytes:
    """The assignment in the version of the member's metadata. Topics that are deleted are left out."""
    version = embedded_version(metadata, records.ConsumerProtocolAssignment.schema().highest_version) or 0
    named = ((topics.name(topic_id), numbers) for topic_id, numbers in assignment.items())
    message = records.ConsumerProtocolAssignment(
        assigned_partitions=tuple(
            records.ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=tuple(sorted(numbers)))
            for name, numbers in sorted((name, numbers) for name, numbers in named if name is not None)
        )
    )
    return _INT16.pack(version) + message.encode(version)


def _by_id(named: Iterable[tuple[str, Iterable[int]]], topics: KnownTopics) -> dict[str, frozenset[int]]:
    found = ((topics.topic_id(name), frozenset(numbers)) for name, numbers in named)
    return {topic_id: numbers for topic_id, numbers in found if topic_id is not None and numbers}
