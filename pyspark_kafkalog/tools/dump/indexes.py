"""Dumps of `.index`, `.timeindex`, `.txnindex` and `.snapshot` files, checked against the log as kafka-dump-log does.

storage/artefacts/ has the layouts, but for a `.txnindex`, which has 34 bytes per entry (int16 version, then producerId,
firstOffset, lastOffset, lastStableOffset int64). The entries are read as stored in the file, not as the storage modules
would repair them: a crash leaves zeros after the last entry, and the dump stops at the first zero entry. Mismatches
between files are collected in `Findings`, which are printed to stderr at the end.
Source of the rules: kafka.tools.DumpLogSegments, AbstractIndex, TransactionIndex, ProducerStateManager.readSnapshot.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, TextIO

from pyspark_kafkalog.record.header import NO_TIMESTAMP, crc32c
from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX
from pyspark_kafkalog.tools.dump.java_text import ScalaHashOrder, absolute_path, parse_long, wrap_int64
from pyspark_kafkalog.tools.dump.printers import AbortedTxnEntry, Printer
from pyspark_kafkalog.tools.dump.walk import DumpedBatch, DumpError, LogFile, open_to_dump
from pyspark_kafkalog.units import INT32_MAX

_Pair = tuple[int, int]


class _ByFile:
    """Pairs of numbers by file, in the iteration order of the map in Kafka's tool."""

    def __init__(self) -> None:
        self._order = ScalaHashOrder()
        self._numbers: dict[str, array[int]] = {}  # flattened pairs: a compacted log may have millions of gaps

    def add(self, file: str, pair: _Pair, *, puts_again: bool) -> None:
        """`puts_again`: Kafka's tool puts the list again for each pair, which may make its map grow."""
        if puts_again or file not in self._numbers:
            self._order.put(file)
        self._numbers.setdefault(file, array("q")).extend(pair)

    def write(
        self, head: Callable[[str], str], line: Callable[[_Pair], str], out: TextIO, *, newest_first: bool
    ) -> None:
        for file in self._order:
            numbers = self._numbers[file]
            out.write(head(file) + "\n")
            places = range(0, len(numbers), 2)
            for at in reversed(places) if newest_first else places:
                out.write(line((numbers[at], numbers[at + 1])) + "\n")


class Findings:
    """Mismatches between index and log, and gaps in logs. Files are named by their absolute paths."""

    def __init__(self) -> None:
        self._index_mismatches = _ByFile()
        self._timestamp_mismatches = _ByFile()
        self._out_of_order = _ByFile()
        self._not_found = _ByFile()
        self._non_consecutive = _ByFile()

    def index_mismatch(self, file: str, index_offset: int, log_offset: int) -> None:
        """An offset index entry leads to a batch that ends at another offset."""
        self._index_mismatches.add(file, (index_offset, log_offset), puts_again=True)

    def timestamp_mismatch(self, file: str, index_timestamp_ms: int, log_timestamp_ms: int) -> None:
        """A time index entry has another timestamp than the latest of its batch."""
        self._timestamp_mismatches.add(file, (index_timestamp_ms, log_timestamp_ms), puts_again=False)

    def timestamp_out_of_order(self, file: str, timestamp_ms: int, previous_ms: int) -> None:
        """A time index entry is not later than the one before."""
        self._out_of_order.add(file, (timestamp_ms, previous_ms), puts_again=False)

    def offset_not_found(self, file: str, index_offset: int, log_offset: int) -> None:
        """No batch ends at a time index entry's offset; `log_offset` is the end of the next batch, -1 if none."""
        self._not_found.add(file, (index_offset, log_offset), puts_again=False)

    def non_consecutive(self, file: str, offset: int, next_offset: int) -> None:
        """A record's offset is not one more than that of the record before."""
        self._non_consecutive.add(file, (offset, next_offset), puts_again=True)

    def write(self, out: TextIO) -> None:
        """All findings, in the order and words of Kafka's tool."""
        self._index_mismatches.write(
            lambda file: f"Mismatches in :{file}",
            lambda pair: f"  Index offset: {pair[0]}, log offset: {pair[1]}",
            out,
            newest_first=True,
        )
        self._timestamp_mismatches.write(
            lambda file: f"Found timestamp mismatch in :{file}",
            lambda pair: f"  Index timestamp: {pair[0]}, log timestamp: {pair[1]}",
            out,
            newest_first=False,
        )
        self._out_of_order.write(
            lambda file: f"Found out of order timestamp in :{file}",
            lambda pair: f"  Index timestamp: {pair[0]}, Previously indexed timestamp: {pair[1]}",
            out,
            newest_first=False,
        )
        self._not_found.write(
            lambda file: "The following indexed offsets are not found in the log.",
            lambda pair: f"Indexed offset: {pair[0]}, found log offset: {pair[1]}",
            out,
            newest_first=False,
        )
        self._non_consecutive.write(
            lambda file: f"Non-consecutive offsets in {file}",
            lambda pair: f"  {pair[0]} is followed by {pair[1]}",
            out,
            newest_first=True,
        )


