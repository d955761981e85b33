"""Work of a test that a thread does while the test does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(work: Callable[[Callable[[], bool]], object], *, ends_within_s: float = 60) -> Iterator[None]:
    """`work(is_over)` runs in a thread during the block, and ends soon after `is_over` has become true.

    Raises what `work` raised, unless the block itself failed, and AssertionError if the thread has not ended in time.
    """
    is_over, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(is_over.is_set)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(ends_within_s)
    assert not thread.is_alive()
    if failures:
        raise failures[0]
