"""Hosts of clients, of access control entries and of quotas, in one form.

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

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

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
