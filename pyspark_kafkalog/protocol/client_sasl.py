"""SASL of a client: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, over the requests SaslHandshake and SaslAuthenticate.

    client-first:  n,,n=<user>,r=<client nonce>
    server-first:  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final:  c=biws,r=<both nonces>,p=<proof>
    server-final:  v=<signature>

With SCRAM the server shows too that it knows the password. How often the password is hashed, the server decides,
within limits: too few would make guessing cheap for who listens, too many would stop the client.

Source of the rules: RFC 4616, RFC 5802; SaslClientAuthenticator and ScramSaslClient of
org.apache.kafka.common.security; KIP-368 (sessions that end).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from typing import Final

from pyspark_kafkalog.errors import AuthenticationError
from pyspark_kafkalog.metadata.access.scram import ITERATIONS_MIN, MECHANISMS, ScramMechanism
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.client_settings import SaslClientSettings
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{0,8})(?:,[A-Za-z]+=[^\0,]*)*"
)
_SERVER_FINAL: Final = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9+/=]+)|e=(?P<error>[^\0,]+))(?:,[A-Za-z]+=[^\0,]*)*")
_NO_BINDING: Final = "n,,"
_NONCE_BYTES: Final = 24
_TOKEN_BYTES_MAX: Final = 4096
#: A second or so of hashing; Kafka's own controllers allow 16,384.
_ITERATIONS_MAX: Final = 1_000_000


def authenticate(client: WireClient, settings: SaslClientSettings) -> int:
    """Authenticate a connection that has negotiated. Returns the lifetime of the session in ms, 0 for no end.

    Raises AuthenticationError, and what `WireClient.call` raises.
    """
    handshake = client.call(SaslHandshakeRequest(mechanism=settings.mechanism), SaslHandshakeResponse, version=1)
    if handshake.error_code != ErrorCode.NONE:
        raise AuthenticationError(
            f"sasl.mechanism={settings.mechanism}: the server has {', '.join(handshake.mechanisms) or 'none'}"
        )
    if settings.mechanism not in MECHANISMS:
        token = f"\0{settings.user}\0{settings.password}".encode()
        return _send(client, settings, token).session_lifetime_ms
    scram = ScramClient(
        MECHANISMS[settings.mechanism], settings.user, settings.password, secrets.token_hex(_NONCE_BYTES)
    )
    first = _send(client, settings, scram.first())
    final = _send(client, settings, scram.final(first.auth_bytes))
    scram.check(final.auth_bytes)
    return final.session_lifetime_ms


def _send(client: WireClient, settings: SaslClientSettings, token: bytes) -> SaslAuthenticateResponse:
    response = client.call(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
    if response.error_code != ErrorCode.NONE:
        raise AuthenticationError(
            f"user {settings.user} is not accepted with {settings.mechanism}: "
            f"{response.error_message or 'no reason is given'}"
        )
    return response


class ScramClient:
    """One exchange of SCRAM: `first`, then `final`, then `check`. Each raises AuthenticationError."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """The client's first message."""
        return f"{_NO_BINDING}{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The answer to the server's first message. Takes milliseconds."""
        text = _text(server_first)
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise AuthenticationError("the server's first message of SCRAM is not one for this client")
        iterations = int(match["iterations"])
        if not ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise AuthenticationError(
                f"the server demands {iterations} iterations: expected {ITERATIONS_MIN} to {_ITERATIONS_MAX}"
            )
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, _decoded(match["salt"]), iterations)
        binding = base64.b64encode(_NO_BINDING.encode()).decode()
        without_proof = f"c={binding},r={match['nonce']}"
        messages = f"{self._bare},{text},{without_proof}".encode()
        client_key = mechanism.hmac(salted, b"Client Key")
        mask = mechanism.hmac(mechanism.hash(client_key), messages)
        proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), messages)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """The server's last message: it must show that the server knows the password."""
        match = _SERVER_FINAL.fullmatch(_text(server_final))
        if match is not None and match["error"] is not None:
            raise AuthenticationError(f"the server refuses the client: {match['error']}")
        if match is None or not hmac.compare_digest(_decoded(match["signature"]), self._signature):
            raise AuthenticationError("the server does not know the user's password: it may be another one's")


def _text(token: bytes) -> str:
    try:
        if len(token) <= _TOKEN_BYTES_MAX:
            return bytes(token).decode()
    except UnicodeDecodeError:
        pass
    raise AuthenticationError("a message of the server is no text of SCRAM")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("a message of the server has bad base64") from None
