"""The clock of an event loop, which a test moves on."""

from __future__ import annotations

import asyncio

_TURNS = 5


class LoopClock:
    """Moves the clock of the loop that runs, so that what is due in a minute need not be waited for."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        machine_s = loop.time
        self._ahead_s = 0.0
        loop.time = lambda: machine_s() + self._ahead_s  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Let that time pass, and let run what is due then."""
        for step_s in (0.0, seconds):
            self._ahead_s += step_s
            for _ in range(_TURNS):  # for tasks that begin, for timers, and for what they wake
                await asyncio.sleep(0)
