"""Lists and changes the access control entries of a log directory, and decides by them whether an operation is allowed.

>>> import tempfile, pyarrow as pa
>>> from pyspark_kafkalog import LogDir
>>> from pyspark_kafkalog.metadata.acl import Acl, AclFilter, AclOperation, PatternType, PermissionType, ResourceType
>>> scratch = tempfile.TemporaryDirectory()
>>> log_dir = LogDir.create(scratch.name + "/log")
>>> _ = log_dir.append("orders", pa.table({"value": ["1"]}))
>>> literal, allow = PatternType.LITERAL, PermissionType.ALLOW
>>> acls = log_dir.access_control()
>>> acls.add([Acl(ResourceType.TOPIC, "orders", literal, "User:ann", "*", AclOperation.READ, allow)])
>>> [(acl.principal, acl.operation.name) for acl in acls.entries(AclFilter(principal="User:ann"))]
[('User:ann', 'READ')]
>>> LogDir.open(log_dir.path, principal="User:ann").read("orders").num_rows
1
>>> LogDir.open(log_dir.path, principal="User:bob").read("orders")
Traceback (most recent call last):
pyspark_kafkalog.errors.AuthorizationError: ...
>>> scratch.cleanup()

The entries apply to a LogDir that was opened with a principal. Decisions are those of Kafka's StandardAuthorizer:

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

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import AuthorizationError
from pyspark_kafkalog.metadata.acl import (
    CLUSTER_NAME,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    AclOperation,
    PermissionType,
    ResourceType,
)
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.broker_metadata.image import read_broker_metadata

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.image import MetadataImage
    from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
    from pyspark_kafkalog.root.protocol import Root


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


ALL: AclFilter = AclFilter()


class AccessControl:
    """The entries of one log directory, as of its last `refresh`. Those of a broker's directory can be listed."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def entries(self, acl_filter: AclFilter = ALL) -> list[Acl]:
        """The entries that the filter matches, in order."""
        return sorted(acl for acl in self._all() if acl_filter.matches(acl))

    def add(self, acls: Collection[Acl]) -> None:
        """Add the entries that do not exist, in one commit. Raises InvalidAclError, ReadOnlyLogDirError."""
        from pyspark_kafkalog.metadata.acl import add_acls

        self._root.native().commit(
            lambda image: add_acls(image.acls.values(), acls, random.SystemRandom()),
            operation="add access control entries",
        )

    def remove(self, acl_filter: AclFilter) -> list[Acl]:
        """Remove the entries that the filter matches, in one commit; return them. Raises ReadOnlyLogDirError."""
        from pyspark_kafkalog.metadata.acl import remove_acls

        removed: list[Acl] = []

        def build(image: MetadataImage) -> Sequence[MetadataRecord]:
            matched = {acl_id: acl for acl_id, acl in image.acls.items() if acl_filter.matches(acl)}
            removed[:] = matched.values()
            return remove_acls(matched)

        self._root.native().commit(build, operation="remove access control entries")
        return sorted(removed)

    def authorizer(self) -> Authorizer:
        """Decides by these entries, super.users and allow.everyone.if.no.acl.found."""
        if self._root.is_broker_directory:
            return Authorizer(tuple(self._all()))
        broker = self._root.native().broker_config()
        return Authorizer(
            tuple(self._all()), parse_super_users(broker.super_users), broker.allow_everyone_if_no_acl_found
        )

    def _all(self) -> Collection[Acl]:
        if not self._root.is_broker_directory:
            return self._root.native().store.image.acls.values()
        directory = self._root.directories[0] / METADATA_DIR
        return read_broker_metadata(directory).acls.values() if directory.is_dir() else ()
