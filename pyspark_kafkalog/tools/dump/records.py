"""Reads the records of one batch as kafka-dump-log does: in order, each yielded before the next is read.

    length varint, attributes int8, timestampDelta varlong, offsetDelta varint,
    keyLength varint (-1: null), key, valueLength varint (-1: null), value,
    headerCount varint, then for each: keyLength varint, key, valueLength varint (-1: null), value

Integers wrap as in Java, because the dump also shows batches whose CRC is wrong. Source: DefaultRecord.readFrom.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark_kafkalog.record.header import NO_SEQUENCE, BatchHeader, TimestampType
from pyspark_kafkalog.record.reference import read_varint, read_varlong
from pyspark_kafkalog.tools.dump.java_text import INT32_MAX, INT64_MAX, wrap_int32, wrap_int64

Headers = tuple[tuple[bytes, bytes | None], ...]


class DumpRecord(NamedTuple):
    """One record as stored: offset and timestamp made absolute, header keys and values as bytes."""

    offset: int
    timestamp_ms: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def increment_sequence(sequence: int, by: int) -> int:
    """DefaultRecordBatch.incrementSequence with Java's wrapping, also for invalid numbers."""
    if sequence > wrap_int32(INT32_MAX - by):
        return wrap_int32(by - wrap_int32(INT32_MAX - sequence) - 1)
    return wrap_int32(sequence + by)


def decrement_sequence(sequence: int, by: int) -> int:
    """DefaultRecordBatch.decrementSequence with Java's wrapping."""
    if sequence < by:
        return wrap_int32(INT32_MAX - wrap_int32(by - sequence) + 1)
    return wrap_int32(sequence - by)


def walk_records(data: bytes, header: BatchHeader) -> Iterator[DumpRecord]:
    """The records in the uncompressed bytes `data` after `header`. Raises ValueError or IndexError at any damage."""
    append_time = header.max_timestamp_ms if header.timestamp_type == TimestampType.LOG_APPEND_TIME else None
    base_offset, base_timestamp_ms, base_sequence = header.base_offset, header.base_timestamp_ms, header.base_sequence
    end = len(data)
    at = 0
    for left in range(header.records_count - 1, -1, -1):
        size, at = read_varint(data, at, end)
        stop = at + size
        if end < stop:
            raise ValueError(f"expected {size} bytes in record payload, but only {end - at} remain")
        delta, at = read_varlong(data, at + 1, end)
        timestamp_ms = base_timestamp_ms + delta if append_time is None else append_time
        delta, at = read_varint(data, at, end)
        offset = base_offset + delta
        sequence = NO_SEQUENCE if base_sequence < 0 else increment_sequence(base_sequence, delta)
        key, at = _bytes(data, at, end)
        value, at = _bytes(data, at, end)
        headers: Headers = ()
        if data[at]:
            headers, at = _headers(data, at, end)
        else:
            at += 1
        if at != stop:
            raise ValueError(f"expected to read {size} bytes in record payload, but instead read {size + at - stop}")
        if not left and at != end:
            raise ValueError("Incorrect declared batch size, records still remaining in file")
        if not (-INT64_MAX <= offset <= INT64_MAX and -INT64_MAX <= timestamp_ms <= INT64_MAX):
            offset, timestamp_ms = wrap_int64(offset), wrap_int64(timestamp_ms)
        yield DumpRecord(offset, timestamp_ms, sequence, key, value, headers)


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size = data[at]
    if size < 0x80:  # most lengths take one byte
        size = (size >> 1) ^ -(size & 1)
        at += 1
    else:
        size, at = read_varint(data, at, end)
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise ValueError(f"a field of {size} bytes reaches past the end of its batch")
    return data[at:stop], stop


def _headers(data: bytes, at: int, end: int) -> tuple[Headers, int]:
    count, at = read_varint(data, at, end)
    if count < 0:
        raise ValueError(f"Found invalid number of record headers {count}")
    if count > end - at:
        raise ValueError(f"Found invalid number of record headers. {count} is larger than the remaining size")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        key, at = _bytes(data, at, end)
        if key is None:
            raise ValueError("Invalid negative header key size")
        value, at = _bytes(data, at, end)
        headers.append((key, value))
    return tuple(headers), at
