"""Bounds the bytes of requests and of responses that are in memory, over all connections.

RequestBytes         a budget (Kafka: queued.max.request.bytes). A connection that would exceed it is not read until
                     other requests are handled; the client's TCP window fills up. A request larger than the whole
                     budget waits until it is alone. A request that has waited for records or for other clients for
                     some seconds makes room: its connection ends
RequestBytesBySize   a budget of its own for small requests: they do not wait for large ones, whose bytes are taken
                     when they are announced
ResponseBytes        responses that clients have not taken yet. A client cannot be made to: if there are too many
                     bytes, the connection that takes the longest ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark_kafkalog.units import KIB, SECOND_MS

#: Requests up to this size are read before their bytes are taken from a budget.
SMALL_REQUEST_BYTES: Final = 64 * KIB
#: The part of the budget that only small requests have.
_SMALL_REQUESTS_SHARE: Final = 4
#: A response may take so long, however many bytes wait.
_SENDING_S: Final = 5.0
#: A request may wait for records so long, whoever wants its bytes; more than clients wait by default (0.5 s).
_HANDLING_S: Final = 2.0
#: How often it is looked for requests that have waited longer while others want bytes.
_LOOK_S: Final = 0.5


class RequestBytes:
    """A budget of `limit_bytes`, given out in the order of the requests for it. Used in the event loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._idle: dict[object, tuple[int, float, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for bytes."""
        return bool(self._waiting)

    async def acquire(self, size_bytes: int) -> None:
        """Wait until so many bytes are free, and take them."""
        if not self._waiting and self._fits(size_bytes):
            self._used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, turn)
        self._waiting.append(entry)
        if self._timer is None:
            self._make_room()
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif not turn.cancelled():
                self.release(size_bytes)  # its turn came at the same moment
            raise

    def release(self, size_bytes: int) -> None:
        """Give the bytes back."""
        self._used_bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._used_bytes += size
                turn.set_result(None)

    @contextmanager
    def idle(self, size_bytes: int, give_up: Callable[[], None]) -> Iterator[None]:
        """Notes that a request of so many bytes waits for something while the block runs.

        `give_up`, which does not raise, ends it if others need its bytes.
        """
        key = object()
        self._idle[key] = size_bytes, asyncio.get_running_loop().time(), give_up
        try:
            yield
        finally:
            self._idle.pop(key, None)

    def _make_room(self) -> None:
        """Give up requests that wait the longest, as many as the others need; again while there is no room."""
        self._timer = None
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        missing_bytes = self._used_bytes + sum(size for size, _ in self._waiting) - self._limit_bytes
        for key, (size_bytes, began_s, give_up) in list(self._idle.items()):
            if missing_bytes <= 0 or began_s > loop.time() - _HANDLING_S:
                break
            del self._idle[key]
            missing_bytes -= size_bytes
            give_up()
        self._timer = loop.call_later(_LOOK_S, self._make_room)

    def _fits(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes


class RequestBytesBySize:
    """Two budgets, which have `limit_bytes` together."""

    def __init__(self, limit_bytes: int) -> None:
        small_bytes = limit_bytes // _SMALL_REQUESTS_SHARE
        self._small = RequestBytes(small_bytes)
        self._large = RequestBytes(limit_bytes - small_bytes)

    @property
    def used_bytes(self) -> int:
        return self._small.used_bytes + self._large.used_bytes

    def of(self, size_bytes: int) -> RequestBytes:
        """The budget of requests of this size."""
        return self._small if size_bytes <= SMALL_REQUEST_BYTES else self._large


class ResponseBytes:
    """The responses that are being sent, the oldest first. Used in the event loop's thread."""

    def __init__(self, limit_bytes: int, monotonic_ms: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._monotonic_ms = monotonic_ms
        self._sending: dict[object, tuple[int, int, Callable[[], None]]] = {}
        self.used_bytes = 0

    @contextmanager
    def sending(self, size_bytes: int, abort: Callable[[], None]) -> Iterator[None]:
        """Counts a response while the block runs; `abort`, which does not raise, ends its connection."""
        key = object()
        self._sending[key] = size_bytes, self._monotonic_ms(), abort
        self.used_bytes += size_bytes
        try:
            self._make_room()
            yield
        finally:
            self._forget(key)

    def _make_room(self) -> None:
        latest_ms = self._monotonic_ms() - _SENDING_S * SECOND_MS
        while self.used_bytes > self._limit_bytes:
            key, (_, began_ms, abort) = next(iter(self._sending.items()))
            if began_ms > latest_ms:
                break
            self._forget(key)
            abort()

    def _forget(self, key: object) -> None:
        size_bytes = self._sending.pop(key, (0,))[0]
        self.used_bytes -= size_bytes
