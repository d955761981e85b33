"""Timers of one process: what to call at which time. It has no thread and no clock; its owner calls `run_due`.

A key has one timer at most. Scheduling it again replaces it, which costs a heap entry: heartbeats do so all the time.
Replaced entries are dropped when they are due, or together once they outnumber the live ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Final

_STALE_KEPT: Final = 1000


class Timers:
    """Callbacks by key, each at its time in ms of the owner's monotonic clock."""

    def __init__(self, monotonic_ms: Callable[[], int], *, on_earlier: Callable[[], None] = lambda: None) -> None:
        """`on_earlier` is called when the next due time moves to an earlier one."""
        self._now_ms = monotonic_ms
        self._on_earlier = on_earlier
        self._heap: list[tuple[int, int, Hashable]] = []
        self._live: dict[Hashable, tuple[int, int, Callable[[], None]]] = {}
        self._count = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._live

    def __len__(self) -> int:
        return len(self._live)

    def schedule(self, key: Hashable, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay_ms`, instead of what the key was scheduled for."""
        due_ms = self._now_ms() + max(delay_ms, 0)
        self._count += 1
        self._live[key] = (due_ms, self._count, callback)
        is_earlier = not self._heap or due_ms < self._heap[0][0]
        heapq.heappush(self._heap, (due_ms, self._count, key))
        if len(self._heap) > 2 * len(self._live) + _STALE_KEPT:
            self._heap = [(due, count, each) for each, (due, count, _) in self._live.items()]
            heapq.heapify(self._heap)
        if is_earlier:
            self._on_earlier()

    def cancel(self, key: Hashable) -> None:
        self._live.pop(key, None)

    def next_due_ms(self) -> int | None:
        """When `run_due` has something to do; None: nothing is scheduled."""
        while self._heap and self._is_stale(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Call all that is due now, in the order of their times."""
        now_ms = self._now_ms()
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            _, _, key = heapq.heappop(self._heap)
            _, _, callback = self._live.pop(key)
            callback()

    def _is_stale(self, entry: tuple[int, int, Hashable]) -> bool:
        live = self._live.get(entry[2])
        return live is None or live[1] != entry[1]
