"""Lists, adds and removes the access control entries of a log directory.

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

The entries apply to a LogDir that was opened with a principal. They only guard against mistakes: a user with access to
the files can bypass them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyspark_kafkalog.metadata.acl import Acl, AclFilter
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.broker_metadata.image import read_broker_metadata
from pyspark_kafkalog.security.authorizer import Authorizer, parse_super_users

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.image import MetadataImage
    from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
    from pyspark_kafkalog.root.protocol import Root

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
        directory = self._root.path / METADATA_DIR
        return read_broker_metadata(directory).acls.values() if directory.is_dir() else ()
