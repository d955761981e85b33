"""What a connection reads, in which order it answers, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import selectors
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes.loop_clock import LoopClock
from patience import PATIENCE_S, until

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.connections.connection import Connection, FrameLimits, PlainTransport, _Input
from pyspark_kafkalog.server.connections.request_bytes import RequestBytesBySize, ResponseBytes
from pyspark_kafkalog.server.context import CloseConnection, Session
from pyspark_kafkalog.server.request_errors import BoundedLog

REQUEST_MAX_BYTES = 1 << 20


@dataclass
class FakeExchange:
    """A request of an API key and a name; the test decides when it is handled."""

    api_key: ApiKey
    name: str
    dispatcher: FakeDispatcher

    @property
    def is_long(self) -> bool:
        return self.name.startswith("long")

    async def handle(self) -> Sequence[bytes] | None:
        self.dispatcher.begun.append(self.name)
        await self.dispatcher.gates.setdefault(self.name, _open()).wait()
        if self.name.startswith("fail"):
            raise CloseConnection(self.name)
        return None if self.name.startswith("silent") else [self.name.encode()]


@dataclass
class FakeDispatcher:
    begun: list[str] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    opened: int = 0

    def straight(self, frame: bytearray, session: Session) -> FakeExchange | None:
        return self._exchange(frame) if frame[2:].startswith(b"usual") else None

    async def open(self, frame: bytearray, session: Session) -> FakeExchange:
        self.opened += 1
        if frame == b"bad":
            raise CloseConnection("bad")
        return self._exchange(frame)

    def _exchange(self, frame: bytearray) -> FakeExchange:
        return FakeExchange(ApiKey(frame[1]), bytes(frame[2:32]).rstrip(b".").decode(), self)

    def hold(self, name: str) -> asyncio.Event:
        self.gates[name] = asyncio.Event()
        return self.gates[name]


def _open() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def produce(name: str) -> bytes:
    return frame(bytes([0, ApiKey.PRODUCE]) + name.encode())


def fetch(name: str) -> bytes:
    return frame(bytes([0, ApiKey.FETCH]) + name.encode())


class Client:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self, size: int) -> bytes:
        """`size` bytes, or what there is before the end of the stream."""
        received = b""
        while len(received) < size:
            more = await asyncio.get_running_loop().sock_recv(self.sock, size - len(received))
            if not more:
                break
            received += more
        return received


@contextlib.asynccontextmanager
async def connected(**limits: Any) -> AsyncIterator[tuple[Client, FakeDispatcher, RequestBytesBySize]]:
    """A connection that is served, and holds no memory when it has ended."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    dispatcher, budget = FakeDispatcher(), RequestBytesBySize(4 * REQUEST_MAX_BYTES)
    responses = ResponseBytes(1 << 20, lambda: int(time.monotonic() * 1000))
    values = {"request_max_bytes": REQUEST_MAX_BYTES, "unauthenticated_max_bytes": 64, "idle_max_s": 60.0, **limits}
    with ThreadPoolExecutor(1) as executor:
        connection = Connection(
            PlainTransport(ours, executor),
            Session("127.0.0.1", 1, is_authenticated=True),
            dispatcher,  # type: ignore[arg-type]  # the test's own
            limits=FrameLimits(**values),
            requests=budget,
            responses=responses,
            log=BoundedLog(logging.getLogger(__name__), lambda: 0),
            monotonic_ms=lambda: 0,
        )
        serving = asyncio.create_task(connection.serve())
        try:
            yield Client(theirs), dispatcher, budget
        finally:
            theirs.close()
            await asyncio.wait_for(serving, PATIENCE_S)
    assert budget.used_bytes == responses.used_bytes == 0


async def test_produce_requests_begin_before_earlier_ones_are_answered_and_answers_keep_their_order() -> None:
    async with connected() as (client, dispatcher, _):
        first, second = dispatcher.hold("a"), dispatcher.hold("b")
        await client.send(produce("a") + produce("b") + produce("c"))
        await until(lambda: dispatcher.begun == ["a", "b", "c"])
        second.set()
        await asyncio.sleep(0.01)
        first.set()
        assert await client.receive(3) == b"abc"


