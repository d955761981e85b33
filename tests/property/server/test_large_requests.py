"""Requests with as many elements as a server reads, of every API: others are served while one is handled.

Counted are the calls that the event loop's thread makes from one turn of a task to its next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from types import FrameType
from typing import Any, Final

import pytest
from fakes.hostile_clients import TOPIC, batch_of, frame_of, sized

from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import INTEGER_FORMATS, FieldSpec
from pyspark_kafkalog.protocol.api import APIS, Api, ApiKey
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.security.open import open_or_create_root
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.server.run import Server
from pyspark_kafkalog.storage.names import encode_uuid

#: Values with which a request gets further than to the first check.
_VALUES: Final[Mapping[str, Any]] = {
    "acks": -1,
    "timeout_ms": 1000,
    "max_wait_ms": 0,
    "session_epoch": -1,
    "resource_type": 2,
    "num_partitions": 1,
    "replication_factor": -1,
    "count": 2,
    "generation_id_or_member_epoch": -1,
    "committed_offset": 1,
    "transaction_timeout_ms": 60_000,
    "rebalance_timeout_ms": 1000,
    "session_timeout_ms": 6000,
    "mechanism": 1,
    "iterations": 8192,
    "partition_max_bytes": 1000,
    "max_bytes": 1000,
    "replica_id": -1,
    "match_type": 2,
    "pattern_type_filter": 3,
    "resource_pattern_type": 3,
    "resource_pattern": 3,
    "operation": 3,
    "permission_type": 3,
    "transactional_id": None,
}


class LargeRequests:
    """Makes requests for `topic`, which has `records` (one batch) to be produced."""

    def __init__(self, topic: str, records: bytes) -> None:
        self._topic = topic
        self._records = records

    def of(self, api: Api, version: int, elements: int) -> Iterator[tuple[str, ApiMessage]]:
        """For each array of the API its path and a request in which it is long; other arrays have one element.

        All arrays together have `elements` at most.
        """
        fields = api.request.schema().spec.fields
        for path, below in _arrays(fields, version):
            count = (elements - len(path)) // (1 + below)
            made = self._struct(api.request, fields, version, path, count, 0)
            assert isinstance(made, ApiMessage)
            yield ".".join(path), made

    def _struct(
        self,
        cls: type[Message],
        fields: tuple[FieldSpec, ...],
        version: int,
        path: tuple[str, ...],
        count: int,
        index: int,
    ) -> Message:
        values = {}
        for field in fields:
            if version not in field.versions:
                continue
            on_path = bool(path) and field.attribute == path[0]
            if not field.is_array:
                values[field.attribute] = self._scalar(cls, field, version, index, is_element=False)
                continue
            size = count if on_path and len(path) == 1 else 1
            below = path[1:] if on_path else ()
            values[field.attribute] = tuple(
                self._struct(cls.structs()[field.attribute], field.struct, version, below, count, each + index)
                if field.struct is not None
                else self._scalar(cls, field, version, each + index, is_element=True)
                for each in range(size)
            )
        return cls(**values)

    def _scalar(self, cls: type[Message], field: FieldSpec, version: int, index: int, *, is_element: bool) -> Any:
        name = field.attribute
        if field.struct is not None:
            return self._struct(cls.structs()[name], field.struct, version, (), 0, index)
        if name in _VALUES and (_VALUES[name] is not None or version in field.nullable):
            return _VALUES[name]
        if field.element == "uuid":
            return encode_uuid(uuid.UUID(int=index + 1).bytes)
        if field.element == "records":
            return self._records
        if field.element == "bytes":
            return b"%032d" % index
        if field.element == "string":
            return self._topic if not index and name in ("name", "topic", "topic_name") else f"{name}-{index}"
        if field.element in INTEGER_FORMATS and (is_element or "partition" in name or name.endswith("index")):
            return index % (1 << 7 if field.element == "int8" else 1 << 15)
        default: Any = getattr(cls(), name)
        return default


def _arrays(fields: tuple[FieldSpec, ...], version: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """The path of each array, and the number of arrays below it."""
    for field in fields:
        if version in field.versions and field.is_array:
            inner = list(_arrays(field.struct or (), version))
            yield (field.attribute,), len(inner)
            for path, below in inner:
                yield (field.attribute, *path), below


#: A quarter of what operators' requests may have: what grows with the elements shows, and the test stays short.
ELEMENTS: Final = 20_000
CALLS_MAX: Final = 800_000
PARTITIONS: Final = 1000
#: APIs whose requests wait, or which are not served.
WITHOUT_ANSWER: Final = frozenset({ApiKey.FETCH_SNAPSHOT})


@dataclasses.dataclass
class Turns:
    """The calls of the event loop's thread between the turns of a task in it."""

    calls: list[int] = dataclasses.field(default_factory=list)
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
