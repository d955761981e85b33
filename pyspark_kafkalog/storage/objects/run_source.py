"""Neighbouring runs of one partition as one extent of its log, and the source of its bytes.

A thousand small runs would be a thousand extents to open. So runs that follow each other are grouped, up to
`GROUP_BYTES`; to a reader a group is a segment without files. The runs themselves say what an index would say, and
inside a run its table, which comes with its bytes: the lookups are exact and cost no request beyond those that reading
needs.

To a reader the runs are one stretch of batches: position 0 is the first batch of the first run. Behind it are *pieces*,
each a number of whole batches that one request gets:

- a small run with its table, or several in a row that are close together in one object
- a part of a large run, whose table is got first

A piece that has arrived is compared with its table, and stays as the store gave it. Its bytes are copied once, into
the buffer of the reader, and there the batches get the offsets and leader epochs of the log. The next pieces are
requested meanwhile, up to `AHEAD_BYTES` beyond what is read: so much memory is used.

An object that was deleted is FileNotFoundError, at any read. A store that gives other bytes than were asked for, a
table that does not fit its run, a header that does not fit the table: CorruptRecordError with object and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.header import BASE_OFFSET_AT, LAST_OFFSET_DELTA_AT, LENGTH_AT, LOG_OVERHEAD_BYTES, Buffer
from pyspark_kafkalog.storage.artefacts.index_file import OFFSET_INDEX_DTYPE, OffsetPosition, TimestampOffset
from pyspark_kafkalog.storage.filesystem import ThreadPool
from pyspark_kafkalog.storage.objects.data_object import TABLE_ENTRY_BYTES, parse_table
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX
from pyspark_kafkalog.units import INT32_MAX, KIB, MIB
from pyspark_kafkalog.values import dataclass

#: A larger run is got in pieces of this size, or one batch each.
PIECE_BYTES: Final = 4 * MIB
#: What is requested beyond the end of a read.
AHEAD_BYTES: Final = 8 * MIB
_AHEAD_PIECES: Final = 64
#: Runs in one object that are at most this far apart are got together.
_GAP_BYTES: Final = 64 * KIB
#: The first fields of a batch.
_HEAD_DTYPE: Final = np.dtype([("base_offset", ">i8"), ("length", ">i4"), ("leader_epoch", ">i4")])
_HEAD_BYTES: Final = _HEAD_DTYPE.itemsize
#: The fields of a stored batch that are compared with its table.
_STORED_DTYPE: Final = np.dtype(
    {
        "names": ["base_offset", "length", "last_offset_delta"],
        "formats": [">i8", ">i4", ">i4"],
        "offsets": [BASE_OFFSET_AT, LENGTH_AT, LAST_OFFSET_DELTA_AT],
    }
)
_ADVICE: Final = "run kafkalog verify on the log directory, and restore the object from a copy"

#: Requests wait for the store, not for a processor.
_POOL: Final = ThreadPool(32, "kafkalog-get")


class ObjectBytes(Protocol):
    """The data objects that runs refer to, by their ids."""

    def name(self, object_id: int) -> str:
        """What error messages call the object: its URL."""
        ...

    def read(self, object_id: int, start: int, size_bytes: int) -> Buffer:
        """The bytes [start, start + size_bytes), with one request. Raises ObjectNotFoundError, ObjectStoreError."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RunTable:
    """The batches of one run: positions in the source, sizes, last offsets, largest timestamps."""

    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    last_offsets: NDArray[np.int64]
    max_timestamps_ms: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Batches at [start, end) of the source. Those of the runs [first, last), or a part of one, with its table."""

    start: int
    end: int
    first: int
    last: int
    table: RunTable | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Stored:
    """Batches of one run, at `start` of the source, as the store has them; `heads` are their beginnings in the log."""

    start: int
    data: NDArray[np.uint8]
    table: RunTable
    heads: NDArray[np.uint8]

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def copy_into(self, target: NDArray[np.uint8], start: int) -> None:
        """Copy what `target`, which is at `start` of the source, has room for, as the log has it."""
        first, last = max(self.start, start), min(self.end, start + len(target))
        if first >= last:
            return
        target[first - start : last - start] = self.data[first - self.start : last - self.start]
        batches = slice(
            int(np.searchsorted(self.table.positions, first - _HEAD_BYTES, side="right")),
            int(np.searchsorted(self.table.positions, last)),
        )
        at = self.table.positions[batches, None] + np.arange(_HEAD_BYTES) - start
        heads = self.heads[batches]
        if len(at) and (at[0, 0] < 0 or at[-1, -1] >= len(target)):  # cut off at an end of the target
            is_inside = (at >= 0) & (at < len(target))
            at, heads = at[is_inside], heads[is_inside]
        target[at] = heads


class RunSource:
    """A ByteSource over `runs` (`run_dtype`), which follow each other in offsets. For one thread."""

    def __init__(self, runs: NDArray[np.void], objects: ObjectBytes, *, name: str) -> None:
        self.name = name
        self._runs = runs
        self._objects = objects
        self._starts = np.concatenate([[0], np.cumsum(runs["size_bytes"], dtype=np.int64)])
        self._pieces = _plan(runs, self._starts)
        self._piece_starts = np.array([piece.start for piece in self._pieces])
        self._tables: dict[int, Future[RunTable]] = {}  # of large runs, by their numbers
        self._requested: dict[int, tuple[int, Future[list[_Stored]]]] = {}  # by start: end and content of a piece

    def size_bytes(self) -> int:
        """The bytes of all batches."""
        return int(self._starts[-1])

    def read(self, start: int, size_bytes: int) -> Buffer:
        """The bytes [start, start + size_bytes); fewer only at the end. Requests no more than the pieces that hold
        them."""
        buffer = np.empty(max(min(size_bytes, self.size_bytes() - start), 0), np.uint8)  # bounded: the run's size
        self._fill(start, buffer.data, ahead_bytes=0)
        return buffer

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill `buffer` with the bytes from `start` on, and request those after them. Returns their number."""
        count = max(min(len(buffer), self.size_bytes() - start), 0)
        self._fill(start, buffer[:count], ahead_bytes=AHEAD_BYTES)
        return count

    def table(self, run: int) -> RunTable:
        """The batches of the run with that number."""
        at = int(np.searchsorted(self._piece_starts, self._starts[run], side="right")) - 1
        piece = self._pieces[at]
        if piece.last - piece.first == 1 and self._is_large(piece.first):
            return self._large_table(run).result()
        return self._loaded(piece)[run - piece.first].table

    def close(self) -> None:
        """Drop all bytes. Requests under way end by themselves."""
        for each in self._tables.values():
            each.cancel()
        for _, requested in self._requested.values():
            requested.cancel()
        self._requested, self._tables = {}, {}

    def place(self, position: int) -> tuple[str, int]:
        """The name of the object that holds the byte at `position`, and where in it."""
        run = self._run_at(min(position, self.size_bytes() - 1))
        row = self._runs[run]
        return self._objects.name(int(row["object_id"])), int(row["position"]) + position - int(self._starts[run])

    def _run_at(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, side="right")) - 1

    def _is_large(self, run: int) -> bool:
        return bool(self._runs["size_bytes"][run] > PIECE_BYTES)

    def _fill(self, start: int, buffer: memoryview, *, ahead_bytes: int) -> None:
        end = start + len(buffer)
        for old, (old_end, _) in list(self._requested.items()):
            if old_end <= start or old > end + AHEAD_BYTES:
                self._requested.pop(old)[1].cancel()
        target = np.frombuffer(buffer, np.uint8)
        at = start
        while at < end:
            for piece in self._request_range(at, end + ahead_bytes):
                if piece.start > at or at >= end:
                    break
                for stored in self._loaded(piece):
                    stored.copy_into(target, start)
                at = piece.end

    def _request_range(self, start: int, end: int) -> list[_Piece]:
        """The pieces that hold [start, end), requested; without those of a large run whose table is still to come."""
        found: list[_Piece] = []
        at = int(np.searchsorted(self._piece_starts, start, side="right")) - 1
        for piece in self._pieces[at : at + _AHEAD_PIECES]:
            if piece.start >= end:
                break
            for part in self._parts(piece, start, wait=not found):
                if part.start >= end or len(found) == _AHEAD_PIECES:
                    return found
                self._request(part)
                found.append(part)
        return found

    def _parts(self, piece: _Piece, start: int, *, wait: bool) -> Sequence[_Piece]:
        """The piece itself, or the parts of a large run from `start` on; none if its table has to be waited for."""
        if piece.last - piece.first > 1 or not self._is_large(piece.first):
            return [piece]
        requested = self._large_table(piece.first)
        if not wait and not requested.done():
            return []
        parts = _parts(piece, requested.result())
        largest = max(parts, key=lambda part: part.end - part.start)
        if largest.end - largest.start > BATCH_BYTES_MAX:
            file, position = self.place(largest.start)
            raise CorruptRecordError(
                file=file,
                position=position,
                expected=f"a batch of at most {BATCH_BYTES_MAX} bytes",
                found=f"{largest.end - largest.start} bytes",
                advice=_ADVICE,
            )
        return [each for each in parts if each.end > start]

    def _large_table(self, run: int) -> Future[RunTable]:
        requested = self._tables.get(run)
        if requested is None or _has_failed(requested):
            requested = self._tables[run] = _POOL.submit(partial(self._get_table, run))
        return requested

    def _request(self, piece: _Piece) -> None:
        if piece.start not in self._requested:
            self._requested[piece.start] = piece.end, _POOL.submit(partial(self._load, piece))

    def _loaded(self, piece: _Piece) -> list[_Stored]:
        self._request(piece)
        try:
            return self._requested[piece.start][1].result()
        except BaseException:
            del self._requested[piece.start]  # the next read asks again
            raise

    # In threads of the pool

    def _get_table(self, run: int) -> RunTable:
        row = self._runs[run]
        start = int(row["position"]) + int(row["size_bytes"])
        return self._parse_table(run, self._get(run, start, int(row["batches_count"]) * TABLE_ENTRY_BYTES), start)

    def _get(self, run: int, start: int, size_bytes: int) -> Buffer:
        """Bytes of the object of `run`."""
        object_id = int(self._runs["object_id"][run])
        data = self._objects.read(object_id, start, size_bytes)
        if len(data) != size_bytes:
            raise CorruptRecordError(
                file=self._objects.name(object_id),
                position=start,
                expected=f"{size_bytes} bytes, as the commit says",
                found=f"{len(data)} bytes from the store",
                advice=_ADVICE,
            )
        return data

    def _parse_table(self, run: int, data: Buffer, file_position: int) -> RunTable:
        row = self._runs[run]
        base_offset = int(row["base_offset"])
        table = parse_table(
            data,
            size_bytes=int(row["size_bytes"]),
            offsets_count=int(row["end_offset"]) - base_offset,
            file=lambda: self._objects.name(int(row["object_id"])),  # a look-up, so only an error makes it
            file_position=file_position,
        )
        sizes = table["size_bytes"].astype(np.int64)
        return RunTable(
            int(self._starts[run]) + np.cumsum(sizes) - sizes,
            sizes,
            table["last_offset"] + np.int64(base_offset),
            table["max_timestamp_ms"].astype(np.int64),
        )

    def _load(self, piece: _Piece) -> list[_Stored]:
        object_start = int(self._runs["position"][piece.first])
        if piece.table is not None:
            object_start += piece.start - int(self._starts[piece.first])
            data = self._get(piece.first, object_start, piece.end - piece.start)
            return [self._stored(piece.first, data, piece.table, piece.start, object_start)]
        last = self._runs[piece.last - 1]
        object_end = int(last["position"] + last["size_bytes"] + last["batches_count"] * TABLE_ENTRY_BYTES)
        raw = memoryview(self._get(piece.first, object_start, object_end - object_start))
        found: list[_Stored] = []
        for run in range(piece.first, piece.last):
            row = self._runs[run]
            at, size_bytes = int(row["position"]) - object_start, int(row["size_bytes"])
            table_at = at + size_bytes
            table_end = table_at + int(row["batches_count"]) * TABLE_ENTRY_BYTES
            table = self._parse_table(run, raw[table_at:table_end], object_start + table_at)
            found.append(self._stored(run, raw[at:table_at], table, int(self._starts[run]), int(row["position"])))
        return found

    def _stored(self, run: int, data: Buffer, table: RunTable, start: int, object_position: int) -> _Stored:
        """Batches of `run`, compared with `table`. Raises CorruptRecordError."""
        row = self._runs[run]
        found = np.frombuffer(data, np.uint8)

        def place() -> tuple[str, int]:
            return self._objects.name(int(row["object_id"])), object_position

        return _Stored(start, found, table, _heads(found, table, start, row, place))


