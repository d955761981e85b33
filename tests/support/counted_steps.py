"""The work of a piece of Python, in lines and calls, which no other load of the machine changes.

A step is a line that is executed, or a call or a resumed generator. Work inside one call of compiled code counts as one
step. Counting makes the code about twenty times slower.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class Steps:
    """The steps of a block, complete at its end."""

    count: int = 0

    def seen(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Count an event of `sys.settrace`, and ask for those of the lines below it."""
        self.count += event in ("call", "line")
        return self.seen


@contextmanager
def counted_steps() -> Iterator[Steps]:
    """Count the steps of this thread inside the functions that the block calls."""
    steps, before = Steps(), sys.gettrace()
    sys.settrace(steps.seen)
    try:
        yield steps
    finally:
        sys.settrace(before)
