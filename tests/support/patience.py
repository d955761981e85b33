"""Waits for what another thread, process or task does in its own time, with patience for a busy machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
