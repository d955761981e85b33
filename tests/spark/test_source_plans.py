"""Which queries Spark plans again, and what a kept plan reads after records were appended and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.storage.names import TopicPartition

pytestmark = pytest.mark.spark


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=1)
    append(log_dir, 10)
    return log_dir


def append(log_dir: LogDir, count: int) -> None:
    log_dir.append("t", pa.table({"value": ["v"] * count}))


@pytest.fixture
def sql_names(spark: SparkSession) -> Iterator[None]:
    yield
    for name in ("of_frame", "of_source", "of_table", "of_text"):
        spark.catalog.dropTempView(name)
    spark.sql("DROP TABLE IF EXISTS planned")


def rows(spark: SparkSession, name: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {name}").first()[0])  # type: ignore[index]


@pytest.mark.full
def test_dataframe_and_its_view_keep_offsets_of_first_action(
    spark: SparkSession, load: Callable[..., DataFrame], log_dir: LogDir, sql_names: None
) -> None:
    """Spark 4.2 keeps a Python source's partitions with the loaded source. When this fails it no longer does, and what
    README and MIGRATING say of it can go."""
    records = load(log_dir.path)
    records.createOrReplaceTempView("of_frame")
    create = f"CREATE OR REPLACE TEMPORARY VIEW of_source USING kafkalog OPTIONS (path '{log_dir.path}')"
    spark.sql(create)
    assert (records.count(), rows(spark, "of_frame"), rows(spark, "of_source")) == (10, 10, 10)
    append(log_dir, 5)
    assert (records.count(), rows(spark, "of_frame"), rows(spark, "of_source")) == (10, 10, 10)
    assert load(log_dir.path).count() == 15
    spark.sql(create)
    assert rows(spark, "of_source") == 15


def test_table_and_its_views_are_planned_for_each_query(spark: SparkSession, log_dir: LogDir, sql_names: None) -> None:
    spark.sql(f"CREATE TABLE planned USING kafkalog OPTIONS (path '{log_dir.path}', subscribe 't')")
    spark.table("planned").createOrReplaceTempView("of_table")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW of_text AS SELECT * FROM planned WHERE offset >= 0")
    names = ("planned", "of_table", "of_text")
    assert [rows(spark, name) for name in names] == [10, 10, 10]
    append(log_dir, 5)
    assert [rows(spark, name) for name in names] == [15, 15, 15]
    delete_records(log_dir.root, {TopicPartition("t", 0): 4})
    assert [rows(spark, name) for name in names] == [11, 11, 11]


def test_kept_plan_returns_no_record_deleted_since(load: Callable[..., DataFrame], log_dir: LogDir) -> None:
    strict, lenient = load(log_dir.path), load(log_dir.path, failOnDataLoss="false")
    assert (strict.count(), lenient.count()) == (10, 10)
    delete_records(log_dir.root, {TopicPartition("t", 0): 4})
    assert [row.offset for row in lenient.select("offset").collect()] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(PythonException, match=r"offsets 0 to 4 are gone: the log starts at 4 now.*load\(\) again"):
        strict.collect()
    assert load(log_dir.path).count() == 6
