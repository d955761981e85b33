"""The clock of a root, for tests that move time themselves."""

from __future__ import annotations


class Clock:
    """A clock that stands still until a test sets `now_ms`."""

    def __init__(self, now_ms: int = 1_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms
