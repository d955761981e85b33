"""SASL of a client: the messages of SCRAM, and what a server must not get away with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from patience import PATIENCE_S

from pyspark_kafkalog.errors import AuthenticationError
from pyspark_kafkalog.metadata.users import MECHANISMS, ScramMechanism, credential_of
from pyspark_kafkalog.protocol.api import APIS, FRAME_SIZE, ApiKey, joined, parse_request
from pyspark_kafkalog.protocol.client import ScramClient, WireClient, authenticate
from pyspark_kafkalog.protocol.client_settings import SaslClientSettings
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.cluster import ApiVersion, ApiVersionsResponse
from pyspark_kafkalog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from pyspark_kafkalog.server.security.scram import Credentials, ScramExchange

# The example of RFC 7677.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange() -> ScramClient:
    return ScramClient(ScramMechanism.SCRAM_SHA_256, "user", "pencil", NONCE)


def test_messages_are_those_of_the_rfc() -> None:
    client = exchange()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.check(SERVER_FINAL)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"4096", b"4095"),
        SERVER_FIRST.replace(b"4096", b"99999999"),
        SERVER_FIRST.replace(b"gQ==", b"gQ="),
        SERVER_FIRST + b"," * 5000,
    ],
)
def test_first_message_of_a_server_that_is_none_is_refused(answer: bytes) -> None:
    with pytest.raises(AuthenticationError):
        exchange().final(answer)


@pytest.mark.parametrize("answer", [b"", b"e=other-error", b"v=AAAA", SERVER_FINAL.replace(b"6", b"7", 1)])
def test_server_that_does_not_know_the_password_is_refused(answer: bytes) -> None:
    client = exchange()
    client.final(SERVER_FIRST)
    with pytest.raises(AuthenticationError):
        client.check(answer)


class SaslServer:
    """Answers handshake and tokens as a server with one user, of SCRAM or PLAIN."""

    def __init__(self, user: str, password: str, mechanisms: Sequence[str]) -> None:
        self._password = password
        self._user = user
        self._mechanisms = mechanisms
        self._evaluate: Callable[[bytes], bytes] = self._plain

    def answer(self, body: ApiMessage | None) -> ApiMessage:
        if body is None or not isinstance(body, (SaslHandshakeRequest, SaslAuthenticateRequest)):
            keys = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
            return ApiVersionsResponse(
                api_keys=tuple(
                    ApiVersion(api_key=each, min_version=APIS[each].versions[0], max_version=APIS[each].versions[-1])
                    for each in keys
                )
            )
        if isinstance(body, SaslHandshakeRequest):
            if body.mechanism in MECHANISMS:
                self._evaluate = self._scram(MECHANISMS[body.mechanism])
            refused = body.mechanism not in self._mechanisms
            return SaslHandshakeResponse(error_code=33 if refused else 0, mechanisms=tuple(self._mechanisms))
        try:
            return SaslAuthenticateResponse(auth_bytes=self._evaluate(body.auth_bytes), session_lifetime_ms=5000)
        except AuthenticationError as error:
            return SaslAuthenticateResponse(error_code=58, error_message=str(error))

    def _plain(self, token: bytes) -> bytes:
        if token != f"\0{self._user}\0{self._password}".encode():
            raise AuthenticationError("invalid")
        return b""

    def _scram(self, mechanism: ScramMechanism) -> Callable[[bytes], bytes]:
        salted = mechanism.salted_password(self._password, b"salt", 4096)
        credentials = {(self._user, mechanism): credential_of(mechanism, salted, b"salt", 4096)}
        return ScramExchange(mechanism, Credentials(lambda: credentials, b"s"), "server").evaluate


@contextmanager
def client_of(server: SaslServer) -> Iterator[WireClient]:
    ours, theirs = socket.socketpair()

    def run() -> None:
        with theirs, theirs.makefile("rb") as received:
            while size := received.read(4):
                request = parse_request(received.read(FRAME_SIZE.unpack(size)[0]))
                theirs.sendall(joined(request.encode_response(server.answer(request.body()))))

    thread = threading.Thread(target=run)
    thread.start()
    with WireClient(ours, client_id="c", timeout_s=PATIENCE_S) as client:
        client.negotiate()
        yield client
    thread.join(PATIENCE_S)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["ann", "a=b,c"])
def test_client_with_the_password_is_accepted_for_the_lifetime_of_the_session(mechanism: str, user: str) -> None:
    with client_of(SaslServer(user, "secret", [mechanism])) as client:
        assert authenticate(client, SaslClientSettings(mechanism, user, "secret")) == 5000


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_client_without_the_password_learns_who_is_not_accepted(mechanism: str) -> None:
    with (
        client_of(SaslServer("ann", "secret", [mechanism])) as client,
        pytest.raises(AuthenticationError, match=f"user ann is not accepted with {mechanism}: invalid"),
    ):
        authenticate(client, SaslClientSettings(mechanism, "ann", "wrong"))


def test_mechanism_that_the_server_lacks_is_named_with_those_it_has() -> None:
    with (
        client_of(SaslServer("ann", "secret", ["PLAIN", "GSSAPI"])) as client,
        pytest.raises(AuthenticationError, match="SCRAM-SHA-256: the server has PLAIN, GSSAPI"),
    ):
        authenticate(client, SaslClientSettings("SCRAM-SHA-256", "ann", "secret"))
