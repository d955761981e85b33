"""The settings of one server process, and which addresses it may listen on.

Those of the root (topics, num.partitions, …) are in its commit log.

Without TLS or SASL a server listens on this machine only. Each client that reaches an open listener reads and writes
everything, so an open listener needs an option of its own. TLS without client certificates or SASL encrypts, but does
not identify clients: all are ANONYMOUS, and access control entries decide what they may do (`relies_on_entries`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.server.security.certificates import PrincipalMapping
from pyspark_kafkalog.server.security.sasl import PLAIN, SaslSettings
from pyspark_kafkalog.server.security.tls import ClientAuth, TlsSettings
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.units import MIB, is_host

CONNECTIONS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """`connections_max` over all hosts, `per_host_max` for each; None: three quarters of those that there may be."""

    connections_max: int = CONNECTIONS_MAX
    per_host_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """The security of a listener. Without `tls` and `sasl` it serves anybody, so it listens on this machine only."""

    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    is_insecure: bool = False
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)

    @property
    def _has_client_certificates(self) -> bool:
        return self.tls is not None and self.tls.client_auth == ClientAuth.REQUIRED

    def relies_on_entries(self, host: str) -> bool:
        """Whether other machines reach the host and need not say who they are: entries alone keep anybody out."""
        is_authenticated = self.sasl is not None or self._has_client_certificates
        return not (is_authenticated or self.is_insecure or is_loopback(host))

    def check(self, host: str) -> None:
        """Raises InvalidOptionError if a server with these settings must not listen on the host, or cannot be."""
        check_listener(
            host,
            has_tls=self.tls is not None,
            has_client_certificates=self._has_client_certificates,
            has_sasl=self.sasl is not None,
            is_insecure=self.is_insecure,
        )
        if self.tls is not None:
            PrincipalMapping.parse(self.tls.principal_mapping)
        if self.sasl is not None:
            check_mechanisms(self.sasl.mechanisms, has_tls=self.tls is not None, is_insecure=self.is_insecure)


_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, or what it tells clients to connect to. Port 0: one that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Address:
        """`HOST:PORT`, an IPv6 address in brackets. Raises InvalidOptionError."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not colon or not is_host(host) or not port.isdecimal() or int(port) > _PORT_MAX:
            raise InvalidOptionError(f"{text!r} is not an address: expected HOST:PORT, such as 127.0.0.1:9092")
        return Address(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`advertised` is what Metadata tells clients, `listen` with the port found if None.

    `status` is where metrics and health are served over HTTP. `shared` is a second address, which other processes
    listen on too (workers.py). `node_id` is the broker id, made from the advertised address if None. `flush`:
    "fsync" answers a write when it is on disk, "os" when the operating system has it, which is what Kafka does.
    `commit_interval_ms`: the least time from the beginning of a commit to that of the next one; 0: none. `committer`:
    the socket of the committer of this host (host/process.py), if it has one.

    `request_max_bytes` is Kafka's socket.request.max.bytes, `queued_max_bytes` (queued.max.request.bytes) the limit of
    the requests in memory together, `threads` run what blocks: files, stores, changes of topics.
    """

    listen: Address = Address("127.0.0.1", 9092)
    shared: Address | None = None
    status: Address | None = None
    advertised: Address | None = None
    node_id: int | None = None
    rack: str | None = None
    flush: FlushMode = "fsync"
    commit_interval_ms: int = 0
    committer: Path | None = None
    read_only: bool = False
    request_max_bytes: int = 100 * MIB
    queued_max_bytes: int = 512 * MIB
    idle_max_s: float = 600.0
    threads: int = 8
    security: SecuritySettings = field(default_factory=SecuritySettings)

    def check(self, root: Root) -> None:
        """Raises InvalidOptionError if a server over `root` with these settings would be open to others unasked."""
        for host in self.hosts:
            self.security.check(host)
        if self.open_host is not None:
            check_entries(root, self.open_host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where the server listens."""
        return tuple(each.host for each in (self.listen, self.shared) if each is not None)

    @property
    def open_host(self) -> str | None:
        """Where it listens for clients that need not say who they are (`relies_on_entries`); None: nowhere."""
        return next(filter(self.security.relies_on_entries, self.hosts), None)


def _addresses(host: str) -> set[str]:
    """The addresses of the host's name. Raises OSError."""
    return {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def check_listener(
    host: str,
    *,
    has_tls: bool,
    has_client_certificates: bool,
    has_sasl: bool,
    is_insecure: bool,
    resolve: Callable[[str], Iterable[str]] = _addresses,
) -> None:
    """Raises InvalidOptionError for a listener that leaves the log directory open to other machines.

    `has_client_certificates`: TLS clients must show one. An empty `host` stands for all addresses.
    """
    if has_client_certificates and not has_tls:
        raise InvalidOptionError("client certificates need TLS: expected --tls-cert and --tls-key")
    if has_tls or has_sasl or is_insecure or is_loopback(host, resolve):
        return
    raise InvalidOptionError(
        f"listening on {host or 'all addresses'} without TLS or SASL would open the log directory to everybody who "
        "reaches it: give --tls-cert and --tls-key, or --sasl, or listen on 127.0.0.1, or add --insecure"
    )


def check_entries(root: Root, host: str) -> None:
    """Raises InvalidOptionError if `root` has nothing that limits clients who do not say who they are."""
    control = AccessControl(root)
    if control.has_authorizer() and not control.authorizer().is_open:
        return
    raise InvalidOptionError(
        f"listening on {host or 'all addresses'} with TLS alone would open the log directory to everybody who reaches "
        "it: its clients say not who they are, and no access control entry or super.users limits what they may do; "
        "give --tls-client-ca, or --sasl, or add entries (kafkalog acls), or listen on 127.0.0.1, or add --insecure"
    )


def check_mechanisms(mechanisms: Iterable[str], *, has_tls: bool, is_insecure: bool) -> None:
    """Raises InvalidOptionError for PLAIN without TLS, which would send passwords for all to read."""
    if PLAIN in mechanisms and not (has_tls or is_insecure):
        raise InvalidOptionError("SASL PLAIN sends passwords: it needs TLS, or --insecure")


def is_loopback(host: str, resolve: Callable[[str], Iterable[str]] = _addresses) -> bool:
    """Whether only this machine reaches the host; False for a name that cannot be resolved."""
    if not host:
        return False
    try:
        addresses = list(resolve(host))
        return bool(addresses) and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses)
    except (OSError, ValueError):
        return False
