"""The offset index and the time index of a segment: files of fixed-size entries, memory-mapped and searched.

    entry 0 | entry 1 | ... | entry n-1 | zeros up to the preallocated length, while the segment is active

`<base offset>.index` maps a record's offset to the byte of the `.log` file from which to read. 8 bytes an entry,
offsets and positions increasing; sparse (one entry about every `index.interval.bytes`):

    0   relative offset  int32  last offset of a batch, minus the segment's base offset
    4   position         int32  first byte of that batch in the .log file

`<base offset>.timeindex` maps a timestamp to an offset before which no record is that late. 12 bytes an entry,
timestamps increasing. An entry (t, o) means that every record with a timestamp above t has an offset above the batch of
o. The last entry of a rolled segment is its largest timestamp:

    0   timestamp        int64  ms, the largest in the segment so far
    8   relative offset  int32  last offset of the batch that first had it, minus the segment's base offset

Both are big-endian. Entries are hints: a missing entry costs a longer scan, and a crash may leave a file short or with
a zero tail.

Entries are written with `pwrite` through FileSystem and read through a read-only mapping of the same pages, which a
writer creates on its first search. `trim` (roll, close) removes the zero tail. After SIGKILL it stays, so the number of
entries is determined when the file is opened. A writer that stays for one append preallocates no tail: `reserve`.

Other processes map the file while its writer trims it, and a load from a mapped page past the end of a file kills the
process. Therefore a reader maps only the entries, which it counts with `pread`, and a writer that drops entries
replaces the file atomically instead of shortening it.

Source of the rules: AbstractIndex, OffsetIndex and TimeIndex of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

from pyspark_kafkalog.errors import CorruptIndexError, InvalidConfigError, checked_count
from pyspark_kafkalog.record.header import NO_TIMESTAMP, Buffer
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, open_to_read, pread
from pyspark_kafkalog.storage.names import LOG_SUFFIX
from pyspark_kafkalog.units import INT32_MAX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_RELATIVE_OFFSET: Final = INT32_MAX
MAX_INDEX_BYTES: Final = INT32_MAX
_FEW_ENTRIES: Final = 16
#: The smallest message that gets an entry: one of format 0, without key and value.
_MIN_MESSAGE_BYTES: Final = 26
_WARM_BYTES: Final = 8192  # Most lookups are near the end; searching there first touches the same few pages each time.
_NOT_OPEN: Final = -1

_Index = TypeVar("_Index", bound="MappedIndex")
#: Fields of a row per entry: absolute offset and position in the .log file, native byte order.
OFFSET_INDEX_DTYPE: Final = [("offset", "i8"), ("position", "i8")]

#: An entry as stored in the file.
OFFSET_INDEX_ENTRY: Final = [("relative_offset", ">i4"), ("position", ">i4")]
#: Fields of a row per entry: timestamp in ms and absolute offset, native byte order.
TIME_INDEX_DTYPE: Final = [("timestamp_ms", "i8"), ("offset", "i8")]

#: An entry as stored in the file.
TIME_INDEX_ENTRY: Final = [("timestamp_ms", ">i8"), ("relative_offset", ">i4")]


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

    `entry_struct` is the layout of one entry, `key_struct` that of its leading, increasing key. `stored_fields` are
    those of an entry, `array_fields` those of a row of `entries_array`.
    """

    entry_struct: ClassVar[struct.Struct]
    key_struct: ClassVar[struct.Struct]
    stored_fields: ClassVar[list[tuple[str, str]]]
    array_fields: ClassVar[list[tuple[str, str]]]

    def __init__(self, path: Path, base_offset: int, *, max_index_bytes: int, writable: bool, fs: FileSystem) -> None:
        self._path = path
        self._base_offset = base_offset
        self._max_index_bytes = max_index_bytes
        self._fs = fs
        self._fd = _NOT_OPEN
        self._inode: int | None = None  # of the open file, once it was asked for
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
        # Slot `high` and all after it are zero; those up to and with `low` are not, or low is 0.
        low, high = 0, slots - 1
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
            found = os.stat(str(self._path))
        except FileNotFoundError:
            return False
        if self._inode is None:
            self._inode = os.fstat(self._fd).st_ino
        return found.st_ino == self._inode and found.st_size == self._length_bytes

    def entries_array(self) -> NDArray[np.void]:
        """All entries, with `array_fields`: a copy."""
        import numpy as np  # lookups need no arrays

        stored = np.frombuffer(bytes(self._mapped()[: self.size_bytes]), dtype=self.stored_fields)
        rows = stored.astype(self.array_fields)  # by position, whatever the fields are called
        rows["offset"] += self._base_offset
        return rows

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
        if self._length_bytes != self.size_bytes:
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
            fd, self._fd, self._inode = self._fd, _NOT_OPEN, None
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
        old_fd, self._fd, self._inode = self._fd, fd, None
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


