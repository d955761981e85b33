"""Compiled decoding of records into Arrow-layout columns.

A kernel takes *sections*: the bytes of a batch after its header, decompressed, given by address and length, one for
each row of a batch table. Every length, count and offset is compared with what is left before it is used, so no bytes
can make a kernel read or write outside the arrays it was given. An output column is a tuple of addresses (int32
offsets, data, validity bitmap): of arrays passed on to a function, numba would count references for every record.

Layout of one record (all numbers zigzag varints):

    length                  of what follows
    attributes int8         unused
    timestampDelta varlong  offsetDelta varint
    keyLength (-1: null)  key    valueLength (-1: null)  value
    headersCount, then for each: keyLength key valueLength (-1: null) value
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.record.header import TIMESTAMP_TYPE_MASK
from pyspark_kafkalog.record.kernels_memory import (
    BAD_VARINT,
    copy_with_slack,
    kernel,
    load_byte,
    prefetch,
    read_varint,
    read_varlong,
    store_byte,
    store_int32,
)
from pyspark_kafkalog.record.kernels_scan import BATCH_TABLE

#: What can be wrong with a record; 0 is nothing.
NO_FAULT = 0
BAD_LENGTH = 1
BAD_TIMESTAMP_DELTA = 2
BAD_OFFSET_DELTA = 3
BAD_KEY_LENGTH = 4
BAD_VALUE_LENGTH = 5
BAD_HEADERS_COUNT = 6
BAD_HEADER_KEY_LENGTH = 7
BAD_HEADER_VALUE_LENGTH = 8
BYTES_LEFT_IN_RECORD = 9
BYTES_LEFT_IN_BATCH = 10
OFFSET_NOT_RISING = 11
OFFSET_PAST_LAST = 12
NO_ATTRIBUTES = 13

#: Columns wanted, as bits.
WANT_KEY = 1
WANT_VALUE = 2
WANT_HEADERS = 4
WANT_OFFSET = 8
WANT_TIMESTAMP = 16
WANT_TIMESTAMP_TYPE = 32

#: Slots of the `state` array: cursors going in and out, then the fault.
ROWS = 0
KEY_BYTES = 1
VALUE_BYTES = 2
HEADERS = 3
HEADER_BYTES = 4
NULL_KEYS = 5
NULL_VALUES = 6
FAULT_BATCH = 7
FAULT_RECORD = 8
FAULT_POSITION = 9
FAULT_FOUND = 10
STATE_SIZE = 11

#: Slots of the `bounds` array.
START_OFFSET = 0
END_OFFSET = 1
MIN_TIMESTAMP = 2
UNTIL_TIMESTAMP = 3

_INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
_INT64 = types.Array(types.int64, 1, "C")
_INT32 = types.Array(types.int32, 1, "C")
_BYTES = types.Array(types.uint8, 1, "C")
_COLUMN = types.UniTuple(types.int64, 3)
_INT32_BYTES = 4

#: How far ahead of a walk memory is fetched. The next record's place hangs on the length of this one, so the processor
#: does not run ahead by itself: with 2 KiB a walk over the timestamps took half the time or less.
_PREFETCH_BYTES = 2048


@njit(nogil=True)
def _fault(state, batch, record, position, found):
    state[FAULT_BATCH] = batch
    state[FAULT_RECORD] = record
    state[FAULT_POSITION] = position
    state[FAULT_FOUND] = found


@njit(nogil=True)
def _skip_headers(at, end, count):
    """Check `count` headers from address `at`: (address after them, fault, length found)."""
    for _ in range(count):
        length, after = read_varint(at, end)
        if after == BAD_VARINT or length < 0 or length > end - after:
            return at, BAD_HEADER_KEY_LENGTH, length
        at = after + length
        length, after = read_varint(at, end)
        if after == BAD_VARINT or length < -1 or length > end - after:
            return at, BAD_HEADER_VALUE_LENGTH, length
        at = after + max(length, 0)
    return at, NO_FAULT, 0


@njit(nogil=True)
def _append(length, source, source_end, row, written, column):
    """Put one field (null when length is -1) into a column; returns the column's bytes so far."""
    offsets, data, validity = column
    if length > 0:
        copy_with_slack(data + written, source, length, source_end)
        written += length
    elif length < 0:
        bits = validity + (row >> 3)
        store_byte(bits, load_byte(bits) & ~(np.uint8(1) << np.uint8(row & 7)))
    store_int32(offsets + _INT32_BYTES * (row + 1), written)
    return written


