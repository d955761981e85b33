"""ElectLeaders and the reassignments of partitions, which have nothing to do here: a root has no replicas.

Every server takes the requests for every partition, so there is no leader to elect, and no replica to move. The tools
that ask for it get the answers of a cluster in which everything is where it should be: a partition may be reassigned to
the server that Metadata names for it, which changes nothing; any other server is refused.

Source of the rules: kafka.server.ControllerApis, org.apache.kafka.controller.ReplicationControlManager; KIP-455,
KIP-460.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
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
from pyspark_kafkalog.server.request_errors import SUCCESS, ApiError, RequestError

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
