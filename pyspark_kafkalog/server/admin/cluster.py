"""DescribeCluster, DescribeTopicPartitions, ListConfigResources: the servers, their topics, what has configurations.

DescribeTopicPartitions answers in pieces: at most so many partitions, in the order of topics and partitions, and a
cursor at which the client continues. As in Metadata a partition's leader is its only replica. Topics that the client
may not describe are answered as if they were unknown.

Source of the rules: kafka.server.AuthHelper.computeDescribeClusterResponse, DescribeTopicPartitionsRequestHandler,
KRaftMetadataCache.describeTopicResponse; KIP-700, KIP-919, KIP-966, KIP-1142.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    ConfigResource,
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from pyspark_kafkalog.root.brokers.metadata.quorum import NO_LEADER
from pyspark_kafkalog.root.snapshot import TopicDescription
from pyspark_kafkalog.server.admin.config_resources import ConfigResourceType
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.request_errors import error_code_of
from pyspark_kafkalog.server.security.acls import (
    NOT_ASKED,
    authorized_cluster_operations,
    authorized_operations,
)
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, validate_topic_name

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
#: Before this version of DescribeCluster the errors about types of endpoints do not exist.
_HAS_ENDPOINT_TYPES: Final = 1
#: Kafka's default of max.request.partition.size.limit.
PARTITIONS_MAX: Final = 2000
#: Before this version of ListConfigResources only client metrics, of which there are none, are listed.
_HAS_RESOURCE_TYPES: Final = 1


# DescribeCluster


async def handle_describe_cluster(
    context: ServerContext, request: Request[DescribeClusterRequest]
) -> DescribeClusterResponse:
    body = request.body
    if body.endpoint_type != _BROKERS:
        return _wrong_endpoint(body.endpoint_type, request.api_version)
    cluster = context.cluster
    return DescribeClusterResponse(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.node_id,
        brokers=tuple(
            DescribeClusterBroker(broker_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in cluster.nodes()
        ),
        cluster_authorized_operations=authorized_cluster_operations(
            context, request.session, asked=body.include_cluster_authorized_operations
        ),
    )


def _wrong_endpoint(endpoint_type: int, api_version: int) -> DescribeClusterResponse:
    code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"unknown type of endpoint: {endpoint_type}"
    if endpoint_type == _CONTROLLERS:
        code, text = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is an endpoint of a broker, not of a controller"
    if api_version < _HAS_ENDPOINT_TYPES:
        code = ErrorCode.INVALID_REQUEST
    return DescribeClusterResponse(error_code=code, error_message=text)


# ListConfigResources


async def handle_list_config_resources(
    context: ServerContext, request: Request[ListConfigResourcesRequest]
) -> ListConfigResourcesResponse:
    body = request.body
    if not context.guard.allows(request.session, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.api_version < _HAS_RESOURCE_TYPES:
        return ListConfigResourcesResponse()
    known = {each.value for each in ConfigResourceType}
    types = set(body.resource_types) or known
    if not types <= known:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: list[tuple[ConfigResourceType, str]] = []
    if ConfigResourceType.BROKER in types:
        found += [(ConfigResourceType.BROKER, str(each.node_id)) for each in context.cluster.nodes()]
    await context.run(context.root.refresh)
    if ConfigResourceType.TOPIC in types:
        found += [(ConfigResourceType.TOPIC, each) for each in context.root.topics()]
    if ConfigResourceType.GROUP in types:
        found += [(ConfigResourceType.GROUP, each) for each in context.group_configs()]
    return ListConfigResourcesResponse(
        config_resources=tuple(ConfigResource(resource_name=name, resource_type=kind) for kind, name in found)
    )


# DescribeTopicPartitions


async def handle_describe_topic_partitions(
    context: ServerContext, request: Request[DescribeTopicPartitionsRequest]
) -> DescribeTopicPartitionsResponse:
    body = request.body
    cursor = body.cursor
    if cursor is not None:
        named = {each.name for each in body.topics}
        if cursor.partition_index < 0 or (named and cursor.topic_name not in named):
            return _invalid(body)
    await context.run(context.root.refresh)
    names = sorted({each.name for each in body.topics} or context.root.topics())
    if cursor is not None:
        names = [each for each in names if each >= cursor.topic_name]
    allows, is_asked = context.guard.allows, bool(body.topics)
    allowed = {
        each
        for each in names
        if allows(request.session, AclOperation.DESCRIBE, ResourceType.TOPIC, each, logs_denial=is_asked)
    }
    limit = max(min(PARTITIONS_MAX, body.response_partition_limit), 1)
    shown = [each for each in names if each in allowed]
    page = await context.run(lambda: _Page(context, request, limit).fill(shown, cursor, is_all=not body.topics))
    denied = () if not body.topics else [each for each in names if each not in allowed]
    return DescribeTopicPartitionsResponse(
        topics=(*page.topics, *(_failed_topic(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in denied)),
        next_cursor=page.next_cursor,
    )


def _invalid(body: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """The answer to a cursor that is none: the response has no error of its own, so every topic has it."""
    names = [each.name for each in body.topics] or ([] if body.cursor is None else [body.cursor.topic_name])
    return DescribeTopicPartitionsResponse(
        topics=tuple(_failed_topic(each, ErrorCode.INVALID_REQUEST) for each in names)
    )


def _failed_topic(name: str, code: ErrorCode, *, operations: int = NOT_ASKED) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name, topic_authorized_operations=operations)


@dataclass(slots=True)
class _Page:
    """The topics of one answer, with at most `left` partitions. Filling it may read files: it runs in a thread."""

    context: ServerContext
    request: AnyRequest
    left: int
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: Cursor | None = None

    def fill(self, names: Sequence[str], cursor: Cursor | None, *, is_all: bool) -> _Page:
        """Add the topics from the cursor on, until the page is full. With `is_all`, those deleted since are omitted."""
        for name in names:
            if self.left <= 0:
                self.next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            try:
                self._add(validate_topic_name(name), first)
            except UnknownTopicError as error:
                if not is_all:
                    self._fail(name, error)
            except (KafkalogError, OSError) as error:
                self._fail(name, error)
            if self.next_cursor is not None:
                break
        return self

    def _fail(self, name: str, error: Exception) -> None:
        failed = _failed_topic(name, error_code_of(error), operations=self._operations(name))
        self.topics += (failed,)

    def _operations(self, name: str) -> int:
        session = self.request.session
        return authorized_operations(self.context, session, ResourceType.TOPIC, name, asked=True)

    def _add(self, name: str, first: int) -> None:
        topic = self.context.root.topic(name, readable_only=True)
        epochs = {each.partition: each.leader_epoch for each in topic.partitions if each.partition >= first}
        numbers = sorted({*epochs, *(each for each in topic.unreadable if each >= first)})
        if len(numbers) > self.left:
            self.next_cursor = Cursor(topic_name=name, partition_index=numbers[self.left])
        shown = {each: epochs.get(each) for each in numbers[: self.left]}
        self.left -= len(shown)
        self.topics += (self._described(topic, shown),)

    def _described(
        self, topic: TopicDescription, partitions: Mapping[int, int | None]
    ) -> DescribeTopicPartitionsResponseTopic:
        """The answer for partitions with these leader epochs; None for one that cannot be read."""
        topic_id = topic.topic_id or ZERO_UUID
        return DescribeTopicPartitionsResponseTopic(
            name=topic.name,
            topic_id=topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=tuple(self._partition(topic_id, *each) for each in partitions.items()),
            topic_authorized_operations=self._operations(topic.name),
        )

    def _partition(self, topic_id: str, number: int, epoch: int | None) -> DescribeTopicPartitionsResponsePartition:
        leader = self.context.cluster.leader(topic_id, number, self.request.client_id).node_id
        is_offline = epoch is None
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if is_offline else ErrorCode.NONE,
            partition_index=number,
            leader_id=NO_LEADER if is_offline else leader,
            leader_epoch=-1 if epoch is None else epoch,
            replica_nodes=(leader,),
            isr_nodes=() if is_offline else (leader,),
            offline_replicas=(leader,) if is_offline else (),
            # Never null: Java's AdminClient fails on it.
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
