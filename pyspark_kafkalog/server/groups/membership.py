"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of the classic protocol, and ConsumerGroupHeartbeat.

A group is of one protocol. Without members it changes to the other one with the first join: its records are deleted,
its offsets stay. With members, `migration` says how it changes, and how members of both protocols are together in a
group of the consumer protocol.

Source of the rules: org.apache.kafka.coordinator.group.GroupCoordinatorService and GroupMetadataManager.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.groups.classic_group import ClassicGroup, JoinAnswer, SyncAnswer, classic_key
from pyspark_kafkalog.groups.consumer_group import (
    LEFT_FOR_A_WHILE,
    Assignment,
    ConsumerGroup,
    GroupRecord,
    MemberState,
    ResolvedRegex,
    encoded,
    replay,
)
from pyspark_kafkalog.java_regex.patterns import compile_re2_pattern
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataValue
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import consumer_groups as consumer_wire
from pyspark_kafkalog.protocol.messages import groups as wire
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.groups import heartbeat as consumer
from pyspark_kafkalog.server.groups import migration
from pyspark_kafkalog.server.groups.assignors import ASSIGNORS
from pyspark_kafkalog.server.groups.classic import ClassicProtocol, JoinRequest, SyncRequest
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.shard import Planned, Shard
from pyspark_kafkalog.server.groups.subscribed_regexes import NOTHING_RESOLVED, SubscribedRegexes
from pyspark_kafkalog.server.metadata import known_topics
from pyspark_kafkalog.server.request_errors import RequestError

_LOG: Final = logging.getLogger(__name__)
_LEAVES: Final = -1
#: JoinGroup and LeaveGroup versions from which a rule holds.
_KNOWN_ID_FROM, _SKIPS_ASSIGNMENT_FROM, _PROTOCOL_TYPE_FROM = 4, 9, 7
_LEAVES_MANY_FROM: Final = 3
_OWN_ID_FROM: Final = 1
_SYNC_NAMES_PROTOCOL_FROM: Final = 5
#: An assignment is sent so often, until the member has acknowledged it.
_TOLD_MAX: Final = 10
_TOLD_MEMBERS_MAX: Final = 100_000


