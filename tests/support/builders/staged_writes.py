"""Writes by staged files: logs that take them, leftovers, and a file system that fails."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from builders.controlled import open_log_dir
from builders.engine_fixtures import files_of
from builders.indexes import rebuild_indexes
from builders.root_places import RootPlace
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.image import TransactionalIdImage
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.root.commit.staging import Staged
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, flushing_file_system
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, TaskFiles
from pyspark_kafkalog.storage.staged_parts import StagedFiles

COPIED, SPLICED, ROLLED = 2, 30, 60
T0 = 1_700_000_000_000
#: A segment takes 5 kB, so that a staged file of SPLICED batches becomes a segment by itself, and one of ROLLED batches
#: is copied and rolls inside.
SMALL_SEGMENTS = {"internal.segment.bytes": "5000", "index.interval.bytes": "300"}
ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


def make_log_dir(root: RootPlace) -> LogDir:
    """A new log directory with a topic of two partitions and small segments."""
    made = LogDir.create(root)
    made.create_topic("orders", partitions=2, configs=SMALL_SEGMENTS)
    return made


def stage(
    root: Path, write_id: str, batches: int = COPIED, *, topic_partition: TopicPartition = ORDERS, task: int = 0
) -> StagedFile:
    """`batches` record batches of 5 records, whose values name the write."""
    return _staged(StagingTask(root=root, write_id=write_id, task=task), topic_partition, batches)


def stage_in(
    log_dir: LogDir, write_id: str, batches: int = COPIED, *, topic_partition: TopicPartition = ORDERS
) -> Staged:
    """As `stage`, for either kind of root."""
    staging = log_dir.root.staging(write_id)
    topic_id = log_dir.topic(topic_partition.topic).topic_id or ""
    files = [_staged(staging.task, topic_partition, batches)]
    (staged,) = staging.hand_over(files, {topic_partition.topic: topic_id})
    return staged


def _staged(task: StagingTask, topic_partition: TopicPartition, batches: int) -> StagedFile:
    files = TaskFiles(task, topic_partition.topic, flushing_file_system(LOCAL, "os"))
    for first in range(0, batches * 5, 5):
        values = [b"%s %d" % (task.write_id.encode(), number) for number in range(first, first + 5)]
        data = encode_batch(
            [
                Record(offset=first + at, timestamp_ms=T0 + first + at, key=b"k", value=value)
                for at, value in enumerate(values)
            ]
        )
        files.append(topic_partition.partition, data, scan_batches(data, file="staged").batches)
    (staged,) = files.finish()
    return staged


def written_by(log_dir: LogDir, topic: str = "orders", partition: int = 0) -> list[str]:
    """The write ids in the order of the partition's records, which must be whole: one run of numbers each."""
    log_dir.refresh()
    values = [value.decode().split() for value in log_dir.read(topic, partition=partition)["value"].to_pylist()]
    runs = []
    for write_id, run in itertools.groupby(values, key=lambda each: each[0]):
        numbers = [int(number) for _, number in run]
        while numbers:
            end = next((at for at in range(1, len(numbers)) if numbers[at] == 0), len(numbers))
            assert numbers[:end] == list(range(end))
            numbers = numbers[end:]
            runs.append(write_id)
    return runs


def check_batches(path: Path, next_offset: int) -> tuple[int, NDArray[np.void]]:
    """Batches of a `.log` are valid and go on from `next_offset` without a gap; the offset after them, and they."""
    data = np.fromfile(path, dtype=np.uint8)
    scan = scan_batches(data, file=str(path))
    assert (scan.fault, scan.consumed_bytes) == (None, len(data))
    verify_crcs(data, scan.batches, data_position=0, file=str(path))
    for row in scan.batches:
        assert int(row["base_offset"]) == next_offset
        next_offset = int(row["last_offset"]) + 1
    return next_offset, scan.batches


def check_files(log_dir: LogDir) -> None:
    """Every batch of every partition is valid, offsets have no gap, and nothing lies past the high watermark."""
    log_dir.refresh()
    for topic in log_dir.topics():
        for partition in log_dir.topic(topic).partitions:
            next_offset = 0
            for path in sorted(partition.directory.glob(f"*{LOG_SUFFIX}")):
                next_offset, batches = check_batches(path, next_offset)
                assert all(0 <= int(row["leader_epoch"]) <= partition.leader_epoch for row in batches)
            assert next_offset == partition.high_watermark


def staged_left(log_dir: LogDir) -> list[str]:
    """The names of staged files; in an object store, whose writes leave them to the clean-up, none."""
    return sorted(path.name for path in log_dir.path.glob("*/*.staged")) if isinstance(log_dir.path, Path) else []


def known(log_dir: LogDir, transactional_id: str) -> TransactionalIdImage:
    root = LogDir.open(log_dir.path).root
    assert isinstance(root, NativeRoot)
    return root.store.image.transactional_ids[transactional_id]


