"""Rebuilds producer state from the latest usable snapshot and the batches after it.

rebuild_producer_state    for a log that is loaded for writing: writes the snapshots that Kafka writes on the way
                          (UnifiedLog.rebuildProducerState)
producer_state_at         for readers and checks: writes nothing, skips damaged and later snapshots
ResumedProducers          for a log resumed from a commit: holds the last writer's entry, which is all that a plain
                          append needs. The complete state is rebuilt only if a roll must write the next snapshot,
                          or the last stable offset is requested: once per segment, not once per commit
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptIndexError, UnsupportedFormatError
from pyspark_kafkalog.record.header import CONTROL_MASK, MAGIC_AT, NO_SEQUENCE, next_sequence
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing, list_base_offsets
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry, read_snapshot
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.producers import (
    BATCHES_TO_RETAIN,
    CompletedTransaction,
    ProducerBatch,
    ProducerStateManager,
    fenced_error,
    producer_batches,
)
from pyspark_kafkalog.storage.names import LOG_SUFFIX, PRODUCER_SNAPSHOT_SUFFIX, segment_file
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader
from pyspark_kafkalog.storage.segment.segment import BatchChunk, LogSegment, SegmentList, read_chunks

#: How far before a snapshot the earlier batches of its producers are searched for: those of requests in flight.
_RECALLED_BYTES: Final = 4 << 20
_RECALLED_SEGMENTS: Final = 64


def rebuild_producer_state(
    producers: ProducerStateManager,
    segments: SegmentList,
    *,
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
    clean_shutdown: bool = False,
) -> None:
    """Advance `producers` to `end_offset`, and write the snapshots that Kafka writes on the way.

    If a cleanly closed log has no snapshot, no producer with an id has written to it: empty snapshots are written, and
    nothing is read.
    """
    snapshot_offsets = [*segments.base_offsets[-2:], end_offset]
    if producers.snapshots.latest_offset is None and clean_shutdown:
        for offset in snapshot_offsets:
            producers.end_offset = offset
            producers.take_snapshot()
        return
    was_empty = producers.is_empty and producers.end_offset >= end_offset
    producers.load(log_start_offset, end_offset, now_ms)
    if end_offset > producers.end_offset and not was_empty:
        for segment in _overlapping(segments, producers.end_offset, end_offset):
            producers.end_offset = max(segment.base_offset, producers.end_offset, log_start_offset)
            if segment.base_offset in snapshot_offsets:
                producers.take_snapshot()
            _replay_segment(producers, segment, producers.end_offset, end_offset)
    producers.end_offset = end_offset
    producers.take_snapshot()


def load_latest_snapshot(
    producers: ProducerStateManager,
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
    tried_first: Sequence[int] = (),
) -> None:
    """Start `producers` at the latest usable snapshot in (log start, end], or empty at the log start; no writes.

    The directory is listed only if none of the snapshots at the offsets `tried_first` is usable.
    """
    for offset in chain(tried_first, _snapshot_offsets(producers.directory)):
        if log_start_offset < offset <= end_offset:
            entries = _read_usable_snapshot(segment_file(producers.directory, offset, PRODUCER_SNAPSHOT_SUFFIX))
            if entries is not None:
                producers.begin_at(offset, entries, now_ms)
                return
    producers.begin_at(log_start_offset, (), now_ms)


def _snapshot_offsets(directory: Path) -> Iterator[int]:
    """Those in the directory, the last one first; it is listed when the first is asked for."""
    yield from reversed(PartitionListing.read(directory).snapshot_offsets)


def producer_state_at(
    directory: Path,
    end_offset: int,
    *,
    log_start_offset: int,
    expiration_ms: int,
    now_ms: int,
    on_completed: Callable[[CompletedTransaction], None] | None = None,
) -> ProducerStateManager:
    """Producer state of the partition in `directory` at `end_offset`, without writing anything.

    `on_completed` is called with each transaction that a replayed marker has ended. Raises DiskFormatError for damage
    in the batches that have to be replayed.
    """
    producers = ProducerStateManager(directory, expiration_ms=expiration_ms)
    load_latest_snapshot(producers, log_start_offset, end_offset, now_ms)
    advance(producers, end_offset, on_completed)
    return producers


def advance(
    producers: ProducerStateManager, end_offset: int, on_completed: Callable[[CompletedTransaction], None] | None = None
) -> None:
    """Add the stored batches from the end of `producers` to `end_offset`, without writing anything."""
    start_offset = producers.end_offset
    if start_offset >= end_offset:
        return
    for chunk, file in stored_batches(producers.directory, start_offset, end_offset):
        replayed = _between(chunk.batches, start_offset, end_offset)
        batches = producer_batches(chunk.data, replayed, data_position=chunk.position, file=file)
        producers.replay(batches, _ignore if on_completed is None else lambda ended, _: on_completed(ended))
    producers.end_offset = end_offset


def stored_batches(directory: Path, start_offset: int, end_offset: int) -> Iterator[tuple[BatchChunk, str]]:
    """Chunks of batches, with their file's name, of the segments that overlap [start_offset, end_offset).

    Messages of older formats, which have no producers, are passed over.
    """
    bases = list_base_offsets(directory)
    for base_offset, next_base in zip(bases, [*bases[1:], None][: len(bases)], strict=True):
        if base_offset >= end_offset or (next_base is not None and next_base <= start_offset):
            continue
        file = str(segment_file(directory, base_offset, LOG_SUFFIX))
        with SegmentReader(LocalExtent(directory, base_offset)) as reader:
            position: int | None = reader.position_for_offset(start_offset)
            fd = open_file(file)
            try:
                while position is not None:
                    behind, position = reader.skip_old(position), None
                    try:
                        for chunk in read_chunks(
                            fd,
                            file=file,
                            start=behind,
                            end=os.fstat(fd).st_size,
                            base_offset=base_offset,
                            max_offset=end_offset,
                        ):
                            yield chunk, file
                            if int(chunk.batches["last_offset"][-1]) >= end_offset - 1:
                                return
                    except UnsupportedFormatError as error:  # a topic that was set to an older format again
                        position = error.position - MAGIC_AT
                        if position == behind:
                            raise
            finally:
                os.close(fd)


def _overlapping(segments: SegmentList, start_offset: int, end_offset: int) -> list[LogSegment]:
    """Those of a log's segments that can hold offsets in [start_offset, end_offset)."""
    return [segment for segment in segments.from_offset(start_offset) if segment.base_offset < end_offset]