@kernel(
    types.int64(
        _INT64_IN, _INT64_IN, BATCH_TABLE, _INT64_IN, types.int64,
        _INT64, _INT64, _INT32,
        _COLUMN, _COLUMN,
        _INT64, _INT64, _INT32,
        _INT64,
    ))  # fmt: skip
def decode_sections(
    addresses, sizes, batches, bounds, wanted,
    offsets, timestamps, timestamp_types,
    keys, values,
    header_addresses, header_ends, header_counts,
    state,
):  # fmt: skip
    """Decode the records of all sections that lie in `bounds` into the wanted columns; returns what is wrong.

    Wanted columns have room for every record of `batches` (one more in offsets), data for every byte of the sections
    plus COPY_SLACK_BYTES, validity is all ones. The arrays of unwanted columns are never touched. For headers it leaves
    where each record's lie and how many, for `decode_headers`. `state` counts what was written, or says where the fault
    is.
    """
    start_offset, end_offset = bounds[START_OFFSET], bounds[END_OFFSET]
    min_timestamp, until_timestamp = bounds[MIN_TIMESTAMP], bounds[UNTIL_TIMESTAMP]
    row, key_bytes, value_bytes = np.int64(0), np.int64(0), np.int64(0)
    headers, header_bytes, null_keys, null_values = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for batch in range(len(batches)):
        header = batches[batch]
        section = addresses[batch]
        at = section
        end = at + sizes[batch]
        base_offset, last_offset = header.base_offset, header.last_offset
        base_timestamp, max_timestamp = header.base_timestamp_ms, header.max_timestamp_ms
        timestamp_type = np.int32(1) if header.attributes & TIMESTAMP_TYPE_MASK else np.int32(0)
        previous_offset = base_offset - 1
        for record in range(header.records_count):
            start = at
            length, at = read_varint(at, end)
            if at == BAD_VARINT or length < 0 or length > end - at:
                _fault(state, batch, record, start - section, length)
                return BAD_LENGTH
            record_end = at + length
            if length < 1:
                _fault(state, batch, record, start - section, length)
                return NO_ATTRIBUTES
            timestamp_delta, at = read_varlong(at + 1, record_end)
            if at == BAD_VARINT:
                _fault(state, batch, record, start - section, 0)
                return BAD_TIMESTAMP_DELTA
            offset_delta, at = read_varint(at, record_end)
            if at == BAD_VARINT:
                _fault(state, batch, record, start - section, 0)
                return BAD_OFFSET_DELTA
            key_length, key_at = read_varint(at, record_end)
            if key_at == BAD_VARINT or key_length < -1 or key_length > record_end - key_at:
                _fault(state, batch, record, start - section, key_length)
                return BAD_KEY_LENGTH
            value_length, value_at = read_varint(key_at + max(key_length, 0), record_end)
            if value_at == BAD_VARINT or value_length < -1 or value_length > record_end - value_at:
                _fault(state, batch, record, start - section, value_length)
                return BAD_VALUE_LENGTH
            headers_count, headers_at = read_varint(value_at + max(value_length, 0), record_end)
            if headers_at == BAD_VARINT or headers_count < 0 or headers_count > record_end - headers_at:
                _fault(state, batch, record, start - section, headers_count)
                return BAD_HEADERS_COUNT
            at = headers_at
            if headers_count > 0:
                at, fault, found = _skip_headers(at, record_end, headers_count)
                if fault != NO_FAULT:
                    _fault(state, batch, record, start - section, found)
                    return fault
            if at != record_end:
                _fault(state, batch, record, start - section, record_end - at)
                return BYTES_LEFT_IN_RECORD
            if offset_delta > last_offset - base_offset:
                _fault(state, batch, record, start - section, offset_delta)
                return OFFSET_PAST_LAST
            offset = base_offset + offset_delta
            if offset <= previous_offset:
                _fault(state, batch, record, start - section, offset_delta)
                return OFFSET_NOT_RISING
            previous_offset = offset
            timestamp = max_timestamp
            if timestamp_type == 0:
                timestamp = base_timestamp + timestamp_delta  # wraps, as in Java
            if (
                offset < start_offset
                or offset >= end_offset
                or timestamp < min_timestamp
                or timestamp > until_timestamp
            ):
                continue
            if wanted & WANT_OFFSET:
                offsets[row] = offset
            if wanted & WANT_TIMESTAMP:
                timestamps[row] = timestamp
            if wanted & WANT_TIMESTAMP_TYPE:
                timestamp_types[row] = timestamp_type
            if wanted & WANT_KEY:
                key_bytes = _append(key_length, key_at, end, row, key_bytes, keys)
                null_keys += key_length < 0
            if wanted & WANT_VALUE:
                value_bytes = _append(value_length, value_at, end, row, value_bytes, values)
                null_values += value_length < 0
            if wanted & WANT_HEADERS:
                header_addresses[row] = headers_at
                header_ends[row] = record_end
                headers += headers_count
                header_counts[row + 1] = headers
                header_bytes += record_end - headers_at
            row += 1
        if at != end:
            _fault(state, batch, header.records_count, at - section, end - at)
            return BYTES_LEFT_IN_BATCH
    state[ROWS] = row
    state[KEY_BYTES] = key_bytes
    state[VALUE_BYTES] = value_bytes
    state[HEADERS] = headers
    state[HEADER_BYTES] = header_bytes
    state[NULL_KEYS] = null_keys
    state[NULL_VALUES] = null_values
    return NO_FAULT


