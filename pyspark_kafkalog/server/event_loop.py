"""The event loop that all requests share: loops that yield, coroutines without tasks, and the time that requests take.

A request may name a hundred thousand partitions. What a handler does for each takes microseconds, and the event loop
serves no other client meanwhile. So a handler of such a request lets others come first after some milliseconds
(`YieldBudget`): between two steps anything may happen, and what a step needs of the state that others change is looked
up in that step.

A task begins with the event loop's next turn, and takes two or three objects of asyncio. The handler of a Produce has
one short step before its batches wait for their commit, and one after it, and the requests that a client has sent ahead
submit their batches in order. So an `Eager` coroutine begins at once, and a `PromptFuture` resumes it without delay.

`RequestTime` is the time that a request keeps the server busy, for the quota request_percentage: the steps that its
handler makes in the event loop, and blocking work that it has done in threads; not the time in which it waits. What a
handler starts as a task of its own is counted only in threads. Source of the quota: KIP-124,
kafka.server.ClientRequestQuotaManager: 100 is the time of one thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_TURN_S: Final = 0.005
#: So many coroutines are awaited at the same time.
_TOGETHER_MAX: Final = 200


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class YieldBudget:
    """The time that a request takes in the event loop: others come first when it has had some milliseconds.

    With `is_whole` it has all the time: the request is so short that other clients do not wait for it.
    """

    __slots__ = ("_end_s", "_is_whole")

    def __init__(self, *, is_whole: bool = False) -> None:
        self._is_whole = is_whole
        self._end_s = time.perf_counter() + _TURN_S

    async def step(self) -> None:
        if not self._is_whole and time.perf_counter() > self._end_s:
            await asyncio.sleep(0)
            self._end_s = time.perf_counter() + _TURN_S


async def in_turns(elements: Iterable[T]) -> AsyncIterator[T]:
    """The elements, after each of which others may come first."""
    budget = YieldBudget()
    for each in elements:
        yield each
        await budget.step()


async def gather_in_turns(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of the coroutines, as of asyncio.gather; a limited number of them runs at the same time.

    `coroutines` is read as they begin. The first error is raised, and the coroutines after it do not begin.
    """
    remaining = iter(coroutines)
    results: list[T] = []
    while some := list(islice(remaining, _TOGETHER_MAX)):
        results += await asyncio.gather(*some)
    return results


async def results_in_turns(futures: Sequence[asyncio.Future[T]]) -> list[T | BaseException]:
    """The results of the futures, in order, or their errors. If this is cancelled, the futures are too.

    Most of them are done at the same time, and one after the other costs less than gathering them.
    """
    results: list[T | BaseException] = []
    try:
        for at, each in enumerate(futures, 1):
            try:
                results.append(await each)
            except Exception as error:
                results.append(error)
            if at % _TOGETHER_MAX == 0:
                await asyncio.sleep(0)
    except asyncio.CancelledError:
        for each in futures:
            if not each.cancel() and not each.cancelled():
                each.exception()  # it has been seen
        raise
    return results


class PromptFuture(asyncio.Future[T]):
    """Tasks wait for it as for any other future; one caller may be called earlier."""

    _waiting: tuple[contextvars.Context, Callable[[], None]] | None = None

    def call_promptly(self, callback: Callable[[], None]) -> None:
        """Call `callback`, which does not raise, in the present context as soon as this is done. For one caller."""
        assert self._waiting is None
        self._waiting = contextvars.copy_context(), callback

    def set_result(self, result: T) -> None:
        super().set_result(result)
        self._call()

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        super().set_exception(exception)
        self._call()

    def settle(self, outcome: T | BaseException) -> None:
        """Set the result, or the error that it is, unless this is cancelled."""
        if self.cancelled():
            return
        if isinstance(outcome, BaseException):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)

    def cancel(self, msg: Any = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._call()
        return is_cancelled

    def _call(self) -> None:
        if self._waiting is not None:
            context, callback = self._waiting
            self._waiting = None
            context.run(callback)


class Eager(Generic[T]):
    """Runs a coroutine up to its first wait when this is made, and the rest as what it waits for is done.

    `done` is called with this object at the end, which may be before the constructor returns. The coroutine cannot be
    cancelled, and is in no task: it must not use timeouts of asyncio.
    """

    __slots__ = ("_coroutine", "_done", "_error", "_value", "is_done")

    def __init__(self, coroutine: Coroutine[Any, Any, T], done: Callable[[Eager[T]], None]) -> None:
        self._coroutine = coroutine
        self._done = done
        self._value: T | None = None
        self._error: BaseException | None = None
        self.is_done = False
        self._step()

    def _step(self, awaited: asyncio.Future[Any] | None = None) -> None:
        """Go on until the next wait. A future that is awaited tells the coroutine its result by itself."""
        try:
            following: asyncio.Future[Any] | None = self._coroutine.send(None)
        except StopIteration as end:
            self._value = end.value
        except (Exception, asyncio.CancelledError) as error:
            self._error = error
        else:
            if following is None:
                asyncio.get_running_loop().call_soon(self._step)
            elif isinstance(following, PromptFuture):
                following.call_promptly(self._step)
            else:
                following.add_done_callback(self._step)
            return
        self.is_done = True
        done, self._done = self._done, _ignore  # two objects that refer to each other wait for the garbage collector
        done(self)

    def result(self) -> T:
        """What the coroutine has returned; raises what it has raised. Only when it is done."""
        if self._error is not None:
            raise self._error
        value: T = self._value  # type: ignore[assignment]  # None only if T is
        return value


def _ignore(ended: Eager[Any]) -> None:
    """Never called."""


class Begun(Generic[T]):
    """Awaits the rest of a coroutine that the current task has begun by `send`, which has returned `awaited`."""

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, awaited = self._coroutine, self._awaited
        while True:
            step: Callable[[], Any] = partial(coroutine.send, None)
            try:
                yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                step = partial(coroutine.throw, error)
            try:
                awaited = step()
            except StopIteration as done:
                result: T = done.value
                return result


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
