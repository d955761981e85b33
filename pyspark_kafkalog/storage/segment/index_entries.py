"""Kafka's rules for index entries and for rolling, applied to a whole table of batches at once.

A broker decides batch by batch (LogSegment.append, LogSegment.shouldRoll). These functions give the same answers from
arrays: which batches get an index entry, the contents of the time index entry, and the batch before which the log
rolls.

    offset index   bytes since the last entry > index.interval.bytes -> (last offset, position of the batch), counter to
                   0; then the batch's size is added to the counter
    time index     tried at each offset index entry: (largest timestamp so far, last offset of the batch that first had
                   it), added if the timestamp is larger than the last entry's

`IndexRows` builds a closed segment's indexes in memory from its batch headers. They equal those of a segment that was
appended to batch by batch, without a restart, and then closed: trimmed, with the closing time index entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.artefacts.offset_index import OFFSET_INDEX_ENTRY
from pyspark_kafkalog.storage.artefacts.time_index import TIME_INDEX_ENTRY
from pyspark_kafkalog.units import INT32_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class IndexEntries:
    """Entries that a run of batches adds. `offset_rows` and `time_rows` are the rows of the batches that add them."""

    offset_rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    time_rows: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    time_offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The number of batches of a run that fit into the segment before it must roll, their entries, and the counters
    after them."""

    count: int
    entries: IndexEntries
    counters: SegmentCounters


@dataclass(frozen=True, slots=True, kw_only=True)
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
    sizes = batches["size_bytes"].astype(np.int64)
    positions = counters.size_bytes + np.cumsum(sizes) - sizes
    count = _first_true(_must_roll(batches, sizes, positions, counters, limits))
    entries = plan_entries(batches[:count], positions[:count], counters, limits)
    full = _first_row_when_full(entries, limits, empty=counters.size_bytes == 0)
    if full < count:
        count = full
        entries = plan_entries(batches[:count], positions[:count], counters, limits)
    return RunPlan(count, entries, advance(batches[:count], counters, entries))


def plan_entries(
    batches: NDArray[np.void], positions: NDArray[np.int64], counters: SegmentCounters, limits: SegmentLimits
) -> IndexEntries:
    """The index entries that `batches`, stored at `positions` of the segment, add. Ignores whether it should roll."""
    rows = _entry_rows(
        batches["size_bytes"].astype(np.int64), counters.bytes_since_last_index_entry, limits.index_interval_bytes
    )
    running_ms, running_offset = _running_max(batches, counters)
    timestamps = running_ms[rows]
    before = np.concatenate(([limits.last_time_entry_ms], timestamps[:-1])) if len(rows) else timestamps
    added = timestamps > np.maximum(before, limits.last_time_entry_ms)
    return IndexEntries(
        offset_rows=rows,
        offsets=batches["last_offset"][rows].astype(np.int64),
        positions=positions[rows],
        time_rows=rows[added],
        timestamps_ms=timestamps[added],
        time_offsets=running_offset[rows][added],
    )


def advance(batches: NDArray[np.void], counters: SegmentCounters, entries: IndexEntries) -> SegmentCounters:
    """The counters after `batches` have been stored with `entries`."""
    if not len(batches):
        return counters
    sizes = batches["size_bytes"].astype(np.int64)
    running_ms, running_offset = _running_max(batches, counters)
    if len(entries.offset_rows):
        since = int(sizes[int(entries.offset_rows[-1]) :].sum())
    else:
        since = counters.bytes_since_last_index_entry + int(sizes.sum())
    first_ms = counters.first_timestamp_ms if counters.size_bytes else int(batches["max_timestamp_ms"][0])
    return SegmentCounters(
        size_bytes=counters.size_bytes + int(sizes.sum()),
        first_timestamp_ms=first_ms,
        max_timestamp_ms=int(running_ms[-1]),
        max_timestamp_offset=int(running_offset[-1]),
        bytes_since_last_index_entry=since,
    )


