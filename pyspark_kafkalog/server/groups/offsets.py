"""OffsetCommit, OffsetFetch and OffsetDelete.

    commit    the group's member, or anybody if the group has none, writes offsets: one record a partition, all in one
              unit. Partitions are refused one by one, the request as a whole
    fetch     of some or all partitions, of one group or (from version 8 on) of several; with requireStable, offsets
              that an open transaction has written answer UNSTABLE_OFFSET_COMMIT
    delete    of topics that no member of the group subscribes to

Offsets of a topic that was deleted, or deleted and created again, are not there. From version 10 on, topics of a commit
and a fetch are ids: those that no topic has are UNKNOWN_TOPIC_ID, and offsets are committed of that topic alone.

Source of the rules: kafka.server.KafkaApis, org.apache.kafka.coordinator.group.OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from pyspark_kafkalog.groups.group_state import CONSUMER_PROTOCOL_TYPE
from pyspark_kafkalog.groups.offset_records import (
    NO_EXPIRY,
    OffsetAndMetadata,
    offset_key,
    offset_value,
    parse_offset_key,
    parse_offset_value,
)
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages import offsets as wire
from pyspark_kafkalog.protocol.messages.transactions import TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic
from pyspark_kafkalog.server.context import Request, ServerContext, Session
from pyspark_kafkalog.server.event_loop import YieldBudget, in_turns
from pyspark_kafkalog.server.groups.coordinator import GroupCoordinator
from pyspark_kafkalog.server.groups.shard import Changes, Planned, Shard
from pyspark_kafkalog.server.metadata import know_partitions, known_topics, with_names
from pyspark_kafkalog.server.request_errors import RequestError
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import quick_dataclass

_GROUPS_FROM: Final = 8
_TOP_LEVEL_ERROR_FROM: Final = 2
_EPOCHS_FROM: Final = 9
TOPIC_IDS_FROM: Final = 10
_NO_OFFSET: Final = -1
_TopicT = TypeVar("_TopicT", wire.OffsetCommitRequestTopic, TxnOffsetCommitRequestTopic)
AnyOffset: TypeAlias = wire.OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
_ERRORS_OF_EPOCHS: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})


def validate_commit(
    shard: Shard,
    group_id: str,
    member_id: str,
    instance_id: str | None,
    generation: int,
    *,
    api_version: int,
    is_transactional: bool = False,
) -> None:
    """Raise RequestError unless the member, of this generation or epoch, may commit offsets of the group now."""
    consumers = shard.consumer(group_id)
    if consumers is not None and not is_transactional and api_version < _EPOCHS_FROM:
        member = consumers.members.get(member_id)
        if member is not None and member.classic is None:
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION)
    group = consumers or shard.classic(group_id)
    if group is not None:
        error = group.commit_error(member_id, instance_id, generation, is_transactional=is_transactional)
    elif generation < 0:
        return
    else:
        error = ErrorCode.GROUP_ID_NOT_FOUND if api_version >= _EPOCHS_FROM else ErrorCode.ILLEGAL_GENERATION
    if error is not ErrorCode.NONE:
        raise RequestError(error)


@quick_dataclass(frozen=True, slots=True)
class CommittingMember:
    """The member that commits offsets, in its generation or member epoch."""

    member_id: str
    instance_id: str | None
    generation: int


def commit_plan(
    context: ServerContext,
    shard: Shard,
    group_id: str,
    member: CommittingMember,
    changes: Changes,
    held_ids: Mapping[str, str | None],
    *,
    api_version: int,
) -> Callable[[], Planned]:
    """The write of an OffsetCommit, whose topics still have the ids `held_ids` then, by name.

    It raises RequestError if the member may not commit, or a topic is another one.
    """

    def plan() -> Planned:
        validate_commit(
            shard, group_id, member.member_id, member.instance_id, member.generation, api_version=api_version
        )
        if any(known_topics(context).topic_id(name) != held for name, held in held_ids.items()):
            has_ids = api_version >= TOPIC_IDS_FROM
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return Planned(changes, topic_ids=held_ids)

    return plan


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether a member may commit. `holds_in`: whether its group is still the same in the image of a commit."""

    error: ErrorCode
    holds_in: Callable[[MetadataImage], bool] = lambda image: True


