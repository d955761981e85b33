"""Kafka's rules for index entries and for rolling, applied to a whole table of batches at once.

A broker decides batch by batch (LogSegment.append, LogSegment.shouldRoll). These functions do the same for a table, in
a compiled loop (kernels_index.py): which batches get an index entry, the contents of the time index entry, and the
batch before which the log rolls.

    offset index   bytes since the last entry > index.interval.bytes -> (last offset, position of the batch), counter to
                   0; then the batch's size is added to the counter
    time index     tried at each offset index entry: (largest timestamp so far, last offset of the batch that first had
                   it), added if the timestamp is larger than the last entry's

`IndexRows` builds a closed segment's indexes in memory from its batch headers. They equal those of a segment that was
appended to batch by batch, without a restart, and then closed: trimmed, with the closing time index entry.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.artefacts.index_file import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.segment.kernels_index import add_batches
from pyspark_kafkalog.values import quick_dataclass


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCounters:
    """The state that a segment's next append depends on. Timestamps in ms, -1 for none; offsets are absolute.

    `first_timestamp_ms` is the largest timestamp of the segment's first batch. `max_timestamp_offset` is the last
    offset of the batch that first had `max_timestamp_ms`.
    """

    size_bytes: int = 0
    first_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_offset: int = 0
    bytes_since_last_index_entry: int = 0


@quick_dataclass(frozen=True, slots=True)
class IndexEntries:
    """Entries that a run of batches adds: offsets with positions, timestamps with offsets."""

    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    time_offsets: NDArray[np.int64]


@quick_dataclass(frozen=True, slots=True)
class RunPlan:
    """The number of batches of a run that fit into the segment before it must roll, their entries, and the counters
    after them."""

    count: int
    entries: IndexEntries
    counters: SegmentCounters


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """The limits at which a segment rolls. Index capacities are the numbers of entries that still fit."""

    base_offset: int
    segment_bytes: int
    roll_after_ms: int
    index_interval_bytes: int
    offset_entries_left: int
    time_entries_left: int
    last_time_entry_ms: int
    waited_without_timestamps_ms: int


def plan_run(batches: NDArray[np.void], counters: SegmentCounters, limits: SegmentLimits) -> RunPlan:
    """Plan the append of `batches` (offsets as they will be stored) to a segment with `counters`.

    Each batch counts as a separate append, like the batch of a produce request. An empty segment takes the first batch
    whatever its size. `count` is 0 when the segment must roll before the first batch.
    """
    return _planned(batches, counters, limits, rolls=True)


def plan_entries(batches: NDArray[np.void], counters: SegmentCounters, limits: SegmentLimits) -> RunPlan:
    """The index entries that all of `batches` add, and the counters after them. Ignores whether it should roll."""
    return _planned(batches, counters, limits, rolls=False)


def _planned(batches: NDArray[np.void], counters: SegmentCounters, limits: SegmentLimits, *, rolls: bool) -> RunPlan:
    # In the order of the slots of kernels_index.
    state = np.array(
        (
            counters.size_bytes,
            counters.first_timestamp_ms,
            counters.max_timestamp_ms,
            counters.max_timestamp_offset,
            counters.bytes_since_last_index_entry,
            0,
            0,
        ),
        dtype=np.int64,
    )
    bounds = np.array(
        (
            limits.base_offset,
            limits.segment_bytes,
            limits.roll_after_ms,
            limits.index_interval_bytes,
            limits.offset_entries_left,
            limits.time_entries_left,
            limits.last_time_entry_ms,
            limits.waited_without_timestamps_ms,
            rolls,
        ),
        dtype=np.int64,
    )
    offsets, positions, timestamps_ms, time_offsets = np.empty((4, len(batches)), dtype=np.int64)
    count = add_batches(np.ascontiguousarray(batches), state, bounds, offsets, positions, timestamps_ms, time_offsets)
    size_bytes, first_ms, max_ms, max_offset, since, entries, time_entries = state.tolist()
    return RunPlan(
        count,
        IndexEntries(offsets[:entries], positions[:entries], timestamps_ms[:time_entries], time_offsets[:time_entries]),
        SegmentCounters(
            size_bytes=size_bytes,
            first_timestamp_ms=first_ms,
            max_timestamp_ms=max_ms,
            max_timestamp_offset=max_offset,
            bytes_since_last_index_entry=since,
        ),
    )


class IndexRows:
    """Index entries of the segment at `base_offset`; batches are added in order."""

    def __init__(self, base_offset: int, config: LogConfig) -> None:
        self._base_offset = base_offset
        self._index_bytes = config.segment_index_bytes
        self._limits = SegmentLimits(
            base_offset=base_offset,
            segment_bytes=config.segment_bytes,
            roll_after_ms=config.max_segment_ms,
            index_interval_bytes=config.index_interval_bytes,
            offset_entries_left=config.segment_index_bytes // OffsetIndex.entry_struct.size,
            time_entries_left=config.segment_index_bytes // TimeIndex.entry_struct.size,
            last_time_entry_ms=NO_TIMESTAMP,
            waited_without_timestamps_ms=0,
        )
        self.counters = SegmentCounters(max_timestamp_offset=base_offset)
        self._last_time_entry_ms = NO_TIMESTAMP
        self._offset_rows: list[NDArray[np.void]] = []
        self._time_rows: list[NDArray[np.void]] = []

    def add(self, batches: NDArray[np.void]) -> None:
        """Add stored batches (BATCH_DTYPE) that follow those added before; their positions are not used."""
        plan = plan_entries(batches, self.counters, self._limits)
        entries = plan.entries
        rows = np.empty(len(entries.offsets), dtype=OFFSET_INDEX_ENTRY)
        rows["relative_offset"] = entries.offsets - self._base_offset
        rows["position"] = entries.positions
        self._offset_rows.append(rows)
        rising = entries.timestamps_ms > self._last_time_entry_ms
        self._add_time_entries(entries.timestamps_ms[rising], entries.time_offsets[rising])
        self.counters = plan.counters

    @property
    def fits(self) -> bool:
        """Whether both indexes stay within segment.index.bytes, including the closing entry."""
        offset_bytes = sum(rows.nbytes for rows in self._offset_rows)
        time_bytes = sum(rows.nbytes for rows in self._time_rows) + TimeIndex.entry_struct.size
        return offset_bytes <= self._index_bytes and time_bytes <= self._index_bytes

    def offset_index(self) -> bytes:
        """The `.index` file."""
        return b"".join(rows.tobytes() for rows in self._offset_rows)

    def time_index(self, *, is_closed: bool = True) -> bytes:
        """The `.timeindex` file. With `is_closed` it has the closing entry, and nothing can be added afterwards."""
        closing_ms, closing_offset = self.counters.max_timestamp_ms, self.counters.max_timestamp_offset
        if is_closed and closing_ms > self._last_time_entry_ms:
            self._add_time_entries(np.array([closing_ms]), np.array([closing_offset]))
        return b"".join(rows.tobytes() for rows in self._time_rows)

    def _add_time_entries(self, timestamps_ms: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        if not len(offsets):
            return
        rows = np.empty(len(offsets), dtype=TIME_INDEX_ENTRY)
        rows["timestamp_ms"] = timestamps_ms
        rows["relative_offset"] = offsets - self._base_offset
        self._time_rows.append(rows)
        self._last_time_entry_ms = int(timestamps_ms[-1])