_OFFSET_ENTRY: Final = OffsetIndex.entry_struct
_TIME_ENTRY: Final = TimeIndex.entry_struct
_TXN_ENTRY: Final = struct.Struct(">bxqqqq")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_MAX_SNAPSHOT_BYTES: Final = 256 << 20
_BLOCK_ENTRIES: Final = 4096
_TIERED_STEM: Final = re.compile(r"(\d{20})-[A-Za-z0-9_-]{22}")
_WARM_BYTES: Final = 8192  # the end of an index, which Kafka searches separately


class CorruptSnapshotError(Exception):
    """A producer snapshot is damaged; Kafka's tool prints this to stderr and continues."""


class EntryFile:
    """A file of entries of one size, as on disk; an incomplete last entry is ignored."""

    def __init__(self, path: str, layout: struct.Struct) -> None:
        self.path = path
        self._layout = layout
        self._fd = open_to_dump(path)
        self.size_bytes = os.fstat(self._fd).st_size
        self.entries = self.size_bytes // layout.size

    def __enter__(self) -> EntryFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def entry(self, slot: int) -> tuple[int, ...]:
        return self._layout.unpack(self._read(slot, 1))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for slot in range(0, self.entries, _BLOCK_ENTRIES):
            yield from self._layout.iter_unpack(self._read(slot, min(_BLOCK_ENTRIES, self.entries - slot)))

    def _read(self, slot: int, count: int) -> bytes:
        size = self._layout.size
        try:
            data = os.pread(self._fd, count * size, slot * size)  # bounded: _BLOCK_ENTRIES
        except OSError as error:
            raise DumpError(f"{self.path}: {error.strerror}") from error
        if len(data) < count * size:
            raise DumpError(f"{self.path} at byte {slot * size}: unexpected end of file")
        return data


def base_offset_of(path: str) -> int:
    """The number before the first dot of the file's name; of a tiered segment's the one before its id.

    Raises DumpError if the name has no such number.
    """
    stem = os.path.basename(path).split(".")[0]
    tiered = _TIERED_STEM.fullmatch(stem)
    stem = stem if tiered is None else tiered[1]
    offset = parse_long(stem)
    if offset is None:
        raise DumpError(f"{path}: the file's name does not begin with an offset: {stem!r}")
    return offset


def dump_offset_index(
    path: str, printer: Printer, findings: Findings, *, sanity_only: bool, verify_only: bool, max_message_bytes: int
) -> None:
    """Print an offset index and compare each entry with the log beside it."""
    base_offset = base_offset_of(path)
    with LogFile(_sibling(path, LOG_SUFFIX)) as log, EntryFile(path, _OFFSET_ENTRY) as index:
        if not index.entries:
            printer.empty_index(path)
            return
        if sanity_only:
            _check_offset_index(index, base_offset)
            printer.sane_index(path)
            return
        for slot, (relative_offset, position) in enumerate(index):
            offset = wrap_int64(base_offset + relative_offset)
            if offset == base_offset and slot > 0:
                return
            batch = log.batch_at(position, log.slice_end(position, max_message_bytes))
            if batch is None:
                raise DumpError(f"{path}: entry {slot} points to byte {position} of the log, where no batch is")
            if batch.last_offset != offset:
                findings.index_mismatch(absolute_path(path), offset, batch.last_offset)
            if not verify_only:
                printer.offset_index_entry(offset, position)