def _has_failed(requested: Future[RunTable]) -> bool:
    return requested.done() and requested.exception() is not None


def _plan(runs: NDArray[np.void], starts: NDArray[np.int64]) -> list[_Piece]:
    """The pieces: small runs that are close together in one object, and large runs."""
    pieces: list[_Piece] = []
    object_ids, positions = runs["object_id"].tolist(), runs["position"].tolist()
    sizes = runs["size_bytes"].tolist()
    ends = (runs["position"] + runs["size_bytes"] + runs["batches_count"] * np.int64(TABLE_ENTRY_BYTES)).tolist()
    first = 0
    for run in range(1, len(runs) + 1):
        if (
            run < len(runs)
            and object_ids[run] == object_ids[first]
            and 0 <= positions[run] - ends[run - 1] <= _GAP_BYTES
            and ends[run] - positions[first] <= PIECE_BYTES
            and sizes[first] <= PIECE_BYTES
        ):
            continue
        pieces.append(_Piece(int(starts[first]), int(starts[run]), first, run))
        first = run
    return pieces


def _parts(piece: _Piece, table: RunTable) -> list[_Piece]:
    """The parts of a large run: whole batches, of PIECE_BYTES or one batch."""
    parts: list[_Piece] = []
    ends = table.positions + table.sizes
    first = 0
    while first < len(ends):
        start = int(table.positions[first])
        last = max(int(np.searchsorted(ends, start + PIECE_BYTES, side="right")), first + 1)
        rows = slice(first, last)
        own = RunTable(
            table.positions[rows], table.sizes[rows], table.last_offsets[rows], table.max_timestamps_ms[rows]
        )
        parts.append(_Piece(start, int(ends[last - 1]), piece.first, piece.last, own))
        first = last
    return parts


