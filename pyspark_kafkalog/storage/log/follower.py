"""For following a leader: appends the batches of a fetch, truncates where the logs diverge, follows the log start.

Append. The batches are stored as the leader has stored them: offsets, leader epochs, timestamps and codecs are kept,
control batches are included, and all batches of one fetch go to one segment. A crash leaves at worst a torn batch at
the end.

Truncation. Records at or above an offset are dropped in the files first, then in the state in memory. After a crash in
between, the log still ends at a batch.

Log start. Deleting records only increases the log start offset; the bytes stay until retention deletes whole segments.

Source of the rules: appendAsFollower, truncateTo, truncateFullyAndStartAt and maybeIncrementLogStartOffset of
org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches, verify_crcs
from pyspark_kafkalog.storage.log.producer_replay import rebuild_producer_state
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog

#: The name in errors for batches that are not in a file yet.
FETCH_RESPONSE: Final = "<fetch response>"


def append_as_follower(log: UnifiedLog, data: Buffer) -> None:
    """Store the batches in `data` with their offsets and epochs, all in one segment.

    Raises CorruptRecordError for damage or offsets that do not increase. Raises InvalidRecordError for an offset below
    the log end, and for more bytes or offsets than one segment can hold.
    """
    batches = _checked_batches(data, next_offset=log.log_end_offset, config=log.config)
    if not len(batches):
        return
    first_offset = int(batches["base_offset"][0])
    for epoch, base_offset in zip(batches["leader_epoch"].tolist(), batches["base_offset"].tolist(), strict=True):
        log.assign_epoch(epoch, base_offset)
    plan = log.active_segment.plan_whole(batches, now_ms=log.clock())
    if plan is None:
        log.roll(first_offset)
        plan = log.active_segment.plan_whole(batches, now_ms=log.clock())
    if plan is None:
        raise InvalidRecordError(
            f"the batches of one fetch span the offsets {first_offset} to {int(batches['last_offset'][-1])}, more than "
            "one segment can hold (2^31): fetch fewer at once"
        )
    log.append(as_bytes_array(data), batches, plan)


def _checked_batches(data: Buffer, *, next_offset: int, config: LogConfig) -> NDArray[np.void]:
    """The table of the batches in `data`, with positions in it."""
    scan = scan_batches(data, file=FETCH_RESPONSE)
    if scan.fault is not None:
        raise scan.fault
    size_bytes = len(as_bytes_array(data))
    if scan.consumed_bytes != size_bytes:
        raise CorruptRecordError(
            file=FETCH_RESPONSE,
            position=scan.consumed_bytes,
            expected="whole batches",
            found=f"{size_bytes - scan.consumed_bytes} bytes of one",
        )
    verify_crcs(data, scan.batches, data_position=0, file=FETCH_RESPONSE)
    if size_bytes > config.segment_bytes:
        raise InvalidRecordError(f"batches of {size_bytes} bytes are over segment.bytes={config.segment_bytes}")
    if len(scan.batches) and int(scan.batches["base_offset"][0]) < next_offset:
        raise InvalidRecordError(
            f"offset {int(scan.batches['base_offset'][0])} to append is below the log end {next_offset}"
        )
    return scan.batches


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
