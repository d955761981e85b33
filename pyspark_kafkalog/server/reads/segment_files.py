"""Open segments of local partition directories, kept between fetches, with the positions at which consumers continue.

    SegmentFiles   the open `.log` files, least recently used ones dropped
    Positions      (directory, next offset) -> the file and position of the batch there, noted when a fetch ends there

A consumer that reads on therefore needs one stat, no look-up in an index and no listing of the directory.

Retention, the cleaner and merges may delete or replace a file at any time. Bytes of an open file stay as they are, so
what was begun can be finished; but each use compares the inode of the name with that of the open file, and drops it if
they differ. The inode of an open file is not used again. Both are used by the event loop's thread and by others.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.server.sending import OpenFile
from pyspark_kafkalog.storage.artefacts.index_file import MAX_INDEX_BYTES
from pyspark_kafkalog.storage.artefacts.offset_index import OffsetIndex
from pyspark_kafkalog.storage.filesystem import share_of_descriptors
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, segment_file
from pyspark_kafkalog.units import MIB

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FILES_MAX: Final = 1024
POSITIONS_MAX: Final = 1 << 15
#: The index of a growing segment is opened again when this much has been added.
_INDEXED_AGAIN_BYTES: Final = 4 * MIB


class RecentlyUsed(Generic[K, V]):
    """A mapping that holds at most `capacity` entries: those that were used last. For several threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> list[V]:
        """Set the entry; returns the values that have made room for it or were replaced."""
        dropped: list[V] = []
        with self._lock:
            before = self._entries.pop(key, None)
            if before is not None:
                dropped.append(before)
            self._entries[key] = value
            while len(self._entries) > self._capacity:
                dropped.append(self._entries.popitem(last=False)[1])
        return dropped

    def pop(self, key: K) -> V | None:
        with self._lock:
            return self._entries.pop(key, None)


class OpenSegment:
    """One open `.log` file, with its offset index once that is needed."""

    __slots__ = ("_index", "_indexed_bytes", "base_offset", "device", "file", "inode")

    def __init__(self, directory: Path, base_offset: int) -> None:
        """Raises FileNotFoundError if there is no such segment, OSError."""
        self.base_offset = base_offset
        self.file = OpenFile(segment_file(directory, base_offset, LOG_SUFFIX))
        found = os.fstat(self.file.fd)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(f"{self.file.path} is not a regular file")
        self.device, self.inode = found.st_dev, found.st_ino
        self._index: OffsetIndex | None = None
        self._indexed_bytes = -1

    @property
    def name(self) -> str:
        return str(self.file.path)

    def has_index_for(self, size_bytes: int) -> bool:
        """Whether `index` opens no file."""
        return 0 <= self._indexed_bytes >= size_bytes - _INDEXED_AGAIN_BYTES

    def index(self, size_bytes: int) -> OffsetIndex | None:
        """The offset index for a file of this size; None if it is missing or unusable. It is a hint."""
        if not self.has_index_for(size_bytes):
            path = self.file.path.with_suffix(INDEX_SUFFIX)
            try:
                self._index = OffsetIndex.open(path, self.base_offset, max_index_bytes=MAX_INDEX_BYTES)
            except (OSError, DiskFormatError):
                self._index = None
            self._indexed_bytes = size_bytes
        return self._index


class Position(NamedTuple):
    """Where a batch begins: in the file that had the name `path`, which had this inode."""

    path: str
    device: int
    inode: int
    position: int


class SegmentFiles:
    """The open segments by path."""

    def __init__(self, capacity: int | None = None) -> None:
        """`capacity`: by default what the process's descriptors allow, at most FILES_MAX."""
        capacity = share_of_descriptors(16, FILES_MAX) if capacity is None else capacity
        self._open: RecentlyUsed[str, OpenSegment] = RecentlyUsed(capacity)

    def kept(self, path: str) -> tuple[OpenSegment, int] | None:
        """The open segment with its present size; None if it is not open, or its name has gone to another file."""
        segment = self._open.get(path)
        if segment is None:
            return None
        try:
            found = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            self._open.pop(path)
            return None
        if (found.st_ino, found.st_dev) != (segment.inode, segment.device):
            self._open.pop(path)
            return None
        return segment, found.st_size

    def open(self, directory: Path, base_offset: int) -> tuple[OpenSegment, int]:
        """The segment, opened unless it is, with its size. Raises FileNotFoundError, OSError."""
        path = str(segment_file(directory, base_offset, LOG_SUFFIX))
        kept = self.kept(path)
        if kept is not None:
            return kept
        segment = OpenSegment(directory, base_offset)
        self._open.put(path, segment)
        return segment, os.fstat(segment.file.fd).st_size


class Positions:
    """Where the batches begin that consumers ask for next."""

    def __init__(self, capacity: int = POSITIONS_MAX) -> None:
        self._noted: RecentlyUsed[tuple[str, int], Position] = RecentlyUsed(capacity)

    def get(self, directory: str, offset: int) -> Position | None:
        return self._noted.get((directory, offset))

    def note(self, directory: str, offset: int, segment: OpenSegment, position: int) -> None:
        """The batch after the last one below `offset` begins, or will begin, at `position` of the segment."""
        self._noted.put((directory, offset), Position(segment.name, segment.device, segment.inode, position))
