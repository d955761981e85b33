"""How many connections a server takes, in all, of one host, and in a second; and what a client may do before it has
authenticated.

    ConnectionLimits    max.connections, max.connections.per.ip, connection_creation_rate of ip quotas
    AUTHENTICATION_...  bounds of a client that has not shown who it is

The connection that exceeds a limit is closed at once, before anything is read from it. Nothing here is stored.

Source of the names: kafka.network.ConnectionQuotas, org.apache.kafka.network.SocketServerConfigs. A broker's defaults
for connections are unlimited; here they are bounded, also by three quarters of the process's file descriptors.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.server.security.quotas import TokenBucket
from pyspark_kafkalog.units import KIB, SECOND_MS

#: The largest request before a client is authenticated. Kafka: sasl.server.max.receive.size, 512 KiB.
AUTHENTICATION_REQUEST_BYTES_MAX: Final = 16 * KIB
#: How long TLS handshake and authentication may take together.
AUTHENTICATION_MS_MAX: Final = 30 * SECOND_MS

CONNECTIONS_MAX: Final = 10_000
_HOSTS_MAX: Final = 10_000


#: Descriptors that connections leave to files: this part of the process's limit, which ulimit -n shows.
_FILES_SHARE: Final = 4
#: What open logs, segments, the root and the event loop take.
_FILES_ENOUGH: Final = 600


class TooManyConnectionsError(Exception):
    """The connection has to be closed; the text says which limit it exceeds."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """`connections_max` over all hosts, `per_host_max` for each."""

    connections_max: int = CONNECTIONS_MAX
    per_host_max: int = CONNECTIONS_MAX


class ConnectionLimits:
    """Counts the connections of one server process. Used in the event loop's thread."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        creation_rate: Callable[[str], float | None] = lambda host: None,
        monotonic_ms: Callable[[], int],
    ) -> None:
        """`creation_rate`: the new connections a second that a host may open; None: any number."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Without descriptors for files nobody could be served, not even who is connected.
        files = max(descriptors // _FILES_SHARE, min(descriptors // 2, _FILES_ENOUGH))
        fitting = descriptors - files if descriptors >= 0 else settings.connections_max
        self._connections_max = min(settings.connections_max, fitting)
        self._settings = settings
        self._creation_rate = creation_rate
        self._monotonic_ms = monotonic_ms
        self._by_host: dict[str, int] = {}
        self._rates: dict[str, TokenBucket] = {}
        self.count = 0

    def open(self, host: str) -> None:
        """Count a new connection; `close` has to follow. Raises TooManyConnectionsError, and counts nothing then."""
        settings = self._settings
        if self.count >= self._connections_max:
            raise TooManyConnectionsError(
                f"{self.count} connections are open, max.connections or what ulimit -n allows is reached"
            )
        of_host = self._by_host.get(host, 0)
        if of_host >= settings.per_host_max:
            raise TooManyConnectionsError(
                f"{of_host} connections of {host} are open, max.connections.per.ip is reached"
            )
        self._charge(host)
        self.count += 1
        self._by_host[host] = of_host + 1

    def close(self, host: str) -> None:
        """The connection of the host has ended."""
        self.count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def _charge(self, host: str) -> None:
        rate = self._creation_rate(host)
        if rate is None:
            self._rates.pop(host, None)
            return
        bucket = self._rates.get(host)
        now_ms = self._monotonic_ms()
        if bucket is None or bucket.rate != rate:
            if len(self._rates) >= _HOSTS_MAX:
                self._rates = {each: kept for each, kept in self._rates.items() if not kept.is_full(now_ms)}
            bucket = self._rates[host] = TokenBucket(rate, now_ms)
        if bucket.throttle_ms(now_ms):
            raise TooManyConnectionsError(f"{host} opens more connections than {rate:g} a second")
        bucket.take(1, now_ms)
