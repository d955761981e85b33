"""What a reader reads: extents, each a stretch of one partition's log, and the sources of their bytes.

An extent is a local segment, or a remote one (`tiered.extents`). A run inside a combined object with an offset to add
can take its place: it needs a class with the methods of `Extent`, and a `ByteSource` over ranged requests.

An implementation guarantees that

- bytes of the extent never change. Only the active segment may grow, and only a torn tail may be cut from it;
- a local source, once open, keeps its bytes readable also if the extent is deleted or replaced meanwhile; a remote one
  raises FileNotFoundError then, at any read;
- ranges are checked: a read returns bytes of this extent or fewer bytes than requested, never those beside it;
- an index is a hint. The reader confirms each entry against the batches, so None in place of an index is always right.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.artefacts.index_file import (
    MAX_INDEX_BYTES,
    MappedIndex,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
)
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import pread, preadv
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_file

_Index = TypeVar("_Index", bound=MappedIndex)


class ByteSource(Protocol):
    """The bytes of one extent's `.log`, by position. Open until `close`."""

    @property
    def name(self) -> str:
        """What error messages call it: the path of a local file."""
        ...

    def size_bytes(self) -> int:
        """The present size."""
        ...

    def read(self, start: int, size_bytes: int) -> Buffer:
        """The bytes [start, start + size_bytes); fewer only if the source ends before. Raises OSError."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill `buffer` with the bytes from `start` on, and return their number, as in `read`. Raises OSError."""
        ...

    def place(self, position: int) -> tuple[str, int]:
        """The file or object that the byte at `position` comes from, and its position there, for error messages."""
        ...

    def close(self) -> None: ...


class OffsetLookup(Protocol):
    """What a reader asks of an offset index; of a segment it is an OffsetIndex, which describes the methods."""

    def lookup(self, target_offset: int) -> OffsetPosition: ...

    def entries_array(self) -> NDArray[np.void]: ...

    def close_handler(self) -> None: ...


class TimestampLookup(Protocol):
    """What a reader asks of a time index; of a segment it is a TimeIndex, which describes the methods."""

    @property
    def entries(self) -> int: ...

    @property
    def last_entry(self) -> TimestampOffset: ...

    def lookup(self, timestamp_ms: int) -> TimestampOffset: ...

    def close_handler(self) -> None: ...


class Extent(Protocol):
    """A stretch of one partition's log, with batches of the offsets [base_offset, end_offset)."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int | None:
        """The offset after the last one, at most the next extent's end; None for the active segment, which may grow.

        Of local segments, the base offset of the next one.
        """
        ...

    @property
    def known_size_bytes(self) -> int | None:
        """The size of the `.log`, if it is known and opening the extent costs a request; else None."""
        ...

    @property
    def known_max_timestamp_ms(self) -> int | None:
        """The largest timestamp, if it is known without opening the extent."""
        ...

    def open(self) -> ByteSource:
        """Open the `.log`. Raises FileNotFoundError if the extent was deleted or replaced, OSError."""
        ...

    def offset_index(self) -> OffsetLookup | None:
        """The offset index for reading, None if it is missing or unusable."""
        ...

    def time_index(self) -> TimestampLookup | None:
        """The time index for reading, None if it is missing or unusable."""
        ...


class LocalFile:
    """A file of a local file system. Each read is one call of pread or preadv; nothing is buffered."""

    __slots__ = ("_fd", "name")

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._fd = open_file(self.name)

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, start: int, size_bytes: int) -> bytes:
        return pread(self._fd, size_bytes, start)

    def read_into(self, start: int, buffer: memoryview) -> int:
        return preadv(self._fd, buffer, start)

    def place(self, position: int) -> tuple[str, int]:
        return self.name, position

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class LocalExtent:
    """A segment in a local partition directory: its `.log`, and the indexes beside it.

    `end_offset` is None also where one segment is opened by its name, and the next one does not matter.
    """

    directory: Path
    base_offset: int
    end_offset: int | None = None

    @property
    def known_size_bytes(self) -> None:
        return None

    @property
    def known_max_timestamp_ms(self) -> None:
        return None

    def open(self) -> LocalFile:
        return LocalFile(segment_file(self.directory, self.base_offset, LOG_SUFFIX))

    def offset_index(self) -> OffsetIndex | None:
        return self._index(OffsetIndex, INDEX_SUFFIX)

    def time_index(self) -> TimeIndex | None:
        return self._index(TimeIndex, TIME_INDEX_SUFFIX)

    def _index(self, kind: type[_Index], suffix: str) -> _Index | None:
        path = segment_file(self.directory, self.base_offset, suffix)
        try:
            return kind.open(path, self.base_offset, max_index_bytes=MAX_INDEX_BYTES)
        except (OSError, DiskFormatError):
            return None