def _replay_segment(producers: ProducerStateManager, segment: LogSegment, start_offset: int, end_offset: int) -> None:
    for chunk in segment.chunks(segment.position_at_or_before(start_offset)):
        replayed = _between(chunk.batches, start_offset, end_offset)
        batches = producer_batches(chunk.data, replayed, data_position=chunk.position, file=str(segment.log_path))
        producers.replay(batches, _ignore)
        if int(chunk.batches["last_offset"][-1]) >= end_offset - 1:
            return


def _between(batches: NDArray[np.void], start_offset: int, end_offset: int) -> NDArray[np.void]:
    """The batches in [start_offset, end_offset), including one that starts earlier and contains `start_offset`."""
    return batches[(batches["last_offset"] >= start_offset) & (batches["last_offset"] < end_offset)]


def _read_usable_snapshot(path: Path) -> tuple[ProducerStateEntry, ...] | None:
    try:
        return read_snapshot(path)
    except (CorruptIndexError, FileNotFoundError):
        return None


def _recall_batches(producers: ProducerStateManager, segments: SegmentList, snapshot_offset: int) -> None:
    """Give the producers of a snapshot the batches before their last one, which is all that a snapshot has.

    Retries go to any process, so the first retry after a roll may meet one that has just loaded the snapshot. A broker
    keeps these batches in memory. Reads only the last bytes before the snapshot.
    """
    known = {each.producer_id for each in producers.producers.values() if each.batches}
    found: dict[int, list[ProducerBatch]] = {producer_id: [] for producer_id in known}
    left_bytes = _RECALLED_BYTES
    for segment in islice(segments.before(snapshot_offset), _RECALLED_SEGMENTS) if known else ():
        wanted = [producer_id for producer_id, batches in found.items() if len(batches) < BATCHES_TO_RETAIN]
        if not wanted or left_bytes <= 0:
            break
        earliest = segment.size_bytes - left_bytes
        position = segment.position_at_or_before(segment.offset_index.lookup_position(earliest).offset)
        if position < earliest - _RECALLED_BYTES:  # the index is not reliable, and a segment may be large
            break
        for producer_id, batches in _batches_of(wanted, segment, position, snapshot_offset).items():
            found[producer_id][:0] = batches
        left_bytes -= segment.size_bytes - position
    for producer_id, batches in found.items():
        producers.recall(producer_id, batches)


