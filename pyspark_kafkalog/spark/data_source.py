"""`format("kafkalog")`: the class that Spark finds as `DefaultSource` and asks for the schema, readers and writers.

Spark creates it again in short-lived processes to plan, so heavy modules are imported only where records are read or
written.

The columns of a read and of a write are those of Spark's Kafka source and sink. Reading: any of the columns, each with
its type; columns that a user's schema omits are not decoded. The timestamp may be a bigint, the number of milliseconds:
records may have times that Spark's timestamps do not reach. Writing: value is required; key, headers, topic, partition
and timestamp are optional; other columns are ignored.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
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

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError, MissingPackageError, called_by_spark
from pyspark_kafkalog.spark.options.parse import (
    at_location,
    effective_read_options,
    locate_source,
    of_create_table,
    parse_load_options,
    parse_read_options,
    parse_stream_read_options,
    parse_stream_write_options,
    parse_write_options,
    with_table_options,
)

#: A part of the Python Data Source API that Spark 4.2 added. It tells more than a version: vendors change versions, and
#: add parts of later releases.
_OF_SPARK_4_2: Final = "pyspark.sql.streaming.datasource"
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"

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


@called_by_spark
class KafkalogDataSource(DataSource):
    """Apache Kafka's log in a directory, with the columns and options of Spark's Kafka source and sink."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises MissingPackageError under a Spark older than 4.2.

        This is the first call that Spark passes on to the user. The lookup of data sources before it reports nothing,
        and an error in it would hide the data sources of all packages.
        """
        check_spark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "kafkalog"

    def schema(self) -> StructType:
        """Spark's Kafka schema. Checks the options, so that load() already reports a mistake."""
        table_options = of_create_table(self.options)
        options = parse_load_options(self.options if table_options is None else table_options)
        at_location(options.subscription, locate_source(options))
        schema = read_schema(options.include_headers)
        return schema if table_options is None else with_table_options(schema, table_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of `schema`. It takes filters if the options enable this and Spark is about to push them.

        This is off by default: PythonScanBuilder of Spark 4.2 stores the partitions planned for a filter with the
        loaded source, so that another query on the same DataFrame (without a filter, or a union of two filters)
        would get the filtered rows. Later Spark versions store them with the scan.
        """
        from pyspark_kafkalog.spark.read.reader import KafkalogBatchReader, KafkalogPushdownReader

        check_read_schema(schema)
        options = parse_read_options(effective_read_options(self.options, schema))
        if options.filter_pushdown and _is_pushing_filters():
            return KafkalogPushdownReader(options, schema)
        return KafkalogBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A streaming reader of `schema`; options and columns that are refused are reported by its first call."""
        from pyspark_kafkalog.spark.stream.reader import KafkalogStreamReader, RefusedStreamReader

        try:
            check_read_schema(schema)
            options = parse_stream_read_options(effective_read_options(self.options, schema))
        except InvalidOptionError as error:
            return RefusedStreamReader(error)
        return KafkalogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer of rows of `schema`."""
        from pyspark_kafkalog.spark.write.writers import KafkalogBatchWriter

        if overwrite:
            raise InvalidOptionError(
                "mode overwrite is not possible, a log is only appended to: use mode append or "
                "INSERT INTO (to start afresh, delete the topic first: kafkalog topics --delete)"
            )
        options = parse_write_options(self.options)
        check_write_schema(schema, options.topic)
        return KafkalogBatchWriter.make(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of micro-batches of rows of `schema`.

        `overwrite` means output mode complete: each result is appended, as in Spark's Kafka sink. Spark itself refuses
        output mode update for Python data sources.
        """
        from pyspark_kafkalog.spark.write.writers import KafkalogStreamWriter

        options = parse_stream_write_options(self.options)
        check_write_schema(schema, options.topic)
        return KafkalogStreamWriter.make(options)


def check_spark() -> None:
    """Raises MissingPackageError if this Spark's Python Data Source API is older than that of Spark 4.2.

    Spark 4.0 has no filters and no Arrow writers of streams. Spark 4.1 has no read limits and no available-now of
    streaming readers. The readers and writers are built on them.
    """
    if importlib.util.find_spec(_OF_SPARK_4_2) is None:
        raise MissingPackageError(
            f'format("kafkalog") expects Spark 4.2 or newer, found pyspark {pyspark.__version__} without '
            f"{_OF_SPARK_4_2}: use a newer Spark, or read and write without Spark by pyspark_kafkalog.LogDir"
        )


def _is_pushing_filters() -> bool:
    """Whether this is the process in which Spark pushes filters.

    Spark refuses a reader with `pushFilters` while spark.sql.python.filterPushdown.enabled is off, and a data source
    cannot read that setting. But when it is on and the query has a filter, a separate worker module plans the read.
    """
    return (
        _PUSHDOWN_WORKER in sys.modules or getattr(sys.modules["__main__"].__spec__, "name", None) == _PUSHDOWN_WORKER
    )


# Columns


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
