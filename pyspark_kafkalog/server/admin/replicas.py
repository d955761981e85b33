"""Replicas as Kafka's tools see them: log directories with the sizes of partitions, leader elections, reassignments.

DescribeLogDirs gives the bytes of records of each partition, by directory, as `kafkalog log-dirs` does. The sizes of a
root on a file system are those of the partitions' `.log` files, whose directories are listed; those of a root on an
object store come from the image, without a request. The disk's size and free space are given where there is one. A
partition in remote storage counts with its local segments.

AlterReplicaLogDirs, ElectLeaders and the reassignments of partitions have nothing to do: a root has no replicas, and
every server takes the requests for every partition. The tools that ask for it get the answers of a cluster in which
everything is where it should be: a partition may be reassigned to the server that Metadata names for it, which changes
nothing; any other server is refused.

Source of the rules: kafka.server.KafkaApis, ReplicaManager.describeLogDirs and alterReplicaLogDirs,
kafka.server.ControllerApis, org.apache.kafka.controller.ReplicationControlManager; KIP-455, KIP-460, KIP-827.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.metrics import log_sizes
from pyspark_kafkalog.metadata.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
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
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.server.context import AnyRequest, Request, ServerContext, why_read_only
from pyspark_kafkalog.server.request_errors import SUCCESS, ApiError, RequestError, error_code_of
from pyspark_kafkalog.storage.names import TopicPartition

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


def log_directories(root: Root) -> list[str]:
    """The directories of the log: absolute paths, as brokers give them, or the URL of the one in an object store."""
    paths = root.directories or (root.path,)
    return [str(each.absolute()) if isinstance(each, Path) else str(each) for each in paths]


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
                name=topic.name,
                partitions=tuple(answer(topic.name, each) for each in topic.partitions),
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
