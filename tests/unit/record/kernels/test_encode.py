"""Kernels that encode columns into batches: sizes within the limits, invalid input refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record import reference as plain
from pyspark_kafkalog.record.arrow import from_arrow
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.columns import BinaryColumn, RecordColumns
from pyspark_kafkalog.record.encode import EncodedBatches, encode_batches
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.record.scan import first_bad_crc

LIMIT = 1_048_588  # the default of max.message.bytes


def columns_of(values: list[bytes | None], timestamps_ms: list[int] | None = None) -> RecordColumns:
    times = np.array(timestamps_ms or [1000] * len(values), np.int64)
    return from_arrow(None, pa.array(values, pa.binary()), None, times)


def encode(columns: RecordColumns, **options: object) -> EncodedBatches:
    arguments = {"compression": CompressionType.NONE, "batch_size_bytes": 16384, "max_batch_bytes": LIMIT, **options}
    return encode_batches(columns, **arguments)


def read_back(encoded: EncodedBatches) -> list[plain.Record]:
    assert first_bad_crc(encoded.data, encoded.batches, 0) == -1
    records: list[plain.Record] = []
    for position in encoded.batches["position"].tolist():
        records += plain.decode_batch(encoded.data, position, file="x", file_position=position).records
    return records


def test_no_records_make_no_batch() -> None:
    for compression in CompressionType:
        encoded = encode(columns_of([]), compression=compression)
        assert (len(encoded.data), len(encoded.batches)) == (0, 0)


def test_batches_fill_batch_size_without_exceeding_it() -> None:
    encoded = encode(columns_of([b"v" * 100] * 5000), batch_size_bytes=16384)
    sizes = encoded.batches["size_bytes"]
    assert sizes.max() <= 16384
    assert sizes[:-1].min() > 16384 - 120
    assert [record.offset for record in read_back(encoded)] == list(range(5000))


def test_record_that_fills_batch_to_last_byte_stays_in_it() -> None:
    size = len(encode(columns_of([b"v" * 100] * 3)).data)
    values = columns_of([b"v" * 100] * 4)
    assert encode(values, batch_size_bytes=size).batches["records_count"].tolist() == [3, 1]
    assert encode(values, batch_size_bytes=size - 1).batches["records_count"].tolist() == [2, 2]


def test_record_larger_than_batch_size_gets_batch_of_its_own() -> None:
    encoded = encode(columns_of([b"a", b"b" * 20_000, b"c"]))
    assert encoded.batches["records_count"].tolist() == [1, 1, 1]


def test_batch_size_above_limit_makes_batches_within_limit() -> None:
    encoded = encode(columns_of([b"v" * 100] * 500), batch_size_bytes=10**6, max_batch_bytes=2000)
    assert encoded.batches["size_bytes"].max() <= 2000


def test_record_that_just_fits_is_encoded_and_larger_one_refused() -> None:
    fits = len(encode(columns_of([b"v" * 500])).data)
    assert len(encode(columns_of([b"x", b"v" * 500]), max_batch_bytes=fits).batches) == 2
    with pytest.raises(InvalidRecordError, match=rf"row 1 makes a batch of {fits} bytes.* = {fits - 1}"):
        encode(columns_of([b"x", b"v" * 500]), max_batch_bytes=fits - 1)


def test_limit_applies_to_size_after_compression() -> None:
    encoded = encode(columns_of([b"v" * 10**6]), compression=CompressionType.ZSTD, max_batch_bytes=2000)
    assert len(read_back(encoded)[0].value or b"") == 10**6
    noise = np.random.default_rng(1).bytes(5000)
    with pytest.raises(InvalidRecordError, match=r"row 1 makes a batch of 50.. bytes with lz4.* = 2000"):
        encode(columns_of([b"v", noise]), compression=CompressionType.LZ4, max_batch_bytes=2000)


def test_batches_stay_within_decompression_limit() -> None:
    """Decompression is bounded by a thousand times the compressed size or 32 MiB, whichever is more."""
    mib = 1024 * 1024
    encoded = encode(columns_of([bytes(mib)] * 40), compression=CompressionType.ZSTD, batch_size_bytes=64 * mib)
    assert len(encoded.batches) == 2
    assert [len(record.value or b"") for record in read_back(encoded)] == [mib] * 40
    with pytest.raises(InvalidRecordError, match=r"row 0 of .* bytes compresses to"):
        encode(columns_of([bytes(33 * mib)]), compression=CompressionType.ZSTD)


def test_column_offsets_past_its_data_are_refused() -> None:
    past = BinaryColumn(np.array([0, 9], np.int32), np.zeros(8, np.uint8))
    wide = BinaryColumn(np.array([0, 8], np.int64), np.zeros(8, np.uint8))
    for values in (past, wide):
        with pytest.raises(ValueError, match="offsets"):
            encode(RecordColumns(count=1, timestamps_ms=np.zeros(1, np.int64), values=values))


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_batches_that_do_not_shrink_stay_within_limit(codec: CompressionType) -> None:
    noise = np.random.default_rng(2)
    values = [noise.bytes(100) for _ in range(200)]
    rows = np.arange(199, -1, -1)
    encoded = encode(columns_of(values), compression=codec, rows=rows, batch_size_bytes=16384, max_batch_bytes=3000)
    assert encoded.batches["size_bytes"].max() <= 3000
    records = read_back(encoded)
    assert [record.value for record in records] == values[::-1]
    assert [record.offset for record in records] == list(range(200))


def test_timestamp_below_minus_one_is_refused() -> None:
    assert [r.timestamp_ms for r in read_back(encode(columns_of([b"a", b"b"], [-1, 5])))] == [-1, 5]
    with pytest.raises(InvalidRecordError, match="row 1 has timestamp -2 ms"):
        encode(columns_of([b"a", b"b"], [0, -2]))


def test_log_append_time_replaces_max_timestamp() -> None:
    columns = columns_of([b"a", b"b"], [50, 70])
    encoded = encode(columns, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=60)
    assert encoded.batches["max_timestamp_ms"].tolist() == [60]
    assert encoded.batches["base_timestamp_ms"].tolist() == [50]
    assert [record.timestamp_ms for record in read_back(encoded)] == [60, 60]
    with pytest.raises(InvalidRecordError, match="LogAppendTime"):
        encode(columns, timestamp_type=TimestampType.LOG_APPEND_TIME)


def test_sequence_wraps_after_greatest_int32() -> None:
    encoded = encode(
        columns_of([b"v"] * 4), batch_size_bytes=0, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2
    )
    assert encoded.batches["base_sequence"].tolist() == [2**31 - 2, 2**31 - 1, 0, 1]


@pytest.mark.parametrize("rows", [[2], [-1], [0, 5]])
def test_row_out_of_range_raises_index_error(rows: list[int]) -> None:
    with pytest.raises(IndexError):
        encode(columns_of([b"a", b"b"]), rows=np.array(rows))


def test_columns_of_different_lengths_are_refused() -> None:
    short = BinaryColumn(np.zeros(2, np.int32), np.empty(0, np.uint8))
    with pytest.raises(ValueError, match="a column of 1 for 2 records"):
        encode(RecordColumns(count=2, timestamps_ms=np.zeros(2, np.int64), keys=short))
    with pytest.raises(ValueError, match="1 timestamps for 2 records"):
        encode(RecordColumns(count=2, timestamps_ms=np.zeros(1, np.int64)))


def test_values_ending_at_last_byte_of_column_are_encoded() -> None:
    """Copies use whole vectors, and no byte follows the last field of a column."""
    for length in range(1, 140):
        values = [bytes([i]) * length for i in range(3)]
        assert [record.value for record in read_back(encode(columns_of(values)))] == values