class MembershipHandlers:
    """The handlers, over the coordinator's groups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._regexes = SubscribedRegexes()
        #: What members of consumer groups, by group and id, were told to have, and how often.
        self._sent_assignments: dict[tuple[str, str], tuple[Assignment, int]] = {}

    # JoinGroup

    async def join(self, context: ServerContext, request: Request[wire.JoinGroupRequest]) -> wire.JoinGroupResponse:
        body = request.body
        try:
            _check_group(context, request, body.group_id)
            config = context.broker_config()
            limits = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
            if not limits[0] <= body.session_timeout_ms <= limits[1]:
                raise RequestError(ErrorCode.INVALID_SESSION_TIMEOUT)
            shard = await self._coordinator.shard_of(body.group_id)
            if _has_consumers(shard, body.group_id):
                answer = await self._join_consumers(context, shard, body.group_id, _join_request(request, body))
                return _join_response(answer, request.api_version)
            machine = await self._joined_machine(shard, body.group_id, is_new_member=not body.member_id)
        except RequestError as refused:
            return _join_response(JoinAnswer(error=refused.code, member_id=body.member_id), request.api_version)
        waiting: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        machine.join(_join_request(request, body), lambda answer: _set(waiting, answer))
        return _join_response(await waiting, request.api_version)

    async def _join_consumers(
        self, context: ServerContext, shard: Shard, group_id: str, request: JoinRequest
    ) -> JoinAnswer:
        """A classic member joins a group of the consumer protocol, which has members: it is answered at once."""
        config = context.broker_config()
        member_id = request.member_id or str(uuid.uuid4())

        def plan() -> Planned:
            group = shard.consumer(group_id)
            if group is None or not group.members:
                raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group has changed its protocol")
            if len(group.members) >= config.group_consumer_max_size and member_id not in group.members:
                raise RequestError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            if not migration.supports(group, request):
                raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if request.must_know_id and not request.member_id and request.instance_id is None:
                return Planned({}, JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
            topics = known_topics(context)
            asked = migration.join_as_heartbeat(request, member_id, topics)
            result = consumer.heartbeat(group, asked, topics, max_size=config.group_consumer_max_size)
            answer = JoinAnswer(
                member_id=member_id,
                generation=result.member_epoch,
                protocol_type=request.protocol_type,
                protocol_name=request.protocols[0][0],
            )

            def done() -> None:
                shard.set_consumer(result.group)
                for each in group.members.keys() - result.group.members.keys():
                    self._coordinator.forget_member(shard, group_id, each)
                member = result.group.members[member_id]
                self._coordinator.await_heartbeat(shard, group_id, member)
                self._coordinator.joined(shard, group_id, member)

            classic = self._coordinator.downgrade(shard, group, result.group, answer, rebalances=False)
            return classic or Planned(encoded(result.records), answer, done)

        answer: JoinAnswer = await shard.write(group_id, plan, is_exclusive=True)
        return answer

    async def _joined_machine(self, shard: Shard, group_id: str, *, is_new_member: bool) -> ClassicProtocol:
        """The machine of the group; a new member may create it, with an empty record."""
        group = shard.consumer(group_id)
        if group is not None:
            if group.members:
                raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            await shard.write(group_id, lambda: _plan_conversion(shard, group_id), is_exclusive=True)
        if group_id in shard.classics:
            return shard.classics[group_id]
        recorded = shard.recorded(group_id)
        if recorded.kind != "Classic":
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not is_new_member and not shard.log.records(group_id):
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
        machine = shard.new_classic(group_id)
        if machine.last_record is None:
            empty = GroupMetadataValue(
                protocol=None, leader=None, current_state_timestamp=self._coordinator.context.clock()
            )
            shard.write_classic(group_id, empty, lambda error: None)
        return machine

    # SyncGroup, Heartbeat, LeaveGroup

    async def sync(self, context: ServerContext, request: Request[wire.SyncGroupRequest]) -> wire.SyncGroupResponse:
        body = request.body
        if request.api_version >= _SYNC_NAMES_PROTOCOL_FROM and None in (body.protocol_type, body.protocol_name):
            return _sync_response(SyncAnswer(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        asked = SyncRequest(
            member_id=body.member_id,
            instance_id=body.group_instance_id,
            generation=body.generation_id,
            protocol_type=body.protocol_type,
            protocol_name=body.protocol_name,
            assignments={each.member_id: bytes(each.assignment) for each in body.assignments},
        )
        try:
            shard = await self._shard(context, request, body.group_id)
            if _has_consumers(shard, body.group_id):
                return _sync_response(await self._sync_consumers(context, shard, body.group_id, asked))
            machine = _machine(shard, body.group_id)
        except RequestError as refused:
            return _sync_response(SyncAnswer(error=refused.code))
        waiting: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        machine.sync(asked, lambda answer: _set(waiting, answer))
        return _sync_response(await waiting)

    async def _sync_consumers(
        self, context: ServerContext, shard: Shard, group_id: str, request: SyncRequest
    ) -> SyncAnswer:
        """The assignment of a classic member of a group of the consumer protocol, as of the newest records."""

        def plan() -> Planned:
            group = shard.consumer(group_id)
            if group is None:
                raise RequestError(ErrorCode.REBALANCE_IN_PROGRESS, "the group has changed its protocol")
            answer = migration.sync(group, request, known_topics(context))
            member = group.members[request.member_id]

            def done() -> None:
                self._coordinator.synced(shard, group_id, member)
                self._coordinator.await_heartbeat(shard, group_id, member)

            return Planned({}, answer, done)

        answer: SyncAnswer = await shard.write(group_id, plan)
        return answer

    async def heartbeat(
        self, context: ServerContext, request: Request[wire.HeartbeatRequest]
    ) -> wire.HeartbeatResponse:
        body = request.body
        try:
            shard = await self._shard(context, request, body.group_id)
            group = shard.consumer(body.group_id)
            if group is not None and group.members:
                member = migration.classic_member(group, body.member_id, body.group_instance_id)
                error = migration.heartbeat_error(group, member, body.generation_id)
                if error is not ErrorCode.ILLEGAL_GENERATION:
                    self._coordinator.await_heartbeat(shard, body.group_id, member)
                if error is ErrorCode.REBALANCE_IN_PROGRESS:
                    self._coordinator.await_join(shard, body.group_id, member)
                return wire.HeartbeatResponse(error_code=error)
            machine = _machine(shard, body.group_id)
        except RequestError as refused:
            return wire.HeartbeatResponse(error_code=refused.code)
        error = machine.heartbeat(body.member_id, body.group_instance_id, body.generation_id)
        return wire.HeartbeatResponse(error_code=error)

    async def leave(self, context: ServerContext, request: Request[wire.LeaveGroupRequest]) -> wire.LeaveGroupResponse:
        body = request.body
        is_of_many = request.api_version >= _LEAVES_MANY_FROM
        named: list[tuple[str, str | None]] = [(body.member_id, None)]
        if is_of_many:
            named = [(each.member_id, each.group_instance_id) for each in body.members]
        try:
            errors = await self._leave(context, request, body.group_id, named)
        except RequestError as refused:
            if refused.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                return wire.LeaveGroupResponse(error_code=refused.code)
            errors = [refused.code] * len(named)  # no such group
        if not is_of_many:
            return wire.LeaveGroupResponse(error_code=errors[0])
        return wire.LeaveGroupResponse(
            members=tuple(
                wire.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
                for (member_id, instance_id), error in zip(named, errors, strict=True)
            )
        )

    async def _leave(
        self, context: ServerContext, request: AnyRequest, group_id: str, named: list[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        """Also members of the consumer protocol are removed so, by the admin client."""
        shard = await self._shard(context, request, group_id)
        if shard.consumer(group_id) is None:
            return _machine(shard, group_id).leave(named)

        def plan() -> Planned:
            group = shard.consumer(group_id)
            if group is None:
                raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
            found = [_member_to_remove(group, *each) for each in named]
            gone = sorted({each for each in found if isinstance(each, str)})
            errors = [ErrorCode.NONE if isinstance(each, str) else each for each in found]
            if not gone:
                return Planned({}, errors)
            return self._coordinator.removal(shard, group, gone, errors)

        errors: list[ErrorCode] = await shard.write(group_id, plan, is_exclusive=True)
        return errors

    async def _shard(self, context: ServerContext, request: AnyRequest, group_id: str) -> Shard:
        _check_group(context, request, group_id)
        return await self._coordinator.shard_of(group_id)

    # ConsumerGroupHeartbeat

    async def consumer_heartbeat(
        self, context: ServerContext, request: Request[consumer_wire.ConsumerGroupHeartbeatRequest]
    ) -> consumer_wire.ConsumerGroupHeartbeatResponse:
        body = request.body
        try:
            if not context.guard.allows(request.session, AclOperation.READ, ResourceType.GROUP, body.group_id):
                raise RequestError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            _check_heartbeat(body, request.api_version)
            _check_topics(context, request, body)
            shard = await self._coordinator.shard_of(body.group_id)
            result = await self._consumer_heartbeat(context, request, body, shard)
        except RequestError as refused:
            _LOG.debug("group %s: %s is refused: %s %s", body.group_id, body, refused.code.name, refused)
            return consumer_wire.ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=str(refused))
        assignment = self._assignment_to_tell(body, result)
        if _LOG.isEnabledFor(logging.DEBUG):
            member = result.group.members.get(result.member_id)
            _LOG.debug("group %s: %s makes %s, which is told %s", body.group_id, body, member, assignment)
        return consumer_wire.ConsumerGroupHeartbeatResponse(
            member_id=result.member_id,
            member_epoch=result.member_epoch,
            heartbeat_interval_ms=0
            if result.member_epoch < 0
            else context.group_config(body.group_id).heartbeat_interval_ms,
            assignment=None
            if assignment is None
            else consumer_wire.ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=tuple(
                    consumer_wire.ConsumerGroupHeartbeatResponseTopicPartitions(
                        topic_id=topic_id, partitions=tuple(sorted(numbers))
                    )
                    for topic_id, numbers in sorted(assignment.items())
                )
            ),
        )

    async def _consumer_heartbeat(
        self,
        context: ServerContext,
        request: AnyRequest,
        body: consumer_wire.ConsumerGroupHeartbeatRequest,
        shard: Shard,
    ) -> consumer.HeartbeatResult:
        member_id = body.member_id or str(uuid.uuid4())
        leaves = body.member_epoch in (_LEAVES, LEFT_FOR_A_WHILE)
        resolved = NOTHING_RESOLVED
        if not leaves:
            resolved = await self._regexes.resolved(
                context, request, body.group_id, shard.consumer(body.group_id), body.subscribed_topic_regex
            )
        before = shard.consumer(body.group_id)
        if before is not None and not leaves:
            asked = _asked(request, body, member_id, resolved.regexes)
            answered = consumer.answered(before, asked, known_topics(context))
            if answered is not None:
                resolved.stored()
                self._await_member(shard, body.group_id, answered)
                return answered

        def plan() -> Planned:
            now = _heartbeat_step(context, request, body, shard, member_id, resolved.regexes)
            before, after = shard.consumer(body.group_id), now.result.group
            classic = before and self._coordinator.downgrade(shard, before, after, now.result, rebalances=True)

            def done() -> None:
                # Members of a classic group that wait for a rebalance or an assignment: there is another rebalance now.
                shard.close_classic(body.group_id, ErrorCode.REBALANCE_IN_PROGRESS)
                shard.set_consumer(after)
                for each in after.members.values() if before is None else ():
                    self._coordinator.await_heartbeat(shard, body.group_id, each)
                self._await_member(shard, body.group_id, now.result)
                resolved.stored()

            return classic or Planned(now.changes, now.result, done)

        result: consumer.HeartbeatResult = await shard.write(body.group_id, plan, is_exclusive=True)
        return result

    def _assignment_to_tell(
        self, body: consumer_wire.ConsumerGroupHeartbeatRequest, result: consumer.HeartbeatResult
    ) -> Assignment | None:
        """The member's assignment, if it has changed, or the member may not know it yet.

        A broker tells a change once. librdkafka (2.16) does not ask for it after a heartbeat that timed out: it keeps
        partitions that it should give up, or never begins with new ones, and the group stands still. A member that
        knows the assignment ignores it.
        """
        key = body.group_id, result.member_id
        member = result.group.members.get(result.member_id)
        if member is None or result.member_epoch == LEFT_FOR_A_WHILE:
            self._sent_assignments.pop(key, None)
            return result.assignment
        if len(self._sent_assignments) > _TOLD_MEMBERS_MAX:
            self._sent_assignments.clear()
        if result.assignment is not None:
            self._sent_assignments[key] = member.assigned, 1
            return result.assignment
        assignment, count = self._sent_assignments.get(key, (member.assigned, 0))
        if assignment != member.assigned:
            count = 0  # another server has given it this one, and its answer may have been lost
        is_sent_assignments = False
        if body.topic_partitions is not None and _owned(body) == member.assigned:
            count = _TOLD_MAX
        elif (count < _TOLD_MAX and member.assigned) or member.state is MemberState.UNREVOKED_PARTITIONS:
            count = min(count + 1, _TOLD_MAX)
            is_sent_assignments = True
        self._sent_assignments[key] = member.assigned, count
        return member.assigned if is_sent_assignments else None

    def _await_member(self, shard: Shard, group_id: str, result: consumer.HeartbeatResult) -> None:
        member = result.group.members.get(result.member_id)
        if member is None:
            self._coordinator.forget_member(shard, group_id, result.member_id)
        else:
            if member.epoch != LEFT_FOR_A_WHILE:
                self._coordinator.await_heartbeat(shard, group_id, member)
            self._coordinator.await_revocation(shard, group_id, member)


@dataclass(frozen=True, slots=True)
class _Step:
    """What a heartbeat does, with its records as values by key."""

    changes: Mapping[bytes, bytes | None]
    result: consumer.HeartbeatResult


def _heartbeat_step(
    context: ServerContext,
    request: AnyRequest,
    body: consumer_wire.ConsumerGroupHeartbeatRequest,
    shard: Shard,
    member_id: str,
    resolved: Mapping[str, ResolvedRegex],
) -> _Step:
    group_id = body.group_id
    topics = known_topics(context)
    group = shard.consumer(group_id)
    first: dict[bytes, bytes | None] = {}
    if group is None:
        if body.member_epoch != 0:
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        first, group = _conversion_to_consumer(context, shard, group_id)
    if body.member_epoch in (_LEAVES, LEFT_FOR_A_WHILE):
        result = consumer.leave(group, member_id, body.instance_id, body.member_epoch, topics)
    else:
        asked = _asked(request, body, member_id, resolved)
        result = consumer.heartbeat(group, asked, topics, max_size=context.broker_config().group_consumer_max_size)
    return _Step({**first, **encoded(result.records)}, result)


def _asked(
    request: AnyRequest,
    body: consumer_wire.ConsumerGroupHeartbeatRequest,
    member_id: str,
    resolved: Mapping[str, ResolvedRegex],
) -> consumer.Heartbeat:
    return consumer.Heartbeat(
        member_id=member_id,
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        topics=body.subscribed_topic_names,
        regex=body.subscribed_topic_regex,
        assignor=body.server_assignor,
        owned=None if body.topic_partitions is None else _owned(body),
        client_id=request.client_id,
        client_host=f"/{request.session.host}",
        resolved=resolved,
    )


def _owned(body: consumer_wire.ConsumerGroupHeartbeatRequest) -> dict[str, frozenset[int]]:
    """The partitions that the member says it has, by topic id."""
    return {each.topic_id: frozenset(each.partitions) for each in body.topic_partitions or () if each.partitions}


# Checks


def _check_group(context: ServerContext, request: AnyRequest, group_id: str) -> None:
    if not context.guard.allows(request.session, AclOperation.READ, ResourceType.GROUP, group_id):
        raise RequestError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not group_id:
        raise RequestError(ErrorCode.INVALID_GROUP_ID)


def _check_heartbeat(body: consumer_wire.ConsumerGroupHeartbeatRequest, api_version: int) -> None:
    """Raise RequestError for what no member would say."""
    must_name_itself = api_version >= _OWN_ID_FROM or body.member_epoch > 0 or body.member_epoch == _LEAVES
    problem = ""
    if not body.member_id and must_name_itself:
        problem = "MemberId can't be empty."
    elif not body.group_id:
        problem = "GroupId can't be empty."
    elif body.instance_id == "" or body.rack_id == "":
        problem = "InstanceId and RackId can't be empty."
    elif body.member_epoch == 0 and body.rebalance_timeout_ms == -1:
        problem = "RebalanceTimeoutMs must be provided in first request."
    elif body.member_epoch == 0 and (body.topic_partitions is None or body.topic_partitions):
        problem = "TopicPartitions must be empty when (re-)joining."
    elif body.member_epoch == 0 and body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif body.member_epoch == LEFT_FOR_A_WHILE and body.instance_id is None:
        problem = "InstanceId can't be null."
    elif body.member_epoch < LEFT_FOR_A_WHILE:
        problem = "MemberEpoch is invalid."
    if problem:
        raise RequestError(ErrorCode.INVALID_REQUEST, problem)
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        raise RequestError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )
    if body.subscribed_topic_regex:
        try:
            compile_re2_pattern(body.subscribed_topic_regex)
        except ValueError as error:
            raise RequestError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None


def _check_topics(
    context: ServerContext, request: AnyRequest, body: consumer_wire.ConsumerGroupHeartbeatRequest
) -> None:
    for topic in body.subscribed_topic_names or ():
        if not context.guard.allows(request.session, AclOperation.DESCRIBE, ResourceType.TOPIC, topic):
            raise RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _member_to_remove(group: ConsumerGroup, member_id: str, instance_id: str | None) -> str | ErrorCode:
    if instance_id is not None:
        held_by = group.static_members.get(instance_id)
        if held_by is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return held_by if member_id in ("", held_by) else ErrorCode.FENCED_INSTANCE_ID
    return member_id if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


# From one protocol to the other


def _has_consumers(shard: Shard, group_id: str) -> bool:
    """Whether it is a group of the consumer protocol with members."""
    group = shard.consumer(group_id)
    return group is not None and bool(group.members)


def _machine(shard: Shard, group_id: str) -> ClassicProtocol:
    """The group's machine. Raises RequestError if it has none: then it has no members."""
    machine = shard.classic(group_id)
    if machine is None:
        raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID)
    return machine


