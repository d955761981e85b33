"""SASL: how a connection shows who its client is, before it may ask for anything else.

    ApiVersions                      may come first
    SaslHandshake                    names the mechanism
    SaslAuthenticate (handshake 1)   carries the mechanism's messages in requests
    size, token      (handshake 0)   or they come bare: 4 bytes of size before each

Mechanisms are SCRAM-SHA-256, SCRAM-SHA-512, and PLAIN, whose passwords are checked against the SCRAM credentials of
the same users: there is no second list of passwords. PLAIN sends the password itself, so it is offered over TLS only,
unless the server is configured to be insecure.

A failed authentication is answered after a delay (connection.failed.authentication.delay.ms) and ends the connection;
the answer does not tell an unknown user from a wrong password. With a session lifetime (connections.max.reauth.ms) the
client has to authenticate again, as the same principal by the same mechanism, before it ends; any other request after
it ends the connection (KIP-368).

A listener without SASL answers both requests with ILLEGAL_SASL_STATE, as does one on which the client is authenticated
already and may not be again.

Source of the rules: SaslServerAuthenticator of org.apache.kafka.common.security.authenticator, PlainSaslServer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from pyspark_kafkalog.errors import AuthenticationError, UnsupportedMechanismError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.users import MECHANISMS
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.server.context import Request, ServerContext, Session
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.server.security.scram import Credentials, ScramExchange

_LOG: Final = logging.getLogger(__name__)

PLAIN: Final = "PLAIN"
_ATTACHMENT: Final = "sasl"
_NONCE_BYTES: Final = 18
_PLAIN_BYTES_MAX: Final = 4096
#: Threads that check passwords of PLAIN at once: it is slow by design, and open to clients before authentication.
_PASSWORD_CHECKS_MAX: Final = 2
_TO_BEGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE})


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """`mechanisms` by name, in the order of the answer; `max_reauth_ms` 0: sessions do not end."""

    mechanisms: Sequence[str]
    max_reauth_ms: int = 0
    failure_delay_ms: int = 100

    def __post_init__(self) -> None:
        for each in self.mechanisms:
            if each != PLAIN and each not in MECHANISMS:
                raise UnsupportedMechanismError(f"no SASL mechanism {each}: expected {PLAIN}, {', '.join(MECHANISMS)}")


class _State(Enum):
    BEGINNING = auto()
    EXCHANGE = auto()
    COMPLETE = auto()
    FAILED = auto()


@dataclass(slots=True)
class _Connection:
    """The authentication of one connection."""

    state: _State = _State.BEGINNING
    mechanism: str = ""
    scram: ScramExchange | None = None
    has_raw_tokens: bool = False
    can_reauthenticate: bool = False
    is_reauthenticating: bool = False
    expires_at_ms: int | None = None


@dataclass(slots=True)
class _Turns:
    """The passwords of a host that wait for their check."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass(frozen=True, slots=True)
class Authenticated:
    """An answer of the exchange: the message for the client, and the lifetime of a session that has begun."""

    token: bytes
    session_lifetime_ms: int = 0


