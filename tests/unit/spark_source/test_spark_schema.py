"""Schemas that are read and written, paths, and the options of SQL tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType, TimestampNTZType, _parse_datatype_string

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.spark.location import Location, absolute_path, locate
from pyspark_kafkalog.spark.schema import check_read_schema, check_write_schema, read_schema
from pyspark_kafkalog.spark.table_options import effective_read_options, of_create_table, with_table_options
from pyspark_kafkalog.storage.names import TopicPartition


def ddl(text: str) -> StructType:
    """A schema from DDL; Spark's own parser needs a JVM, this one knows as much as the tests use."""
    del text
    raise NotImplementedError


def test_the_schema_is_sparks_and_matches_the_arrow_columns() -> None:
    names = "key value topic partition offset timestamp timestampType".split()
    assert read_schema(include_headers=False).names == names
    assert read_schema(include_headers=True).names == [*names, "headers"]
    assert to_arrow_schema(read_schema(include_headers=True), timezone="UTC") == KAFKA_SCHEMA
