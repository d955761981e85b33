"""Records to append become Arrow data whatever they are in, and one sentence tells of those that cannot."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.appendable import arrow_of

COLUMNS = {"key": ["ann", None, "bob"], "value": ["1", "naïve", None]}
ROWS = [{"key": key, "value": value} for key, value in zip(*COLUMNS.values(), strict=True)]
NOON = datetime(2026, 1, 15, 12, 0, 0, 1000, tzinfo=timezone.utc)


class OnlyAStream:
    """A table of a library that is not known here."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.table(COLUMNS).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "records",
    [
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS).set_index("key"),
        pd.DataFrame({**COLUMNS, "n": [1, 2, 3]}).query("n > 0")[["key", "value"]].set_axis([7, 8, 9]),
        pd.DataFrame(COLUMNS).astype({"key": "category"}),
        pl.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS).with_columns(pl.col("key").cast(pl.Categorical)),
        duckdb.from_arrow(pa.table(COLUMNS)),
        OnlyAStream(),
        ROWS,
        tuple(ROWS),
        [{"value": (each["value"] or "").encode() or None, "key": each["key"]} for each in ROWS],
    ],
    ids=[
        "pandas",
        "index",
        "other index",
        "category",
        "polars",
        "Categorical",
        "duckdb",
        "stream",
        "rows",
        "tuple",
        "bytes",
    ],
)
def test_tables_of_any_library_and_rows_have_the_same_records(records: Any) -> None:
    found = arrow_of(records)
    plain = [pa.array(found[name].to_pylist()).cast(pa.string()).to_pylist() for name in COLUMNS]
    assert plain == list(COLUMNS.values())
    assert sorted(found.schema.names) == ["key", "value"]


def test_reader_is_returned_unread() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise AssertionError("it was read")
        yield

    reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), batches())
    assert arrow_of(reader) is reader


def test_column_that_no_row_has_is_left_out_and_no_rows_are_an_empty_table() -> None:
    assert arrow_of([{"value": "a", "key": None}, {"value": b"\xff"}]).to_pydict() == {"value": [b"a", b"\xff"]}
    assert arrow_of([]).schema.names == ["value"]


@pytest.mark.parametrize(
    "headers",
    [{"a": b"1", "b": None}, [("a", "1"), ("b", None)], [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]],
)
def test_headers_of_a_row_are_a_dict_or_pairs_or_as_they_are_read(headers: Any) -> None:
    found = arrow_of([{"value": "x"}, {"value": "y", "headers": headers}])["headers"].to_pylist()
    assert found == [None, [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]]


def test_time_of_a_row_without_zone_is_utc() -> None:
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    times = [NOON, berlin, NOON.replace(tzinfo=None), pd.Timestamp(NOON)]
    found = arrow_of([{"value": "x", "timestamp": each} for each in times])["timestamp"].to_pylist()
    assert found == [NOON] * 4


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({"value": ["a"]}, "a dict; expected an Arrow table, a DataFrame .* or a list of dicts"),
        ("value", "a str; expected"),
        (pl.LazyFrame(COLUMNS), "a LazyFrame; expected"),
        (pd.DataFrame({"value": ["a", 1]}), "DataFrame has no form as an Arrow table: .*'int'.* column value"),
        (pa.chunked_array([["a"]]), "ChunkedArray has no form as an Arrow table"),
        (pd.DataFrame({"value": [1]}), "column value .* is of type int64; expected string or binary"),
        (pd.DataFrame({"key": [1.5], "value": ["a"]}), "column key .* is of type double"),
        (
            pd.DataFrame({"vlaue": ["a"]}),
            "have the columns vlaue; expected value, and optionally key, headers, timestamp",
        ),
        ([{"value": "a"}, "b"], "row 1 to append is a str; expected a dict"),
        ([{"value": "a"}, {"key": "b"}], "row 1 to append has key; expected value, and optionally"),
        ([{"value": "a", "colour": 1}], "row 0 to append has value, colour; expected"),
        ([{"value": 1}], "row 0 to append has 1 of type int; expected text, bytes or None"),
        ([{"value": "\ud800"}], "which UTF-8 has no form for"),
        ([{"value": "a", "headers": [1]}], r"row 0 to append has the headers \[1\]; expected a dict, or pairs"),
        ([{"value": "a", "headers": {1: b""}}], "expected a dict, or pairs"),
        ([{"value": "a", "headers": {"a": 1}}], "expected text, bytes or None"),
        ([{"value": "a", "timestamp": 1_700_000_000_123}], "the timestamp 1700000000123; expected a datetime"),
    ],
)
def test_other_records_are_refused_in_one_sentence(records: Any, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message) as raised:
        arrow_of(records)
    assert "\n" not in str(raised.value)
