"""What a client asks first: the APIs, the servers, topics and their leaders, coordinators.

`KnownTopics` are the names, ids and partitions of the root's topics. Of a native root they are those of the image. Of a
broker's directory they are those that it holds: without ids if the broker was older than 2.8, and with the partitions
whose directories are there.

FindCoordinator: the hash of a group or a transactional id chooses a partition of `__consumer_offsets` or
`__transaction_state` as in Kafka, and `Cluster.coordinator` the server of that partition. If the topic does not exist
yet, the number of partitions with which it will be created counts. A server that only reads keeps all groups in one
place, which is partition 0.

ApiVersions has the version ranges of a Kafka 4.4 broker. Clients derive much from this answer: librdkafka turns
features on by ranges, kafka-python infers the broker's version, Java producers use the second version of the
transaction protocol if transaction.version 2 is finalized. From version 5 on a client says which cluster and node it
means. If it has reached another one, say after a cut-over or behind an address that has moved, the answer asks it to
connect to its bootstrap servers again.

Metadata: every server takes requests for every partition, so a leader is only advice; `Cluster.leader` gives the same
one on all servers. A topic that is not known is looked for in the newest image first, then created if the request and
auto.create.topics.enable allow it. Leader epochs are those of the root.

Source of the rules: kafka.server.KafkaApis (getCoordinator, handleApiVersionsRequest, handleTopicMetadataRequest),
org.apache.kafka.common.requests.ApiVersionsResponse and ApiVersionsRequest.isValid, DefaultAutoTopicCreationManager,
GroupCoordinatorService.partitionFor, kafka.coordinator.transaction.TransactionStateManager; KIP-511, KIP-516, KIP-584,
KIP-699, KIP-1242.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from pyspark_kafkalog.errors import InvalidTopicError, KafkalogError, TopicExistsError, UnknownTopicError
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_partition
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.image import MetadataImage, may_be_elsewhere
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from pyspark_kafkalog.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from pyspark_kafkalog.protocol.messages.offsets import OffsetCommitRequestTopic, OffsetFetchRequestTopics
from pyspark_kafkalog.protocol.messages.transactions import TxnOffsetCommitRequestTopic
from pyspark_kafkalog.root.brokers.quorum import NO_LEADER
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC
from pyspark_kafkalog.server.context import READ_ONLY, AnyRequest, Handler, Node, Request, ServerContext
from pyspark_kafkalog.server.event_loop import in_turns
from pyspark_kafkalog.server.request_errors import error_code_of
from pyspark_kafkalog.server.security.acls import NOT_ASKED, authorized_cluster_operations, authorized_operations
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition, validate_topic_name

_TopicT = TypeVar("_TopicT", OffsetCommitRequestTopic, OffsetFetchRequestTopics, TxnOffsetCommitRequestTopic)


class KnownTopics(Protocol):
    """The topics as of some time."""

    @property
    def version(self) -> int:
        """Grows with each change; 0 if changes are not counted."""
        ...

    def names(self) -> Collection[str]: ...

    def topic_id(self, name: str) -> str | None: ...

    def name(self, topic_id: str) -> str | None: ...

    def partition_numbers(self, topic_id: str) -> Sequence[int]:
        """The numbers of the partitions that exist, in order: of a topic in a broker's directory there may be gaps."""
        ...

    def has(self, name: str, partition: int) -> bool: ...

    def has_committed(self, name: str, topic_id: str | None, written_at: tuple[int, int] | None) -> bool:
        """Whether an offset was committed of the topic that exists now (see MetadataImage)."""
        ...

    def is_elsewhere(self, name: str, written_at: tuple[int, int] | None) -> bool:
        """Whether an offset may be of a topic on another broker (see `may_be_elsewhere`)."""
        ...


def known_topics(context: ServerContext) -> KnownTopics:
    """The topics of the server's root as of its last refresh."""
    root = context.root
    return RootTopics(root) if isinstance(root, ReadOnlyRoot) else ImageTopics(root.native().store.image)