def _heads(
    data: NDArray[np.uint8], table: RunTable, start: int, run: np.void, place: Callable[[], tuple[str, int]]
) -> NDArray[np.uint8]:
    """The first bytes of the batches in `data`, which is at `start` of the source, with the log's offsets and epoch.

    `place` returns the object and the position in it that `data` begins at; a look-up, so only an error makes it.
    Raises CorruptRecordError for a batch that differs from the table.
    """
    at = table.positions - start
    stored = data[at[:, None] + np.arange(_STORED_DTYPE.itemsize)].view(_STORED_DTYPE).reshape(-1)
    lengths = stored["length"].astype(np.int64)
    _refuse(lengths + LOG_OVERHEAD_BYTES != table.sizes, at, place, "batch length", lengths, table.sizes - 12)
    base_offsets = stored["base_offset"] + run["base_offset"]
    last_offsets = base_offsets + stored["last_offset_delta"]
    is_wrong = (last_offsets != table.last_offsets) | (base_offsets > last_offsets)
    _refuse(is_wrong, at, place, "last offset", last_offsets, table.last_offsets)
    heads = np.empty(len(at), _HEAD_DTYPE)
    heads["base_offset"], heads["length"], heads["leader_epoch"] = base_offsets, lengths, run["leader_epoch"]
    return heads.view(np.uint8).reshape(-1, _HEAD_BYTES)


