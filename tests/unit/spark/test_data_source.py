"""Schemas of reads and writes, paths, and the options of SQL tables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError, called_by_spark
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.spark.data_source import HEADERS_TYPE, check_read_schema, check_write_schema, read_schema
from pyspark_kafkalog.spark.options.parse import (
    Location,
    absolute_path,
    effective_read_options,
    locate,
    of_create_table,
    with_table_options,
)
from pyspark_kafkalog.storage.names import TopicPartition

STRICT_HEADERS = ArrayType(
    StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), False)]), False
)


@called_by_spark
class Called:
    def raises(self, error: Exception) -> None:
        raise error

    def yields(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


@pytest.mark.parametrize("error", [InvalidOptionError("a"), OSError("b"), KeyError("c")])
@pytest.mark.parametrize("main", ["pyspark.daemon", "pyspark.sql.worker.plan_data_source_read", "user_program"])
@pytest.mark.parametrize("method", ["raises", "yields"])
def test_workers_hide_traceback_of_expected_errors_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, main: str, method: str
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(main, None))
    with pytest.raises(type(error)):
        list(getattr(Called(), method)(error))
    is_hidden = main.startswith("pyspark.") and not isinstance(error, KeyError)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ("1" if is_hidden else "")


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in types.items()])


def test_schema_is_sparks_and_matches_arrow_columns() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert read_schema(include_headers=False).names == names
    assert read_schema(include_headers=True).names == [*names, "headers"]
    assert to_arrow_schema(read_schema(include_headers=True), timezone="UTC") == KAFKA_SCHEMA


def test_user_schema_may_choose_and_reorder_columns() -> None:
    check_read_schema(schema(offset=LongType(), headers=HEADERS_TYPE, value=BinaryType()))
    check_read_schema(StructType([StructField("offset", LongType(), nullable=False)]))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (schema(Value=BinaryType()), r"unknown column 'Value'; allowed columns: key binary, .*timestampType int"),
        (schema(value=StringType()), r"column value as string; allowed columns: .*value binary"),
        (schema(timestamp=TimestampNTZType()), "column timestamp as timestamp_ntz"),
        (schema(headers=STRICT_HEADERS), "column headers as array"),
        (StructType([StructField("key", BinaryType(), nullable=False)]), "column key as NOT NULL"),
        (StructType([StructField("offset", LongType())] * 2), "names a column twice"),
    ],
)
def test_invalid_user_schema_is_refused(chosen: StructType, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        check_read_schema(chosen)


def test_valid_write_schemas_are_accepted() -> None:
    check_write_schema(schema(value=StringType()), "orders")
    check_write_schema(schema(value=BinaryType(), topic=StringType(), price=LongType()), None)
    check_write_schema(
        schema(
            key=StringType(),
            value=StringType(),
            headers=STRICT_HEADERS,
            partition=IntegerType(),
            timestamp=TimestampType(),
            topic=LongType(),
        ),
        "orders",
    )


@pytest.mark.parametrize(
    ("rows", "topic", "message"),
    [
        (schema(value=StringType()), None, "topic option required when no 'topic' attribute is present"),
        (schema(key=StringType()), "t", "Required attribute 'value' not found"),
        (
            schema(value=LongType()),
            "t",
            r"value attribute unsupported type bigint. value must be a\(n\) string or binary",
        ),
        (schema(value=StringType(), key=IntegerType()), "t", "key attribute unsupported type int"),
        (schema(value=StringType(), topic=LongType()), None, "topic attribute unsupported type bigint"),
        (schema(value=StringType(), partition=LongType()), "t", "partition attribute unsupported type bigint"),
        (schema(value=StringType(), timestamp=LongType()), "t", "timestamp attribute unsupported type bigint"),
        (schema(value=StringType(), headers=ArrayType(StringType())), "t", "headers attribute unsupported type array"),
    ],
)
def test_invalid_write_schemas_fail_as_in_sparks_sink(rows: StructType, topic: str | None, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        check_write_schema(rows, topic)


_HEADER = "h -> struct(CAST(h.key AS STRING) AS key, CAST(h.value AS BINARY) AS value)) AS headers"
_TEXT_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", StringType())]))


@pytest.mark.parametrize(
    ("column", "kind", "conversion"),
    [
        ("timestamp", StringType(), "CAST(timestamp AS TIMESTAMP_LTZ) AS timestamp"),
        ("timestamp", TimestampNTZType(), "CAST(timestamp AS TIMESTAMP_LTZ) AS timestamp, which takes times as of the"),
        ("timestamp", LongType(), "timestamp_millis(timestamp) AS timestamp for milliseconds"),
        ("partition", LongType(), "CAST(partition AS INT) AS partition"),
        ("key", IntegerType(), "CAST(key AS STRING) AS key"),
        ("value", _TEXT_HEADERS, "to_json(value) AS value"),
        ("headers", _TEXT_HEADERS, f"transform(headers, {_HEADER}"),
        ("headers", MapType(StringType(), StringType()), f"transform(map_entries(headers), {_HEADER}"),
        ("headers", ArrayType(StringType()), "array(named_struct('key', 'name', 'value', CAST(column AS BINARY)))"),
    ],
)
def test_column_of_other_type_is_refused_with_conversion_expression(
    column: str, kind: DataType, conversion: str
) -> None:
    with pytest.raises(InvalidRecordError, match=rf": write {re.escape(conversion)}"):
        check_write_schema(schema(**{"value": StringType(), column: kind}), "t")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b c%20d", "/a/b c%20d"),
        ("FILE://localhost/a", "/a"),
        ("/a:b/c", "/a:b/c"),
    ],
)
def test_paths_and_file_uris_are_parsed(text: str, path: str) -> None:
    assert absolute_path(text) == Path(path)


def test_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_path("logs") == tmp_path / "logs"


def test_several_directories_are_one_location_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c,d"):
        (tmp_path / name).mkdir()
    both = Location(Path(f"{tmp_path}/a,{tmp_path}/b"))
    for text in ("a,b", " a , b ", f"{tmp_path}/a,b", f"file:{tmp_path}/a,file://{tmp_path}/b", f"a,file:{tmp_path}/b"):
        assert locate(text) == both
    assert locate("c,d") == locate(f"file:{tmp_path}/c,d") == Location(tmp_path / "c,d")
    assert locate("b,c,d") == Location(Path(f"{tmp_path}/b,{tmp_path}/c,d"))
    assert locate("new,one") == Location(tmp_path / "new,one")
    with pytest.raises(InvalidOptionError, match="option path has the bad value 'hdfs:///b'"):
        locate("a,hdfs:///b")


@pytest.mark.parametrize("text", ["s3://bucket/a", "hdfs:///a", "file://host/a", "file:a", "dbfs:/a", "/a\0b"])
def test_other_uris_are_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="option path has the bad value"):
        absolute_path(text)


def test_partition_directory_is_distinguished_from_root_with_such_name(kafka_fixtures: Path, tmp_path: Path) -> None:
    root = kafka_fixtures / "cars"
    assert locate(str(root)) == Location(root)
    assert locate(f"{root}/cars-0/") == Location(root, TopicPartition("cars", 0))
    (tmp_path / "disk-1").mkdir()
    assert locate(str(tmp_path / "disk-1")) == Location(tmp_path / "disk-1")


def test_table_options_round_trip_through_its_schema() -> None:
    properties = {
        "provider": "kafkalog",
        "owner": "me",
        "location": "file:/logs",
        "path": "file:/logs",
        "subscribe": "a",
        "option.subscribe": "a",
    }
    options = of_create_table(properties)
    assert options == {"path": "file:/logs", "subscribe": "a"}
    stored = StructType.fromJson(with_table_options(read_schema(include_headers=False), options).jsonValue())
    assert effective_read_options({}, stored) == options
    assert effective_read_options({"subscribe": "b"}, stored) == {"path": "file:/logs", "subscribe": "b"}


def test_load_with_path_takes_no_options_from_schema() -> None:
    carrying = with_table_options(read_schema(include_headers=False), {"path": "/other", "subscribe": "a"})
    assert effective_read_options({"path": "/logs"}, carrying) == {"path": "/logs"}
    assert of_create_table({"path": "/logs"}) is None


@pytest.mark.parametrize(
    "name", ["storeAccessKey", "storesecretkey", "storeSessionToken", "storeSasToken", "fs.s3a.bucket.b.secret.key"]
)
def test_create_table_with_a_secret_is_refused_without_repeating_it(name: str) -> None:
    properties = {"provider": "kafkalog", "path": "s3://bucket/log", f"option.{name}": "xyzzy"}
    with pytest.raises(InvalidOptionError, match=f"option {name} of CREATE TABLE would be stored in clear") as caught:
        of_create_table(properties)
    assert "xyzzy" not in str(caught.value)
    kept = {"option.storeEndpoint": "http://host:1", "option.fs.s3a.endpoint.region": "eu-west-1"}
    assert of_create_table({"provider": "kafkalog", **kept}) == {
        "storeEndpoint": "http://host:1",
        "fs.s3a.endpoint.region": "eu-west-1",
    }


def test_schema_of_a_session_without_time_zones_names_the_type_to_use() -> None:
    rows = StructType([StructField("timestamp", TimestampNTZType())])
    with pytest.raises(
        InvalidOptionError, match=r"as timestamp_ntz, which TIMESTAMP means.*TIMESTAMP_NTZ; .* timestamp timestamp_ltz,"
    ):
        check_read_schema(rows)