def current_topic_name(context: ServerContext, topic_id: str) -> str | None:
    """The topic with that id, which another server may have created a moment ago; None if there is none."""
    name = known_topics(context).name(topic_id)
    if name is None:
        context.root.refresh()
        name = known_topics(context).name(topic_id)
    return name


async def with_names(context: ServerContext, topics: Sequence[_TopicT], *, has_ids: bool) -> Sequence[_TopicT]:
    """Topics of a request, with their names if it states ids; the name is empty where no topic has the id.

    Another server may have created a topic a moment ago.
    """
    if not has_ids:
        return topics
    known = known_topics(context)
    async for each in in_turns(topics):
        if each.topic_id != ZERO_UUID and known.name(each.topic_id) is None:
            await context.refresh()
            known = known_topics(context)
            break
    return tuple([each.replace(name=known.name(each.topic_id) or "") async for each in in_turns(topics)])


async def know_partitions(context: ServerContext, partitions: Iterable[TopicPartition]) -> None:
    """Bring the root up to date if it lacks one of the partitions: another server may just have created it."""
    known = known_topics(context)
    async for each in in_turns(partitions):
        if not known.has(each.topic, each.partition):
            await context.refresh()
            return


class ImageTopics:
    """The topics of a native root."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.next_offset

    def names(self) -> Collection[str]:
        return self._image.topics

    def topic_id(self, name: str) -> str | None:
        topic = self._image.topics.get(name)
        return None if topic is None else topic.topic_id

    def name(self, topic_id: str) -> str | None:
        return self._image.topic_names.get(topic_id)

    def partition_numbers(self, topic_id: str) -> Sequence[int]:
        name = self._image.topic_names.get(topic_id)
        return range(0) if name is None else range(len(self._image.topics[name].partitions))

    def has(self, name: str, partition: int) -> bool:
        return self._image.find(name, partition) is not None

    def has_committed(self, name: str, topic_id: str | None, written_at: tuple[int, int] | None) -> bool:
        return self._image.has_committed(name, topic_id, written_at)

    def is_elsewhere(self, name: str, written_at: tuple[int, int] | None) -> bool:
        return may_be_elsewhere(self._image, name, written_at)


class RootTopics:
    """The topics of a broker's directory, or of several. Ids are read from the directories when they are asked for."""

    version = 0

    def __init__(self, root: ReadOnlyRoot) -> None:
        self._root = root

    def names(self) -> Collection[str]:
        return frozenset(self._root.topics())

    def topic_id(self, name: str) -> str | None:
        try:
            return self._root.topic_id(name)
        except UnknownTopicError:
            return None

    def name(self, topic_id: str) -> str | None:
        return self._root.topic_name(topic_id)

    def partition_numbers(self, topic_id: str) -> Sequence[int]:
        name = self.name(topic_id)
        return () if name is None else tuple(sorted(self._numbers(name)))

    def has(self, name: str, partition: int) -> bool:
        return partition in self._numbers(name)

    def has_committed(self, name: str, topic_id: str | None, written_at: tuple[int, int] | None) -> bool:
        """A topic that is not here may be in the directory of another broker."""
        return topic_id is None or self.topic_id(name) in (None, topic_id)

    def is_elsewhere(self, name: str, written_at: tuple[int, int] | None) -> bool:
        return self.topic_id(name) is None

    def _numbers(self, name: str) -> tuple[int, ...]:
        try:
            return self._root.partition_numbers(name)
        except UnknownTopicError:
            return ()


def partition_of_group(context: ServerContext, group_id: str) -> int:
    """The partition of `__consumer_offsets` with the group, as of the last refresh."""
    return group_partition(group_id, offsets_partitions_count(context))


def partition_of_transactional_id(context: ServerContext, transactional_id: str) -> int:
    """The partition of `__transaction_state` with the id, as of the last refresh."""
    config = context.broker_config()
    count = _partitions_count(context, TRANSACTION_STATE_TOPIC, config.transaction_state_log_num_partitions)
    return group_partition(transactional_id, count)


def offsets_partitions_count(context: ServerContext) -> int:
    """The number of partitions of `__consumer_offsets`."""
    return _partitions_count(context, OFFSETS_TOPIC, context.broker_config().offsets_topic_num_partitions)