def _plan_conversion(shard: Shard, group_id: str) -> Planned:
    """Delete the records of an empty group of the consumer protocol, but for its offsets."""
    group = shard.consumer(group_id)
    if group is None:
        return Planned({})
    if group.members:
        raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return Planned(dict.fromkeys(shard.log.state_records(group_id)))


def _conversion_to_consumer(
    context: ServerContext, shard: Shard, group_id: str
) -> tuple[dict[bytes, bytes | None], ConsumerGroup]:
    """What makes a group of the consumer protocol of a classic one, or of none, and that group.

    Raises RequestError for a group with members that has to stay what it is.
    """
    group = shard.group(group_id)
    new: list[GroupRecord] = []
    if isinstance(group, ClassicGroup):
        if group.members:
            new = migration.upgraded(group, known_topics(context), context.broker_config())
    elif group is not None:
        raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
    key = classic_key(group_id)
    tombstone: dict[bytes, bytes | None] = {key: None} if key in shard.log.records(group_id) else {}
    return {**tombstone, **encoded(new)}, replay(ConsumerGroup(group_id=group_id), new)


# Messages


def _join_request(request: AnyRequest, body: wire.JoinGroupRequest) -> JoinRequest:
    has_rebalance_timeout = request.api_version >= 1
    return JoinRequest(
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        client_id=request.client_id,
        client_host=f"/{request.session.host}",
        session_timeout_ms=body.session_timeout_ms,
        rebalance_timeout_ms=body.rebalance_timeout_ms if has_rebalance_timeout else body.session_timeout_ms,
        protocol_type=body.protocol_type,
        # Of protocols with one name the first counts; metadata may be a view of the request's frame.
        protocols=tuple({each.name: bytes(each.metadata) for each in reversed(body.protocols)}.items())[::-1],
        must_know_id=request.api_version >= _KNOWN_ID_FROM,
        may_skip_assignment=request.api_version >= _SKIPS_ASSIGNMENT_FROM,
    )


def _join_response(answer: JoinAnswer, api_version: int) -> wire.JoinGroupResponse:
    # Before version 7 the name cannot be null.
    name = answer.protocol_name if api_version >= _PROTOCOL_TYPE_FROM else answer.protocol_name or ""
    return wire.JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            wire.JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in answer.members
        ),
    )


def _sync_response(answer: SyncAnswer) -> wire.SyncGroupResponse:
    return wire.SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def _set(waiting: asyncio.Future[JoinAnswer] | asyncio.Future[SyncAnswer], answer: object) -> None:
    if not waiting.done():  # the connection may have ended meanwhile
        waiting.set_result(answer)  # type: ignore[arg-type]