class SaslAuthenticator:
    """Authenticates the connections of one listener."""

    def __init__(
        self,
        settings: SaslSettings,
        credentials: Credentials,
        *,
        executor: Executor,
        refresh: Callable[[], Awaitable[None]],
        monotonic_ms: Callable[[], int],
        is_known: Callable[[Session], None] = lambda session: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        """`executor` checks passwords; `refresh` updates the credentials; `is_known` is called after successes."""
        self._is_known = is_known
        self.settings = settings
        self._credentials = credentials
        self._monotonic_ms = monotonic_ms
        self._executor = executor
        self._refresh = refresh
        self._sleep = sleep
        self._nonce = nonce
        self._log = BoundedLog(_LOG, monotonic_ms)
        self._turns: dict[str, _Turns] = {}
        self._password_checks = asyncio.Semaphore(_PASSWORD_CHECKS_MAX)

    def admits(self, session: Session, api_key: int) -> bool:
        """Whether the request may be handled now; if not, the connection has to be closed."""
        connection = _of(session)
        if connection.state == _State.COMPLETE:
            expires_at_ms = connection.expires_at_ms
            is_expired = expires_at_ms is not None and self._monotonic_ms() >= expires_at_ms
            return not is_expired or api_key == ApiKey.SASL_HANDSHAKE
        if connection.state == _State.BEGINNING:
            return api_key in _TO_BEGIN
        return connection.state == _State.EXCHANGE and api_key == ApiKey.SASL_AUTHENTICATE

    def expects_token(self, session: Session) -> bool:
        """Whether the connection's next frame is a bare token and no request."""
        connection = _of(session)
        return connection.has_raw_tokens and connection.state == _State.EXCHANGE

    async def begin(self, session: Session, mechanism: str, *, has_raw_tokens: bool) -> None:
        """The client names the mechanism. Raises UnsupportedMechanismError, AuthenticationError.

        The second: it is authenticated already and may not be again.
        """
        connection = _of(session)
        if connection.state == _State.COMPLETE:
            if not (connection.can_reauthenticate and self.settings.max_reauth_ms):
                raise AuthenticationError("the connection is authenticated already")
            connection.is_reauthenticating = True
        is_other = connection.is_reauthenticating and mechanism != connection.mechanism
        if mechanism not in self.settings.mechanisms or is_other:
            expected = connection.mechanism if is_other else ", ".join(self.settings.mechanisms)
            self._log.info(
                "%s:%d wants the SASL mechanism %r: expected %s", session.host, session.port, mechanism[:64], expected
            )
            await self._fail(session, connection)
            raise UnsupportedMechanismError(f"Unsupported SASL mechanism {mechanism}")
        await self._refresh()
        connection.state = _State.EXCHANGE
        connection.mechanism = mechanism
        connection.has_raw_tokens = has_raw_tokens
        known = MECHANISMS.get(mechanism)
        connection.scram = None if known is None else ScramExchange(known, self._credentials, self._nonce())

    async def authenticate(self, session: Session, token: bytes, *, version: int = 0) -> Authenticated:
        """The answer to the client's message; `version` of the request that carried it, 0 for a bare token.

        Raises AuthenticationError, after a delay; the connection is to be closed then.
        """
        connection = _of(session)
        if connection.state != _State.EXCHANGE:
            await self._fail(session, connection)
            raise AuthenticationError("no authentication has begun")
        connection.can_reauthenticate |= version >= 1
        try:
            return await self._evaluate(session, connection, token)
        except AuthenticationError as error:
            what = "re-authentication" if connection.is_reauthenticating else "authentication"
            self._log.info(
                "%s of %s:%d by %s failed: %s", what, session.host, session.port, connection.mechanism, error
            )
            await self._fail(session, connection)
            raise AuthenticationError(
                f"Authentication failed during {what} due to invalid credentials with SASL mechanism "
                f"{connection.mechanism}"
            ) from None

    async def _evaluate(self, session: Session, connection: _Connection, token: bytes) -> Authenticated:
        if connection.scram is None:
            user, password = parse_plain(token)
            async with self._turn_of(session.host), self._password_checks:
                loop = asyncio.get_running_loop()
                fits = await loop.run_in_executor(self._executor, self._credentials.fits, user, password)
            if not fits:
                raise AuthenticationError(f"invalid credentials of user {user!r}")
            return Authenticated(b"", self._complete(session, connection, user))
        answer = connection.scram.evaluate(token)
        if not connection.scram.is_complete:
            return Authenticated(answer)
        return Authenticated(answer, self._complete(session, connection, connection.scram.user))

    @contextlib.asynccontextmanager
    async def _turn_of(self, host: str) -> AsyncIterator[None]:
        """One password of a host is checked at a time, so that a host that tries many keeps no other host waiting."""
        turns = self._turns.setdefault(host, _Turns())
        turns.users += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._turns[host]

    def _complete(self, session: Session, connection: _Connection, user: str) -> int:
        """The lifetime of the session, 0 if it does not end. Raises AuthenticationError."""
        principal = f"User:{user}"
        if connection.is_reauthenticating and principal != session.principal:
            raise AuthenticationError(f"cannot change the principal from {session.principal} to {principal}")
        session.principal = principal
        session.is_authenticated = True
        self._is_known(session)
        connection.state = _State.COMPLETE
        connection.scram = None
        connection.is_reauthenticating = False
        lifetime_ms = self.settings.max_reauth_ms
        connection.expires_at_ms = self._monotonic_ms() + lifetime_ms if lifetime_ms else None
        return lifetime_ms

    async def _fail(self, session: Session, connection: _Connection) -> None:
        connection.state = _State.FAILED
        connection.scram = None
        session.is_authenticated = False
        session.is_closing = True
        await self._sleep(self.settings.failure_delay_ms / 1000)


def _of(session: Session) -> _Connection:
    connection = session.attachments.setdefault(_ATTACHMENT, _Connection())
    assert isinstance(connection, _Connection)
    return connection


def parse_plain(token: bytes) -> tuple[str, str]:
    """User and password of PLAIN's message: authorization id, NUL, user, NUL, password. Raises AuthenticationError."""
    if len(token) > _PLAIN_BYTES_MAX:
        raise AuthenticationError("too long a message for PLAIN")
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError:
        raise AuthenticationError("a message for PLAIN that is no UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationError(f"expected 3 parts of a message for PLAIN, found {len(parts)}")
    authorization_id, user, password = parts
    if not user or not password:
        raise AuthenticationError("no user or no password")
    if authorization_id not in ("", user):
        raise AuthenticationError("an authorization id that is not the user's")
    return user, password


_NO_SASL = "SASL is not enabled on this listener"


class SaslHandlers:
    """The handlers of a listener that authenticates by `sasl`, None: of one that does not."""

    def __init__(self, sasl: SaslAuthenticator | None) -> None:
        self._sasl = sasl

    async def handshake(self, context: ServerContext, request: Request[SaslHandshakeRequest]) -> Message:
        """SaslHandshake: the client names a mechanism, and learns of those that there are."""
        if self._sasl is None:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        mechanisms = tuple(self._sasl.settings.mechanisms)
        mechanism = request.body.mechanism
        error = ErrorCode.NONE
        try:
            await self._sasl.begin(request.session, mechanism, has_raw_tokens=request.api_version == 0)
        except UnsupportedMechanismError:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        except AuthenticationError:
            error = ErrorCode.ILLEGAL_SASL_STATE
        return SaslHandshakeResponse(error_code=error, mechanisms=mechanisms)

    async def authenticate(self, context: ServerContext, request: Request[SaslAuthenticateRequest]) -> Message:
        """SaslAuthenticate: a message of the mechanism."""
        if self._sasl is None:
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_NO_SASL)
        # bounded: the frame that was read
        token = bytes(request.body.auth_bytes)
        try:
            answer = await self._sasl.authenticate(request.session, token, version=request.api_version)
        except AuthenticationError as error:
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error))
        return SaslAuthenticateResponse(
            error_message=None,
            auth_bytes=answer.token,
            session_lifetime_ms=answer.session_lifetime_ms if request.api_version >= 1 else 0,
        )
