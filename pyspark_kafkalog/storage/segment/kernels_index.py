"""Kafka's rules for index entries and for rolling, as a compiled loop over a table of batches (index_entries.py).

A server appends a few batches at a time, thousands of times a second, and recovery reads a million: the loop serves
both. It takes and leaves a segment's counters in an array of integers.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import types

from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.native import INT64, INT64_IN
from pyspark_kafkalog.record.kernels.scan import BATCH_TABLE
from pyspark_kafkalog.units import INT32_MAX

#: Slots of the array of counters: those of SegmentCounters, then the numbers of entries that were added.
SIZE_BYTES = 0
FIRST_TIMESTAMP = 1
MAX_TIMESTAMP = 2
MAX_TIMESTAMP_OFFSET = 3
BYTES_SINCE_LAST_ENTRY = 4
OFFSET_ENTRIES = 5
TIME_ENTRIES = 6
COUNTERS = 7

#: Slots of the array of limits: those of SegmentLimits, and whether the segment rolls at all.
BASE_OFFSET = 0
SEGMENT_BYTES = 1
ROLL_AFTER = 2
INDEX_INTERVAL = 3
OFFSET_ENTRIES_LEFT = 4
TIME_ENTRIES_LEFT = 5
LAST_TIME_ENTRY = 6
WAITED_WITHOUT_TIMESTAMPS = 7
ROLLS = 8

_MAX_RELATIVE_OFFSET = np.int64(INT32_MAX)
_NO_LIMIT = np.int64(1 << 62)


@kernel(types.int64(BATCH_TABLE, INT64, INT64_IN, INT64, INT64, INT64, INT64))
def add_batches(batches, counters, limits, offsets, positions, timestamps, time_offsets):
    """Count in the batches before which the segment does not roll; returns how many there are.

    `offsets` and `positions` get the entries of the offset index, `timestamps` and `time_offsets` those of the time
    index. Each of them has room for an entry of every batch.
    """
    rows_max = _NO_LIMIT
    if limits[OFFSET_ENTRIES_LEFT] <= 0 or limits[TIME_ENTRIES_LEFT] <= 0:
        # An index without room for a single entry: an empty segment still takes a batch, else none ever would.
        rows_max = 0 if counters[SIZE_BYTES] else 1
    last_time_entry = limits[LAST_TIME_ENTRY]
    entries, time_entries = np.int64(0), np.int64(0)
    count = np.int64(0)
    for row in range(len(batches)):
        batch = batches[row]
        size, timestamp = np.int64(batch.size_bytes), batch.max_timestamp_ms
        position = counters[SIZE_BYTES]
        if limits[ROLLS]:
            if row >= rows_max:
                break
            relative = batch.last_offset - limits[BASE_OFFSET]
            if relative < 0 or relative > _MAX_RELATIVE_OFFSET:
                break
            if position > 0:
                first = counters[FIRST_TIMESTAMP]
                waited = timestamp - first if first >= 0 else limits[WAITED_WITHOUT_TIMESTAMPS]
                if position + size > limits[SEGMENT_BYTES] or waited > limits[ROLL_AFTER]:
                    break
        if position == 0:
            counters[FIRST_TIMESTAMP] = timestamp
        if timestamp > counters[MAX_TIMESTAMP]:
            counters[MAX_TIMESTAMP] = timestamp
            counters[MAX_TIMESTAMP_OFFSET] = batch.last_offset
        if counters[BYTES_SINCE_LAST_ENTRY] > limits[INDEX_INTERVAL]:
            offsets[entries] = batch.last_offset
            positions[entries] = position
            entries += 1
            counters[BYTES_SINCE_LAST_ENTRY] = 0
            if counters[MAX_TIMESTAMP] > last_time_entry:
                last_time_entry = counters[MAX_TIMESTAMP]
                timestamps[time_entries] = last_time_entry
                time_offsets[time_entries] = counters[MAX_TIMESTAMP_OFFSET]
                time_entries += 1
            if rows_max == _NO_LIMIT and (
                entries >= limits[OFFSET_ENTRIES_LEFT] or time_entries >= limits[TIME_ENTRIES_LEFT]
            ):
                rows_max = row + 1
        counters[BYTES_SINCE_LAST_ENTRY] += size
        counters[SIZE_BYTES] = position + size
        count += 1
    counters[OFFSET_ENTRIES] = entries
    counters[TIME_ENTRIES] = time_entries
    return count
