"""The time that a request keeps the server busy, for the quota request_percentage.

Counted are the steps that its handler makes in the event loop, and blocking work that it has done in threads; not the
time in which it waits: for records, for a commit, for other requests. So a Fetch that waits for half a second uses
next to nothing of the quota. What a handler starts as a task of its own is counted only in threads.

Source of the quota: KIP-124, kafka.server.ClientRequestQuotaManager: 100 is the time of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


class RequestTime:
    """Adds up seconds."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0


_CURRENT: Final[ContextVar[RequestTime | None]] = ContextVar("kafkalog_request_time", default=None)


def timed_work(work: Callable[[], T]) -> Callable[[], T]:
    """`work`, whose time in a thread is added to that of the current request, if that is measured."""
    current = _CURRENT.get()
    if current is None:
        return work

    def timed() -> T:
        began = time.perf_counter()
        try:
            return work()
        finally:
            current.seconds += time.perf_counter() - began

    return timed


class Timed(Generic[T]):
    """Awaits a coroutine and adds the time of its steps to `spent`."""

    __slots__ = ("_coroutine", "_spent")

    def __init__(self, coroutine: Coroutine[Any, Any, T], spent: RequestTime) -> None:
        self._coroutine = coroutine
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, T]:
        _CURRENT.set(self._spent)
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            began = time.perf_counter()
            try:
                awaited = step()
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self._spent.seconds += time.perf_counter() - began
            try:
                yield awaited
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, None)
