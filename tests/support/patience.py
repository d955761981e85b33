"""Waits, with patience for a busy machine, for another thread, process or task, and threads that work meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

#: A wait that succeeds ends at once, so a long bound costs nothing but a failing test's time.
PATIENCE_S: Final = 120.0


def wait_until(condition: Callable[[], object], what: str = "it") -> None:
    """Return when the condition is true; an AssertionError that says `what` if it does not become so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} does not come true"
        time.sleep(0.02)


async def until(condition: Callable[[], object], what: str = "it") -> None:
    """As `wait_until`, while the other tasks of the event loop go on."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} does not come true"
        await asyncio.sleep(0.001)


@contextmanager
def meanwhile(work: Callable[[Callable[[], bool]], object], *, ends_within_s: float = 60) -> Iterator[None]:
    """`work(is_over)` runs in a thread during the block, and ends soon after `is_over` has become true.

    Raises what `work` raised, unless the block itself failed, and AssertionError if the thread has not ended in time.
    """
    is_over, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(is_over.is_set)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(ends_within_s)
    assert not thread.is_alive()
    if failures:
        raise failures[0]
