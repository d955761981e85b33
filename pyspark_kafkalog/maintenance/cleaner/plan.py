"""Plans a cleaning: which part of a log is dirty and cleanable, whether it is due, and how its segments are grouped.

    log start ... clean ... [first dirty offset ... dirty ... first uncleanable offset) ... active segment

No I/O except by callbacks. Source of the rules: LogCleanerManager (cleanableOffsets, calculateCleanableBytes,
maxCompactionDelay), LogToClean and Cleaner (groupSegmentsBySize) in org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.units import INT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """The work of one cleaning of a log.

    `segments` are the closed ones below `first_uncleanable_offset`, clean ones first. `is_overdue`: part of the dirty
    segments is older than max.compaction.lag.ms. `resets_checkpoint`: the checkpoint's offset was outside of the log.
    """

    segments: tuple[StoredSegment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool
    resets_checkpoint: bool

    @property
    def dirty_ratio(self) -> float:
        """Cleanable bytes divided by all bytes that a cleaning reads; 0 for an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def needs_cleaning(self, min_dirty_ratio: float) -> bool:
        """Kafka's rule: above the ratio, or overdue with something to clean."""
        return (self.is_overdue and self.cleanable_bytes > 0) or self.dirty_ratio > min_dirty_ratio


def plan_cleaning(
    closed: Sequence[StoredSegment],
    state: LogState,
    config: LogConfig,
    *,
    checkpoint_offset: int | None,
    now_ms: int,
    largest_timestamp_ms: Callable[[StoredSegment], int],
    first_timestamp_ms: Callable[[StoredSegment], int],
) -> CleanPlan:
    """The plan for a log with `closed` segments in order.

    `largest_timestamp_ms`: of all batches of a segment, -1 if none has a timestamp; called only with
    min.compaction.lag.ms. `first_timestamp_ms`: of a segment's first batch, -1 without one; called only with
    max.compaction.lag.ms.
    """
    first_dirty_offset, resets = _first_dirty_offset(state, checkpoint_offset)
    bases = [each.base_offset for each in closed]
    dirty = closed[_floor(bases, first_dirty_offset) :] if first_dirty_offset < state.active_base_offset else ()
    uncleanable = min(state.last_stable_offset, state.active_base_offset)
    if config.min_compaction_lag_ms > 0:
        newest_ms = now_ms - config.min_compaction_lag_ms
        too_young = (each.base_offset for each in dirty if _newest_ms(each, largest_timestamp_ms) > newest_ms)
        uncleanable = min(uncleanable, next(too_young, uncleanable))
    uncleanable = max(first_dirty_offset, uncleanable)
    if uncleanable < state.active_base_offset and closed:
        first_uncleanable_offset = bases[_floor(bases, uncleanable)]
    else:
        first_uncleanable_offset = state.active_base_offset
    below = tuple(each for each in closed if each.base_offset < first_uncleanable_offset)
    cleanable = below[_floor(bases, first_dirty_offset) :] if first_dirty_offset < first_uncleanable_offset else ()
    return CleanPlan(
        segments=below,
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=first_uncleanable_offset,
        clean_bytes=sum(each.size_bytes for each in closed if each.base_offset < first_dirty_offset),
        cleanable_bytes=sum(each.size_bytes for each in cleanable),
        is_overdue=_is_overdue(dirty, config.max_compaction_lag_ms, now_ms, first_timestamp_ms),
        resets_checkpoint=resets,
    )


def _newest_ms(segment: StoredSegment, largest_timestamp_ms: Callable[[StoredSegment], int]) -> int:
    """The segment's largest timestamp, or its last modification if no batch has a timestamp."""
    timestamp_ms = largest_timestamp_ms(segment)
    return timestamp_ms if timestamp_ms >= 0 else segment.modified_ms


def _first_dirty_offset(state: LogState, checkpoint_offset: int | None) -> tuple[int, bool]:
    """The first dirty offset, and whether the checkpoint was invalid: below the log start offset or past the end."""
    if checkpoint_offset is None:
        return state.log_start_offset, False
    if state.log_start_offset <= checkpoint_offset <= state.log_end_offset:
        return checkpoint_offset, False
    return state.log_start_offset, True


def _floor(bases: Sequence[int], offset: int) -> int:
    """The index of the segment with `offset`: the last one that begins at or below it, else the first one."""
    return max(bisect.bisect_right(bases, offset) - 1, 0)


def _is_overdue(
    dirty: Sequence[StoredSegment], max_lag_ms: int, now_ms: int, first_timestamp_ms: Callable[[StoredSegment], int]
) -> bool:
    """Whether a dirty segment began more than max.compaction.lag.ms ago, by its first batch's timestamp."""
    clean_until_ms = now_ms - max(max_lag_ms, 0)
    if clean_until_ms <= 0:
        return False
    return any(0 < first_timestamp_ms(each) < clean_until_ms for each in dirty)


def group_segments(
    segments: Sequence[StoredSegment], config: LogConfig, *, first_uncleanable_offset: int
) -> list[tuple[StoredSegment, ...]]:
    """Groups of neighbours to become one segment each: as many as fit segment.bytes and segment.index.bytes.

    Sizes are those of the old files. Every offset of a group is within 2^31 of its base, judged by the base offset of
    the next segment.
    """
    groups: list[list[StoredSegment]] = []
    sizes: tuple[int, ...] = (0, 0, 0)
    ends = [*(each.base_offset for each in segments[1:]), first_uncleanable_offset]
    for segment, end in zip(segments, ends, strict=True):
        own = (segment.size_bytes, segment.offset_index_bytes, segment.time_index_bytes)
        together = tuple(a + b for a, b in zip(sizes, own, strict=True))
        is_near = segment.size_bytes == 0 or not groups or end - 1 - groups[-1][0].base_offset <= INT32_MAX
        limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
        if groups and is_near and all(a <= b for a, b in zip(together, limits, strict=True)):
            groups[-1].append(segment)
            sizes = together
        else:
            groups.append([segment])
            sizes = own
    return [tuple(group) for group in groups]
