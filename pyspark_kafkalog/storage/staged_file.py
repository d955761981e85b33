"""Staged data: encoded batches of one topic partition, written by one task, not yet committed.

    <root>/<topic>-<partition>/<write id>-<task>.staged

Kafka ignores the suffix. The file holds record batches back to back with offsets that count from 0; the commit assigns
the final ones. The task's result includes a table of the batches, so the commit need not scan the file. A crash before
the commit leaves the file behind; nothing refers to it.

Failed tasks, second copies of tasks and killed processes leave files that no commit will take. These go

    with the commit      files of the same write, of the same query up to the micro-batch, and of fenced incarnations,
                         in the partitions written to; where that does not list the directory (log/loader), with a later
                         commit
    with the abort       all files of the write; a second copy of a task that still runs may leave one
    with the next try    the write id of a micro-batch names query, batch and run: a task that writes to a partition
                         first removes what earlier runs have left there for this batch, or for batches before it,
                         if that was written before the task's run was planned
    by age               the others: see below

A task of a failed run that still writes thus leaves the files of the next run alone. Two runs of a query at once are an
error, and one of them is fenced.

*By age.* A write is alive while any of its files, in any partition, is younger than `staging.retention.ms`. Retention
looks at all partitions. Commits find staged files of other writes in the partitions that they write to, and check the
old ones among them afterwards. To avoid a search for the younger files of a long write each time, the old ones get the
modification time of its youngest. A crash in between leaves files to the next commit. Ages are measured by the clock of
the file system, which sets the files' times: a writer whose own clock is ahead must not take the files of active
writers for old ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.record.header import BATCH_DTYPE, Buffer
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, in_parallel
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    STAGED_SUFFIX,
    TopicPartition,
    child_path,
    parse_partition_dir,
    partition_path,
)
from pyspark_kafkalog.units import NS_PER_MS

#: Half of the 1024 files that a process may have open by default; finishing opens a few more.
_OPEN_FILES_MAX: Final = 512
_MICRO_BATCH: Final = re.compile(r"([0-9a-f]{32})b([0-9]{1,19})r([0-9a-f]{32})")
#: The directories, with query and run, from which this process has removed what earlier runs left; see `_first_visit`.
_VISITED: Final[dict[tuple[Path, str, str], None]] = {}
_VISITED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One finished `.staged` file. `batches` has BATCH_DTYPE: positions in this file, offsets counted from 0."""

    topic_partition: TopicPartition
    name: str
    size_bytes: int
    batches: NDArray[np.void]

    @property
    def offsets_count(self) -> int:
        """Number of offsets of its batches."""
        return int(self.batches["last_offset"][-1]) + 1 if len(self.batches) else 0

    @property
    def write_id(self) -> str:
        """The id of the write that the file belongs to."""
        return write_id_of(self.name)

    @property
    def records_count(self) -> int:
        return int(self.batches["records_count"].sum())

    def path(self, root: Path) -> Path:
        return child_path(partition_path(root, self.topic_partition), self.name)


def write_id_of(name: str) -> str:
    """The write id in a staged file's name."""
    return name.rpartition("-")[0]


def micro_batch_write_id(query_id: str, batch_id: int, run_id: str) -> str:
    """The write id of one run's try of a micro-batch."""
    return f"{_hex_id(query_id)}b{batch_id}r{_hex_id(run_id)}"


def _hex_id(text: str) -> str:
    """Spark's ids are UUIDs; other texts become one."""
    try:
        return uuid.UUID(text).hex
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_OID, text).hex


def is_superseded(write_id: str, by: str) -> bool:
    """Whether both are of micro-batches of one query, and `by` is another try of the batch, or of a later one."""
    mine, other = _MICRO_BATCH.fullmatch(by), _MICRO_BATCH.fullmatch(write_id)
    return (
        write_id != by
        and mine is not None
        and other is not None
        and mine[1] == other[1]
        and int(other[2]) <= int(mine[2])
    )


def remove_writes(paths: Iterable[Path], is_dead: Callable[[str], bool], fs: FileSystem) -> None:
    """Remove the staged files whose write id `is_dead`. Never raises OSError."""
    for path in paths:
        if is_dead(write_id_of(path.name)):
            _discard(path, fs)


