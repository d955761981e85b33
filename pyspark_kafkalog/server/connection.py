"""One connection of a client: reads requests ahead, has them handled, and answers in the order of the requests.

    size, header, body    a frame; its size is checked before memory is taken, and memory grows only as bytes arrive
    Produce               begins at once: the Produce requests that a client has sent ahead wait for the same commit
    any other request     begins when all earlier ones are answered, as in Kafka, so that it sees what they did

Kafka's broker reads nothing from a connection while a request of it is handled; reading Produce ahead is what lets one
producer with several requests in flight share commits. A client sees the same either way: answers come in order.

What ends a connection: its end, a frame that is no request of a known API and version, too large a frame, a failed
Produce with acks 0, a defect in a handler. A crash of the server ends all; nothing of a connection outlives it.

Source of the rules: kafka.network.SocketServer, Processor and RequestChannel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pyspark_kafkalog.metadata.messages.pieces import Piece
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import CloseConnection, Session
from pyspark_kafkalog.server.dispatch import Dispatcher, Exchange, TokenExchange
from pyspark_kafkalog.server.sending import SocketTransport, Transport, send_pieces

_LOG: Final = logging.getLogger(__name__)
_SIZE: Final = struct.Struct(">i")
_RECEIVE_BYTES: Final = 64 << 10
#: Memory for a large frame is taken in steps, so that a client must send what it announces.
_FRAME_STEP_BYTES: Final = 1 << 20
#: A frame has to arrive within so many seconds, and those that its bytes take at this rate.
_FRAME_MAX_S: Final = 30.0
_FRAME_MIN_BYTES_A_SECOND: Final = 1 << 20
_IN_FLIGHT_MAX: Final = 32


class ClientTransport(Transport, Protocol):
    """The socket of a connection, plain or TLS. All methods raise OSError when the connection is lost."""

    async def recv_into(self, buffer: memoryview) -> int:
        """Fill `buffer` with what has arrived, at least a byte; 0 at the end of the stream."""
        ...

    def close(self) -> None: ...


class BytesBudget(Protocol):
    """The bytes of requests that are in memory, of all connections together."""

    async def acquire(self, size_bytes: int) -> None:
        """Wait until so many bytes are free."""
        ...

    def release(self, size_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of a frame in bytes (socket.request.max.bytes), before and after the client is authenticated, and the
    seconds that a connection may be silent (connections.max.idle.ms)."""

    request_max_bytes: int
    unauthenticated_max_bytes: int
    idle_max_s: float


