"""Runs file operations in parallel, in threads that the process keeps: starting them for each commit would cost most.

Meant only for calls that spend their time in the kernel: fsyncs, copies of much data. A forked child starts its own
threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, TypeVar

_THREADS: Final = 8

_Result = TypeVar("_Result")


class _Pools:
    """The pool of this process. A forked child drops its parent's pool, whose threads it does not have."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = -1
        self._pool: ThreadPoolExecutor | None = None

    def get(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None or self._pid != os.getpid():
                self._pool = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="kafkalog")
                self._pid = os.getpid()
            return self._pool

    def after_fork(self) -> None:
        self._lock = threading.Lock()


_POOLS: Final = _Pools()
os.register_at_fork(after_in_child=_POOLS.after_fork)


def in_parallel(tasks: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Run `tasks` in parallel; returns their results in order. If one raised, raises its error after all have ended."""
    if len(tasks) < 2:
        return [task() for task in tasks]
    pool = _POOLS.get()
    futures = [pool.submit(task) for task in tasks[1:]]
    try:
        first = tasks[0]()
    finally:
        # Also when interrupted: a task still running would write into files that the caller is about to close.
        wait(futures)
    return [first, *(future.result() for future in futures)]
