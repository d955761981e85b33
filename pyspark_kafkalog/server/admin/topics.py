"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords, and the quota of a client for changes of topics.

Each request makes one commit for all topics, or partitions, that can be changed. Every topic has its own answer; one
that is refused does not hold up the others. A topic can be used when the request is answered. There are no replicas
here: any replication factor and any assignment of replicas is accepted if a broker could accept its form, and the
answer has the replication factor 1. The time limit of a request is not used: a commit takes as long as it takes.

The quota is controller_mutation_rate: partitions created or deleted a second. A request of a version that knows the
error THROTTLING_QUOTA_EXCEEDED gets it for each topic that comes when the quota is used up; a topic that begins within
the quota may exceed it, and the next ones wait until that is made up for. A request of an earlier version is carried
out, and its client is throttled. A topic that could not be changed is not counted. Quotas are kept in memory alone: a
restart forgets what a client has used.

Source of the rules: kafka.server.ControllerApis, org.apache.kafka.controller.ReplicationControlManager,
kafka.server.ControllerMutationQuotaManager; KIP-464, KIP-516, KIP-525, KIP-599.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.config.entries import topic_entries
from pyspark_kafkalog.errors import InvalidConfigError, InvalidPartitionsError, TopicExistsError
from pyspark_kafkalog.maintenance.retention.delete_records import move_to
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.image import MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.metadata.users import CONTROLLER_MUTATION_RATE
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from pyspark_kafkalog.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from pyspark_kafkalog.root import admin
from pyspark_kafkalog.root.commit.log_starts import MovedLogStart
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext, why_read_only
from pyspark_kafkalog.server.event_loop import YieldBudget, in_turns
from pyspark_kafkalog.server.request_errors import ApiError, RequestError
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, TopicPartition

_KNOWS_ERROR_FROM: Final[Mapping[int, int]] = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 3,
}


class MutationQuota:
    """The quota as one request uses it. Used in the event loop's thread."""

    def __init__(self, context: ServerContext, request: AnyRequest) -> None:
        self._quotas, self._session, self._client_id = context.quotas, request.session, request.client_id
        self._knows_error = request.api_version >= _KNOWS_ERROR_FROM[request.api_key]
        self._taken: dict[str, int] = {}
        #: The throttle_time_ms of the answer.
        self.throttle_ms = 0

    def why_not(self, topic: str, partitions: int) -> RequestError | None:
        """Charge the topic's partitions; why it must wait, if it must."""
        charge = self._quotas.admit if self._knows_error else self._quotas.throttle
        throttle_ms = charge(self._session, self._client_id, CONTROLLER_MUTATION_RATE, partitions)
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        if throttle_ms and self._knows_error:
            return RequestError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._taken[topic] = partitions
        return None

    def not_changed(self, topic: str) -> None:
        """Count the topic no longer: its change has failed."""
        partitions = self._taken.pop(topic, 0)
        if partitions:
            self._quotas.give_back(self._session, self._client_id, CONTROLLER_MUTATION_RATE, partitions)


#: Stands for num.partitions, and for default.replication.factor.
_DEFAULT: Final = -1
#: No partition here has more than the one replica that the root is.
_REPLICATION_FACTOR: Final = 1
_UNTIL_TOPIC_DELETION_DISABLED: Final = 3
_DENIED: Final = RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")


# CreateTopics


async def handle_create_topics(context: ServerContext, request: Request[CreateTopicsRequest]) -> CreateTopicsResponse:
    body = request.body
    duplicates = _duplicates(each.name for each in body.topics)
    topics = {each.name: each for each in body.topics}
    refused: dict[str, Exception] = {}
    for name in topics:
        error = _why_not_created(context, request, name, is_duplicate=name in duplicates)
        if error is not None:
            refused[name] = error
    wanted = [each for name, each in topics.items() if name not in refused]
    outcomes: Mapping[str, _Creation] = {}
    quota = MutationQuota(context, request)
    if wanted:
        native = context.native
        assert native is not None
        _check_number(wanted, context.broker_config().num_partitions, refused)
        wanted = _within_quota(context, quota, [each for each in wanted if each.name not in refused], refused)
        if wanted:
            outcomes = await context.run(lambda: _create(native, wanted, validate_only=body.validate_only))
        for name, outcome in outcomes.items():
            if outcome.error is not None:
                quota.not_changed(name)
    return CreateTopicsResponse(
        throttle_time_ms=quota.throttle_ms,
        topics=tuple(
            _created(context, request, name, outcomes.get(name, _Creation(refused.get(name)))) for name in topics
        ),
    )