class Connection:
    """Serves one client until it leaves. `monotonic_ms` is the clock of `Session.mute_until_ms`."""

    def __init__(
        self,
        transport: ClientTransport,
        session: Session,
        dispatcher: Dispatcher,
        *,
        limits: FrameLimits,
        budget: BytesBudget,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._transport = transport
        self._session = session
        self._dispatcher = dispatcher
        self._limits = limits
        self._budget = budget
        self._monotonic_ms = monotonic_ms
        self._input = _Input(transport)
        self._pending: deque[asyncio.Task[None]] = deque()

    async def serve(self) -> None:
        """Handle requests until the connection ends, for whatever reason; closes the socket. Raises nothing."""
        try:
            while (size := await self._next_size()) is not None:
                frame = await self._read_frame(size)
                handed_over = False
                try:
                    exchange = self._dispatcher.open(frame, self._session)
                    if exchange.api_key == ApiKey.PRODUCE:
                        handed_over = True
                        await self._begin(exchange, size)
                    else:
                        await self._settle()
                        await self._answer(exchange)
                finally:
                    if not handed_over:
                        self._budget.release(size)
                await self._stay_muted()
        except CloseConnection as reason:
            # What strangers can cause as often as they like does not fill the log.
            level = logging.INFO if self._session.is_authenticated else logging.DEBUG
            _LOG.log(level, "closing the connection of %s:%d: %s", self._session.host, self._session.port, reason)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            _LOG.debug("the connection of %s:%d ended: %s", self._session.host, self._session.port, error)
        except Exception:
            _LOG.exception("closing the connection of %s:%d", self._session.host, self._session.port)
        finally:
            await self._abandon()
            self._transport.close()

    async def _next_size(self) -> int | None:
        """The size of the next frame; None at the end of the stream. Raises CloseConnection for an illegal size."""
        head = await asyncio.wait_for(self._input.read(_SIZE.size), self._limits.idle_max_s)
        if head is None:
            return None
        (size,) = _SIZE.unpack(head)
        limits = self._limits
        limit = limits.request_max_bytes if self._session.is_authenticated else limits.unauthenticated_max_bytes
        if not 0 < size <= limit:
            raise CloseConnection(f"expected a request of 1 to {limit} bytes, found the size {size}")
        return int(size)

    async def _read_frame(self, size: int) -> bytearray:
        """The bytes of a frame, which the budget then counts; those of a large one before they are read.

        A client must send a frame without long pauses: what it has announced is taken from the others.
        """
        is_large = size > _RECEIVE_BYTES
        if is_large:
            await self._budget.acquire(size)
        try:
            frame = await asyncio.wait_for(self._input.read(size), _FRAME_MAX_S + size / _FRAME_MIN_BYTES_A_SECOND)
            if frame is None:
                raise asyncio.IncompleteReadError(b"", size)
        except BaseException:
            if is_large:
                self._budget.release(size)
            raise
        if not is_large:
            await self._budget.acquire(size)
        return frame

    async def _begin(self, exchange: Exchange | TokenExchange, size: int) -> None:
        """Handle a Produce request while further ones are read; its answer follows those of the earlier ones."""
        previous = self._pending[-1] if self._pending else None
        handling = asyncio.ensure_future(exchange.handle())
        self._pending.append(asyncio.create_task(self._answer_after(previous, handling, size)))
        # Let the handler submit its batches before the next request is read: they are to be committed in this order.
        await asyncio.sleep(0)
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        if len(self._pending) >= _IN_FLIGHT_MAX:
            await self._pending[0]

    async def _answer_after(
        self, previous: asyncio.Task[None] | None, handling: asyncio.Future[Sequence[Piece] | None], size: int
    ) -> None:
        try:
            pieces = await handling
            if previous is not None:
                await previous
            if pieces is not None:
                await send_pieces(self._transport, pieces)
        except BaseException:
            handling.cancel()
            # The reading side may wait for the client: end it.
            self._transport.close()
            raise
        finally:
            self._budget.release(size)

    async def _settle(self) -> None:
        """Wait until all earlier requests are answered. Raises what ended one of them."""
        while self._pending:
            await self._pending.popleft()

    async def _answer(self, exchange: Exchange | TokenExchange) -> None:
        pieces = await exchange.handle()
        if pieces is not None:
            await send_pieces(self._transport, pieces)
        if self._session.is_closing:
            raise CloseConnection("the client could not authenticate")

    async def _stay_muted(self) -> None:
        """Read nothing for the time that a quota has set."""
        wait_ms = self._session.mute_until_ms - self._monotonic_ms()
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

    async def _abandon(self) -> None:
        """The client is gone: nobody waits for the answers that are left. Their commits go on."""
        for task in self._pending:
            task.cancel()
        for task in self._pending:
            with contextlib.suppress(BaseException):
                await task


class _Input:
    """Reads exact numbers of bytes; small reads come from one buffer."""

    def __init__(self, transport: ClientTransport) -> None:
        self._transport = transport
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._start = 0
        self._end = 0

    async def read(self, size: int) -> bytearray | None:
        """`size` bytes; None if the stream ends here. Raises IncompleteReadError if it ends in the middle."""
        taken = min(size, self._end - self._start)
        result = self._buffer[self._start : self._start + taken]
        self._start += taken
        while len(result) < size:
            missing = size - len(result)
            if missing < _RECEIVE_BYTES:
                if not await self._fill():
                    _check_whole(result, size)
                    return None
                taken = min(missing, self._end)
                result += self._buffer[:taken]
                self._start = taken
            else:
                at = len(result)
                result += bytes(min(missing, max(_FRAME_STEP_BYTES, at)))
                with memoryview(result) as view:
                    while at < len(view):
                        received = await self._transport.recv_into(view[at:])
                        if not received:
                            _check_whole(view[:at], size)
                            return None
                        at += received
        return result

    async def _fill(self) -> bool:
        with memoryview(self._buffer) as view:
            self._start, self._end = 0, await self._transport.recv_into(view)
        return self._end > 0


class PlainTransport(SocketTransport):
    """Plain TCP on a non-blocking socket."""

    async def recv_into(self, buffer: memoryview) -> int:
        return await asyncio.get_running_loop().sock_recv_into(self._socket, buffer)

    def close(self) -> None:
        self._socket.close()


def _check_whole(read: bytearray | memoryview, size: int) -> None:
    """Raise IncompleteReadError if the stream has ended in the middle of something."""
    if len(read):
        raise asyncio.IncompleteReadError(b"", size)