def _must_roll(
    batches: NDArray[np.void],
    sizes: NDArray[np.int64],
    positions: NDArray[np.int64],
    counters: SegmentCounters,
    limits: SegmentLimits,
) -> NDArray[np.bool_]:
    """For each batch, whether its size, time or offset makes the segment roll before it."""
    too_large = (positions > 0) & (positions + sizes > limits.segment_bytes)
    relative = batches["last_offset"].astype(np.int64) - limits.base_offset
    too_far = (relative < 0) | (relative > INT32_MAX)
    first_ms = counters.first_timestamp_ms if counters.size_bytes else int(batches["max_timestamp_ms"][0])
    if first_ms >= 0:
        # Subtraction of longs, as in Kafka: a timestamp is -1 or at least 0 here, so it cannot overflow.
        waited = batches["max_timestamp_ms"].astype(np.int64) - first_ms
    else:
        waited = np.full(len(batches), limits.waited_without_timestamps_ms, dtype=np.int64)
    too_old = (positions > 0) & (waited > limits.roll_after_ms)
    result: NDArray[np.bool_] = too_large | too_far | too_old
    return result


def _first_row_when_full(entries: IndexEntries, limits: SegmentLimits, *, empty: bool) -> int:
    """Row of the first batch that finds an index full, or a number past every row."""
    first = INT32_MAX
    for rows, left in (
        (entries.offset_rows, limits.offset_entries_left),
        (entries.time_rows, limits.time_entries_left),
    ):
        if left <= 0:
            # The index has no room for a single entry: an empty segment still takes a batch, else none ever would.
            first = min(first, 1 if empty else 0)
        elif len(rows) >= left:
            first = min(first, int(rows[left - 1]) + 1)
    return first


def _entry_rows(sizes: NDArray[np.int64], bytes_since: int, interval: int) -> NDArray[np.int64]:
    """Rows of the batches that get an offset index entry."""
    starts = np.cumsum(sizes) - sizes
    following = np.searchsorted(starts, starts + interval, side="right").tolist()
    row = int(np.searchsorted(starts, interval - bytes_since, side="right"))
    rows = []
    while row < len(sizes):
        rows.append(row)
        row = following[row]
    return np.array(rows, dtype=np.int64)


def _running_max(batches: NDArray[np.void], counters: SegmentCounters) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each batch the largest timestamp up to it, and the last offset of the batch that first had it."""
    timestamps = batches["max_timestamp_ms"].astype(np.int64)
    running = (
        np.maximum(np.maximum.accumulate(timestamps), counters.max_timestamp_ms) if len(timestamps) else timestamps
    )
    before = np.concatenate(([counters.max_timestamp_ms], running[:-1])) if len(running) else running
    newest = np.maximum.accumulate(np.where(running > before, np.arange(len(running)), -1)) if len(running) else running
    offsets = np.where(newest >= 0, batches["last_offset"][np.maximum(newest, 0)], counters.max_timestamp_offset)
    return running.astype(np.int64), offsets.astype(np.int64)


def _first_true(flags: NDArray[np.bool_]) -> int:
    """Index of the first True, or the length."""
    return int(np.argmax(flags)) if flags.any() else len(flags)


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
            offset_entries_left=config.segment_index_bytes // OFFSET_INDEX_ENTRY.itemsize,
            time_entries_left=config.segment_index_bytes // TIME_INDEX_ENTRY.itemsize,
            last_time_entry_ms=NO_TIMESTAMP,
            waited_without_timestamps_ms=0,
        )
        self.counters = SegmentCounters(max_timestamp_offset=base_offset)
        self._last_time_entry_ms = NO_TIMESTAMP
        self._offset_rows: list[NDArray[np.void]] = []
        self._time_rows: list[NDArray[np.void]] = []

    def add(self, batches: NDArray[np.void]) -> None:
        """Add stored batches (BATCH_DTYPE) that follow those added before; their positions are not used."""
        sizes = batches["size_bytes"].astype(np.int64)
        positions = self.counters.size_bytes + np.cumsum(sizes) - sizes
        entries = plan_entries(batches, positions, self.counters, self._limits)
        rows = np.empty(len(entries.offsets), dtype=OFFSET_INDEX_ENTRY)
        rows["relative_offset"] = entries.offsets - self._base_offset
        rows["position"] = entries.positions
        self._offset_rows.append(rows)
        rising = entries.timestamps_ms > self._last_time_entry_ms
        self._add_time_entries(entries.timestamps_ms[rising], entries.time_offsets[rising])
        self.counters = advance(batches, self.counters, entries)

    @property
    def fits(self) -> bool:
        """Whether both indexes stay within segment.index.bytes, including the closing entry."""
        offset_bytes = sum(rows.nbytes for rows in self._offset_rows)
        time_bytes = sum(rows.nbytes for rows in self._time_rows) + TIME_INDEX_ENTRY.itemsize
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
