"""A limit on the bytes for each second that the cleaner reads and writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: log.cleaner.io.max.bytes.per.second of Kafka's default: no limit.
NO_LIMIT: Final = float("inf")
_BURST_S: Final = 0.3  # Kafka's throttler uses intervals of 300 ms


class Throttle:
    """A token bucket that fills at the given rate, up to 300 ms' worth; a caller waits until its bytes are available.

    `clock` and `sleep` are in seconds; the clock must be monotonic.
    """

    def __init__(
        self,
        bytes_per_second: float = NO_LIMIT,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"a rate of {bytes_per_second} bytes a second would never end")
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._burst = bytes_per_second * _BURST_S
        self._tokens = self._burst
        self._then = clock()

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may be read or written."""
        if self._rate == NO_LIMIT:
            return
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate) - size_bytes
        self._then = now
        if self._tokens < 0:
            self._sleep(-self._tokens / self._rate)
