"""The default clock."""

from __future__ import annotations

import time


def time_ms() -> int:
    """Wall clock time in ms since 1970."""
    return time.time_ns() // 1_000_000
