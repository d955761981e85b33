"""A bound of bytes a second over all fetchers: a bucket of tokens that holds those of one second."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RateLimit:
    """Says how long to pause after bytes were taken; for several threads. `bytes_per_s` None: no bound."""

    def __init__(self, bytes_per_s: int | None, monotonic_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._tokens = float(bytes_per_s or 0)
        self._filled_s = monotonic_s()

    def take(self, size_bytes: int) -> float:
        """Note that so many bytes were taken; returns the seconds to pause before more are."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            now_s = self._monotonic_s()
            filled = self._tokens + (now_s - self._filled_s) * self._bytes_per_s
            self._tokens = min(filled, float(self._bytes_per_s)) - size_bytes
            self._filled_s = now_s
            return max(-self._tokens / self._bytes_per_s, 0.0)
