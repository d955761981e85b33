"""Appends record batches as a broker does: as a leader, which assigns offsets, or as a follower, which keeps them.

Appends write the batches to the `.log` of the active segment first, then the index entries, and then update the
producer state in memory; a crash leaves at worst a torn batch at the end. Source of the rules:
org.apache.kafka.storage.internals.log.UnifiedLog.append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.header import Buffer, TimestampType
from pyspark_kafkalog.record.scan import as_bytes_array
from pyspark_kafkalog.storage.log.append_info import AppendInfo
from pyspark_kafkalog.storage.log.producers import AppendOrigin, producer_batches
from pyspark_kafkalog.storage.log.validator import follower_batches, validate_and_assign_offsets
from pyspark_kafkalog.storage.segment.index_entries import RunPlan
from pyspark_kafkalog.storage.segment.recovery import replay_batches
from pyspark_kafkalog.storage.segment.segment import BatchChunk

if TYPE_CHECKING:
    from pyspark_kafkalog.storage.log.unified_log import UnifiedLog


def append_as_leader(log: UnifiedLog, data: Buffer, *, leader_epoch: int, origin: AppendOrigin) -> AppendInfo:
    """Check the batches in `data` as a leader does, assign offsets and store them; all of them or none.

    A producer's batch that the log already holds is not stored again: the result is a duplicate, with its offsets.

    Raises InvalidRecordError, ProducerFencedError, OutOfOrderSequenceError, CorruptRecordError.
    """
    now_ms = log.clock()
    validated = validate_and_assign_offsets(
        data,
        next_offset=log.log_end_offset,
        leader_epoch=leader_epoch,
        config=log.config,
        now_ms=now_ms,
        origin=origin,
    )
    if not len(validated.batches):
        return AppendInfo.nothing(log.log_end_offset)
    found = producer_batches(validated.data, validated.batches, data_position=0, file=str(log.directory))
    checked = log.producers.check(found, origin)
    if checked.duplicate is not None:
        first_offset, last_offset = checked.duplicate
        return AppendInfo(first_offset=first_offset, last_offset=last_offset, is_duplicate=True)
    first_offset = log.log_end_offset
    log.assign_epoch(leader_epoch, first_offset)
    rest = validated.batches
    while len(rest):
        plan = log.next_run(rest)
        _store(log, validated.data, rest[: plan.count], plan)
        rest = rest[plan.count :]
    uses_append_time = log.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    return log.appended(first_offset, now_ms if uses_append_time else None)


def append_as_follower(log: UnifiedLog, data: Buffer) -> AppendInfo:
    """Store batches as a leader has stored them, with their offsets and epochs, all in one segment.

    Raises InvalidRecordError for offsets below the log end, CorruptRecordError for damage.
    """
    batches = follower_batches(data, next_offset=log.log_end_offset, config=log.config)
    if not len(batches):
        return AppendInfo.nothing(log.log_end_offset)
    first_offset = int(batches["base_offset"][0])
    for epoch, base_offset in zip(batches["leader_epoch"].tolist(), batches["base_offset"].tolist(), strict=True):
        log.assign_epoch(epoch, base_offset)
    plan = log.active_segment.plan_whole(batches, now_ms=log.clock())
    if plan is None:
        log.roll(first_offset)
        plan = log.active_segment.plan_whole(batches, now_ms=log.clock())
    if plan is None:
        raise InvalidRecordError(f"one append spans more offsets than a segment: {first_offset} and 2^31 above")
    _store(log, as_bytes_array(data), batches, plan)
    return log.appended(first_offset, None)


def _store(log: UnifiedLog, data: NDArray[np.uint8], batches: NDArray[np.void], plan: RunPlan) -> None:
    start = int(batches["position"][0])
    end = int(batches["position"][-1] + batches["size_bytes"][-1])
    segment = log.active_segment
    segment.append(data[start:end], plan)
    log.run_stored(batches)
    replay_batches(segment, log.producers, BatchChunk(data, 0, batches))
