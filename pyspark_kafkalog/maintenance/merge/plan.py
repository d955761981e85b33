"""Chooses the closed segments to merge: small neighbours, within Kafka's limits for one segment.

A small segment has less than half of segment.bytes. A merged segment stays within segment.bytes, within
segment.index.bytes for either index, and within 2^31 offsets. The other segments of a group have together at least half
the size of its largest one; otherwise a segment that grows with every run would be copied again and again. No group
crosses a boundary, such as the offset up to which the log has been cleaned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.maintenance.cleaner.plan import ClosedSegment
from pyspark_kafkalog.storage.artefacts.offset_index import OFFSET_INDEX_ENTRY
from pyspark_kafkalog.storage.artefacts.time_index import TIME_INDEX_ENTRY

_RELATIVE_OFFSET_MAX: Final = 0x7FFFFFFF


def plan_merge(
    segments: Sequence[ClosedSegment], config: LogConfig, *, boundaries: Collection[int] = ()
) -> list[tuple[ClosedSegment, ...]]:
    """Groups of two or more neighbours of `segments`, which are in order; each group is to become one segment.

    A group ends before a segment that begins at or above an offset of `boundaries` if the previous one began below it.
    """
    groups: list[tuple[ClosedSegment, ...]] = []
    group: list[ClosedSegment] = []
    for segment in segments:
        if group and not _may_join(group, segment, config, boundaries):
            groups.append(tuple(group))
            group = []
        if 2 * segment.size_bytes < config.segment_bytes:
            group.append(segment)
        elif group:
            groups.append(tuple(group))
            group = []
    if group:
        groups.append(tuple(group))
    return [each for each in groups if _is_worth_it(each)]


def _may_join(
    group: Sequence[ClosedSegment], segment: ClosedSegment, config: LogConfig, boundaries: Collection[int]
) -> bool:
    first, last = group[0], group[-1]
    joined = [*group, segment]
    # A rebuilt index may have one entry more for each segment than the indexes of the parts.
    offset_index_bytes = sum(each.offset_index_bytes + OFFSET_INDEX_ENTRY.itemsize for each in joined)
    time_index_bytes = sum(each.time_index_bytes + TIME_INDEX_ENTRY.itemsize for each in joined)
    return (
        last.next_base_offset == segment.base_offset
        and sum(each.size_bytes for each in joined) <= config.segment_bytes
        and max(offset_index_bytes, time_index_bytes) <= config.segment_index_bytes
        and segment.next_base_offset - 1 - first.base_offset <= _RELATIVE_OFFSET_MAX
        and not any(last.base_offset < boundary <= segment.base_offset for boundary in boundaries)
    )


def _is_worth_it(group: Sequence[ClosedSegment]) -> bool:
    largest_bytes = max(each.size_bytes for each in group)
    return len(group) > 1 and 2 * sum(each.size_bytes for each in group) >= 3 * largest_bytes