@kernel(types.int64(_INT64_IN, _INT64_IN, types.int64, _COLUMN, _COLUMN))
def decode_headers(addresses, ends, rows, keys, values):
    """Copy the headers of `rows` records, which `decode_sections` has checked; returns how many values are null."""
    header, key_bytes, value_bytes, null_values = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for row in range(rows):
        at, end = addresses[row], ends[row]
        while at < end:
            length, at = read_varint(at, end)
            key_bytes = _append(length, at, end, header, key_bytes, keys)
            length, at = read_varint(at + length, end)
            value_bytes = _append(length, at, end, header, value_bytes, values)
            null_values += length < 0
            at += max(length, 0)
            header += 1
    return null_values


@kernel(types.void(_INT64_IN, _INT64_IN, BATCH_TABLE, types.int64, types.int64, _BYTES))
def sections_in_time(addresses, sizes, batches, min_timestamp, until_timestamp, selected):
    """Set selected[i] to 0 where no record of section i has min_timestamp <= timestamp <= until_timestamp.

    Reads just lengths and timestamps and leaves a batch at the first match; a section with a fault stays selected, for
    `decode_sections` to say what is wrong.
    """
    for batch in range(len(batches)):
        header = batches[batch]
        at = addresses[batch]
        end = at + sizes[batch]
        base_timestamp = header.base_timestamp_ms
        if header.attributes & TIMESTAMP_TYPE_MASK:
            continue
        found = np.uint8(0)
        for _ in range(header.records_count):
            prefetch(at + _PREFETCH_BYTES)
            length, body = read_varint(at, end)
            if body == BAD_VARINT or length < 1 or length > end - body:
                found = np.uint8(1)
                break
            at = body + length
            timestamp_delta, after = read_varlong(body + 1, at)
            timestamp = base_timestamp + timestamp_delta
            if after == BAD_VARINT or (timestamp >= min_timestamp and timestamp <= until_timestamp):
                found = np.uint8(1)
                break
        selected[batch] = found
