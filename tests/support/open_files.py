"""The open files of this process: how many there are, and a bound for how many more there may be."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def open_files_left(count: int) -> Iterator[None]:
    """`count` more files can be opened, whatever numbers the open ones have.

    RLIMIT_NOFILE bounds a descriptor's number, not how many are open, and a process that had sockets and closed some
    has gaps: the limit is set behind the `count` lowest free numbers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(count)]
    for descriptor in free:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors() -> int:
    """How many descriptors are open."""
    return len(os.listdir("/proc/self/fd"))


def descriptors_before() -> int:
    """How many are open, without those of earlier tests that only garbage collection closes: it might, in between."""
    gc.collect()
    return descriptors()
