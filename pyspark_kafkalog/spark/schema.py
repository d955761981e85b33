"""Columns of a read and of a write, as in Spark's Kafka source and sink.

Reading: any of the columns, each with its type; columns that a user's schema omits are not decoded. The timestamp may
be a bigint, the number of milliseconds: records may have times that Spark's timestamps do not reach.
Writing: value is required; key, headers, topic, partition and timestamp are optional; other columns are ignored.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_READ_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
_READ_SCHEMA_WITH_HEADERS: Final = StructType([*_READ_SCHEMA.fields, StructField("headers", HEADERS_TYPE)])
_MAY_BE_NULL: Final = frozenset({"key", "value", "headers"})
#: The type with which `timestamp` may be read instead: the number of milliseconds, which any record has.
_MILLISECONDS: Final = LongType()

_WRITE_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (HEADERS_TYPE,),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}


def read_schema(include_headers: bool) -> StructType:
    """Spark's Kafka schema; the column headers is last and present if `include_headers`."""
    return _READ_SCHEMA_WITH_HEADERS if include_headers else _READ_SCHEMA


def check_read_schema(schema: StructType) -> None:
    """Raise InvalidOptionError unless `schema` is a subset of the columns, in any order, each with its type."""
    if len(set(schema.names)) != len(schema.names):
        raise InvalidOptionError(f"the schema names a column twice: {', '.join(schema.names)}")
    known = {field.name: field for field in _READ_SCHEMA_WITH_HEADERS}
    for field in schema:
        expected = known.get(field.name)
        if expected is None:
            raise InvalidOptionError(f"the schema has the unknown column {field.name!r}; {_allowed_columns()}")
        if field.dataType != expected.dataType and (field.name, field.dataType) != ("timestamp", _MILLISECONDS):
            raise InvalidOptionError(
                f"the schema has column {field.name} as {field.dataType.simpleString()}"
                f"{_session_text(field.dataType)}; {_allowed_columns()}"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise InvalidOptionError(f"the schema has column {field.name} as NOT NULL, but it can be null")


def _allowed_columns() -> str:
    columns = (f"{field.name} {_name_of(field.dataType)}" for field in _READ_SCHEMA_WITH_HEADERS)
    return f"allowed columns: {', '.join(columns)}; timestamp may be bigint, for milliseconds since 1970"


def _name_of(kind: DataType) -> str:
    """The name of the type in SQL, whatever TIMESTAMP means in the session (spark.sql.timestampType)."""
    return "timestamp_ltz" if isinstance(kind, TimestampType) else kind.simpleString()


def _session_text(kind: DataType) -> str:
    """Why a column has the type, if the session's settings may have chosen it."""
    if not isinstance(kind, TimestampNTZType):
        return ""
    return ", which TIMESTAMP means in a session with spark.sql.timestampType=TIMESTAMP_NTZ"


def check_write_schema(schema: StructType, topic: str | None) -> None:
    """Raise InvalidRecordError if rows of `schema` cannot be written. The rules are those of Spark's KafkaWriter."""
    given = {field.name: field.dataType for field in schema}
    if topic is None and "topic" not in given:
        raise InvalidRecordError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in given:
        raise InvalidRecordError("Required attribute 'value' not found")
    for name, allowed in _WRITE_TYPES.items():
        if name == "topic" and topic is not None:
            continue
        if name in given and not any(_is_same_type(given[name], each) for each in allowed):
            raise InvalidRecordError(
                f"{name} attribute unsupported type {given[name].simpleString()}. {name} must be a(n) "
                f"{' or '.join(map(_name_of, allowed))}: write {_conversion(name, given[name])}"
            )


def _conversion(name: str, given: DataType) -> str:
    """A SQL expression that converts the given column to the required type."""
    if name == "headers":
        pairs = "map_entries(headers)" if isinstance(given, MapType) else "headers"
        if pairs == "headers" and not _has_keys_and_values(given):
            return "array(named_struct('key', 'name', 'value', CAST(column AS BINARY))) AS headers"
        header = "struct(CAST(h.key AS STRING) AS key, CAST(h.value AS BINARY) AS value)"
        return f"transform({pairs}, h -> {header}) AS headers"
    if name == "timestamp" and isinstance(given, NumericType):
        return "timestamp_millis(timestamp) AS timestamp for milliseconds since 1970, timestamp_seconds for seconds"
    if name in ("key", "value") and isinstance(given, (StructType, ArrayType, MapType)):
        return f"to_json({name}) AS {name}"
    in_zone = ", which takes times as of the session's time zone" if isinstance(given, TimestampNTZType) else ""
    return f"CAST({name} AS {_name_of(_WRITE_TYPES[name][0]).upper()}) AS {name}{in_zone}"


def _has_keys_and_values(given: DataType) -> bool:
    element = given.elementType if isinstance(given, ArrayType) else None
    return isinstance(element, StructType) and {"key", "value"} <= set(element.names)


def _is_same_type(given: DataType, allowed: DataType) -> bool:
    """Whether the types are equal, ignoring nullability at every depth."""
    if isinstance(given, ArrayType) and isinstance(allowed, ArrayType):
        return _is_same_type(given.elementType, allowed.elementType)
    if isinstance(given, StructType) and isinstance(allowed, StructType):
        return given.names == allowed.names and all(
            _is_same_type(mine.dataType, theirs.dataType) for mine, theirs in zip(given, allowed, strict=True)
        )
    return given == allowed