class TransactionalCommits:
    """What TxnOffsetCommit asks the coordinator of the group; the records are written with the transaction's."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def validate_transactional_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, knows_epochs: bool
    ) -> Permission:
        """Whether the member may commit offsets for the group. The topic `__consumer_offsets` exists afterwards.

        Without member and generation, -1, any client may while the group has no members. A client that does not know of
        epochs of members gets ILLEGAL_GENERATION in place of their errors.
        """
        try:
            shard = await self._coordinator.read_shard_of(group_id)
            validate_commit(
                shard, group_id, member_id, instance_id, generation, api_version=_EPOCHS_FROM, is_transactional=True
            )
        except RequestError as refused:
            is_hidden = refused.code in _ERRORS_OF_EPOCHS and not knows_epochs
            return Permission(ErrorCode.ILLEGAL_GENERATION if is_hidden else refused.code)
        return Permission(ErrorCode.NONE, shard.unchanged(group_id))


class GroupOffsetHandlers:
    """The handlers, over the coordinator's groups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    # OffsetCommit

    async def commit(
        self, context: ServerContext, request: Request[wire.OffsetCommitRequest]
    ) -> wire.OffsetCommitResponse:
        body, has_ids = request.body, request.api_version >= TOPIC_IDS_FROM
        if not _may(context, request.session, AclOperation.READ, ResourceType.GROUP, body.group_id):
            return await _committed(body.topics, {}, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        checked = await checked_commit(context, request.session, body.topics, has_ids=has_ids)
        errors = checked.errors
        try:
            await self._commit(context, request.api_version, body, checked)
        except RequestError as refused:
            errors |= dict.fromkeys(checked.accepted, refused.code)
        return await _committed(checked.topics, errors, ErrorCode.UNKNOWN_TOPIC_ID)

    async def _commit(
        self,
        context: ServerContext,
        api_version: int,
        body: wire.OffsetCommitRequest,
        checked: CheckedOffsets[wire.OffsetCommitRequestTopic],
    ) -> None:
        shard = await self._coordinator.shard_of(body.group_id)
        now_ms = context.clock()
        expires_ms = NO_EXPIRY if body.retention_time_ms == -1 else now_ms + body.retention_time_ms
        changes: dict[bytes, bytes | None] = {}
        async for topic_partition, each in in_turns(checked.accepted.items()):
            committed = committed_offset(
                each, checked.topic_ids[topic_partition.topic], now_ms=now_ms, expires_ms=expires_ms
            )
            changes[offset_key(body.group_id, topic_partition)] = offset_value(committed)
        # A value with an expiry time has no room for the topic's id: the topic must still be the same in the commit.
        has_ids = api_version >= TOPIC_IDS_FROM
        held_ids = {} if expires_ms == NO_EXPIRY and not has_ids else checked.topic_ids

        member = CommittingMember(body.member_id, body.group_instance_id, body.generation_id_or_member_epoch)
        plan = commit_plan(context, shard, body.group_id, member, changes, held_ids, api_version=api_version)
        await shard.write(body.group_id, plan)

    # OffsetFetch

    async def fetch(
        self, context: ServerContext, request: Request[wire.OffsetFetchRequest]
    ) -> wire.OffsetFetchResponse:
        body = request.body
        if request.api_version >= _GROUPS_FROM:
            groups = [await self._fetch_group(context, request, each) async for each in in_turns(body.groups)]
            return wire.OffsetFetchResponse(groups=tuple(groups))
        topics = (
            None
            if body.topics is None
            else tuple(
                wire.OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
                for each in body.topics
            )
        )
        one = await self._fetch_group(
            context, request, wire.OffsetFetchRequestGroup(group_id=body.group_id, topics=topics)
        )
        return _of_one_group(one, topics or (), has_top_level_error=request.api_version >= _TOP_LEVEL_ERROR_FROM)

    async def _fetch_group(
        self, context: ServerContext, request: Request[wire.OffsetFetchRequest], asked: wire.OffsetFetchRequestGroup
    ) -> wire.OffsetFetchResponseGroup:
        body = request.body
        try:
            if not _may(context, request.session, AclOperation.DESCRIBE, ResourceType.GROUP, asked.group_id):
                raise RequestError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            shard = await self._coordinator.offsets_shard_of(asked.group_id)
            _check_fetch(shard, asked)
        except RequestError as refused:
            return wire.OffsetFetchResponseGroup(group_id=asked.group_id, error_code=refused.code)
        has_ids = request.api_version >= TOPIC_IDS_FROM
        if asked.topics is None:
            wanted = _all_topics(context, shard.log.records(asked.group_id))
        else:
            wanted = await with_names(context, asked.topics, has_ids=has_ids)
        topics: list[wire.OffsetFetchResponseTopics] = []
        async for topic in in_turns(wanted):
            if has_ids and not topic.name:
                unknown = [_unknown_offset(number, ErrorCode.UNKNOWN_TOPIC_ID) for number in topic.partition_indexes]
                topics.append(wire.OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=tuple(unknown)))
                continue
            is_allowed = _may(context, request.session, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
            if not is_allowed and asked.topics is None:
                continue
            partitions = [
                _fetched(context, shard, asked.group_id, TopicPartition(topic.name, number), body.require_stable)
                if is_allowed
                else _unknown_offset(number, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                async for number in in_turns(topic.partition_indexes)
            ]
            if asked.topics is None:  # offsets of topics that do not exist any more are left out
                partitions = [each for each in partitions if each.committed_offset >= 0 or each.error_code]
            if partitions or asked.topics is not None:
                topics.append(
                    wire.OffsetFetchResponseTopics(
                        name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions)
                    )
                )
        return wire.OffsetFetchResponseGroup(group_id=asked.group_id, topics=tuple(topics))

    # OffsetDelete

    async def delete(
        self, context: ServerContext, request: Request[wire.OffsetDeleteRequest]
    ) -> wire.OffsetDeleteResponse:
        body = request.body
        if not _may(context, request.session, AclOperation.DELETE, ResourceType.GROUP, body.group_id):
            return wire.OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not body.group_id:
            return wire.OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        errors: dict[TopicPartition, ErrorCode] = {}
        await know_partitions(context, _partitions(body.topics))
        budget = YieldBudget()
        for topic in body.topics:
            is_allowed = _may(context, request.session, AclOperation.READ, ResourceType.TOPIC, topic.name)
            for each in topic.partitions:
                await budget.step()
                errors[TopicPartition(topic.name, each.partition_index)] = (
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    if not is_allowed
                    else ErrorCode.NONE
                    if known_topics(context).has(topic.name, each.partition_index)
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
        chosen = [named for named, error in errors.items() if error is ErrorCode.NONE]
        try:
            shard = await self._coordinator.shard_of(body.group_id)
            subscribed = await shard.write(
                body.group_id, lambda: _plan_delete(shard, body.group_id, chosen), is_exclusive=True
            )
        except RequestError as refused:
            return wire.OffsetDeleteResponse(error_code=refused.code)
        errors |= dict.fromkeys(subscribed, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        return wire.OffsetDeleteResponse(
            topics=tuple(
                wire.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        wire.OffsetDeleteResponsePartition(
                            partition_index=each.partition_index,
                            error_code=errors[TopicPartition(topic.name, each.partition_index)],
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in body.topics
            )
        )


@dataclass(frozen=True, slots=True)
class CheckedOffsets(Generic[_TopicT]):
    """The offsets of a commit: `accepted` may be committed for the topics with `topic_ids`, by name.

    `errors` are those of all partitions of topics that exist: NONE for an accepted one.
    """

    topics: Sequence[_TopicT]
    errors: dict[TopicPartition, ErrorCode]
    accepted: Mapping[TopicPartition, AnyOffset]
    topic_ids: Mapping[str, str | None]


async def checked_commit(
    context: ServerContext, session: Session, topics: Sequence[_TopicT], *, has_ids: bool
) -> CheckedOffsets[_TopicT]:
    """What a client may commit of the topics that it names, or states by id if `has_ids`."""
    topics = await with_names(context, topics, has_ids=has_ids)
    known = [topic for topic in topics if topic.name or not has_ids]
    await know_partitions(context, _partitions(known))
    metadata_max = context.broker_config().offset_metadata_max_bytes
    errors: dict[TopicPartition, ErrorCode] = {}
    accepted: dict[TopicPartition, AnyOffset] = {}
    topic_ids: dict[str, str | None] = {}
    budget = YieldBudget()
    for topic in known:
        is_allowed = _may(context, session, AclOperation.READ, ResourceType.TOPIC, topic.name)
        topic_id = known_topics(context).topic_id(topic.name)
        topic_ids[topic.name] = topic.topic_id if has_ids else topic_id
        for each in topic.partitions:
            await budget.step()
            error = ErrorCode.NONE
            if not is_allowed:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not known_topics(context).has(topic.name, each.partition_index):
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif topic_ids[topic.name] != topic_id:  # it was deleted, and another one was created, a moment ago
                error = ErrorCode.UNKNOWN_TOPIC_ID
            elif len(each.committed_metadata or "") > metadata_max:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            topic_partition = TopicPartition(topic.name, each.partition_index)
            errors[topic_partition] = error
            if error is ErrorCode.NONE:
                accepted[topic_partition] = each
    return CheckedOffsets(topics, errors, accepted, topic_ids)


def committed_offset(
    offset: AnyOffset, topic_id: str | None, *, now_ms: int, expires_ms: int = NO_EXPIRY
) -> OffsetAndMetadata:
    """What a request commits of one partition."""
    return OffsetAndMetadata(
        offset=offset.committed_offset,
        leader_epoch=offset.committed_leader_epoch,
        metadata=offset.committed_metadata or "",
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=expires_ms,
        topic_id=topic_id,
    )


def _partitions(
    topics: Iterable[wire.OffsetCommitRequestTopic | wire.OffsetDeleteRequestTopic | TxnOffsetCommitRequestTopic],
) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, each.partition_index) for topic in topics for each in topic.partitions)


async def _committed(
    topics: Sequence[wire.OffsetCommitRequestTopic], errors: Mapping[TopicPartition, ErrorCode], otherwise: ErrorCode
) -> wire.OffsetCommitResponse:
    answered = []
    budget = YieldBudget()
    for topic in topics:
        partitions = []
        for each in topic.partitions:
            code = errors.get(TopicPartition(topic.name, each.partition_index), otherwise)
            partitions.append(wire.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code))
            await budget.step()
        if partitions:
            answered.append(
                wire.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=tuple(partitions))
            )
    return wire.OffsetCommitResponse(topics=tuple(answered))


