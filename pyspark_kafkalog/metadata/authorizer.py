"""Whether a principal may do something, by the entries of the metadata log: Kafka's StandardAuthorizer.

    super.users names the principal                  yes
    an entry denies it                               no, whatever others allow
    an entry allows it, or what implies it           yes
    no entry is about the resource                   allow.everyone.if.no.acl.found says
    otherwise                                        no

This is a guard rail: who can read the files of a log directory can pass by it. File permissions are the wall. Source of
the rules: org.apache.kafka.metadata.authorizer.StandardAuthorizerData.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from pyspark_kafkalog.errors import AuthorizationError
from pyspark_kafkalog.metadata.acl import (
    CLUSTER_NAME,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclOperation,
    PermissionType,
    ResourceType,
)

#: The principal of those who do not say who they are.
ANONYMOUS: Final = "User:ANONYMOUS"

_IMPLY_DESCRIBE: Final = frozenset(
    {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
)
_IMPLY_DESCRIBE_CONFIGS: Final = frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS})


@dataclass(frozen=True, slots=True)
class Authorizer:
    """The entries of one image, and the settings beside them."""

    acls: Collection[Acl] = ()
    super_users: frozenset[str] = field(default=frozenset())
    allows_without_acl: bool = False

    def allows(self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Whether `principal` may do `operation` to the resource. Entries for one host count for nobody."""
        if principal in self.super_users:
            return True
        is_covered, is_allowed = False, False
        for acl in self.acls:
            if not acl.covers(resource_type, name):
                continue
            is_covered = True
            if acl.principal not in (principal, WILDCARD_PRINCIPAL) or acl.host != WILDCARD:
                continue
            if acl.permission == PermissionType.DENY:
                if acl.operation in (operation, AclOperation.ALL):
                    return False
            elif acl.operation == AclOperation.ALL or acl.operation in _implied_by(operation):
                is_allowed = True
        return is_allowed if is_covered else self.allows_without_acl

    def check(self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Raises AuthorizationError unless it is allowed."""
        if not self.allows(principal, operation, resource_type, name):
            what = "the cluster" if name == CLUSTER_NAME else f"{resource_type.name.lower().replace('_', ' ')} {name!r}"
            raise AuthorizationError(
                f"{principal} may not {operation.name} {what}: no entry allows it, or one denies it; "
                "kafkalog acls --list shows the entries"
            )


def _implied_by(operation: AclOperation) -> frozenset[AclOperation]:
    """The operations whose permission is one for `operation` too."""
    if operation == AclOperation.DESCRIBE:
        return _IMPLY_DESCRIBE
    if operation == AclOperation.DESCRIBE_CONFIGS:
        return _IMPLY_DESCRIBE_CONFIGS
    return frozenset({operation})


def parse_super_users(text: str) -> frozenset[str]:
    """The principals of super.users, which are parted by semicolons as names may hold commas."""
    return frozenset(each.strip() for each in text.split(";") if each.strip())
