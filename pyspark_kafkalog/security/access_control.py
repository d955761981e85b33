"""Lists and changes the access control entries of a log directory, and decides by them whether an operation is allowed.

    >>> import tempfile, pyarrow as pa
    >>> from pyspark_kafkalog import LogDir
    >>> from pyspark_kafkalog.metadata.acl import Acl, AclFilter, AclOperation
    >>> from pyspark_kafkalog.metadata.acl import PatternType, PermissionType, ResourceType
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

The entries apply to a LogDir that was opened with a principal, and to clients of a server. Decisions are those of
Kafka's StandardAuthorizer:

    super.users contains the principal                             yes
    an entry denies the operation                                  no, even if others allow it
    an entry allows the operation, or one that implies it          yes
    no entry covers the resource                                   the value of allow.everyone.if.no.acl.found
    otherwise                                                      no

An entry for a host, or for a range of hosts, applies only where the host is known: to clients of a server. For a LogDir
access control entries only guard against mistakes: a user with access to the files of a log directory can bypass them.
File permissions are the security boundary.

Decisions take microseconds whatever the number of entries: they are indexed by name of the resource and principal.

Source of the rules: org.apache.kafka.metadata.authorizer.StandardAuthorizerData, authorizeByResourceType of
org.apache.kafka.server.authorizer.Authorizer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import AuthorizationError
from pyspark_kafkalog.metadata.acl import (
    CLUSTER_NAME,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    AclOperation,
    HostRange,
    PatternType,
    PermissionType,
    ResourceType,
    add_acls,
    canonical_host,
    is_range,
    remove_acls,
)
from pyspark_kafkalog.root.protocol import native_or_none

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.image import MetadataImage
    from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
    from pyspark_kafkalog.root.brokers.image import BrokerMetadata
    from pyspark_kafkalog.root.protocol import Root


#: The principal of unauthenticated clients.
ANONYMOUS: Final = "User:ANONYMOUS"

#: Stands for any resource where Kafka asks about all of them.
_NAME_OF_NO_RESOURCE: Final = "hardcode"

_IMPLY_DESCRIBE: Final = frozenset(
    {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
)
_IMPLY_DESCRIBE_CONFIGS: Final = frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS})


class _Entries:
    """The entries of one pattern of names, by principal."""

    __slots__ = ("_by_principal",)

    def __init__(self) -> None:
        self._by_principal: dict[str, list[tuple[Acl, str | HostRange]]] = {}

    def add(self, acl: Acl) -> None:
        hosts = _hosts_of(acl)
        if hosts is not None:
            self._by_principal.setdefault(acl.principal, []).append((acl, hosts))

    def of(self, principal: str, host: str | None) -> Iterator[Acl]:
        """The entries that apply to the principal, coming from the host."""
        for name in (principal, WILDCARD_PRINCIPAL):
            for acl, hosts in self._by_principal.get(name, ()):
                if isinstance(hosts, HostRange):
                    if host is not None and hosts.contains(host):
                        yield acl
                elif hosts in (WILDCARD, host):
                    yield acl


def _hosts_of(acl: Acl) -> str | HostRange | None:
    """Which hosts the entry applies to. With a range that cannot be read: all if it denies, None if it allows."""
    if not is_range(acl.host):
        return canonical_host(acl.host)
    found = HostRange.parse(acl.host)
    return WILDCARD if found is None and acl.permission == PermissionType.DENY else found


class _Resources:
    """The entries for one type of resource, by their patterns."""

    __slots__ = ("_lengths", "_literal", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[str, _Entries] = {}
        self._prefixed: dict[str, _Entries] = {}
        self._lengths: tuple[int, ...] = ()  # of the prefixes

    def add(self, acl: Acl) -> None:
        is_prefix = acl.pattern_type == PatternType.PREFIXED
        (self._prefixed if is_prefix else self._literal).setdefault(acl.resource_name, _Entries()).add(acl)
        if is_prefix and len(acl.resource_name) not in self._lengths:
            self._lengths = tuple(sorted((*self._lengths, len(acl.resource_name))))

    def covering(self, name: str) -> list[_Entries]:
        """The entries of all patterns that the name matches."""
        found = [self._literal.get(name), self._literal.get(WILDCARD) if name != WILDCARD else None]
        found += (self._prefixed.get(name[:length]) for length in self._lengths if length <= len(name))
        return [each for each in found if each is not None]

    def of(self, principal: str, host: str | None) -> Iterator[Acl]:
        """All entries that apply to the principal, coming from the host."""
        for entries in (*self._literal.values(), *self._prefixed.values()):
            yield from entries.of(principal, host)


class Authorizer:
    """Decides by the entries of one image, and the related settings."""

    def __init__(
        self, acls: Collection[Acl] = (), super_users: frozenset[str] = frozenset(), allows_without_acl: bool = False
    ) -> None:
        self.super_users = super_users
        self.allows_without_acl = allows_without_acl
        #: Whether a client that does not say who it is may do what no entry allows.
        self.is_open = allows_without_acl or ANONYMOUS in super_users
        self._resources: dict[ResourceType, _Resources] = {}
        for acl in acls:
            self._resources.setdefault(acl.resource_type, _Resources()).add(acl)

    def allows(
        self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str, host: str | None = None
    ) -> bool:
        """Whether `principal`, coming from `host`, may do `operation` on the resource.

        `host` has the form of metadata/acl.py. Without a host, entries for single hosts and
        ranges apply to no principal.
        """
        if principal in self.super_users:
            return True
        resources = self._resources.get(resource_type)
        covering = [] if resources is None else resources.covering(name)
        if not covering:
            return self.allows_without_acl
        implying = _implied_by(operation)
        is_allowed = False
        for entries in covering:
            for acl in entries.of(principal, host):
                if acl.permission == PermissionType.DENY:
                    if acl.operation in (operation, AclOperation.ALL):
                        return False
                elif acl.operation == AclOperation.ALL or acl.operation in implying:
                    is_allowed = True
        return is_allowed

    def allows_any(
        self, principal: str, operation: AclOperation, resource_type: ResourceType, host: str | None = None
    ) -> bool:
        """Whether there can be a resource of the type on which `principal` may do `operation`.

        As in Kafka, an entry must name the operation itself, or ALL: none is implied by another.
        """
        if self.allows(principal, operation, resource_type, _NAME_OF_NO_RESOURCE, host):
            return True
        resources = self._resources.get(resource_type)
        if resources is None:
            return False
        allowed: set[tuple[PatternType, str]] = set()
        denied: set[tuple[PatternType, str]] = set()
        for acl in resources.of(principal, host):
            if acl.operation in (operation, AclOperation.ALL):
                is_denial = acl.permission == PermissionType.DENY
                (denied if is_denial else allowed).add((acl.pattern_type, acl.resource_name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return (PatternType.LITERAL, WILDCARD) in allowed or any(
            not _is_denied(pattern_type, name, denied) for pattern_type, name in allowed
        )

    def check(self, principal: str, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Raises AuthorizationError unless the operation is allowed."""
        if not self.allows(principal, operation, resource_type, name):
            what = "the cluster" if name == CLUSTER_NAME else f"{resource_type.name.lower().replace('_', ' ')} {name!r}"
            raise AuthorizationError(
                f"{principal} may not {operation.name} {what}: no entry allows it, or one denies it; "
                "kafkalog acls --list shows the entries"
            )


