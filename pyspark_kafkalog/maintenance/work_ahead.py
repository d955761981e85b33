"""Doing the next items' work in threads while a caller is busy with one item's result.

For work that is mostly compiled and lets other threads run. Results come in the order of the items, and nothing but the
time it takes depends on how many threads there are.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

_THREADS_MAX: Final = 2
#: Items asked for beyond one more than there are threads: some take much longer, and results keep to their order. More
#: of them cost the processor's cache.
QUEUE_ITEMS: Final = 1

Item = TypeVar("Item")
Result = TypeVar("Result")


def spare_threads() -> int:
    """How many threads are worth having beside the caller's: none on one core, else two, since callers wait a lot."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _THREADS_MAX if cores > 1 else 0


def work_ahead(items: Iterator[Item], work: Callable[[Item], Result], *, threads: int) -> Generator[Result, None, None]:
    """work(item) of each item, in order. Items are asked for in the caller's thread, a few more than there are threads.

    What `items` or `work` raises is raised here, when it is that item's turn. When the caller stops early, this waits
    for the work that has begun; so close it before what the work uses goes.
    """
    if not threads:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, "work-ahead") as executor:
        under_way: deque[Future[Result]] = deque()
        try:
            for item in items:
                under_way.append(executor.submit(work, item))
                if len(under_way) > threads + QUEUE_ITEMS:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


class Turns:
    """Has threads that work on items side by side do one part of the work item by item, in the items' order."""

    def __init__(self) -> None:
        self._next = 0
        self._done: set[int] = set()
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        """Wait until all items before number `number` are done with that part."""
        with self._changed:
            self._changed.wait_for(lambda: self._next >= number)

    def done(self, number: int) -> None:
        """Item `number` is done with it, or will not come to it."""
        with self._changed:
            self._done.add(number)
            while self._next in self._done:
                self._done.remove(self._next)
                self._next += 1
            self._changed.notify_all()


class BufferPool:
    """Memory of one size that is used again, which spares the page faults of new memory. For one thread."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """At least `size_bytes`; more than the pool's size is memory that will not be used again."""
        if size_bytes <= self._size_bytes and self._free:
            return self._free.pop()
        return np.empty(max(size_bytes, self._size_bytes), np.uint8)

    def give(self, data: NDArray[np.uint8]) -> None:
        """Take back what `take` gave, or a slice of it."""
        buffer = data if data.base is None else data.base
        assert isinstance(buffer, np.ndarray)
        if len(buffer) == self._size_bytes:
            self._free.append(buffer)
