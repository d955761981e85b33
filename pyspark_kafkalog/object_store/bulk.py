"""Large ranges of S3's objects, received into the memory in which they stay: no copy, and no further thread.

obstore joins the parts of a body in threads of its own, which takes as much CPU as decoding its records. Here the
kernel writes the body where it stays: `http.client` asks for it, by a URL that obstore signs. An answer that is not
exactly the range is dropped: the client gets the range then, and all others for a minute. So errors, repetitions and
redirects are the client's alone.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from pyspark_kafkalog.object_store.settings import ClientConfig
from pyspark_kafkalog.object_store.store import ByteRange

#: Of a smaller range, the request takes more time than the bytes.
BULK_BYTES_MIN: Final = 256 << 10
_CONNECT_SECONDS: Final = 5.0
#: To receive a head, or a part of a body.
_RECEIVE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 60.0
#: Stores close connections that have been idle for some seconds.
_IDLE_SECONDS: Final = 4.0
_IDLE_MAX: Final = 32
#: What a signed URL alone does not ask for.
_OTHER_REQUESTS: Final = ("s3_express", "request_payer", "skip_signature")


class BulkReader:
    """Gets ranges over connections of its own, of which it keeps idle ones. Thread-safe.

    sign: returns a URL that permits to get the object with that key. errors: what it raises, and this passes over.
    """

    def __init__(self, config: ClientConfig, sign: Callable[[str], str], errors: tuple[type[Exception], ...]) -> None:
        self._sign = sign
        self._errors: tuple[type[Exception], ...] = (*errors, OSError, ValueError, HTTPException)
        self._is_usable = config.store_class == "S3Store" and not config.proxy and not getproxies()
        for name in _OTHER_REQUESTS:
            self._is_usable &= name not in config.arguments and f"AWS_{name.upper()}" not in os.environ
        self._idle: list[tuple[float, str, HTTPConnection]] = []
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
            return self._get(_connected(url), url, wanted)
        except self._errors:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            return None

    def _get(self, connection: HTTPConnection, url: SplitResult, wanted: ByteRange) -> memoryview:
        """Raises OSError, ValueError or HTTPException for any other answer."""
        import numpy as np  # does not clear the memory

        asked = f"{wanted.start}-{wanted.end - 1}"
        try:
            connection.request("GET", f"{url.path}?{url.query}", headers={"Range": f"bytes={asked}"})
            response = connection.getresponse()
            sent = response.headers.get("Content-Range", "").rpartition("/")[0]
            is_encoded = "Content-Encoding" in response.headers
            if (response.status, sent, response.length, is_encoded) != (
                206,
                f"bytes {asked}",
                wanted.size_bytes,
                False,
            ):
                raise ValueError("the answer is not the range")
            body = np.empty(wanted.size_bytes, np.uint8).data  # bounded: the caller's range
            at = 0
            while at < len(body):
                count = response.readinto(body[at:])
                if count == 0:
                    raise ValueError("the body ends before the range")
                at += count
        except BaseException:
            connection.close()
            raise
        if response.will_close or len(self._idle) >= _IDLE_MAX:
            connection.close()
        else:
            self._idle.append((time.monotonic() + _IDLE_SECONDS, url.netloc, connection))
        return body

    def _take_idle(self, place: str) -> HTTPConnection | None:
        """A connection that the store, as far as is known, has not closed."""
        with suppress(IndexError):  # also if another thread takes the last one
            while True:
                until, of, connection = self._idle.pop()
                poll = select.poll()
                poll.register(connection.sock, select.POLLIN)
                if of == place and time.monotonic() < until and not poll.poll(0):
                    return connection
                connection.close()
        return None


def _connected(url: SplitResult) -> HTTPConnection:
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=_CONNECT_SECONDS)
    connection.connect()
    connection.sock.settimeout(_RECEIVE_SECONDS)
    return connection


def _close(idle: list[tuple[float, str, HTTPConnection]]) -> None:
    for _, _, connection in idle:
        connection.close()
