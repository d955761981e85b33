"""A connection whose client stalls, leaves, or takes nothing: what it holds is given back, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from fakes.loop_clock import LoopClock
from patience import PATIENCE_S, until

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.connections import connection as connection_module
from pyspark_kafkalog.server.connections import request_bytes as request_bytes_module
from pyspark_kafkalog.server.connections.connection import Connection, FrameLimits, PlainTransport
from pyspark_kafkalog.server.connections.request_bytes import RequestBytesBySize, ResponseBytes
from pyspark_kafkalog.server.context import Session
from pyspark_kafkalog.server.request_errors import BoundedLog

LARGE = 100 << 10
BUDGET = 8 * LARGE


@dataclass
class Exchange:
    api_key: ApiKey
    answer: bytes
    gate: asyncio.Event

    is_cancelled: bool = False
    is_long: bool = False

    async def handle(self) -> Sequence[bytes]:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return [self.answer]


@dataclass
class Server:
    """Connections with one memory; each request is answered with `answer` once `gate` is open."""

    answer: bytes = b"ok"
    idle_max_s: float = 60.0
    requests: RequestBytesBySize = field(default_factory=lambda: RequestBytesBySize(BUDGET))
    responses_max: int = 1 << 20
    request_max_bytes: int = 1 << 20
    exchanges: list[Exchange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.now_ms = 0
        self.responses = ResponseBytes(self.responses_max, lambda: self.now_ms)
        self.tasks: list[asyncio.Task[None]] = []
        self._executor = ThreadPoolExecutor(1)

    def straight(self, frame: bytearray, session: Session) -> None:
        return None

    async def open(self, frame: bytearray, session: Session) -> Exchange:
        self.exchanges.append(Exchange(ApiKey(frame[1]), self.answer, self.gate))
        return self.exchanges[-1]

    @contextmanager
    def client(self, host: str = "127.0.0.1") -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.setblocking(False)
        theirs.setblocking(False)
        served = Connection(
            PlainTransport(ours, self._executor, idle_max_s=self.idle_max_s),
            Session(host, 1, is_authenticated=True),
            self,  # type: ignore[arg-type]  # the test's own
            limits=FrameLimits(self.request_max_bytes, 64, self.idle_max_s),
            requests=self.requests,
            responses=self.responses,
            log=BoundedLog(logging.getLogger(__name__), lambda: 0),
            monotonic_ms=lambda: 0,
        )
        self.tasks.append(asyncio.create_task(served.serve()))
        with theirs:
            yield theirs

    async def ended(self) -> None:
        """All connections have ended, and nothing is held."""
        await asyncio.wait_for(asyncio.gather(*self.tasks), PATIENCE_S)
        self.gate.set()
        await until(lambda: self.requests.used_bytes == self.responses.used_bytes == 0, "that nothing is held")
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "that no task is left")
        self._executor.shutdown()


def frame(api_key: ApiKey, size: int = 2) -> bytes:
    return begun(api_key, size, size)


def begun(api_key: ApiKey, size: int, sent: int) -> bytes:
    """The first `sent` bytes of a frame."""
    return struct.pack(">i", size) + bytes([0, api_key]).ljust(sent, b".")


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def receive(client: socket.socket, size: int = 100) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, size), PATIENCE_S)


async def test_client_that_takes_no_answer_is_given_up_and_holds_no_request() -> None:
    clock = LoopClock()
    server = Server(answer=b"x" * 500_000)
    with server.client() as client:
        await send(client, frame(ApiKey.METADATA, LARGE))
        await until(lambda: server.responses.used_bytes == 500_000)
        assert server.requests.used_bytes == 0
        await clock.advance(server.idle_max_s)
        await server.ended()


async def test_connection_that_takes_its_answer_the_longest_ends_when_answers_take_too_much_memory() -> None:
    server = Server(answer=b"x" * 600_000)
    with server.client() as slow, server.client() as other:
        await send(slow, frame(ApiKey.METADATA))
        await until(lambda: server.responses.used_bytes)
        server.now_ms += 60_000
        await send(other, frame(ApiKey.METADATA))
        got = 0
        while got < 600_000:
            got += len(await receive(other, 1 << 20))
        await asyncio.wait_for(server.tasks[0], PATIENCE_S)
    await server.ended()


async def test_answers_that_have_just_begun_may_exceed_the_memory() -> None:
    server = Server(answer=b"x" * 600_000)
    with server.client() as one, server.client() as other:
        for client in (one, other):
            await send(client, frame(ApiKey.METADATA))
        for client in (one, other):
            got = 0
            while got < 600_000:
                got += len(await receive(client, 1 << 20))
    await server.ended()


async def test_small_requests_are_served_while_large_ones_are_announced_and_do_not_come() -> None:
    server = Server()
    with server.client() as first, server.client() as second, server.client() as small:
        for client in (first, second):
            await send(client, struct.pack(">i", BUDGET // 2) + b"x")
        await asyncio.sleep(0.02)
        await send(small, frame(ApiKey.METADATA))
        assert await receive(small) == b"ok"
    await server.ended()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
@pytest.mark.parametrize("size", [LARGE, 60_000])
async def test_requests_that_arrive_slowly_do_not_keep_another_waiting(size: int, host: str) -> None:
    clock = LoopClock()
    server = Server()
    with contextlib.ExitStack() as clients:
        slow = [clients.enter_context(server.client()) for _ in range(20)]
        for each in slow:
            await send(each, begun(ApiKey.PRODUCE, size, size // 3))
        for _ in range(3):
            await clock.advance(1)
            for each, task in zip(slow, server.tasks, strict=True):
                if not task.done():
                    await send(each, b".")
        await until(lambda: server.requests.used_bytes)
        other = clients.enter_context(server.client(host))
        await send(other, frame(ApiKey.METADATA, size))
        assert await receive(other) == b"ok"
    await server.ended()


async def test_request_that_is_only_announced_takes_no_memory_from_others() -> None:
    server = Server()
    with contextlib.ExitStack() as clients:
        for _ in range(5):
            await send(clients.enter_context(server.client()), begun(ApiKey.PRODUCE, 1 << 20, 2))
        await until(lambda: server.requests.used_bytes)
        other = clients.enter_context(server.client("127.0.0.2"))
        await send(other, frame(ApiKey.METADATA, LARGE))
        assert await receive(other) == b"ok"
        assert not any(each.done() for each in server.tasks)
    await server.ended()


async def test_large_requests_of_all_clients_of_a_host_arrive_one_after_the_other() -> None:
    server = Server()
    with contextlib.ExitStack() as clients:
        many = [clients.enter_context(server.client()) for _ in range(6)]
        sending = [asyncio.create_task(send(each, frame(ApiKey.PRODUCE, 1 << 20))) for each in many]
        for each in many:
            assert await receive(each) == b"ok"
        await asyncio.gather(*sending)
    await server.ended()


@pytest.mark.parametrize(
    ("api_key", "size"),
    [(ApiKey.HEARTBEAT, 65_537), (ApiKey.API_VERSIONS, 65_537), (ApiKey.METADATA, (16 << 20) + 1), (999, 65_537)],
)
async def test_request_larger_than_its_api_needs_ends_the_connection_before_it_is_read(api_key: int, size: int) -> None:
    server = Server(request_max_bytes=100 << 20)
    with server.client() as client:
        await send(client, struct.pack(">ih", size, api_key))
        assert await receive(client) == b""
        assert not server.exchanges
    await server.ended()


async def test_frame_that_trickles_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_FRAME_MAX_S", 0.1)
    server = Server()
    with server.client() as client:
        await send(client, struct.pack(">i", 60_000))
        while not server.tasks[0].done():
            with suppress(OSError):
                await send(client, b".")
            await asyncio.sleep(0.01)
    await server.ended()


@pytest.mark.parametrize("api_key", [ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
async def test_request_that_waits_ends_when_its_client_has_left(
    monkeypatch: pytest.MonkeyPatch, api_key: ApiKey
) -> None:
    monkeypatch.setattr(connection_module, "_LOOK_S", 0.02)
    server = Server()
    server.gate.clear()
    with server.client() as client:
        await send(client, frame(api_key) + b"what follows is not read")
        await asyncio.sleep(0.05)
        assert not server.tasks[0].done()
    await asyncio.wait_for(server.tasks[0], PATIENCE_S)
    assert server.exchanges[0].is_cancelled
    await server.ended()


@pytest.mark.full
@pytest.mark.parametrize("size", [LARGE, 50_000])
async def test_requests_that_wait_for_long_end_when_others_need_their_memory(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(request_bytes_module, "_HANDLING_S", 0.2)
    monkeypatch.setattr(request_bytes_module, "_LOOK_S", 0.02)
    server = Server()
    server.gate.clear()
    with contextlib.ExitStack() as open_clients:
        waiting = [open_clients.enter_context(server.client()) for _ in range(BUDGET // size)]
        for client in waiting:
            await send(client, frame(ApiKey.FETCH, size))
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in server.tasks)
        served = asyncio.Event()
        served.set()
        server.gate = served  # the next request does not wait
        other = open_clients.enter_context(server.client())
        await send(other, frame(ApiKey.METADATA, size))
        assert await receive(other) == b"ok"
        assert 0 < sum(each.done() for each in server.tasks) < len(waiting)
    await server.ended()


async def test_requests_of_clients_that_leave_at_once_count_until_they_are_handled() -> None:
    server = Server()
    server.gate.clear()
    for _ in range(3):
        with server.client() as client:
            await send(client, frame(ApiKey.PRODUCE, LARGE))
    await until(lambda: server.requests.used_bytes == 3 * LARGE)
    await asyncio.sleep(0.01)
    assert server.requests.used_bytes == 3 * LARGE
    assert not any(each.is_cancelled for each in server.exchanges)
    server.gate.set()
    await server.ended()


async def test_cancelled_connections_give_back_what_they_hold() -> None:
    server = Server()
    server.gate.clear()
    with server.client() as one, server.client() as two, server.client() as three:
        await send(one, frame(ApiKey.PRODUCE) * 40)
        await send(two, frame(ApiKey.FETCH, LARGE))
        await send(three, struct.pack(">i", LARGE) + b"x")
        await asyncio.sleep(0.05)
        for task in server.tasks:
            task.cancel()
        await asyncio.wait(server.tasks, timeout=PATIENCE_S)
    server.tasks.clear()
    server.gate.set()
    await server.ended()


async def test_failed_produce_ends_the_connection_though_the_client_is_silent() -> None:
    server = Server()
    server.gate.clear()
    with server.client() as client:
        await send(client, frame(ApiKey.PRODUCE))
        await until(lambda: server.exchanges)
        await asyncio.sleep(0.02)
        server.exchanges[0].answer = None  # type: ignore[assignment]  # a defect: no pieces
        server.gate.set()
        assert await receive(client) == b""
        await server.ended()
