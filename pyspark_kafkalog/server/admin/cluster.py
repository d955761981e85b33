"""The cluster: its servers, their topics and replicas, the metadata quorum and the feature levels.

DescribeTopicPartitions answers in pieces: at most so many partitions, in the order of topics and partitions, and a
cursor at which the client continues. As in Metadata a partition's leader is its only replica. Topics that the client
may not describe are answered as if they were unknown.

DescribeQuorum shows the commit log as Kafka's metadata quorum. Every live server sees all commits: each is a voter
whose log ends with the last commit, and the one that is asked answers as the leader. For a broker's directory the
answer is what that node knew last, as `kafkalog metadata-quorum` shows it. Feature levels belong to the protocol that
the servers speak: they can be read, and UpdateFeatures changes none.

DescribeLogDirs gives the bytes of records of each partition, by directory, as `kafkalog log-dirs` does. The sizes of a
root on a file system are those of the partitions' `.log` files, whose directories are listed; those of a root on an
object store come from the image, without a request. The disk's size and free space are given where there is one. A
partition in remote storage counts with its local segments.

AlterReplicaLogDirs, ElectLeaders and the reassignments of partitions have nothing to do: a root has no replicas, and
every server takes the requests for every partition. The tools that ask for it get the answers of a cluster in which
everything is where it should be: a partition may be reassigned to the server that Metadata names for it, which changes
nothing; any other server is refused.

Source of the rules: kafka.server.AuthHelper.computeDescribeClusterResponse, DescribeTopicPartitionsRequestHandler,
KRaftMetadataCache.describeTopicResponse, org.apache.kafka.raft.KafkaRaftClient.handleDescribeQuorumRequest,
kafka.server.KafkaApis, ReplicaManager.describeLogDirs and alterReplicaLogDirs, kafka.server.ControllerApis,
org.apache.kafka.controller.QuorumController.updateFeatures and ReplicationControlManager; KIP-455, KIP-460, KIP-584,
KIP-595, KIP-700, KIP-827, KIP-853, KIP-919, KIP-966, KIP-1142.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.maintenance.metrics import log_sizes
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import (
    ConfigResource,
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    FeatureUpdateKey,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    Listener,
    Node,
    ReplicaState,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from pyspark_kafkalog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from pyspark_kafkalog.root.brokers.quorum import NO_LEADER, Quorum, QuorumReplica, native_quorum, read_broker_quorum
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.root.snapshot import TopicDescription
from pyspark_kafkalog.server.admin.configs import ConfigResourceType, log_directories
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext, why_read_only
from pyspark_kafkalog.server.context import Node as ServerNode
from pyspark_kafkalog.server.metadata import FINALIZED_FEATURES, SUPPORTED_FEATURES
from pyspark_kafkalog.server.request_errors import SUCCESS, ApiError, RequestError, error_code_of
from pyspark_kafkalog.server.security.acls import NOT_ASKED, authorized_cluster_operations, authorized_operations
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition, validate_topic_name

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
        quorum, servers = await context.run(lambda: _quorum(context))
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
    nodes = tuple(map(_node, servers)) if request.api_version >= _HAS_DIRECTORIES else ()
    return DescribeQuorumResponse(error_message=None, topics=(topic,), nodes=nodes)


def _quorum(context: ServerContext) -> tuple[Quorum, Sequence[ServerNode]]:
    """The quorum, and the voters that are live servers: of a broker's directory none, as its voters are brokers."""
    native = native_or_none(context.root)
    if native is None:
        return read_broker_quorum(context.root.directories[0]), ()
    native.refresh()
    found = native_quorum(native)
    (own,) = found.voters or ()
    servers = context.cluster.nodes()
    voters = tuple(QuorumReplica(each.node_id, own.directory_id, log_end_offset=own.log_end_offset) for each in servers)
    quorum = Quorum(
        cluster_id=found.cluster_id,
        leader_id=context.cluster.node_id,
        leader_epoch=found.leader_epoch,
        high_watermark=found.high_watermark,
        voters=voters,
        as_of_ms=found.as_of_ms,
    )
    return quorum, servers


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


