"""Compiled rewriting of batches that lose some of their records.

Offsets stay, so a surviving record keeps its bytes except for the timestamp delta, which is relative to a base that may
have moved, and the length in front. Layout of a record: record/kernels/layout.py.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import types

from pyspark_kafkalog.maintenance.cleaner.kernels_offset_map import HAS_VALUE
from pyspark_kafkalog.record.header import NO_TIMESTAMP, RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.memory import (
    copy_with_slack,
    read_varint,
    read_varlong,
    store_byte,
    varlong_size,
    write_varlong,
)

#: The most bytes by which a record can grow: 10 for the timestamp delta, and 5 for its length.
RECORD_GROWTH_BYTES = 15

_INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
_INT64 = types.Array(types.int64, 1, "C")
_UINT8_IN = types.Array(types.uint8, 1, "C", readonly=True)
_UINT8 = types.Array(types.uint8, 1, "C")


@kernel(types.void(_INT64_IN, _UINT8_IN, _UINT8_IN, _INT64_IN, _INT64, _INT64, _INT64, _INT64))
def summarize(firsts, keep, flags, timestamps, kept, kept_tombstones, max_timestamps, first_timestamps):
    """For each batch: the records and tombstones that stay, their largest timestamp and the timestamp of the first."""
    for batch in range(len(firsts) - 1):
        count, tombstones = np.int64(0), np.int64(0)
        largest, first = np.int64(NO_TIMESTAMP), np.int64(NO_TIMESTAMP)
        for row in range(firsts[batch], firsts[batch + 1]):
            if not keep[row]:
                continue
            if count == 0:
                first = timestamps[row]
            count += 1
            tombstones += not flags[row] & HAS_VALUE
            largest = max(largest, timestamps[row])
        kept[batch] = count
        kept_tombstones[batch] = tombstones
        max_timestamps[batch] = largest
        first_timestamps[batch] = first


@kernel(
    types.void(_INT64_IN, _INT64_IN, _UINT8_IN, _INT64_IN, _INT64_IN, _INT64_IN, _INT64_IN, _INT64_IN, _UINT8, _INT64)
)
def rewrite(chosen, firsts, keep, record_starts, record_ends, timestamps, section_ends, base_timestamps, out, sizes):
    """Write the surviving records of the batches `chosen`, batch after batch, each after room for its header.

    Timestamp deltas are relative to base_timestamps[i] for chosen[i]. `out` needs COPY_SLACK_BYTES more than is
    written. Sets sizes[i] to the bytes of batch chosen[i], including its header.
    """
    at = np.int64(out.ctypes.data)
    for i in range(len(chosen)):
        batch = chosen[i]
        base_timestamp = base_timestamps[i]
        section_end = section_ends[batch]
        batch_at = at
        at += RECORD_BATCH_OVERHEAD_BYTES
        for row in range(firsts[batch], firsts[batch + 1]):
            if not keep[row]:
                continue
            start, end = record_starts[row], record_ends[row]
            delta = timestamps[row] - base_timestamp
            _, body = read_varint(start, end)
            old_delta, rest = read_varlong(body + 1, end)
            if delta == old_delta:
                copy_with_slack(at, start, end - start, section_end)
                at += end - start
                continue
            at = write_varlong(at, 1 + varlong_size(delta) + (end - rest))
            store_byte(at, np.uint8(0))
            at = write_varlong(at + 1, delta)
            copy_with_slack(at, rest, end - rest, section_end)
            at += end - rest
        sizes[i] = at - batch_at
