"""Staged data: encoded batches of one topic, written by one task, not yet committed.

    <root>/<topic>-<partition>/<write id>-<task>.staged       batches of any partitions of the topic, in the directory
                                                              of the partition that the task wrote to first
    <root>/<topic>-<partition>/<write id>-<task>own.staged    the further batches of this partition alone, once it has
                                                              more than `SHARED_BYTES`

So a task has one file, however many partitions it writes to, and another one for each MiB at most. The commit copies
batches of the first kind; a large file of the second kind can become a segment.

Kafka ignores the suffix. The files hold record batches back to back. Offsets count from 0 in each partition; the commit
assigns the final ones. The task's result includes a table of the batches, so the commit need not scan the files
(staged_parts.py). A crash before the commit leaves the files behind; nothing refers to them.

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
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.below_root import refuse_link
from pyspark_kafkalog.storage.filesystem import FileSystem, in_parallel
from pyspark_kafkalog.storage.names import (
    LOG_SUFFIX,
    STAGED_SUFFIX,
    TopicPartition,
    child_path,
    parse_partition_dir,
    partition_path,
)
from pyspark_kafkalog.units import NS_PER_MS
from pyspark_kafkalog.values import dataclass

#: What a task stages in one partition before the partition gets a file of its own. The commit copies this, and copying
#: it costs less than a millisecond.
SHARED_BYTES: Final = 1 << 20
#: Half of the 1024 files that a process may have open by default; finishing opens a few more.
_OPEN_FILES_MAX: Final = 512
#: Before the suffix in the name of a file with the batches of one partition alone.
_OWN: Final = "own"
_MESSAGE_LEVEL: Final = 1
_MICRO_BATCH: Final = re.compile(r"([0-9a-f]{32})b([0-9]{1,19})r([0-9a-f]{32})")
#: The directories, with query and run, from which this process has removed what earlier runs left; see `_first_visit`.
_VISITED: Final[dict[tuple[Path, str, str], None]] = {}
_VISITED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class StagedFile:
    """One finished `.staged` file in the directory of `topic_partition`.

    `batches` has BATCH_DTYPE, in the order of the appends: positions in this file, offsets counted from 0 in each
    partition. `partitions` has the partition of each batch. `topic_id`: the topic's when it was staged; '' if unknown.
    """

    topic_partition: TopicPartition
    name: str
    size_bytes: int
    batches: NDArray[np.void]
    partitions: NDArray[np.int32]
    topic_id: str = ""

    def __reduce__(self) -> tuple[Callable[..., StagedFile], tuple[object, ...]]:
        """Compressed by column: the files of all tasks travel to the driver at once."""
        columns = [self.batches[name].tobytes() for name in BATCH_DTYPE.names or ()]
        packed = zlib.compress(b"".join((*columns, self.partitions.tobytes())), _MESSAGE_LEVEL)
        return _unpacked, (self.topic_partition, self.name, self.size_bytes, self.topic_id, packed)

    @property
    def write_id(self) -> str:
        """The id of the write that the file belongs to."""
        return write_id_of(self.name)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topic of its batches, as a data object has several."""
        return (self.topic_partition.topic,)

    def path(self, root: Path) -> Path:
        return child_path(partition_path(root, self.topic_partition), self.name)


