"""For the Kafka protocol server's Fetch and ListOffsets: reads of a log that is open for writing.

Raw batches by offset, and offsets by timestamp. Readers of other processes use `reader`, which needs no open log.

Source of the rules: org.apache.kafka.storage.internals.log.LocalLog.read, UnifiedLog.fetchOffsetByTimestamp and
org.apache.kafka.common.record.FileRecords.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.record.header import BATCH_DTYPE
from pyspark_kafkalog.record.reference import Record, decode_batch
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage.artefacts.time_index import TimestampOffset
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions
from pyspark_kafkalog.storage.log.reader import TimestampAndOffset
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.segment.segment import BatchChunk, LogSegment, read_range


class Isolation(Enum):
    """The end of a log for a reader.

    LOG_END         everything stored
    HIGH_WATERMARK  committed records: read_uncommitted
    COMMITTED       up to the last stable offset, without batches of aborted transactions: read_committed
    """

    LOG_END = auto()
    HIGH_WATERMARK = auto()
    COMMITTED = auto()


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches as stored. `batches` (BATCH_DTYPE) holds those that the reader may see, with positions in `file`.

    `data` starts at byte `position` of `file`; it may hold batches that `batches` leaves out: those of aborted
    transactions if the isolation is committed. The next read starts at `next_offset`.
    """

    data: NDArray[np.uint8]
    position: int
    batches: NDArray[np.void]
    file: str
    next_offset: int


def read(
    log: UnifiedLog, start_offset: int, *, isolation: Isolation = Isolation.LOG_END, max_bytes: int = 1 << 20
) -> FetchedBatches:
    """Up to `max_bytes` of batches, but at least one, from the batch that holds `start_offset` or follows it.

    Raises OffsetOutOfRangeError outside [log start, log end], CorruptRecordError for a wrong CRC.
    """
    if not log.log_start_offset <= start_offset <= log.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {start_offset} is out of range [{log.log_start_offset}, {log.log_end_offset}] of {log.directory}"
        )
    end_offset = _end_offset(log, isolation)
    for segment in log.segments.from_offset(start_offset):
        found = segment.find_batch(start_offset)
        if found is None:
            continue
        length = max(max_bytes, found.size_bytes)
        data = read_range(segment.fd, found.position, min(length, segment.size_bytes - found.position))
        file = str(segment.log_path)
        batches = scan_batches(data, file=file, file_position=found.position).batches
        batches = batches[batches["base_offset"] < end_offset]
        verify_crcs(data, batches, data_position=found.position, file=file)
        if not len(batches):
            break
        next_offset = int(batches["last_offset"][-1]) + 1
        if isolation is Isolation.COMMITTED:
            aborted = AbortedTransactions.overlapping(log.directory, start_offset, next_offset)
            batches = aborted.keep(batches)
        return FetchedBatches(data, found.position, batches, file, next_offset)
    empty = np.empty(0, dtype=np.uint8)
    return FetchedBatches(empty, 0, np.empty(0, dtype=BATCH_DTYPE), "", start_offset)


def offset_for_timestamp(log: UnifiedLog, timestamp_ms: int) -> TimestampAndOffset | None:
    """The first record from the log start offset on with a timestamp of at least `timestamp_ms`."""
    for segment in log.segments.from_offset(log.log_start_offset):
        if segment.max_timestamp().timestamp_ms >= timestamp_ms:
            found = _find_by_timestamp(segment, timestamp_ms, log.log_start_offset)
            # If the segment's largest timestamp is that of a batch that the cleaner has emptied, Kafka stops here. If
            # the record is below the log start offset, a later segment has the answer.
            if found is not None or segment.base_offset >= log.log_start_offset:
                return found
    return None


def offset_of_max_timestamp(log: UnifiedLog) -> TimestampAndOffset | None:
    """The first record with the largest timestamp of the log; None if no record has a timestamp."""
    best: LogSegment | None = None
    for segment in log.segments:
        if best is None or segment.max_timestamp().timestamp_ms > best.max_timestamp().timestamp_ms:
            best = segment
    if best is None or best.max_timestamp().timestamp_ms < 0:
        return None
    largest = best.max_timestamp()
    for chunk in best.chunks(best.position_at_or_before(largest.offset)):
        rows = np.flatnonzero(chunk.batches["max_timestamp_ms"] == largest.timestamp_ms)
        if len(rows):
            row = int(rows[0])
            for record in _records(best, chunk, row):
                if record.timestamp_ms == largest.timestamp_ms:
                    epoch = int(chunk.batches["leader_epoch"][row])
                    return TimestampAndOffset(record.timestamp_ms, record.offset, epoch)
    return None


def _end_offset(log: UnifiedLog, isolation: Isolation) -> int:
    """The offset at which a reader with `isolation` ends."""
    if isolation is Isolation.LOG_END:
        return log.log_end_offset
    return log.high_watermark if isolation is Isolation.HIGH_WATERMARK else log.last_stable_offset


def _find_by_timestamp(segment: LogSegment, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
    indexed_offset = _confirmed_offset(segment, segment.time_index.lookup(timestamp_ms))
    position = segment.position_at_or_before(max(indexed_offset, start_offset))
    for chunk in segment.chunks(position):
        late = (chunk.batches["max_timestamp_ms"] >= timestamp_ms) & (chunk.batches["last_offset"] >= start_offset)
        for row in np.flatnonzero(late).tolist():
            for record in _records(segment, chunk, row):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    epoch = int(chunk.batches["leader_epoch"][row])
                    return TimestampAndOffset(record.timestamp_ms, record.offset, epoch)
    return None


def _confirmed_offset(segment: LogSegment, entry: TimestampOffset) -> int:
    """The time index entry's offset if the batch at it matches the entry, else the segment's base offset."""
    for chunk in segment.chunks(segment.position_at_or_before(entry.offset)):
        row = int(np.searchsorted(chunk.batches["last_offset"], entry.offset, side="left"))
        if row < len(chunk.batches):
            batch = chunk.batches[row]
            named = int(batch["max_timestamp_ms"]), int(batch["last_offset"])
            return entry.offset if named == entry else segment.base_offset
    return segment.base_offset


def _records(segment: LogSegment, chunk: BatchChunk, row: int) -> tuple[Record, ...]:
    position = int(chunk.batches["position"][row])
    file = str(segment.log_path)
    return decode_batch(chunk.data, position - chunk.position, file=file, file_position=position).records
