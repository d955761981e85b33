"""What has configurations in Kafka's protocol: the types of resources, and who may see or change their configurations.

Source of the rules: org.apache.kafka.common.config.ConfigResource, kafka.server.ConfigHelper and ControllerApis.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.context import AnyRequest, ServerContext
from pyspark_kafkalog.server.request_errors import RequestError


class ConfigResourceType(IntEnum):
    """The type of a resource, with its number in Kafka's protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def resource_type(number: int) -> ConfigResourceType:
    """The type with that number. Raises RequestError for an unknown one."""
    try:
        return ConfigResourceType(number)
    except ValueError:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown type of resource: {number}") from None


def check_allowed(
    context: ServerContext, request: AnyRequest, operation: AclOperation, kind: ConfigResourceType, name: str
) -> None:
    """Raise RequestError if the client may not do `operation` on the configurations of the resource."""
    if kind is ConfigResourceType.TOPIC:
        acl_type, acl_name = ResourceType.TOPIC, name
    elif kind is ConfigResourceType.GROUP:
        acl_type, acl_name = ResourceType.GROUP, name
    else:
        acl_type, acl_name = ResourceType.CLUSTER, CLUSTER_NAME
    if not context.guard.allows(request.session, operation, acl_type, acl_name):
        raise RequestError(_DENIED[acl_type])


def check_broker(context: ServerContext, name: str) -> None:
    """Raise RequestError unless `name` is the id of a live server."""
    try:
        node_id = int(name) if len(name) <= len(str(-(1 << 31))) else None
    except ValueError:
        node_id = None
    if node_id is None or name != str(node_id):
        raise RequestError(ErrorCode.INVALID_REQUEST, f"the id of a broker must be an integer, but it is: {name[:100]}")
    live = [each.node_id for each in context.cluster.nodes()]
    if node_id not in live:
        text = f"there is no broker {node_id}: expected {', '.join(map(str, live))}, or none for all"
        raise RequestError(ErrorCode.INVALID_REQUEST, text)
