"""Access control entries: permit or deny principals operations on topics, groups and transactional ids; hosts in them.

The commit log stores them as Kafka's metadata log does: one record each, with a random id that the record of a removal
names. The enums have the numbers of Kafka's records.

Source of the rules: AclBinding, AclBindingFilter and ResourcePatternFilter of org.apache.kafka.common.acl and
.resource, org.apache.kafka.controller.AclControlManager, org.apache.kafka.security.authorizer.AclEntry.

*Hosts* of clients, of access control entries and of quotas have one form:

    10.1.2.3                     IPv4; a dual-stack socket names such a client ::ffff:10.1.2.3
    0:0:0:0:0:0:0:1              IPv6 as java.net.Inet6Address writes it, without a scope
    10.0.0.0/8, 2001:db8::/32    a range of them, in entries

A broker compares the texts of hosts, and java.net gives it one text for an address. Python and people write others, so
each host is brought into this form: that of a client when its connection is accepted, those of entries and quotas when
they are read or added. A text that is no address stays as it is.

Kafka's ranges are IPv4 with four decimal numbers, or IPv6; bits of the address below the prefix have no effect. A range
that cannot be read matches no client at a broker. Here its denial applies to every host: a range that only this package
cannot read must not open what it closes at its cluster.

Source of the rules: org.apache.kafka.server.authorizer.CidrUtils (KIP-1276), SubnetUtils and SubnetUtils6 of
org.apache.commons.net.util.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeVar

from pyspark_kafkalog.errors import InvalidAclError, InvalidRecordError
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AccessControlEntryRecord,
    MetadataRecord,
    RemoveAccessControlEntryRecord,
)
from pyspark_kafkalog.storage.names import check_principal, random_uuid
from pyspark_kafkalog.values import dataclass

#: Longer texts are no addresses, and are not kept.
_ADDRESS_CHARS_MAX: Final = 128
_KNOWN_HOSTS_MAX: Final = 4096
_RANGE: Final = "/"
_V4_RANGE = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})/([0-9]{1,2})")
_V6_RANGE = re.compile(r"([0-9A-Fa-f:.]+)(?:%[^/]*)?/\+?([0-9]{1,3})")
_V4_BITS: Final = 32
_V6_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class HostRange:
    """The hosts whose address of `bits` bits begins with the `network`, `host_bits` shorter than an address."""

    bits: int
    host_bits: int
    network: int

    @classmethod
    def parse(cls, text: str) -> HostRange | None:
        """The range that Kafka reads from the text; None for one that it refuses."""
        v4 = _V4_RANGE.fullmatch(text)
        if v4 is not None:
            *numbers, prefix = map(int, v4.groups())
            return cls._of(bytes(numbers), prefix) if max(numbers) < 1 << 8 else None
        v6 = _V6_RANGE.fullmatch(text)
        if v6 is None or len(text) > _ADDRESS_CHARS_MAX:
            return None
        try:
            address = IPv6Address(v6[1])
        except ValueError:
            return None
        # Java takes a mapped address for one of IPv4, which is none to Kafka's class for ranges of IPv6.
        return None if address.ipv4_mapped is not None else cls._of(address.packed, int(v6[2]))

    @classmethod
    def _of(cls, address: bytes, prefix: int) -> HostRange | None:
        bits = 8 * len(address)
        if prefix > bits:
            return None
        return cls(bits, bits - prefix, int.from_bytes(address, "big") >> (bits - prefix))

    def contains(self, host: str) -> bool:
        """Whether a host, in the form of `canonical_host`, is in the range."""
        found = _number(host)
        return found is not None and found[0] == self.bits and found[1] >> self.host_bits == self.network


def is_range(host: str) -> bool:
    """Whether the host of an entry is written as a range, which `HostRange.parse` may refuse."""
    return _RANGE in host


def canonical_host(text: str) -> str:
    """The host in its one form; the text itself if it is no address."""
    return canonical_ip(text) or text


def canonical_ip(text: str) -> str | None:
    """The IP address in its one form; None if the text is none."""
    return _canonical(text) if len(text) <= _ADDRESS_CHARS_MAX else None


@lru_cache(_KNOWN_HOSTS_MAX)
def _canonical(text: str) -> str | None:
    address = _address(text)
    if address is None or isinstance(address, IPv4Address):
        return None if address is None else str(address)
    return ":".join(
        f"{int.from_bytes(address.packed[at : at + 2], 'big'):x}" for at in range(0, len(address.packed), 2)
    )


@lru_cache(_KNOWN_HOSTS_MAX)
def _number(host: str) -> tuple[int, int] | None:
    """How many bits the address of a host has, and the address; None if the host is none."""
    address = _address(host)
    return None if address is None else (_V4_BITS if address.version == 4 else _V6_BITS, int(address))


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0] if ":" in text else text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


_RootT = TypeVar("_RootT")

#: Matches any resource name, principal name or host.
WILDCARD: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"

#: The one resource of type CLUSTER: the log directory as a whole.
CLUSTER_NAME: Final = "kafka-cluster"


class ResourceType(IntEnum):
    """The type of an entry's resource. ANY only in filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an entry's resource name is matched. ANY and MATCH only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """An operation on a resource."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """Whether an entry denies or allows the operation."""

    DENY = 2
    ALLOW = 3


#: The operations of each type of resource, besides ALL.
OPERATIONS: Final[Mapping[ResourceType, frozenset[AclOperation]]] = {
    ResourceType.TOPIC: frozenset(
        {
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DESCRIBE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            AclOperation.READ,
            AclOperation.DESCRIBE,
            AclOperation.DELETE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            AclOperation.CREATE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset(
        {AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT}
    ),
    ResourceType.DELEGATION_TOKEN: frozenset({AclOperation.DESCRIBE}),
    ResourceType.USER: frozenset({AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS}),
}


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One entry: `permission` for `principal` (type:name), coming from `host`, to do `operation` on the resources.

    `host` is one address, a range of them, or *; the module says in which form.
    """

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType

    @property
    def pattern(self) -> AclFilter:
        """The entry's resources, as a filter."""
        return AclFilter(self.resource_type, self.resource_name, self.pattern_type)

    def covers(self, resource_type: ResourceType, name: str) -> bool:
        """Whether the entry applies to the resource of that type and name."""
        if self.resource_type != resource_type:
            return False
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects entries; None or ANY matches all. With MATCH: the entries that cover a resource of that name."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation | None = None
    permission: PermissionType | None = None

    def matches(self, acl: Acl) -> bool:
        """Whether the filter selects the entry."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and (self.host is None or canonical_host(self.host) == canonical_host(acl.host))
            and self.operation in (None, acl.operation)
            and self.permission in (None, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type == PatternType.MATCH:
            return acl.covers(acl.resource_type, self.resource_name)
        return self.resource_name == acl.resource_name


def check_acl(acl: Acl) -> None:
    """Raises InvalidAclError for an entry that Kafka does not accept."""
    if acl.resource_type == ResourceType.ANY or acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidAclError(f"an entry needs one type of resource and a literal or prefixed name, found {acl}")
    if not acl.resource_name:
        raise InvalidAclError("the resource name is empty; use * for all resources")
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise InvalidAclError(f"expected the cluster's name {CLUSTER_NAME}, found {acl.resource_name}")
    check_principal(acl.principal)
    check_host(acl.host)
    allowed = OPERATIONS[acl.resource_type] | {AclOperation.ALL}
    if acl.operation not in allowed:
        names = ", ".join(each.name for each in sorted(allowed))
        raise InvalidAclError(
            f"{acl.resource_type.name} has no operation {acl.operation.name}; its operations: {names}"
        )


def check_host(host: str) -> None:
    """Raises InvalidAclError for a range that Kafka does not accept."""
    if is_range(host) and HostRange.parse(host) is None:
        raise InvalidAclError(
            f"the host {host[:100]} is no range of addresses: expected an IPv4 or IPv6 address, a slash, and how many "
            "of its bits count, such as 10.0.0.0/8 or 2001:db8::/32"
        )


def parse_acl(record: AccessControlEntryRecord) -> Acl:
    """The entry of an AccessControlEntryRecord. Raises InvalidRecordError for numbers that Kafka 4.1 does not know."""
    try:
        return Acl(
            ResourceType(record.resource_type),
            record.resource_name,
            PatternType(record.pattern_type),
            record.principal,
            record.host,
            AclOperation(record.operation),
            PermissionType(record.permission_type),
        )
    except ValueError as error:
        raise InvalidRecordError(f"an AccessControlEntryRecord cannot be read: {error}") from None


def add_acls(
    existing: Iterable[Acl], acls: Collection[Acl], rng: random.Random, *, is_checked: bool = False
) -> list[MetadataRecord]:
    """Records of the entries in `acls` that are not in `existing`. Raises InvalidAclError.

    `is_checked`: they are what a broker accepts from a client, which is more than its tools make (`check_acl`).
    """
    known = set(existing)
    records: list[MetadataRecord] = []
    for acl in acls:
        if not is_checked:
            check_acl(acl)
        if acl not in known:
            known.add(acl)
            records.append(acl_record(random_uuid(rng), acl))
    return records


def remove_acls(acl_ids: Iterable[str]) -> list[MetadataRecord]:
    """Records that remove entries."""
    return [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in acl_ids]


def acl_record(acl_id: str, acl: Acl) -> AccessControlEntryRecord:
    """The entry as a metadata record; `acl_id` is Kafka's Uuid text."""
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


class Unguarded:
    """The permissions of a root that was opened for no principal: everything is permitted."""

    principal: Final = None

    def allows(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """True."""
        return True

    def check(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """Permits it."""

    def coordinator_root(self: _RootT) -> _RootT:
        """The root itself."""
        return self