def _check_offset_index(index: EntryFile, base_offset: int) -> None:
    last_offset = base_offset + index.entry(index.entries - 1)[0]
    if last_offset < base_offset:
        raise DumpError(
            f"Corrupt index found, index file {index.path} has non-zero size but the last offset is {last_offset} "
            f"which is less than the base offset {base_offset}"
        )
    _check_length(index, "Index file", _OFFSET_ENTRY.size)


def _check_length(index: EntryFile, what: str, entry_bytes: int) -> None:
    if index.size_bytes % entry_bytes:
        raise DumpError(
            f"{what} {index.path} is corrupt, found {index.size_bytes} bytes which is not a multiple of {entry_bytes}"
        )


def dump_time_index(path: str, printer: Printer, findings: Findings, *, sanity_only: bool, verify_only: bool) -> None:
    """Print a time index and compare each entry with the batch that the offset index finds in the log beside it."""
    base_offset = base_offset_of(path)
    with (
        LogFile(_sibling(path, LOG_SUFFIX)) as log,
        EntryFile(_sibling(path, INDEX_SUFFIX), _OFFSET_ENTRY) as offset_index,
        EntryFile(path, _TIME_ENTRY) as index,
    ):
        if sanity_only:
            _check_time_index(index, base_offset)
            printer.sane_index(path)
            return
        search = _BatchSearch(log)
        file = absolute_path(path)
        previous_ms = NO_TIMESTAMP
        for slot, (timestamp_ms, relative_offset) in enumerate(index):
            offset = wrap_int64(base_offset + relative_offset)
            if offset == base_offset and slot > 0:
                return
            batch = search.first_ending_at_or_after(offset, lookup_position(offset_index, relative_offset))
            if batch is None:
                findings.offset_not_found(file, offset, -1)
            elif batch.last_offset != offset:
                findings.offset_not_found(file, offset, batch.last_offset)
            else:
                max_timestamp_ms = max((record.timestamp_ms for record in batch.records()), default=NO_TIMESTAMP)
                max_timestamp_ms = max(max_timestamp_ms, NO_TIMESTAMP)
                if max_timestamp_ms != timestamp_ms:
                    findings.timestamp_mismatch(file, timestamp_ms, max_timestamp_ms)
                if previous_ms >= timestamp_ms:
                    findings.timestamp_out_of_order(file, timestamp_ms, previous_ms)
            if not verify_only:
                printer.time_index_entry(timestamp_ms, offset)
            previous_ms = timestamp_ms


def _check_time_index(index: EntryFile, base_offset: int) -> None:
    if index.entries:
        first_ms = index.entry(0)[0]
        last_ms, relative_offset = index.entry(index.entries - 1)
        begin = f"Corrupt time index found, time index file ({index.path}) has non-zero size but the last"
        if last_ms < first_ms:
            raise DumpError(f"{begin} timestamp is {last_ms} which is less than the first timestamp {first_ms}")
        if relative_offset < 0:
            raise DumpError(
                f"{begin} offset is {base_offset + relative_offset} which is less than the first offset {base_offset}"
            )
    _check_length(index, "Time index file", _TIME_ENTRY.size)


