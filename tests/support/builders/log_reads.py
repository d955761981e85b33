"""What tests see of a log that is open for writing: raw batches by offset, offsets by timestamp."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage.log.isolation import AbortedTransactions, indexed_transactions
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader, TimestampAndOffset
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.segment import LogSegment, read_range


class Isolation(Enum):
    """The end of a log for a reader.

    LOG_END    everything stored: read_uncommitted
    COMMITTED  up to the last stable offset, without batches of aborted transactions: read_committed
    """

    LOG_END = auto()
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
    end_offset = log.log_end_offset if isolation is Isolation.LOG_END else log.last_stable_offset
    for segment in log.segments.from_offset(start_offset):
        found = _find_batch(segment, start_offset)
        if found is None:
            continue
        position, size_bytes = found
        length = max(max_bytes, size_bytes)
        data = read_range(segment.fd, position, min(length, segment.size_bytes - position))
        file = str(segment.log_path)
        batches = scan_batches(data, file=file, file_position=position).batches
        batches = batches[batches["base_offset"] < end_offset]
        verify_crcs(data, batches, data_position=position, file=file)
        if not len(batches):
            break
        next_offset = int(batches["last_offset"][-1]) + 1
        if isolation is Isolation.COMMITTED:
            aborted = AbortedTransactions(indexed_transactions(log.directory, start_offset, next_offset))
            batches = aborted.keep(batches)
        return FetchedBatches(data, position, batches, file, next_offset)
    empty = np.empty(0, dtype=np.uint8)
    return FetchedBatches(empty, 0, np.empty(0, dtype=BATCH_DTYPE), "", start_offset)


def _find_batch(segment: LogSegment, offset: int) -> tuple[int, int] | None:
    """Position and size of the batch that holds `offset` or, if none does, of the first one above it."""
    for chunk in segment.chunks(segment.position_at_or_before(offset)):
        above = chunk.batches[chunk.batches["last_offset"] >= offset]
        if len(above):
            return int(above["position"][0]), int(above["size_bytes"][0])
    return None


def offset_for_timestamp(log: UnifiedLog, timestamp_ms: int) -> TimestampAndOffset | None:
    """The first record from the log start offset on with a timestamp of at least `timestamp_ms`."""
    reader = LogReader(LocalExtents(log.directory), TopicPartition(log.directory.name, 0))
    return reader.offset_for_timestamp(timestamp_ms, log.log_start_offset, log.log_end_offset)
