"""DescribeQuorum and UpdateFeatures: the commit log as Kafka's metadata quorum, and the feature levels of the servers.

Every live server sees all commits: each is a voter whose log ends with the last commit, and the one that is asked
answers as the leader. For a broker's directory the answer is what that node knew last, as `kafkalog metadata-quorum`
shows it.

Feature levels belong to the protocol that the servers speak: they can be read, not changed.

Source of the rules: org.apache.kafka.raft.KafkaRaftClient.handleDescribeQuorumRequest, kafka.server.ControllerApis,
org.apache.kafka.controller.QuorumController.updateFeatures; KIP-595, KIP-584, KIP-853.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from pyspark_kafkalog.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from pyspark_kafkalog.root.brokers.metadata.quorum import Quorum, QuorumReplica, native_quorum, read_broker_quorum
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.server.context import Request, ServerContext
from pyspark_kafkalog.server.metadata.api_versions import FINALIZED_FEATURES, SUPPORTED_FEATURES
from pyspark_kafkalog.server.request_errors import ApiError, RequestError
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC

_LISTENER: Final = "CONTROLLER"
_UNKNOWN: Final = -1
#: Before this version of DescribeQuorum replicas have no directories, and the answer no nodes.
_HAS_DIRECTORIES: Final = 2
#: Before this version of UpdateFeatures the answer has a result for each feature.
_HAS_NO_RESULTS: Final = 2
#: Before this version of UpdateFeatures a request says allow_downgrade.
_HAS_UPGRADE_TYPES: Final = 1
_UPGRADE: Final = 1
_UPGRADE_TYPES: Final = (1, 2, 3)


# DescribeQuorum


async def handle_describe_quorum(
    context: ServerContext, request: Request[DescribeQuorumRequest]
) -> DescribeQuorumResponse:
    body = request.body
    if not context.guard.allows(request.session, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeQuorumResponse(error_code=code, error_message=code.message)
    asked = [(topic.topic_name, [each.partition_index for each in topic.partitions]) for topic in body.topics]
    if asked != [(CLUSTER_METADATA_TOPIC, [0])]:
        return _unknown_partitions(body, RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    try:
        quorum = await context.run(lambda: _quorum(context))
    except (KafkalogError, OSError) as error:
        return _unknown_partitions(body, error)
    if request.api_version < _HAS_DIRECTORIES:
        quorum = _without_directories(quorum)
    partition = DescribeQuorumResponsePartitionData(
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=_or_unknown(quorum.high_watermark),
        current_voters=tuple(_replica(each, quorum) for each in quorum.voters or ()),
        observers=tuple(_replica(each, quorum) for each in quorum.observers),
    )
    topic = DescribeQuorumResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
    nodes = _nodes(context, quorum) if request.api_version >= _HAS_DIRECTORIES else ()
    return DescribeQuorumResponse(error_message=None, topics=(topic,), nodes=nodes)


def _quorum(context: ServerContext) -> Quorum:
    native = native_or_none(context.root)
    if native is None:
        return read_broker_quorum(context.root.directories[0])
    native.refresh()
    found = native_quorum(native)
    (own,) = found.voters or ()
    voters = tuple(
        QuorumReplica(each.node_id, own.directory_id, log_end_offset=own.log_end_offset)
        for each in context.cluster.nodes()
    )
    return Quorum(
        cluster_id=found.cluster_id,
        leader_id=context.cluster.node_id,
        leader_epoch=found.leader_epoch,
        high_watermark=found.high_watermark,
        voters=voters,
        as_of_ms=found.as_of_ms,
    )


def _without_directories(quorum: Quorum) -> Quorum:
    def without(replicas: tuple[QuorumReplica, ...]) -> tuple[QuorumReplica, ...]:
        return tuple(replace(each, directory_id=None) for each in replicas)

    voters = None if quorum.voters is None else without(quorum.voters)
    return replace(quorum, voters=voters, observers=without(quorum.observers))


def _unknown_partitions(body: DescribeQuorumRequest, error: Exception) -> DescribeQuorumResponse:
    failure = ApiError.of(error)
    return DescribeQuorumResponse(
        error_message=None,
        topics=tuple(
            DescribeQuorumResponseTopicData(
                topic_name=topic.topic_name,
                partitions=tuple(
                    DescribeQuorumResponsePartitionData(
                        partition_index=each.partition_index,
                        error_code=failure.code,
                        error_message=failure.message,
                        leader_id=_UNKNOWN,
                        leader_epoch=_UNKNOWN,
                        high_watermark=_UNKNOWN,
                    )
                    for each in topic.partitions
                ),
            )
            for topic in body.topics
        ),
    )


def _replica(replica: QuorumReplica, quorum: Quorum) -> ReplicaState:
    time_ms = _or_unknown(quorum.as_of_ms)
    return ReplicaState(
        replica_id=replica.node_id,
        replica_directory_id=replica.directory_id or ZERO_UUID,
        log_end_offset=_or_unknown(replica.log_end_offset),
        last_fetch_timestamp=time_ms,
        last_caught_up_timestamp=time_ms,
    )


def _nodes(context: ServerContext, quorum: Quorum) -> tuple[Node, ...]:
    """Where the voters that are live servers can be reached."""
    voters = {each.node_id for each in quorum.voters or ()}
    return tuple(
        Node(node_id=each.node_id, listeners=(Listener(name=_LISTENER, host=each.host, port=each.port),))
        for each in context.cluster.nodes()
        if each.node_id in voters and not context.root.is_broker_directory
    )


def _or_unknown(value: int | None) -> int:
    return _UNKNOWN if value is None else value


# UpdateFeatures


async def handle_update_features(
    context: ServerContext, request: Request[UpdateFeaturesRequest]
) -> UpdateFeaturesResponse:
    body = request.body
    if not context.guard.allows(request.session, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return UpdateFeaturesResponse(error_code=code, error_message=code.message)
    for each in body.feature_updates:
        reason = _why_not_updated(each, request.api_version)
        if reason is not None:
            text = f"no feature is updated: {each.feature} cannot have the level {each.max_version_level}: {reason}"
            return UpdateFeaturesResponse(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message=text)
    results = () if request.api_version >= _HAS_NO_RESULTS else body.feature_updates
    return UpdateFeaturesResponse(
        error_message=None,
        results=tuple(UpdatableFeatureResult(feature=each.feature, error_message=None) for each in results),
    )


def _why_not_updated(update: FeatureUpdateKey, api_version: int) -> str | None:
    """Why the feature cannot have the level; None if it has it."""
    level, current = update.max_version_level, FINALIZED_FEATURES.get(update.feature, 0)
    supported = SUPPORTED_FEATURES.get(update.feature)
    is_upgrade = update.upgrade_type == _UPGRADE if api_version >= _HAS_UPGRADE_TYPES else not update.allow_downgrade
    if api_version >= _HAS_UPGRADE_TYPES and update.upgrade_type not in _UPGRADE_TYPES:
        return f"unknown type of update: {update.upgrade_type}"
    if level < 0:
        return "expected at least 0"
    if supported is None:
        return f"there is no such feature; there are {', '.join(SUPPORTED_FEATURES)}"
    if level == current:
        return None
    if not supported[0] <= level <= supported[1]:
        return f"the servers support the levels {supported[0]} to {supported[1]}"
    if level < current and is_upgrade:
        return f"this would be a downgrade from the level {current}"
    return f"the servers speak the protocol of the level {current}"