def _why_not_created(context: ServerContext, request: AnyRequest, name: str, *, is_duplicate: bool) -> Exception | None:
    if is_duplicate:
        return RequestError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    if name == CLUSTER_METADATA_TOPIC:
        return RequestError(ErrorCode.INVALID_REQUEST, f"the topic {name} is the metadata log's: it cannot be created")
    may_create = context.guard.allows(
        request.session, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=False
    ) or context.guard.allows(request.session, AclOperation.CREATE, ResourceType.TOPIC, name)
    return why_read_only(context) if may_create else _DENIED


def _check_number(topics: Iterable[CreatableTopic], default: int, refused: dict[str, Exception]) -> None:
    """Refuse all topics if they have too many partitions for one commit."""
    names, total = [], 0
    for each in topics:
        names.append(each.name)
        total += len(each.assignments) or max(default if each.num_partitions == _DEFAULT else each.num_partitions, 0)
    if total > admin.MAX_PARTITIONS_PER_COMMIT:
        text = f"{total} partitions are too many for one request: at most {admin.MAX_PARTITIONS_PER_COMMIT}"
        refused.update(dict.fromkeys(names, RequestError(ErrorCode.POLICY_VIOLATION, text)))


def _within_quota(
    context: ServerContext, quota: MutationQuota, topics: Sequence[CreatableTopic], refused: dict[str, Exception]
) -> list[CreatableTopic]:
    """The topics whose partitions the client's quota admits; those that will be refused otherwise need none."""
    default, existing = context.broker_config().num_partitions, context.image().topics
    wanted = []
    for each in topics:
        try:
            partitions = 0 if each.name in existing else max(_partitions(each, default), 0)
        except RequestError:
            partitions = 0
        error = quota.why_not(each.name, partitions) if partitions else None
        if error is None:
            wanted.append(each)
        else:
            refused[each.name] = error
    return wanted


@dataclass(frozen=True, slots=True)
class _Creation:
    """The outcome for one topic: why it is not created, or its id, number of partitions and configurations."""

    error: Exception | None
    topic_id: str = ZERO_UUID
    partitions: int = 0
    configs: tuple[CreatableTopicConfigs, ...] = ()


def _create(root: NativeRoot, topics: Sequence[CreatableTopic], *, validate_only: bool) -> dict[str, _Creation]:
    changes = [admin.TopicChange(each.name, _creation(each)) for each in topics]
    errors = root.change_topics(changes, operation="create topics", validate_only=validate_only)
    image = root.store.image
    return {
        each.name: _created_as(image, each) if error is None else _Creation(error)
        for each, error in zip(topics, errors, strict=True)
    }


def _creation(topic: CreatableTopic) -> admin.Build:
    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        if topic.name in image.topics:
            raise TopicExistsError(f"topic {topic.name!r} already exists")
        return admin.create_topic(
            image,
            topic.name,
            partitions=_partitions(topic, admin.broker_config(image).num_partitions),
            configs=_own_configs(topic),
            broker_configs=broker_configs(image),
        )

    return build


def _own_configs(topic: CreatableTopic) -> dict[str, str]:
    without = [each.name for each in topic.configs if each.value is None]
    if without:
        raise InvalidConfigError(f"these configurations have no value: {', '.join(without)}")
    return {each.name: each.value for each in topic.configs if each.value is not None}


