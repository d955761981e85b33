"""Bounds the bytes of the requests that are in memory, over all connections (Kafka: queued.max.request.bytes).

A connection that would exceed the budget is not read until others have been answered; the client's TCP window fills up.
A request larger than the whole budget waits until it is alone.
"""

from __future__ import annotations

import asyncio
from collections import deque


class RequestBytes:
    """A budget of `limit_bytes`, given out in the order of the requests for it. Used in the event loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    async def acquire(self, size_bytes: int) -> None:
        """Wait until so many bytes are free, and take them."""
        if not self._waiting and self._fits(size_bytes):
            self._used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, turn)
        self._waiting.append(entry)
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

    def _fits(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes
