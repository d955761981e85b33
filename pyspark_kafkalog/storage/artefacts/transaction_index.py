"""Transaction index, `<base offset>.txnindex`: the aborted transactions whose abort marker is in the segment.

    0   version           int16  0
    2   producerId        int64
    10  firstOffset       int64  of the transaction's first record, perhaps in an earlier segment
    18  lastOffset        int64  of the abort marker
    26  lastStableOffset  int64  of the log when the marker was written

Big-endian, 34 bytes per entry, ordered by lastOffset. The file does not exist until a transaction is aborted, and it is
never preallocated. A crash may leave a torn last entry, which is not read and is overwritten. Source of the rules:
org.apache.kafka.storage.internals.log.TransactionIndex and AbortedTxn.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from pyspark_kafkalog.errors import CorruptIndexError, checked_count
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.storage.artefacts.index_file import check_entries, read_entries
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, pread
from pyspark_kafkalog.units import INT32_MAX
from pyspark_kafkalog.values import dataclass

TXN_INDEX_ENTRY_BYTES: Final = 34

#: An entry as stored in the file.
TXN_INDEX_ENTRY: Final = [
    ("version", ">i2"),
    ("producer_id", ">i8"),
    ("first_offset", ">i8"),
    ("last_offset", ">i8"),
    ("last_stable_offset", ">i8"),
]

_ENTRY = struct.Struct(">hqqqq")
_VERSION: Final = 0
_ENTRIES_A_READ: Final = 4096
_ENTRIES_MAX: Final = INT32_MAX // RECORD_BATCH_OVERHEAD_BYTES
_NOT_OPEN: Final = -1

assert _ENTRY.size == TXN_INDEX_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """One aborted transaction. `last_offset` is the abort marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def pack(self) -> bytes:
        """The entry's 34 bytes."""
        return _ENTRY.pack(_VERSION, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class AbortedTxns(NamedTuple):
    """The entries of one segment's index for a range of offsets.

    `is_complete`: a transaction was aborted when the last stable offset had reached the end of the range, so the
    indexes of later segments have no more entries for it.
    """

    transactions: list[AbortedTxn]
    is_complete: bool


def parse_aborted(data: bytes, *, file: str, offsets: range | None = None) -> list[AbortedTxn]:
    """The entries in the bytes of a closed segment's file, which `file` names in errors.

    Raises CorruptIndexError for a version other than 0, for a torn entry, and for a marker outside of the segment's
    `offsets` or before its transaction.
    """
    torn = len(data) % TXN_INDEX_ENTRY_BYTES
    if torn:
        raise CorruptIndexError(
            file=file,
            position=len(data) - torn,
            expected=f"a whole entry of {TXN_INDEX_ENTRY_BYTES} bytes",
            found=f"{torn} bytes",
        )
    found = []
    for at in range(0, len(data), TXN_INDEX_ENTRY_BYTES):
        entry = _parse_entry(data, at, file=file, position=at)
        if offsets is not None and not (entry.first_offset <= entry.last_offset and entry.last_offset in offsets):
            raise CorruptIndexError(
                file=file,
                position=at,
                expected=f"a marker in the offsets {offsets.start} to {offsets.stop - 1}, at or behind its transaction",
                found=f"offset {entry.last_offset} for the transaction from offset {entry.first_offset} on",
            )
        found.append(entry)
    return found


def read_aborted(path: Path) -> bytes:
    """The bytes of the complete entries of the index at `path`, b"" without the file.

    Raises CorruptIndexError for more entries than the log has room for markers.
    """
    try:
        data = read_entries(path, TXN_INDEX_ENTRY_BYTES, batch_bytes_min=RECORD_BATCH_OVERHEAD_BYTES)
    except FileNotFoundError:
        return b""
    return data[: len(data) - len(data) % TXN_INDEX_ENTRY_BYTES]


def collect_aborted(entries: Iterable[AbortedTxn], start_offset: int, end_offset: int) -> AbortedTxns:
    """Of one segment's entries, those that overlap [start_offset, end_offset)."""
    found = []
    for txn in entries:
        if txn.last_offset >= start_offset and txn.first_offset < end_offset:
            found.append(txn)
        if txn.last_stable_offset >= end_offset:
            return AbortedTxns(found, is_complete=True)
    return AbortedTxns(found, is_complete=False)


def _parse_entry(chunk: bytes, at: int, *, file: str, position: int) -> AbortedTxn:
    version, *fields = _ENTRY.unpack_from(chunk, at)
    if version != _VERSION:
        raise CorruptIndexError(file=file, position=position, expected=f"entry version {_VERSION}", found=str(version))
    return AbortedTxn(*fields)


class TransactionIndex:
    """The transaction index of one segment; the first `append` creates the file."""

    def __init__(self, path: Path, base_offset: int, *, writable: bool, fs: FileSystem) -> None:
        self._path = path
        self._base_offset = base_offset
        self._writable = writable
        self._fs = fs
        self._fd = _NOT_OPEN
        self._entries = 0
        self._open_if_there()

    @classmethod
    def open(cls, path: Path, base_offset: int, *, writable: bool = False, fs: FileSystem = LOCAL) -> TransactionIndex:
        """Open the index of the segment that starts at `base_offset`; a missing file is an empty index."""
        return cls(path, base_offset, writable=writable, fs=fs)

    def _open_if_there(self) -> None:
        try:
            self._fd = self._fs.open(self._path, os.O_RDWR if self._writable else os.O_RDONLY)
        except FileNotFoundError:
            return
        self._entries = os.fstat(self._fd).st_size // TXN_INDEX_ENTRY_BYTES

    @property
    def path(self) -> Path:
        return self._path

    @property
    def entries(self) -> int:
        """Number of whole entries."""
        return self._entries

    def __iter__(self) -> Iterator[AbortedTxn]:
        """The entries in order, in bounded memory.

        Raises CorruptIndexError for a version other than 0, and, unless the index is open for writing, for more entries
        than the log has room for markers: a crash can have torn the log that a writer recovers.
        """
        for position, chunk in self._chunks():
            for at in range(0, len(chunk), TXN_INDEX_ENTRY_BYTES):
                yield self._parse(chunk, at, position + at)

    def _chunks(self) -> Iterator[tuple[int, bytes]]:
        """Position and bytes of some thousand entries at a time."""
        if not self._writable:
            check_entries(self._path, self._entries, batch_bytes_min=RECORD_BATCH_OVERHEAD_BYTES)
        slot = 0
        while slot < self._entries:
            count = min(_ENTRIES_A_READ, self._entries - slot)
            chunk = pread(self._fd, count * TXN_INDEX_ENTRY_BYTES, slot * TXN_INDEX_ENTRY_BYTES)
            whole = len(chunk) // TXN_INDEX_ENTRY_BYTES
            if not whole:
                return  # another process has shortened the file since it was opened
            yield slot * TXN_INDEX_ENTRY_BYTES, chunk[: whole * TXN_INDEX_ENTRY_BYTES]
            slot += whole

    def _parse(self, chunk: bytes, at: int, position: int) -> AbortedTxn:
        return _parse_entry(chunk, at, file=str(self._path), position=position)

    def collect_aborted(self, start_offset: int, end_offset: int) -> AbortedTxns:
        """Aborted transactions that overlap [start_offset, end_offset). Raises as iterating, up to the last entry used.

        As `collect_aborted` of all entries, without making objects of those that lie outside of the range.
        """
        import numpy as np  # few segments have such an index

        found: list[AbortedTxn] = []
        for position, chunk in self._chunks():
            entries = np.frombuffer(chunk, dtype=TXN_INDEX_ENTRY)
            decided = np.flatnonzero(entries["last_stable_offset"] >= end_offset)
            used = entries[: decided[0] + 1] if len(decided) else entries
            is_wanted = (used["last_offset"] >= start_offset) & (used["first_offset"] < end_offset)
            is_wanted |= used["version"] != _VERSION  # refused by `_parse`
            for at in (np.flatnonzero(is_wanted) * TXN_INDEX_ENTRY_BYTES).tolist():
                found.append(self._parse(chunk, at, position + at))
            if len(decided):
                return AbortedTxns(found, is_complete=True)
        return AbortedTxns(found, is_complete=False)

    def append(self, txn: AbortedTxn) -> None:
        """Add an entry. Raises CorruptIndexError if the last entry's marker is not below this one's."""
        last = self._last()
        if last is not None and last.last_offset >= txn.last_offset:
            raise CorruptIndexError(
                file=str(self._path),
                position=(self._entries - 1) * TXN_INDEX_ENTRY_BYTES,
                expected=f"a last entry with a marker below offset {txn.last_offset}, the new entry",
                found=str(last.last_offset),
            )
        if self._fd == _NOT_OPEN:
            self._fd = self._fs.open(self._path, os.O_RDWR | os.O_CREAT)
        self._fs.pwrite_all(self._fd, txn.pack(), self._entries * TXN_INDEX_ENTRY_BYTES)
        self._entries += 1

    def truncate_to(self, offset: int) -> None:
        """Drop all entries from the first one whose marker is at or above `offset`."""
        for slot, txn in enumerate(self):
            if txn.last_offset >= offset:
                self._cut(slot)
                return

    def reset(self) -> None:
        """Drop all entries."""
        if self._fd != _NOT_OPEN:
            self._cut(0)

    def sanity_check(self) -> None:
        """Raise CorruptIndexError for an entry with another version, or a marker below the segment's base offset.

        Also for more entries than the largest log has room for.
        """
        import numpy as np

        checked_count(
            self._entries,
            _ENTRIES_MAX,
            what="entries, in any segment",
            file=str(self._path),
            position=0,
            kind=CorruptIndexError,
        )
        for position, chunk in self._chunks():
            rows = np.frombuffer(chunk, TXN_INDEX_ENTRY)
            bad = np.flatnonzero((rows["version"] != _VERSION) | (rows["last_offset"] < self._base_offset))
            if len(bad):
                at = int(bad[0]) * TXN_INDEX_ENTRY_BYTES
                raise CorruptIndexError(
                    file=str(self._path),
                    position=position + at,
                    expected=f"an abort marker's offset of {self._base_offset} or more",
                    found=str(self._parse(chunk, at, position + at).last_offset),
                )

    @property
    def is_whole(self) -> bool:
        """Whether the file has whole entries only: one that a crash has torn lacks at least one."""
        return self._fd == _NOT_OPEN or os.fstat(self._fd).st_size % TXN_INDEX_ENTRY_BYTES == 0

    @property
    def is_changed(self) -> bool:
        """Whether there may be something for `flush` to wait for."""
        return self._fd != _NOT_OPEN

    def flush(self) -> None:
        """Wait until the entries are on disk."""
        if self.is_changed:
            self._fs.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        self._entries = 0
        if self._fd != _NOT_OPEN:
            fd, self._fd = self._fd, _NOT_OPEN
            self._fs.close(fd)

    def __enter__(self) -> TransactionIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _last(self) -> AbortedTxn | None:
        if not self._entries:
            return None
        position = (self._entries - 1) * TXN_INDEX_ENTRY_BYTES
        return self._parse(pread(self._fd, TXN_INDEX_ENTRY_BYTES, position), 0, position)

    def _cut(self, entries: int) -> None:
        self._fs.truncate(self._fd, entries * TXN_INDEX_ENTRY_BYTES)
        self._entries = entries
