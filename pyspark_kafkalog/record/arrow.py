"""Converts record columns to Arrow and back, without copying keys and values.

`KAFKA_SCHEMA` holds the columns of Spark's Kafka source, with the types of Spark's Arrow conversion. `RECORD_SCHEMA`
holds the same columns for readers outside of Spark: its timestamps are in milliseconds, which any record's fits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.columns import BinaryColumn, HeaderColumn, RecordColumns
from pyspark_kafkalog.units import MAX_SPARK_TIMESTAMP_MS, US_PER_MS
from pyspark_kafkalog.values import check_one_of, check_texts

_HEADER_FIELDS: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

KAFKA_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER_FIELDS))),
    ]
)

_TIMESTAMP: Final = "timestamp"
_TIMESTAMP_MS: Final = pa.timestamp("ms", "UTC")
RECORD_SCHEMA: Final = KAFKA_SCHEMA.set(KAFKA_SCHEMA.get_field_index(_TIMESTAMP), pa.field(_TIMESTAMP, _TIMESTAMP_MS))

_FAR_TIMESTAMP_ADVICE: Final = (
    "read the number of milliseconds, in Spark by .schema('key BINARY, value BINARY, partition INT, offset BIGINT, "
    "timestamp BIGINT'), or leave out the column timestamp"
)
_CONSTANT_ROWS_STEP: Final = 16 * 1024


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """RECORD_SCHEMA, or these columns of it. Raises InvalidOptionError for an unknown column."""
    if columns is None:
        return RECORD_SCHEMA
    check_texts("columns", columns)
    for name in columns:
        check_one_of("a column", name, RECORD_SCHEMA.names)
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])


def to_record_batch(columns: RecordColumns, schema: pa.Schema, *, topic: str, partition: int) -> pa.RecordBatch:
    """The records as one Arrow batch with the columns of `schema`: any of KAFKA_SCHEMA's, in any order.

    The timestamp may also be in milliseconds, as in RECORD_SCHEMA, or the int64 number of them.

    `columns` must have all columns of the schema except topic and partition. Invalid UTF-8 in header keys becomes
    U+FFFD, as in Java. Raises InvalidRecordError for a timestamp in microseconds that 64 bits do not hold.
    """
    if not len(schema):  # from_arrays would return a batch without rows
        return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), columns.count, [None]))
    arrays = [_to_array(field, columns, topic, partition) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_array(field: pa.Field, columns: RecordColumns, topic: str, partition: int) -> pa.Array:
    name, count = field.name, columns.count
    if name == "topic":
        return _constant_topic(topic, _rounded_up(count)).slice(0, count)
    if name == "partition":
        return _constant_partition(partition, _rounded_up(count)).slice(0, count)
    if name == _TIMESTAMP:
        return _timestamps(columns, field.type, f"{topic}-{partition}")
    if name == "headers":
        assert columns.headers is not None
        return _headers(columns.headers)
    if name in ("key", "value"):
        column = columns.keys if name == "key" else columns.values
        assert column is not None
        return _binary(column, pa.binary())
    numbers = columns.offsets if name == "offset" else columns.timestamp_types
    assert numbers is not None
    return pa.Array.from_buffers(KAFKA_SCHEMA.field(name).type, count, [None, pa.py_buffer(numbers)])


def _rounded_up(count: int) -> int:
    """`count` rounded up, so that few distinct lengths occur and the constant columns are usually cached.

    Short batches, as of thousands of partitions with a few records, keep columns of at most twice their length.
    """
    if count < _CONSTANT_ROWS_STEP:
        return 1 << max(count - 1, 0).bit_length()
    return -(-count // _CONSTANT_ROWS_STEP) * _CONSTANT_ROWS_STEP


@functools.lru_cache(maxsize=4)
def _constant_topic(topic: str, count: int) -> pa.Array:
    name = topic.encode()
    offsets = np.arange(0, (count + 1) * len(name), len(name), dtype=np.int32)[: count + 1]
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(name * count)])


@functools.lru_cache(maxsize=4)
def _constant_partition(partition: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(np.full(count, partition, np.int32))])


def _timestamps(columns: RecordColumns, arrow_type: pa.DataType, topic_partition: str) -> pa.Array:
    timestamps_ms = columns.timestamps_ms
    assert timestamps_ms is not None
    if arrow_type != KAFKA_SCHEMA.field(_TIMESTAMP).type:
        return pa.Array.from_buffers(arrow_type, columns.count, [None, pa.py_buffer(timestamps_ms)])
    too_far = (timestamps_ms > MAX_SPARK_TIMESTAMP_MS) | (timestamps_ms < -MAX_SPARK_TIMESTAMP_MS)
    if too_far.any():
        row = int(too_far.argmax())
        where = "a record" if columns.offsets is None else f"the record at offset {int(columns.offsets[row])}"
        raise InvalidRecordError(
            f"{where} of {topic_partition} has timestamp {int(timestamps_ms[row])} ms, and timestamps in microseconds, "
            f"as Spark's, end at {MAX_SPARK_TIMESTAMP_MS} ms; {_FAR_TIMESTAMP_ADVICE}"
        )
    timestamps_us = timestamps_ms * US_PER_MS
    return pa.Array.from_buffers(arrow_type, columns.count, [None, pa.py_buffer(timestamps_us)])


def _binary(column: BinaryColumn, arrow_type: pa.DataType) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(arrow_type, len(column), buffers)


def _headers(headers: HeaderColumn) -> pa.Array:
    keys = _header_keys(headers.keys)
    values = _binary(headers.values, pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER_FIELDS))
    list_type = KAFKA_SCHEMA.field("headers").type
    return pa.Array.from_buffers(list_type, len(headers), [None, pa.py_buffer(headers.offsets)], children=[pairs])


def _header_keys(keys: BinaryColumn) -> pa.Array:
    array = _binary(keys, pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        texts = [raw.decode("utf-8", "replace") for raw in _binary(keys, pa.binary()).to_pylist()]
        return pa.array(texts, pa.string())
    return array


def from_arrow(
    key: pa.Array | None, value: pa.Array | None, headers: pa.Array | None, timestamps_ms: NDArray[np.int64]
) -> RecordColumns:
    """Columns to encode, from Arrow arrays of equal length: string or binary of any kind, headers as in KAFKA_SCHEMA.

    None stands for a column of nulls (for headers: no headers). A null list of headers is treated as empty. Raises
    InvalidRecordError for a null header or header key, and for other types. Headers may be lists of any kind, or maps.
    Slices and nulls are handled.
    """
    return RecordColumns(
        count=len(timestamps_ms),
        timestamps_ms=np.ascontiguousarray(timestamps_ms, dtype=np.int64),
        keys=None if key is None else _from_binary(key),
        values=None if value is None else _from_binary(value),
        headers=None if headers is None else _from_headers(headers),
    )


def _from_binary(array: pa.Array) -> BinaryColumn:
    """Any string or binary array, or a dictionary of such. 64-bit offsets and views are cast: over 2 GiB this fails."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) or array.null_count == len(array):
        return BinaryColumn(
            np.zeros(len(array) + 1, np.int32), np.empty(0, np.uint8), np.zeros((len(array) + 7) // 8, np.uint8)
        )
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        kept_type = pa.string() if _is_text(array.type) else pa.binary()
        array = _cast(array, kept_type, "keys and values are strings or binary")
    validity, offsets, data = array.buffers()
    offsets_array = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    data_array = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return BinaryColumn(offsets_array, data_array, _from_validity(validity, array))


def _cast(array: pa.Array, arrow_type: pa.DataType, expected: str) -> pa.Array:
    try:
        return array.cast(arrow_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRecordError(f"{expected}, this column is of type {array.type}: {error}") from None


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(arrow_type) or pa.types.is_string_view(arrow_type))


def _from_validity(validity: pa.Buffer | None, array: pa.Array) -> NDArray[np.uint8] | None:
    """The bitmap with its first bit for the array's first element."""
    if validity is None or array.null_count == 0:
        return None
    bits = np.frombuffer(validity, np.uint8)
    if array.offset % 8 == 0:
        return bits[array.offset // 8 :]
    shifted = np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)]
    return np.packbits(shifted, bitorder="little")