async def test_usual_produce_requests_that_have_arrived_whole_begin_without_the_general_way() -> None:
    async with connected() as (client, dispatcher, _):
        first = dispatcher.hold("usual1")
        last = produce("usual3")
        await client.send(produce("usual1") + produce("usual2") + last[:7])
        await until(lambda: dispatcher.begun == ["usual1", "usual2"])
        assert dispatcher.opened == 0
        await client.send(last[7:] + produce("other") + produce("usual4"))
        await until(lambda: dispatcher.begun[2:] == ["usual3", "other", "usual4"])
        assert dispatcher.opened == 1  # the other one alone
        first.set()
        assert await client.receive(29) == b"usual1usual2usual3otherusual4"


async def test_usual_requests_begin_as_far_as_there_is_room_for_them_and_for_answers() -> None:
    async with connected() as (client, dispatcher, budget):
        names = [f"usual{each:02d}" for each in range(40)]
        gates = [dispatcher.hold(name) for name in names]
        await client.send(b"".join(map(produce, names)))
        await until(lambda: len(dispatcher.begun) >= 32)
        await asyncio.sleep(0.01)
        assert len(dispatcher.begun) <= 33
        assert budget.used_bytes > 0
        for gate in gates:
            gate.set()
        assert await client.receive(7 * 40) == b"".join(name.encode() for name in names)


async def test_other_requests_begin_when_earlier_ones_are_answered() -> None:
    async with connected() as (client, dispatcher, _):
        held = dispatcher.hold("a")
        await client.send(produce("a") + fetch("b") + produce("c"))
        await until(lambda: dispatcher.begun)
        await asyncio.sleep(0.02)
        assert dispatcher.begun == ["a"]
        held.set()
        assert await client.receive(3) == b"abc"


async def test_long_produce_begins_when_earlier_ones_are_answered_and_before_later_ones_are_read() -> None:
    async with connected() as (client, dispatcher, _):
        first, second = dispatcher.hold("a"), dispatcher.hold("long")
        await client.send(produce("a") + produce("long") + produce("c"))
        await until(lambda: dispatcher.begun)
        await asyncio.sleep(0.02)
        assert dispatcher.begun == ["a"]
        first.set()
        await until(lambda: len(dispatcher.begun) > 1)
        await asyncio.sleep(0.02)
        assert dispatcher.begun == ["a", "long"]
        second.set()
        assert await client.receive(6) == b"alongc"


async def test_request_without_answer_does_not_hold_up_the_next() -> None:
    async with connected() as (client, _, _):
        await client.send(produce("silent") + produce("b"))
        assert await client.receive(1) == b"b"


async def test_frames_in_pieces_and_frames_larger_than_the_buffer_arrive_whole() -> None:
    async with connected() as (client, _, _):
        large = bytes([0, ApiKey.FETCH]) + b"large".ljust(500_000, b".")
        for byte in fetch("slow"):
            await client.send(bytes([byte]))
        await client.send(frame(large) + fetch("after"))
        assert await client.receive(14) == b"slowlargeafter"


