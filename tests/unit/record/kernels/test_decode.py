"""Kernels that decode batches: equal to the plain codec on every fixture, and damage reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders.record_fixtures import decode_batches

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, UnsupportedFormatError
from pyspark_kafkalog.record import reference as plain
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA, to_record_batch
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.columns import RecordColumns
from pyspark_kafkalog.record.decode import decode_slices
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, RECORDS_AT, RECORDS_COUNT_AT, TimestampType, parse_header
from pyspark_kafkalog.record.reference import encode_varint, encode_varlong
from pyspark_kafkalog.record.scan import first_bad_crc, scan_batches

MAX_INT64 = 2**63 - 1
ALL_COLUMNS = frozenset({"key", "value", "headers", "offset", "timestamp", "timestampType"})


def decode(data: bytes, columns: frozenset[str] = ALL_COLUMNS, **options: object) -> RecordColumns:
    array = np.frombuffer(data, np.uint8)
    batches = scan_batches(array, file="x.log").batches
    arguments = {"data_position": 0, "file": "x.log", "start_offset": 0, "end_offset": MAX_INT64, **options}
    return decode_batches(array, batches, columns=columns, **arguments)


def hand_made(*bodies: bytes, codec: CompressionType = CompressionType.NONE, **fields: object) -> bytes:
    """A batch of records with these bytes after their lengths, with a right CRC."""
    return sealed(b"".join(encode_varint(len(body)) + body for body in bodies), len(bodies), codec=codec, **fields)


def sealed(section: bytes, count: int, *, codec: CompressionType = CompressionType.NONE, **fields: object) -> bytes:
    packed = CODECS[codec].compress(section) if codec else section
    header = plain.BatchHeader(
        base_offset=10,
        size_bytes=RECORDS_AT + len(packed),
        records_count=count,
        attributes=int(codec),
        **{"last_offset_delta": max(count - 1, 0), "base_timestamp_ms": 1000, "max_timestamp_ms": 1000, **fields},
    )
    return plain.seal(header, packed)


def record(
    *,
    timestamp_delta: bytes = b"\x00",
    offset_delta: bytes = b"\x00",
    key: bytes = b"\x01",
    value: bytes = b"\x01",
    headers: bytes = b"\x00",
) -> bytes:
    return b"\x00" + timestamp_delta + offset_delta + key + value + headers


def test_fixtures_decode_as_by_plain_codec(kafka_fixtures: Path) -> None:
    for path in sorted(kafka_fixtures.glob("*/*-*/*.log")):
        data = np.fromfile(path, np.uint8)
        batches = scan_batches(data, file=str(path)).batches
        bad = first_bad_crc(data, batches, 0)
        batches = batches[:bad] if bad >= 0 else batches
        expected = []
        for row in batches:
            at = int(row["position"])
            found = plain.decode_batch(data, at, file=str(path), file_position=at)
            if not found.header.is_control:
                kind = int(found.header.timestamp_type)
                expected += [(r.offset, r.timestamp_ms, kind, r.key, r.value, r.headers) for r in found.records]
        slices = decode_slices(
            data,
            batches,
            data_position=0,
            file=str(path),
            columns=ALL_COLUMNS,
            start_offset=0,
            end_offset=MAX_INT64,
            max_rows=64,
            check_crcs=True,
        )
        got = []
        for each in slices:
            arrow = to_record_batch(each, KAFKA_SCHEMA, topic="t", partition=1)
            arrow.validate(full=True)
            rows = arrow.select(["offset", "timestampType", "key", "value", "headers"]).to_pylist()
            for row, timestamp_ms in zip(rows, each.timestamps_ms.tolist(), strict=True):
                headers = tuple((h["key"].encode(), h["value"]) for h in row["headers"])
                got.append((row["offset"], timestamp_ms, row["timestampType"], row["key"], row["value"], headers))
        assert got == expected, path


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty record"),
        pytest.param(b"\x00", id="only attributes"),
        pytest.param(record(timestamp_delta=b"\x80" * 10), id="timestamp delta never ends"),
        pytest.param(record(offset_delta=b"\x80" * 5), id="offset delta never ends"),
        pytest.param(record(offset_delta=encode_varint(-1)), id="offset delta negative"),
        pytest.param(record(offset_delta=encode_varint(1)), id="offset delta past the last"),
        pytest.param(record(offset_delta=encode_varint(2**31 - 1)), id="offset delta 2^31-1"),
        pytest.param(record(key=encode_varint(-2)), id="key length -2"),
        pytest.param(record(key=encode_varint(4)), id="key longer than the record"),
        pytest.param(record(key=encode_varint(2**31 - 1)), id="key length 2^31-1"),
        pytest.param(record(key=encode_varint(-(2**31))), id="key length -2^31"),
        pytest.param(record(value=encode_varint(-2)), id="value length -2"),
        pytest.param(record(value=encode_varint(2)), id="value longer than the record"),
        pytest.param(record(value=encode_varint(2**31 - 1)), id="value length 2^31-1"),
        pytest.param(record(headers=encode_varint(-1)), id="headers count -1"),
        pytest.param(record(headers=encode_varint(1)), id="header missing"),
        pytest.param(record(headers=encode_varint(2**31 - 1)), id="headers count 2^31-1"),
        pytest.param(record(headers=b"\x02" + encode_varint(-1) + b"\x01"), id="header key null"),
        pytest.param(record(headers=b"\x02" + encode_varint(9) + b"\x01"), id="header key too long"),
        pytest.param(record(headers=b"\x02\x00" + encode_varint(-2)), id="header value length -2"),
        pytest.param(record(headers=b"\x02\x00" + encode_varint(5)), id="header value too long"),
        pytest.param(record() + b"\x00", id="a byte left in the record"),
    ],
)
@pytest.mark.parametrize("columns", [ALL_COLUMNS, frozenset({"offset"})])
def test_malformed_record_with_valid_crc_is_reported(
    body: bytes, codec: CompressionType, columns: frozenset[str]
) -> None:
    good, bad = hand_made(record(), codec=codec), hand_made(body, codec=codec)
    assert decode(good).count == 1
    first = plain.encode_batch([plain.Record(offset=0, timestamp_ms=1, key=b"k", value=b"v")])
    with pytest.raises(CorruptRecordError) as caught:
        decode(first + bad, columns)
    assert caught.value.file == "x.log"
    assert caught.value.position - len(first) in (RECORDS_COUNT_AT, RECORDS_AT)
    assert "batch at offset 10" in caught.value.expected


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 1000, 2**31 - 1])
def test_wrong_record_count_is_reported(codec: CompressionType, count: int) -> None:
    bodies = [record(offset_delta=encode_varint(i)) for i in range(2)]
    section = b"".join(encode_varint(len(body)) + body for body in bodies)
    with pytest.raises(CorruptRecordError):
        decode(sealed(section, count, codec=codec, last_offset_delta=5))


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 100])
def test_wrong_record_length_is_reported(length: int) -> None:
    with pytest.raises(CorruptRecordError):
        decode(sealed(encode_varint(length) + record(), 1))


def test_offsets_that_do_not_rise_within_batch_are_reported() -> None:
    again = hand_made(record(offset_delta=encode_varint(1)), record(offset_delta=encode_varint(1)), last_offset_delta=9)
    with pytest.raises(CorruptRecordError, match="above that of the record before"):
        decode(again)


def test_trailing_bytes_of_batch_are_reported() -> None:
    section = encode_varint(len(record())) + record() + b"\x00"
    with pytest.raises(CorruptRecordError, match="1 bytes more"):
        decode(sealed(section, 1))


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_unknown_codec_is_refused_as_unsupported(bits: int) -> None:
    data = bytearray(hand_made(record()))
    data[ATTRIBUTES_AT + 1] = bits
    with pytest.raises(UnsupportedFormatError) as caught:
        decode(bytes(data))
    assert caught.value.position == ATTRIBUTES_AT


def test_compressed_block_that_expands_beyond_limit_is_refused() -> None:
    section = bytes(200 * 1024 * 1024)
    data = sealed(section, 1, codec=CompressionType.ZSTD)
    assert len(data) < 100_000
    with pytest.raises(DiskFormatError, match="bytes"):
        decode(data)


@pytest.mark.parametrize("codec", list(CompressionType))
def test_flipped_byte_fails_crc_check_and_adds_no_row(codec: CompressionType) -> None:
    records = [plain.Record(offset=i, timestamp_ms=5, key=b"k", value=b"value" * 9) for i in range(3)]
    data = plain.encode_batch(records, compression=codec)
    sound = decode(data)
    for at in range(ATTRIBUTES_AT, len(data)):
        bad = bytearray(data)
        bad[at] ^= 1 << at % 8
        array = np.frombuffer(bytes(bad), np.uint8)
        scan = scan_batches(array, file="x")
        if scan.fault is None:
            assert first_bad_crc(array, scan.batches, 0) == 0
        try:  # without a look at the CRC
            found = decode(bytes(bad))
        except DiskFormatError:
            continue
        assert found.count <= sound.count


def test_timestamps_beyond_int64_wrap_as_in_java() -> None:
    data = hand_made(record(timestamp_delta=encode_varlong(2**63 - 1)))
    header = parse_header(data, 0, file="x", file_position=0)
    (expected,) = plain.decode_records(data[RECORDS_AT:], header, file="x", file_position=0)
    assert decode(data).timestamps_ms.tolist() == [expected.timestamp_ms]


def test_timestamps_of_batch_with_delete_horizon_are_those_of_records() -> None:
    records = [plain.Record(offset=i, timestamp_ms=100 + i, key=b"k", value=None) for i in range(3)]
    decoded = decode(plain.encode_batch(records, delete_horizon_ms=9000))
    assert decoded.timestamps_ms.tolist() == [100, 101, 102]


def test_log_append_time_is_timestamp_of_every_record() -> None:
    records = [plain.Record(offset=i, timestamp_ms=100 + i, key=None, value=b"") for i in range(3)]
    data = plain.encode_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp_ms=7)
    decoded = decode(data)
    assert decoded.timestamps_ms.tolist() == [7, 7, 7]
    assert decoded.timestamp_types.tolist() == [1, 1, 1]
    assert decode(data, min_timestamp_ms=7).count == 3
    assert decode(data, min_timestamp_ms=8).count == 0
    assert decode(data, until_timestamp_ms=7).count == 0


def test_control_batch_is_left_out() -> None:
    marker = plain.encode_batch(
        [plain.Record(offset=0, timestamp_ms=5, key=b"\x00\x00\x00\x01", value=b"\x00\x00\x00\x00\x00\x00")],
        producer_id=1,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )
    data = plain.encode_batch([plain.Record(offset=1, timestamp_ms=5, key=None, value=b"v")])
    assert decode(marker + data).offsets.tolist() == [1]


def test_batch_emptied_by_cleaner_has_no_records() -> None:
    empty = plain.encode_batch([], base_offset=3, last_offset=8)
    assert decode(empty).count == 0


def test_batches_outside_of_data_are_refused() -> None:
    data = np.frombuffer(hand_made(record()), np.uint8)
    batches = scan_batches(data, file="x").batches
    for position, kept in ((1, len(data)), (-1, len(data)), (0, len(data) - 1)):
        with pytest.raises(ValueError, match="not in bytes"):
            decode_batches(
                data[:kept],
                batches,
                data_position=position,
                file="x",
                columns=ALL_COLUMNS,
                start_offset=0,
                end_offset=MAX_INT64,
            )


def test_time_filter_returns_every_record_in_range() -> None:
    timestamps = [500, 100, 900, 300]
    records = [plain.Record(offset=i, timestamp_ms=t, key=None, value=b"v" * 300) for i, t in enumerate(timestamps)]
    for codec in (CompressionType.NONE, CompressionType.LZ4):
        data = plain.encode_batch(records, compression=codec)
        for low in range(0, 1000, 100):
            found = decode(data, min_timestamp_ms=low, until_timestamp_ms=low + 100)
            assert found.timestamps_ms.tolist() == [t for t in timestamps if low <= t < low + 100]


def test_damaged_batch_outside_time_range_is_skipped() -> None:
    """CRCs are checked only of decoded batches, not of batches outside the time range."""
    early = plain.encode_batch([plain.Record(offset=0, timestamp_ms=10, key=None, value=b"v" * 50)])
    late = plain.encode_batch([plain.Record(offset=1, timestamp_ms=900, key=None, value=b"v" * 50)])
    data = bytearray(early + late)
    data[RECORDS_AT + 20] ^= 1
    assert decode(bytes(data), min_timestamp_ms=100, check_crcs=True).offsets.tolist() == [1]
    with pytest.raises(CorruptRecordError, match="CRC"):
        decode(bytes(data), min_timestamp_ms=10, check_crcs=True)


def test_slices_of_larger_batch_return_each_record_once() -> None:
    records = [plain.Record(offset=i, timestamp_ms=i, key=b"k" if i % 3 else None, value=b"%d" % i) for i in range(100)]
    array = np.frombuffer(plain.encode_batch(records, compression=CompressionType.GZIP), np.uint8)
    batches = scan_batches(array, file="x").batches
    arguments = {"data_position": 0, "file": "x", "columns": ALL_COLUMNS, "start_offset": 5, "end_offset": 98}
    keys, values = [], []
    for each in decode_slices(array, batches, max_rows=16, **arguments):
        arrow = to_record_batch(each, KAFKA_SCHEMA, topic="t", partition=0)
        arrow.validate(full=True)
        keys += arrow.column("key").to_pylist()
        values += arrow.column("value").to_pylist()
    assert keys == [r.key for r in records[5:98]]
    assert values == [r.value for r in records[5:98]]


def test_result_over_two_gigabytes_is_refused() -> None:
    size = 1 << 20
    data = np.zeros(size, np.uint8)
    one = scan_batches(hand_made(record()), file="x").batches
    batches = np.repeat(one, 2100)
    batches["size_bytes"] = size
    with pytest.raises(ValueError, match="do not fit"):
        next(
            decode_slices(
                data,
                batches,
                data_position=0,
                file="x",
                columns=frozenset(),
                start_offset=0,
                end_offset=MAX_INT64,
                max_bytes=1 << 32,
            )
        )


def test_headers_stay_with_their_records_when_some_are_filtered_out() -> None:
    """The range leaves out the first two records and the last one."""
    records = [
        plain.Record(offset=i, timestamp_ms=i, key=None, value=None, headers=((b"h%d" % i, None),) * (i % 3))
        for i in range(9)
    ]
    decoded = decode(plain.encode_batch(records), start_offset=2, end_offset=8)
    arrow = to_record_batch(decoded, KAFKA_SCHEMA, topic="t", partition=0)
    got = [[pair["key"].encode() for pair in each] for each in arrow.column("headers").to_pylist()]
    assert got == [[key for key, _ in r.headers] for r in records[2:8]]
