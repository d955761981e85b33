"""Decides whether a principal may do an operation, by the access control entries, as Kafka's StandardAuthorizer.

    super.users contains the principal                             yes
    an entry denies the operation                                  no, even if others allow it
    an entry allows the operation, or one that implies it          yes
    no entry covers the resource                                   the value of allow.everyone.if.no.acl.found
    otherwise                                                      no

Access control entries only guard against mistakes: a user with access to the files of a log directory can bypass them.
File permissions are the security boundary.

Source of the rules: org.apache.kafka.metadata.authorizer.StandardAuthorizerData.
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

#: The principal of unauthenticated clients.
ANONYMOUS: Final = "User:ANONYMOUS"

_IMPLY_DESCRIBE: Final = frozenset(
    {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
)
_IMPLY_DESCRIBE_CONFIGS: Final = frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS})


@dataclass(frozen=True, slots=True)
class Authorizer:
    """The entries of one image, and the related settings."""

    acls: Collection[Acl] = ()
    super_users: frozenset[str] = field(default=frozenset())
    allows_without_acl: bool = False

    def allows(self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Whether `principal` may do `operation` on the resource. Entries for a single host apply to no principal."""
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
        """Raises AuthorizationError unless the operation is allowed."""
        if not self.allows(principal, operation, resource_type, name):
            what = "the cluster" if name == CLUSTER_NAME else f"{resource_type.name.lower().replace('_', ' ')} {name!r}"
            raise AuthorizationError(
                f"{principal} may not {operation.name} {what}: no entry allows it, or one denies it; "
                "kafkalog acls --list shows the entries"
            )


def _implied_by(operation: AclOperation) -> frozenset[AclOperation]:
    """The operations whose permission implies one for `operation`."""
    if operation == AclOperation.DESCRIBE:
        return _IMPLY_DESCRIBE
    if operation == AclOperation.DESCRIBE_CONFIGS:
        return _IMPLY_DESCRIBE_CONFIGS
    return frozenset({operation})


def parse_super_users(text: str) -> frozenset[str]:
    """The principals of super.users, separated by semicolons, since names may contain commas."""
    return frozenset(each.strip() for each in text.split(";") if each.strip())