def _refuse(
    is_wrong: NDArray[np.bool_],
    at: NDArray[np.int64],
    place: Callable[[], tuple[str, int]],
    what: str,
    found: NDArray[np.int64],
    expected: NDArray[np.int64],
) -> None:
    if is_wrong.any():
        first = int(np.flatnonzero(is_wrong)[0])
        file, position = place()
        raise CorruptRecordError(
            file=file,
            position=position + int(at[first]),
            expected=f"a batch with the {what} {expected[first]}, as the run's table says",
            found=str(found[first]),
            advice=_ADVICE,
        )


GROUP_BYTES: Final = 256 * MIB
_GROUP_RUNS: Final = 4096


class RunExtent:
    """The extent of `runs` (`run_dtype`, one or more), which follow each other. For one thread.

    `name` is what error messages call the partition's log.
    """

    def __init__(self, runs: NDArray[np.void], objects: ObjectBytes, *, name: str) -> None:
        self.runs = runs
        self.base_offset = int(runs["base_offset"][0])
        self.end_offset = int(runs["end_offset"][-1])
        self._objects = objects
        self._name = name

    @property
    def known_size_bytes(self) -> int:
        return int(self.runs["size_bytes"].sum(dtype=np.int64))

    @property
    def known_max_timestamp_ms(self) -> int:
        return int(self.runs["max_timestamp_ms"].max())

    @cached_property
    def _source(self) -> RunSource:
        return RunSource(self.runs, self._objects, name=f"{self._name}, runs from offset {self.base_offset}")

    def open(self) -> RunSource:
        """The bytes; requested when they are read."""
        return self._source

    def offset_index(self) -> RunOffsets:
        return RunOffsets(self.runs, self._source)

    def time_index(self) -> RunTimestamps:
        return RunTimestamps(self.runs, self._source)


