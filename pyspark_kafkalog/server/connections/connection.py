"""One connection of a client: reads requests ahead, has them handled, and answers in the order of the requests.

    size, header, body    a frame; its size is checked before memory is taken: most APIs have no large requests. Memory
                          grows, and is charged, only as bytes arrive
    Produce               begins at once: the Produce requests that a client has sent ahead wait for the same commit.
                          Those that are decided together are answered together
    any other request     begins when all earlier ones are answered, as in Kafka, so that it sees what they did. Also a
                          Produce of thousands of partitions: it submits its batches in several turns. A usual
                          OffsetCommit begins at once if there are none, and later ones begin when it is answered

Kafka's broker reads nothing from a connection while a request of it is handled; reading Produce ahead is what lets one
producer with several requests in flight share commits. A client sees the same either way: answers come in order.

What ends a connection: its end, a frame that is no request of a known API and version, too large a frame, one that does
not arrive, or too slowly while others wait for memory, a response that is not taken, a failed Produce with acks 0, a
defect in a handler. Produce requests that were read are committed all the same, and count as memory until then. A
client that leaves while a request waits (Fetch, JoinGroup, SyncGroup) is noticed after some seconds; a request that
waits for long ends when others need the memory that it holds. A crash of the server ends all; nothing of a connection
outlives it.

Source of the rules: kafka.network.SocketServer, Processor and RequestChannel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from pyspark_kafkalog.metadata.messages.schema import Piece
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.connections.dispatch import (
    BEGUN_APIS,
    AnyExchange,
    BegunExchange,
    Dispatcher,
    HandledExchange,
)
from pyspark_kafkalog.server.connections.request_bytes import (
    SMALL_REQUEST_BYTES,
    HeldRequest,
    RequestBytesBySize,
    ResponseBytes,
    request_bytes_max,
)
from pyspark_kafkalog.server.context import CloseConnection, Session
from pyspark_kafkalog.server.event_loop import Begun
from pyspark_kafkalog.server.request_errors import BoundedLog
from pyspark_kafkalog.server.sending import (
    IDLE_MAX_S,
    SocketTransport,
    Takes,
    Transport,
    has_hung_up,
    send_pieces,
    shut_down,
    time_out,
)
from pyspark_kafkalog.server.straight.produce import StraightProduce, StraightProduces

_LOG: Final = logging.getLogger(__name__)
_SIZE: Final = struct.Struct(">i")
_RECEIVE_BYTES: Final = 64 << 10
#: Received where frames begin: five requests of a Java producer with its batch.size are sent together.
_FRAMES_BYTES: Final = 128 << 10
#: Memory for a large frame is taken in steps, so that a client must send what it announces.
_FRAME_STEP_BYTES: Final = 1 << 20
#: A frame has to arrive within so many seconds, and those that its bytes take at this rate.
_FRAME_MAX_S: Final = 30.0
_FRAME_MIN_BYTES_A_SECOND: Final = 1 << 20
#: The API key, which tells how large a request may be.
_API_KEY: Final = struct.Struct(">h")
_IN_FLIGHT_MAX: Final = 32
#: An answer in memory of at most so many bytes is sent at once, if the socket takes it, and not counted.
_SMALL_ANSWER_BYTES: Final = 128 << 10
#: Requests that may wait for as long as the client says, and how soon it is looked whether it is still there.
_WAITING_APIS: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
_LOOK_S: Final = 5.0
_MEMORY: Final = (bytes, bytearray, memoryview)
#: How it is received, what the call gets (a size or a buffer), what may take it, and who waits for what it returns.
_Arrival: TypeAlias = "tuple[Callable[[Any], Any], Any, Takes, asyncio.Future[Any]]"


class ClientTransport(Transport, Protocol):
    """The socket of a connection, plain or TLS.

    All methods raise OSError when the connection is lost; those that receive raise asyncio.TimeoutError if nothing
    arrives within `seconds_max`.
    """

    async def recv(self, size_max: int, seconds_max: float, takes: Takes = None) -> bytes:
        """What has arrived, at least a byte, and `takes` has not taken; none at the end. Waits without memory."""
        ...

    async def recv_into(self, buffer: memoryview, seconds_max: float) -> int:
        """Fill `buffer` with what has arrived, at least a byte; 0 at the end of the stream."""
        ...

    def send_now(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Send what can be sent without waiting; returns the rest. No other call that sends is under way.

        Raises OSError.
        """
        ...

    @property
    def file_buffer_bytes(self) -> int:
        """The memory that a slice of a file takes while it is sent."""
        ...

    def has_left(self) -> bool:
        """Whether the client has closed the connection, though there may be bytes of it to read."""
        ...

    def abort(self) -> None:
        """End the stream in both directions, so that waiting calls return. Raises nothing."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of a frame in bytes (socket.request.max.bytes), before and after the client is authenticated, and the
    seconds that a connection may be silent (connections.max.idle.ms)."""

    request_max_bytes: int
    unauthenticated_max_bytes: int
    idle_max_s: float


