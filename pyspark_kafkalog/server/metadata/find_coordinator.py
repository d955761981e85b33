"""FindCoordinator: the server that coordinates a group or a transactional id.

The key's hash chooses a partition of `__consumer_offsets` or `__transaction_state` as in Kafka, and
`Cluster.coordinator` the server of that partition. If the topic does not exist yet, the number of partitions with which
it will be created counts. A server that only reads keeps all groups in one place, which is partition 0.

Source of the rules: kafka.server.KafkaApis.getCoordinator; KIP-699; GroupCoordinatorService.partitionFor,
kafka.coordinator.transaction.TransactionStateManager.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC, group_partition
from pyspark_kafkalog.metadata.access.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC
from pyspark_kafkalog.server.context import READ_ONLY, AnyRequest, Node, Request, ServerContext
from pyspark_kafkalog.server.event_loop import in_turns


def partition_of_group(context: ServerContext, group_id: str) -> int:
    """The partition of `__consumer_offsets` with the group, as of the last refresh."""
    return group_partition(group_id, offsets_partitions_count(context))


def partition_of_transactional_id(context: ServerContext, transactional_id: str) -> int:
    """The partition of `__transaction_state` with the id, as of the last refresh."""
    if context.native is None:
        return 0
    topic = context.image().topics.get(TRANSACTION_STATE_TOPIC)
    count = context.broker_config().transaction_state_log_num_partitions if topic is None else len(topic.partitions)
    return group_partition(transactional_id, count)


def offsets_partitions_count(context: ServerContext) -> int:
    """The number of partitions of `__consumer_offsets`."""
    if context.native is None:
        return 1
    topic = context.image().topics.get(OFFSETS_TOPIC)
    return context.broker_config().offsets_topic_num_partitions if topic is None else len(topic.partitions)


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
        return _failed(key, ErrorCode.INVALID_REQUEST, f"key type {key_type} is neither a group nor a transactional id")
    if not context.guard.allows(request.session, AclOperation.DESCRIBE, resource_type, key):
        return _failed(key, denied, denied.message)
    if key_type == _TRANSACTION and context.root.is_broker_directory:
        return _failed(key, denied, READ_ONLY)  # of the errors, one that all clients take as final
    return _coordinator(key, context.cluster.coordinator(topic, partition))


def _coordinator(key: str, node: Node) -> Coordinator:
    return Coordinator(
        key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=ErrorCode.NONE, error_message=None
    )


def _failed(key: str, error_code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error_code, error_message=message)