def _partitions(topic: CreatableTopic, default: int) -> int:
    """The number of partitions that a request asks for. Raises RequestError for a wrong form."""
    if topic.assignments:
        for field, value in (("replication factor", topic.replication_factor), ("partitions", topic.num_partitions)):
            if value != _DEFAULT:
                text = f"the number of {field} must be -1 if replicas are assigned manually, found {value}"
                raise RequestError(ErrorCode.INVALID_REQUEST, text)
        _check_assignments([each.broker_ids for each in topic.assignments])
        numbers = sorted(each.partition_index for each in topic.assignments)
        if numbers != list(range(len(numbers))):
            text = f"replicas must be assigned to each partition from 0 on once, found the partitions {numbers[:20]}"
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        return len(numbers)
    if topic.replication_factor < _DEFAULT or topic.replication_factor == 0:
        text = f"the replication factor must be larger than 0, or -1 for the default, found {topic.replication_factor}"
        raise RequestError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return default if topic.num_partitions == _DEFAULT else topic.num_partitions


def _check_assignments(replicas: Sequence[Sequence[int]]) -> None:
    """Raise RequestError unless all partitions have the same number of different replicas, at least one."""
    for each in replicas:
        if not each or len(set(each)) != len(each) or len(each) != len(replicas[0]):
            text = f"each partition needs the same number of different replicas, found {list(each)[:20]}"
            raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def _created_as(image: MetadataImage, topic: CreatableTopic) -> _Creation:
    """The outcome of a creation that was possible; without an id if it was only validated."""
    found = image.topics.get(topic.name)
    broker = admin.broker_config(image)
    own = _own_configs(topic)
    entries = topic_entries(own, broker.properties)
    return _Creation(
        None,
        ZERO_UUID if found is None else found.topic_id,
        _partitions(topic, broker.num_partitions) if found is None else len(found.partitions),
        tuple(
            # The topic's own values as they were given, in contrast to DescribeConfigs.
            CreatableTopicConfigs(name=each.name, value=own.get(each.name, each.value), config_source=each.source)
            for each in entries
        ),
    )


