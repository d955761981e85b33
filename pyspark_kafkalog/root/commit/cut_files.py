"""The files of truncated batches, as they are, kept for users who need the records.

    <root>/diverged-<topic>-<partition>-<first>-<end>-<time ms>.log             of a root on a file system
    <root>/diverged/<topic>-<partition>-<first>-<end>-<time ms>.log             of one in an object store

Records below the high watermark of a follower were readable. When they diverge from the leader's, they are cut only on
request, and never silently: the file is durable before the commit that cuts them. `kafkalog dump-log` reads it; brokers
ignore it. Nothing removes it.

A crash before the commit, or a commit of unknown outcome, may leave a file although nothing was cut; a commit that
fails and is tried again leaves no more than one. No existing file is ever overwritten, not even one of the same
millisecond. `on_kept` is called with the name of each file before the commit, so that every cut can be reported.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.object_store.store import ObjectExistsError, ObjectStore
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

CUT_PREFIX: Final = "diverged"
_CUT_NAME: Final = re.compile(
    rf"(?:{CUT_PREFIX}-)?.+-\d{{1,10}}-(\d{{1,19}})-\d{{1,19}}-\d{{1,19}}\.log", re.DOTALL | re.ASCII
)
#: What an object holds at most, but for one batch that is larger.
_OBJECT_BYTES: Final = 64 * MIB

#: Takes a partition, the offsets [first, end) of what is kept of it, and the name of the file, or of the first of them.
KeptRecords: TypeAlias = Callable[[TopicPartition, int, int, str], None]


def ignore_kept(of: TopicPartition, first_offset: int, end_offset: int, name: str) -> None:
    """A `KeptRecords` that reports nothing."""


def cut_file_first_offset(name: str) -> int | None:
    """The first offset that the name of a cut file has, also of an object's last part; None for any other name."""
    found = _CUT_NAME.fullmatch(name)
    return int(found[1]) if found else None


class CutFiles(Protocol):
    """Keeps what the truncations of a commit cut, each range once, however often the commit is tried."""

    def save(self, of: TopicPartition, reader: LogReader, first_offset: int, end_offset: int) -> None:
        """Keep the batches with offsets in [first_offset, end_offset), durably. Raises OSError, DiskFormatError."""
        ...

    def settle(self) -> None:
        """The logs have changed: the same range may have other batches from now on."""
        ...


@contextlib.contextmanager
def saved_once(cut_files: CutFiles) -> Iterator[None]:
    """The block is an attempt to commit. What it saves is not saved again by the next one, if this one fails.

    Otherwise a follower that waits for room on its disk would fill it with copies of what it is about to cut.
    """
    try:
        yield
    except CommitStateUnknownError:
        cut_files.settle()
        raise
    cut_files.settle()


class LocalCutFiles:
    """Cut files in the directory `root`; `clock` returns ms since 1970. `on_kept` is called when a file is durable."""

    def __init__(self, root: Path, *, clock: Callable[[], int], fs: FileSystem, on_kept: KeptRecords) -> None:
        self._root = root
        self._clock = clock
        self._fs = fs
        self._on_kept = on_kept
        self._saved: dict[tuple[TopicPartition, int, int], Path] = {}
        self._tried_ms: dict[tuple[TopicPartition, int, int], int] = {}

    def save(self, of: TopicPartition, reader: LogReader, first_offset: int, end_offset: int) -> None:
        """See CutFiles. A file that somebody has removed meanwhile, for lack of room, is written again.

        A file that cannot be written has the same name each time that it is tried, so its error is the same one.
        """
        key = (of, first_offset, end_offset)
        tried_ms = self._tried_ms.setdefault(key, self._clock())
        saved = self._saved.get(key)
        if saved is not None and saved.exists():
            return
        fd, position, name = -1, 0, ""
        try:
            for data, _, _ in _batches(reader, first_offset, end_offset):
                if fd < 0:
                    fd, name = self._create(of, first_offset, end_offset, tried_ms)
                self._fs.pwrite_all(fd, data, position)
                position += len(data)
            if fd >= 0:
                self._fs.fsync(fd)
                self._fs.fsync_dir(self._root)
        except OSError:
            if name:  # a part of the records must not pass for all
                with contextlib.suppress(OSError):
                    self._fs.unlink(self._root / name)
            raise
        finally:
            if fd >= 0:
                self._fs.close(fd)
        if name:
            self._saved[key] = self._root / name
            self._on_kept(of, first_offset, end_offset, name)

    def settle(self) -> None:
        """See CutFiles."""
        self._saved.clear()
        self._tried_ms.clear()

    def _create(self, of: TopicPartition, first_offset: int, end_offset: int, since_ms: int) -> tuple[int, str]:
        for time_ms in count(since_ms):
            name = f"{CUT_PREFIX}-{_name(of, first_offset, end_offset, time_ms)}"
            try:
                return self._fs.open(self._root / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), name
            except FileExistsError:
                continue
        raise AssertionError


class StoredCutFiles:
    """Cut files in an object store: several for a long range; `on_kept` is called with the first one's key."""

    def __init__(self, store: ObjectStore, *, clock: Callable[[], int], on_kept: KeptRecords) -> None:
        self._store = store
        self._clock = clock
        self._on_kept = on_kept
        self._saved: set[tuple[TopicPartition, int, int]] = set()

    def save(self, of: TopicPartition, reader: LogReader, first_offset: int, end_offset: int) -> None:
        """See CutFiles."""
        if (of, first_offset, end_offset) in self._saved:
            return
        pieces: list[NDArray[np.uint8]] = []
        size_bytes, start_offset, next_offset = 0, first_offset, first_offset
        keys: list[str] = []
        for data, start, end in _batches(reader, first_offset, end_offset):
            if pieces and size_bytes + len(data) > _OBJECT_BYTES:
                keys.append(self._create(of, start_offset, next_offset, pieces))
                pieces, size_bytes, start_offset = [], 0, start
            pieces.append(np.array(data))
            size_bytes, next_offset = size_bytes + len(data), end
        if pieces:
            keys.append(self._create(of, start_offset, end_offset, pieces))
        self._saved.add((of, first_offset, end_offset))
        if keys:
            self._on_kept(of, first_offset, end_offset, keys[0])

    def settle(self) -> None:
        """See CutFiles."""
        self._saved.clear()

    def _create(self, of: TopicPartition, first_offset: int, end_offset: int, pieces: list[NDArray[np.uint8]]) -> str:
        body = np.concatenate(pieces).tobytes()
        for time_ms in count(self._clock()):
            key = f"{CUT_PREFIX}/{_name(of, first_offset, end_offset, time_ms)}"
            try:
                self._store.create(key, body)
            except ObjectExistsError:
                continue
            return key
        raise AssertionError


def _name(of: TopicPartition, first_offset: int, end_offset: int, time_ms: int) -> str:
    return f"{of}-{first_offset}-{end_offset}-{time_ms}.log"


def _batches(reader: LogReader, first_offset: int, end_offset: int) -> Iterator[tuple[NDArray[np.uint8], int, int]]:
    """The bytes of whole batches that overlap the range, some at a time, with their first and next offsets."""
    for run in reader.runs(first_offset, end_offset) if first_offset < end_offset else ():
        rows = run.batches[(run.batches["last_offset"] >= first_offset) & (run.batches["base_offset"] < end_offset)]
        if len(rows):
            start = int(rows["position"][0]) - run.position
            end = int(rows["position"][-1] + rows["size_bytes"][-1]) - run.position
            yield run.data[start:end], int(rows["base_offset"][0]), int(rows["last_offset"][-1]) + 1