@pytest.mark.parametrize("size", [0, -1, REQUEST_MAX_BYTES + 1, 2**31 - 1, -(2**31)])
async def test_illegal_size_ends_the_connection(size: int) -> None:
    async with connected() as (client, _, _):
        await client.send(struct.pack(">i", size))
        assert await client.receive(1) == b""


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (bytes.fromhex("1603010200010001fc"), "found the beginning of TLS: the client has security.protocol SSL"),
        (b"GET / HTTP/1.1\r\n", "found a request of HTTP"),
        (struct.pack(">i", -5), "found the size -5"),
    ],
    ids=["tls", "http", "size"],
)
async def test_log_names_the_protocol_of_a_client_that_wants_another_port(
    data: bytes, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with connected() as (client, _, _):
            await client.send(data)
            with contextlib.suppress(ConnectionError):
                assert await client.receive(1) == b""
    assert found in caplog.text


@pytest.mark.parametrize("data", [frame(b"bad"), produce("fail"), fetch("fail")], ids=["bad", "produce", "fetch"])
async def test_connection_ends_after_what_cannot_be_answered(data: bytes) -> None:
    async with connected() as (client, _, _):
        await client.send(fetch("a") + data)
        assert await client.receive(2) == b"a"


async def test_client_that_leaves_in_the_middle_of_a_frame_leaves_nothing_behind() -> None:
    async with connected() as (client, _, _):
        await client.send(frame(bytes(300_000))[:100_000])
        client.sock.shutdown(socket.SHUT_WR)
        assert await client.receive(1) == b""


async def test_silent_connection_is_closed() -> None:
    async with connected(idle_max_s=0.05) as (client, _, _):
        assert await client.receive(1) == b""


async def test_produce_in_flight_when_the_client_leaves_is_handled_and_counted_until_then() -> None:
    async with connected() as (client, dispatcher, budget):
        held = dispatcher.hold("a")
        await client.send(produce("a"))
        await until(lambda: dispatcher.begun == ["a"])
        client.sock.shutdown(socket.SHUT_RDWR)
        await asyncio.sleep(0.01)
        assert budget.used_bytes == 3
        held.set()
        await until(lambda: budget.used_bytes == 0)


@contextlib.contextmanager
def plain_transport() -> Iterator[tuple[PlainTransport, socket.socket, int]]:
    """A transport, its client, and its descriptor."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs, ThreadPoolExecutor(1) as executor:
        transport = PlainTransport(ours, executor)
        yield transport, theirs, ours.fileno()
        transport.close()


def readers_of(loop: asyncio.AbstractEventLoop) -> set[int]:
    """The descriptors that the loop watches for something to read."""
    selector = loop._selector  # type: ignore[attr-defined]
    return {fd for fd, key in selector.get_map().items() if key.events & selectors.EVENT_READ}


async def test_wait_ends_at_its_own_deadline_whatever_the_deadlines_of_earlier_ones() -> None:
    clock = LoopClock()
    with plain_transport() as (transport, client, _):
        for seconds in (600.0, 60.0, 600.0):
            receiving = asyncio.create_task(transport.recv(10, seconds))
            await asyncio.sleep(0)
            client.send(b"some")
            assert await receiving == b"some"
        await clock.advance(80)  # the timer of the second wait has gone off
        receiving = asyncio.create_task(transport.recv(10, 60.0))
        await clock.advance(20)
        assert not receiving.done()
        await clock.advance(40)
        with pytest.raises(asyncio.TimeoutError):
            await receiving
        receiving = asyncio.create_task(transport.recv(10, 600.0))
        await clock.advance(80)
        assert not receiving.done()
        client.send(b"more")
        assert await receiving == b"more"


async def test_socket_is_watched_between_waits_until_something_arrives_that_nobody_waits_for() -> None:
    loop = asyncio.get_running_loop()
    with plain_transport() as (transport, client, descriptor):
        receiving = asyncio.create_task(transport.recv(4, 60.0))
        await asyncio.sleep(0)
        client.send(b"some")
        assert await receiving == b"some"
        client.send(b"more")
        # The loop would else find it readable again and again.
        await until(lambda: descriptor not in readers_of(loop))
        assert await transport.recv(10, 60.0) == b"more"
        receiving = asyncio.create_task(transport.recv(10, 60.0))
        await asyncio.sleep(0)
        client.close()
        assert await receiving == b""


class CountingSocket(socket.socket):
    """Counts how often it is asked for what has arrived."""

    asked = 0

    def recv(self, *arguments: Any) -> bytes:
        self.asked += 1
        return super().recv(*arguments)


async def test_socket_is_asked_once_for_each_thing_that_arrives_in_time() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with CountingSocket(fileno=ours.detach()) as counting, theirs, ThreadPoolExecutor(1) as executor:
        transport = PlainTransport(counting, executor)
        theirs.send(b"0123456789")
        assert await transport.recv(10, 60.0) == b"0123456789"  # all that was asked for: there may be more
        for asked in (3, 4, 5):
            receiving = asyncio.create_task(transport.recv(10, 60.0))
            await asyncio.sleep(0)
            theirs.send(b"some")
            assert await receiving == b"some"
            assert counting.asked == asked
        transport.close()


async def test_lost_connection_ends_the_wait() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    ours, _ = listener.accept()
    ours.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
    with listener, ours, ThreadPoolExecutor(1) as executor:
        transport = PlainTransport(ours, executor)
        receiving = asyncio.create_task(transport.recv(10, 60.0))
        await asyncio.sleep(0)
        client.close()
        with pytest.raises(ConnectionResetError):
            await receiving
        transport.close()


def test_large_frame_is_read_on_after_a_pause_without_the_garbage_collector() -> None:
    # What has waited must not keep a view of the frame, whose memory grows afterwards.
    size = 3 << 20

    async def main() -> None:
        with plain_transport() as (transport, client, _):
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            reading = asyncio.create_task(_Input(transport).read(size, 30.0))
            await loop.sock_sendall(client, bytes(100_000))
            await asyncio.sleep(0.01)
            sending = asyncio.create_task(loop.sock_sendall(client, bytes(size - 100_000)))
            frame = await asyncio.wait_for(reading, PATIENCE_S)
            assert frame is not None
            assert len(frame) == size
            await sending

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
