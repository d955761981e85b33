"""A log of what strangers can cause as often as they like: a bounded number of lines a second.

What was left out is counted in the next line, so that a flood is seen and the disk does not fill up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyspark_kafkalog.units import SECOND_MS

_LINES_A_SECOND: Final = 20


class BoundedLog:
    """Writes lines of level INFO to `log`. Used in the event loop's thread."""

    def __init__(self, log: logging.Logger, monotonic_ms: Callable[[], int]) -> None:
        self._log = log
        self._monotonic_ms = monotonic_ms
        self._second = -1
        self._written = 0
        self._left_out = 0

    def info(self, message: str, *values: object) -> None:
        """Log the message, unless there were too many in this second."""
        second = self._monotonic_ms() // SECOND_MS
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= _LINES_A_SECOND:
            self._left_out += 1
            return
        self._written += 1
        if self._left_out:
            message += f" ({self._left_out} lines before this one were left out)"
            self._left_out = 0
        self._log.info(message, *values)
