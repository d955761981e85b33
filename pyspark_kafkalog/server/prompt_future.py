"""A future that tells its result in the call that sets it.

A coroutine that waits for a future resumes in the event loop's next turn, which costs as much as handling a small
request. A request that is no task, such as a Produce (connections/eager.py), can resume at once.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


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
