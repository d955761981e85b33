"""A segment's records as the cleaner processes them: the location, offset and time of each, and the hash of its key.

Segments are read in chunks of whole batches, verified and decompressed, so memory is bounded whatever a segment's size.
If the process has more than one core, threads prefetch the next chunks, in order (`work_ahead`). The work is mostly
compiled code, which releases the GIL. The number of threads affects only the time taken, not the chunks.

A local segment can also be read from its end. Only a walk over the headers from the first one on tells where batches
begin, as an index is a hint, so its bytes are read twice then, but checked and decompressed once.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.maintenance.cleaner import kernels_cleaner as kernels
from pyspark_kafkalog.record.decode import LogBytes, Sections, check_counts, open_sections, record_fault
from pyspark_kafkalog.record.header import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_AT,
    TRANSACTIONAL_MASK,
)
from pyspark_kafkalog.record.kernels.decode import NO_FAULT, STATE_SIZE
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage.segment.reader import CHUNK_BYTES as RUN_BYTES
from pyspark_kafkalog.storage.segment.reader import BatchRun, Extent, LocalExtent, SegmentReader
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.units import INT64_MAX

#: Decompressed bytes of records held at a time, but never less than one batch.
CHUNK_BYTES: Final = 8 << 20
_SCRATCH_SLACK_BYTES: Final = 1 << 20
#: The stored bytes of a piece, which a thread takes at a time; compressed bytes count _EXPANSION times.
_PIECE_WEIGHT: Final = 4 << 20
_EXPANSION: Final = 2
_THREADS_MAX: Final = 2
#: Items requested in advance beyond one more than the number of threads: some take much longer, and results are in
#: order. More of them would exceed the processor's cache.
QUEUE_ITEMS: Final = 1

#: Returns which of the batches (BATCH_DTYPE) need not be read, since none of their records stays.
DropsBatches: TypeAlias = Callable[[NDArray[np.void]], NDArray[np.bool_]]

Item = TypeVar("Item")
Verdict = TypeVar("Verdict")
Result = TypeVar("Result")


def spare_threads() -> int:
    """The useful number of threads besides the caller's: none on one core, else two, since callers often wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _THREADS_MAX if cores > 1 else 0


def work_ahead(items: Iterator[Item], work: Callable[[Item], Result], *, threads: int) -> Generator[Result, None, None]:
    """work(item) for each item, in order. The caller's thread requests a few more items than there are threads.

    An error of `items` or `work` is raised when its item's turn comes. When the caller stops early, this waits for
    calls that have begun; so close it before the resources that `work` uses.
    """
    if not threads:
        yield from map(work, items)
        return
    with Workers(threads, "work-ahead") as executor:
        under_way: deque[Future[Result]] = deque()
        try:
            for item in items:
                under_way.append(executor.submit(work, item))
                if len(under_way) > threads + QUEUE_ITEMS:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


class Turns:
    """Makes threads that process items concurrently do one part of the work item by item, in order."""

    def __init__(self) -> None:
        self._next = 0
        self._done: set[int] = set()
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        """Wait until all items before `number` are done with that part."""
        with self._changed:
            self._changed.wait_for(lambda: self._next >= number)

    def done(self, number: int) -> None:
        """Item `number` is done with that part, or will not reach it."""
        with self._changed:
            self._done.add(number)
            while self._next in self._done:
                self._done.remove(self._next)
                self._next += 1
            self._changed.notify_all()


class BufferPool:
    """Reusable buffers of one size, which avoid the page faults of new memory. Not thread-safe."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """A buffer of at least `size_bytes`; one larger than the pool's size is not reused."""
        if size_bytes <= self._size_bytes and self._free:
            return self._free.pop()
        return np.empty(max(size_bytes, self._size_bytes), np.uint8)  # bounded: what was read of the log

    def give(self, data: NDArray[np.uint8]) -> None:
        """Return a buffer from `take`, or a slice of it."""
        buffer = data if data.base is None else data.base
        assert isinstance(buffer, np.ndarray)
        if len(buffer) == self._size_bytes:
            self._free.append(buffer)


