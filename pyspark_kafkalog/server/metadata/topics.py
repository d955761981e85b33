"""Metadata: the servers, and the topics with their partitions and leaders.

Every server takes requests for every partition, so a leader is only advice; `Cluster.leader` gives the same one on all
servers. A topic that is not known is looked for in the newest image first, then created if the request and
auto.create.topics.enable allow it. Leader epochs are those of the root.

Source of the rules: kafka.server.KafkaApis.handleTopicMetadataRequest, DefaultAutoTopicCreationManager; KIP-516.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import InvalidTopicError, KafkalogError, TopicExistsError, UnknownTopicError
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pyspark_kafkalog.root.brokers.metadata.quorum import NO_LEADER
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext
from pyspark_kafkalog.server.metadata.known_topics import known_topics
from pyspark_kafkalog.server.request_errors import error_code_of
from pyspark_kafkalog.server.security.acls import (
    NOT_ASKED,
    authorized_cluster_operations,
    authorized_operations,
)
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, validate_topic_name

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
        error_code=error_code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations,
    )