def _batches_of(
    producer_ids: Collection[int], segment: LogSegment, position: int, end_offset: int
) -> dict[int, list[ProducerBatch]]:
    """The data batches of the producers from `position` of the segment on, below `end_offset`, in order."""
    found: dict[int, list[ProducerBatch]] = {}
    for chunk in segment.chunks(position):
        rows = chunk.batches[np.isin(chunk.batches["producer_id"], list(producer_ids))]
        rows = rows[(rows["last_offset"] < end_offset) & ((rows["attributes"] & CONTROL_MASK) == 0)]
        for batch in producer_batches(chunk.data, rows, data_position=chunk.position, file=str(segment.log_path)):
            found.setdefault(batch.producer_id, []).append(batch)
    return found


def _ignore(transaction: CompletedTransaction, last_stable_offset: int) -> None:
    """Does nothing: replays for producer state alone leave the transaction index unchanged."""


class ResumedProducers:
    """The last writer's entry, None if no producer with an id has ever written to the log.

    `first_undecided_offset` is the first offset of the oldest open transaction, None without one: plain appends neither
    begin nor end transactions.
    """

    def __init__(
        self,
        directory: Path,
        last_entry: ProducerStateEntry | None,
        *,
        log_start_offset: int,
        expiration_ms: int,
        fs: FileSystem,
        first_undecided_offset: int | None = None,
    ) -> None:
        self.last_entry = last_entry
        self.first_undecided_offset = first_undecided_offset
        self._directory = directory
        self._log_start_offset = log_start_offset
        self._expiration_ms = expiration_ms
        self._fs = fs

    def load(self, segments: SegmentList, log_end_offset: int, now_ms: int) -> ProducerStateManager:
        """The complete state at `log_end_offset`; `segments` are all of the log.

        Reads the log only if a producer with an id has written to it. A clean close has left a snapshot at the log end,
        the last roll one at the active segment.
        """
        producers = ProducerStateManager(self._directory, expiration_ms=self._expiration_ms, fs=self._fs)
        usual = log_end_offset, segments.active.base_offset
        load_latest_snapshot(producers, self._log_start_offset, log_end_offset, now_ms, tried_first=usual)
        if self.last_entry is not None:
            start_offset = producers.end_offset
            _recall_batches(producers, segments, start_offset)
            for segment in _overlapping(segments, start_offset, log_end_offset):
                _replay_segment(producers, segment, start_offset, log_end_offset)
        producers.end_offset = log_end_offset
        return producers

    def count_in(self, batches: NDArray[np.void]) -> None:
        """Make the last batch with a producer id, if any, the last entry. `batches` has final offsets."""
        rows = batches[batches["producer_id"] >= 0]
        if not len(rows):
            return
        row = rows[-1]
        producer_id, epoch = int(row["producer_id"]), int(row["producer_epoch"])
        delta = int(row["last_offset"]) - int(row["base_offset"])
        base_sequence = int(row["base_sequence"])
        self.last_entry = ProducerStateEntry(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_sequence=NO_SEQUENCE if base_sequence == NO_SEQUENCE else next_sequence(base_sequence, delta),
            last_offset=int(row["last_offset"]),
            offset_delta=delta,
            last_timestamp_ms=int(row["max_timestamp_ms"]),
        )

    def check(self, batches: NDArray[np.void]) -> None:
        """Raise ProducerFencedError if a batch's producer has written with a newer epoch."""
        if self.last_entry is None:
            return
        own = batches["producer_id"] == self.last_entry.producer_id
        older = own & (batches["producer_epoch"] < self.last_entry.producer_epoch)
        if older.any():
            raise fenced_error(
                self.last_entry.producer_id,
                int(batches["producer_epoch"][older][0]),
                newer_epoch=self.last_entry.producer_epoch,
            )