class Connection:
    """Serves one client until it leaves. `monotonic_ms` is the clock of `Session.mute_until_ms`; `log` is told why the
    server ended the connection."""

    def __init__(
        self,
        transport: ClientTransport,
        session: Session,
        dispatcher: Dispatcher,
        *,
        limits: FrameLimits,
        requests: RequestBytesBySize,
        responses: ResponseBytes,
        log: BoundedLog,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._transport = transport
        self._session = session
        self._dispatcher = dispatcher
        self._limits = limits
        self._requests = requests
        self._responses = responses
        self._log = log
        self._monotonic_ms = monotonic_ms
        self._input = _Input(transport)
        self._pending: deque[BegunExchange | StraightProduces] = deque()  # those not answered, in their order
        self._is_answering = False  # in the loop's next turn
        self._sending: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_unusual = False  # the next frame was found to be another one than a usual request

    async def serve(self) -> None:
        """Handle requests until the connection ends, for whatever reason; closes the socket. Raises nothing."""
        try:
            while await self._input.some(self._limits.idle_max_s, self._begin_usual):
                await self._serve_frame(await self._next_size(), is_unusual=self._is_unusual)
                if self._session.mute_until_ms:
                    await self._stay_muted()
            self._check_failure()
        except CloseConnection as reason:
            self._log.info("closing the connection of %s:%d: %s", self._session.host, self._session.port, reason)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            _LOG.debug("the connection of %s:%d ended: %s", self._session.host, self._session.port, error)
        except Exception:
            _LOG.exception("closing the connection of %s:%d", self._session.host, self._session.port)
        finally:
            try:
                await self._abandon()
            finally:
                self._transport.close()

    def _begin_usual(self) -> None:
        """Begin the usual requests that have arrived whole. A coroutine for each step would cost more."""
        self._is_unusual = False
        if self._failure is not None or self._session.mute_until_ms:
            return
        limit, held = min(self._limit, SMALL_REQUEST_BYTES), self._requests.of(0).whole(0)
        together: list[StraightProduce] = []
        try:
            for _ in range(_IN_FLIGHT_MAX - sum(each.count for each in self._pending)):
                frame = self._input.whole_frame(BEGUN_APIS, limit)
                exchange = None if frame is None else self._dispatcher.straight(frame, self._session)
                if frame is None or exchange is None:
                    self._is_unusual = frame is not None
                    break
                is_alone = not isinstance(exchange, StraightProduce)
                if self._has_to_settle(exchange) or (together and is_alone) or not held.take_at_once(len(frame)):
                    break
                self._input.skip(_SIZE.size + len(frame))
                if isinstance(exchange, StraightProduce):
                    together.append(exchange)
                else:
                    self._pending.append(BegunExchange(exchange, held, self._handled))
                    held = self._requests.of(0).whole(0)
        finally:
            if together:
                self._pending.append(StraightProduces(together, held, self._handled))

    def _has_to_settle(self, exchange: AnyExchange) -> bool:
        """Whether earlier requests have to be answered before this one begins: all do but Produce after Produce."""
        if not self._pending and self._sending is None:
            return False
        keys = (exchange.api_key, self._pending[-1].api_key if self._pending else ApiKey.PRODUCE)
        return keys != (ApiKey.PRODUCE, ApiKey.PRODUCE)

    @property
    def _limit(self) -> int:
        """The bytes that a frame may have now."""
        limits = self._limits
        return limits.request_max_bytes if self._session.is_authenticated else limits.unauthenticated_max_bytes

    async def _next_size(self) -> int:
        """The size of the next frame, of which some bytes are there. Raises CloseConnection for an illegal size."""
        head = await self._input.read(_SIZE.size, self._limits.idle_max_s)
        assert head is not None
        (size,) = _SIZE.unpack(head)
        limit = self._limit
        if not 0 < size <= limit:
            raise CloseConnection(f"expected a request of 1 to {limit} bytes, found {_other_protocol(head, size)}")
        return int(size)

    async def _serve_frame(self, size: int, *, is_unusual: bool) -> None:
        """Read a frame and handle it, in the general way if it `is_unusual`.

        Its memory is counted until it is handled, and given back before the answer is sent, which may take as long as
        the client likes.
        """
        frame, held = await self._read_frame(size)
        is_handed_over = False
        try:
            exchange: AnyExchange | None = None if is_unusual else self._dispatcher.straight(frame, self._session)
            if exchange is None:
                exchange = await self._dispatcher.open(frame, self._session)
            del frame
            if isinstance(exchange, StraightProduce) or (exchange.api_key == ApiKey.PRODUCE and not exchange.is_long):
                if self._has_to_settle(exchange):
                    await self._settle()
                is_handed_over = True
                if isinstance(exchange, StraightProduce):
                    self._pending.append(StraightProduces([exchange], held, self._handled))
                else:
                    self._pending.append(BegunExchange(exchange, held, self._handled))
                del exchange
                await self._keep_up()
                return
            await self._settle()
            pieces = await self._pieces_of(exchange, held)
            del exchange
        finally:
            if not is_handed_over:
                held.release()
        if pieces is not None:
            await self._send(pieces)
        if self._session.is_closing:
            raise CloseConnection("the client could not authenticate")

    async def _pieces_of(self, exchange: HandledExchange, held: HeldRequest) -> Sequence[Piece] | None:
        """The answer of the exchange. One that waits for as long as the client says is watched once it waits."""
        handling = exchange.handle()
        if exchange.api_key not in _WAITING_APIS:
            return await handling
        del exchange
        try:
            awaited = handling.send(None)
        except StopIteration as end:
            pieces: Sequence[Piece] | None = end.value
            return pieces
        with self._watched(held):
            return await Begun(handling, awaited)

    async def _read_frame(self, size: int) -> tuple[bytearray, HeldRequest]:
        """The bytes of a frame, which the budget counts from now on."""
        budget = self._requests.of(size)
        if self._input.has(size) and size <= SMALL_REQUEST_BYTES:
            frame, held = self._input.take(size), budget.whole(size)
            try:
                await held.take(size)
            except BaseException:
                held.release()
                raise
            return frame, held
        seconds_max = _FRAME_MAX_S + size / _FRAME_MIN_BYTES_A_SECOND
        if size > SMALL_REQUEST_BYTES:
            (api_key,) = _API_KEY.unpack(await self._input.peek(_API_KEY.size, seconds_max))
            limit = request_bytes_max(api_key, self._limits.request_max_bytes)
            if size > limit:
                raise CloseConnection(f"expected a request of at most {limit} bytes of API {api_key}, found {size}")
        held = budget.arriving(self._session.owners, size, self._transport.abort)
        try:
            whole = await self._input.read(size, seconds_max, held)
            if whole is None:
                raise asyncio.IncompleteReadError(b"", size)
            held.complete()
        except BaseException as error:
            held.release()
            if held.is_ending and isinstance(error, (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError)):
                raise CloseConnection(f"its request of {size} bytes arrives slowly, and others need memory") from None
            raise
        return whole, held

    async def _keep_up(self) -> None:
        """Wait while too many requests are unanswered. Raises what has ended the connection."""
        while sum(each.count for each in self._pending) >= _IN_FLIGHT_MAX:
            await self._progress()
        self._check_failure()

    async def _settle(self) -> None:
        """Wait until all earlier requests are answered. Raises what has ended the connection."""
        while self._pending or self._sending is not None:
            await self._progress()
        self._check_failure()

    async def _progress(self) -> None:
        """Wait until some answers were sent."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _handled(self, begun: BegunExchange | StraightProduces) -> None:
        """It is answered now if all requests are handled, else with those of the same turn of the loop."""
        if self._pending and begun is self._pending[-1] and all(each.is_done for each in self._pending):
            self._answer()
        elif not self._is_answering:
            self._is_answering = True
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        """Send the answers of the first requests, as far as they are handled. A failure ends the connection."""
        self._is_answering = False
        if self._sending is not None or self._failure is not None:
            return
        pieces: list[Piece] = []
        try:
            try:
                while self._pending and self._pending[0].is_done:
                    pieces += self._pending.popleft().pieces() or ()
            finally:
                rest = self._transport.send_now(pieces)
            if rest:
                self._sending = asyncio.create_task(self._send_rest(rest))
            self._wake_up()
        except (Exception, asyncio.CancelledError) as error:
            self._fail(error)

    async def _send_rest(self, pieces: Sequence[Piece]) -> None:
        try:
            await self._send(pieces)
        except Exception as error:
            self._fail(error)
        finally:
            self._sending = None
        self._answer()

    def _fail(self, error: BaseException) -> None:
        """End the connection. Nothing is answered any more; the reading side may wait for the client: it wakes up."""
        self._failure = error
        self._pending.clear()
        self._transport.abort()
        self._wake_up()

    def _wake_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _send(self, pieces: Sequence[Piece]) -> None:
        size_bytes = sum(len(each) for each in pieces if isinstance(each, _MEMORY))
        if len(pieces) and any(not isinstance(each, _MEMORY) for each in pieces):
            size_bytes += self._transport.file_buffer_bytes
        elif size_bytes <= _SMALL_ANSWER_BYTES:
            pieces = self._transport.send_now(pieces)
            if not pieces:
                return
        with self._responses.sending(size_bytes, self._transport.abort, self._session.owners):
            await send_pieces(self._transport, pieces)

    @contextlib.contextmanager
    def _watched(self, held: HeldRequest) -> Iterator[None]:
        """Cancels a request that waits once the client has left, or others need its bytes: ConnectionResetError."""
        watch = _Watch(self._transport)
        try:
            with held.idle(watch.give_up):
                yield
        except asyncio.CancelledError:
            if watch.has_left:
                raise ConnectionResetError("the client has left") from None
            raise
        finally:
            watch.end()

    async def _stay_muted(self) -> None:
        """Read nothing for the time that a quota has set."""
        wait_ms = self._session.mute_until_ms - self._monotonic_ms()
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

    async def _abandon(self) -> None:
        """The client has disconnected: the remaining answers are dropped. Their commits complete."""
        self._pending.clear()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait((self._sending,))


class _Watch:
    """Looks from time to time whether the client is still there, and cancels the current task if not."""

    def __init__(self, transport: ClientTransport) -> None:
        self._transport = transport
        self._task = asyncio.current_task()
        self.has_left = False
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        if self._transport.has_left():
            self.give_up()
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def give_up(self) -> None:
        """Wait no longer: the connection ends."""
        self.has_left = True
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        self._timer.cancel()


def _other_protocol(head: bytes | bytearray, size: int) -> str:
    """What the first bytes of a frame of an illegal size are, for the log: many clients are set up wrongly."""
    if head[:2] == b"\x16\x03":  # a record of TLS that holds a handshake
        return "the beginning of TLS: the client has security.protocol SSL or SASL_SSL, this listener takes no TLS"
    if bytes(head) in (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI"):
        return "a request of HTTP"
    return f"the size {size}"


class _Input:
    """Reads exact numbers of bytes. What follows them is kept; while nothing arrives no memory is taken."""

    def __init__(self, transport: ClientTransport) -> None:
        self._transport = transport
        self._rest = b""
        self._start = 0

    def has(self, size: int) -> bool:
        """Whether so many bytes are kept."""
        return len(self._rest) - self._start >= size

    async def some(self, seconds_max: float, begin: Callable[[], None]) -> bool:
        """Whether `begin` leaves some of what is kept or arrives; False at the end. Raises asyncio.TimeoutError."""

        def takes(received: bytes) -> bool:
            self._rest, self._start = received, 0
            begin()
            return not self.has(1)

        if self.has(1):
            begin()
        return self.has(1) or bool(await self._transport.recv(_FRAMES_BYTES, seconds_max, takes))

    def take(self, size: int) -> bytearray:
        """At most so many of the bytes that are kept."""
        result = bytearray(memoryview(self._rest)[self._start : self._start + size])
        self.skip(len(result))
        return result

    def skip(self, size: int) -> None:
        """Drop so many of the bytes that are kept, and are there."""
        self._start += size
        if self._start == len(self._rest):
            self._rest, self._start = b"", 0

    def whole_frame(self, apis: Container[bytes], size_max: int) -> bytearray | None:
        """A copy of the next frame, if it is of one of the APIs and at most so long, and all is kept; it stays here."""
        begin = self._start + _SIZE.size
        if len(self._rest) < begin + _API_KEY.size:
            return None
        (size,) = _SIZE.unpack_from(self._rest, self._start)
        if self._rest[begin : begin + _API_KEY.size] not in apis or not _API_KEY.size <= size <= size_max:
            return None
        if len(self._rest) - begin < size:
            return None
        return bytearray(memoryview(self._rest)[begin : begin + size])

    async def peek(self, size: int, seconds_max: float) -> bytes:
        """The next bytes, which are read again. Raises IncompleteReadError if the stream ends, asyncio.TimeoutError."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds_max
        while not self.has(size):
            more = await self._transport.recv(_RECEIVE_BYTES, _left_s(deadline_s - loop.time()))
            if not more:
                raise asyncio.IncompleteReadError(b"", size)
            self._rest, self._start = self._rest[self._start :] + more, 0
        return self._rest[self._start : self._start + size]

    async def read(self, size: int, seconds_max: float, held: HeldRequest | None = None) -> bytearray | None:
        """`size` bytes; None if the stream ends here. Raises IncompleteReadError if it ends in the middle.

        `held` is charged with their memory. Raises asyncio.TimeoutError if they have not arrived in time.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds_max
        result = self.take(size)
        charged = 0
        while (at := len(result)) < size:
            missing = size - at
            # Most frames have one large step: taking its memory at once is quicker than to make zeros and to add them.
            # Until a part of the frame has arrived, no memory is taken while nothing arrives.
            is_small = missing < _RECEIVE_BYTES or at < _RECEIVE_BYTES // 2
            step = min(missing, _RECEIVE_BYTES if is_small else _FRAME_STEP_BYTES)
            if held is not None:
                held.arrived(at)
                if at + step > charged:
                    asked_s = loop.time()
                    await held.take(at + step - charged)
                    deadline_s += loop.time() - asked_s
                    charged = at + step
            if is_small:
                self._rest = await self._transport.recv(_RECEIVE_BYTES, _left_s(deadline_s - loop.time()))
                if not self._rest:
                    _check_whole(result, size)
                    return None
                result += self.take(missing)
                continue
            if at <= _FRAMES_BYTES:
                result = _grown(result, step)
            else:
                result += bytes(step)
            with memoryview(result) as view:
                while at < len(view):
                    received = await self._transport.recv_into(view[at:], _left_s(deadline_s - loop.time()))
                    if not received:
                        _check_whole(view[:at], size)
                        return None
                    at += received
                    if held is not None:
                        held.arrived(at)
        if held is not None and not charged:
            await held.take(size)
        return result


def _grown(data: bytearray, by: int) -> bytearray:
    """`data` and so many zeros."""
    result = bytearray(len(data) + by)
    result[: len(data)] = data
    return result


class PlainTransport(SocketTransport):
    """Plain TCP on a non-blocking socket.

    The event loop watches the socket from the first wait on, until something arrives for which nobody waits: beginning
    and ending that for each request would take two calls of the kernel, and a turn of the loop. A socket that has given
    less than was asked for is empty: it is not asked again before the loop finds something in it.
    """

    def __init__(self, connection: socket.socket, executor: Executor, *, idle_max_s: float = IDLE_MAX_S) -> None:
        super().__init__(connection, executor, idle_max_s=idle_max_s)
        self._loop = asyncio.get_running_loop()
        self._is_watched = False
        self._is_empty = False  # nothing was left to be received last time: more wakes up the event loop
        self._arrival: _Arrival | None = None  # what is waited for
        self._seconds_max = 0.0  # of the wait
        self._deadline_s = 0.0  # of the wait, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None  # at the deadline of this wait or of an earlier one

    async def recv(self, size_max: int, seconds_max: float, takes: Takes = None) -> bytes:
        """See ClientTransport."""
        received: bytes = await self._received(self._socket.recv, size_max, seconds_max, takes)
        self._is_empty = len(received) < size_max
        return received

    async def recv_into(self, buffer: memoryview, seconds_max: float) -> int:
        """See ClientTransport."""
        received: int = await self._received(self._socket.recv_into, buffer, seconds_max)
        self._is_empty = received < len(buffer)
        return received

    async def _received(self, receive: Callable[[Any], Any], into: Any, seconds_max: float, takes: Takes = None) -> Any:
        """What `receive` returns for `into`, now or once something has arrived that `takes` does not take."""
        if not self._is_empty:
            try:
                received = receive(into)
                if takes is None or not received or not takes(received):
                    return received
                del received  # no memory is taken while it waits
            except BlockingIOError:
                pass
        loop = self._loop
        result: asyncio.Future[Any] = loop.create_future()
        self._seconds_max = seconds_max
        self._arrival = receive, into, takes, result
        if not self._is_watched:
            loop.add_reader(self._socket.fileno(), self._arrived)
            self._is_watched = True
        self._deadline_s = loop.time() + seconds_max
        if self._timer is None or self._timer.when() > self._deadline_s:
            self._set_timer()
        try:
            return await result
        finally:
            self._arrival = None
            del result  # its error refers to this call, which would keep `into` for the garbage collector

    def _arrived(self) -> None:
        """Receive for who waits. The loop calls this as long as there is something to be received."""
        if self._arrival is None:
            self._is_empty = False
            self._unwatch()
            return
        receive, into, takes, result = self._arrival
        if result.done():
            return  # the waiting task resumes in the next turn, and may need more
        try:
            received = receive(into)
            if takes is not None and received and takes(received):
                self._deadline_s = self._loop.time() + self._seconds_max
            else:
                result.set_result(received)
        except BlockingIOError:
            pass
        except Exception as error:
            result.set_exception(error)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._socket.fileno())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline_s, self._look_at_time)

    def _look_at_time(self) -> None:
        """End the wait if it has taken too long. The timer may be that of an earlier wait."""
        self._timer = None
        if self._arrival is None:
            return
        if self._loop.time() < self._deadline_s:
            self._set_timer()
        else:
            time_out(self._arrival[3])

    def has_left(self) -> bool:
        """See ClientTransport."""
        return has_hung_up(self._socket)

    def abort(self) -> None:
        """See ClientTransport."""
        shut_down(self._socket)

    def close(self) -> None:
        """See ClientTransport."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()


def _left_s(left_s: float) -> float:
    """The seconds that are left. Raises asyncio.TimeoutError if there are none."""
    if left_s <= 0:
        raise asyncio.TimeoutError("a request has not arrived in time")
    return left_s


def _check_whole(read: bytearray | memoryview, size: int) -> None:
    """Raise IncompleteReadError if the stream has ended in the middle of something."""
    if len(read):
        raise asyncio.IncompleteReadError(b"", size)
