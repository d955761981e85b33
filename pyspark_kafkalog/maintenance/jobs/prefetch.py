"""Ordered prefetch: threads process the next items while the caller uses the result of one.

For work that is mostly compiled code and releases the GIL. Results are in the order of the items; the number of threads
affects only the time taken.
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
#: Items requested in advance beyond one more than the number of threads: some take much longer, and results are in
#: order. More of them would exceed the processor's cache.
QUEUE_ITEMS: Final = 1

Item = TypeVar("Item")
Result = TypeVar("Result")


def spare_threads() -> int:
    """The useful number of threads besides the caller's: none on one core, else two, since callers often wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _THREADS_MAX if cores > 1 else 0


def work_ahead(items: Iterator[Item], work: Callable[[Item], Result], *, threads: int) -> Generator[Result, None, None]:
    """work(item) for each item, in order. The caller's thread requests a few more items than there are threads.

    An error of `items` or `work` is raised when its item's turn comes. When the caller stops early, this waits for
    calls that have begun; so close it before the resources that `work` uses.
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
    """Makes threads that process items concurrently do one part of the work item by item, in order."""

    def __init__(self) -> None:
        self._next = 0
        self._done: set[int] = set()
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        """Wait until all items before `number` are done with that part."""
        with self._changed:
            self._changed.wait_for(lambda: self._next >= number)

    def done(self, number: int) -> None:
        """Item `number` is done with that part, or will not reach it."""
        with self._changed:
            self._done.add(number)
            while self._next in self._done:
                self._done.remove(self._next)
                self._next += 1
            self._changed.notify_all()


class BufferPool:
    """Reusable buffers of one size, which avoid the page faults of new memory. Not thread-safe."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """A buffer of at least `size_bytes`; one larger than the pool's size is not reused."""
        if size_bytes <= self._size_bytes and self._free:
            return self._free.pop()
        return np.empty(max(size_bytes, self._size_bytes), np.uint8)

    def give(self, data: NDArray[np.uint8]) -> None:
        """Return a buffer from `take`, or a slice of it."""
        buffer = data if data.base is None else data.base
        assert isinstance(buffer, np.ndarray)
        if len(buffer) == self._size_bytes:
            self._free.append(buffer)
