"""The batch header: its 61 bytes parsed and packed, damaged fields reported with file and position."""

from __future__ import annotations

import struct

import pytest

from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.record.header import (
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    MAGIC_AT,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_COUNT_AT,
    BatchHeader,
    TimestampType,
    next_sequence,
    parse_header,
)

HEADER = BatchHeader(
    base_offset=2**62 + 1,
    size_bytes=2**31 + 11,
    leader_epoch=7,
    crc=0xFEDCBA98,
    attributes=0x7C,
    last_offset_delta=12,
    base_timestamp_ms=1_700_000_000_001,
    max_timestamp_ms=1_700_000_000_002,
    producer_id=2**40,
    producer_epoch=3,
    base_sequence=2**31 - 10,
    records_count=13,
)


def parse(data: bytes, at: int = 0) -> BatchHeader:
    return parse_header(data, at, file="x.log", file_position=500)


def with_field(at: int, form: str, value: int) -> bytes:
    data = bytearray(HEADER.pack())
    struct.pack_into(form, data, at, value)
    return bytes(data)


def test_header_round_trips_through_packing() -> None:
    data = HEADER.pack()
    assert len(data) == RECORD_BATCH_OVERHEAD_BYTES
    assert parse(b"??" + data, 2) == HEADER


def test_attribute_bits_are_read_as_properties() -> None:
    assert HEADER.compression_bits == 4
    assert HEADER.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert HEADER.is_transactional
    assert HEADER.is_control
    assert HEADER.delete_horizon_ms == HEADER.base_timestamp_ms
    plain = BatchHeader(base_offset=0, size_bytes=61)
    assert plain.compression_bits == 0
    assert plain.timestamp_type is TimestampType.CREATE_TIME
    assert not plain.is_transactional
    assert not plain.is_control
    assert plain.delete_horizon_ms is None
    assert plain.last_sequence == -1


def test_last_offset_and_last_sequence_follow_from_header() -> None:
    assert (HEADER.last_offset, HEADER.next_offset) == (2**62 + 13, 2**62 + 14)
    assert HEADER.last_sequence == 2
    assert next_sequence(2**31 - 1, 1) == 0


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 48])
def test_batch_length_below_header_size_is_refused(length: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"x.log at byte 508: expected a batch length .* found {length};"):
        parse(with_field(LENGTH_AT, ">i", length))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_format_is_refused_with_file_and_position(magic: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"x.log at byte 516: .* found magic {magic};"):
        parse(with_field(MAGIC_AT, ">b", magic))


def test_short_message_of_old_format_is_refused_as_unsupported() -> None:
    message = struct.pack(">qiIbb", 0, 14, 0, 1, 0) + bytes(8)
    with pytest.raises(UnsupportedFormatError, match="found magic 1"):
        parse(message)


def test_zero_bytes_are_reported_as_corrupt_not_as_old_format() -> None:
    with pytest.raises(CorruptRecordError, match="found 0;"):
        parse(bytes(100))


@pytest.mark.parametrize("magic", [-1, 3, 127])
def test_unknown_magic_is_reported_as_corrupt(magic: int) -> None:
    with pytest.raises(CorruptRecordError, match="at byte 516: expected magic 2"):
        parse(with_field(MAGIC_AT, ">b", magic))


@pytest.mark.parametrize(
    ("at", "form"),
    [(0, ">q"), (LAST_OFFSET_DELTA_AT, ">i"), (RECORDS_COUNT_AT, ">i")],
    ids=["offset", "delta", "count"],
)
def test_negative_offset_delta_or_count_is_refused(at: int, form: str) -> None:
    with pytest.raises(CorruptRecordError, match="of 0 or more"):
        parse(with_field(at, form, -1))


def test_last_offset_beyond_int64_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match=r"found 9223372036854775800 and 12;"):
        parse(with_field(0, ">q", 2**63 - 8))


@pytest.mark.parametrize("length", range(RECORD_BATCH_OVERHEAD_BYTES))
def test_truncated_header_is_refused(length: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"found {length} bytes"):
        parse(HEADER.pack()[:length])
