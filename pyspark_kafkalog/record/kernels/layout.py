"""Compiled reading of one record: locates its fields, and compares every length and offset with the remaining bytes.

Layout of one record (all numbers zigzag varints):

    length                  of the rest of the record
    attributes int8         unused
    timestampDelta varlong  offsetDelta varint
    keyLength (-1: null)  key    valueLength (-1: null)  value
    headersCount, then for each: keyLength key valueLength (-1: null) value

These functions are inlined into the kernels that call them: a call for each record would cost as much as its work.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

from numba import njit

from pyspark_kafkalog.record.kernels.memory import BAD_VARINT, read_varint, read_varlong

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
