"""ListGroups, DescribeGroups, ConsumerGroupDescribe and DeleteGroups.

A server lists the groups that it coordinates; the admin client asks all servers. DescribeGroups is for classic groups,
ConsumerGroupDescribe for those of the consumer protocol; each says GROUP_ID_NOT_FOUND of the others, DescribeGroups
before version 6 the state Dead instead. A group that has only offsets is a classic group without members. Share groups
and streams groups, which a broker may have left, are listed and can be deleted.

Source of the rules: org.apache.kafka.coordinator.group.GroupMetadataManager and GroupCoordinatorService.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

from pyspark_kafkalog.groups.classic_group import ClassicGroup, ClassicMember, ClassicState, classic_key
from pyspark_kafkalog.groups.consumer_group import Assignment, ConsumerGroup, ConsumerMember
from pyspark_kafkalog.groups.offsets_topic import AnyGroup
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups as consumer_wire
from pyspark_kafkalog.protocol.messages import groups as wire
from pyspark_kafkalog.server.context import Request, ServerContext, Session
from pyspark_kafkalog.server.event_loop import in_turns
from pyspark_kafkalog.server.groups.assignors import ASSIGNORS
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.shard import Planned, Shard
from pyspark_kafkalog.server.metadata import KnownTopics, known_topics
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.server.security.acls import authorized_operations

_NOT_FOUND_FROM: Final = 6
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


class GroupDescriptionHandlers:
    """The handlers, over the coordinator's groups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def list(self, context: ServerContext, request: Request[wire.ListGroupsRequest]) -> wire.ListGroupsResponse:
        body = request.body
        try:
            shards = await self._coordinator.all_shards()
        except RequestError as refused:
            return wire.ListGroupsResponse(error_code=refused.code)
        states = {each.lower() for each in body.states_filter}
        types = {each.lower() for each in body.types_filter}
        allows, session = context.guard.allows, request.session
        sees_all = allows(session, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=False)
        return wire.ListGroupsResponse(
            groups=tuple(
                [
                    each
                    for shard in shards
                    async for each in _listed(shard)
                    if (not states or each.group_state.lower() in states)
                    and (not types or each.group_type.lower() in types)
                    and (
                        sees_all
                        or allows(session, AclOperation.DESCRIBE, ResourceType.GROUP, each.group_id, logs_denial=False)
                    )
                ]
            )
        )

    # DescribeGroups

    async def describe(
        self, context: ServerContext, request: Request[wire.DescribeGroupsRequest]
    ) -> wire.DescribeGroupsResponse:
        body = request.body
        groups = [await self._described(context, request, each) async for each in in_turns(body.groups)]
        return wire.DescribeGroupsResponse(groups=tuple(groups))

    async def _described(
        self, context: ServerContext, request: Request[wire.DescribeGroupsRequest], group_id: str
    ) -> wire.DescribedGroup:
        body = request.body
        try:
            shard = await self._readable(context, request.session, group_id)
        except RequestError as refused:
            return wire.DescribedGroup(error_code=refused.code, group_id=group_id)
        group = shard.group(group_id)
        asked = body.include_authorized_operations
        operations = authorized_operations(context, request.session, ResourceType.GROUP, group_id, asked=asked)
        knows_error = request.api_version >= _NOT_FOUND_FROM
        if isinstance(group, ClassicGroup):
            return _described_classic(group, operations, has_message=knows_error)
        return wire.DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if knows_error else ErrorCode.NONE,
            error_message=_not_found(group_id, group, "classic") if knows_error else None,
            group_id=group_id,
            group_state=ClassicState.DEAD.value,
            authorized_operations=operations,
        )

    async def _readable(self, context: ServerContext, session: Session, group_id: str) -> Shard:
        if not context.guard.allows(session, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
            raise RequestError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return await self._coordinator.read_shard_of(group_id)

    # ConsumerGroupDescribe

    async def describe_consumer(
        self, context: ServerContext, request: Request[consumer_wire.ConsumerGroupDescribeRequest]
    ) -> consumer_wire.ConsumerGroupDescribeResponse:
        body = request.body
        groups = [await self._described_consumer(context, request, each) async for each in in_turns(body.group_ids)]
        return consumer_wire.ConsumerGroupDescribeResponse(groups=tuple(groups))

    async def _described_consumer(
        self, context: ServerContext, request: Request[consumer_wire.ConsumerGroupDescribeRequest], group_id: str
    ) -> consumer_wire.DescribedGroup:
        body = request.body
        try:
            if not group_id:
                raise RequestError(ErrorCode.INVALID_GROUP_ID)
            shard = await self._readable(context, request.session, group_id)
            group = shard.group(group_id)
            if not isinstance(group, ConsumerGroup):
                raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, _not_found(group_id, group, "consumer"))
            _check_topics_seen(context, request.session, group)
        except RequestError as refused:
            return consumer_wire.DescribedGroup(error_code=refused.code, error_message=str(refused), group_id=group_id)
        asked = body.include_authorized_operations
        return consumer_wire.DescribedGroup(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.preferred_assignor(ASSIGNORS),
            members=tuple(_described_member(context, group, each) for each in group.members.values()),
            authorized_operations=authorized_operations(
                context, request.session, ResourceType.GROUP, group_id, asked=asked
            ),
        )

    # DeleteGroups

    async def delete(
        self, context: ServerContext, request: Request[wire.DeleteGroupsRequest]
    ) -> wire.DeleteGroupsResponse:
        body = request.body
        results = []
        async for group_id in in_turns(dict.fromkeys(body.groups_names)):
            error = await self._delete(context, request.session, group_id)
            results.append(wire.DeletableGroupResult(group_id=group_id, error_code=error))
        return wire.DeleteGroupsResponse(results=tuple(results))

    async def _delete(self, context: ServerContext, session: Session, group_id: str) -> ErrorCode:
        if not context.guard.allows(session, AclOperation.DELETE, ResourceType.GROUP, group_id):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        try:
            shard = await self._coordinator.shard_of(group_id)
            await shard.write(group_id, lambda: _plan_deletion(shard, group_id), is_exclusive=True)
        except RequestError as refused:
            return refused.code
        return ErrorCode.NONE


