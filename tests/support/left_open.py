"""Closes what a test leaves open: the files of a root's writers, which no garbage collection closes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

_LEFT_OPEN: Final = ExitStack()


def close_at_the_end(close: Callable[[], None]) -> None:
    """Call `close` when the test that runs has ended, whether it was called before or not."""
    _LEFT_OPEN.callback(close)


def close_what_is_left_open() -> None:
    """Called between two tests."""
    _LEFT_OPEN.close()