class Failing(FileSystem):
    """Fails every call that `when` says to, with `error`; a short write writes half before."""

    def __init__(self, when: Callable[[str, str], bool], error: int = errno.ENOSPC, *, is_short: bool = False) -> None:
        self.when = when
        self.error = error
        self.is_short = is_short

    def _maybe_fail(self, call: str, path: Path | str) -> None:
        if self.when(call, str(path)):
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        if flags & os.O_CREAT:
            self._maybe_fail("open", path)
        return super().open(path, flags, mode)

    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        try:
            self._maybe_fail("write", _path_of(fd))
        except OSError:
            if self.is_short:
                super().pwrite_all(fd, bytes(data)[: len(bytes(data)) // 2], position)
            raise
        super().pwrite_all(fd, data, position)

    def copy_range(self, source_fd: int, source_position: int, fd: int, position: int, length: int) -> None:
        try:
            self._maybe_fail("copy", _path_of(fd))
        except OSError:
            if self.is_short:
                super().copy_range(source_fd, source_position, fd, position, length // 2)
            raise
        super().copy_range(source_fd, source_position, fd, position, length)

    def truncate(self, fd: int, length: int) -> None:
        self._maybe_fail("truncate", _path_of(fd))
        super().truncate(fd, length)

    def fsync(self, fd: int) -> None:
        self._maybe_fail("fsync", _path_of(fd))
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self._maybe_fail("fsync_dir", directory)
        super().fsync_dir(directory)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe_fail("rename", target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._maybe_fail("link", target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._maybe_fail("unlink", path)
        super().unlink(path)


class ClockedFileSystem(FileSystem):
    """The local file system, whose own clock stands at `now_ms`."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def touch(self, path: Path) -> int:
        os.utime(path, ns=(self.now_ms * 1_000_000, self.now_ms * 1_000_000))
        return self.now_ms * 1_000_000


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def failing_dir(log_dir: LogDir, fs: FileSystem) -> LogDir:
    return open_log_dir(log_dir.path, fs=fs)


NOW = T0 + 1_000_000


def make_directory(root: Path) -> Path:
    """An empty partition directory."""
    result = root / str(ORDERS)
    result.mkdir()
    return result


def config(**overrides: str) -> LogConfig:
    names = {name.replace("_", "."): value for name, value in overrides.items()}
    return LogConfig.from_properties({"internal.segment.bytes": "5000", "index.interval.bytes": "300", **names})


def staged(
    directory: Path,
    batches: int,
    *,
    task: int = 0,
    records: int = 5,
    producer_id: int = -1,
    epoch: int = -1,
    at_ms: int = T0,
) -> StagedFile:
    files = TaskFiles(StagingTask(root=directory.parent, write_id="w", task=task), ORDERS.topic, LOCAL)
    for batch in range(batches):
        first = batch * records
        data = encode_batch(
            [
                Record(offset=first + at, timestamp_ms=at_ms + first + at, key=b"k", value=b"value %d" % (first + at))
                for at in range(records)
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first if producer_id >= 0 else -1,
        )
        files.append(ORDERS.partition, data, scan_batches(data, file="staged").batches)
    (file,) = files.finish()
    return file


def append_staged(log: UnifiedLog, file: StagedFile, *, leader_epoch: int) -> None:
    """Append the file's batches, which are all of the log's partition."""
    with StagedFiles(log.directory.parent, [file]) as files:
        (part,) = files.parts()
        log.append_staged(part, leader_epoch=leader_epoch)


def resumed(directory: Path, state: LogState, log_config: LogConfig, fs: FileSystem = LOCAL) -> UnifiedLog:
    return UnifiedLog.resume(directory, log_config, state, clock=lambda: NOW, fs=fs)


def committed(directory: Path, state: LogState, file: StagedFile, log_config: LogConfig, epoch: int = 0) -> LogState:
    with resumed(directory, state, log_config) as log:
        append_staged(log, file, leader_epoch=epoch)
        log.flush()
        after = log.state()
    (directory / file.name).unlink()
    return after


def check_whole(directory: Path, log_config: LogConfig, end_offset: int) -> list[int]:
    """Every batch is valid, offsets have no gap, indexes are those of a rebuild; returns the base offsets."""
    next_offset = 0
    bases = []
    for path in sorted(directory.glob("*.log")):
        base_offset = int(path.stem)
        bases.append(base_offset)
        next_offset, _ = check_batches(path, next_offset)
        before = files_of(directory)
        rebuild_indexes(directory, base_offset, log_config)
        after = files_of(directory)
        assert before[f"{base_offset:020d}.index"] == after[f"{base_offset:020d}.index"]
        # Between commits the active segment has no closing time index entry.
        assert after[f"{base_offset:020d}.timeindex"].startswith(before[f"{base_offset:020d}.timeindex"])
        (directory / f"{base_offset:020d}.timeindex").write_bytes(before[f"{base_offset:020d}.timeindex"])
    assert next_offset == end_offset
    return bases


class Syncs(FileSystem):
    """Notes what is waited for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def fsync(self, fd: int) -> None:
        self.names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self.names.append(directory.name)
        super().fsync_dir(directory)