def _remove_earlier_tries(directory: Path, task: StagingTask, fs: FileSystem) -> None:
    """Remove what earlier runs left in the directory, if the write is a micro-batch. Never raises OSError.

    Files that were written after the task's run was planned stay: a task of a failed run that still writes, when the
    query has been started again, does not remove what the later run is about to commit.
    """
    micro_batch = _MICRO_BATCH.fullmatch(task.write_id)
    if micro_batch is not None and _first_visit(directory, micro_batch[1], micro_batch[3]):
        earlier = [path for path in staged_in(directory) if (_modified_ns(path) or 0) < task.planned_ns]
        remove_writes(earlier, lambda other: is_superseded(other, task.write_id), fs)


def _first_visit(directory: Path, query: str, run: str) -> bool:
    """Whether this process writes to the directory for the first time in this run: later there is nothing to remove."""
    key = directory, query, run
    if key in _VISITED:
        return False
    while len(_VISITED) >= _VISITED_MAX:
        del _VISITED[next(iter(_VISITED))]
    _VISITED[key] = None
    return True


def discard_staged(root: Path, staged: Iterable[StagedFile], fs: FileSystem) -> None:
    """Remove staged files that are no longer needed; files that cannot be removed are left to clean-up.

    The files are removed in parallel: on a busy disk each unlink waits for the file system's journal.
    """
    in_parallel([partial(_discard, each.path(root), fs) for each in staged])


def _discard(path: Path, fs: FileSystem) -> None:
    with contextlib.suppress(OSError):
        fs.unlink_if_there(path)


class OpenStagedFiles:
    """Limits how many of a task's staged files are open at once, however many partitions the task writes to.

    When the limit is reached, the least recently written file is closed; its next write opens it again.
    """

    def __init__(self) -> None:
        self._writers: dict[StagedFileWriter, None] = {}  # most recently written last

    def use(self, writer: StagedFileWriter) -> None:
        """Register that `writer` is about to open its file."""
        self._writers.pop(writer, None)
        while len(self._writers) >= _OPEN_FILES_MAX:
            next(iter(self._writers)).close()
        self._writers[writer] = None

    def drop(self, writer: StagedFileWriter) -> None:
        """Register that `writer` has closed its file."""
        self._writers.pop(writer, None)


class StagedFileWriter:
    """Writes one staged file; `finish` makes it durable, `discard` removes it."""

    def __init__(
        self,
        root: Path,
        topic_partition: TopicPartition,
        *,
        write_id: str,
        task: int,
        fs: FileSystem = LOCAL,
        open_files: OpenStagedFiles | None = None,
    ) -> None:
        refuse_link(partition_path(root, topic_partition))
        self._fs = fs
        self._open_files = open_files if open_files is not None else OpenStagedFiles()
        self._topic_partition = topic_partition
        self._path = child_path(partition_path(root, topic_partition), f"{write_id}-{task}{STAGED_SUFFIX}")
        self._open_files.use(self)
        self._fd: int | None = None
        try:
            self._fd = fs.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:
            raise UnknownTopicError(
                f"{topic_partition}: expected its directory in {root}, found none: the topic was deleted since the "
                "write began"
            ) from None
        self._size_bytes = 0
        self._next_offset = 0
        self._tables: list[NDArray[np.void]] = []

    @property
    def next_offset(self) -> int:
        """The base offset of the next batch, counted from the file's first record."""
        return self._next_offset

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, data: Buffer, batches: NDArray[np.void]) -> None:
        """Write `data`, whose batches are in `batches` (positions in `data`, first base offset `next_offset`)."""
        if not len(batches):
            return
        assert int(batches["base_offset"][0]) == self._next_offset
        self._open_files.use(self)
        fd = self._opened()
        self._fs.pwrite_all(fd, data, self._size_bytes)
        table = np.array(batches, dtype=BATCH_DTYPE)
        table["position"] += self._size_bytes
        self._tables.append(table)
        written_bytes = len(memoryview(data).cast("B"))
        self._fs.start_writeback(fd, self._size_bytes, written_bytes)
        self._size_bytes += written_bytes
        self._next_offset = int(batches["last_offset"][-1]) + 1

    def finish(self, *, durable: bool = True) -> StagedFile:
        """Make the file durable and describe it. The name becomes durable with the commit that uses it.

        After `finish`, successful or not, `discard` still removes the file.
        """
        try:
            if durable:
                self._fs.fsync(self._opened())
        finally:
            self.close()
        batches = np.concatenate(self._tables) if self._tables else np.empty(0, dtype=BATCH_DTYPE)
        return StagedFile(self._topic_partition, self._path.name, self._size_bytes, batches)

    def discard(self) -> None:
        """Close and remove the file."""
        self.close()
        self._fs.unlink_if_there(self._path)

    def _opened(self) -> int:
        if self._fd is None:
            self._fd = self._fs.open(self._path, os.O_WRONLY)
        return self._fd

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        self._open_files.drop(self)
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._fs.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTask:
    """One task's part of a write: the names of its files are `<write_id>-<task>.staged`.

    `is_scratch`: `root` is a directory for these files alone, where the directories of partitions are created.
    `planned_ns`: when the driver planned a micro-batch, in ns since 1970; what other tries staged before is removed.
    """

    root: Path
    write_id: str
    task: int
    is_scratch: bool = False
    planned_ns: int = 0
    open_files: OpenStagedFiles = field(default_factory=OpenStagedFiles, repr=False, compare=False)

    def writer(self, topic_partition: TopicPartition, fs: FileSystem) -> StagedFileWriter:
        """A writer of the task's file for the partition. Raises UnknownTopicError if the partition has no directory."""
        directory = partition_path(self.root, topic_partition)
        if self.is_scratch:
            directory.mkdir(exist_ok=True)
        else:
            _remove_earlier_tries(directory, self, fs)
        return StagedFileWriter(
            self.root, topic_partition, write_id=self.write_id, task=self.task, fs=fs, open_files=self.open_files
        )


