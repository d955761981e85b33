"""Builds a closed segment's offset and time index in memory from its batch headers, equal to those that Kafka writes.

They equal the indexes of a segment that was appended to batch by batch, without a restart, and then closed: trimmed,
with the closing time index entry.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.record.header import NO_TIMESTAMP
from pyspark_kafkalog.storage.segment.append_plan import SegmentCounters, SegmentLimits, advance, plan_entries

OFFSET_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])


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
            offset_entries_left=config.segment_index_bytes // OFFSET_ENTRY.itemsize,
            time_entries_left=config.segment_index_bytes // TIME_ENTRY.itemsize,
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
        rows = np.empty(len(entries.offsets), dtype=OFFSET_ENTRY)
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
        time_bytes = sum(rows.nbytes for rows in self._time_rows) + TIME_ENTRY.itemsize
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
        rows = np.empty(len(offsets), dtype=TIME_ENTRY)
        rows["timestamp_ms"] = timestamps_ms
        rows["relative_offset"] = offsets - self._base_offset
        self._time_rows.append(rows)
        self._last_time_entry_ms = int(timestamps_ms[-1])