def _is_denied(pattern_type: PatternType, name: str, denied: set[tuple[PatternType, str]]) -> bool:
    """Whether all that a pattern permits is denied by another pattern."""
    if pattern_type == PatternType.LITERAL and (PatternType.LITERAL, name) in denied:
        return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


def _implied_by(operation: AclOperation) -> Collection[AclOperation]:
    """The operations whose permission implies one for `operation`."""
    if operation == AclOperation.DESCRIBE:
        return _IMPLY_DESCRIBE
    if operation == AclOperation.DESCRIBE_CONFIGS:
        return _IMPLY_DESCRIBE_CONFIGS
    return (operation,)


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
        wanted = [replace(each, host=canonical_host(each.host)) for each in acls]
        self._root.native().commit(
            lambda image: add_acls(image.acls.values(), wanted, random.SystemRandom()),
            operation="add access control entries",
        )

    def remove(self, acl_filter: AclFilter) -> list[Acl]:
        """Remove the entries that the filter matches, in one commit; return them. Raises ReadOnlyLogDirError."""
        removed: list[Acl] = []

        def build(image: MetadataImage) -> Sequence[MetadataRecord]:
            matched = {acl_id: acl for acl_id, acl in image.acls.items() if acl_filter.matches(acl)}
            removed[:] = matched.values()
            return remove_acls(matched)

        self._root.native().commit(build, operation="remove access control entries")
        return sorted(removed)

    def has_authorizer(self) -> bool:
        """Whether a server checks entries, also if there are none: the settings, or entries, tell so."""
        native = native_or_none(self._root)
        if native is None:
            return self._broker_metadata().has_authorizer
        broker = native.broker_config()
        return bool(broker.authorizer_class_name or broker.super_users or self._all())

    def authorizer(self) -> Authorizer:
        """Decides by these entries, super.users and allow.everyone.if.no.acl.found."""
        native = native_or_none(self._root)
        if native is None:
            return Authorizer(tuple(self._all()))
        broker = native.broker_config()
        return Authorizer(
            tuple(self._all()), parse_super_users(broker.super_users), broker.allow_everyone_if_no_acl_found
        )

    def _all(self) -> Collection[Acl]:
        native = native_or_none(self._root)
        return (self._broker_metadata() if native is None else native.store.image).acls.values()

    def _broker_metadata(self) -> BrokerMetadata:
        from pyspark_kafkalog.root.brokers.image import read_metadata_of  # not needed with a native root

        return read_metadata_of(self._root.directories)
