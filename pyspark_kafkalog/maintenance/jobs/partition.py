"""One partition during a run: its maintenance lock, the time and the error of the work, and its report.

*The lock*: one run at a time works on a partition's closed segments; writers and readers never take it. It is an flock
on `<partition>/.maintenance-lock`, released when its holders end, however they end. A run in one process holds it
exclusively. A run whose driver delegates to tasks shares it with them:

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
import functools
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.storage.below_root import open_directory, open_file, refuse_link
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, is_out_of_space, pread, share_of_descriptors
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import quick_dataclass

_LOG: Final = logging.getLogger(__name__)

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


#: The reason for skipping a partition that another run works on.
ANOTHER_RUN: Final = "another run has the partition"

#: The counters that each action sets; the others belong to other actions.
COUNTERS: Final[Mapping[str, frozenset[str]]] = {
    "clean": frozenset(
        {
            "bytes_read",
            "bytes_kept",
            "bytes_dropped",
            "records_read",
            "records_kept",
            "records_dropped",
            "records_without_key",
            "segments_dropped",
        }
    ),
    "delete-records": frozenset(),
    "merge-segments": frozenset({"bytes_read", "segments_dropped"}),
    "reindex": frozenset({"bytes_read", "files_written"}),
    "retention": frozenset({"bytes_kept", "bytes_dropped", "segments_dropped"}),
    "tier": frozenset({"bytes_copied", "segments_copied"}),
    "verify": frozenset({"bytes_read", "records_read"}),
}
_ALL_COUNTERS: Final = frozenset[str]().union(*COUNTERS.values())


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One partition's outcome. `error` is None on success. `log_start_offset` is set by actions that may change it.

    The cleaner also reports the dirty ratio, the dirty range, the part of the bytes read that was rewritten, the number
    of shards of keys, and, if it did nothing, the reason (`skipped`). Retention counts the expired offsets of groups in
    a partition of `__consumer_offsets`, and the expired ids of clients in one of `__transaction_state`; of a partition
    with segments in remote storage, its counters count each offset once, and the local ones what goes from the file
    system. Verification counts segments, batches and findings. Tiering reports the offset after the last one in remote
    storage.
    """

    topic: str
    partition: int
    action: str
    bytes_read: int = 0
    bytes_kept: int = 0
    bytes_dropped: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_dropped: int = 0
    records_without_key: int = 0
    segments_dropped: int = 0
    bytes_copied: int = 0
    segments_copied: int = 0
    segments_read: int | None = None
    batches_read: int | None = None
    errors_found: int | None = None
    warnings_found: int | None = None
    files_written: int = 0
    log_start_offset: int | None = None
    local_log_start_offset: int | None = None
    local_bytes_dropped: int | None = None
    local_segments_dropped: int | None = None
    remote_end_offset: int | None = None
    offsets_expired: int | None = None
    transactional_ids_expired: int | None = None
    recopy_percent: float | None = None
    dirty_percent: float | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    key_shards: int | None = None
    skipped: str | None = None
    seconds: float = 0.0
    error: str | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the report is about."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_fine(self) -> bool:
        """Whether no operator action is needed."""
        return self.error is None and not self.errors_found

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in values(self).items())
        return f"PartitionReport({shown})"


def values(report: PartitionReport) -> dict[str, Any]:
    """The fields of a report that have a value, by name, in the order of the class."""
    names = _names_of(report.action)
    return {name: value for name in names if (value := getattr(report, name)) is not None}


@functools.cache
def _names_of(action: str) -> tuple[str, ...]:
    """The fields of the reports of an action, of which there are few."""
    others = _ALL_COUNTERS - COUNTERS.get(action, _ALL_COUNTERS)
    return tuple(field.name for field in fields(PartitionReport) if field.name not in others)


def empty_report(topic_partition: TopicPartition, action: str) -> PartitionReport:
    """The report of a partition about which nothing is known yet."""
    return PartitionReport(topic=topic_partition.topic, partition=topic_partition.partition, action=action)


def failed(topic_partition: TopicPartition, action: str, error: Exception) -> PartitionReport:
    """The report of a partition of which only the error is known."""
    return replace(empty_report(topic_partition, action), error=str(error))


def left_to_another_run(topic_partition: TopicPartition, action: str) -> PartitionReport:
    """The report of a partition whose maintenance lock another run holds."""
    return replace(empty_report(topic_partition, action), skipped=ANOTHER_RUN)


@dataclass(slots=True, eq=False)
class PartitionWork:
    """What a run knows of one partition; subclasses add the results of their steps."""

    topic_partition: TopicPartition
    error: Exception | None = None
    seconds: float = 0.0

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step of the work: its time is added up, and an error ends the work on this partition only.

        `what` is what the step is part of, for the warning.
        """
        began = time.perf_counter()
        try:
            yield
        except (KafkalogError, OSError) as error:
            _LOG.warning("%s: %s failed: %s", self.topic_partition, what, error)
            self.error = error
        finally:
            self.seconds += time.perf_counter() - began

    def report(self, action: str, **values: Any) -> PartitionReport:
        """The report with these values, and the time and the error of the steps."""
        error = None if self.error is None else str(self.error)
        return replace(empty_report(self.topic_partition, action), **values, seconds=self.seconds, error=error)
