"""Compiled loops over the batches of a run of bytes: finding their headers, checking and computing their CRCs.

The CRC loops take the address of crc32c_extend (kernels/native.py).
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    MAGIC_V2,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_COUNT_AT,
)
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.native import INT64_IN, UINT8_IN, UINT32, UINT32_IN, call_crc32c
from pyspark_kafkalog.units import INT64_MAX

#: Reasons why a scan stopped.
END_OF_DATA = 0
TABLE_FULL = 1
BAD_HEADER = 2
LIMIT_REACHED = 3
OFFSET_REACHED = 4

_MAX_INT64 = np.int64(INT64_MAX)

BATCH_TABLE = types.Array(from_dtype(BATCH_DTYPE), 1, "C", readonly=True)
BATCH_TABLE_OUT = types.Array(from_dtype(BATCH_DTYPE), 1, "C")


@njit(nogil=True)
def _big_endian(data, at, size):
    """The unsigned number of `size` bytes at data[at:]."""
    result = np.uint64(0)
    for i in range(size):
        result = (result << np.uint64(8)) | np.uint64(data[at + i])
    return result


@njit(nogil=True)
def write_big_endian(data, at, size, value):
    """Store the low `size` bytes of `value` at data[at:]."""
    rest = np.uint64(value)
    for i in range(size):
        data[at + size - 1 - i] = np.uint8(rest & np.uint64(0xFF))
        rest >>= np.uint64(8)


@kernel(types.UniTuple(types.int64, 4)(UINT8_IN, types.int64, types.int64, types.int64, BATCH_TABLE_OUT))
def scan_headers(data, at, file_position, previous_offset, table):
    """Fill `table` with the batches from data[at:] on; `file_position` is that of data[0].

    `previous_offset` is the last offset of the previous batch, -1 without one. Returns (rows filled, start of the next
    batch, last offset, reason for stopping). A batch that extends past the data ends the scan, and so does a bad
    header, which the caller then parses again to describe the fault.
    """
    size = len(data)
    rows = 0
    while True:
        if size - at <= MAGIC_AT:
            return rows, at, previous_offset, END_OF_DATA
        length = np.int64(np.int32(_big_endian(data, at + LENGTH_AT, 4)))
        if length < RECORD_BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES or data[at + MAGIC_AT] != MAGIC_V2:
            return rows, at, previous_offset, BAD_HEADER
        if size - at < RECORD_BATCH_OVERHEAD_BYTES:
            return rows, at, previous_offset, END_OF_DATA
        base_offset = np.int64(_big_endian(data, at, 8))
        last_offset_delta = np.int64(np.int32(_big_endian(data, at + LAST_OFFSET_DELTA_AT, 4)))
        records_count = np.int32(_big_endian(data, at + RECORDS_COUNT_AT, 4))
        if (
            last_offset_delta < 0
            or base_offset <= previous_offset
            or base_offset >= _MAX_INT64 - last_offset_delta  # the offset after it must fit int64, too
            or records_count < 0
        ):
            return rows, at, previous_offset, BAD_HEADER
        size_bytes = length + LOG_OVERHEAD_BYTES
        if size_bytes > size - at:
            return rows, at, previous_offset, END_OF_DATA
        if rows == len(table):
            return rows, at, previous_offset, TABLE_FULL
        row = table[rows]
        row.position = file_position + at
        row.size_bytes = size_bytes
        row.base_offset = base_offset
        row.last_offset = base_offset + last_offset_delta
        row.base_timestamp_ms = np.int64(_big_endian(data, at + BASE_TIMESTAMP_AT, 8))
        row.max_timestamp_ms = np.int64(_big_endian(data, at + MAX_TIMESTAMP_AT, 8))
        row.producer_id = np.int64(_big_endian(data, at + PRODUCER_ID_AT, 8))
        row.leader_epoch = np.int32(_big_endian(data, at + LEADER_EPOCH_AT, 4))
        row.base_sequence = np.int32(_big_endian(data, at + BASE_SEQUENCE_AT, 4))
        row.records_count = records_count
        row.crc = np.uint32(_big_endian(data, at + CRC_AT, 4))
        row.attributes = np.int16(_big_endian(data, at + ATTRIBUTES_AT, 2))
        row.producer_epoch = np.int16(_big_endian(data, at + PRODUCER_EPOCH_AT, 2))
        previous_offset = base_offset + last_offset_delta
        at += size_bytes
        rows += 1


@kernel(types.UniTuple(types.int64, 4)(UINT8_IN, types.int64, types.int64, types.int64, types.int64))
def walk_headers(data, at, limit, previous_offset, stop_offset):
    """Pass the batches from data[at:] on, of which only the headers need be in `data`.

    Stops at the first batch that does not end by data[limit], that reaches `stop_offset`, or whose header is bad or
    not in the data. `previous_offset` is the last offset of the batch before, -1 without one. Returns (start of the
    batch at which it stopped, last offset before it, the attributes of the passed batches or'ed, reason for stopping);
    the start is past the data if the last batch passed is not whole in it.
    """
    size = len(data)
    attributes = np.int64(0)
    while True:
        if limit - at < RECORD_BATCH_OVERHEAD_BYTES:
            return at, previous_offset, attributes, LIMIT_REACHED
        if size - at < RECORD_BATCH_OVERHEAD_BYTES:
            return at, previous_offset, attributes, END_OF_DATA
        length = np.int64(np.int32(_big_endian(data, at + LENGTH_AT, 4)))
        base_offset = np.int64(_big_endian(data, at, 8))
        last_offset_delta = np.int64(np.int32(_big_endian(data, at + LAST_OFFSET_DELTA_AT, 4)))
        if (
            length < RECORD_BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES
            or data[at + MAGIC_AT] != MAGIC_V2
            or last_offset_delta < 0
            or base_offset <= previous_offset
            or base_offset >= _MAX_INT64 - last_offset_delta
        ):
            return at, previous_offset, attributes, BAD_HEADER
        if base_offset + last_offset_delta >= stop_offset:
            return at, previous_offset, attributes, OFFSET_REACHED
        size_bytes = length + LOG_OVERHEAD_BYTES
        if size_bytes > limit - at:
            return at, previous_offset, attributes, LIMIT_REACHED
        attributes |= np.int64(np.int16(_big_endian(data, at + ATTRIBUTES_AT, 2)))
        previous_offset = base_offset + last_offset_delta
        at += size_bytes


@kernel(types.int64(types.int64, UINT8_IN, INT64_IN, INT64_IN, UINT32_IN))
def find_bad_crc(function, data, starts, sizes, crcs):
    """The first i for which data[starts[i]:][:sizes[i]] is not a batch with CRC crcs[i], -1 if all are."""
    at = np.int64(data.ctypes.data)
    for i in range(len(starts)):
        start, size = starts[i], sizes[i]
        if start < 0 or size < ATTRIBUTES_AT or size > len(data) - start:
            return i
        if call_crc32c(function, at + start + ATTRIBUTES_AT, size - ATTRIBUTES_AT) != crcs[i]:
            return i
    return -1


@kernel(types.void(types.int64, UINT8_IN, INT64_IN, INT64_IN, UINT32))
def compute_crcs(function, data, starts, sizes, crcs):
    """Set crcs[i] to the CRC of the batch data[starts[i]:][:sizes[i]], which `data` holds completely."""
    at = np.int64(data.ctypes.data)
    for i in range(len(starts)):
        crcs[i] = call_crc32c(function, at + starts[i] + ATTRIBUTES_AT, sizes[i] - ATTRIBUTES_AT)
