"""Compiled decoding of records: the fields of one record, and columns in Arrow's layout of many.

Layout of one record (all numbers zigzag varints):

    length                  of the rest of the record
    attributes int8         unused
    timestampDelta varlong  offsetDelta varint
    keyLength (-1: null)  key    valueLength (-1: null)  value
    headersCount, then for each: keyLength key valueLength (-1: null) value

`read_record` locates the fields of one, and compares every length and offset with the remaining bytes. It is inlined
into the kernels that call it: a call for each record would cost as much as its work.

A kernel takes *sections*: the decompressed bytes of a batch after its header, by address and length, one for each row
of a batch table. Every length, count and offset is compared with the remaining bytes before it is used, so that no
input can make a kernel read or write outside the given arrays. An output column is a tuple of addresses (int32 offsets,
data, validity bitmap): for arrays passed to a function, numba would count references for every record.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.record.header import TIMESTAMP_TYPE_MASK
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.native import (
    BAD_VARINT,
    INT32,
    INT64,
    INT64_IN,
    UINT8,
    copy_with_slack,
    load_byte,
    prefetch,
    read_varint,
    read_varlong,
    store_byte,
    store_int32,
)
from pyspark_kafkalog.record.kernels.scan import BATCH_TABLE

#: Faults of a record; 0 is no fault.
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

#: Slots of a kernel's `state` array for the position of the fault; a kernel may have others before them.
FAULT_BATCH = 7
FAULT_RECORD = 8
FAULT_POSITION = 9
FAULT_FOUND = 10
STATE_SIZE = 11

#: Requested columns, as bits.
COLUMN_KEY = 1
COLUMN_VALUE = 2
COLUMN_HEADERS = 4
COLUMN_OFFSET = 8
COLUMN_TIMESTAMP = 16
COLUMN_TIMESTAMP_TYPE = 32

#: Slots of the `state` array for the output written.
ROWS = 0
KEY_BYTES = 1
VALUE_BYTES = 2
HEADERS = 3
HEADER_BYTES = 4
NULL_KEYS = 5
NULL_VALUES = 6

#: Slots of the `bounds` array.
START_OFFSET = 0
END_OFFSET = 1
MIN_TIMESTAMP = 2
UNTIL_TIMESTAMP = 3

_COLUMN = types.UniTuple(types.int64, 3)
_INT32_BYTES = 4

#: Distance of memory prefetch. The next record's position depends on the length of this one, so the processor does not
#: prefetch by itself: with 2 KiB a scan of the timestamps took half the time or less.
_PREFETCH_BYTES = 2048


@njit(nogil=True)
def note_fault(state, batch, record, position, found):
    """Store the position of a fault; `position` is relative to the start of the batch's records."""
    state[FAULT_BATCH] = batch
    state[FAULT_RECORD] = record
    state[FAULT_POSITION] = position
    state[FAULT_FOUND] = found


@njit(nogil=True)
def _skip_headers(at, end, count):
    """Check `count` headers from address `at`. Returns (address after them, fault, length found)."""
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


@njit(nogil=True, forceinline=True)
def read_record(at, end, offset_delta_min, offset_delta_max):
    """Check the record at address `at` of a batch that ends at `end`; its offset delta must be in the given range.

    Returns (fault, value found, address after the record, timestamp delta, offset delta, address and length of the key,
    of the value, address and number of the headers). A length of -1 is null. With a fault, only the first two are
    valid.
    """
    length, at = read_varint(at, end)
    if at == BAD_VARINT or length < 0 or length > end - at:
        return BAD_LENGTH, length, at, 0, 0, 0, 0, 0, 0, 0, 0
    end = at + length
    if length < 1:
        return NO_ATTRIBUTES, length, at, 0, 0, 0, 0, 0, 0, 0, 0
    timestamp_delta, at = read_varlong(at + 1, end)
    if at == BAD_VARINT:
        return BAD_TIMESTAMP_DELTA, 0, at, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = read_varint(at, end)
    if at == BAD_VARINT:
        return BAD_OFFSET_DELTA, 0, at, 0, 0, 0, 0, 0, 0, 0, 0
    key_length, key_at = read_varint(at, end)
    if key_at == BAD_VARINT or key_length < -1 or key_length > end - key_at:
        return BAD_KEY_LENGTH, key_length, at, 0, 0, 0, 0, 0, 0, 0, 0
    value_length, value_at = read_varint(key_at + max(key_length, 0), end)
    if value_at == BAD_VARINT or value_length < -1 or value_length > end - value_at:
        return BAD_VALUE_LENGTH, value_length, at, 0, 0, 0, 0, 0, 0, 0, 0
    headers_count, headers_at = read_varint(value_at + max(value_length, 0), end)
    if headers_at == BAD_VARINT or headers_count < 0 or headers_count > end - headers_at:
        return BAD_HEADERS_COUNT, headers_count, at, 0, 0, 0, 0, 0, 0, 0, 0
    at = headers_at
    if headers_count > 0:
        at, fault, found = _skip_headers(at, end, headers_count)
        if fault != NO_FAULT:
            return fault, found, at, 0, 0, 0, 0, 0, 0, 0, 0
    if at != end:
        return BYTES_LEFT_IN_RECORD, end - at, at, 0, 0, 0, 0, 0, 0, 0, 0
    if offset_delta > offset_delta_max:
        return OFFSET_PAST_LAST, offset_delta, at, 0, 0, 0, 0, 0, 0, 0, 0
    if offset_delta < offset_delta_min:
        return OFFSET_NOT_RISING, offset_delta, at, 0, 0, 0, 0, 0, 0, 0, 0
    return (
        NO_FAULT, 0, end, timestamp_delta, offset_delta,
        key_at, key_length, value_at, value_length, headers_at, headers_count,
    )  # fmt: skip


