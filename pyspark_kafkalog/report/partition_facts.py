"""The facts that a partition's files give: segments with sizes and times, bytes due for cleaner and retention, staged
files.

Costs one listing of the directory, and two small reads (first batch header, last time index entry) for each segment
that is shown by itself. In a long log neighbouring segments are shown together, which bounds time and memory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.maintenance.cleaner.plan import ClosedSegment, plan_cleaning
from pyspark_kafkalog.maintenance.retention.plan import StoredSegment, plan_retention
from pyspark_kafkalog.maintenance.segments import closed_segments, stored_segments
from pyspark_kafkalog.notebook.segments import SegmentInfo, max_timestamp_ms
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, parse_header
from pyspark_kafkalog.report.facts import NO_TIME_MS, CleanerFacts, PartitionFacts, SegmentRun
from pyspark_kafkalog.storage.filesystem import READ_FLAGS, pread
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import LOG_SUFFIX, STAGED_SUFFIX, TopicPartition, segment_file

_NS_A_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """The inputs for one partition: `state` is that of the root's newest commit, or derived from a broker's files."""

    where: TopicPartition
    directory: Path
    state: LogState
    config: LogConfig
    is_foreign: bool
    cleaner_offset: int | None
    remote_offsets: int = 0
    offsets_above_high_watermark: int = 0


def look_at(look: PartitionLook, *, now_ms: int, runs_max: int) -> PartitionFacts:
    """The facts of one partition, with at most `runs_max` segment runs.

    Raises DiskFormatError or OSError when its files cannot be read.
    """
    state = look.state
    # A broker's partition may have no segment yet: the base offset of the active one is then -1.
    segments = [each for each in stored_segments.stored_segments(look.directory, state) if each.base_offset >= 0]
    times = _Times(look)
    retention = plan_retention(
        segments,
        times.largest_ms,
        look.config,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        now_ms=now_ms,
    )
    staged = _staged_sizes(look.directory)
    return PartitionFacts(
        where=look.where,
        leader_epoch=state.leader_epoch,
        log_start_offset=state.log_start_offset,
        high_watermark=state.log_end_offset,
        last_stable_offset=state.last_stable_offset,
        runs=tuple(_run(group, times) for group in _together(segments, runs_max)),
        size_bins=_size_bins(segments),
        cleaner=_cleaner_facts(look, segments, now_ms) if look.config.compact else None,
        due_segments=retention.deleted_count,
        due_bytes=sum(each.size_bytes for each in segments[: retention.deleted_count]),
        future_segment=retention.future_base_offset,
        staged_files=len(staged),
        staged_bytes=sum(staged),
        remote_offsets=look.remote_offsets,
        offsets_above_high_watermark=look.offsets_above_high_watermark,
    )


class _Times:
    """Times of a partition's segments, each looked up once."""

    def __init__(self, look: PartitionLook) -> None:
        self._look = look
        self._largest_ms: dict[int, int] = {}

    def largest_ms(self, segment: StoredSegment) -> int:
        """The largest timestamp, -1 if there is none."""
        found = self._largest_ms.get(segment.base_offset)
        if found is None:
            found = self._largest_ms[segment.base_offset] = self._look_up(segment)
        return found

    def _look_up(self, segment: StoredSegment) -> int:
        state, directory = self._look.state, self._look.directory
        is_active = segment.base_offset == state.active_base_offset
        if is_active and not self._look.is_foreign:
            return state.active_max_timestamp_ms
        if segment.size_bytes <= 0:
            return NO_TIME_MS
        info = SegmentInfo(
            base_offset=segment.base_offset,
            end_offset=state.log_end_offset,
            size_bytes=segment.size_bytes,
            state="active" if is_active else "closed",
        )
        return max_timestamp_ms(directory, info)

    def first_ms(self, segment: StoredSegment) -> int:
        """The first record's timestamp, -1 without one. For a cleaned batch the largest: its header has no other."""
        if segment.size_bytes < RECORD_BATCH_OVERHEAD_BYTES:
            return NO_TIME_MS
        path = segment_file(self._look.directory, segment.base_offset, LOG_SUFFIX)
        fd = os.open(path, READ_FLAGS)
        try:
            head = pread(fd, RECORD_BATCH_OVERHEAD_BYTES, 0)
        finally:
            os.close(fd)
        header = parse_header(head, 0, file=str(path), file_position=0)
        return header.base_timestamp_ms if header.delete_horizon_ms is None else header.max_timestamp_ms


def _together(segments: Sequence[StoredSegment], runs_max: int) -> list[Sequence[StoredSegment]]:
    """The segments in at most `runs_max` groups of neighbours; the last group is the active segment alone."""
    if not segments:
        return []
    closed = segments[:-1]
    step = -(-len(closed) // max(runs_max - 1, 1)) or 1
    return [*(closed[at : at + step] for at in range(0, len(closed), step)), segments[-1:]]


def _run(group: Sequence[StoredSegment], times: _Times) -> SegmentRun:
    first_ms = last_ms = NO_TIME_MS
    # Deleted since it was listed, or damaged: its size still counts. `kafkalog verify` reports damage.
    with contextlib.suppress(FileNotFoundError, DiskFormatError):
        first_ms = times.first_ms(group[0])
        last_ms = times.largest_ms(group[-1])
    return SegmentRun(
        base_offset=group[0].base_offset,
        segments=len(group),
        size_bytes=sum(max(each.size_bytes, 0) for each in group),
        first_ms=first_ms,
        last_ms=last_ms,
    )


def _size_bins(segments: Sequence[StoredSegment]) -> Mapping[int, tuple[int, int]]:
    bins: dict[int, tuple[int, int]] = {}
    for each in segments:
        size_bytes = max(each.size_bytes, 0)
        count, total = bins.get(size_bytes.bit_length(), (0, 0))
        bins[size_bytes.bit_length()] = (count + 1, total + size_bytes)
    return bins


def _cleaner_facts(look: PartitionLook, segments: Sequence[StoredSegment], now_ms: int) -> CleanerFacts:
    closed = [
        ClosedSegment(each.base_offset, after.base_offset, each.size_bytes, 0, 0, each.modified_ms * _NS_A_MS)
        for each, after in itertools.pairwise(segments)
    ]
    plan = plan_cleaning(
        closed,
        look.state,
        look.config,
        checkpoint_offset=look.cleaner_offset,
        now_ms=now_ms,
        largest_timestamp_ms=lambda segment: closed_segments.largest_timestamp_ms(look.directory, segment),
        first_timestamp_ms=lambda segment: closed_segments.first_timestamp_ms(look.directory, segment),
    )
    return CleanerFacts(
        first_dirty_offset=plan.first_dirty_offset,
        first_uncleanable_offset=plan.first_uncleanable_offset,
        clean_bytes=plan.clean_bytes,
        cleanable_bytes=plan.cleanable_bytes,
        is_due=plan.needs_cleaning(look.config.min_cleanable_dirty_ratio),
    )


def _staged_sizes(directory: Path) -> list[int]:
    sizes = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(STAGED_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    sizes.append(entry.stat().st_size)
    return sizes
