"""Records to append, in whatever a program has them, as Arrow data with the columns of a write.

    pyarrow.Table, RecordBatch            as it is
    pyarrow.RecordBatchReader             batch by batch, once: it may be larger than memory
    a list of dicts, one for each record  text is stored as UTF-8
    what has `__arrow_c_stream__`         as one table in memory: pandas, polars, DuckDB, a log of this package

The columns are value, and optionally key, headers and timestamp. Keys and values are text, which is stored as UTF-8, or
binary; null stands for none. A named index of pandas is a column; one without a name is left out.

>>> arrow_of([{"key": "ann", "value": b"1"}, {"value": None, "headers": {"from": "a"}}]).to_pylist()[1]
{'key': None, 'value': None, 'headers': [{'key': 'from', 'value': b'a'}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA


class ArrowStream(Protocol):
    """A table of any library that exports Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Appendable: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader | ArrowStream | Sequence[Mapping[str, Any]]

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": KAFKA_SCHEMA.field("headers").type,
    "timestamp": pa.timestamp("us", "UTC"),
}
_EXPECTED: Final = f"expected value, and optionally {', '.join(name for name in _TYPES if name != 'value')}"
#: How pandas names the columns of an index without a name.
_UNNAMED_INDEX: Final = re.compile(r"__index_level_\d+__")


def arrow_of(records: Appendable) -> pa.Table | pa.RecordBatch | pa.RecordBatchReader:
    """The records as Arrow data, whose columns are checked. A RecordBatchReader is returned unread.

    Raises InvalidRecordError for other objects, columns and types.
    """
    if not isinstance(records, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        records = _table_of(records)
    _check_columns(records.schema)
    return records


def is_read_once(records: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> bool:
    """Whether the data can be read only once."""
    return isinstance(records, pa.RecordBatchReader)


def _table_of(records: ArrowStream | Sequence[Mapping[str, Any]]) -> pa.Table:
    if hasattr(records, "__arrow_c_stream__"):
        try:
            table = pa.table(records)
        except pa.ArrowException as error:
            reason = "; ".join(map(str, error.args))
            raise InvalidRecordError(f"the {type(records).__name__} has no form as an Arrow table: {reason}") from error
        return table.drop_columns([name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)])
    if isinstance(records, Sequence) and not isinstance(records, str | bytes | bytearray):
        return _table_of_rows(records)
    raise InvalidRecordError(
        f"the records to append are a {type(records).__name__}; expected an Arrow table, a DataFrame or another object "
        "with __arrow_c_stream__, or a list of dicts with a value each"
    )


def _table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns: dict[str, list[object]] = {name: [] for name in _TYPES}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidRecordError(f"row {number} to append is a {type(row).__name__}; expected a dict")
        if "value" not in row or not row.keys() <= _TYPES.keys():
            raise InvalidRecordError(f"row {number} to append has {', '.join(map(str, row)) or 'nothing'}; {_EXPECTED}")
        try:
            columns["key"].append(_binary(row.get("key")))
            columns["value"].append(_binary(row["value"]))
            columns["headers"].append(_headers(row.get("headers")))
            columns["timestamp"].append(_time(row.get("timestamp")))
        except ValueError as error:
            raise InvalidRecordError(f"row {number} to append has {error}") from None
    used = [name for name in _TYPES if name == "value" or any(each is not None for each in columns[name])]
    return pa.table({name: pa.array(columns[name], _TYPES[name]) for name in used})


def _binary(given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the text {given!r}, which UTF-8 has no form for") from None
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise ValueError(f"{given!r} of type {type(given).__name__}; expected text, bytes or None")


def _headers(given: object) -> list[dict[str, object]] | None:
    """Headers as a dict, as pairs of key and value, or as records that were read have them."""
    if given is None:
        return None
    pairs: Any = given.items() if isinstance(given, Mapping) else given
    headers: list[dict[str, object]] = []
    try:
        for each in pairs:
            key, value = (each["key"], each["value"]) if isinstance(each, Mapping) else each
            if not isinstance(key, str):
                raise TypeError
            headers.append({"key": key, "value": _binary(value)})
    except (KeyError, TypeError):
        raise ValueError(f"the headers {given!r}; expected a dict, or pairs of a text and a value") from None
    return headers


def _time(given: object) -> datetime | None:
    if given is None or isinstance(given, datetime):
        return given
    raise ValueError(f"the timestamp {given!r}; expected a datetime")


def _check_columns(schema: pa.Schema) -> None:
    if "value" not in schema.names or not set(schema.names) <= _TYPES.keys():
        raise InvalidRecordError(f"records to append have the columns {', '.join(schema.names)}; {_EXPECTED}")
    for field in schema:
        if field.name in ("key", "value") and not _is_text_or_binary(field.type):
            raise InvalidRecordError(
                f"column {field.name} of the records to append is of type {field.type}; expected string or binary"
            )


def _is_text_or_binary(arrow_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(arrow_type):
        return _is_text_or_binary(arrow_type.value_type)
    kinds = ("null", "string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{kind}")(arrow_type) for kind in (*kinds, "fixed_size_binary"))
