"""Base of the offset index and the time index: a file of fixed-size entries, memory-mapped and searched.

    entry 0 | entry 1 | ... | entry n-1 | zeros up to the preallocated length, while the segment is active

Entries are written with `pwrite` through FileSystem and read through a read-only mapping of the same pages, which a
writer creates on its first search. `trim` (roll, close) removes the zero tail. After SIGKILL it stays, so the number of
entries is determined when the file is opened. A writer that stays for one append preallocates no tail: `reserve`.

Other processes map the file while its writer trims it, and a load from a mapped page past the end of a file kills the
process. Therefore a reader maps only the entries, which it counts with `pread`, and a writer that drops entries
replaces the file atomically instead of shortening it.

Source of the rules: org.apache.kafka.storage.internals.log.AbstractIndex.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, TypeVar

from pyspark_kafkalog.errors import CorruptIndexError, InvalidConfigError, checked_count
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, open_to_read, pread
from pyspark_kafkalog.storage.names import LOG_SUFFIX
from pyspark_kafkalog.units import INT32_MAX

MAX_RELATIVE_OFFSET: Final = INT32_MAX
MAX_INDEX_BYTES: Final = INT32_MAX
#: The smallest message that gets an entry: one of format 0, without key and value.
_MIN_MESSAGE_BYTES: Final = 26
_WARM_BYTES: Final = 8192  # Most lookups are near the end; searching there first touches the same few pages each time.
_NOT_OPEN: Final = -1

_Index = TypeVar("_Index", bound="MappedIndex")


def check_entries(path: Path, entries: int, *, batch_bytes_min: int = _MIN_MESSAGE_BYTES) -> None:
    """Raise CorruptIndexError if the index file at `path` has more entries than its `.log` has room for batches.

    Before anything of their number is built: a sparse file of any length costs nothing to make. The time index has one
    entry more than batches at most. Without a `.log`, the largest one counts.
    """
    try:
        log_bytes = os.stat(path.with_suffix(LOG_SUFFIX)).st_size
    except FileNotFoundError:
        log_bytes = INT32_MAX  # a broker may have deleted the segment meanwhile
    checked_count(
        entries,
        log_bytes // batch_bytes_min + 1,
        what=f"entries, beside a log of {log_bytes} bytes",
        file=str(path),
        position=0,
        kind=CorruptIndexError,
    )


def read_entries(path: Path, entry_bytes: int, *, batch_bytes_min: int = _MIN_MESSAGE_BYTES) -> bytes:
    """All bytes of the index file at `path`. Raises CorruptIndexError as `check_entries`, FileNotFoundError."""
    with open_to_read(path) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        check_entries(path, size_bytes // entry_bytes, batch_bytes_min=batch_bytes_min)
        return stream.read(size_bytes)  # bounded: by check_entries


class MappedIndex:
    """Base of OffsetIndex and TimeIndex; instances are created with `open`, which subclasses inherit.

    `entry_struct` is the layout of one entry, `key_struct` that of its leading, increasing key.
    """

    entry_struct: ClassVar[struct.Struct]
    key_struct: ClassVar[struct.Struct]

    def __init__(self, path: Path, base_offset: int, *, max_index_bytes: int, writable: bool, fs: FileSystem) -> None:
        self._path = path
        self._base_offset = base_offset
        self._max_index_bytes = max_index_bytes
        self._fs = fs
        self._fd = _NOT_OPEN
        self._map: Buffer = b""
        self._length_bytes = 0
        self._reserved_bytes = 0
        self._entries = 0
        self._last_fields: tuple[int, int] | None = None  # of the last entry, once it is known
        self._is_changed = False
        if writable:
            self._open_for_writing()
        else:
            self._open_for_reading()

    @classmethod
    def open(
        cls: type[_Index],
        path: Path,
        base_offset: int,
        *,
        max_index_bytes: int,
        writable: bool = False,
        fs: FileSystem = LOCAL,
    ) -> _Index:
        """Open the index of the segment that starts at `base_offset`.

        Read-only: the file as it is; raises FileNotFoundError if it does not exist. Writable: created and preallocated
        to `max_index_bytes` if it does not exist; an existing file keeps its length, and `resize` makes room for
        appends.
        """
        return cls(path, base_offset, max_index_bytes=max_index_bytes, writable=writable, fs=fs)

    @classmethod
    def over(cls: type[_Index], data: Buffer, base_offset: int, *, name: str) -> _Index:
        """The index in the bytes of a whole file, for reading; `name` names them in errors."""
        index = cls.__new__(cls)
        index._path = Path(name)
        index._base_offset = base_offset
        index._max_index_bytes = len(data)
        index._fs = LOCAL
        index._fd = _NOT_OPEN
        index._length_bytes = len(data)
        index._reserved_bytes = 0
        index._last_fields = None
        index._is_changed = False
        index._entries = index._count_entries(lambda at, size: bytes(data[at : at + size]))
        index._map = memoryview(data)[: index.size_bytes]
        return index

    def _open_for_reading(self) -> None:
        fd = open_file(self._path)
        try:
            self._load(fd)
            check_entries(self._path, self._entries)
            self._remap(fd, self.size_bytes)
        except ValueError as error:
            if isinstance(error, CorruptIndexError):
                raise
            # A broker that truncates a live log does this; mmap fails for a range past the end of the file.
            raise CorruptIndexError(
                file=str(self._path),
                position=0,
                expected=f"a file of {self.size_bytes} bytes, as it was a moment ago",
                found="a shorter one",
            ) from error
        finally:
            os.close(fd)

    def _open_for_writing(self) -> None:
        if self._max_index_bytes < self.entry_struct.size:
            raise InvalidConfigError(
                f"segment.index.bytes is {self._max_index_bytes}, and one entry of {self._path.name} takes "
                f"{self.entry_struct.size} bytes: set it higher for this topic, or delete the setting"
            )
        is_new = not self._path.exists()
        self._fd = self._fs.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if is_new:
                self._set_length(self._round_down(self._max_index_bytes))
            else:
                self._load(self._fd)
        except BaseException:
            self.close_handler()
            raise

    def _load(self, fd: int) -> None:
        self._length_bytes = os.fstat(fd).st_size
        if self._length_bytes > MAX_INDEX_BYTES:
            raise CorruptIndexError(
                file=str(self._path),
                position=MAX_INDEX_BYTES,
                expected=f"an index of at most {MAX_INDEX_BYTES} bytes",
                found=f"{self._length_bytes} bytes",
            )
        self._entries = self._count_entries(lambda at, size: pread(fd, size, at))

    def _mapped(self) -> Buffer:
        """A mapping of all entries."""
        if len(self._map) < self.size_bytes:
            self._remap(self._fd, self._length_bytes)
        return self._map

    def _remap(self, fd: int, length_bytes: int) -> None:
        self._unmap()
        # bounded: MAX_INDEX_BYTES and check_entries
        self._map = mmap.mmap(fd, length_bytes, mmap.MAP_SHARED, mmap.PROT_READ) if length_bytes else b""

    def _unmap(self) -> None:
        if isinstance(self._map, mmap.mmap):
            with contextlib.suppress(BufferError):  # a traceback still refers to it, and its error is the one to raise
                self._map.close()
        self._map = b""

    def _round_down(self, length_bytes: int) -> int:
        return length_bytes - length_bytes % self.entry_struct.size

    def _count_entries(self, read: Callable[[int, int], bytes]) -> int:
        """Entries before the zero tail. Entry 0 may be all zeros itself: timestamp 0 at the segment's base offset.

        `read(position, size)` gives bytes of the file.
        """
        size = self.entry_struct.size
        slots = self._length_bytes // size
        zeros = bytes(size)

        def is_written(slot: int) -> bool:
            # A short read means that another process has trimmed the file since, which removes only the zero tail.
            entry = read(slot * size, size)
            return len(entry) == size and entry != zeros

        if slots <= 1 or is_written(slots - 1):
            return slots
        low, high = (
            0,
            slots - 1,
        )  # slot `high` and all after it are zero; those up to and with `low` are not, or low is 0
        while high - low > 1:
            middle = (low + high) // 2
            if is_written(middle):
                low = middle
            else:
                high = middle
        return high if high > 1 or is_written(0) else 0

    @property
    def path(self) -> Path:
        return self._path

    @property
    def base_offset(self) -> int:
        return self._base_offset

    @property
    def entries(self) -> int:
        """Number of entries, without the zero tail."""
        return self._entries

    @property
    def max_entries(self) -> int:
        """Number of entries that fit in the file at its present length, or in the reserved length."""
        return max(self._length_bytes, self._reserved_bytes) // self.entry_struct.size

    @property
    def length_bytes(self) -> int:
        """Length of the file, including preallocated zeros."""
        return self._length_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries alone: the file's length once trimmed."""
        return self._entries * self.entry_struct.size

    @property
    def is_full(self) -> bool:
        """Whether no entry can be appended; the segment then rolls."""
        return self._entries >= self.max_entries

    @property
    def is_changed(self) -> bool:
        """Whether there is something for `flush` to wait for."""
        return self._is_changed

    def is_in_place(self) -> bool:
        """Whether the name still refers to the open file, and the length is still the one that was left."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return found.st_ino == os.fstat(self._fd).st_ino and found.st_size == self._length_bytes

    def can_append_offset(self, offset: int) -> bool:
        """Whether `offset` relative to the base offset fits into an int32; if not, the segment rolls."""
        return 0 <= offset - self._base_offset <= MAX_RELATIVE_OFFSET

    def resize(self, length_bytes: int) -> None:
        """Set the file's length, rounded down to whole entries; entries past it are dropped."""
        rounded = self._round_down(length_bytes)
        if rounded < self.size_bytes:
            self._keep_entries(rounded // self.entry_struct.size)
        if rounded != self._length_bytes:
            self._set_length(rounded)

    def reserve(self, length_bytes: int) -> None:
        """Allow the file to grow to `length_bytes` with its appends, without preallocating disk space."""
        self._reserved_bytes = self._round_down(length_bytes)

    def trim(self) -> None:
        """Shorten the file to its entries, as rolling and closing do."""
        self._reserved_bytes = 0
        self.resize(self.size_bytes)

    def reset(self) -> None:
        """Drop all entries and preallocate again: the first step of a rebuild, whatever the file holds."""
        self._replace_file(0)
        self.resize(self._max_index_bytes)

    def flush(self) -> None:
        """Wait until the entries are on disk; returns at once if none was added or dropped since the last flush."""
        if self._is_changed:
            self._fs.fsync(self._fd)
            self._is_changed = False

    def close(self) -> None:
        """Trim if writable, then close the file."""
        try:
            if self._fd != _NOT_OPEN:
                self.trim()
        finally:
            self.close_handler()

    def close_handler(self) -> None:
        """Close the file as it is, with its zero tail."""
        self._unmap()
        self._entries = 0
        self._last_fields = None
        if self._fd != _NOT_OPEN:
            fd, self._fd = self._fd, _NOT_OPEN
            self._fs.close(fd)

    def __enter__(self: _Index) -> _Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set_length(self, length_bytes: int) -> None:
        self._unmap()
        self._fs.truncate(self._fd, length_bytes)
        self._length_bytes = length_bytes

    def _keep_entries(self, entries: int) -> None:
        """Keep the first `entries`; the file keeps its length, and zeros replace the dropped entries."""
        if entries >= self._entries:
            return
        length_bytes = self._round_down(self._length_bytes)
        self._replace_file(entries)
        self._set_length(length_bytes)

    def _replace_file(self, entries: int) -> None:
        self._is_changed = True
        kept = bytes(self._mapped()[: entries * self.entry_struct.size]) if entries else b""
        self._fs.write_file_atomic(self._path, kept, durable=False)
        fd = self._fs.open(self._path, os.O_RDWR)
        old_fd, self._fd = self._fd, fd
        self._fs.close(old_fd)
        self._entries = entries
        self._last_fields = None
        self._length_bytes = len(kept)
        self._unmap()

    def _append_bytes(self, data: Buffer, count: int) -> None:
        if self._entries + count > self.max_entries:
            raise ValueError(f"{self._path} has room for {self.max_entries - self._entries} more entries, not {count}")
        self._is_changed = True
        self._fs.pwrite_all(self._fd, data, self.size_bytes)
        self._entries += count
        self._last_fields = self.entry_struct.unpack_from(data, (count - 1) * self.entry_struct.size)
        self._length_bytes = max(self._length_bytes, self.size_bytes)

    def _relative(self, offset: int) -> int:
        if not self.can_append_offset(offset):
            raise ValueError(f"offset {offset} is out of reach of base offset {self._base_offset} of {self._path}")
        return offset - self._base_offset

    def _floor_slot(self, key: int) -> int:
        """Slot of the last entry whose key is not above `key`, or -1. Bounded whatever the bytes are."""
        entries = self._entries
        if not entries:
            return -1
        unpack_key = self.key_struct.unpack_from
        size = self.entry_struct.size
        view = self._mapped()
        low, high = 0, entries - 1
        warm = entries - 1 - _WARM_BYTES // size
        if warm > 0:
            if unpack_key(view, warm * size)[0] <= key:
                low = warm
            else:
                high = warm - 1
        if unpack_key(view, low * size)[0] > key:
            return -1
        while low < high:
            middle = (low + high + 1) >> 1
            if unpack_key(view, middle * size)[0] > key:
                high = middle - 1
            else:
                low = middle
        return low

    def _entry_fields(self, slot: int) -> tuple[int, int]:
        if slot == self._entries - 1 and self._last_fields is not None:
            return self._last_fields
        size = self.entry_struct.size
        if (slot + 1) * size > len(self._map):
            entry = pread(self._fd, size, slot * size).ljust(size, b"\0")
            first, second = self.entry_struct.unpack(entry)
        else:
            first, second = self.entry_struct.unpack_from(self._map, slot * size)
        return first, second