def _node(server: ServerNode) -> Node:
    """Where clients reach a voter."""
    return Node(node_id=server.node_id, listeners=(Listener(name=_LISTENER, host=server.host, port=server.port),))


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


_UNKNOWN_BYTES: Final = -1


async def handle_describe_log_dirs(
    context: ServerContext, request: Request[DescribeLogDirsRequest]
) -> DescribeLogDirsResponse:
    body = request.body
    if not context.guard.allows(request.session, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = None
    if body.topics is not None:
        wanted = {TopicPartition(each.topic, number) for each in body.topics for number in each.partitions}
    return DescribeLogDirsResponse(results=await context.run(lambda: _log_dirs(context.root, wanted)))


def _log_dirs(root: Root, wanted: Collection[TopicPartition] | None) -> tuple[DescribeLogDirsResult, ...]:
    """All directories with the partitions in `wanted`, None for all."""
    directories = log_directories(root)
    found: dict[str, list[tuple[TopicPartition, int]]] = {each: [] for each in directories}
    topics = None if wanted is None else {each.topic for each in wanted}
    try:
        root.refresh()
        for each, size in log_sizes(root, topics):
            if size is not None and (wanted is None or each in wanted):
                found[_log_dir_of(root, each, directories)].append((each, size.size_bytes))
    except (KafkalogError, OSError) as error:
        code = error_code_of(error)
        return tuple(DescribeLogDirsResult(error_code=code, log_dir=each) for each in directories)
    return tuple(_result(directory, sizes) for directory, sizes in found.items())


def _log_dir_of(root: Root, topic_partition: TopicPartition, directories: list[str]) -> str:
    """Which of several directories of brokers holds the replica that is read."""
    if len(directories) == 1:
        return directories[0]
    return str(root.partition(topic_partition.topic, topic_partition.partition).directory.parent.absolute())


def _result(directory: str, sizes: Iterable[tuple[TopicPartition, int]]) -> DescribeLogDirsResult:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for each, size_bytes in sizes:
        partition = DescribeLogDirsPartition(partition_index=each.partition, partition_size=size_bytes)
        by_topic.setdefault(each.topic, []).append(partition)
    total_bytes, usable_bytes = _disk(directory)
    return DescribeLogDirsResult(
        log_dir=directory,
        topics=tuple(
            DescribeLogDirsTopic(name=name, partitions=tuple(partitions)) for name, partitions in by_topic.items()
        ),
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )


def _disk(directory: str) -> tuple[int, int]:
    """The size of the file system and its usable part; unknown for an object store."""
    if not Path(directory).is_absolute():
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    try:
        found = os.statvfs(directory)
    except OSError:
        return _UNKNOWN_BYTES, _UNKNOWN_BYTES
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


async def handle_alter_replica_log_dirs(
    context: ServerContext, request: Request[AlterReplicaLogDirsRequest]
) -> AlterReplicaLogDirsResponse:
    """A replica that is to stay where it is stays there; any other directory does not exist."""
    body = request.body
    may_alter = context.guard.allows(request.session, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    directories = log_directories(context.root)
    await context.run(context.root.refresh)
    topics = frozenset(context.root.topics())
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for each in body.dirs:
        for topic in each.topics:
            code = ErrorCode.NONE if each.path in directories else ErrorCode.LOG_DIR_NOT_FOUND
            if topic.name not in topics:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not may_alter:
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            results.setdefault(topic.name, []).extend(
                AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                for number in topic.partitions
            )
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(found)) for name, found in results.items()
        )
    )


