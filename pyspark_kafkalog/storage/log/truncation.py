"""For following a leader: removes records from either end of a log.

Truncation drops the records at or above an offset, where a follower's log diverges from its leader's: in the files
first, then in the state in memory. After a crash in between, the log still ends at a batch. Deleting records only
increases the log start offset; the bytes stay until retention deletes whole segments.

Source of the rules: truncateTo, truncateFullyAndStartAt and maybeIncrementLogStartOffset of
org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.storage.log.producer_replay import rebuild_producer_state
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog


def truncate_to(log: UnifiedLog, offset: int) -> None:
    """Make `offset` the log end; does nothing if it is at or above it. A batch that contains `offset` is dropped whole.

    Raises OffsetOutOfRangeError for a negative offset.
    """
    if offset < 0:
        raise OffsetOutOfRangeError(f"cannot truncate {log.directory} to the negative offset {offset}")
    if offset >= log.log_end_offset:
        log.epochs.truncate_from_end(log.log_end_offset)
        return
    if offset < log.segments.first.base_offset:
        truncate_fully_and_start_at(log, offset)
        return
    producers = log.producers
    for segment in reversed(log.segments.above(offset)):
        log.drop_segment(segment)
    log.active_segment.truncate_to(offset)
    log.log_end_offset = offset
    log.epochs.truncate_from_end(offset)
    log.log_start_offset = min(offset, log.log_start_offset)
    log.recovery_point = min(offset, log.recovery_point)
    rebuild_producer_state(
        producers,
        log.segments,
        log_start_offset=log.log_start_offset,
        end_offset=offset,
        now_ms=log.clock(),
    )
    log.high_watermark_moved()


def truncate_fully_and_start_at(log: UnifiedLog, offset: int) -> None:
    """Drop all segments and start an empty one at `offset`."""
    producers = log.producers
    for segment in reversed(tuple(log.segments)):
        log.drop_segment(segment)
    log.add_segment(offset)
    log.epochs.clear()
    producers.truncate_fully_and_start_at(offset)
    log.log_start_offset = log.log_end_offset = log.recovery_point = offset
    log.high_watermark_moved()


def delete_records(log: UnifiedLog, before_offset: int) -> int:
    """Increase the log start offset to `before_offset`, which may be inside a segment; returns the new value.

    Raises OffsetOutOfRangeError above the high watermark. Retention deletes segments that are entirely below it.
    """
    if before_offset > log.high_watermark:
        raise OffsetOutOfRangeError(
            f"cannot delete records before offset {before_offset}, the high watermark is {log.high_watermark}"
        )
    if before_offset > log.log_start_offset:
        log.log_start_offset = before_offset
        log.recovery_point = max(before_offset, log.recovery_point)
        log.epochs.truncate_from_start(before_offset)
        log.producers.log_start_moved(before_offset)
    return log.log_start_offset