class OffsetPosition(NamedTuple):
    """An absolute offset and the first byte of its batch in the .log file."""

    offset: int
    position: int


class OffsetIndex(MappedIndex):
    """The offset index of one segment; see MappedIndex for opening, resizing and closing."""

    entry_struct: ClassVar[struct.Struct] = struct.Struct(">ii")
    key_struct: ClassVar[struct.Struct] = struct.Struct(">i")
    stored_fields: ClassVar[list[tuple[str, str]]] = OFFSET_INDEX_ENTRY
    array_fields: ClassVar[list[tuple[str, str]]] = OFFSET_INDEX_DTYPE

    def lookup(self, target_offset: int) -> OffsetPosition:
        """The last entry at or below `target_offset`; (base offset, 0) if there is no such entry, or it is invalid."""
        slot = self._floor_slot(target_offset - self._base_offset)
        if slot < 0:
            return OffsetPosition(self._base_offset, 0)
        relative_offset, position = self._entry_fields(slot)
        if relative_offset < 0 or position < 0:
            return OffsetPosition(self._base_offset, 0)
        return OffsetPosition(self._base_offset + relative_offset, position)

    def lookup_position(self, target_position: int) -> OffsetPosition:
        """The last entry whose batch begins at or below `target_position`; (base offset, 0) as in `lookup`."""
        slot = bisect_right(range(self._entries), target_position, key=lambda each: self._entry_fields(each)[1]) - 1
        return self.entry(slot) if slot >= 0 else OffsetPosition(self._base_offset, 0)

    def entry(self, slot: int) -> OffsetPosition:
        """Entry number `slot`, from 0. Raises IndexError if it does not exist."""
        if not 0 <= slot < self._entries:
            raise IndexError(f"{self._path} has {self._entries} entries, none at {slot}")
        relative_offset, position = self._entry_fields(slot)
        return OffsetPosition(self._base_offset + relative_offset, position)

    @property
    def last_offset(self) -> int:
        """Offset of the last entry; the base offset if the index is empty."""
        return self.entry(self._entries - 1).offset if self._entries else self._base_offset

    def append_many(self, offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Add one entry per row, with one write.

        Raises ValueError if the rows do not rise or fit, CorruptIndexError if the last entry is not below the first
        row.
        """
        if not len(offsets):
            return
        self._check_rises(int(offsets[0]))
        rows = self._few_rows if len(offsets) <= _FEW_ENTRIES else self._many_rows
        self._append_bytes(rows(offsets, positions), len(offsets))

    def _few_rows(self, offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> bytes:
        """The bytes of entries; for a few of them arrays would take three times as long."""
        rows, before = [], -1
        for offset, position in zip(offsets.tolist(), positions.tolist(), strict=True):
            if offset <= before:
                raise _order_error()
            if not 0 <= position <= MAX_RELATIVE_OFFSET:
                raise _position_error()
            rows.append(self.entry_struct.pack(self._relative(offset), position))
            before = offset
        return b"".join(rows)

    def _many_rows(self, offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> bytes:
        import numpy as np

        if (offsets[1:] <= offsets[:-1]).any():
            raise _order_error()
        self._relative(int(offsets[-1]))
        if int(positions.min()) < 0 or int(positions.max()) > MAX_RELATIVE_OFFSET:
            raise _position_error()
        rows = np.empty(len(offsets), dtype=OFFSET_INDEX_ENTRY)
        rows["relative_offset"] = offsets - self._base_offset
        rows["position"] = positions
        return rows.tobytes()

    def truncate_to(self, offset: int) -> None:
        """Drop all entries at or above `offset`."""
        self._keep_entries(self._floor_slot(offset - self._base_offset - 1) + 1)

    def _check_rises(self, offset: int) -> None:
        if self._entries and offset <= self.last_offset:
            raise CorruptIndexError(
                file=str(self._path),
                position=self.size_bytes - self.entry_struct.size,
                expected=f"a last entry below offset {offset}, the new entry",
                found=str(self.last_offset),
            )


def _order_error() -> ValueError:
    return ValueError("offsets of index entries must rise")


def _position_error() -> ValueError:
    return ValueError("a position of an index entry does not fit in an int32")


class TimestampOffset(NamedTuple):
    """A timestamp in ms (-1: none) and an absolute offset."""

    timestamp_ms: int
    offset: int


class TimeIndex(MappedIndex):
    """The time index of one segment; see MappedIndex for opening, resizing and closing."""

    entry_struct: ClassVar[struct.Struct] = struct.Struct(">qi")
    key_struct: ClassVar[struct.Struct] = struct.Struct(">q")
    stored_fields: ClassVar[list[tuple[str, str]]] = TIME_INDEX_ENTRY
    array_fields: ClassVar[list[tuple[str, str]]] = TIME_INDEX_DTYPE

    @property
    def is_full(self) -> bool:
        """Whether no slot is left besides the one reserved for the closing entry."""
        return self._entries >= self.max_entries - 1

    @property
    def last_entry(self) -> TimestampOffset:
        """The last entry; (-1, base offset) if the index is empty."""
        return self.entry(self._entries - 1) if self._entries else TimestampOffset(NO_TIMESTAMP, self._base_offset)

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The last entry at or before `timestamp_ms`; (-1, base offset) without such an entry, or if it is invalid."""
        slot = self._floor_slot(timestamp_ms)
        if slot < 0:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        found_ms, relative_offset = self._entry_fields(slot)
        if relative_offset < 0:
            return TimestampOffset(NO_TIMESTAMP, self._base_offset)
        return TimestampOffset(found_ms, self._base_offset + relative_offset)

    def entry(self, slot: int) -> TimestampOffset:
        """Entry number `slot`, from 0. Raises IndexError if it does not exist."""
        if not 0 <= slot < self._entries:
            raise IndexError(f"{self._path} has {self._entries} entries, none at {slot}")
        timestamp_ms, relative_offset = self._entry_fields(slot)
        return TimestampOffset(timestamp_ms, self._base_offset + relative_offset)

    def maybe_append(self, timestamp_ms: int, offset: int, *, skip_full_check: bool = False) -> None:
        """Add an entry if `timestamp_ms` is above the last one's; `skip_full_check` for the closing entry.

        Raises ValueError if the index is full, CorruptIndexError if the last entry's timestamp or offset is larger.
        """
        if not skip_full_check and self.is_full:
            raise ValueError(f"{self._path} is full with {self._entries} entries")
        self._check_does_not_fall(timestamp_ms, offset)
        if timestamp_ms > self.last_entry.timestamp_ms:
            self._append_bytes(self.entry_struct.pack(timestamp_ms, self._relative(offset)), 1)

    def maybe_append_many(self, timestamps_ms: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        """`maybe_append` of each row in turn, with one write; rows that do not exceed the previous ones are skipped."""
        import numpy as np

        if not len(offsets):
            return
        if len(offsets) == 1 and not self.is_full:
            self.maybe_append(int(timestamps_ms[0]), int(offsets[0]))
            return
        self._check_does_not_fall(int(timestamps_ms[0]), int(offsets[0]))
        if (offsets[1:] < offsets[:-1]).any() or (timestamps_ms[1:] < timestamps_ms[:-1]).any():
            raise ValueError("timestamps and offsets of time index entries must not fall")
        before = np.concatenate([[self.last_entry.timestamp_ms], timestamps_ms[:-1]])
        rises = timestamps_ms > before
        count = int(rises.sum())
        if not count:
            return
        if self._entries + count > self.max_entries - 1:
            raise ValueError(f"{self._path} has no room for {count} entries beside {self._entries}")
        self._relative(int(offsets[0]))
        self._relative(int(offsets[-1]))
        rows = np.empty(count, dtype=TIME_INDEX_ENTRY)  # bounded: the rows given
        rows["timestamp_ms"] = timestamps_ms[rises]
        rows["relative_offset"] = offsets[rises] - self._base_offset
        self._append_bytes(rows.tobytes(), count)

    def truncate_to(self, offset: int) -> None:
        """Drop all entries with an offset at or above `offset`."""
        if self.last_entry.offset < offset:
            return
        self._keep_entries(int(self.entries_array()["offset"].searchsorted(offset)))

    def _check_does_not_fall(self, timestamp_ms: int, offset: int) -> None:
        last = self.last_entry
        if self._entries and (offset < last.offset or timestamp_ms < last.timestamp_ms):
            raise CorruptIndexError(
                file=str(self._path),
                position=self.size_bytes - self.entry_struct.size,
                expected=f"a last entry not above timestamp {timestamp_ms}, offset {offset}, the new entry",
                found=f"timestamp {last.timestamp_ms}, offset {last.offset}",
            )
