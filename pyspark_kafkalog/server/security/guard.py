"""Decides by the root's access control entries what a session may do, and logs denials for the audit.

Whether anything is checked follows Kafka's rule that a broker without an authorizer allows everything. Here an
authorizer is on if one of these is so:

    authorizer.class.name is set       Kafka's own setting; whatever its value, the rules are StandardAuthorizer's
    super.users is set                 it has no other purpose
    there are entries                  an administrator wrote rules, so they hold
    the listener `stays_closed`        it relies on entries (server/config.py): without any, nothing is allowed

A root whose entries were all removed, and with neither setting, is open again: an administrator who relies on
entries sets super.users, without which no client could change them. A copy of a cluster that checks entries has
authorizer.class.name, and a broker's directory whose metadata log tells of an authorizer is not open either, unless the
server is insecure. Both follow the newest commits, or the broker's metadata log.

Denials go to the logger `kafka.authorizer.logger`, as a broker's do, a bounded number a second (bounded_log.py).

Source of the rules: org.apache.kafka.metadata.authorizer.StandardAuthorizer, kafka.server.AuthHelper.

`authorized_operations` is the bit field of Metadata and of descriptions: the operations that a principal may do on a
resource (kafka.server.AuthHelper.authorizedOperations, org.apache.kafka.security.authorizer.AclEntry).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.metadata.access.acl import CLUSTER_NAME, OPERATIONS, Acl, AclOperation, ResourceType
from pyspark_kafkalog.root.brokers.metadata.image import BrokerMetadata
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.security.access_control import AccessControl, Authorizer
from pyspark_kafkalog.server.context import ServerContext, Session
from pyspark_kafkalog.server.security.bounded_log import BoundedLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark_kafkalog.root.protocol import Root

AUDIT_LOG: Final = logging.getLogger("kafka.authorizer.logger")


class AclGuard:
    """The Guard of a server over `root`: see `server/context.py`. Used in the event loop's thread."""

    def __init__(
        self,
        root: Root,
        *,
        monotonic_ms: Callable[[], int],
        broker_metadata: Callable[[], BrokerMetadata] = BrokerMetadata,
        is_insecure: bool = False,
        stays_closed: bool = False,
    ) -> None:
        """`broker_metadata`: the newest of a broker's directory. `stays_closed`: without entries nothing is allowed."""
        self._root = root
        self._native = native_or_none(root)
        self._broker_metadata = broker_metadata
        self._is_insecure = is_insecure
        self._none = Authorizer() if stays_closed else None
        self._audit = BoundedLog(AUDIT_LOG, monotonic_ms)
        # What the authorizer was made from: an image keeps these mappings until a commit changes them.
        self._acls: Mapping[str, Acl] | None = None
        self._settings: Mapping[str, Mapping[str, str]] | None = None
        self._authorizer: Authorizer | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is an authorizer; if not, everything is allowed."""
        return self._current() is not None

    def allows(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        logs_denial: bool = True,
    ) -> bool:
        """Whether the session's principal may do `operation` on the resource; a denial is logged if `logs_denial`."""
        authorizer = self._current()
        if authorizer is None or authorizer.allows(session.principal, operation, resource_type, name, session.host):
            return True
        if logs_denial:
            self._denied(session, operation, f"{_type_name(resource_type)}:LITERAL:{name}")
        return False

    def allows_any(self, session: Session, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether it may do `operation` on some resource of the type; a denial is logged."""
        authorizer = self._current()
        if authorizer is None or authorizer.allows_any(session.principal, operation, resource_type, session.host):
            return True
        self._denied(session, operation, f"any {_type_name(resource_type)}")
        return False

    def _denied(self, session: Session, operation: AclOperation, resource: str) -> None:
        self._audit.info(
            "Principal = %s is Denied operation = %s from host = %s on resource = %s",
            session.principal,
            operation.name,
            session.host,
            resource,
        )

    def _current(self) -> Authorizer | None:
        if self._native is not None:
            image = self._native.store.image
            if image.acls is not self._acls or image.broker_configs is not self._settings:
                self._acls, self._settings = image.acls, image.broker_configs
                control = AccessControl(self._root)
                self._authorizer = control.authorizer() if control.has_authorizer() else self._none
            return self._authorizer
        metadata = self._broker_metadata()
        if metadata.acls is not self._acls:
            self._acls = metadata.acls
            is_on = bool(metadata.acls) or (metadata.has_authorizer and not self._is_insecure)
            self._authorizer = Authorizer(metadata.acls.values()) if is_on else self._none
        return self._authorizer


def _type_name(resource_type: ResourceType) -> str:
    return resource_type.name.title().replace("_", "")


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
