"""Compiled encoding of columns into record batches.

There are two passes: `plan_batches` determines the size of every record and the ends of batches, `write_records` writes
the records of each batch, with room for its header before them. `write_headers` writes the headers once sizes are
final, i.e. after compression. Layout of a record: decode.py.

The records lie in one or several pieces, such as Arrow batches, and are numbered through. Rows are given in output
order (a gather), which should seldom change from piece to piece. `pieces` has PIECE_WORDS int64 for each piece:

    0   number of its first record, and after its last
    2   address of its timestamps, int64
    3   keys: addresses of int32 offsets, data, end of data, validity bitmap
    7   values: likewise
    11  address of the headers' list offsets, 0 for no headers
    12  keys of headers: likewise
    16  values of headers: likewise

0 for offsets means all null, 0 for validity no nulls. Addresses are used because for arrays in a tuple numba would
count references for every record, which took ten times as long.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
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
    NO_TIMESTAMP,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_COUNT_AT,
)
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.native import (
    INT64,
    INT64_IN,
    UINT8,
    copy_with_slack,
    load_byte,
    load_int32,
    load_int64,
    prefetch,
    store_byte,
    varlong_size,
    write_varlong,
)
from pyspark_kafkalog.record.kernels.scan import BATCH_TABLE, BATCH_TABLE_OUT

#: Faults that `plan_batches` can find.
NO_FAULT = 0
BAD_TIMESTAMP = 1
RECORD_TOO_LARGE = 2

PIECE_WORDS = 20
FIRST_AT, END_AT = 0, 1
TIMESTAMPS_AT, KEYS_AT, VALUES_AT = 2, 3, 7
LISTS_AT, HEADER_KEYS_AT, HEADER_VALUES_AT = 11, 12, 16
_PIECES = types.Array(types.int64, 2, "C", readonly=True)
_INT32_BYTES = 4
_INT64_BYTES = 8
#: A record is loaded into the cache while the kernel copies the one this many before it: the processor does not foresee
#: the rows of one partition, which lie apart. Two lines of each field are loaded.
_RECORDS_AHEAD = 8
_LINE_BYTES = 64


@njit(nogil=True)
def _column_of(pieces, piece, at):
    return pieces[piece, at], pieces[piece, at + 1], pieces[piece, at + 2], pieces[piece, at + 3]


@njit(nogil=True)
def _piece_of(pieces, row):
    """Of the piece with this row: first row, end, timestamps, keys, values, (headers' list offsets, keys, values)."""
    piece = 0
    while piece + 1 < len(pieces) and row >= pieces[piece, END_AT]:
        piece += 1
    keys, values = _column_of(pieces, piece, KEYS_AT), _column_of(pieces, piece, VALUES_AT)
    header_keys, header_values = _column_of(pieces, piece, HEADER_KEYS_AT), _column_of(pieces, piece, HEADER_VALUES_AT)
    headers = (pieces[piece, LISTS_AT], header_keys, header_values)
    return pieces[piece, FIRST_AT], pieces[piece, END_AT], pieces[piece, TIMESTAMPS_AT], keys, values, headers


@njit(nogil=True)
def _length(column, row):
    """Bytes of one element, -1 for null."""
    offsets, _, _, validity = column
    if offsets == 0:
        return np.int64(-1)
    if validity != 0 and not (np.int64(load_byte(validity + (row >> 3))) >> (row & 7)) & 1:
        return np.int64(-1)
    at = offsets + _INT32_BYTES * row
    return load_int32(at + _INT32_BYTES) - load_int32(at)


@njit(nogil=True)
def _header_range(lists, row):
    """The first of a record's headers, and the end after the last."""
    if lists == 0:
        return np.int64(0), np.int64(0)
    at = lists + _INT32_BYTES * row
    return load_int32(at), load_int32(at + _INT32_BYTES)


@njit(nogil=True)
def _field_size(column, row):
    """Bytes of one element, including its length."""
    length = _length(column, row)
    return varlong_size(length) + max(length, 0)


@njit(nogil=True)
def _headers_size(headers, row):
    """Bytes of a record's headers, including their count."""
    lists, keys, values = headers
    first, end = _header_range(lists, row)
    size = np.int64(varlong_size(end - first))
    for header in range(first, end):
        size += _field_size(keys, header) + _field_size(values, header)
    return size


@kernel(types.UniTuple(types.int64, 3)(INT64_IN, _PIECES, types.int64, types.int64, INT64, INT64))
def plan_batches(rows, pieces, batch_limit, record_limit, body_sizes, firsts):
    """Determine each record's size and the first record of each batch.

    A batch is closed when the next record would make it, with its header, larger than `batch_limit` bytes; it has at
    least one record. A record whose own batch would be larger than `record_limit` is a fault, and so is a timestamp
    below -1. Fills body_sizes[i] (bytes after the length; for a record too large, the size of its batch) and firsts[b],
    followed by the number of records. Returns (number of batches, fault, its index in `rows`).
    """
    batches = np.int64(0)
    batch_size, base_timestamp, first = np.int64(0), np.int64(0), np.int64(0)
    piece_first, piece_end, timestamps, keys, values, headers = _piece_of(pieces, 0)
    for i in range(len(rows)):
        if not piece_first <= rows[i] < piece_end:
            piece_first, piece_end, timestamps, keys, values, headers = _piece_of(pieces, rows[i])
        row = rows[i] - piece_first
        timestamp = np.int64(load_int64(timestamps + _INT64_BYTES * row))
        if timestamp < NO_TIMESTAMP:
            return batches, BAD_TIMESTAMP, i
        fields = 1 + _field_size(keys, row) + _field_size(values, row) + _headers_size(headers, row)
        body = fields + varlong_size(timestamp - base_timestamp) + varlong_size(i - first)
        size = body + varlong_size(body)
        if i == 0 or batch_size + size > batch_limit:
            firsts[batches] = i
            batches += 1
            first, base_timestamp, batch_size = i, timestamp, RECORD_BATCH_OVERHEAD_BYTES
            body = fields + 2
            size = body + varlong_size(body)
            if batch_size + size > record_limit:
                body_sizes[i] = batch_size + size
                return batches, RECORD_TOO_LARGE, i
        body_sizes[i] = body
        batch_size += size
    firsts[batches] = len(rows)
    return batches, NO_FAULT, np.int64(0)


@njit(nogil=True)
def _write_field(at, column, row):
    """Write one element with its length at address `at`; returns the address after it."""
    length = _length(column, row)
    at = write_varlong(at, length)
    if length > 0:
        offsets, data, data_end, _ = column
        copy_with_slack(at, data + load_int32(offsets + _INT32_BYTES * row), length, data_end)
        at += length
    return at


@njit(nogil=True)
def _fetch_field(column, row):
    """Begin to load one element into the cache."""
    offsets, data, _, _ = column
    if offsets != 0:
        at = data + load_int32(offsets + _INT32_BYTES * row)
        prefetch(at)
        prefetch(at + _LINE_BYTES)


@kernel(types.int64(INT64_IN, _PIECES, INT64_IN, INT64_IN, UINT8, BATCH_TABLE_OUT))
def write_records(rows, pieces, body_sizes, firsts, out, table):
    """Write the records of the planned batches back to back, each batch with room for its header before it.

    `out` needs COPY_SLACK_BYTES more than the size of the batches. Sets position, size_bytes, records_count and the
    timestamps in `table`, one row per batch. Returns the number of bytes used.
    """
    start = out.ctypes.data
    at = start
    piece_first, piece_end, timestamps, keys, values, headers = _piece_of(pieces, 0)
    for batch in range(len(table)):
        batch_at = at
        at += RECORD_BATCH_OVERHEAD_BYTES
        first, end = firsts[batch], firsts[batch + 1]
        base_timestamp, max_timestamp = np.int64(0), np.int64(NO_TIMESTAMP)
        for i in range(first, end):
            if not piece_first <= rows[i] < piece_end:
                piece_first, piece_end, timestamps, keys, values, headers = _piece_of(pieces, rows[i])
            row = rows[i] - piece_first
            ahead = rows[min(i + _RECORDS_AHEAD, len(rows) - 1)]
            if piece_first <= ahead < piece_end:
                _fetch_field(keys, ahead - piece_first)
                _fetch_field(values, ahead - piece_first)
            timestamp = np.int64(load_int64(timestamps + _INT64_BYTES * row))
            if i == first:
                base_timestamp = timestamp
            max_timestamp = max(max_timestamp, timestamp)
            at = write_varlong(at, body_sizes[i])
            store_byte(at, np.uint8(0))
            at = write_varlong(at + 1, timestamp - base_timestamp)
            at = write_varlong(at, i - first)
            at = _write_field(at, keys, row)
            at = _write_field(at, values, row)
            first_header, end_header = _header_range(headers[0], row)
            at = write_varlong(at, end_header - first_header)
            for header in range(first_header, end_header):
                at = _write_field(at, headers[1], header)
                at = _write_field(at, headers[2], header)
        entry = table[batch]
        entry.position = batch_at - start
        entry.size_bytes = at - batch_at
        entry.records_count = np.int32(end - first)
        entry.base_timestamp_ms = base_timestamp
        entry.max_timestamp_ms = max_timestamp
    return at - start


@njit(nogil=True)
def _put(out, at, size, value):
    """Store the low `size` bytes of `value`, most significant first."""
    raw = np.uint64(value)
    for i in range(size):
        out[at + size - 1 - i] = np.uint8(raw & np.uint64(0xFF))
        raw >>= np.uint64(8)


@kernel(types.void(UINT8, BATCH_TABLE))
def write_headers(out, table):
    """Write the header of every batch of `table` at its position in `out`, including the CRC."""
    for batch in range(len(table)):
        entry = table[batch]
        at = entry.position
        _put(out, at + BASE_OFFSET_AT, 8, entry.base_offset)
        _put(out, at + LENGTH_AT, 4, entry.size_bytes - LOG_OVERHEAD_BYTES)
        _put(out, at + LEADER_EPOCH_AT, 4, np.int64(entry.leader_epoch))
        _put(out, at + MAGIC_AT, 1, np.int64(MAGIC_V2))
        _put(out, at + CRC_AT, 4, np.int64(entry.crc))
        _put(out, at + ATTRIBUTES_AT, 2, np.int64(entry.attributes))
        _put(out, at + LAST_OFFSET_DELTA_AT, 4, entry.last_offset - entry.base_offset)
        _put(out, at + BASE_TIMESTAMP_AT, 8, entry.base_timestamp_ms)
        _put(out, at + MAX_TIMESTAMP_AT, 8, entry.max_timestamp_ms)
        _put(out, at + PRODUCER_ID_AT, 8, entry.producer_id)
        _put(out, at + PRODUCER_EPOCH_AT, 2, np.int64(entry.producer_epoch))
        _put(out, at + BASE_SEQUENCE_AT, 4, np.int64(entry.base_sequence))
        _put(out, at + RECORDS_COUNT_AT, 4, np.int64(entry.records_count))
