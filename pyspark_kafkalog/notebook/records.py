"""Records as tables: the common base of a topic, a log and a slice of a log.

All conversions use Arrow. An object is itself an Arrow stream (`__arrow_c_stream__`), so that `pyarrow.table(log)` and
`polars.DataFrame(log)` accept it too, batch by batch.

Points in time that select records are parsed to ms since 1970, the unit of their timestamps:

>>> point_in_time_ms("2024-01-15T10:00")
1705312800000
>>> point_in_time_ms("2024-01-15T11:00+01:00") == point_in_time_ms("2024-01-15 10:00:00Z")
True
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta, timezone
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidOptionError, MissingPackageError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA, RECORD_SCHEMA, schema_of
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import IsolationLevel, PartitionSnapshot
from pyspark_kafkalog.units import EPOCH

_TEXT_COLUMNS = ("key", "value")


class Records(ABC):
    """Records with the columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp, …

    `columns` of the methods selects columns, all by default. With `text`, keys and values are strings instead of bytes;
    invalid UTF-8 is replaced by U+FFFD.
    """

    __slots__ = ()

    @abstractmethod
    def _record_batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records with the columns of `schema`, a subset of RECORD_SCHEMA's."""

    def batches_of_records(
        self, columns: Sequence[str] | None = None, *, text: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The records as Arrow batches, one in memory at a time."""
        batches = self._record_batches(schema_of(columns))
        return map(as_text, batches) if text else batches

    def to_arrow(self, columns: Sequence[str] | None = None, *, text: bool = False) -> pa.Table:
        """All records in an Arrow table."""
        schema = schema_of(columns)
        return pa.Table.from_batches(
            self.batches_of_records(columns, text=text), as_text_schema(schema) if text else schema
        )

    def to_pandas(self, columns: Sequence[str] | None = None, *, text: bool = False) -> Any:
        """All records in a pandas DataFrame. Raises MissingPackageError if pandas is not installed."""
        _import("pandas")
        return self.to_arrow(columns, text=text).to_pandas()

    def to_polars(self, columns: Sequence[str] | None = None, *, text: bool = False) -> Any:
        """All records in a polars DataFrame. Raises MissingPackageError if polars is not installed."""
        return _import("polars").from_arrow(self.to_arrow(columns, text=text))

    def to_duckdb(
        self, columns: Sequence[str] | None = None, *, text: bool = False, connection: Any | None = None
    ) -> Any:
        """All records as a DuckDB relation, of `connection` or the default one: `log.to_duckdb().aggregate(...)`.

        DuckDB's timestamps are in microseconds. Raises InvalidRecordError for one that is out of their range,
        MissingPackageError if duckdb is not installed.
        """
        duckdb = _import("duckdb")
        schema = pa.schema([KAFKA_SCHEMA.field(each.name) for each in schema_of(columns)])
        table = pa.Table.from_batches(self._record_batches(schema), schema)
        if text:
            table = pa.Table.from_batches(map(as_text, table.to_batches()), as_text_schema(schema))
        return (connection or duckdb).from_arrow(table)

    def count(self) -> int:
        """The number of records. Reads the log, but decodes no columns; offsets do not suffice, as they have gaps."""
        return sum(batch.num_rows for batch in self._record_batches(pa.schema([])))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Arrow batches with all columns, one in memory at a time."""
        return self._record_batches(RECORD_SCHEMA)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        stream = pa.RecordBatchReader.from_batches(RECORD_SCHEMA, self._record_batches(RECORD_SCHEMA))
        return stream.__arrow_c_stream__(requested_schema)


class LogRange(Protocol):
    """What drawings and `tail` need of a partition's log or a slice of it: see `PartitionLog`."""

    @property
    def root(self) -> Root: ...

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def isolation(self) -> IsolationLevel: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def fixed_end_offset(self) -> int | None: ...

    @property
    def past_end(self) -> str: ...

    def describe(self) -> PartitionSnapshot: ...

    def between(self, start_offset: int, end_offset: int) -> Records: ...


def as_dicts(records: pa.Table) -> list[dict[str, Any]]:
    """The rows; a timestamp that Python's calendar does not have is its number of milliseconds."""
    try:
        return [dict(each) for each in records.to_pylist()]
    except (ValueError, OverflowError):
        index = records.schema.get_field_index("timestamp")
        numbers = records.column(index).cast(pa.int64())
        return [dict(each) for each in records.set_column(index, "timestamp", numbers).to_pylist()]


def as_text_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with keys and values as strings."""
    return pa.schema([field.with_type(pa.string()) if field.name in _TEXT_COLUMNS else field for field in schema])


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with keys and values as strings."""
    arrays = [
        _as_text(array) if field.name in _TEXT_COLUMNS else array
        for field, array in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=as_text_schema(batch.schema))


def _as_text(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:  # some of it is not UTF-8: the slow path
        values = (None if value is None else value.decode(errors="replace") for value in array.to_pylist())
        return pa.array(values, pa.string())


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(f"this needs {package}: pip install {package}") from error


# Points in time


#: ISO 8601 text or a datetime; UTC if it has no zone. A date means its midnight.
PointInTime: TypeAlias = str | date

_MS: Final = timedelta(milliseconds=1)


def point_in_time_ms(point: PointInTime) -> int:
    """`point` in ms, rounded up: a record is at or after the result exactly if it is at or after `point`.

    Raises InvalidOptionError for text that is not an ISO 8601 date or time.
    """
    if isinstance(point, str):
        point = _parse(point)
    elif not isinstance(point, date):
        raise InvalidOptionError(f"{point!r} is no point in time: expected ISO 8601 text, a datetime or a date")
    elif not isinstance(point, datetime):
        point = datetime.combine(point, time())
    if point.tzinfo is None:
        point = point.replace(tzinfo=timezone.utc)
    return -((EPOCH - point) // _MS)


def iso_text(timestamp_ms: int) -> str:
    """`timestamp_ms` as ISO 8601 text in UTC; the number itself if it is outside the calendar."""
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except OverflowError:
        return f"{timestamp_ms} ms"


def _parse(text: str) -> datetime:
    written = text.strip()
    if written.endswith(("Z", "z")):
        written = written[:-1] + "+00:00"
    try:
        return datetime.fromisoformat(written)
    except ValueError as error:
        raise InvalidOptionError(
            f"{text!r} is no point in time: expected ISO 8601, as 2024-01-15T10:00 or 2024-01-15T10:00:30.5+01:00"
        ) from error
