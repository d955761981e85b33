"""What a cleaning takes from a partition besides its segments, and its report; of both kinds of roots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts
from pyspark_kafkalog.maintenance.cleaner.offset_map import KeyCounts
from pyspark_kafkalog.maintenance.cleaner.plan import CleanPlan
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import load_latest_snapshot, producer_state_at
from pyspark_kafkalog.storage.log.producers import ProducerStateManager

#: The action of the cleaner's reports, and the operation of its commits on object roots.
CLEAN_ACTION: Final = "clean"


def judge(report: PartitionReport, plan: CleanPlan, config: LogConfig, *, force: bool = False) -> PartitionReport:
    """The report with the dirty ratio and the dirty range, and with the reason (`skipped`) for not cleaning, if any."""
    if not config.compact:
        return replace(report, skipped="cleanup.policy is not compact")
    is_due = plan.needs_cleaning(config.min_cleanable_dirty_ratio) or (force and plan.cleanable_bytes > 0)
    skipped = None
    if not is_due or plan.first_dirty_offset >= plan.first_uncleanable_offset:
        skipped = "nothing to clean" if not plan.cleanable_bytes else "not dirty enough"
    return replace(
        report,
        skipped=skipped,
        dirty_percent=round(100 * plan.dirty_ratio, 1),
        first_dirty_offset=plan.first_dirty_offset,
        first_uncleanable_offset=plan.first_uncleanable_offset,
    )


def with_counts(report: PartitionReport, counts: CopyCounts, *, segments: int, keys: KeyCounts) -> PartitionReport:
    return replace(
        report,
        bytes_read=counts.bytes_read,
        bytes_kept=counts.bytes_kept,
        bytes_dropped=counts.bytes_read - counts.bytes_kept,
        records_read=counts.records_read,
        records_kept=counts.records_kept,
        records_dropped=counts.records_read - counts.records_kept,
        recopy_percent=round(100 * counts.bytes_kept / counts.bytes_read, 1) if counts.bytes_read else None,
        segments_dropped=segments,
        key_shards=keys.shards,
        records_without_key=keys.records_without_key,
    )


def active_producers(
    directory: Path, state: LogState, *, now_ms: int, expiration_ms: int
) -> dict[int, ProducerStateEntry]:
    """The producers that a broker would know at the end of the log, by id.

    They come from the latest snapshot and, if a producer with an id has written since the log began, the batches after
    it.
    """
    if state.producer is not None:
        producers = producer_state_at(
            directory,
            state.log_end_offset,
            log_start_offset=state.log_start_offset,
            expiration_ms=expiration_ms,
            now_ms=now_ms,
        )
    else:
        producers = ProducerStateManager(directory, expiration_ms=expiration_ms)
        load_latest_snapshot(producers, state.log_start_offset, state.log_end_offset, now_ms)
    producers.remove_expired(now_ms)
    return {producer_id: each.entry() for producer_id, each in producers.producers.items()}