def remove_abandoned(root: Path, seen: Iterable[Path], *, now_ns: int, retention_ms: int, fs: FileSystem) -> None:
    """Remove the files of all abandoned writes that have a file in `seen`. Never raises OSError.

    `now_ns` is the time by the file system's clock (`root_lock.file_system_time_ns`).
    """
    too_old_ns = now_ns - retention_ms * NS_PER_MS
    suspects = {write_id_of(path.name) for path in seen if (_modified_ns(path) or too_old_ns + 1) <= too_old_ns}
    if not suspects:
        return
    files: dict[str, dict[Path, int]] = {}
    with contextlib.suppress(OSError):
        for path in staged_files(root):
            write_id = write_id_of(path.name)
            modified_ns = _modified_ns(path) if write_id in suspects else None
            if modified_ns is not None:
                files.setdefault(write_id, {})[path] = modified_ns
        for ages in files.values():
            _settle(ages, too_old_ns, fs)


def remove_committed_names(directory: Path, active_base_offset: int, fs: FileSystem) -> None:
    """Remove the `.staged` names of files that have become closed segments, which a crash right after a commit leaves.

    They are identified by sharing the file with a `.log`. Call this before such a `.log` is removed: afterwards the
    staged file would be taken for one that is still to be committed. The caller holds the root's lock.
    """
    listing = PartitionListing.read(directory)
    committed = {inode for base, inode in listing.files[LOG_SUFFIX].items() if base < active_base_offset}
    for name, inode in listing.staged.items():
        if inode in committed:
            fs.unlink_if_there(directory / name)


def _settle(ages: dict[Path, int], too_old_ns: int, fs: FileSystem) -> None:
    """Remove one write's files, or give them the modification time of the youngest."""
    youngest_ns = max(ages.values())
    for path, modified_ns in ages.items():
        with contextlib.suppress(OSError):
            if youngest_ns <= too_old_ns:
                fs.unlink_if_there(path)
            elif modified_ns <= too_old_ns:
                fs.set_modified(path, youngest_ns)


def staged_files(root: Path) -> Iterator[Path]:
    """The staged files in all partitions; a partition that cannot be listed is left out. Raises OSError."""
    with os.scandir(root) as directories:
        for directory in directories:
            if parse_partition_dir(directory.name) is not None and directory.is_dir(follow_symlinks=False):
                yield from staged_in(Path(directory.path))


def staged_in(directory: Path) -> list[Path]:
    """The staged files in the directory of a partition; none if it cannot be listed."""
    try:
        with os.scandir(directory) as entries:
            return [directory / entry.name for entry in entries if entry.name.endswith(STAGED_SUFFIX)]
    except OSError:
        return []


def _modified_ns(path: Path) -> int | None:
    """Time of the last write to the file in ns; None if it no longer exists."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None
