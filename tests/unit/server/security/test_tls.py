"""TLS on the server's sockets: bytes and files arrive, clients are who their certificates say, others fail at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders.certificates import Authority, Certificate, common_name, name_of
from cryptography.x509.oid import NameOID
from kafka_processes.served import serve
from patience import PATIENCE_S

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError
from pyspark_kafkalog.server.config import Address, SecuritySettings, ServerConfig
from pyspark_kafkalog.server.security.certificates import subject_name
from pyspark_kafkalog.server.security.tls import ClientAuth, TlsFiles, TlsSettings, TlsTransport, server_context
from pyspark_kafkalog.server.sending import FileSlice, OpenFile, send_pieces


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.sign("server", common_name("server"))


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def settings(authority: Authority, server: Certificate, client_auth: ClientAuth = ClientAuth.NONE) -> TlsSettings:
    return TlsSettings(server.certificate, server.key, authority.certificate, client_auth)


def client_context(authority: Authority, own: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


def meet(
    accepting: TlsSettings,
    serve: Callable[[TlsTransport], Awaitable[None]],
    client: Callable[[socket.socket], object],
    executor: ThreadPoolExecutor,
    *,
    handshake_s: float = PATIENCE_S,
) -> object:
    """What `client` returns, in a thread, with the other end of the connection that `serve` gets."""

    async def run() -> object:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.settimeout(PATIENCE_S)
        talking = asyncio.get_running_loop().run_in_executor(executor, client, theirs)
        transport = TlsTransport(ours, server_context(accepting), executor)
        try:
            await transport.handshake(handshake_s)
            await serve(transport)
        finally:
            transport.close()
            theirs_result = await asyncio.gather(talking, return_exceptions=True)
            theirs.close()
        return theirs_result[0]

    return asyncio.run(run())


def test_pieces_and_files_arrive_in_order_and_both_sides_may_talk_at_once(
    authority: Authority, server: Certificate, executor: ThreadPoolExecutor, tmp_path: Path
) -> None:
    content = os.urandom(1_000_000)
    (tmp_path / "segment").write_bytes(content)
    pieces = [b"head", memoryview(content)[:50_000], FileSlice(OpenFile(tmp_path / "segment"), 7, 900_000), b"end"]
    expected = b"head" + content[:50_000] + content[7:900_007] + b"end"
    received = bytearray()

    async def serve(transport: TlsTransport) -> None:
        async def receive() -> None:
            buffer = memoryview(bytearray(10_000))
            while count := await transport.recv_into(buffer, PATIENCE_S):
                received.extend(buffer[:count])

        assert transport.subject is None
        receiving = asyncio.ensure_future(receive())
        await send_pieces(transport, pieces)
        await receiving

    def client(sock: socket.socket) -> bytes:
        with client_context(authority).wrap_socket(sock, server_hostname="localhost") as tls:
            tls.sendall(b"x" * 300_000)
            found = bytearray()
            while len(found) < len(expected):
                found += tls.recv(65_536)
            tls.shutdown(socket.SHUT_WR)
            return bytes(found)

    assert meet(settings(authority, server), serve, client, executor) == expected
    assert received == b"x" * 300_000


def test_client_is_the_subject_of_its_certificate(
    authority: Authority, server: Certificate, executor: ThreadPoolExecutor
) -> None:
    subject = name_of([(NameOID.ORGANIZATION_NAME, "Example, Inc.")], [(NameOID.COMMON_NAME, "app")])
    own = authority.sign("app", subject)
    found: list[str | None] = []

    async def serve(transport: TlsTransport) -> None:
        found.append(transport.subject)

    def client(sock: socket.socket) -> object:
        with client_context(authority, own).wrap_socket(sock, server_hostname="localhost") as tls:
            return tls.recv(1)

    assert meet(settings(authority, server, ClientAuth.REQUIRED), serve, client, executor) == b""
    assert found == ["CN=app,O=Example\\, Inc."]


def test_key_that_other_users_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Authority(tmp_path).sign("server", common_name("server"))
    for mode in (0o600, 0o400, 0o640, 0o604):
        server.key.chmod(mode)
        TlsFiles(TlsSettings(server.certificate, server.key))
        assert [f"mode {mode:04o}" in each for each in caplog.messages] == [True] * (mode in (0o640, 0o604))
        caplog.clear()


@pytest.mark.parametrize("client_auth", [ClientAuth.REQUESTED, ClientAuth.REQUIRED])
def test_certificate_of_another_authority_is_refused(
    authority: Authority, server: Certificate, executor: ThreadPoolExecutor, tmp_path: Path, client_auth: ClientAuth
) -> None:
    stranger = Authority(tmp_path).sign("stranger", common_name("app"))

    async def serve(transport: TlsTransport) -> None:
        raise AssertionError("a stranger was let in")

    def client(sock: socket.socket) -> object:
        with client_context(authority, stranger).wrap_socket(sock, server_hostname="localhost") as tls:
            return tls.recv(1)

    with pytest.raises(ssl.SSLError):
        meet(settings(authority, server, client_auth), serve, client, executor)


def test_client_without_certificate_is_anonymous_if_one_is_only_requested(
    authority: Authority, server: Certificate, executor: ThreadPoolExecutor
) -> None:
    found: list[str | None] = []

    async def serve(transport: TlsTransport) -> None:
        found.append(transport.subject)

    def client(sock: socket.socket) -> object:
        with client_context(authority).wrap_socket(sock, server_hostname="localhost") as tls:
            return tls.recv(1)

    meet(settings(authority, server, ClientAuth.REQUESTED), serve, client, executor)
    assert found == [None]
    with pytest.raises(ssl.SSLError):
        meet(settings(authority, server, ClientAuth.REQUIRED), serve, client, executor)


def test_bytes_that_are_no_tls_fail_at_once_and_silence_at_the_deadline(
    authority: Authority, server: Certificate, executor: ThreadPoolExecutor
) -> None:
    async def serve(transport: TlsTransport) -> None:
        raise AssertionError("no handshake took place")

    with pytest.raises(ssl.SSLError):
        meet(settings(authority, server), serve, lambda sock: sock.sendall(b"\0\0\0\x20" + b"\0\x12\0\4"), executor)
    with pytest.raises(asyncio.TimeoutError):
        meet(settings(authority, server), serve, lambda sock: None, executor, handshake_s=0.02)


def test_closing_wakes_who_waits_for_bytes(
    authority: Authority, server: Certificate, executor: ThreadPoolExecutor
) -> None:
    async def serve(transport: TlsTransport) -> None:
        waiting = asyncio.ensure_future(transport.recv_into(memoryview(bytearray(10)), PATIENCE_S))
        await asyncio.sleep(0.01)
        transport.close()
        with pytest.raises(ConnectionResetError):
            await waiting

    def client(sock: socket.socket) -> object:
        with client_context(authority).wrap_socket(sock, server_hostname="localhost") as tls:
            return tls.recv(1)

    assert meet(settings(authority, server), serve, client, executor) == b""


def test_files_that_cannot_be_used_are_named(authority: Authority, server: Certificate, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="gone"):
        server_context(TlsSettings(tmp_path / "gone", server.key))
    with pytest.raises(InvalidOptionError, match=r"server\.key"):
        server_context(TlsSettings(server.key, server.key))
    with pytest.raises(InvalidOptionError, match="--tls-client-ca"):
        server_context(TlsSettings(server.certificate, server.key, client_auth=ClientAuth.REQUIRED))


@pytest.mark.parametrize(
    ("relative", "expected"),  # the names are those that Java's X500Principal.getName gives
    [
        (
            [
                [(NameOID.COUNTRY_NAME, "DE")],
                [(NameOID.ORGANIZATIONAL_UNIT_NAME, "data+ops")],
                [(NameOID.COMMON_NAME, "a")],
            ],
            "CN=a,OU=data\\+ops,C=DE",
        ),
        ([[(NameOID.COMMON_NAME, " lead and trail ")]], "CN=\\ lead and trail\\ "),
        ([[(NameOID.COMMON_NAME, '#hash="q"<a>;b\\c/d')]], 'CN=\\#hash\\=\\"q\\"\\<a\\>\\;b\\\\c/d'),
        ([[(NameOID.COMMON_NAME, "müller 漢字")]], "CN=müller 漢字"),
        (
            [[(NameOID.EMAIL_ADDRESS, "a@b.c")], [(NameOID.COMMON_NAME, "x"), (NameOID.USER_ID, "uid1")]],
            "CN=x+UID=uid1,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        (
            [[(NameOID.DOMAIN_COMPONENT, "com")], [(NameOID.SERIAL_NUMBER, "42")], [(NameOID.GIVEN_NAME, "Ann")]],
            "2.5.4.42=#0c03416e6e,2.5.4.5=#13023432,DC=com",
        ),
        ([[(NameOID.COMMON_NAME, "   ")]], "CN=\\ \\ \\ "),
    ],
)
def test_subject_is_written_as_java_writes_it(authority: Authority, relative: list[object], expected: str) -> None:
    signed = authority.sign("subject", name_of(*relative))  # type: ignore[arg-type]
    assert subject_name(signed.der) == expected
    assert subject_name(signed.der) == expected


def test_damaged_certificate_is_refused_and_nothing_else_happens(server: Certificate) -> None:
    for at in range(0, len(server.der), 3):
        for damaged in (server.der[:at], server.der[:at] + bytes([server.der[at] ^ 0x55]) + server.der[at + 1 :]):
            try:
                subject_name(damaged)
            except InvalidRecordError:
                continue


@pytest.mark.parametrize(
    "request_bytes", [b"\0\0\0\x10\0\x12\0\x04\0\0\0\1\0\1a", b"GET / HTTP/1.1\r\n\r\n"], ids=["kafka", "http"]
)
def test_log_says_that_a_client_does_not_speak_tls(
    request_bytes: bytes, authority: Authority, server: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServerConfig(listen=Address("127.0.0.1", 0), security=SecuritySettings(tls=settings(authority, server)))
    with caplog.at_level(logging.INFO), serve(tmp_path / "root", config) as bootstrap:
        port = int(bootstrap.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client,
            contextlib.suppress(ConnectionError),
        ):
            client.sendall(request_bytes)
            while client.recv(100):
                pass
    assert "the client does not speak TLS: expected security.protocol SSL or SASL_SSL" in caplog.text
