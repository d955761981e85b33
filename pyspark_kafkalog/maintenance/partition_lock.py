"""A partition's maintenance lock: one run at a time works on its closed segments; writers and readers never take it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem

LOCK_FILE: Final = ".maintenance-lock"


@contextlib.contextmanager
def partition_lock(directory: Path, *, fs: FileSystem = LOCAL) -> Iterator[bool]:
    """Hold the lock for the block; False when somebody else has it."""
    fd = fs.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        with contextlib.suppress(OSError):
            fs.close(fd)
