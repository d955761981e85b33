"""The compiled kernels and the plain codec write the same bytes, and read the same records or both refuse."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from builders.record_fixtures import decode_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record import reference as plain
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA, from_arrow, to_record_batch
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.columns import RecordColumns
from pyspark_kafkalog.record.decode import decode_slices
from pyspark_kafkalog.record.encode import RecordSource, encode_batches
from pyspark_kafkalog.record.header import RECORDS_AT, TimestampType, parse_header
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs

MAX_INT64 = 2**63 - 1
ALL_COLUMNS = frozenset({"key", "value", "headers", "offset", "timestamp", "timestampType"})

# Lengths on both sides of where a varint grows, and of where a copy changes its way (32 and 256 bytes).
LENGTHS = st.sampled_from([0, 1, 2, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 300, 8191, 8192])
BYTES = st.one_of(
    st.none(), st.binary(max_size=8), st.builds(lambda byte, n: bytes([byte]) * n, st.integers(0, 255), LENGTHS)
)
HEADERS = st.lists(st.tuples(st.text(max_size=5).map(str.encode), BYTES), max_size=3).map(tuple)
TIMESTAMPS = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_000_200),
    st.sampled_from([-1, 0, 1, MAX_INT64]),
    st.integers(-1, MAX_INT64),
)
RECORDS = st.lists(
    st.builds(plain.Record, offset=st.just(0), timestamp_ms=TIMESTAMPS, key=BYTES, value=BYTES, headers=HEADERS),
    max_size=20,
)
COMPRESSION_TYPES = st.sampled_from(list(CompressionType))


def to_columns(records: list[plain.Record], skipped: int) -> RecordColumns:
    """Columns of the records from `skipped` on, as slices of Arrow arrays."""
    headers = [[{"key": key.decode(), "value": value} for key, value in record.headers] for record in records]
    return from_arrow(
        pa.array([record.key for record in records], pa.binary()).slice(skipped),
        pa.array([record.value for record in records], pa.large_binary()).slice(skipped),
        pa.array(headers, KAFKA_SCHEMA.field("headers").type).slice(skipped),
        np.array([record.timestamp_ms for record in records], np.int64)[skipped:],
    )


def to_records(columns: RecordColumns) -> list[plain.Record]:
    """Back to records; header keys are taken as they are, whether UTF-8 or not."""
    assert columns.keys is not None
    assert columns.headers is not None
    arrow = to_record_batch(replace(columns, headers=None), pa.schema(list(KAFKA_SCHEMA)[:2]), topic="t", partition=0)
    arrow.validate(full=True)
    lists = columns.headers.offsets.tolist()
    keys = [bytes(columns.headers.keys.data[a:b]) for a, b in _bounds(columns.headers.keys.offsets)]
    values = [bytes(columns.headers.values.data[a:b]) for a, b in _bounds(columns.headers.values.offsets)]
    validity = columns.headers.values.validity
    bits = [1] * len(values) if validity is None else np.unpackbits(validity, bitorder="little").tolist()
    pairs = [(key, value if bit else None) for key, value, bit in zip(keys, values, bits, strict=False)]
    return [
        plain.Record(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value, headers=tuple(pairs[first:end]))
        for offset, timestamp_ms, key, value, first, end in zip(
            columns.offsets.tolist(),
            columns.timestamps_ms.tolist(),
            arrow.column(0).to_pylist(),
            arrow.column(1).to_pylist(),
            lists,
            lists[1:],
            strict=False,
        )
    ]


def _bounds(offsets: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(offsets.tolist(), offsets.tolist()[1:], strict=False))


def numbered(records: list[plain.Record], base_offset: int) -> list[plain.Record]:
    return [replace(record, offset=base_offset + i) for i, record in enumerate(records)]


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), records=RECORDS, codec=COMPRESSION_TYPES, batch_size_bytes=st.sampled_from([0, 100, 400, 16384]))
def test_compiled_encoder_writes_same_bytes_as_plain_one(
    data: st.DataObject, records: list[plain.Record], codec: CompressionType, batch_size_bytes: int
) -> None:
    skipped = data.draw(st.integers(0, len(records)))
    cuts = sorted(data.draw(st.lists(st.integers(skipped, len(records)), max_size=3)))
    bounds = itertools.pairwise([skipped, *cuts, len(records)])
    pieces = RecordSource.of([to_columns(records[:end], first) for first, end in bounds])
    rows = None
    records = records[skipped:]
    if records and data.draw(st.booleans()):
        rows = np.array(data.draw(st.lists(st.integers(0, len(records) - 1), max_size=30)), np.int64)
        records = [records[row] for row in rows]
    log_append_time_ms = data.draw(st.sampled_from([None, 0, 1_700_000_000_000]))
    is_append = log_append_time_ms is not None
    timestamp_type = TimestampType.LOG_APPEND_TIME if is_append else TimestampType.CREATE_TIME
    producer = data.draw(st.sampled_from([(-1, -1, -1, False), (7, 3, 2**31 - 3, False), (2**40, 0, 0, True)]))
    names = dict(zip(("producer_id", "producer_epoch", "base_sequence", "is_transactional"), producer, strict=True))

    encoded = encode_batches(
        pieces,
        rows=rows,
        compression=codec,
        batch_size_bytes=batch_size_bytes,
        max_batch_bytes=10**6,
        base_offset=5,
        leader_epoch=9,
        timestamp_type=timestamp_type,
        log_append_time_ms=log_append_time_ms,
        **names,
    )

    scan = scan_batches(encoded.data, file="x")
    assert scan.fault is None
    assert scan.consumed_bytes == len(encoded.data)
    assert (scan.batches == encoded.batches).all()
    assert int(encoded.batches["records_count"].sum()) == len(records)
    left = numbered(records, 5)
    for batch in encoded.batches:
        count, start = int(batch["records_count"]), int(batch["position"])
        if names["base_sequence"] >= 0:
            names["base_sequence"] = int(batch["base_sequence"])
        expected = plain.encode_batch(
            left[:count],
            compression=codec,
            leader_epoch=9,
            timestamp_type=timestamp_type,
            max_timestamp_ms=log_append_time_ms,
            **names,
        )
        assert encoded.data[start : start + int(batch["size_bytes"])].tobytes() == expected
        uncompressed = RECORDS_AT + len(
            plain.encode_records(left, base_offset=left[0].offset, base_timestamp_ms=left[0].timestamp_ms)
            if count == len(left)
            else plain.encode_records(
                left[: count + 1], base_offset=left[0].offset, base_timestamp_ms=left[0].timestamp_ms
            )
        )
        # As full as the size allows: one record more does not fit.
        assert count == len(left) or uncompressed > batch_size_bytes
        left = left[count:]


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), batches=st.lists(st.tuples(RECORDS.filter(bool), COMPRESSION_TYPES, st.booleans()), max_size=4))
def test_compiled_decoder_reads_same_records_as_plain_one(
    data: st.DataObject, batches: list[tuple[list[plain.Record], CompressionType, bool]]
) -> None:
    stored, offset = b"", data.draw(st.integers(0, 3))
    for records, codec, is_append in batches:
        stored += plain.encode_batch(
            numbered(records, offset),
            base_offset=offset,
            last_offset=offset + len(records),  # a gap, as the cleaner leaves them
            compression=codec,
            timestamp_type=TimestampType.LOG_APPEND_TIME if is_append else TimestampType.CREATE_TIME,
            max_timestamp_ms=1_700_000_000_100 if is_append else None,
            delete_horizon_ms=data.draw(st.sampled_from([None, 1_700_000_000_050])),
        )
        offset += len(records) + data.draw(st.integers(1, 3))
    start_offset, end_offset = data.draw(st.tuples(st.integers(0, offset), st.integers(0, offset + 1)))
    bounds = st.one_of(st.none(), st.integers(1_700_000_000_000, 1_700_000_000_200), st.sampled_from([-1, MAX_INT64]))
    min_ms, until_ms = data.draw(bounds), data.draw(bounds)
    in_file = 1000
    array = np.frombuffer(stored, np.uint8)
    scan = scan_batches(array, file="x", file_position=in_file)
    verify_crcs(array, scan.batches, data_position=in_file, file="x")

    expected = []
    for batch in scan.batches:
        at = int(batch["position"]) - in_file
        for record in plain.decode_batch(stored, at, file="x", file_position=at).records:
            if (
                start_offset <= record.offset < end_offset
                and (min_ms is None or record.timestamp_ms >= min_ms)
                and (until_ms is None or record.timestamp_ms < until_ms)
            ):
                expected.append(replace(record, sequence=-1))
    arguments = {
        "data_position": in_file,
        "file": "x",
        "start_offset": start_offset,
        "end_offset": end_offset,
        "min_timestamp_ms": min_ms,
        "until_timestamp_ms": until_ms,
        "check_crcs": True,
    }
    decoded = decode_batches(array, scan.batches, columns=ALL_COLUMNS, **arguments)
    assert to_records(decoded) == expected
    assert decoded.count == len(expected)

    sliced = decode_slices(array, scan.batches, columns=ALL_COLUMNS, max_rows=8, max_bytes=500, **arguments)
    slices = [to_records(each) for each in sliced]
    assert all(0 < len(each) <= 8 for each in slices)
    assert list(itertools.chain.from_iterable(slices)) == expected

    some = frozenset(data.draw(st.sets(st.sampled_from(sorted(ALL_COLUMNS)))))
    columns = decode_batches(array, scan.batches, columns=some, **arguments)
    assert columns.count == len(expected)
    for name, column, other in (
        ("offset", columns.offsets, decoded.offsets),
        ("timestamp", columns.timestamps_ms, decoded.timestamps_ms),
        ("timestampType", columns.timestamp_types, decoded.timestamp_types),
    ):
        assert (column is not None) == (name in some)
        assert column is None or column.tolist() == other.tolist()
    for name, binary, other_binary in (("key", columns.keys, decoded.keys), ("value", columns.values, decoded.values)):
        assert (binary is not None) == (name in some)
        assert binary is None or binary.data.tobytes() == other_binary.data.tobytes()
    assert (columns.headers is not None) == ("headers" in some)


@settings(max_examples=examples(1500), deadline=None)
@given(
    data=st.data(), records=RECORDS.filter(bool), codec=st.sampled_from([CompressionType.NONE, CompressionType.SNAPPY])
)
def test_compiled_decoder_refuses_bytes_that_plain_decoder_refuses(
    data: st.DataObject, records: list[plain.Record], codec: CompressionType
) -> None:
    """Neither decoder checks the CRC here, so every change reaches the checks behind it."""
    records = [
        replace(record, key=record.key and record.key[:40], value=record.value and record.value[:40])
        for record in records
    ]
    header = parse_header(plain.encode_batch(numbered(records, 0)), 0, file="x", file_position=0)
    body = bytearray(
        plain.encode_records(numbered(records, 0), base_offset=0, base_timestamp_ms=header.base_timestamp_ms)
    )
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        change = data.draw(st.sampled_from(["flip", "set", "insert", "delete", "cut"]))
        if change == "flip":
            body[at] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "set":
            body[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        elif change == "insert":
            body[at:at] = data.draw(st.sampled_from([b"\x00", b"\x80", b"\xff" * 5, b"\xff" * 9 + b"\x01", bytes(7)]))
        elif len(body) > 1:
            del body[at : at + 1 if change == "delete" else len(body)]
            body = body or bytearray(1)
    header = replace(
        header,
        last_offset_delta=data.draw(st.sampled_from([0, len(records) - 1, len(records), 2**31 - 1])),
        records_count=data.draw(
            st.sampled_from([0, len(records) - 1, *[len(records)] * 5, len(records) + 1, 2**31 - 1])
        ),
        attributes=int(codec),
    )
    packed = CODECS[codec].compress(bytes(body)) if codec else bytes(body)
    stored = plain.seal(replace(header, size_bytes=RECORDS_AT + len(packed)), packed)
    header = parse_header(stored, 0, file="x", file_position=0)
    expected = None
    with contextlib.suppress(DiskFormatError):
        expected = list(plain.decode_records(packed, header, file="x", file_position=0))
    array = np.frombuffer(stored, np.uint8)
    batches = scan_batches(array, file="x").batches
    arguments = {"data_position": 0, "file": "x", "start_offset": 0, "end_offset": MAX_INT64}
    if expected is None:
        with pytest.raises(DiskFormatError) as caught:
            decode_batches(array, batches, columns=ALL_COLUMNS, **arguments)
        assert 0 <= caught.value.position <= len(stored)
    else:
        decoded = decode_batches(array, batches, columns=ALL_COLUMNS, **arguments)
        assert to_records(decoded) == [replace(record, attributes=0, sequence=-1) for record in expected]
