"""The batch sink through Spark: written rows are read back, and errors name their cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from tiers import rest_full

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.record.scan import scan_batches

pytestmark = pytest.mark.spark

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
HEADERS = "array(struct('a' as key, cast('1' as binary) as value), struct('a' as key, cast(null as binary) as value))"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


def save(frame: DataFrame, root: Path | str, **options: object) -> None:
    frame.write.format("kafkalog").mode("append").options(**options).save(str(root))


@pytest.mark.parametrize("codec", rest_full(CODECS))
def test_rows_of_every_kind_are_read_back_with_every_codec(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path, codec: str
) -> None:
    LogDir.create(root).create_topic("t", partitions=3)
    written = spark.range(0, 5000, 1, 3).selectExpr(
        "if(id % 5 = 0, null, concat('key ', id % 100)) key",
        "if(id % 11 = 0, null, if(id % 13 = 0, '', concat('value ', id))) value",
        f"if(id % 3 = 0, {HEADERS}, null) headers",
        "timestamp_millis(1700000000000 + id) timestamp",
    )
    save(written, root, **{"topic": "t", "compression.type": codec})
    found = load(root, subscribe="t", includeHeaders="true")
    columns = ["cast(key as string) key", "cast(value as string) value", "headers", "timestamp"]
    as_written = written.selectExpr("key", "value", "headers", "timestamp")
    assert found.count() == 5000
    assert found.selectExpr(*columns).exceptAll(as_written).isEmpty()
    codecs = set()
    for log in root.glob("t-*/*.log"):
        codecs |= set(scan_batches(log.read_bytes(), file=str(log)).batches["attributes"] & 7)
    assert codecs == {CODECS[codec]}


def test_columns_topic_and_partition_choose_topic_and_partition(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path
) -> None:
    log_dir = LogDir.create(root)
    log_dir.create_topic("even", partitions=2)
    rows = spark.range(0, 1000, 1, 2).selectExpr(
        "if(id % 2 = 0, 'even', 'made') topic",
        "cast(if(id % 2 = 0, 1, null) as int) partition",
        "cast(id as string) value",
        "id unused",
    )
    save(rows, root)
    counts = {
        (row.topic, row.partition): row["count"] for row in load(root).groupBy("topic", "partition").count().collect()
    }
    assert counts == {("even", 1): 500, ("made", 0): 500}


def test_copied_topic_keeps_records_partitions_and_timestamps(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path, kafka_fixtures: Path
) -> None:
    source = load(kafka_fixtures / "cars", includeHeaders="true")
    save(source, root, topic="copy")
    columns = ["key", "value", "partition", "timestamp", "headers"]
    assert [tuple(row) for row in load(root, includeHeaders="true").orderBy("timestamp").select(columns).collect()] == [
        tuple(row) for row in source.orderBy("timestamp").select(columns).collect()
    ]


def test_keyed_rows_stay_in_order_over_many_tasks_and_appends(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path
) -> None:
    LogDir.create(root).create_topic("t", partitions=4)
    for start in (0, 2000):
        rows = spark.range(start, start + 2000, 1, 4).selectExpr(
            "cast(id % 9 as string) key", "cast(id as string) value"
        )
        save(rows, root, topic="t")
    rows = (
        load(root)
        .orderBy("partition", "offset")
        .selectExpr("cast(key as string)", "cast(cast(value as string) as int) value")
        .collect()
    )
    for key in range(9):
        values = [row.value for row in rows if row.key == str(key)]
        assert values == list(range(4000))[key:2000:9] + [v for v in range(2000, 4000) if v % 9 == key]


def test_relative_path_and_file_uri_name_same_root(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path
) -> None:
    import os

    rows = spark.range(3).selectExpr("cast(id as string) value")
    save(rows, os.path.relpath(root), topic="t")
    save(rows, f"file://{root}", topic="t")
    assert load(f"file:{root}").count() == 6


def test_write_without_rows_creates_topic_without_records(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path
) -> None:
    save(spark.range(0).selectExpr("cast(id as string) value"), root, topic="t")
    assert LogDir.open(root).topics() == ("t",)
    assert load(root).count() == 0


@pytest.mark.parametrize("flush", ["fsync", pytest.param("os", marks=pytest.mark.full)])
def test_write_with_id_and_version_is_made_once(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path, flush: str
) -> None:
    rows = spark.range(500).selectExpr("cast(id as string) value")
    for version, count in ((3, 10), (3, 500), (4, 7)):
        save(rows.limit(count), root, topic="t", txnAppId="nightly", txnVersion=version, flush=flush)
    with pytest.raises(PySparkException, match=r"version 2 .* is below the last committed version 4, committed at"):
        save(rows, root, topic="t", txnAppId="nightly", txnVersion=2, flush=flush)
    save(rows, root, topic="t", txnAppId="nightly", txnVersion=2, txnLowerVersion="skip", flush=flush)
    assert load(root).count() == 17
    versions = [entry.version for entry in LogDir.open(root).history() if entry.operation == "write"]
    assert versions == [4, 3]
    assert list(root.glob("*/*.staged")) == []


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["'x' value"], {}, "topic option required when no 'topic' attribute is present"),
        (["'x' key"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["id value"], {"topic": "t"}, "value attribute unsupported type bigint. value must be a(n) string or binary"),
        (
            ["'x' value"],
            {"topic": "t", "compression": "zstd"},
            "unknown option 'compression' of kafkalog: did you mean compression.type",
        ),
        (["'x' value"], {"topic": "a/b"}, "topic name 'a/b' is invalid"),
        (["'x' value"], {"topic": "t", "batch.size": "0"}, "option batch.size has the bad value '0'"),
        (["'x' value"], {"topic": "t", "flush": "never"}, "expected one of fsync, os"),
    ],
)
def test_write_that_cannot_be_planned_is_refused(
    spark: SparkSession, root: Path, columns: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        save(spark.range(3).selectExpr(*columns), root, **options)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert not root.exists() or LogDir.open(root).topics() == ()


def test_invalid_row_fails_job_and_leaves_no_record(
    spark: SparkSession, load: Callable[..., DataFrame], root: Path
) -> None:
    save(spark.range(1).selectExpr("'first' value"), root, topic="t")
    # One task: another one could still be at work, and be killed, after Spark has told the writer to abort.
    rows = spark.range(0, 4, 1, 1).selectExpr("'x' value", "if(id = 3, null, 't') topic")
    with pytest.raises(PythonException, match="contains a null topic") as caught:
        save(rows, root)
    assert "Traceback" not in str(caught.value)
    assert load(root).count() == 1
    assert list(root.glob("*/*.staged")) == []


@pytest.mark.parametrize("mode", ["overwrite", "ignore", "errorifexists"])
def test_modes_other_than_append_are_refused(spark: SparkSession, root: Path, mode: str) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(AnalysisException, match=r"mode append|UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        rows.write.format("kafkalog").mode(mode).option("topic", "t").save(str(root))


def test_write_into_broker_directory_is_refused(spark: SparkSession, kafka_fixtures: Path) -> None:
    with pytest.raises(AnalysisException, match="is a Kafka broker's log directory"):
        save(spark.range(3).selectExpr("cast(id as string) value"), kafka_fixtures / "cars", topic="cars")