class RunOffsets:
    """Looks up offsets in the runs of an extent."""

    def __init__(self, runs: NDArray[np.void], source: RunSource) -> None:
        self._runs = runs
        self._source = source

    def lookup(self, target_offset: int) -> OffsetPosition:
        """The batch that holds the offset, or the first one after it: its last offset, and its position.

        The last batch if all are below.
        """
        run = min(int(np.searchsorted(self._runs["end_offset"], target_offset, side="right")), len(self._runs) - 1)
        table = self._source.table(run)
        at = min(int(np.searchsorted(table.last_offsets, target_offset)), len(table.last_offsets) - 1)
        return OffsetPosition(int(table.last_offsets[at]), int(table.positions[at]))

    def entries_array(self) -> NDArray[np.void]:
        """Where splits may be cut: the last offset of each run but the last, and the position after it."""
        entries = np.empty(len(self._runs) - 1, OFFSET_INDEX_DTYPE)
        entries["offset"] = self._runs["end_offset"][:-1] - 1
        entries["position"] = np.cumsum(self._runs["size_bytes"], dtype=np.int64)[:-1]
        return entries

    def close_handler(self) -> None:
        """Nothing is open."""


class RunTimestamps:
    """Looks up timestamps in the runs of an extent."""

    def __init__(self, runs: NDArray[np.void], source: RunSource) -> None:
        self._runs = runs
        self._source = source

    @property
    def entries(self) -> int:
        """More than 0: there is a batch."""
        return len(self._runs)

    @property
    def last_entry(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of the first batch that has it."""
        return self._first_since(int(self._runs["max_timestamp_ms"].max()))

    def lookup(self, timestamp_ms: int) -> TimestampOffset:
        """The first batch with a timestamp of at least `timestamp_ms`: its largest timestamp and its last offset.

        If there is none, the first batch with the largest timestamp.
        """
        return self._first_since(min(timestamp_ms, int(self._runs["max_timestamp_ms"].max())))

    def close_handler(self) -> None:
        """Nothing is open."""

    def _first_since(self, timestamp_ms: int) -> TimestampOffset:
        run = int(np.argmax(self._runs["max_timestamp_ms"] >= timestamp_ms))
        table = self._source.table(run)
        at = int(np.argmax(table.max_timestamps_ms >= timestamp_ms))
        return TimestampOffset(int(table.max_timestamps_ms[at]), int(table.last_offsets[at]))


def run_extents(runs: NDArray[np.void], objects: ObjectBytes, *, name: str) -> Iterator[RunExtent]:
    """Extents of `runs` (`run_dtype`), which follow each other, in groups; see RunExtent for `name`."""
    ends = np.cumsum(runs["size_bytes"], dtype=np.int64)
    first = 0
    while first < len(runs):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + GROUP_BYTES, side="right"))
        # Positions in a segment are offsets relative to its base in an int32.
        last_offset = int(runs["base_offset"][first]) + INT32_MAX
        last = min(last, int(np.searchsorted(runs["end_offset"], last_offset, side="right")), first + _GROUP_RUNS)
        last = max(last, first + 1)
        yield RunExtent(runs[first:last], objects, name=name)
        first = last
