"""Appends to one open log as a leader makes them: checked as the server's writer checks them, but without a commit."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.record.header import Buffer, TimestampType
from pyspark_kafkalog.storage.log.leader_append import REQUEST, validate_batches
from pyspark_kafkalog.storage.log.producers import AppendedProducers, producer_batches
from pyspark_kafkalog.storage.log.sequences import ProducerView
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog


@dataclass(frozen=True)
class AppendInfo:
    """The offsets of an append; `log_append_time_ms` is None if the records keep their own timestamps."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int | None = None
    is_duplicate: bool = False


def append_as_leader(log: UnifiedLog, data: Buffer, *, leader_epoch: int) -> AppendInfo:
    """Check the batches of a client and store them; all of them or none."""
    now_ms = log.clock()
    first_offset = log.log_end_offset
    checked = validate_batches(
        data, next_offset=first_offset, leader_epoch=leader_epoch, config=log.config, now_ms=now_ms
    )
    if not len(checked):
        return AppendInfo(first_offset=first_offset, last_offset=first_offset - 1)
    found = list(producer_batches(checked.data, checked.batches, data_position=0, file=REQUEST))
    view = ProducerView(log.producers.producers)
    duplicate = view.add(found)
    if duplicate is not None:
        return AppendInfo(duplicate.first_offset, duplicate.last_offset, is_duplicate=True)
    log.assign_epoch(leader_epoch, first_offset)
    log.append(checked.data, checked.batches, known=AppendedProducers(found, view.changed))
    uses_append_time = log.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    return AppendInfo(first_offset, log.log_end_offset - 1, now_ms if uses_append_time else None)