@dataclass(frozen=True, slots=True)
class IndexedRecords:
    """Records of some batches: row i of each array is one record, in order of offsets.

    `firsts` int64[batches + 1]: first row of each batch. `starts`, `ends`: addresses. `flags`: HAS_KEY, HAS_VALUE;
    without a key the hashes are undefined. `control_types`: one for each batch, see kernels_cleaner.
    """

    firsts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    second_hashes: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    control_types: NDArray[np.int16]

    @property
    def count(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Batches of one file with their records. `data` contains the batches as stored, from byte `position` of the file.

    Batches that were dropped unread have no records and no sections, only their headers.
    """

    file: str
    data: NDArray[np.uint8]
    position: int
    sections: Sections
    records: IndexedRecords

    @property
    def batches(self) -> NDArray[np.void]:
        """The batches' headers, BATCH_DTYPE."""
        return self.sections.batches

    @property
    def stored_bytes(self) -> int:
        return int(self.batches["size_bytes"].sum())

    @property
    def stored_records(self) -> int:
        """The number of records by the headers."""
        return int(self.batches["records_count"].sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece of a segment is: `size_bytes` of whole batches from byte `position` on."""

    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some batches of a run, for one thread at a time. `is_last`: it is the last piece of the run."""

    number: int
    run: BatchRun
    batches: NDArray[np.void]
    scratch: NDArray[np.uint8]
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReader:
    """Reads the batches of the segment `extent` from `start_offset` to below `end_offset`, also control batches.

    `limit_offset` is the base offset of the next segment. `before_read` is called with the number of bytes before they
    are yielded, and may block. `drops`, which threads call, can exclude batches from being read. `record_max_bytes` is
    the topic's max.decompressed.message.bytes. Reading raises DiskFormatError for damage, InvalidRecordError for a
    larger record, and FileNotFoundError when the segment has been deleted.
    """

    extent: Extent
    start_offset: int
    limit_offset: int | None
    seed: NDArray[np.uint64]
    before_read: Callable[[int], None]
    record_max_bytes: int
    drops: DropsBatches | None = None
    end_offset: int = INT64_MAX

    def chunks(self) -> Iterator[RecordChunk]:
        """All chunks; the arrays of each are valid until the next."""
        for piece, first in self._pieces(self._open, self._cut):
            chunk, taken = first, 0
            while True:
                self.before_read(chunk.stored_bytes)
                yield chunk
                taken += len(chunk.batches)
                if taken == len(piece.batches):
                    break
                chunk = self._open(replace(piece, batches=piece.batches[taken:]))

    def results(
        self, judge: Callable[[RecordChunk], Verdict], finish: Callable[[RecordChunk, Verdict], Result]
    ) -> Iterator[Result]:
        """finish(chunk, judge(chunk)) for all chunks, in order; both functions run in threads.

        `judge` is called on one chunk at a time, in order; `finish` on several chunks concurrently.
        """
        turns = Turns()

        def work_on(piece: _Piece) -> list[Result]:
            found = []
            taken = 0
            try:
                while taken < len(piece.batches):
                    chunk = self._open(replace(piece, batches=piece.batches[taken:]))
                    taken += len(chunk.batches)
                    turns.wait(piece.number)
                    verdict = judge(chunk)
                    if taken == len(piece.batches):
                        turns.done(piece.number)
                    found.append(finish(chunk, verdict))
            finally:
                turns.done(piece.number)
            return found

        for piece, found in self._pieces(work_on, self._cut):
            self.before_read(int(piece.batches["size_bytes"].sum()))
            yield from found

    def places(self) -> list[Place] | None:
        """Where the pieces are, for `results_from_end`; None for a segment that is to be read in order.

        That is one with a batch of a transaction, which only the batches before it can judge, a remote one, whose
        ranges are requested ahead, and one with messages of older formats.
        """
        if not isinstance(self.extent, LocalExtent):
            return None
        found: list[Place] = []
        memory = np.empty(RUN_BYTES, np.uint8)

        def take(size_bytes: int) -> NDArray[np.uint8]:
            nonlocal memory
            if len(memory) < size_bytes:
                memory = np.empty(size_bytes, np.uint8)  # bounded: what was read of the log
            return memory

        with SegmentReader(self.extent) as segment:
            for run in self._runs(segment, take):
                is_converted = not np.may_share_memory(run.data, memory)
                if is_converted or (run.batches["attributes"] & (TRANSACTIONAL_MASK | CONTROL_MASK)).any():
                    return None
                for batches in _cut_run(run.batches):
                    found.append(Place(int(batches["position"][0]), int(batches["size_bytes"].sum())))
        return found

    def results_from_end(
        self,
        places: Sequence[Place],
        judge: Callable[[RecordChunk], Verdict],
        finish: Callable[[RecordChunk, Verdict], Result],
    ) -> Generator[Result, None, None]:
        """As `results`, from the last chunk of the segment to the first, which are other chunks than in order."""
        turns = Turns()
        fitting = INT64_MAX  # batches that fit a chunk, as far as seen

        def work_on(piece: _Piece) -> list[Result]:
            nonlocal fitting
            found = []
            rest = _slices(piece.batches, fitting)
            try:
                while rest:
                    batches = rest.pop()
                    chunk = self._open(replace(piece, batches=batches))
                    if len(chunk.batches) < len(batches):
                        fitting = max(len(chunk.batches) * 3 // 4, 1)
                        rest += _slices(batches, fitting)
                        continue
                    turns.wait(piece.number)
                    verdict = judge(chunk)
                    if not rest:
                        turns.done(piece.number)
                    found.append(finish(chunk, verdict))
            finally:
                turns.done(piece.number)
            return found

        def cut(segment: SegmentReader, buffers: BufferPool, scratches: BufferPool) -> Iterator[_Piece]:
            for number, place in enumerate(reversed(places)):
                run = _read(segment, place, buffers.take(place.size_bytes))
                yield _Piece(number, run, _without_codec_of_empty(run.batches), scratches.take(0), True)

        for piece, found in self._pieces(work_on, cut):
            self.before_read(int(piece.batches["size_bytes"].sum()))
            yield from found

    def _pieces(
        self, work: Callable[[_Piece], Result], cut: Callable[[SegmentReader, BufferPool, BufferPool], Iterator[_Piece]]
    ) -> Iterator[tuple[_Piece, Result]]:
        """Each piece that `cut` makes of the segment, with work(piece); threads work on the next pieces meanwhile.

        `cut` gets the segment, and the pools of the pieces' buffers and scratch memory.
        """
        buffers = BufferPool(RUN_BYTES)
        scratches = BufferPool(CHUNK_BYTES + _SCRATCH_SLACK_BYTES)

        def check_and_work(piece: _Piece) -> tuple[_Piece, Result]:
            verify_crcs(piece.run.data, piece.batches, data_position=piece.run.position, file=piece.run.file)
            return piece, work(piece)

        with (
            SegmentReader(self.extent) as segment,
            closing(work_ahead(cut(segment, buffers, scratches), check_and_work, threads=spare_threads())) as worked,
        ):
            for piece, result in worked:
                yield piece, result
                scratches.give(piece.scratch)
                if piece.is_last:
                    buffers.give(piece.run.data)

    def _cut(self, segment: SegmentReader, buffers: BufferPool, scratches: BufferPool) -> Iterator[_Piece]:
        """Pieces of each run, in order, cut by stored bytes only, so that they do not depend on other parameters."""
        number = itertools.count()
        for run in self._runs(segment, buffers.take):
            *others, last = _cut_run(run.batches)
            for batches in others:
                yield _Piece(next(number), run, batches, scratches.take(0), False)
            yield _Piece(next(number), run, last, scratches.take(0), True)

    def _runs(self, segment: SegmentReader, take_buffer: Callable[[int], NDArray[np.uint8]]) -> Iterator[BatchRun]:
        is_inside = self.start_offset > self.extent.base_offset
        return segment.runs(
            segment.position_for_offset(self.start_offset) if is_inside else 0,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            limit_offset=self.limit_offset,
            take_buffer=take_buffer,
            check_crcs=False,
        )

    def _open(self, piece: _Piece) -> RecordChunk:
        """The first batches of the piece, as many as fit a chunk."""
        return _open(piece, self.seed, self.drops, self.record_max_bytes)


def _cut_run(batches: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    """The batches of the pieces of a run."""
    batches = _without_codec_of_empty(batches)
    is_compressed = (batches["attributes"] & COMPRESSION_MASK) != 0
    weights = np.cumsum(batches["size_bytes"] * np.where(is_compressed, _EXPANSION, 1))
    first = 0
    while first < len(batches):
        done = int(weights[first - 1]) if first else 0
        after = max(int(np.searchsorted(weights, done + _PIECE_WEIGHT, side="right")), first + 1)
        yield batches[first:after]
        first = after


def _slices(batches: NDArray[np.void], most: int) -> list[NDArray[np.void]]:
    """The batches in slices of at most `most`, in order."""
    return [batches[first : first + most] for first in range(0, len(batches), most)]  # bounded: the batches


def _read(segment: SegmentReader, place: Place, buffer: NDArray[np.uint8]) -> BatchRun:
    """The batches at the place, which a walk over the segment has found there. Raises CorruptRecordError."""
    data = buffer[: segment.read_into(place.position, buffer.data[: place.size_bytes])]
    scan = scan_batches(data, file=segment.file, file_position=place.position)
    if scan.fault is not None:
        raise scan.fault
    if scan.consumed_bytes != place.size_bytes:
        raise CorruptRecordError(
            file=segment.file,
            position=place.position,
            expected=f"{place.size_bytes} bytes of whole batches",
            found=str(scan.consumed_bytes),
        )
    return BatchRun(segment.file, data, place.position, scan.batches)


def _open(piece: _Piece, seed: NDArray[np.uint64], drops: DropsBatches | None, record_max_bytes: int) -> RecordChunk:
    """The first batches of the piece, as many as fit a chunk."""
    run, batches = piece.run, piece.batches
    log = LogBytes.of(run.data, batches, run.position, run.file, False, record_max_bytes)
    is_read = np.ones(len(batches), np.bool_) if drops is None else ~drops(batches)
    if is_read.all():
        sections = open_sections(log, batches, max_bytes=CHUNK_BYTES, scratch=piece.scratch)
        return RecordChunk(run.file, run.data, run.position, sections, _index(sections, seed, run.file))
    rows = np.flatnonzero(is_read)
    found = open_sections(log, batches[rows], max_bytes=CHUNK_BYTES, scratch=piece.scratch)
    rows = rows[: len(found.batches)]
    taken = len(batches) if len(rows) == np.count_nonzero(is_read) else int(rows[-1]) + 1
    addresses, sizes = np.zeros(taken, np.int64), np.zeros(taken, np.int64)  # bounded: the batches of the piece
    addresses[rows], sizes[rows] = found.addresses, found.sizes
    read = batches[:taken].copy()
    read["records_count"][~is_read[:taken]] = 0
    records = _index(Sections(read, addresses, sizes, found.owners), seed, run.file)
    return RecordChunk(
        run.file, run.data, run.position, Sections(batches[:taken], addresses, sizes, found.owners), records
    )


def _without_codec_of_empty(batches: NDArray[np.void]) -> NDArray[np.void]:
    """Clear the codec bits of batches that are only a header: they have nothing to decompress."""
    is_bare = batches["size_bytes"] == RECORD_BATCH_OVERHEAD_BYTES
    is_odd = is_bare & ((batches["attributes"] & COMPRESSION_MASK) != 0)
    if not is_odd.any():
        return batches
    result: NDArray[np.void] = batches.copy()
    result["attributes"][is_odd] &= ~np.int16(COMPRESSION_MASK)
    return result


def _index(sections: Sections, seed: NDArray[np.uint64], file: str) -> IndexedRecords:
    check_counts(sections, file)
    batches = sections.batches
    firsts = np.zeros(len(batches) + 1, np.int64)
    np.cumsum(batches["records_count"], dtype=np.int64, out=firsts[1:])
    rows = int(firsts[-1])
    records = IndexedRecords(
        firsts=firsts,
        starts=np.empty(rows, np.int64),  # bounded: by check_counts
        ends=np.empty(rows, np.int64),  # bounded: by check_counts
        offsets=np.empty(rows, np.int64),  # bounded: by check_counts
        timestamps_ms=np.empty(rows, np.int64),  # bounded: by check_counts
        hashes=np.empty(rows, np.uint64),  # bounded: by check_counts
        second_hashes=np.empty(rows, np.uint64),  # bounded: by check_counts
        flags=np.empty(rows, np.uint8),  # bounded: by check_counts
        control_types=np.empty(len(batches), np.int16),
    )
    state = np.zeros(STATE_SIZE, np.int64)
    fault = kernels.index_records(
        sections.addresses,
        sections.sizes,
        batches,
        seed,
        records.starts,
        records.ends,
        records.offsets,
        records.timestamps_ms,
        records.hashes,
        records.second_hashes,
        records.flags,
        records.control_types,
        state,
    )
    if fault != NO_FAULT:
        raise record_fault(fault, state, batches, file)
    _check_control_keys(records, batches, file)
    return records


def _check_control_keys(records: IndexedRecords, batches: NDArray[np.void], file: str) -> None:
    bad = np.flatnonzero(records.control_types == kernels.BAD_CONTROL_KEY)
    if len(bad):
        batch = batches[bad[0]]
        codec = int(batch["attributes"]) & COMPRESSION_MASK
        raise CorruptRecordError(
            file=file,
            position=int(batch["position"]) + RECORDS_AT,
            expected=f"a control record's key of at least 4 bytes in the batch at offset {int(batch['base_offset'])}",
            found="a shorter one, or one of a version below 0" + (", after decompression" if codec else ""),
        )