_ELECTION_TYPES: Final = (0, 1)
_HAS_ELECTION_TYPES: Final = 1
_NOTHING_TO_MOVE: Final = RequestError(
    ErrorCode.POLICY_VIOLATION, "there are no replicas to move: every server takes the requests for every partition"
)
_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def handle_elect_leaders(context: ServerContext, request: Request[ElectLeadersRequest]) -> ElectLeadersResponse:
    body = request.body
    if not _allows(context, request, AclOperation.ALTER):
        return ElectLeadersResponse(error_code=_DENIED)
    if request.api_version >= _HAS_ELECTION_TYPES and body.election_type not in _ELECTION_TYPES:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    if body.topic_partitions is None:
        # Of all partitions only those are listed that need an election.
        names = await context.run(lambda: sorted(_partition_numbers(context.root)))
        return ElectLeadersResponse(replica_election_results=tuple(ReplicaElectionResult(topic=each) for each in names))
    numbers = await context.run(lambda: _partition_numbers(context.root))
    return ElectLeadersResponse(
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=each.topic,
                partition_result=tuple(
                    _elected(number, numbers.get(each.topic, frozenset())) for number in each.partitions
                ),
            )
            for each in body.topic_partitions
        )
    )


def _elected(partition: int, existing: frozenset[int]) -> PartitionResult:
    code = ErrorCode.ELECTION_NOT_NEEDED if partition in existing else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return PartitionResult(partition_id=partition, error_code=code, error_message=code.message)


async def handle_alter_partition_reassignments(
    context: ServerContext, request: Request[AlterPartitionReassignmentsRequest]
) -> AlterPartitionReassignmentsResponse:
    body = request.body
    if not _allows(context, request, AclOperation.ALTER):
        return AlterPartitionReassignmentsResponse(error_code=_DENIED, error_message=_DENIED.message)
    numbers = await context.run(lambda: _partition_numbers(context.root))

    def answer(topic: str, asked: ReassignablePartition) -> ReassignablePartitionResponse:
        result = SUCCESS
        try:
            if asked.partition_index not in numbers.get(topic, frozenset()):
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            _check_reassignment(context, request, topic, asked)
        except KafkalogError as error:
            result = ApiError.of(error)
        return ReassignablePartitionResponse(
            partition_index=asked.partition_index, error_code=result.code, error_message=result.message
        )

    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=SUCCESS.message,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name, partitions=tuple(answer(topic.name, each) for each in topic.partitions)
            )
            for topic in body.topics
        ),
    )


def _check_reassignment(context: ServerContext, request: AnyRequest, topic: str, asked: ReassignablePartition) -> None:
    """Raise KafkalogError unless the partition already is where it shall be, which Kafka too takes as a success."""
    if asked.replicas is None:
        raise RequestError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    servers = {each.node_id for each in context.cluster.listed()}
    if not asked.replicas or len(set(asked.replicas)) < len(asked.replicas) or not servers.issuperset(asked.replicas):
        expected = ", ".join(map(str, sorted(servers)))
        text = f"expected replicas on different ones of the servers {expected}, found {list(asked.replicas)[:20]}"
        raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    topic_id = context.root.topic(topic, readable_only=True).topic_id or ZERO_UUID
    leader = context.cluster.leader(topic_id, asked.partition_index, request.client_id)
    if asked.replicas != (leader.node_id,):
        raise why_read_only(context) or _NOTHING_TO_MOVE


async def handle_list_partition_reassignments(
    context: ServerContext, request: AnyRequest
) -> ListPartitionReassignmentsResponse:
    if not _allows(context, request, AclOperation.DESCRIBE):
        return ListPartitionReassignmentsResponse(error_code=_DENIED, error_message=_DENIED.message)
    return ListPartitionReassignmentsResponse(error_message=None)


def _allows(context: ServerContext, request: AnyRequest, operation: AclOperation) -> bool:
    return context.guard.allows(request.session, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _partition_numbers(root: Root) -> dict[str, frozenset[int]]:
    """The numbers of the partitions of every topic, as of now."""
    root.refresh()
    return {name: frozenset(root.partition_numbers(name)) for name in root.topics()}
