"""Requests to the handlers of a server without its sockets: encoded and decoded as on the wire.

with ReadServer(log_dir) as server:
    response = server.call(ApiKey.FETCH, 12, FetchRequest(...))
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import TracebackType
from typing import TypeVar, cast

from fakes.unlimited import NoTraffic, unlimited
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.protocol.api import (
    ApiKey,
    decode_response,
    encode_request,
    encode_response,
    find_api,
    parse_request,
)
from pyspark_kafkalog.protocol.messages.api_message import ApiMessage
from pyspark_kafkalog.protocol.messages.records import PartitionData
from pyspark_kafkalog.record.header import CONTROL_MASK
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.server.committer import Committer
from pyspark_kafkalog.server.context import Cluster, Handler, Request, ServerContext, Session
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions
from pyspark_kafkalog.server.roles import read_handlers
from pyspark_kafkalog.server.sending import FileSlice
from pyspark_kafkalog.storage.names import TopicPartition

_M = TypeVar("_M", bound=ApiMessage)
CORRELATION_ID = 77


def kept_batches(answer: PartitionData) -> list[int]:
    """Base offsets of the data batches that a consumer with read_committed keeps (CompletedFetch)."""
    coming = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
    aborted: set[int] = set()
    kept = []
    for batch in scan_batches(bytes(answer.records or b""), file="answer").batches:
        while coming and coming[0][0] <= batch["last_offset"]:
            aborted.add(coming.pop(0)[1])
        producer_id = int(batch["producer_id"])
        if batch["attributes"] & CONTROL_MASK:
            aborted.discard(producer_id)
        elif producer_id not in aborted:
            kept.append(int(batch["base_offset"]))
    return kept


class Rights:
    """A Guard that denies what is listed."""

    def __init__(self) -> None:
        self.denied: set[tuple[AclOperation, str]] = set()

    def allows(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        logs_denial: bool = True,
    ) -> bool:
        return (operation, name) not in self.denied


class Waiters:
    """The waiters of one loop; `subscribed` is set with each subscription."""

    def __init__(self) -> None:
        self.events: dict[asyncio.Event, frozenset[TopicPartition]] = {}
        self.subscribed = threading.Event()

    def subscribe(self, partitions: frozenset[TopicPartition]) -> asyncio.Event:
        event = asyncio.Event()
        self.events[event] = partitions
        self.subscribed.set()
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        del self.events[event]

    def notify(self, partitions: frozenset[TopicPartition] | None) -> None:
        for event, waited in self.events.items():
            if partitions is None or partitions & waited:
                event.set()


class FetchedBytes(NoTraffic):
    """The bytes of records in responses, by topic."""

    def __init__(self) -> None:
        self.by_topic: Counter[str] = Counter()

    def fetched(self, topic: str, *, size_bytes: int) -> None:
        self.by_topic[topic] += size_bytes


class ReadServer:
    """The handlers of readers over the root of `log_dir`."""

    def __init__(self, log_dir: LogDir) -> None:
        root = log_dir.root
        self.rights = Rights()
        self.waiters = Waiters()
        self.traffic = FetchedBytes()
        self._executor = ThreadPoolExecutor(4)
        self.now_ms = 0
        self.sessions = FetchSessions(count(1).__next__, lambda: self.now_ms)
        self.handlers: Mapping[ApiKey, Handler] = read_handlers(root, self.sessions)
        self.context = ServerContext(
            root=root,
            native=root if isinstance(root, NativeRoot) else None,
            cluster=cast(Cluster, None),
            committer=cast(Committer, None),
            guard=self.rights,
            waiters=self.waiters,
            executor=self._executor,
            clock=lambda: int(time.time() * 1000),
            monotonic_ms=lambda: int(time.monotonic() * 1000),
            **unlimited(traffic=self.traffic),
        )

    def __enter__(self) -> ReadServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._executor.shutdown()

    def call(self, key: ApiKey, version: int, body: ApiMessage, response: type[_M]) -> _M:
        """The response to a request of its own loop."""
        return asyncio.run(self.answer(key, version, body, response))

    async def answer(self, key: ApiKey, version: int, body: ApiMessage, response: type[_M]) -> _M:
        """The response, as a client decodes it from the bytes that it gets."""
        return decode_response(find_api(key), version, await self.frame(key, version, body), response)[1]

    async def frame(self, key: ApiKey, version: int, body: ApiMessage) -> bytes:
        """The bytes of the response behind its size."""
        api = find_api(key)
        sent = b"".join(cast("list[bytes]", encode_request(api, version, CORRELATION_ID, "test", body)))
        parsed = parse_request(sent[4:])
        request = Request(
            api_key=key, api_version=version, client_id="test", body=parsed.body(), session=Session("127.0.0.1", 9)
        )
        answered = await cast("Callable[..., Awaitable[ApiMessage]]", self.handlers[key])(self.context, request)
        pieces = encode_response(api, version, CORRELATION_ID, answered)
        data = b"".join(each.read() if isinstance(each, FileSlice) else bytes(cast(bytes, each)) for each in pieces)
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        return data[4:]
