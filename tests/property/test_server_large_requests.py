"""Requests with as many elements as a server reads, of every API: others are served while one is handled.

Counted are the calls that the event loop's thread makes from one turn of a task to its next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import pytest
from hostile_clients import TOPIC, batch_of, frame_of, sized
from large_requests import LargeRequests

from pyspark_kafkalog.protocol.api import APIS, Api, ApiKey
from pyspark_kafkalog.security.open import open_or_create_root
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.server.run import Server

#: A quarter of what operators' requests may have: what grows with the elements shows, and the test stays short.
ELEMENTS: Final = 20_000
CALLS_MAX: Final = 800_000
PARTITIONS: Final = 1000
#: APIs whose requests wait, or which are not served.
WITHOUT_ANSWER: Final = frozenset({ApiKey.FETCH_SNAPSHOT})


@dataclass
class Turns:
    """The calls of the event loop's thread between the turns of a task in it."""

    calls: list[int] = field(default_factory=list)
    _called: int = 0

    async def watch(self) -> None:
        sys.setprofile(self._seen)
        while True:
            before = self._called
            await asyncio.sleep(0.001)
            self.calls.append(self._called - before)

    def _seen(self, frame: FrameType, event: str, argument: Any) -> None:
        self._called += event in ("call", "c_call")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Turns]]:
    """The port of a server in a thread of this process, and the turns of its event loop."""
    root = open_or_create_root(tmp_path_factory.mktemp("large") / "root")
    root.native().create_topic(TOPIC, PARTITIONS)
    turns, port = Turns(), Future[int]()
    stopped: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        server, stop = Server(root, ServerConfig(listen=Address("127.0.0.1", 0), flush="os")), asyncio.Event()
        stopped.set_result((asyncio.get_running_loop(), stop))
        port.set_result((await server.start()).port)
        watching = asyncio.create_task(turns.watch())
        await stop.wait()
        watching.cancel()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        yield port.result(30), turns
    finally:
        loop, stop = stopped.result(30)
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)


def exchange(port: int, frame: bytes) -> int:
    """The size of the answer to the frame; 0 if the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(frame)
        head = sock.recv(4, socket.MSG_WAITALL)
        if len(head) < len(b"size"):
            return 0
        size = left = struct.unpack(">i", head)[0]
        while left:
            received = len(sock.recv(min(left, 1 << 20)))
            assert received
            left -= received
        return int(size)


@pytest.mark.full
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: ApiKey(api.key).name)
def test_no_turn_of_a_request_with_many_elements_is_long(served: tuple[int, Turns], api: Api) -> None:
    port, turns = served
    large = LargeRequests(TOPIC, batch_of(b"x"))
    for version in {api.versions[-1], api.versions[len(api.versions) // 2]}:
        for path, request in large.of(api, version, ELEMENTS - 10):
            frame = sized(frame_of(api, version, request))
            turns.calls.clear()
            with contextlib.suppress(ConnectionError):
                size = exchange(port, frame)
                assert size or api.key in WITHOUT_ANSWER, path
            time.sleep(0.01)
            print(api.key, version, path, max(turns.calls, default=0))
            assert max(turns.calls, default=0) < CALLS_MAX, (version, path)