def _created(context: ServerContext, request: AnyRequest, name: str, outcome: _Creation) -> CreatableTopicResult:
    error = ApiError.of(outcome.error)
    if error.code:
        return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)
    allows = context.guard.allows
    if not allows(request.session, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name, logs_denial=False):
        return CreatableTopicResult(
            name=name,
            topic_id=outcome.topic_id,
            error_message=None,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    return CreatableTopicResult(
        name=name,
        topic_id=outcome.topic_id,
        error_message=None,
        num_partitions=outcome.partitions,
        replication_factor=_REPLICATION_FACTOR,
        configs=outcome.configs,
    )


# CreatePartitions


async def handle_create_partitions(
    context: ServerContext, request: Request[CreatePartitionsRequest]
) -> CreatePartitionsResponse:
    body = request.body
    duplicates = _duplicates(each.name for each in body.topics)
    topics = {each.name: each for each in body.topics}
    errors: dict[str, Exception | None] = {}
    wanted: list[CreatePartitionsTopic] = []
    quota = MutationQuota(context, request)
    for name, each in topics.items():
        may_alter = context.guard.allows(request.session, AclOperation.ALTER, ResourceType.TOPIC, name)
        if name in duplicates:
            errors[name] = RequestError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif not may_alter:
            errors[name] = RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif (read_only := why_read_only(context)) is not None:
            errors[name] = read_only
        elif (over_quota := _why_not_added(context, quota, each)) is not None:
            errors[name] = over_quota
        else:
            wanted.append(each)
    if wanted:
        native = context.native
        assert native is not None
        changes = [admin.TopicChange(each.name, _addition(each)) for each in wanted]
        found = await context.run(
            lambda: native.change_topics(changes, operation="add partitions", validate_only=body.validate_only)
        )
        for each, error in zip(wanted, found, strict=True):
            errors[each.name] = error
            if error is not None:
                quota.not_changed(each.name)
    outcomes = {name: ApiError.of(errors[name]) for name in topics}
    return CreatePartitionsResponse(
        throttle_time_ms=quota.throttle_ms,
        results=tuple(
            CreatePartitionsTopicResult(name=name, error_code=each.code, error_message=each.message)
            for name, each in outcomes.items()
        ),
    )


def _why_not_added(context: ServerContext, quota: MutationQuota, topic: CreatePartitionsTopic) -> RequestError | None:
    found = context.image().topics.get(topic.name)
    added = 0 if found is None else topic.count - len(found.partitions)
    return quota.why_not(topic.name, added) if added > 0 else None


def _addition(topic: CreatePartitionsTopic) -> admin.Build:
    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        count = len(image.topic(topic.name).partitions)
        if topic.count <= count:
            text = f"topic {topic.name!r} has {count} partitions: expected a larger number, found {topic.count}"
            raise InvalidPartitionsError(text)
        if topic.assignments is not None:
            if len(topic.assignments) != topic.count - count:
                text = f"replicas are assigned to {len(topic.assignments)} new partitions, not {topic.count - count}"
                raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
            _check_assignments([each.broker_ids for each in topic.assignments])
        return admin.add_partitions(image, topic.name, total=topic.count)

    return build


# DeleteTopics


@dataclass(frozen=True, slots=True)
class _Deletion:
    """The outcome for one topic of a DeleteTopics request, by the name or the id that it gave, or both."""

    name: str | None
    topic_id: str
    error: Exception | None

    def result(self) -> DeletableTopicResult:
        error = ApiError.of(self.error)
        return DeletableTopicResult(
            name=self.name, topic_id=self.topic_id, error_code=error.code, error_message=error.message
        )


async def handle_delete_topics(context: ServerContext, request: Request[DeleteTopicsRequest]) -> DeleteTopicsResponse:
    body = request.body
    asked = [*((name, ZERO_UUID) for name in body.topic_names), *((each.name, each.topic_id) for each in body.topics)]
    error = _why_none_deleted(context, request.api_version)
    if error is not None:
        outcomes = [_Deletion(name, topic_id, error) for name, topic_id in asked]
        return DeleteTopicsResponse(responses=tuple(each.result() for each in outcomes))
    native = context.native
    assert native is not None
    image = await context.run(native.store.refresh)
    outcomes, chosen = _select(context, request, image, asked)
    quota = MutationQuota(context, request)
    wanted = {}
    for name, topic_id in chosen.items():
        over_quota = quota.why_not(name, len(image.topics[name].partitions))
        if over_quota is None:
            wanted[name] = topic_id
        else:
            outcomes.append(_Deletion(name, topic_id, over_quota))
    if wanted:
        errors = await context.run(lambda: native.delete_topics(wanted))
        for (name, topic_id), failure in zip(wanted.items(), errors, strict=True):
            outcomes.append(_Deletion(name, topic_id, failure))
            if failure is not None:
                quota.not_changed(name)
        gone = (each.name for each in outcomes if each.error is None and each.name in image.topics)
        context.waiters.notify(_partitions_of(image, gone))
    return DeleteTopicsResponse(throttle_time_ms=quota.throttle_ms, responses=tuple(each.result() for each in outcomes))


def _why_none_deleted(context: ServerContext, api_version: int) -> Exception | None:
    read_only = why_read_only(context)
    if read_only is not None or context.broker_config().delete_topic_enable:
        return read_only
    is_known = api_version >= _UNTIL_TOPIC_DELETION_DISABLED
    return RequestError(
        ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST,
        "topics cannot be deleted: delete.topic.enable is false",
    )


def _select(
    context: ServerContext, request: AnyRequest, image: MetadataImage, asked: Sequence[tuple[str | None, str]]
) -> tuple[list[_Deletion], dict[str, str]]:
    """The topics that are refused, and those to delete: their names with their ids."""
    choice = _DeletionChoice(context, request, image)
    by_name = Counter(name for name, topic_id in asked if name is not None and topic_id == ZERO_UUID)
    by_id = Counter(topic_id for name, topic_id in asked if name is None)
    for name, topic_id in dict.fromkeys(asked):
        if name is None:
            choice.by_id(topic_id, is_duplicate=by_id[topic_id] > 1)
        elif topic_id != ZERO_UUID:
            choice.refuse(name, topic_id, ErrorCode.INVALID_REQUEST, "either the name or the id may be given, not both")
    for name, topic_id in dict.fromkeys(asked):
        if name is not None and topic_id == ZERO_UUID:
            choice.by_name(name, is_duplicate=by_name[name] > 1)
    return choice.refused, choice.chosen


class _DeletionChoice:
    """Decides for each topic of a request whether it is to be deleted; hides those that the client may not describe."""

    def __init__(self, context: ServerContext, request: AnyRequest, image: MetadataImage) -> None:
        self._guard, self._session, self._image = context.guard, request.session, image
        self.refused: list[_Deletion] = []
        self.chosen: dict[str, str] = {}

    def refuse(self, name: str | None, topic_id: str, code: ErrorCode, message: str | None = None) -> None:
        self.refused.append(_Deletion(name, topic_id, RequestError(code, message)))

    def _may(self, operation: AclOperation, name: str) -> bool:
        return self._guard.allows(
            self._session, AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=False
        ) or self._guard.allows(self._session, operation, ResourceType.TOPIC, name)

    def by_id(self, topic_id: str, *, is_duplicate: bool) -> None:
        name = self._image.topic_names.get(topic_id)
        if topic_id == ZERO_UUID:
            self.refuse(None, topic_id, ErrorCode.INVALID_REQUEST, "neither a name nor an id of a topic was given")
        elif is_duplicate:
            self.refuse(None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
        elif name is None:
            self.refuse(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        elif not self._may(AclOperation.DELETE, name):
            shown = name if self._may(AclOperation.DESCRIBE, name) else None
            self.refuse(shown, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        else:
            self.chosen[name] = topic_id

    def by_name(self, name: str, *, is_duplicate: bool) -> None:
        topic = self._image.topics.get(name)
        if is_duplicate:
            self.refuse(name, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif not self._may(AclOperation.DESCRIBE, name):
            self.refuse(name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif topic is None:
            self.refuse(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif not self._may(AclOperation.DELETE, name):
            self.refuse(name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif name in self.chosen:
            del self.chosen[name]
            text = "the topic was named by its id as well"
            self.refuse(name, topic.topic_id, ErrorCode.INVALID_REQUEST, text)
        else:
            self.chosen[name] = topic.topic_id


def _partitions_of(image: MetadataImage, names: Iterable[str | None]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, each.partition)
        for name in names
        if name is not None
        for each in image.topic(name).partitions
    )


def _duplicates(names: Iterable[str]) -> Collection[str]:
    return {name for name, count in Counter(names).items() if count > 1}


_NO_LOW_WATERMARK: Final = -1


async def handle_delete_records(
    context: ServerContext, request: Request[DeleteRecordsRequest]
) -> DeleteRecordsResponse:
    body = request.body
    results: dict[TopicPartition, MovedLogStart] = {}
    offsets: dict[TopicPartition, int] = {}
    read_only = why_read_only(context)
    budget = YieldBudget()
    for topic in body.topics:
        may_delete = context.guard.allows(request.session, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
        denied = None if may_delete else RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for partition in topic.partitions:
            await budget.step()
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            error = denied or read_only
            if error is None:
                offsets[topic_partition] = partition.offset
            else:
                results[topic_partition] = MovedLogStart(topic_partition=topic_partition, error=error)
    native = context.native
    if native is not None and offsets:
        results |= await context.run(lambda: move_to(native, offsets))
        context.waiters.notify(frozenset(offsets))
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    async for topic_partition, each in in_turns(results.items()):
        topics.setdefault(topic_partition.topic, []).append(_result(each))
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
        )
    )


def _result(moved: MovedLogStart) -> DeleteRecordsPartitionResult:
    state = moved.after
    return DeleteRecordsPartitionResult(
        partition_index=moved.topic_partition.partition,
        low_watermark=_NO_LOW_WATERMARK if state is None else state.log_start_offset,
        error_code=ApiError.of(moved.error).code,
    )