def _unpacked(topic_partition: TopicPartition, name: str, size_bytes: int, topic_id: str, packed: bytes) -> StagedFile:
    columns = zlib.decompress(packed)
    count = len(columns) // (BATCH_DTYPE.itemsize + np.dtype(np.int32).itemsize)
    batches = np.empty(count, BATCH_DTYPE)
    at = 0
    for column in BATCH_DTYPE.names or ():
        batches[column] = np.frombuffer(columns, BATCH_DTYPE[column], count, at)
        at += count * BATCH_DTYPE[column].itemsize
    partitions = np.frombuffer(columns, np.int32, count, at)
    return StagedFile(topic_partition, name, size_bytes, batches, partitions, topic_id)


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
        self, path: Path, topic_partition: TopicPartition, *, fs: FileSystem, open_files: OpenStagedFiles
    ) -> None:
        refuse_link(path.parent)
        self._fs = fs
        self._open_files = open_files
        self._topic_partition = topic_partition
        self._path = path
        self._open_files.use(self)
        self._fd: int | None = None
        try:
            self._fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:
            raise UnknownTopicError(
                f"{topic_partition}: expected its directory in {path.parent.parent}, found none: the topic was deleted "
                "since the write began"
            ) from None
        self._size_bytes = 0
        self._tables: list[NDArray[np.void]] = []
        self._partitions: list[NDArray[np.int32]] = []

    def append(self, partition: int, data: Buffer, batches: NDArray[np.void]) -> None:
        """Write `data`, the batches of a partition that are in `batches` (positions in `data`)."""
        self._open_files.use(self)
        fd = self._opened()
        self._fs.pwrite_all(fd, data, self._size_bytes)
        table = np.array(batches, dtype=BATCH_DTYPE)
        table["position"] += self._size_bytes
        self._tables.append(table)
        self._partitions.append(np.full(len(table), partition, np.int32))
        written_bytes = len(memoryview(data).cast("B"))
        self._fs.start_writeback(fd, self._size_bytes, written_bytes)
        self._size_bytes += written_bytes

    def finish(self) -> StagedFile:
        """Make the file durable and describe it. The name becomes durable with the commit that uses it.

        After `finish`, successful or not, `discard` still removes the file.
        """
        try:
            self._fs.fsync(self._opened())
        finally:
            self.close()
        batches, partitions = np.concatenate(self._tables), np.concatenate(self._partitions)
        return StagedFile(self._topic_partition, self._path.name, self._size_bytes, batches, partitions)

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
    """One task's part of a write: its id is in the names of the files.

    `is_scratch`: `root` is a directory for these files alone, which no commit links: all batches are in shared files.
    `planned_ns`: when the driver planned a micro-batch, in ns since 1970; what other tries staged before is removed.
    """

    root: Path
    write_id: str
    task: int
    is_scratch: bool = False
    planned_ns: int = 0
    open_files: OpenStagedFiles = field(default_factory=OpenStagedFiles, repr=False, compare=False)

    def begin(self, topic_partition: TopicPartition, fs: FileSystem) -> None:
        """The task is about to stage its first batches of the partition: remove what earlier tries left there."""
        directory = partition_path(self.root, topic_partition)
        if not self.is_scratch:
            _remove_earlier_tries(directory, self, fs)

    def writer(self, topic_partition: TopicPartition, fs: FileSystem, *, is_own: bool = False) -> StagedFileWriter:
        """A writer of a file in the partition's directory, for it alone if `is_own`.

        Raises UnknownTopicError if the partition has no directory.
        """
        directory = partition_path(self.root, topic_partition)
        if self.is_scratch:
            directory.mkdir(exist_ok=True)
        name = f"{self.write_id}-{self.task}{_OWN if is_own else ''}{STAGED_SUFFIX}"
        path = child_path(directory, name)
        return StagedFileWriter(path, topic_partition, fs=fs, open_files=self.open_files)


class TaskFiles:
    """The staged files of `task` for one topic; see the top of this module for the file that a batch goes to."""

    def __init__(self, task: StagingTask, topic: str, fs: FileSystem) -> None:
        self._task = task
        self._topic = topic
        self._fs = fs
        self._shared: StagedFileWriter | None = None
        self._own: dict[int, StagedFileWriter] = {}
        self._shared_bytes: dict[int, int] = {}
        self._next_offsets: dict[int, int] = {}

    def next_offset(self, partition: int) -> int:
        """The base offset of the partition's next batch, counted from the task's first record in it."""
        return self._next_offsets.get(partition, 0)

    def append(self, partition: int, data: Buffer, batches: NDArray[np.void]) -> None:
        """Write `data`, whose batches are in `batches` (positions in `data`, first base offset `next_offset`).

        Raises UnknownTopicError if the topic was deleted.
        """
        assert int(batches["base_offset"][0]) == self.next_offset(partition)
        self._writer(partition, len(memoryview(data).cast("B"))).append(partition, data, batches)
        self._next_offsets[partition] = int(batches["last_offset"][-1]) + 1

    def _writer(self, partition: int, size_bytes: int) -> StagedFileWriter:
        """The file for the next `size_bytes` of the partition."""
        own = self._own.get(partition)
        if own is not None:
            return own
        topic_partition = TopicPartition(self._topic, partition)
        if partition not in self._shared_bytes:
            self._task.begin(topic_partition, self._fs)
        shared_bytes = self._shared_bytes.get(partition, 0) + size_bytes
        if shared_bytes > SHARED_BYTES and not self._task.is_scratch:
            own = self._own[partition] = self._task.writer(topic_partition, self._fs, is_own=True)
            return own
        self._shared_bytes[partition] = shared_bytes
        if self._shared is None:
            self._shared = self._task.writer(topic_partition, self._fs)
        return self._shared

    def finish(self) -> list[StagedFile]:
        """The finished files, in the order in which the commit appends them. After an error `discard` removes them."""
        finished = in_parallel([each.finish for each in self._writers()])
        self._shared, self._own = None, {}
        return finished

    def discard(self) -> None:
        """Remove all files, unless `finish` has completed."""
        for each in self._writers():
            each.discard()
        self._shared, self._own = None, {}

    def _writers(self) -> list[StagedFileWriter]:
        shared = [] if self._shared is None else [self._shared]
        return [*shared, *(self._own[partition] for partition in sorted(self._own))]


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