def _partitions_count(context: ServerContext, topic: str, configured: int) -> int:
    """The partitions of an internal topic, or those with which it will be created; one if the server only reads."""
    if context.native is None:
        return 1
    found = context.image().topics.get(topic)
    return configured if found is None else len(found.partitions)


_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED_FROM: Final = 4


async def handle_find_coordinator(
    context: ServerContext, request: Request[FindCoordinatorRequest]
) -> FindCoordinatorResponse:
    body = request.body
    if request.api_version >= _BATCHED_FROM:
        found = [_find(context, request, body.key_type, key) async for key in in_turns(body.coordinator_keys)]
        return FindCoordinatorResponse(coordinators=tuple(found))
    one = _find(context, request, body.key_type, body.key)
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


def _find(context: ServerContext, request: AnyRequest, key_type: int, key: str) -> Coordinator:
    if key_type == _GROUP:
        resource_type, denied = ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED
        topic, partition = OFFSETS_TOPIC, partition_of_group(context, key)
    elif key_type == _TRANSACTION:
        resource_type, denied = ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        topic, partition = TRANSACTION_STATE_TOPIC, partition_of_transactional_id(context, key)
    else:
        return _no_coordinator(
            key, ErrorCode.INVALID_REQUEST, f"key type {key_type} is neither a group nor a transactional id"
        )
    if not context.guard.allows(request.session, AclOperation.DESCRIBE, resource_type, key):
        return _no_coordinator(key, denied, denied.message)
    if key_type == _TRANSACTION and context.root.has_broker_coordinator:
        return _no_coordinator(key, denied, READ_ONLY)  # of the errors, one that all clients take as final
    return _coordinator(key, context.cluster.coordinator(topic, partition))


def _coordinator(key: str, node: Node) -> Coordinator:
    return Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=ErrorCode.NONE, error_message=None
    )


def _no_coordinator(key: str, error_code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error_code, error_message=message)


#: The levels that are supported, first and last, by feature.
SUPPORTED_FEATURES: Final[Mapping[str, tuple[int, int]]] = {
    "eligible.leader.replicas.version": (0, 0),
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "metadata.version": (7, 27),
    "transaction.version": (0, 2),
}
#: The levels in use, whatever the root's own metadata log states: they describe this server's protocol.
FINALIZED_FEATURES: Final[Mapping[str, int]] = {
    "group.version": 1,
    "kraft.version": 1,
    "metadata.version": 27,
    "transaction.version": 2,
}
#: The same on all servers over a root, since a Java producer keeps the features of the highest epoch that it has seen.
FEATURES_EPOCH: Final = 1
_FEATURES_WITH_MIN_0: Final = 4
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_HAS_SOFTWARE: Final = 3
_HAS_NODE: Final = 5
_NO_NODE: Final = -1


