"""TLS: the context of a listener, which follows its files, and one connection over the server's non-blocking sockets.

The handshake has a deadline and happens before anything is read or kept for the connection. Bytes that are no TLS end
it with the first record. A server without TLS needs nothing for the opposite case: the first bytes of a TLS client,
read as the size of a request, are 369 million.

Slices of files are read and encrypted, chunk by chunk; kernel TLS is not used. Small pieces of a response share one
TLS record. A crash of either side ends the connection.

Source of the names: org.apache.kafka.common.config.SslConfigs, BrokerSecurityConfigs (ssl.client.auth).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.metadata.messages.schema import Piece
from pyspark_kafkalog.server.security.certificates import DEFAULT_RULES, subject_name
from pyspark_kafkalog.server.sending import (
    IDLE_MAX_S,
    FileSlice,
    Memory,
    OpenFile,
    Takes,
    has_hung_up,
    is_cached,
    shut_down,
    within,
)
from pyspark_kafkalog.storage.filesystem import warn_if_others_read

_LOG: Final = logging.getLogger(__name__)
#: What is encrypted in one call, and read from a file at once.
_CHUNK_BYTES: Final = 256 << 10
#: Pieces up to this size are joined: a TLS record holds 16 KiB.
_JOINED_BYTES_MAX: Final = 16 << 10


class ClientAuth(Enum):
    """Whether clients show a certificate: ssl.client.auth."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files: the server's certificate with its chain, its key, and the authorities of client certificates.

    `principal_mapping` is Kafka's ssl.principal.mapping.rules.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    principal_mapping: str = DEFAULT_RULES


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a listener: TLS 1.2 and 1.3. Raises InvalidOptionError for files that cannot be used."""
    if settings.client_auth != ClientAuth.NONE and settings.client_ca is None:
        raise InvalidOptionError("client certificates need the authorities that sign them: expected --tls-client-ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        if settings.client_ca is not None:
            context.load_verify_locations(settings.client_ca)
    except OSError as error:
        files = ", ".join(str(each) for each in (settings.certificate, settings.key, settings.client_ca) if each)
        raise InvalidOptionError(f"the files of TLS cannot be used ({files}): {error}") from None
    context.verify_mode = _VERIFY_MODES[settings.client_auth]
    return context


def _no_password() -> str:
    """Without this OpenSSL would ask on the terminal."""
    raise InvalidOptionError("the key of TLS has a password: expected a file without one, readable by the server alone")


class TlsFiles:
    """The context of a listener as of the last `reload`.

    A file that was replaced, or overwritten, is another one by inode, size or time. While the files cannot be used,
    because only one of certificate and key has been replaced or a file is written at this moment, new connections get
    the last ones that could.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Raises InvalidOptionError for files that cannot be used."""
        self._settings = settings
        self._files = [each for each in (settings.certificate, settings.key, settings.client_ca) if each is not None]
        self._state = _state(self._files)
        self.context: ssl.SSLContext = server_context(settings)
        warn_if_others_read(settings.key, "the key of TLS")

    def reload(self) -> None:
        """Make the context again if a file has changed. Reads files; called by one thread at a time."""
        state = _state(self._files)  # before the files are read: a later change is seen next time
        if state == self._state:
            return
        self._state = state
        try:
            self.context = server_context(self._settings)
        except InvalidOptionError as error:
            _LOG.warning("new connections get the last good certificate: %s", error)
        else:
            _LOG.info("new connections get the certificate that %s holds now", self._settings.certificate)


def _state(files: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    states: list[tuple[int, int, int] | None] = []
    for each in files:
        found = None
        with contextlib.suppress(OSError):
            stat = each.stat()
            found = stat.st_ino, stat.st_size, stat.st_mtime_ns
        states.append(found)
    return states


class TlsTransport:
    """One connection over TLS, for the reading and the sending side; see `sending.Transport`."""

    file_buffer_bytes = _CHUNK_BYTES

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, executor: Executor, *, idle_max_s: float = IDLE_MAX_S
    ) -> None:
        """Takes over the socket, which is non-blocking. `handshake` comes next; `idle_max_s` as in SocketTransport."""
        self._socket = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._executor = executor
        self._idle_max_s = idle_max_s
        self._ready = _Readiness(self._socket.fileno())
        self._waiting = bytearray()  # small pieces that others follow

    async def handshake(self, seconds_max: float) -> None:
        """Raises OSError if the client speaks no TLS or shows no good certificate, asyncio.TimeoutError."""
        await asyncio.wait_for(self._handshake(), seconds_max)

    async def _handshake(self) -> None:
        while True:
            try:
                self._socket.do_handshake()
                return
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wanted:
                await self._ready.wait(wanted, self._idle_max_s)

    @property
    def subject(self) -> str | None:
        """The subject of the client's certificate; None if it has shown none.

        Raises InvalidRecordError for a certificate without a readable subject.
        """
        certificate = self._socket.getpeercert(binary_form=True)
        return subject_name(certificate) if certificate else None

    async def recv(self, size_max: int, seconds_max: float, takes: Takes = None) -> bytes:
        """See `connection.ClientTransport`."""
        while True:
            received: bytes = await self._received(self._socket.recv, size_max, seconds_max)
            if takes is None or not received or not takes(received):
                return received

    async def recv_into(self, buffer: memoryview, seconds_max: float) -> int:
        """See `connection.ClientTransport`."""
        received: int = await self._received(self._socket.recv_into, buffer, seconds_max)
        return received

    async def _received(self, receive: Callable[[Any], Any], into: Any, seconds_max: float) -> Any:
        """What `receive` returns for `into`. A part of a record of TLS does not put the deadline off."""
        loop = asyncio.get_running_loop()
        deadline_s: float | None = None
        while True:
            try:
                return receive(into)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wanted:
                now_s = loop.time()
                if deadline_s is None:
                    deadline_s = now_s + seconds_max
                await self._ready.wait(wanted, deadline_s - now_s)

    def send_now(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """See ClientTransport: nothing is sent at once, as encrypting may have to wait for the client."""
        return pieces

    async def sendmsg(self, buffers: Sequence[Memory], *, more: bool) -> None:
        """See `sending.Transport`."""
        for each in buffers:
            if len(each) <= _JOINED_BYTES_MAX:
                self._waiting += each
                if len(self._waiting) > _JOINED_BYTES_MAX:
                    await self._flush()
            else:
                await self._flush()
                await self._write(each)
        if not more:
            await self._flush()

    async def sendfile(self, file: OpenFile, position: int, size_bytes: int) -> None:
        """See `sending.Transport`."""
        await self._flush()
        end = position + size_bytes
        while position < end:
            chunk = FileSlice(file, position, min(end - position, _CHUNK_BYTES))
            if is_cached(file.fd, position + chunk.size_bytes - 1):
                data = chunk.read()
            else:
                data = await asyncio.get_running_loop().run_in_executor(self._executor, chunk.read)
            await self._write(data)
            position += chunk.size_bytes

    async def _flush(self) -> None:
        if self._waiting:
            data, self._waiting = self._waiting, bytearray()
            await self._write(data)

    async def _write(self, data: Memory) -> None:
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            try:
                at += self._socket.send(view[at : at + _CHUNK_BYTES])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wanted:
                await self._ready.wait(wanted, self._idle_max_s)
                continue
            if at < len(view):
                await asyncio.sleep(0)  # encrypting takes time: others come first

    def has_left(self) -> bool:
        """See `connection.ClientTransport`."""
        return has_hung_up(self._socket)

    def abort(self) -> None:
        """See `connection.ClientTransport`."""
        shut_down(self._socket)

    def close(self) -> None:
        """Say that nothing more comes, if the socket takes it now, and close."""
        with contextlib.suppress(OSError, ValueError):
            self._socket.unwrap()
        self._ready.close()
        self._socket.close()


class _Readiness:
    """Waits until a descriptor can be read or written; both sides of TLS may need either, at the same time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._readers: list[asyncio.Future[None]] = []
        self._writers: list[asyncio.Future[None]] = []

    async def wait(self, wanted: ssl.SSLError, seconds_max: float) -> None:
        """Wait for what OpenSSL wanted. Raises asyncio.TimeoutError, ConnectionError once the connection is closed."""
        if self._descriptor < 0:
            raise ConnectionResetError("the connection is closed")
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        if isinstance(wanted, ssl.SSLWantReadError):
            self._readers.append(ready)
            loop.add_reader(self._descriptor, self._readable)
        else:
            self._writers.append(ready)
            loop.add_writer(self._descriptor, self._writable)
        await within(ready, seconds_max)

    def _readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        _wake(self._readers)

    def _writable(self) -> None:
        asyncio.get_running_loop().remove_writer(self._descriptor)
        _wake(self._writers)

    def close(self) -> None:
        """Nothing is waited for any more."""
        if self._descriptor < 0:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        loop.remove_writer(self._descriptor)
        self._descriptor = -1
        for each in (*self._readers, *self._writers):
            if not each.done():
                each.set_exception(ConnectionResetError("the connection is closed"))


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
    waiting.clear()
