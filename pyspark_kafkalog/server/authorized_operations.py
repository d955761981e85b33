"""The operations that a principal may do on a resource, as the bit field of Metadata and of descriptions.

Source of the rules: kafka.server.AuthHelper.authorizedOperations, org.apache.kafka.security.authorizer.AclEntry.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, OPERATIONS, AclOperation, ResourceType
from pyspark_kafkalog.server.context import ServerContext, Session

#: The value of the field if the request did not ask for it.
NOT_ASKED: Final = -(1 << 31)


def authorized_operations(
    context: ServerContext, session: Session, resource_type: ResourceType, name: str, *, asked: bool
) -> int:
    """The bit field: bit n for the operation with the number n; NOT_ASKED unless the request has `asked`."""
    if not asked:
        return NOT_ASKED
    allows = context.guard.allows
    allowed = (
        each for each in OPERATIONS[resource_type] if allows(session, each, resource_type, name, logs_denial=False)
    )
    return sum(1 << each for each in allowed)


def authorized_cluster_operations(context: ServerContext, session: Session, *, asked: bool) -> int:
    """The same of the cluster; none for a principal that may not describe it."""
    if asked and not context.guard.allows(session, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return authorized_operations(context, session, ResourceType.CLUSTER, CLUSTER_NAME, asked=asked)