def _plan_deletion(shard: Shard, group_id: str) -> Planned:
    """Tombstones of all records of the group, and of what open transactions have written of it."""
    group = shard.group(group_id)
    if group is None:
        raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND)
    if not group.is_empty:
        raise RequestError(ErrorCode.NON_EMPTY_GROUP)
    records = shard.log.records(group_id)
    tombstones: dict[bytes, bytes | None] = dict.fromkeys([*records, *shard.log.pending_keys(group_id)])
    if group.kind != "Consumer":
        tombstones.setdefault(classic_key(group_id))
    return Planned(tombstones, done=lambda: shard.close_classic(group_id, ErrorCode.UNKNOWN_MEMBER_ID))


async def _listed(shard: Shard) -> AsyncIterator[wire.ListedGroup]:
    """The groups of the partition. Those that are only in the log are left there."""
    async for group_id in in_turns(sorted(shard.group_ids())):
        group = shard.group(group_id)
        if group is not None:
            yield wire.ListedGroup(
                group_id=group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state_name,
                group_type=group.kind.lower(),
            )


def _not_found(group_id: str, group: AnyGroup | None, kind: str) -> str:
    return f"Group {group_id} {'not found' if group is None else f'is not a {kind} group'}."


def _described_classic(group: ClassicGroup, operations: int, *, has_message: bool) -> wire.DescribedGroup:
    is_stable = group.state is ClassicState.STABLE
    return wire.DescribedGroup(
        error_message="" if has_message else None,
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=tuple(
            _described_classic_member(each, group.protocol_name if is_stable else None)
            for each in group.members.values()
        ),
        authorized_operations=operations,
    )


def _described_classic_member(member: ClassicMember, protocol: str | None) -> wire.DescribedGroupMember:
    return wire.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol is None else member.metadata(protocol),
        member_assignment=member.assignment,
    )


def _check_topics_seen(context: ServerContext, session: Session, group: ConsumerGroup) -> None:
    """Members are hidden from a client that may not describe one of the group's topics."""
    known = known_topics(context)
    ids = {
        topic_id
        for part in (*(each.assigned for each in group.members.values()), *group.targets.values())
        for topic_id in part
    }
    names = {name for each in ids if (name := known.name(each)) is not None}
    topics = names.union(*(each.topics for each in group.members.values()))
    for topic in sorted(topics):
        if not context.guard.allows(session, AclOperation.DESCRIBE, ResourceType.TOPIC, topic):
            raise RequestError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "The group has described topic(s) that the client is not authorized to describe.",
            )


def _described_member(context: ServerContext, group: ConsumerGroup, member: ConsumerMember) -> consumer_wire.Member:
    known = known_topics(context)
    return consumer_wire.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.regex or "",
        assignment=_described_assignment(known, member.assigned),
        target_assignment=_described_assignment(known, group.targets.get(member.member_id, {})),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _described_assignment(
    known: KnownTopics, assignment: Assignment
) -> consumer_wire.ConsumerGroupDescribeResponseAssignment:
    parts: Iterable[tuple[str, frozenset[int]]] = sorted(assignment.items())
    return consumer_wire.ConsumerGroupDescribeResponseAssignment(
        topic_partitions=tuple(
            consumer_wire.ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=tuple(sorted(numbers))
            )
            for topic_id, numbers in parts
            if (name := known.name(topic_id)) is not None
        )
    )
