"""Sends a response: memory by sendmsg, slices of segment files by sendfile, so that no record is copied in Python.

A response is a list of pieces (metadata.messages.pieces) in the order of their bytes:

    bytes, memoryview   headers, fields, small or remote records
    FileSlice           whole batches in a segment's `.log`; os.sendfile passes them from the page cache to the socket

`send_pieces` gathers the pieces of memory between two slices into as few calls as IOV_MAX allows. It works on a
`Transport`: `SocketTransport` is plain TCP on a non-blocking socket; one over TLS reads the slices and encrypts them.
Memory that something follows is sent with MSG_MORE, so that the frame's head and the first bytes of a slice share a
packet.

sendfile blocks while the disk is read. Each chunk is therefore looked at first: if its end is not in the page cache,
or the file system cannot tell, a thread reads the chunk into the cache.

A slice keeps its file open (`OpenFile`), whatever retention, the cleaner or a cache of files do meanwhile. If the file
is shorter than the slice, which only a crashed broker's torn tail can be, the frame cannot be completed: SendError, and
the connection has to be closed. The same holds if a send is cancelled, or the peer takes nothing for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.messages.schema import Piece
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import described, is_in_memory

#: What one call of sendfile, or one look at the page cache, is about.
CHUNK_BYTES: Final = 1 << 20
#: Buffers of one sendmsg (Linux: UIO_MAXIOV).
BUFFERS_MAX: Final = 1024
#: How long a peer may take nothing of a response (Kafka: connections.max.idle.ms).
IDLE_MAX_S: Final = 600.0
_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class SendError(KafkalogError, ConnectionError):
    """A response cannot be completed: the connection has to be closed."""


class OpenFile:
    """An open file, closed when nothing refers to it any more: neither a cache nor a slice that is being sent."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.fd = -1
        self.fd = open_file(path)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A RecordsSlice: the bytes [position, position + size_bytes) of a file."""

    file: OpenFile
    position: int
    size_bytes: int

    def read(self) -> bytes:
        """The bytes in memory. Raises SendError if the file ends before, OSError."""
        data = os.pread(self.file.fd, self.size_bytes, self.position)  # bounded: the slice of a segment that was walked
        while len(data) < self.size_bytes:
            # bounded: the slice of a segment that was walked
            more = os.pread(self.file.fd, self.size_bytes - len(data), self.position + len(data))
            if not more:
                raise _too_short(self.file, self.position + len(data))
            data += more
        return data


Memory: TypeAlias = "bytes | bytearray | memoryview"
#: Whether it has taken all of what was received, at least a byte.
Takes: TypeAlias = "Callable[[bytes], bool] | None"


class Transport(Protocol):
    """The sending side of one connection, used by one task at a time."""

    async def sendmsg(self, buffers: Sequence[Memory], *, more: bool) -> None:
        """Send all of the buffers, of which none is empty; with `more` another piece of the response follows at once.

        Raises OSError.
        """
        ...

    async def sendfile(self, file: OpenFile, position: int, size_bytes: int) -> None:
        """Send bytes of a file. Raises SendError if it ends before, OSError."""
        ...


async def send_pieces(transport: Transport, pieces: Iterable[Piece]) -> None:
    """Send the pieces in order; those of no bytes are left out. Raises SendError, OSError."""
    waiting: list[Memory] = []
    for piece in pieces:
        if isinstance(piece, FileSlice):
            if piece.size_bytes > 0:
                await _send_memory(transport, waiting, more=True)
                waiting = []
                await transport.sendfile(piece.file, piece.position, piece.size_bytes)
        elif not isinstance(piece, (bytes, bytearray, memoryview)):
            raise SendError(f"a response cannot hold {piece!r}")
        elif len(piece):
            waiting.append(piece)
    await _send_memory(transport, waiting, more=False)


async def _send_memory(transport: Transport, buffers: Sequence[Memory], *, more: bool) -> None:
    for at in range(0, len(buffers), BUFFERS_MAX):
        end = at + BUFFERS_MAX
        await transport.sendmsg(buffers[at:end], more=more or end < len(buffers))


class SocketTransport:
    """Plain TCP. The socket is non-blocking; nothing else adds writers for it to the event loop.

    A peer that takes nothing for `idle_max_s` is given up: asyncio.TimeoutError.
    """

    file_buffer_bytes = 0

    def __init__(self, connection: socket.socket, executor: Executor, *, idle_max_s: float = IDLE_MAX_S) -> None:
        self._socket = connection
        self._executor = executor
        self._idle_max_s = idle_max_s

    def send_now(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Send pieces of memory as far as the socket takes them at once, in one call; returns the rest.

        Raises OSError.
        """
        buffers = [each for each in islice(pieces, BUFFERS_MAX) if isinstance(each, (bytes, bytearray, memoryview))]
        if not buffers or len(buffers) < len(pieces):
            return pieces
        try:
            sent = self._socket.sendmsg(buffers)
        except BlockingIOError:
            return pieces
        rest: list[Piece] = []
        for each in buffers:
            if sent < len(each):
                rest.append(memoryview(each)[sent:])
            sent = max(sent - len(each), 0)
        return rest

    async def sendmsg(self, buffers: Sequence[Memory], *, more: bool) -> None:
        """See Transport."""
        flags = socket.MSG_MORE if more else 0
        views = [memoryview(each).cast("B") for each in buffers]
        at = 0
        while at < len(views):
            try:
                sent = self._socket.sendmsg(views[at:] if at else views, (), flags)
            except BlockingIOError:
                await self._writable()
                continue
            while at < len(views) and sent >= len(views[at]):
                sent -= len(views[at])
                at += 1
            if sent:
                views[at] = views[at][sent:]

    async def sendfile(self, file: OpenFile, position: int, size_bytes: int) -> None:
        """See Transport."""
        end = position + size_bytes
        cached_end = position
        while position < end:
            if position == cached_end:
                cached_end = min(position + CHUNK_BYTES, end)
                await self._cache(file, position, cached_end)
            try:
                sent = os.sendfile(self._socket.fileno(), file.fd, position, cached_end - position)
            except BlockingIOError:
                await self._writable()
                continue
            if not sent:
                raise _too_short(file, position)
            position += sent

    async def _cache(self, file: OpenFile, position: int, end: int) -> None:
        """Read the range into the page cache, in a thread, unless its end is there."""
        if not is_cached(file.fd, end - 1):
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, _read_into_cache, file, position, end)

    async def _writable(self) -> None:
        """Wait until the socket takes bytes again."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        descriptor = self._socket.fileno()
        loop.add_writer(descriptor, wake, ready)
        try:
            await within(ready, self._idle_max_s)
        finally:
            loop.remove_writer(descriptor)


async def within(ready: asyncio.Future[None], seconds: float) -> None:
    """Wait for the future, at most so long: asyncio.TimeoutError. Unlike asyncio.wait_for it makes no task."""
    timer = asyncio.get_running_loop().call_later(seconds, time_out, ready)
    try:
        await ready
    finally:
        timer.cancel()


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the peer has closed its side of the connection, whatever of it has not been read yet."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def shut_down(connection: socket.socket) -> None:
    """End both directions: who waits for the socket wakes up, and finds the end. It is still to be closed."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def is_cached(fd: int, position: int) -> bool:
    """Whether the byte is in the page cache, or past the end; False if the file system cannot tell. Raises OSError."""
    try:
        os.preadv(fd, [bytearray(1)], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return is_in_memory(fd)
        raise described(error, fd) from None
    return True


def _read_into_cache(file: OpenFile, position: int, end: int) -> None:
    """Read the range and forget it. `file` is passed so that it stays open."""
    os.posix_fadvise(file.fd, position, end - position, os.POSIX_FADV_WILLNEED)
    scratch = bytearray(min(end - position, CHUNK_BYTES))
    while position < end:
        read = os.preadv(file.fd, [scratch], position)
        if not read:
            return
        position += read


def wake(ready: asyncio.Future[None]) -> None:
    """End a wait."""
    if not ready.done():
        ready.set_result(None)


def time_out(ready: asyncio.Future[Any]) -> None:
    """End a wait that has taken too long: asyncio.TimeoutError."""
    if not ready.done():
        ready.set_exception(asyncio.TimeoutError("the peer takes or sends nothing"))


def _too_short(file: OpenFile, position: int) -> SendError:
    return SendError(f"{file.path} ends at byte {position}, before the end of the batches that a response was to hold")