def api_versions_handler(handled: Collection[int]) -> Handler:
    """The handler that answers with the APIs in `handled`."""
    keys = tuple(
        ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[-1])
        for api in APIS.values()
        if api.key in handled or api.key == ApiKey.API_VERSIONS
    )

    async def handle(context: ServerContext, request: Request[ApiVersionsRequest]) -> ApiVersionsResponse:
        body = request.body
        if request.api_version >= _HAS_SOFTWARE:
            names = (body.client_software_name, body.client_software_version)
            if not all(map(_SOFTWARE.fullmatch, names)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        if request.api_version >= _HAS_NODE and (error := _node_error(context, body)) is not ErrorCode.NONE:
            return ApiVersionsResponse(error_code=error)
        return ApiVersionsResponse(
            api_keys=keys,
            supported_features=tuple(
                SupportedFeatureKey(name=name, min_version=first, max_version=last)
                for name, (first, last) in SUPPORTED_FEATURES.items()
                if first > 0 or request.api_version >= _FEATURES_WITH_MIN_0
            ),
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=tuple(
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in FINALIZED_FEATURES.items()
            ),
        )

    return handle


def _node_error(context: ServerContext, body: ApiVersionsRequest) -> ErrorCode:
    """Whether the client means this server; it names both cluster and node, or neither."""
    if (body.cluster_id is None) != (body.node_id == _NO_NODE):
        return ErrorCode.INVALID_REQUEST
    is_meant = body.cluster_id in (None, context.cluster.cluster_id) and body.node_id in (
        _NO_NODE,
        context.cluster.node_id,
    )
    return ErrorCode.NONE if is_meant else ErrorCode.REBOOTSTRAP_REQUIRED


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to ApiVersions of a version that does not exist: it names the range that does."""
    versions = APIS[ApiKey.API_VERSIONS].advertised
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=versions[0], max_version=versions[-1]),),
    )


#: Version 0 has no null for "all topics": an empty list stands for it.
_EMPTY_IS_ALL_BELOW: Final = 1
#: Versions 10 and 11 have ids that a request may not use: a response could not leave out a name.
_ANSWERS_BY_ID_FROM: Final = 12
_NO_CONTROLLER: Final = -1
#: Before this version the request cannot forbid that a topic is created.
_HAS_CREATION_CHOICE: Final = 4
#: The topics that one request creates. To others of it the answer is that they are unknown: clients ask again.
_CREATED_MAX: Final = 1000


async def handle_metadata(context: ServerContext, request: Request[MetadataRequest]) -> MetadataResponse:
    body = request.body
    if request.api_version < _ANSWERS_BY_ID_FROM and any(
        each.name is None or each.topic_id != ZERO_UUID for each in body.topics or ()
    ):
        refused = (_without_id(each) for each in body.topics or ())
        return MetadataResponse(controller_id=_NO_CONTROLLER, topics=tuple(refused))
    lookup = _Lookup(context, request, body)
    found = await context.run(lookup.topics)
    created = 0
    topics: list[MetadataResponseTopic] = []
    for each in found:
        is_created = each.is_to_create and created < _CREATED_MAX
        created += is_created
        topics.append(await lookup.create(each.name) if is_created else each.response)
    cluster = context.cluster
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in cluster.listed()
        ),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.node_id,
        topics=tuple(topics),
        cluster_authorized_operations=authorized_cluster_operations(
            context, request.session, asked=body.include_cluster_authorized_operations
        ),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The answer for one topic; `is_to_create`: it does not exist, and the request may create it."""

    name: str
    response: MetadataResponseTopic
    is_to_create: bool = False


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Answers one request from the root. Its methods but `create` may read files: they run in a thread."""

    context: ServerContext
    request: AnyRequest
    body: MetadataRequest

    def topics(self) -> list[_Found]:
        """The topics that the request asks for: all that may be described, or those that it names."""
        root, topics = self.context.root, self.body.topics
        if topics is None or (not topics and self.request.api_version < _EMPTY_IS_ALL_BELOW):
            root.refresh()
            return [self.by_name(each) for each in root.topics() if self._may_list(each)]
        asked = _distinct(topics)
        names = self._names(asked)
        if any(each is None for each in names):
            root.refresh()
            names = self._names(asked)
        return [
            self.by_name(each.name) if each.name is not None else self._by_id(each.topic_id, name)
            for each, name in zip(asked, names, strict=True)
        ]

    def _names(self, asked: Sequence[MetadataRequestTopic]) -> list[str | None]:
        """The name of each topic; None for one that is not known."""
        known = known_topics(self.context)
        existing = known.names()
        names = (known.name(each.topic_id) if each.name is None else each.name for each in asked)
        return [each if each in existing else None for each in names]

    def by_name(self, name: str) -> _Found:
        """The answer for the topic `name`. One that may not be described is answered as if it were unknown."""
        try:
            validate_topic_name(name)
            if not self._may(AclOperation.DESCRIBE, name):
                return _Found(name, _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            return _Found(name, self._described(name))
        except UnknownTopicError:
            return self._unknown(name)
        except InvalidTopicError:
            return _Found(name, _failed(name, ErrorCode.INVALID_TOPIC_EXCEPTION))
        except (KafkalogError, OSError) as error:
            return _Found(name, _failed(name, error_code_of(error)))

    def _by_id(self, topic_id: str, name: str | None) -> _Found:
        if name is None or topic_id == ZERO_UUID or not self._may(AclOperation.DESCRIBE, name):
            response = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
            return _Found("", response)
        return _Found(name, self.by_name(name).response)

    def _unknown(self, name: str) -> _Found:
        unknown = _failed(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, self._operations(name))
        body, context = self.body, self.context
        is_wanted = body.allow_auto_topic_creation or self.request.api_version < _HAS_CREATION_CHOICE
        if not is_wanted or context.native is None or not context.broker_config().auto_create_topics_enable:
            return _Found(name, unknown)
        may_create = context.guard.allows(
            self.request.session, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, logs_denial=False
        ) or self._may(AclOperation.CREATE, name)
        if not may_create:
            return _Found(name, _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        # Coordinators create their topics, with the settings that these need.
        return _Found(name, unknown, is_to_create=name not in INTERNAL_TOPICS)

    async def create(self, name: str) -> MetadataResponseTopic:
        """The answer for a topic that is created now."""
        try:
            await self.context.run(lambda: self.context.root.create_topic(name))
        except TopicExistsError:
            pass  # another client has created it meanwhile
        except (KafkalogError, OSError) as error:
            return _failed(name, error_code_of(error))
        return (await self.context.run(lambda: self.by_name(name))).response

    def _described(self, name: str) -> MetadataResponseTopic:
        topic = self.context.root.topic(name, readable_only=True)
        topic_id = topic.topic_id or ZERO_UUID
        return MetadataResponseTopic(
            name=name,
            topic_id=topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=self._partitions(topic_id, topic),
            topic_authorized_operations=self._operations(name),
        )

    def _operations(self, name: str) -> int:
        return authorized_operations(
            self.context,
            self.request.session,
            ResourceType.TOPIC,
            name,
            asked=self.body.include_topic_authorized_operations,
        )

    def _partitions(self, topic_id: str, topic: TopicDescription) -> tuple[MetadataResponsePartition, ...]:
        """All partitions: one that cannot be read has no leader, as one of a broker's failed disk."""
        found = [self._partition(topic_id, each) for each in topic.partitions]
        if topic.unreadable:
            found += [self._offline(topic_id, each) for each in topic.unreadable]
            found.sort(key=lambda each: each.partition_index)
        return tuple(found)

    def _offline(self, topic_id: str, number: int) -> MetadataResponsePartition:
        node = self.context.cluster.leader(topic_id, number, self.request.client_id).node_id
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=NO_LEADER,
            replica_nodes=(node,),
            offline_replicas=(node,),
        )

    def _partition(self, topic_id: str, partition: PartitionSnapshot) -> MetadataResponsePartition:
        leader = self.context.cluster.leader(topic_id, partition.partition, self.request.client_id).node_id
        return MetadataResponsePartition(
            partition_index=partition.partition,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=(leader,),
            isr_nodes=(leader,),
        )

    def _may(self, operation: AclOperation, topic: str) -> bool:
        return self.context.guard.allows(self.request.session, operation, ResourceType.TOPIC, topic)

    def _may_list(self, topic: str) -> bool:
        return self.context.guard.allows(
            self.request.session, AclOperation.DESCRIBE, ResourceType.TOPIC, topic, logs_denial=False
        )


def _without_id(asked: MetadataRequestTopic) -> MetadataResponseTopic:
    """The answer for a topic of a request with ids in a version that has them, but cannot answer without a name."""
    return MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=asked.name or "", topic_id=asked.topic_id)


def _distinct(asked: Sequence[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    """What is asked for, once each: only ids if there is one, even if names are given beside them."""
    ids = dict.fromkeys(each.topic_id for each in asked if each.topic_id != ZERO_UUID)
    if ids:
        return [MetadataRequestTopic(topic_id=each, name=None) for each in ids]
    return list({each.name: each for each in asked}.values())


def _failed(name: str, error_code: ErrorCode, operations: int = NOT_ASKED) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error_code, name=name, is_internal=name in INTERNAL_TOPICS, topic_authorized_operations=operations
    )
