"""Record batches in plain Python: the reference implementation that the compiled kernels must equal.

After its 61-byte header (header.py) a batch holds its records, compressed as a whole if its codec bits are set:

    size             varint    bytes after this field
    attributes       int8      no bit has a meaning yet
    timestampDelta   varlong   ms, relative to the batch's base timestamp (or delete horizon, stored in its place)
    offsetDelta      varint    relative to the batch's base offset
    key size         varint    -1: null; then the key
    value size       varint    -1: null; then the value
    header count     varint    then for each: key size and key (never null), value size (-1: null) and value

A variable-length integer has 7 bits per byte, least significant first; the top bit means that more bytes follow:

    varint          int32, zigzag, at most 5 bytes     lengths, offset deltas, header counts
    varlong         int64, zigzag, at most 10 bytes    timestamp deltas
    unsigned varint uint32, no zigzag, at most 5       compact lengths and tags of flexible messages

Zigzag maps 0, -1, 1, -2 to 0, 1, 2, 3. A value may have more bytes than necessary; bits of the last byte that do not
fit are dropped. Both rules are those of org.apache.kafka.common.utils.ByteUtils.

A crash may leave part of a batch at the end of a file; `decode_batch` treats it as corrupt, recovery cuts it off.
Source of the rules: org.apache.kafka.common.record.DefaultRecord, DefaultRecordBatch, MemoryRecordsBuilder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, KafkalogError, checked_count
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType, check_record_size, stored_codec
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    CONTROL_MASK,
    CRC_AT,
    DELETE_HORIZON_MASK,
    LENGTH_AT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_AT,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    TimestampType,
    crc32c,
    next_sequence,
    parse_header,
)
from pyspark_kafkalog.units import INT32_MAX
from pyspark_kafkalog.values import dataclass

MAX_VARINT_BYTES: Final = 5
MAX_VARLONG_BYTES: Final = 10
#: The most records and headers that one batch becomes objects of: some hundred megabytes of them.
MAX_DECODED: Final = 1 << 20
#: As many records as a batch of a metadata snapshot has.
_PLAIN_HEADS: Final = 1000

_INT32_MASK: Final = 0xFFFFFFFF
_INT64_MASK: Final = 0xFFFFFFFFFFFFFFFF


class MalformedVarintError(KafkalogError, ValueError):
    """A malformed varint; `at` is its position in the buffer. Callers convert it to an error with a file."""

    def __init__(self, *, at: int, expected: str, found: str) -> None:
        self.at = at
        self.expected = expected
        self.found = found
        super().__init__(f"at byte {at}: expected {expected}, found {found}")


def read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The int32 at `data[at:end]` and the position after it. Raises MalformedVarintError."""
    if at + 1 < end:  # most varints have one byte or two
        raw, high = data[at], data[at + 1]
        if raw < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + 1
        if high < 0x80:
            return (high << 6 | raw >> 1 & 0x3F) ^ -(raw & 1), at + 2
    raw, at = _read_groups(data, at, end, MAX_VARINT_BYTES)
    raw &= _INT32_MASK
    return (raw >> 1) ^ -(raw & 1), at


