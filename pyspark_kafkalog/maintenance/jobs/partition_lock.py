"""A partition's maintenance lock: one run at a time works on its closed segments; writers and readers never take it.

An flock on `<partition>/.maintenance-lock`, released when its holders end, however they end. A run in one process holds
it exclusively. A run whose driver delegates to tasks shares it with them:

    driver   takes the exclusive lock, writes a random ticket into the file, then downgrades to a shared lock
    task     shares the lock as long as it works, and only if the ticket is still its driver's

So a task that outlives its driver excludes other runs until it has ended. A task that starts too late, when another run
has taken over the partition, finds another ticket, or none, and does nothing.

If a full disk has no inode or block for a lock file that does not exist yet, a run in one process locks the directory
instead. Every other run holds a shared lock on the directory as long as it has the lock file open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.storage.below_root import open_directory, open_file, refuse_link
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, is_out_of_space, pread, share_of_descriptors

LOCK_FILE: Final = ".maintenance-lock"
_TICKET_BYTES: Final = 32


def locks_at_once(most: int) -> int:
    """How many locks a run may hold: at most `most`, and what leaves three of four descriptors to other files."""
    return share_of_descriptors(8, most)  # a lock takes two


class MaintenanceLostError(KafkalogError, RuntimeError):
    """Another run has taken over the partition."""


@contextlib.contextmanager
def partition_lock(directory: Path, *, fs: FileSystem = LOCAL) -> Iterator[bool]:
    """Hold the exclusive lock for the block; False when another process holds it."""
    with contextlib.ExitStack() as held:
        try:
            fd = held.enter_context(_open(directory, fs))
        except OSError as error:
            if not is_out_of_space(error):
                raise
            is_mine = _lock_directory(directory, held, fcntl.LOCK_EX)
        else:
            is_mine = _share_directory(directory, held) and _try(fd, fcntl.LOCK_EX)
            if is_mine and os.fstat(fd).st_size:
                fs.truncate(fd, 0)  # invalidates the tickets of tasks of an earlier run
        yield is_mine


@contextlib.contextmanager
def shared_partition_lock(directory: Path, *, fs: FileSystem = LOCAL) -> Iterator[str | None]:
    """Hold the lock for the block, shared with tasks that get the ticket; None when another process holds it."""
    ticket = uuid.uuid4().hex
    with contextlib.ExitStack() as held:
        fd = held.enter_context(_open(directory, fs))
        is_mine = _share_directory(directory, held) and _try(fd, fcntl.LOCK_EX)
        if is_mine:
            fs.pwrite_all(fd, ticket.encode(), 0)
            # The downgrade is not atomic: another run may have held the lock in between.
            is_mine = _try(fd, fcntl.LOCK_SH) and _has_ticket(fd, ticket)
        yield ticket if is_mine else None


@contextlib.contextmanager
def join_partition_lock(directory: Path, ticket: str, *, fs: FileSystem = LOCAL) -> Iterator[None]:
    """In a task: share the lock for the block. Raises MaintenanceLostError when the ticket is no longer valid."""
    with _open(directory, fs) as fd:
        if not _try(fd, fcntl.LOCK_SH) or not _has_ticket(fd, ticket):
            raise MaintenanceLostError(f"another run has taken over {directory}")
        yield


@contextlib.contextmanager
def file_claim(path: Path, inode: int) -> Iterator[None]:
    """Keep other attempts at the same task from replacing the file at `path`, for the block.

    Raises MaintenanceLostError when another attempt holds the claim, or the file has been replaced.
    """
    fd = open_file(path, os.O_RDWR)
    try:
        if not _try(fd, fcntl.LOCK_EX) or os.fstat(fd).st_ino != inode or os.stat(path).st_ino != inode:
            raise MaintenanceLostError(f"another attempt works on {path}, or has replaced it")
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _open(directory: Path, fs: FileSystem) -> Iterator[int]:
    refuse_link(directory)
    fd = fs.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        # The lock is released even if closing fails, so an error here does not fail the work done under the lock.
        with contextlib.suppress(OSError):
            fs.close(fd)


def _share_directory(directory: Path, held: contextlib.ExitStack) -> bool:
    """Exclude runs that lock the directory instead of the file; False when one holds it."""
    try:
        return _lock_directory(directory, held, fcntl.LOCK_SH)
    except OSError:
        return True  # directories cannot be locked here, so no other run has locked it


def _lock_directory(directory: Path, held: contextlib.ExitStack, kind: int) -> bool:
    fd = open_directory(directory)
    held.callback(os.close, fd)
    held.callback(fcntl.flock, fd, fcntl.LOCK_UN)
    return _try(fd, kind)


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_ticket(fd: int, ticket: str) -> bool:
    return pread(fd, _TICKET_BYTES + 1, 0) == ticket.encode()