def lookup_position(index: EntryFile, relative_offset: int) -> int:
    """The log position that Kafka's lookup finds: the same binary search, also for entries that are not in order."""
    if not index.entries:
        return 0
    first_warm = max(0, index.entries - 1 - _WARM_BYTES // _OFFSET_ENTRY.size)
    if index.entry(first_warm)[0] < relative_offset:
        low, high = first_warm, index.entries - 1
    elif index.entry(0)[0] > relative_offset:
        return 0
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) // 2
        found, position = index.entry(middle)
        if found == relative_offset:
            return position
        if found > relative_offset:
            high = middle - 1
        else:
            low = middle
    return index.entry(low)[1]


class _BatchSearch:
    """Finds the first batch from a position on that ends at or after an offset; keeps its position between searches.

    Entries of one time index often start from the same position, so a damaged offset index must not cost a scan each.
    """

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._start = -1
        self._batches: Iterator[DumpedBatch] = iter(())
        self._highest_offsets: list[int] = []
        self._found: list[int] = []

    def first_ending_at_or_after(self, offset: int, position: int) -> DumpedBatch | None:
        end = self._log.slice_end(position, INT32_MAX)
        if position != self._start:
            self._start = position
            self._batches = self._log.batches(position, end)
            self._highest_offsets = []
            self._found = []
        at = bisect_left(self._highest_offsets, offset)
        if at < len(self._found):
            return self._log.batch_at(self._found[at], end)
        for batch in self._batches:
            last_offset = batch.last_offset
            if not self._highest_offsets or last_offset > self._highest_offsets[-1]:
                self._highest_offsets.append(last_offset)
                self._found.append(batch.position)
            if last_offset >= offset:
                return batch
        return None


def dump_transaction_index(path: str, printer: Printer) -> None:
    """Print a transaction index; a missing one is empty, as in Kafka."""
    base_offset_of(path)
    if not os.path.exists(path):
        return
    with EntryFile(path, _TXN_ENTRY) as index:
        for version, *_ in index:
            if version > 0:
                raise DumpError(
                    f"Unexpected aborted transaction version {version} in transaction index {path}, current version "
                    "is 0"
                )
        for fields in index:
            printer.aborted_txn(AbortedTxnEntry(*fields))


def dump_producer_snapshot(path: str, printer: Printer) -> None:
    """Print a producer snapshot. Raises CorruptSnapshotError with Kafka's message if it is damaged."""
    fd = open_to_dump(path)
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes > _MAX_SNAPSHOT_BYTES:
            raise DumpError(f"{path}: a snapshot of {size_bytes} bytes is too large to be one")
        data = os.pread(fd, size_bytes, 0)  # bounded: _MAX_SNAPSHOT_BYTES, above
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)
    for entry in _parse_snapshot(data):
        printer.producer_state(entry)


def _parse_snapshot(data: bytes) -> Iterator[ProducerStateEntry]:
    invalid = "Snapshot failed schema validation: "
    if len(data) < 2:
        raise CorruptSnapshotError(invalid + "null")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version != 1:
        raise CorruptSnapshotError(f"{invalid}Snapshot contained an unknown file version {version}")
    if len(data) < 10:
        raise CorruptSnapshotError(invalid + "null")
    crc, count = struct.unpack_from(">Ii", data, 2)
    left_bytes = len(data) - 10
    if count < 0:
        raise CorruptSnapshotError(invalid + "non-nullable field producerEntries was serialized as null")
    if count > left_bytes:
        raise CorruptSnapshotError(
            f"{invalid}Tried to allocate a collection of size {count}, but there are only {left_bytes} bytes remaining."
        )
    if count * _SNAPSHOT_ENTRY.size > left_bytes:
        raise CorruptSnapshotError(invalid + "null")
    computed = crc32c(data[6:])
    if crc != computed:
        raise CorruptSnapshotError(
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {crc}. Computed crc: {computed}"
        )
    for fields in _SNAPSHOT_ENTRY.iter_unpack(data[10 : 10 + count * _SNAPSHOT_ENTRY.size]):
        yield ProducerStateEntry(*fields)


def _sibling(path: str, suffix: str) -> str:
    stem = os.path.basename(path).split(".")[0]
    return os.path.join(os.path.dirname(path), stem + suffix)