def _refuse_null(used: pa.Array, offsets: NDArray[np.int32], what: str, condition: str) -> NoReturn:
    import pyarrow.compute as pc

    at = int(pc.index(used.is_null(), True).as_py())
    row = int(np.searchsorted(offsets, at, side="right")) - 1
    raise InvalidRecordError(
        f"{what}, which Kafka has no form for (row {row} of {len(offsets) - 1} written together, header "
        f"{at - int(offsets[row])}, both from 0); filter(headers, h -> {condition}) leaves such headers out"
    )


def _from_headers(array: pa.Array) -> HeaderColumn | None:
    if pa.types.is_null(array.type) or not len(array):
        return None
    if not (pa.types.is_list(array.type) or pa.types.is_map(array.type)):
        element = getattr(array.type, "value_field", KAFKA_SCHEMA.field("headers").type.value_field)
        array = _cast(array, pa.list_(element), "headers are lists")
    if array.null_count:
        array = array.fill_null([])
    pairs: Any = array.values
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    first, end = int(offsets[0]), int(offsets[-1])
    used = pairs.slice(first, end - first)
    if not len(used):
        return None  # also for lists of unknown element type
    if pa.types.is_map(array.type):
        keys, values = used.field(0), used.field(1)
    elif pa.types.is_struct(used.type) and {"key", "value"} <= {each.name for each in used.type}:
        keys, values = used.field("key"), used.field("value")
    else:
        raise InvalidRecordError(f"headers are lists of a struct with key and value, not of {used.type}")
    if used.null_count:
        _refuse_null(used, offsets - first, "a null element in the array of headers", "h IS NOT NULL")
    if keys.null_count:
        _refuse_null(keys, offsets - first, "a header whose key is null", "h.key IS NOT NULL")
    return HeaderColumn(offsets - np.int32(first), _from_binary(keys), _from_binary(values))
