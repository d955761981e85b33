"""Arrow arrays built from record columns, and record columns built from Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from builders.record_fixtures import decode_batches
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record import reference as plain
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA, from_arrow, to_record_batch
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.columns import RecordColumns
from pyspark_kafkalog.record.encode import encode_batches
from pyspark_kafkalog.record.scan import scan_batches

ALL_COLUMNS = frozenset({"key", "value", "headers", "offset", "timestamp", "timestampType"})


def decoded(*records: plain.Record) -> RecordColumns:
    data = np.frombuffer(plain.encode_batch(records), np.uint8)
    batches = scan_batches(data, file="x").batches
    return decode_batches(
        data, batches, data_position=0, file="x", columns=ALL_COLUMNS, start_offset=0, end_offset=2**62
    )


def values_back(columns: RecordColumns) -> list[plain.Record]:
    encoded = encode_batches(columns, compression=CompressionType.NONE, batch_size_bytes=10**6, max_batch_bytes=10**6)
    return list(plain.decode_batch(encoded.data, 0, file="x", file_position=0).records)


def test_schema_equals_that_of_sparks_kafka_source() -> None:
    pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    spark_schema = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", ArrayType(pair)),
        ]
    )
    assert to_arrow_schema(spark_schema, timezone="UTC").equals(KAFKA_SCHEMA, check_metadata=True)


def test_columns_are_in_order_of_requested_schema() -> None:
    columns = decoded(plain.Record(offset=4, timestamp_ms=1500, key=b"k", value=None))
    names = ["timestampType", "topic", "offset", "value", "partition", "timestamp", "key"]
    batch = to_record_batch(
        columns, pa.schema([KAFKA_SCHEMA.field(name) for name in names]), topic="täglich", partition=7
    )
    batch.validate(full=True)
    assert batch.schema.names == names
    (row,) = batch.to_pylist()
    assert row["timestamp"].timestamp() == 1.5
    assert {name: row[name] for name in names if name != "timestamp"} == {
        "timestampType": 0,
        "topic": "täglich",
        "offset": 4,
        "value": None,
        "partition": 7,
        "key": b"k",
    }


@pytest.mark.parametrize("count", [0, 1, 16383, 16384, 16385, 40000])
def test_constant_columns_have_one_value_per_record(count: int) -> None:
    schema = pa.schema([KAFKA_SCHEMA.field("topic"), KAFKA_SCHEMA.field("partition")])
    batch = to_record_batch(RecordColumns(count=count), schema, topic="t", partition=3)
    batch.validate(full=True)
    assert batch.num_rows == count
    assert set(batch.column("topic").to_pylist()) <= {"t"}
    assert set(batch.column("partition").to_pylist()) <= {3}


def test_batch_without_columns_keeps_its_row_count() -> None:
    batch = to_record_batch(RecordColumns(count=5), pa.schema([]), topic="t", partition=0)
    assert batch.num_rows == 5


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, (2**63 - 1) // 1000 + 1])
def test_timestamp_beyond_microseconds_is_refused(timestamp_ms: int) -> None:
    columns = decoded(plain.Record(offset=0, timestamp_ms=timestamp_ms, key=None, value=None))
    with pytest.raises(InvalidRecordError, match=f"t-0 has timestamp {timestamp_ms} ms"):
        to_record_batch(columns, KAFKA_SCHEMA, topic="t", partition=0)
    without = pa.schema([field for field in KAFKA_SCHEMA if field.name != "timestamp"])
    assert to_record_batch(columns, without, topic="t", partition=0).num_rows == 1


def test_greatest_timestamp_in_microseconds_is_accepted() -> None:
    columns = decoded(plain.Record(offset=0, timestamp_ms=(2**63 - 1) // 1000, key=None, value=None))
    array = to_record_batch(columns, KAFKA_SCHEMA, topic="t", partition=0).column("timestamp")
    assert array.cast(pa.int64()).to_pylist() == [(2**63 - 1) // 1000 * 1000]


def test_header_key_not_in_utf8_is_decoded_with_replacement_characters() -> None:
    headers = ((b"good", b"1"), (b"b\xffad", None), ("é".encode(), b""), (b"\xe2\x82", b"x"))
    columns = decoded(plain.Record(offset=0, timestamp_ms=0, key=None, value=None, headers=headers))
    batch = to_record_batch(columns, KAFKA_SCHEMA, topic="t", partition=0)
    batch.validate(full=True)
    assert [(pair["key"], pair["value"]) for pair in batch.column("headers").to_pylist()[0]] == [
        ("good", b"1"),
        ("b\ufffdad", None),
        ("é", b""),
        ("\ufffd", b"x"),
    ]


@pytest.mark.parametrize(
    "arrow_type",
    [pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view(), pa.binary(2)],
)
@pytest.mark.parametrize("skipped", [0, 3, 8, 11])
def test_every_string_type_and_slice_of_it_is_read_right(arrow_type: pa.DataType, skipped: int) -> None:
    texts = [None if i % 3 == 0 else f"{i:02}" for i in range(20)]
    if pa.types.is_fixed_size_binary(arrow_type):
        array = pa.array([text and text.encode() for text in texts], arrow_type)
    else:
        array = pa.array(texts, pa.string()).cast(arrow_type)
    array = array.slice(skipped, 9)
    records = values_back(from_arrow(array, array, None, np.zeros(9, np.int64)))
    expected = [text and text.encode() for text in texts[skipped : skipped + 9]]
    assert [record.key for record in records] == expected
    assert [record.value for record in records] == expected


@pytest.mark.parametrize("array", [None, pa.nulls(3), pa.nulls(3, pa.binary()), pa.nulls(3, pa.large_string())])
def test_column_of_nulls_is_read_as_nulls(array: pa.Array | None) -> None:
    records = values_back(from_arrow(array, array, None, np.zeros(3, np.int64)))
    assert [(record.key, record.value) for record in records] == [(None, None)] * 3


@pytest.mark.parametrize("skipped", [0, 1, 3])
@pytest.mark.parametrize("list_type", [pa.list_, pa.large_list])
def test_headers_of_slice_stay_with_their_records(skipped: int, list_type: object) -> None:
    lists = [[("a", b"1"), ("b", None)], None, [], [("c", b"")], [("d" * 99, b"2" * 99)]]
    pairs = [each and [{"key": key, "value": value} for key, value in each] for each in lists]
    array = pa.array(pairs, list_type(KAFKA_SCHEMA.field("headers").type.value_type)).slice(skipped)
    records = values_back(from_arrow(None, None, array, np.zeros(len(array), np.int64)))
    expected = [tuple((key.encode(), value) for key, value in each or ()) for each in lists[skipped:]]
    assert [record.headers for record in records] == expected


@pytest.mark.parametrize("list_type", [pa.list_, pa.list_view, lambda pair: pa.list_(pair, 1)])
def test_header_key_and_value_are_matched_by_name(list_type: Callable[[pa.DataType], pa.DataType]) -> None:
    pair = pa.struct([("value", pa.binary()), ("key", pa.string())])
    array = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": None}], None], list_type(pair))
    records = values_back(from_arrow(None, None, array, np.zeros(3, np.int64)))
    assert [record.headers for record in records] == [((b"a", b"1"),), ((b"b", None),), ()]


def test_empty_and_null_lists_are_read_as_no_headers() -> None:
    records = values_back(from_arrow(None, None, pa.array([[], None]), np.zeros(2, np.int64)))
    assert [record.headers for record in records] == [(), ()]


@pytest.mark.parametrize("headers", [["a"], [["a"]], [[{"k": "a", "v": b"1"}]], [[{"key": "a", "value": 1}]]])
def test_headers_of_wrong_type_are_refused_as_invalid_record(headers: list[object]) -> None:
    with pytest.raises(InvalidRecordError, match=r"headers are lists|strings or binary"):
        from_arrow(None, None, pa.array(headers), np.zeros(1, np.int64))


def test_value_of_wrong_type_is_refused_as_invalid_record() -> None:
    with pytest.raises(InvalidRecordError, match="of type int64"):
        from_arrow(None, pa.array([1]), None, np.zeros(1, np.int64))


def test_empty_arrays_are_accepted() -> None:
    """An empty Arrow array may come without an offsets buffer."""
    empty = pa.Array.from_buffers(pa.binary(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    lists = pa.array([], KAFKA_SCHEMA.field("headers").type)
    assert from_arrow(empty, empty, lists, np.empty(0, np.int64)).count == 0


@pytest.mark.parametrize(
    ("null", "message"),
    [
        (None, r"a null element in the array of headers.*\(row 3 of 4 .*header 1, both from 0\).*h IS NOT NULL"),
        ({"key": None, "value": b"v"}, r"a header whose key is null.*\(row 3 of 4 .*header 1, .*h.key IS NOT NULL"),
    ],
)
def test_header_without_key_is_refused_with_row_and_header_number(null: object, message: str) -> None:
    header = {"key": "h", "value": None}
    array = pa.array([[header], [header], None, [header], [header, null]], KAFKA_SCHEMA.field("headers").type)
    with pytest.raises(InvalidRecordError, match=message):
        from_arrow(None, None, array.slice(1), np.zeros(4, np.int64))


def test_arrow_arrays_share_memory_with_record_columns() -> None:
    columns = decoded(*(plain.Record(offset=i, timestamp_ms=i, key=b"k", value=b"v") for i in range(9)))
    batch = to_record_batch(columns, KAFKA_SCHEMA, topic="t", partition=0)
    assert columns.values is not None
    assert batch.column("value").buffers()[2].address == columns.values.data.ctypes.data
    assert batch.column("offset").buffers()[1].address == columns.offsets.ctypes.data
