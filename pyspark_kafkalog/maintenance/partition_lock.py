"""A partition's maintenance lock: one run at a time works on its closed segments; writers and readers never take it.

An flock on `<partition>/.maintenance-lock`, which goes when its holders end, however they end. A run that works in one
process holds it alone. One whose driver has tasks do the work shares it with them:

    driver   takes the lock alone, writes a random ticket into the file, then goes over to sharing the lock
    task     shares the lock as long as it works, and only if the ticket is still its driver's

Where a full disk has no inode or no block for the file of a lock that was never taken, a run in one process locks the
directory in its place. Every other run shares a lock on the directory as long as it has the file open.

So a task that outlives its driver keeps others away until it has ended, and one that begins too late, when another run
has taken the partition over, finds another ticket, or none, and does nothing.
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
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, is_out_of_space, pread
from pyspark_kafkalog.storage.listing import refuse_link

LOCK_FILE: Final = ".maintenance-lock"
_TICKET_BYTES: Final = 32


class MaintenanceLostError(KafkalogError, RuntimeError):
    """Another run has taken the partition over."""


@contextlib.contextmanager
def partition_lock(directory: Path, *, fs: FileSystem = LOCAL) -> Iterator[bool]:
    """Hold the lock alone for the block; False when somebody else has it."""
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
                fs.truncate(fd, 0)  # tasks of an earlier run that are still to begin find out
        yield is_mine


@contextlib.contextmanager
def shared_partition_lock(directory: Path, *, fs: FileSystem = LOCAL) -> Iterator[str | None]:
    """Hold the lock for the block, together with tasks that are given the ticket; None when somebody else has it."""
    ticket = uuid.uuid4().hex
    with contextlib.ExitStack() as held:
        fd = held.enter_context(_open(directory, fs))
        is_mine = _share_directory(directory, held) and _try(fd, fcntl.LOCK_EX)
        if is_mine:
            fs.pwrite_all(fd, ticket.encode(), 0)
            # Between the two others may have had it for a moment.
            is_mine = _try(fd, fcntl.LOCK_SH) and _has_ticket(fd, ticket)
        yield ticket if is_mine else None


@contextlib.contextmanager
def join_partition_lock(directory: Path, ticket: str, *, fs: FileSystem = LOCAL) -> Iterator[None]:
    """In a task: share the lock for the block. Raises MaintenanceLostError when the ticket is not good any more."""
    with _open(directory, fs) as fd:
        if not _try(fd, fcntl.LOCK_SH) or not _has_ticket(fd, ticket):
            raise MaintenanceLostError(f"another run has taken {directory} over")
        yield


@contextlib.contextmanager
def file_claim(path: Path, inode: int) -> Iterator[None]:
    """Keep other attempts at the same task away from what replaces the file at `path`.

    Raises MaintenanceLostError when one is at it, or the name is another file's by now.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not _try(fd, fcntl.LOCK_EX) or os.fstat(fd).st_ino != inode or os.stat(path).st_ino != inode:
            raise MaintenanceLostError(f"another attempt is at work on {path}, or has replaced it")
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
        # Whatever closing says, the lock is let go of; what was done under it is not to be called a failure for that.
        with contextlib.suppress(OSError):
            fs.close(fd)


def _share_directory(directory: Path, held: contextlib.ExitStack) -> bool:
    """Keep away those who have to lock the directory; False when one has."""
    try:
        return _lock_directory(directory, held, fcntl.LOCK_SH)
    except OSError:
        return True  # no directory can be locked here, by them neither


def _lock_directory(directory: Path, held: contextlib.ExitStack, kind: int) -> bool:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
