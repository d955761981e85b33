"""What stands between a socket and the handlers of a server: one object made from the listener's settings.

    open        a new connection: limits of connections, TLS, and who the client is by its certificate
    admits      a request: whether the client has authenticated, and may still ask
    guard       what the client may do; quotas: how much of it

`Gate` makes these parts for one server process; none keeps anything that outlives it. While there are connections it
looks for new commits once a second, so what another server or a tool has changed holds here a second later: an entry
that was removed, a new password, a quota. So does a new certificate in the files of TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.access.hosts import canonical_host
from pyspark_kafkalog.root.brokers.metadata.image import GrowingMetadata
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.server.config import SecuritySettings
from pyspark_kafkalog.server.context import Session
from pyspark_kafkalog.server.security.authentication.principal_mapping import DEFAULT_RULES, PrincipalMapping
from pyspark_kafkalog.server.security.authentication.sasl import SaslAuthenticator
from pyspark_kafkalog.server.security.authentication.scram import Credentials
from pyspark_kafkalog.server.security.authentication.tls import TlsFiles, TlsTransport
from pyspark_kafkalog.server.security.guard import AclGuard
from pyspark_kafkalog.server.security.limits import AUTHENTICATION_MS_MAX, ConnectionLimits
from pyspark_kafkalog.server.security.quotas import ClientQuotas
from pyspark_kafkalog.units import SECOND_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.root.native import NativeRoot
    from pyspark_kafkalog.root.protocol import Root

_LOG: Final = logging.getLogger(__name__)

#: How old entries, credentials and quotas may become.
_REFRESH_INTERVAL_MS: Final = SECOND_MS


class Gate:
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
        self.quotas = ClientQuotas(
            lambda: broker.state.client_quotas if native is None else native.store.image.client_quotas,
            monotonic_ms=monotonic_ms,
        )
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

    def admits(self, session: Session, api_key: int) -> bool:
        """Whether the request may be handled; if not, the connection has to be closed."""
        return self.sasl is None or self.sasl.admits(session, api_key)


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
