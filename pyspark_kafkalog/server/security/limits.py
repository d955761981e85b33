"""How many connections a server takes, in all, of one host, and in a second; and what a client may do before it has
authenticated.

    ConnectionLimits    max.connections, max.connections.per.ip, connection_creation_rate of ip quotas
    UnknownClients      connections whose clients are not authenticated yet
    AUTHENTICATION_...  bounds of such a client

The connection that exceeds a limit is closed before anything is read from it: at once, or as by a broker after the
time for which its host is throttled, so that it does not come again at once. If there is no room for a new connection,
or too many clients are unknown, the oldest unknown client of the host that has the most of them makes room. So clients
that connect and say nothing keep no others out. Nothing here is stored.

Source of the names: kafka.network.ConnectionQuotas, org.apache.kafka.network.SocketServerConfigs. A broker's defaults
for connections are unlimited; here they are bounded, also by three quarters of the process's file descriptors.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.server.security.quotas import TokenBucket
from pyspark_kafkalog.units import KIB, SECOND_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.server.context import Session

#: The largest request before a client is authenticated. Kafka: sasl.server.max.receive.size, 512 KiB.
AUTHENTICATION_REQUEST_BYTES_MAX: Final = 16 * KIB
#: How long TLS handshake and authentication may take together.
AUTHENTICATION_MS_MAX: Final = 30 * SECOND_MS

CONNECTIONS_MAX: Final = 10_000
_HOSTS_MAX: Final = 10_000
#: The part of the connections that one host may have, unless the settings say how many: others find the rest.
_HOST_SHARE: Final = 3 / 4
#: The part of the connections that unknown clients may have.
_UNKNOWN_SHARE: Final = 1 / 2
#: As in Kafka (quota.window.size.seconds): a connection above its host's rate is closed after a second at most.
_CLOSED_AFTER_MAX_MS: Final = SECOND_MS

#: Descriptors that connections leave to files: this part of the process's limit, which ulimit -n shows.
_FILES_SHARE: Final = 4
#: What open logs, segments, the root and the event loop take.
_FILES_ENOUGH: Final = 600


class TooManyConnectionsError(Exception):
    """The connection has to be closed, after `throttle_ms`; the text says which limit it exceeds."""

    def __init__(self, text: str, throttle_ms: int = 0) -> None:
        super().__init__(text)
        self.throttle_ms = throttle_ms


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """`connections_max` over all hosts, `per_host_max` for each; None: three quarters of those that there may be."""

    connections_max: int = CONNECTIONS_MAX
    per_host_max: int | None = None


class UnknownClients:
    """Connections of clients that are not authenticated yet: TLS or SASL is under way."""

    def __init__(self) -> None:
        self._by_host: dict[str, dict[int, tuple[Session, Callable[[], object]]]] = {}
        self.count = 0

    def add(self, session: Session, end: Callable[[], object]) -> None:
        """A new connection, which `end` ends."""
        self._by_host.setdefault(session.host, {})[id(session)] = session, end
        self.count += 1

    def discard(self, session: Session) -> None:
        """The client is known, or gone."""
        of_host = self._by_host.get(session.host)
        if of_host is not None and of_host.pop(id(session), None) is not None:
            self.count -= 1
            if not of_host:
                del self._by_host[session.host]

    def end_one(self, host: str | None = None) -> str | None:
        """End the oldest connection of `host`, or else of the host that has the most; returns the host, if any."""
        of_host = max(self._by_host.values(), key=len, default=None) if host is None else self._by_host.get(host)
        if of_host is None:
            return None
        session, end = next(iter(of_host.values()))
        self.discard(session)
        session.is_ended = True
        end()
        return session.host


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
        # Without descriptors for files no client could be served, not even a connected one.
        files = max(descriptors // _FILES_SHARE, min(descriptors // 2, _FILES_ENOUGH))
        fitting = descriptors - files if descriptors >= 0 else settings.connections_max
        self._connections_max = min(settings.connections_max, fitting)
        of_host = settings.per_host_max
        self._per_host_max = math.ceil(self._connections_max * _HOST_SHARE) if of_host is None else of_host
        self._unknown_max = math.ceil(self._connections_max * _UNKNOWN_SHARE)
        self._creation_rate = creation_rate
        self._monotonic_ms = monotonic_ms
        self._by_host: dict[str, int] = {}
        self._rates: dict[str, TokenBucket] = {}
        self.unknown = UnknownClients()
        self.count = 0

    def open(self, host: str) -> None:
        """Count a new connection; `close` has to follow. Raises TooManyConnectionsError, and counts nothing then."""
        if self.unknown.count >= self._unknown_max:
            self._make_room()
        if self.count >= self._connections_max and not self._make_room():
            raise TooManyConnectionsError(
                f"{self.count} connections are open, max.connections or what ulimit -n allows is reached"
            )
        of_host = self._by_host.get(host, 0)
        if of_host >= self._per_host_max and not self._make_room(host):
            raise TooManyConnectionsError(
                f"{of_host} connections of {host} are open, max.connections.per.ip is reached"
            )
        self._charge(host)
        self.count += 1
        self._by_host[host] = self._by_host.get(host, 0) + 1

    def _make_room(self, host: str | None = None) -> bool:
        """End an unknown client, which counts no more from now on; False if there is none."""
        ended = self.unknown.end_one(host)
        if ended is not None:
            self.close(ended)
        return ended is not None

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
        throttle_ms = bucket.try_take(1, now_ms)
        if throttle_ms:
            raise TooManyConnectionsError(
                f"{host} opens more connections than {rate:g} a second", min(throttle_ms, _CLOSED_AFTER_MAX_MS)
            )
