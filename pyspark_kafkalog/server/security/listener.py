"""Which addresses a server may listen on: without TLS or SASL only those of this machine.

Each client that reaches an open listener reads and writes everything, so an open listener needs an option of its own.
TLS without client certificates or SASL encrypts, but does not identify clients: all are ANONYMOUS, and access control
entries decide what they may do (`relies_on_entries`).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.server.security.authentication.sasl import PLAIN

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root


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
