"""Coroutines that begin at once, without a task.

A task begins with the event loop's next turn, and two or three objects of asyncio are made for it. The handler of a
Produce request has one short step before its batches wait for their commit, and one after it: making the tasks would
cost more than the steps, and the requests that a client has sent ahead have to submit their batches in their order.

A `PromptFuture` lets such a coroutine resume in the call that sets the result, instead of in the loop's next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from pyspark_kafkalog.server.prompt_future import PromptFuture

T = TypeVar("T")


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