def _check_fetch(shard: Shard, asked: wire.OffsetFetchRequestGroup) -> None:
    if asked.member_id is None and asked.member_epoch < 0:
        return
    group = shard.consumer(asked.group_id)
    if group is None:
        return
    error = group.member_epoch_error(asked.member_id or "", asked.member_epoch)
    if error is not ErrorCode.NONE:
        raise RequestError(error)


def _all_topics(context: ServerContext, live: Mapping[bytes, bytes]) -> Sequence[wire.OffsetFetchRequestTopics]:
    by_topic: dict[str, list[int]] = {}
    for named in sorted({found for key in live if (found := parse_offset_key(key)) is not None}):
        by_topic.setdefault(named.topic, []).append(named.partition)
    known = known_topics(context)
    return [
        wire.OffsetFetchRequestTopics(
            name=name, topic_id=known.topic_id(name) or ZERO_UUID, partition_indexes=tuple(numbers)
        )
        for name, numbers in by_topic.items()
    ]


def _fetched(
    context: ServerContext, shard: Shard, group_id: str, topic_partition: TopicPartition, require_stable: bool
) -> wire.OffsetFetchResponsePartitions:
    if topic_partition.partition < 0:
        return _unknown_offset(topic_partition.partition, ErrorCode.NONE)
    key, log, topics = offset_key(group_id, topic_partition), shard.log, known_topics(context)
    if require_stable and any(
        topics.has_committed(topic_partition.topic, parse_offset_value(value).topic_id, written_at)
        for written_at, value in log.pending(group_id, key)
    ):
        return _unknown_offset(topic_partition.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    value = log.records(group_id).get(key)
    committed = None if value is None else parse_offset_value(value)
    if committed is None or not topics.has_committed(topic_partition.topic, committed.topic_id, log.written_at(key)):
        return _unknown_offset(topic_partition.partition, ErrorCode.NONE)
    return wire.OffsetFetchResponsePartitions(
        partition_index=topic_partition.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _unknown_offset(number: int, error: int) -> wire.OffsetFetchResponsePartitions:
    return wire.OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=_NO_OFFSET,
        committed_leader_epoch=_NO_OFFSET,
        metadata="",
        error_code=error,
    )


def _of_one_group(
    group: wire.OffsetFetchResponseGroup, asked: Iterable[wire.OffsetFetchRequestTopics], *, has_top_level_error: bool
) -> wire.OffsetFetchResponse:
    """The form of versions before 8. Those before 2 have errors of partitions only."""
    topics = group.topics
    if group.error_code and not has_top_level_error:
        error = group.error_code
        topics = tuple(
            wire.OffsetFetchResponseTopics(
                name=each.name, partitions=tuple(_unknown_offset(number, error) for number in each.partition_indexes)
            )
            for each in asked
        )
    return wire.OffsetFetchResponse(
        error_code=group.error_code,
        topics=tuple(
            wire.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    wire.OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ),
            )
            for topic in topics
        ),
    )


def _plan_delete(shard: Shard, group_id: str, chosen: Iterable[TopicPartition]) -> Planned:
    """Tombstones of the offsets that there are; the result is the partitions of topics with subscribers."""
    subscribed = _subscribed_topics(shard, group_id)
    refused = [each for each in chosen if subscribed is None or each.topic in subscribed]
    keys = {each: offset_key(group_id, each) for each in chosen if each not in refused}
    live, pending = shard.log.records(group_id), shard.log.pending_keys(group_id)
    return Planned({key: None for key in keys.values() if key in live or key in pending}, refused)


def _subscribed_topics(shard: Shard, group_id: str) -> frozenset[str] | None:
    """None if the members do not say in a known form what they consume: it may be any topic."""
    group = shard.group(group_id)
    if group is None:
        raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.is_empty:
        return frozenset()
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise RequestError(ErrorCode.NON_EMPTY_GROUP)
    return group.subscribed_topics


def _may(
    context: ServerContext, session: Session, operation: AclOperation, resource_type: ResourceType, name: str
) -> bool:
    return context.guard.allows(session, operation, resource_type, name)
