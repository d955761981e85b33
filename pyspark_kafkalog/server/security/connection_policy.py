"""What stands between a socket and the handlers of a server: one object made from the listener's settings.

    open        a new connection: limits of connections, TLS, and who the client is by its certificate
    sasl        whether the client has authenticated, and may still ask
    guard       what the client may do; quotas: how much of it

`ConnectionPolicy` makes these parts for one server process; none keeps anything that outlives it. While there are
connections it looks for new commits once a second, so what another server or a tool has changed holds here a second
later: an entry that was removed, a new password, a quota. So does a new certificate in the files of TLS.

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

import asyncio
import contextlib
import hashlib
import logging
import math
import resource
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.acl import canonical_host
from pyspark_kafkalog.root.brokers.image import GrowingMetadata
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.server.config import ConnectionSettings, SecuritySettings
from pyspark_kafkalog.server.context import Session
from pyspark_kafkalog.server.security.acls import AclGuard
from pyspark_kafkalog.server.security.certificates import DEFAULT_RULES, PrincipalMapping
from pyspark_kafkalog.server.security.quotas import ClientQuotas, TokenBucket, newest_quotas
from pyspark_kafkalog.server.security.sasl import SaslAuthenticator
from pyspark_kafkalog.server.security.scram import Credentials
from pyspark_kafkalog.server.security.tls import TlsFiles, TlsTransport
from pyspark_kafkalog.units import KIB, SECOND_MS

#: The largest request before a client is authenticated. Kafka: sasl.server.max.receive.size, 512 KiB.
AUTHENTICATION_REQUEST_BYTES_MAX: Final = 16 * KIB
#: How long TLS handshake and authentication may take together.
AUTHENTICATION_MS_MAX: Final = 30 * SECOND_MS

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


_LOG: Final = logging.getLogger(__name__)

#: How old entries, credentials and quotas may become.
_REFRESH_INTERVAL_MS: Final = SECOND_MS


class ConnectionPolicy:
    """The security of one server process. Made and used in the event loop's thread."""

    def __init__(
        self,
        settings: SecuritySettings,
        root: Root,
        *,
        executor: Executor,
        monotonic_ms: Callable[[], int],
        stays_closed: bool = False,
    ) -> None:
        """`executor` runs what blocks; `stays_closed` is as for `AclGuard`. Raises InvalidOptionError."""
        native = native_or_none(root)
        self._executor = executor
        self._tls = None if settings.tls is None else TlsFiles(settings.tls)
        self._principal_mapping = PrincipalMapping.parse(
            DEFAULT_RULES if settings.tls is None else settings.tls.principal_mapping
        )
        broker = GrowingMetadata(root.directories if native is None else ())
        self._refresher = _Refresher(root, broker if native is None else None, executor, monotonic_ms)
        self._refreshing: asyncio.Task[None] | None = None
        self.guard = AclGuard(
            root,
            monotonic_ms=monotonic_ms,
            broker_metadata=lambda: broker.state,
            is_insecure=settings.is_insecure,
            stays_closed=stays_closed,
        )
        self.quotas = ClientQuotas(newest_quotas(native, broker), monotonic_ms=monotonic_ms)
        self._limits = ConnectionLimits(
            settings.connections, creation_rate=self.quotas.connection_creation_rate, monotonic_ms=monotonic_ms
        )
        self.sasl: SaslAuthenticator | None = None
        if settings.sasl is not None:
            credentials = Credentials(
                lambda: broker.state.scram_credentials if native is None else native.store.image.scram_credentials,
                _secret(native),
            )
            self.sasl = SaslAuthenticator(
                settings.sasl,
                credentials,
                executor=executor,
                refresh=self.refresh,
                monotonic_ms=monotonic_ms,
                is_known=self._limits.unknown.discard,
            )

    async def start(self) -> None:
        """Keep entries, credentials, quotas and certificates up to date from now on."""
        self._refreshing = asyncio.create_task(self._keep_fresh())

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing

    async def _keep_fresh(self) -> None:
        while True:
            if self._limits.count:
                await self.refresh()
            if self._tls is not None:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._tls.reload)
            await asyncio.sleep(_REFRESH_INTERVAL_MS / SECOND_MS)

    async def refresh(self) -> None:
        """Look for new commits if the last look is too long ago: before the first request of a connection."""
        try:
            await self._refresher.refresh()
        except (KafkalogError, OSError) as error:
            _LOG.warning("entries, credentials and quotas may be out of date: %s", error)

    def open(self, host: str, port: int) -> Session:
        """A new connection; `close` has to follow. Raises TooManyConnectionsError."""
        host = canonical_host(host)
        self._limits.open(host)
        return Session(host, port, is_authenticated=self.sasl is None, is_in_handshake=self._tls is not None)

    def watch(self, session: Session, end: Callable[[], object]) -> None:
        """Until the client is authenticated, `end` may end the connection to make room for others."""
        if session.is_in_handshake or not session.is_authenticated:
            self._limits.unknown.add(session, end)

    def close(self, session: Session) -> None:
        """The connection has ended."""
        self._limits.unknown.discard(session)
        if not session.is_ended:
            self._limits.close(session.host)

    @property
    def has_tls(self) -> bool:
        return self._tls is not None

    async def start_tls(self, client: socket.socket, session: Session, *, idle_max_s: float) -> TlsTransport:
        """The transport after the handshake; without SASL the client's certificate says who it is.

        Raises OSError, asyncio.TimeoutError, or InvalidRecordError for a certificate without a readable subject, or
        with one that no rule makes a principal of; the socket is closed then.
        """
        assert self._tls is not None
        transport = TlsTransport(client, self._tls.context, self._executor, idle_max_s=idle_max_s)
        try:
            await transport.handshake(AUTHENTICATION_MS_MAX / SECOND_MS)
            session.is_in_handshake = False
            if session.is_authenticated:
                self._limits.unknown.discard(session)
            subject = transport.subject if self.sasl is None else None
            if subject is not None:
                session.principal = self._principal_mapping.principal(subject)
        except BaseException:
            transport.close()
            raise
        return transport


class _Refresher:
    """Looks for new commits, not more often than a store can bear, however many clients authenticate."""

    def __init__(
        self, root: Root, broker: GrowingMetadata | None, executor: Executor, monotonic_ms: Callable[[], int]
    ) -> None:
        self._root = root
        self._broker = broker
        self._executor = executor
        self._monotonic_ms = monotonic_ms
        self._last_ms: int | None = None

    async def refresh(self) -> None:
        now_ms = self._monotonic_ms()
        if self._last_ms is None or now_ms - self._last_ms >= _REFRESH_INTERVAL_MS:
            self._last_ms = now_ms
            await asyncio.get_running_loop().run_in_executor(self._executor, self._look)

    def _look(self) -> None:
        self._root.refresh()
        if self._broker is not None:
            self._broker.refresh(self._root.directories)


def _secret(native: NativeRoot | None) -> bytes:
    """What clients cannot know, and all servers of a root do: its node's id in the commit log is never answered."""
    if native is None:
        return secrets.token_bytes(32)
    return hashlib.sha256(f"SCRAM {native.store.image.node.incarnation_id}".encode()).digest()
