"""Large ranges of S3's objects, received into the memory in which they stay: no copy, and no further thread.

obstore joins the parts of a body in threads of its own, which takes as much CPU as decoding its records. Here the
kernel writes the body where it stays. obstore signs the URLs. An answer that is not exactly the range is dropped: the
client gets the range then, and all others for a minute. So errors, repetitions and redirects are the client's alone.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from pyspark_kafkalog.object_store.settings import ClientConfig
from pyspark_kafkalog.object_store.store import ByteRange

if TYPE_CHECKING:
    import ssl

#: Of a smaller range, the request takes more time than the bytes.
BULK_BYTES_MIN: Final = 64 << 10
_CONNECT_SECONDS: Final = 5.0
#: To receive a head, or a body.
_RECEIVE_SECONDS: Final = 60
_PAUSE_SECONDS: Final = 60.0
#: Stores close connections that have been idle for some seconds.
_IDLE_SECONDS: Final = 4.0
_IDLE_MAX: Final = 32
_HEAD_BYTES: Final = 1 << 10
_HEAD_BYTES_MAX: Final = 16 << 10
#: What a signed URL alone does not ask for.
_OTHER_REQUESTS: Final = ("s3_express", "request_payer", "skip_signature")


class BulkReader:
    """Gets ranges over connections of its own, of which it keeps idle ones. Thread-safe.

    sign: returns a URL that permits to get the object with that key. errors: what it raises, and this passes over.
    """

    def __init__(self, config: ClientConfig, sign: Callable[[str], str], errors: tuple[type[Exception], ...]) -> None:
        self._sign = sign
        self._errors: tuple[type[Exception], ...] = (*errors, OSError, ValueError)
        self._is_usable = config.store_class == "S3Store" and not config.proxy and not getproxies()
        for name in _OTHER_REQUESTS:
            self._is_usable &= name not in config.arguments and f"AWS_{name.upper()}" not in os.environ
        self._idle: list[tuple[float, str, socket.socket]] = []
        self._paused_until = float("-inf")
        weakref.finalize(self, _close, self._idle)

    def get(self, key: str, wanted: ByteRange) -> memoryview | None:
        """The bytes of the range, all of them; None: the client must get them."""
        if not self._is_usable or wanted.size_bytes < BULK_BYTES_MIN or time.monotonic() < self._paused_until:
            return None
        try:
            url = urlsplit(self._sign(key))
            connection = self._take_idle(url.netloc)
            if connection is not None:
                with suppress(OSError):  # the store has closed it meanwhile
                    return self._get(connection, url, wanted)
            return self._get(self._connect(url), url, wanted)
        except self._errors:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            return None

    def _get(self, connection: socket.socket, url: SplitResult, wanted: ByteRange) -> memoryview:
        """Raises OSError, ValueError for any other answer."""
        import numpy as np  # does not clear the memory

        head = f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}"
        try:
            connection.sendall(f"{head}\r\nRange: bytes={wanted.start}-{wanted.end - 1}\r\n\r\n".encode("ascii"))
            first = _receive_head(connection, wanted)
            body = np.empty(wanted.size_bytes, np.uint8).data  # bounded: the caller's range
            _receive_body(connection, first, body)
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < _IDLE_MAX:
            self._idle.append((time.monotonic() + _IDLE_SECONDS, url.netloc, connection))
        else:
            connection.close()
        return body

    def _take_idle(self, place: str) -> socket.socket | None:
        """A connection that the store, as far as is known, has not closed."""
        with suppress(IndexError):  # also if another thread takes the last one
            while True:
                until, of, connection = self._idle.pop()
                poll = select.poll()
                poll.register(connection, select.POLLIN)
                if of == place and time.monotonic() < until and not poll.poll(0):
                    return connection
                connection.close()
        return None

    def _connect(self, url: SplitResult) -> socket.socket:
        is_tls, host = url.scheme == "https", url.hostname or ""
        connection = socket.create_connection((host, url.port or (443 if is_tls else 80)), timeout=_CONNECT_SECONDS)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_tls:
                connection = self._tls.wrap_socket(connection, server_hostname=host)
                connection.settimeout(_RECEIVE_SECONDS)
                return connection
            connection.settimeout(None)  # with a timeout of Python's, no call waits for a whole body
            for limited in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, limited, struct.pack("ll", _RECEIVE_SECONDS, 0))
            return connection
        except BaseException:
            connection.close()
            raise

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        import ssl  # takes a process some 20 ms

        return ssl.create_default_context()


def _close(idle: list[tuple[float, str, socket.socket]]) -> None:
    for _, _, connection in idle:
        connection.close()


def _receive_head(connection: socket.socket, wanted: ByteRange) -> bytes:
    """The first bytes of the body. Raises OSError, ValueError unless it will be the range, and end the answer."""
    found = b""
    while b"\r\n\r\n" not in found:
        more = connection.recv(_HEAD_BYTES)
        if not more and not found:
            raise ConnectionError("the store has closed the connection")
        if not more or len(found) > _HEAD_BYTES_MAX:
            raise ValueError("the answer has no head")
        found += more
    head, _, first = found.partition(b"\r\n\r\n")
    status, *lines = head.lower().split(b"\r\n")
    fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if (
        not status.startswith(b"http/1.1 206 ")
        or len(fields) < len(lines)  # a field twice
        or fields.get(b"content-range", b"").rpartition(b"/")[0] != b"bytes %d-%d" % (wanted.start, wanted.end - 1)
        or fields.get(b"content-length") != b"%d" % wanted.size_bytes
        or fields.get(b"connection", b"keep-alive") != b"keep-alive"
        or not fields.keys().isdisjoint((b"transfer-encoding", b"content-encoding"))
        or len(first) > wanted.size_bytes
    ):
        raise ValueError("the answer is not the range")
    return first


def _receive_body(connection: socket.socket, first: bytes, body: memoryview) -> None:
    """Fill `body`, which begins with `first`. Raises OSError, ValueError if the connection ends before."""
    at = len(first)
    body[:at] = first
    flags = socket.MSG_WAITALL if type(connection) is socket.socket else 0
    while at < len(body):
        count = connection.recv_into(body[at:], 0, flags)
        if count == 0:
            raise ValueError("the body ends before the range")
        at += count
