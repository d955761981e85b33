"""A log of what can happen as often as strangers, or all clients at once, like: a bounded number of lines a second.

What was left out is counted in the next line, so that a flood is seen and the disk does not fill up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyspark_kafkalog.units import SECOND_MS

_LINES_A_SECOND: Final = 20


class BoundedLog:
    """Writes lines to `log`. Used in one thread."""

    def __init__(
        self, log: logging.Logger, monotonic_ms: Callable[[], int], *, lines_a_second: int = _LINES_A_SECOND
    ) -> None:
        self._log = log
        self._monotonic_ms = monotonic_ms
        self._lines_a_second = lines_a_second
        self._second = -1
        self._written = 0
        self._left_out = 0

    def info(self, message: str, *values: object) -> None:
        """Log the message, unless there were too many in this second."""
        self._write(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        """The same, as a warning."""
        self._write(logging.WARNING, message, values)

    def _write(self, level: int, message: str, values: tuple[object, ...]) -> None:
        second = self._monotonic_ms() // SECOND_MS
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= self._lines_a_second:
            self._left_out += 1
            return
        self._written += 1
        if self._left_out:
            message += f" ({self._left_out} lines before this one were left out)"
            self._left_out = 0
        self._log.log(level, message, *values)
