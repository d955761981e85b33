"""Threads that run one at a time in virtual time: the thread whose wait ends first runs next.

A seed always gives the same run, and a wait takes no time.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence


class VirtualThreads:
    """Runs bodies side by side. `now_s` is the virtual time; `wait` is for the bodies alone."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._order = itertools.count()
        self._is_idle = threading.Event()
        self._own = threading.local()

    def wait(self, seconds: float) -> None:
        """Let `seconds` pass for the body that calls this."""
        turn: threading.Event = self._own.turn
        turn.clear()
        self._wait_for(turn, self.now_s + seconds)
        self._is_idle.set()
        turn.wait()

    def run(self, bodies: Sequence[Callable[[], None]], *, until_s: float) -> None:
        """Run the bodies until all have returned or that time has come; those that have not are left behind."""
        for body in bodies:
            turn = threading.Event()
            self._wait_for(turn, self.now_s)
            threading.Thread(target=self._go, args=(body, turn), daemon=True).start()
        while self._waiting and self._waiting[0][0] <= until_s:
            self.now_s, _, turn = heapq.heappop(self._waiting)
            self._is_idle.clear()
            turn.set()
            self._is_idle.wait()

    def _wait_for(self, turn: threading.Event, at_s: float) -> None:
        heapq.heappush(self._waiting, (at_s, next(self._order), turn))

    def _go(self, body: Callable[[], None], turn: threading.Event) -> None:
        self._own.turn = turn
        turn.wait()
        try:
            body()
        finally:
            self._is_idle.set()
