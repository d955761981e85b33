"""The scan for batches: equal to the parsed headers, ended at incomplete or damaged batches, and CRCs checked."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, UnsupportedFormatError
from pyspark_kafkalog.record import reference as plain
from pyspark_kafkalog.record.header import (
    CRC_AT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    MAGIC_AT,
    RECORDS_COUNT_AT,
    parse_header,
)
from pyspark_kafkalog.record.scan import first_bad_crc, scan_batches, verify_crcs


def batch(base_offset: int, records: int = 2) -> bytes:
    return plain.encode_batch(
        [plain.Record(offset=base_offset + i, timestamp_ms=5 + i, key=b"k", value=b"v" * 20) for i in range(records)],
        leader_epoch=3,
        producer_id=2**40,
        producer_epoch=4,
        base_sequence=17,
    )


def test_table_rows_equal_parsed_headers(kafka_fixtures: Path) -> None:
    for path in sorted(kafka_fixtures.glob("*/*-*/*.log")):
        data = path.read_bytes()
        scan = scan_batches(data, file=str(path), file_position=7000)
        at = 0
        for row in scan.batches:
            header = parse_header(data, at, file=str(path), file_position=at)
            assert int(row["position"]) == 7000 + at
            for name in row.dtype.names:
                if name != "position":
                    assert int(row[name]) == getattr(header, name), name
            at += header.size_bytes
        assert scan.consumed_bytes == at


def test_scan_stops_before_incomplete_last_batch_without_fault() -> None:
    whole, torn = batch(0) + batch(2), batch(4)
    for kept in range(len(torn)):
        scan = scan_batches(whole + torn[:kept], file="x")
        assert len(scan.batches) == 2
        assert scan.consumed_bytes == len(whole)
        assert scan.fault is None


def test_scan_returns_at_most_the_requested_batches() -> None:
    data = b"".join(batch(2 * i) for i in range(3000))
    assert len(scan_batches(data, file="x").batches) == 3000
    for most in (0, 1, 1024, 1025, 2999, 3000, 3001):
        scan = scan_batches(data, file="x", max_batches=most)
        assert len(scan.batches) == min(most, 3000)
        assert scan.consumed_bytes == int(scan.batches["size_bytes"].sum())
        assert scan.fault is None


@pytest.mark.parametrize(
    ("at", "patch"),
    [
        pytest.param(LENGTH_AT, struct.pack(">i", -1), id="length -1"),
        pytest.param(LENGTH_AT, struct.pack(">i", 0), id="length 0"),
        pytest.param(LENGTH_AT, struct.pack(">i", 48), id="length below a header"),
        pytest.param(LENGTH_AT, struct.pack(">i", -(2**31)), id="length -2^31"),
        pytest.param(MAGIC_AT, b"\x00", id="magic 0"),
        pytest.param(MAGIC_AT, b"\x01", id="magic 1"),
        pytest.param(MAGIC_AT, b"\x03", id="magic 3"),
        pytest.param(MAGIC_AT, b"\xff", id="magic -1"),
        pytest.param(0, struct.pack(">q", -1), id="offset -1"),
        pytest.param(0, struct.pack(">q", 2**63 - 2), id="offsets over 64 bits"),
        pytest.param(LAST_OFFSET_DELTA_AT, struct.pack(">i", -1), id="last offset delta -1"),
        pytest.param(RECORDS_COUNT_AT, struct.pack(">i", -1), id="count -1"),
    ],
)
def test_scan_fault_equals_error_of_parsed_header(at: int, patch: bytes) -> None:
    good, bad = batch(0), bytearray(batch(2))
    bad[at : at + len(patch)] = patch
    data = good + bytes(bad) + batch(4)
    with pytest.raises(DiskFormatError) as expected:
        parse_header(data, len(good), file="x.log", file_position=100 + len(good))
    scan = scan_batches(data, file="x.log", file_position=100)
    assert len(scan.batches) == 1
    assert scan.consumed_bytes == len(good)
    assert type(scan.fault) is expected.type
    assert str(scan.fault) == str(expected.value)


def test_batch_length_of_two_gigabytes_counts_as_incomplete_batch() -> None:
    data = bytearray(batch(0))
    data[LENGTH_AT : LENGTH_AT + 4] = struct.pack(">i", 2**31 - 1)
    scan = scan_batches(bytes(data), file="x")
    assert (len(scan.batches), scan.consumed_bytes, scan.fault) == (0, 0, None)


def test_offsets_that_do_not_rise_are_reported() -> None:
    scan = scan_batches(batch(0) + batch(1), file="x")
    assert len(scan.batches) == 1
    assert isinstance(scan.fault, CorruptRecordError)
    assert "base offset above 1" in scan.fault.expected


def test_zeros_after_last_batch_are_reported() -> None:
    scan = scan_batches(batch(0) + bytes(100), file="x")
    assert len(scan.batches) == 1
    assert isinstance(scan.fault, UnsupportedFormatError | CorruptRecordError)


def test_flipped_byte_is_reported_by_crc_check() -> None:
    data = np.frombuffer(batch(0) + batch(2) + batch(4), np.uint8)
    table = scan_batches(data, file="x", file_position=50).batches
    assert first_bad_crc(data, table, 50) == -1
    bad = data.copy()
    bad[int(table["position"][1]) - 50 + 40] ^= 1
    assert first_bad_crc(bad, table, 50) == 1
    assert first_bad_crc(bad.tobytes(), table[2:], 50) == -1
    with pytest.raises(CorruptRecordError) as caught:
        verify_crcs(bad, table, data_position=50, file="x.log")
    assert caught.value.position == int(table["position"][1]) + CRC_AT
    assert caught.value.file == "x.log"
