"""The operations that a principal may do on a resource, as the bit field of Metadata and of descriptions.

Source of the rules: kafka.server.AuthHelper.authorizedOperations, org.apache.kafka.security.authorizer.AclEntry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.server.context import ServerContext, Session

#: The operations of each type of resource that the answer may contain.
_SUPPORTED: Final[Mapping[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
    ),
}
#: The value of the field if the request did not ask for it.
NOT_ASKED: Final = -(1 << 31)


def authorized_operations(
    context: ServerContext, session: Session, resource_type: ResourceType, name: str, *, asked: bool
) -> int:
    """The bit field: bit n for the operation with the number n; NOT_ASKED unless the request has `asked`."""
    if not asked:
        return NOT_ASKED
    allowed = (each for each in _SUPPORTED[resource_type] if context.guard.allows(session, each, resource_type, name))
    return sum(1 << each for each in allowed)