def read_varlong(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The int64 at `data[at:end]` and the position after it. Raises MalformedVarintError."""
    raw, at = _read_groups(data, at, end, MAX_VARLONG_BYTES)
    raw &= _INT64_MASK
    return (raw >> 1) ^ -(raw & 1), at


def read_unsigned_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The uint32 at `data[at:end]` and the position after it. Raises MalformedVarintError."""
    raw, at = _read_groups(data, at, end, MAX_VARINT_BYTES)
    return raw & _INT32_MASK, at


def encode_varint(value: int) -> bytes:
    """The bytes of an int32 with zigzag."""
    if 0 <= value < len(_SHORT_VARINTS):
        return _SHORT_VARINTS[value]
    return _encode_groups((value << 1) ^ (value >> 31))


def encode_varlong(value: int) -> bytes:
    """The bytes of an int64 with zigzag."""
    return _encode_groups((value << 1) ^ (value >> 63))


def encode_unsigned_varint(value: int) -> bytes:
    """The bytes of a uint32."""
    return _encode_groups(value)


def _read_groups(data: bytes | memoryview, at: int, end: int, max_bytes: int) -> tuple[int, int]:
    if at < end and (raw := data[at]) < 0x80:  # most varints have one byte
        return raw, at + 1
    raw = 0
    for taken in range(max_bytes):
        if at + taken >= end:
            raise MalformedVarintError(at=at, expected="a varint", found=f"the end after {taken} bytes of it")
        byte = data[at + taken]
        raw |= (byte & 0x7F) << (7 * taken)
        if byte < 0x80:
            return raw, at + taken + 1
    raise MalformedVarintError(
        at=at, expected=f"a varint of at most {max_bytes} bytes", found=f"{max_bytes} bytes and no end"
    )


def _encode_groups(raw: int) -> bytes:
    if raw <= 0x7F:
        return raw.to_bytes(1, "big")
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


#: Those of most lengths.
_SHORT_VARINTS: Final = [_encode_groups(each << 1) for each in range(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. `sequence` is its producer's sequence number, -1 without one; `attributes` its attributes byte."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    sequence: int = NO_SEQUENCE
    attributes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """A batch's header and its records in offset order; a batch that the cleaner emptied has none."""

    header: BatchHeader
    records: tuple[Record, ...]


def decode_batch(buffer: Buffer, at: int, *, file: str, file_position: int) -> RecordBatch:
    """The batch at `buffer[at:]`, which is at byte `file_position` of `file`, completely checked.

    Timestamps are those that a consumer sees: the max timestamp for every record of a LogAppendTime batch.

    Raises CorruptRecordError, also for more than MAX_DECODED records and headers, or UnsupportedFormatError for magic 0
    and 1 and for unknown codec bits.
    """
    header, batch = _checked_batch(buffer, at, file, file_position)
    records = decode_records(batch[RECORDS_AT:], header, file=file, file_position=file_position)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        records = tuple(replace(record, timestamp_ms=header.max_timestamp_ms) for record in records)
    return RecordBatch(header=header, records=records)


def decode_values(buffer: Buffer, at: int, *, file: str, file_position: int) -> tuple[BatchHeader, list[bytes] | None]:
    """The header of the batch at `buffer[at:]`, and the values of its records if these have nothing else.

    So metadata logs are written: no compression, keys or headers, one time, offsets without gaps. None for any other
    batch, also one whose records are damaged: `decode_batch` decides. Raises as that does for header, size and CRC.
    """
    header, batch = _checked_batch(buffer, at, file, file_position)
    is_plain = not header.compression_bits and not header.is_control
    count = min(header.records_count, MAX_DECODED)
    if is_plain and count == header.records_count == header.last_offset_delta + 1:
        with contextlib.suppress(IndexError, MalformedVarintError):
            return header, _plain_values(batch, count)
    return header, None


def _plain_values(batch: bytes, count: int) -> list[bytes] | None:
    """The values of `decode_values`. Raises IndexError or MalformedVarintError for some of the other batches."""
    values: list[bytes] = []
    at, end, heads = RECORDS_AT, len(batch), _plain_heads()
    for delta in range(count):
        size, at = read_varint(batch, at, end)
        value_end = at + size - 1
        head = heads[delta] if delta < _PLAIN_HEADS else _plain_head(delta)
        value_size, value_at = read_varint(batch, at + len(head), end)
        if not batch.startswith(head, at) or value_at + value_size != value_end or batch[value_end]:
            return None
        values.append(batch[value_at:value_end])
        at = value_end + 1
    return values if at == end else None


def _plain_head(offset_delta: int) -> bytes:
    """What a record without key and time has before its value: attributes, both deltas, the size of no key."""
    return bytes(2) + encode_varint(offset_delta) + encode_varint(-1)


@cache
def _plain_heads() -> tuple[bytes, ...]:
    return tuple(map(_plain_head, range(_PLAIN_HEADS)))


def iterate_batch(
    buffer: Buffer, at: int, *, file: str, file_position: int, record_max_bytes: int = INT32_MAX
) -> Iterator[Record]:
    """The records of `decode_batch` one by one, for batches of any number of records. Raises as it does.

    Raises InvalidRecordError for a record of a compressed batch of more than `record_max_bytes`, the topic's
    max.decompressed.message.bytes.
    """
    header, batch = _checked_batch(buffer, at, file, file_position)
    has_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for record in _iterate(batch[RECORDS_AT:], header, file, file_position, record_max_bytes):
        yield replace(record, timestamp_ms=header.max_timestamp_ms) if has_append_time else record


def _checked_batch(buffer: Buffer, at: int, file: str, file_position: int) -> tuple[BatchHeader, bytes]:
    """The header and all bytes of a batch whose length and CRC are right."""
    header = parse_header(buffer, at, file=file, file_position=file_position)
    available = len(buffer) - at
    if header.size_bytes > available:
        raise CorruptRecordError(
            file=file,
            position=file_position + LENGTH_AT,
            expected=f"a batch that ends within the remaining {available} bytes",
            found=f"a size of {header.size_bytes} bytes",
        )
    batch = bytes(memoryview(buffer)[at : at + header.size_bytes])
    check_crc(batch, header, file=file, file_position=file_position)
    return header, batch


def check_crc(batch: Buffer, header: BatchHeader, *, file: str, file_position: int) -> None:
    """Raise CorruptRecordError unless the CRC over `batch` (one whole batch) is the one in its header."""
    computed = crc32c(memoryview(batch)[ATTRIBUTES_AT:])
    if computed != header.crc:
        raise CorruptRecordError(
            file=file, position=file_position + CRC_AT, expected=f"CRC-32C {computed}", found=str(header.crc)
        )


def decode_records(body: bytes, header: BatchHeader, *, file: str, file_position: int) -> tuple[Record, ...]:
    """The records in `body`, the bytes after a batch's header, with the timestamps as stored (base + delta).

    `file_position` is that of the batch. Offsets must increase within the batch's own range, and the record count must
    be right; a timestamp outside the int64 range wraps, as in Java. Raises as `decode_batch`.
    """
    records: list[Record] = []
    decoded = 0
    for record in _iterate(body, header, file, file_position):
        decoded += 1 + len(record.headers)
        checked_count(
            decoded, MAX_DECODED, what="records and headers in such a batch", file=file, position=file_position
        )
        records.append(record)
    return tuple(records)


def _iterate(
    body: bytes | memoryview, header: BatchHeader, file: str, file_position: int, record_max_bytes: int = INT32_MAX
) -> Iterator[Record]:
    if header.records_count == 0 and not body:
        return  # the cleaner keeps such headers; whatever the codec bits, no data to decompress
    codec = stored_codec(header.compression_bits, file=file, position=file_position + ATTRIBUTES_AT)
    position = file_position + RECORDS_AT
    if header.compression_bits:  # the content of up to 256 MiB is not copied
        body = codec.decompress_records(
            body, header.records_count, record_max_bytes=record_max_bytes, file=file, file_position=position
        ).data
    is_limited = header.compression_bits and len(body) > record_max_bytes

    def corrupt(at: int, expected: str, found: str) -> CorruptRecordError:
        if header.compression_bits:  # a position in decompressed records is not one in the file
            found = f"{found}, at byte {at} after decompression"
            return CorruptRecordError(file=file, position=position, expected=expected, found=found)
        return CorruptRecordError(file=file, position=position + at, expected=expected, found=found)

    at = 0
    lowest = 0
    for index in range(header.records_count):
        try:
            if is_limited:
                check_record_size(read_varint(body, at, len(body))[0], record_max_bytes)
            record, at = _decode_record(body, at, header, lowest)
        except (_BadRecordError, MalformedVarintError) as error:
            expected = f"{error.expected} in record {index} of {header.records_count}"
            raise corrupt(error.at, expected, error.found) from error
        yield record
        lowest = record.offset - header.base_offset + 1
    if at != len(body):
        expected = f"the end of the batch after its {header.records_count} records"
        raise corrupt(at, expected, f"{len(body) - at} bytes more")


class _BadRecordError(Exception):
    """A record breaks the format; `at` is the position in the batch's uncompressed records."""

    def __init__(self, *, at: int, expected: str, found: str) -> None:
        self.at = at
        self.expected = expected
        self.found = found
        super().__init__()


def _decode_record(body: bytes | memoryview, at: int, header: BatchHeader, lowest_delta: int) -> tuple[Record, int]:
    """The record at `body[at:]`, whose offset delta must be at least `lowest_delta`, and the position after it."""
    size_at = at
    size, at = read_varint(body, at, len(body))
    end = at + size
    if size < 0 or end > len(body):
        raise _BadRecordError(at=size_at, expected=f"a record size of 0 to {len(body) - at}", found=str(size))
    if at == end:
        raise _BadRecordError(at=at, expected="record attributes", found="the end of the record")
    attributes = body[at]
    timestamp_delta, at = read_varlong(body, at + 1, end)
    delta_at = at
    offset_delta, at = read_varint(body, at, end)
    if not lowest_delta <= offset_delta <= header.last_offset_delta:
        raise _BadRecordError(
            at=delta_at,
            expected=f"an offset delta of {lowest_delta} to {header.last_offset_delta}",
            found=str(offset_delta),
        )
    key, at = _read_sized(body, at, end, "key")
    value, at = _read_sized(body, at, end, "value")
    headers, at = _read_headers(body, at, end)
    if at != end:
        raise _BadRecordError(at=at, expected="the end of the record", found=f"{end - at} bytes more")
    sequence = next_sequence(header.base_sequence, offset_delta) if header.base_sequence >= 0 else NO_SEQUENCE
    record = Record(
        offset=header.base_offset + offset_delta,
        timestamp_ms=_wrap_int64(header.base_timestamp_ms + timestamp_delta),
        key=key,
        value=value,
        headers=headers,
        sequence=sequence,
        attributes=attributes,
    )
    return record, at


def _read_sized(body: bytes | memoryview, at: int, end: int, what: str) -> tuple[bytes | None, int]:
    """A varint size and as many bytes; None for -1. Kafka reads any negative size as null, but writers use only -1."""
    size_at = at
    size, at = read_varint(body, at, end)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise _BadRecordError(at=size_at, expected=f"a {what} size of -1 to {end - at}", found=str(size))
    return bytes(body[at : at + size]), at + size


def _read_headers(body: bytes | memoryview, at: int, end: int) -> tuple[tuple[tuple[bytes, bytes | None], ...], int]:
    count_at = at
    count, at = read_varint(body, at, end)
    most = min(end - at, MAX_DECODED)
    if not 0 <= count <= most:
        raise _BadRecordError(at=count_at, expected=f"a header count of 0 to {most}", found=str(count))
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        key_at = at
        key, at = _read_sized(body, at, end, "header key")
        if key is None:
            raise _BadRecordError(at=key_at, expected="a header key size of 0 or more", found="-1")
        value, at = _read_sized(body, at, end, "header value")
        headers.append((key, value))
    return tuple(headers), at


def _wrap_int64(value: int) -> int:
    return (value + 2**63 & _INT64_MASK) - 2**63


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    compression: CompressionType = CompressionType.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    max_timestamp_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """One whole batch with its CRC, in the layout of Kafka's MemoryRecordsBuilder.

    `base_offset` and `last_offset` are the first and last record's unless given: the cleaner keeps a batch's range when
    it removes records, even all of them (then both must be given). `max_timestamp_ms` is the records' largest unless
    given; with LOG_APPEND_TIME it is the time of the append and must be given, and records keep their own deltas.
    Deltas are relative to the first record's timestamp, or to `delete_horizon_ms`. A record's own `sequence` is not
    used.

    Raises InvalidRecordError if Kafka would reject such a batch.
    """
    _check_records(records)
    _check_producer(producer_id, producer_epoch, base_sequence, is_transactional, is_control)
    if (not records and (base_offset is None or last_offset is None)) or (
        max_timestamp_ms is None and timestamp_type is TimestampType.LOG_APPEND_TIME
    ):
        raise InvalidRecordError("a batch without records needs its offsets, one with LogAppendTime its max timestamp")
    base_offset = records[0].offset if base_offset is None else base_offset
    last_offset = records[-1].offset if last_offset is None else last_offset
    if records and not base_offset <= records[0].offset <= records[-1].offset <= last_offset:
        raise InvalidRecordError(
            f"records {records[0].offset} to {records[-1].offset} are not within {base_offset} to {last_offset}"
        )
    if not 0 <= base_offset <= last_offset <= base_offset + INT32_MAX:
        raise InvalidRecordError(f"a batch cannot span the offsets {base_offset} to {last_offset}")
    if delete_horizon_ms is not None and delete_horizon_ms < 0:
        raise InvalidRecordError(f"the delete horizon must be 0 ms or more, not {delete_horizon_ms}")
    base_timestamp_ms = records[0].timestamp_ms if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp_ms = delete_horizon_ms
    if max_timestamp_ms is None:
        max_timestamp_ms = max((record.timestamp_ms for record in records), default=NO_TIMESTAMP)
    body = encode_records(records, base_offset=base_offset, base_timestamp_ms=base_timestamp_ms)
    if compression is not CompressionType.NONE:
        body = CODECS[compression].compress(body, level)
    header = BatchHeader(
        base_offset=base_offset,
        size_bytes=RECORD_BATCH_OVERHEAD_BYTES + len(body),
        leader_epoch=leader_epoch,
        attributes=compression
        | timestamp_type << 3
        | (TRANSACTIONAL_MASK if is_transactional else 0)
        | (CONTROL_MASK if is_control else 0)
        | (DELETE_HORIZON_MASK if delete_horizon_ms is not None else 0),
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(records),
    )
    return seal(header, body)


def encode_pairs(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    *,
    base_offset: int,
    timestamp_ms: int,
    compression: CompressionType = CompressionType.NONE,
    leader_epoch: int = -1,
) -> bytes:
    """As `encode_batch`, of records that have a key, a value and the same time alone, without an object for each."""
    if not pairs or base_offset < 0 or timestamp_ms < NO_TIMESTAMP:
        raise InvalidRecordError(f"{len(pairs)} records at offset {base_offset} and time {timestamp_ms} are no batch")
    body = bytearray()
    for delta, (key, value) in enumerate(pairs):
        content = b"\0\0" + encode_varint(delta) + _sized(key) + _sized(value) + b"\0"
        body += encode_varint(len(content)) + content
    records = bytes(body)
    if compression is not CompressionType.NONE:
        records = CODECS[compression].compress(records, None)
    header = BatchHeader(
        base_offset=base_offset,
        size_bytes=RECORD_BATCH_OVERHEAD_BYTES + len(records),
        leader_epoch=leader_epoch,
        attributes=compression,
        last_offset_delta=len(pairs) - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        records_count=len(pairs),
    )
    return seal(header, records)


def encode_records(records: Iterable[Record], *, base_offset: int, base_timestamp_ms: int) -> bytes:
    """The records part of a batch, uncompressed."""
    out = bytearray()
    for record in records:
        body = b"".join(
            (
                bytes([record.attributes]),
                encode_varlong(_wrap_int64(record.timestamp_ms - base_timestamp_ms)),
                encode_varint(record.offset - base_offset),
                _sized(record.key),
                _sized(record.value),
                encode_varint(len(record.headers)),
                *(_sized(part) for header in record.headers for part in header),
            )
        )
        out += encode_varint(len(body)) + body
    return bytes(out)


def seal(header: BatchHeader, body: bytes | bytearray) -> bytes:
    """The batch's bytes with their CRC; `body` holds the bytes after the header, in the header's compression."""
    if header.size_bytes > INT32_MAX:
        raise InvalidRecordError(f"a batch of {header.size_bytes} bytes is longer than its length field can hold")
    head = header.pack()
    covered = head[ATTRIBUTES_AT:] + body
    return head[:CRC_AT] + crc32c(covered).to_bytes(4, "big") + covered


def _sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def _check_records(records: Sequence[Record]) -> None:
    previous = -1
    for record in records:
        if record.offset <= previous:
            raise InvalidRecordError(f"offset {record.offset} follows {previous}: offsets must increase")
        if record.timestamp_ms < NO_TIMESTAMP:
            raise InvalidRecordError(f"the timestamp of offset {record.offset} is negative: {record.timestamp_ms} ms")
        if any(key is None for key, _ in record.headers):
            raise InvalidRecordError(f"offset {record.offset} has a header without a key")
        previous = record.offset


def _check_producer(
    producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool, is_control: bool
) -> None:
    if producer_id == NO_PRODUCER_ID:
        if is_transactional:
            raise InvalidRecordError("transactional records need a producer id")
        return
    if producer_epoch < 0:
        raise InvalidRecordError(f"producer {producer_id} needs an epoch of 0 or more, not {producer_epoch}")
    if base_sequence < 0 and not is_control:
        raise InvalidRecordError(f"producer {producer_id} needs a sequence of 0 or more, not {base_sequence}")