@njit(nogil=True)
def _append(length, source, source_end, row, written, column):
    """Append one field (null if length is -1) to a column; returns the column's bytes so far."""
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
        INT64_IN, INT64_IN, BATCH_TABLE, INT64_IN, types.int64,
        INT64, INT64, INT32,
        _COLUMN, _COLUMN,
        INT64, INT64, INT32,
        INT64,
    ))  # fmt: skip
def decode_sections(
    addresses, sizes, batches, bounds, columns,
    offsets, timestamps, timestamp_types,
    keys, values,
    header_addresses, header_ends, header_counts,
    state,
):  # fmt: skip
    """Decode the records of all sections within `bounds` into the requested columns; returns the fault, if any.

    Requested columns have room for all records of `batches` (one more in offsets), their data for all bytes of the
    sections plus COPY_SLACK_BYTES, and their validity is all ones. The arrays of other columns are never accessed. For
    `decode_headers`, the address and number of each record's headers are stored. `state` counts the output, or holds
    the position of the fault.
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
        offset_delta = np.int64(-1)
        for record in range(header.records_count):
            start = at
            (
                fault, found, at, timestamp_delta, offset_delta,
                key_at, key_length, value_at, value_length, headers_at, headers_count,
            ) = read_record(at, end, offset_delta + 1, last_offset - base_offset)  # fmt: skip
            if fault != NO_FAULT:
                note_fault(state, batch, record, start - section, found)
                return fault
            offset = base_offset + offset_delta
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
            if columns & COLUMN_OFFSET:
                offsets[row] = offset
            if columns & COLUMN_TIMESTAMP:
                timestamps[row] = timestamp
            if columns & COLUMN_TIMESTAMP_TYPE:
                timestamp_types[row] = timestamp_type
            if columns & COLUMN_KEY:
                key_bytes = _append(key_length, key_at, end, row, key_bytes, keys)
                null_keys += key_length < 0
            if columns & COLUMN_VALUE:
                value_bytes = _append(value_length, value_at, end, row, value_bytes, values)
                null_values += value_length < 0
            if columns & COLUMN_HEADERS:
                header_addresses[row] = headers_at
                header_ends[row] = at
                headers += headers_count
                header_counts[row + 1] = headers
                header_bytes += at - headers_at
            row += 1
        if at != end:
            note_fault(state, batch, header.records_count, at - section, end - at)
            return BYTES_LEFT_IN_BATCH
    state[ROWS] = row
    state[KEY_BYTES] = key_bytes
    state[VALUE_BYTES] = value_bytes
    state[HEADERS] = headers
    state[HEADER_BYTES] = header_bytes
    state[NULL_KEYS] = null_keys
    state[NULL_VALUES] = null_values
    return NO_FAULT


@kernel(types.int64(INT64_IN, INT64_IN, types.int64, _COLUMN, _COLUMN))
def decode_headers(addresses, ends, rows, keys, values):
    """Copy the headers of `rows` records, which `decode_sections` has checked; returns the number of null values."""
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


@kernel(types.int64(types.int64, types.int64, types.int64))
def largest_record(source, size, records):
    """The length of the largest record of a section, without the length field; of those before a fault, if any."""
    at, end, largest = source, source + size, np.int64(0)
    for _ in range(records):
        length, body = read_varint(at, end)
        if length < 0 or length > end - body or body <= at:
            return largest
        largest = max(largest, length)
        at = body + length
    return largest


@kernel(types.void(INT64_IN, INT64_IN, BATCH_TABLE, types.int64, types.int64, UINT8))
def sections_in_time(addresses, sizes, batches, min_timestamp, until_timestamp, selected):
    """Set selected[i] to 0 if no record of section i has min_timestamp <= timestamp <= until_timestamp.

    Reads only lengths and timestamps, and stops in a batch at the first match. A section with a fault stays selected;
    `decode_sections` reports the fault.
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
