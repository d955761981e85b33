"""Parts of a write: the batches that its staged files hold for each partition, as the commit and uploads take them.

A task stages the batches of many partitions in one file, so a part is spread over the files of all tasks. `StagedFiles`
opens each file once and keeps it open until all parts are read, as long as the process may have so many files open.
Nothing is written here: a crash leaves the staged files as they are.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, UnknownTopicError
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import preadv, share_of_descriptors
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.staged_file import StagedFile
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from typing_extensions import Self

#: Files that stay open. A commit takes a file for each task, and reads it once for each partition.
_OPEN_FILES_MAX: Final = 4096


class StagedFiles:
    """The staged `files` of a write, below `root`, open for reading until `close`. Threads may share it."""

    def __init__(self, root: Path, files: Sequence[StagedFile]) -> None:
        self._root = root
        self._files = files
        self._kept: dict[int, int] = {}
        self._capacity = share_of_descriptors(8, _OPEN_FILES_MAX)
        self._lock = threading.Lock()

    def parts(self) -> list[StagedPart]:
        """The parts, ordered by topic and partition; the batches of a part are in the order of the files."""
        topics: dict[str, list[int]] = {}
        for number, each in enumerate(self._files):
            if len(each.batches):
                topics.setdefault(each.topic_partition.topic, []).append(number)
        return [part for topic in sorted(topics) for part in self._parts(topic, topics[topic])]

    def _parts(self, topic: str, numbers: Sequence[int]) -> Iterator[StagedPart]:
        some = [self._files[number] for number in numbers]
        batches = np.concatenate([each.batches for each in some])
        partitions = np.concatenate([each.partitions for each in some])
        files = np.concatenate([np.full(len(each.batches), n, np.int32) for n, each in zip(numbers, some, strict=True)])
        order = np.argsort(partitions, kind="stable")
        bounds = np.flatnonzero(np.diff(partitions[order])) + 1
        for rows in np.split(order, bounds):
            part = batches[rows]
            lengths = part["last_offset"] - part["base_offset"] + 1
            part["last_offset"] = np.cumsum(lengths) - 1
            part["base_offset"] = part["last_offset"] - lengths + 1
            yield StagedPart(TopicPartition(topic, int(partitions[rows[0]])), part, files[rows], self)

    def file(self, number: int) -> StagedFile:
        """The file with that number in the order of the write."""
        return self._files[number]

    def path(self, number: int) -> Path:
        """Its path. Raises LogDirError, InvalidTopicError for a name that would be another place."""
        return self._files[number].path(self._root)

    @contextlib.contextmanager
    def opened(self, number: int) -> Iterator[int]:
        """A descriptor of the file, for the block. Raises UnknownTopicError, CorruptRecordError for another size."""
        fd = self._kept.get(number)
        if fd is not None:
            yield fd
            return
        fd = self._open(number)
        with self._lock:
            is_kept = number not in self._kept and len(self._kept) < self._capacity
            if is_kept:
                self._kept[number] = fd
        try:
            yield fd
        finally:
            if not is_kept:
                os.close(fd)

    def _open(self, number: int) -> int:
        staged, path = self._files[number], self.path(number)
        try:
            fd = open_file(path)
        except FileNotFoundError:
            raise UnknownTopicError(
                f"{staged.topic_partition}: expected the staged file {staged.name}, found none: the topic was deleted, "
                "or the write was aborted or already committed; retry the missing records"
            ) from None
        found = os.fstat(fd).st_size
        if found != staged.size_bytes:
            os.close(fd)
            raise CorruptRecordError(
                file=str(path),
                position=min(found, staged.size_bytes),
                expected=f"a staged file of {staged.size_bytes} bytes",
                found=f"{found} bytes",
                advice="write the data again",
            )
        return fd

    def read(self, number: int, position: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes from `position` on. Raises as `opened`."""
        fd = self._kept.get(number)
        if fd is None:
            with self.opened(number) as fd:
                self._fill(number, fd, position, into)
        else:
            self._fill(number, fd, position, into)

    def _fill(self, number: int, fd: int, position: int, into: memoryview) -> None:
        filled = 0
        while filled < len(into):
            count = preadv(fd, into[filled:], position + filled)
            if not count:
                raise CorruptRecordError(
                    file=str(self.path(number)),
                    position=position + filled,
                    expected=f"batches up to byte {position + len(into)}",
                    found="the end of the file",
                    advice="something has shortened the staged file: write again",
                )
            filled += count

    def close(self) -> None:
        """Close all files."""
        while self._kept:
            os.close(self._kept.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, eq=False)
class StagedPart:
    """The batches of one partition in `files`, in order.

    `batches` has BATCH_DTYPE: positions in the files, offsets counted from 0 in the part. `numbers` has the number of
    each batch's file, whose headers count the offsets of each task from 0.
    """

    topic_partition: TopicPartition
    batches: NDArray[np.void]
    numbers: NDArray[np.int32]
    files: StagedFiles

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches."""
        return int(self.batches["size_bytes"].sum())

    @property
    def records_count(self) -> int:
        return int(self.batches["records_count"].sum(dtype=np.int64))

    @property
    def own_names(self) -> set[str]:
        """The names of its files that are in the partition's own directory."""
        found = map(self.files.file, np.unique(self.numbers).tolist())
        return {each.name for each in found if each.topic_partition == self.topic_partition}

    def read(self, first: int, last: int, into: NDArray[np.uint8]) -> None:
        """Fill `into` with the bytes of the batches [first, last), back to back. Raises as `StagedFiles.opened`."""
        batches, numbers = self.batches[first:last], self.numbers[first:last]
        starts = _starts_of_pieces(batches, numbers)
        sizes = np.add.reduceat(batches["size_bytes"], starts).tolist()
        places = numbers[starts].tolist(), batches["position"][starts].tolist()
        view, at = memoryview(into.data), 0
        for number, position, size in zip(*places, sizes, strict=True):
            self.files.read(number, position, view[at : at + size])
            at += size

    def sections(self, large_bytes: int) -> Iterator[tuple[int, int, bool]]:
        """Bounds of the batches that are copied together, and whether they are at least `large_bytes` of one file.

        Batches of such a section are back to back in the file. The others lie anywhere.
        """
        starts = _starts_of_pieces(self.batches, self.numbers)
        is_large = np.add.reduceat(self.batches["size_bytes"], starts) >= large_bytes
        # A large piece begins a section, and so does the piece after it.
        begins = is_large | np.concatenate(([True], is_large[:-1]))
        bounds = [*starts[begins].tolist(), len(self.batches)]
        for (first, last), of_one in zip(pairwise(bounds), is_large[begins].tolist(), strict=True):
            yield first, last, of_one

    def is_whole_file(self, first: int, last: int) -> bool:
        """Whether the batches [first, last) are all of a file in the partition's own directory."""
        staged = self.files.file(int(self.numbers[first]))
        return staged.topic_partition == self.topic_partition and len(staged.batches) == last - first


def _starts_of_pieces(batches: NDArray[np.void], numbers: NDArray[np.int32]) -> NDArray[np.int64]:
    """Where the batches are not the ones that follow in the same file."""
    ends = batches["position"] + batches["size_bytes"]
    breaks = (numbers[1:] != numbers[:-1]) | (batches["position"][1:] != ends[:-1])
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(breaks) + 1))
