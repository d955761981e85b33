"""Options of the batch source through Spark: offsets, timestamps, splits, schemas, SQL tables, named errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir

pytestmark = pytest.mark.spark

PER_PARTITION = 1000
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic t: two partitions of 1000 records in batches of some 4 KiB, one record each 10 ms. Topic u: one, empty."""
    path = tmp_path_factory.mktemp("source") / "log"
    log_dir = LogDir.create(path)
    log_dir.create_topic("t", partitions=2, configs={"index.interval.bytes": "1024"})
    log_dir.create_topic("u", partitions=1)
    for partition in range(2):
        for first in range(0, PER_PARTITION, 50):
            numbers = range(first, first + 50)
            timestamps = [(START_MS + 10 * number) * 1000 for number in numbers]
            table = pa.table(
                {
                    "key": [f"{number}" for number in numbers],
                    "value": [f"{number}".zfill(80) for number in numbers],
                    "timestamp": pa.array(timestamps, pa.timestamp("us", "UTC")),
                }
            )
            log_dir.append("t", table, partition=partition)
    return path


def spans(frame: DataFrame) -> dict[int, tuple[int, int]]:
    """First and last offset of each partition."""
    rows = (
        frame.groupBy("partition")
        .agg({"offset": "min"})
        .join(frame.groupBy("partition").agg({"offset": "max"}), "partition")
    )
    return {row["partition"]: (row["min(offset)"], row["max(offset)"]) for row in rows.collect()}


def offsets(**by_partition: int) -> str:
    return json.dumps({"t": {name[1:]: offset for name, offset in by_partition.items()}})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {0: (0, 999), 1: (0, 999)}),
        ({"assign": '{"t":[1]}'}, {1: (0, 999)}),
        ({"subscribePattern": "^t$"}, {0: (0, 999), 1: (0, 999)}),
        (
            {"startingOffsets": offsets(p0=10, p1=-2), "endingOffsets": offsets(p0=20, p1=-1)},
            {0: (10, 19), 1: (0, 999)},
        ),
        ({"startingTimestamp": START_MS + 9985}, {0: (999, 999), 1: (999, 999)}),
        ({"endingTimestamp": START_MS + 15}, {0: (0, 1), 1: (0, 1)}),
        (
            {
                "startingOffsetsByTimestamp": offsets(p0=START_MS + 20, p1=START_MS + 9990),
                "endingOffsets": offsets(p0=5, p1=-1),
            },
            {0: (2, 4), 1: (999, 999)},
        ),
        ({"startingTimestamp": START_MS + 99_999, "startingOffsetsByTimestampStrategy": "latest"}, {}),
        ({"startingOffsets": offsets(p0=990, p1=2000), "failOnDataLoss": "false"}, {0: (990, 999)}),
        ({"kafka.bootstrap.servers": "ignored:9092", "minPartitions": 5}, {0: (0, 999), 1: (0, 999)}),
    ],
)
def test_offset_options_choose_expected_ranges(
    load: Callable[..., DataFrame], root: Path, options: dict[str, object], expected: object
) -> None:
    chosen = options if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "t", **options}
    assert spans(load(root, **chosen).select("partition", "offset")) == expected


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 2),
        ({"minPartitions": 6}, 6),
        ({"maxRecordsPerPartition": 300}, 8),
        ({"maxBytesPerPartition": "40k"}, 6),
        ({"subscribe": "u"}, 1),
    ],
)
def test_split_options_choose_number_of_tasks_and_keep_rows(
    load: Callable[..., DataFrame], root: Path, options: dict[str, object], tasks: int
) -> None:
    frame = load(root, **{"subscribe": "t", **options}).select("partition", "offset")
    assert frame.rdd.getNumPartitions() == tasks
    rows = [tuple(row) for row in frame.collect()]
    expected = [] if "subscribe" in options else [(p, o) for p in range(2) for o in range(PER_PARTITION)]
    assert rows == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscrib": "t"}, "unknown option 'subscrib' of kafkalog: did you mean subscribe or subscribePattern?"),
        ({"minPartitions": "0"}, "option minPartitions has the bad value '0': expected a whole number from 1"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "only one of the options subscribe, subscribePattern, assign"),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"subscribe": "orders"}, "no topic 'orders' in this log directory: existing topics: t, u"),
        ({"assign": '{"t":[7]}'}, "no partition t-7; topic t has partitions 0, 1"),
        ({"subscribe": "t", "startingOffsets": offsets(p0=1)}, "must name exactly the partitions that are read"),
        ({"subscribe": "t", "startingTimestamp": START_MS * 2}, "no record has the timestamp"),
        (
            {"subscribe": "t", "startingOffsets": offsets(p0=0, p1=1001)},
            "t-1: startingOffsets 1001 is beyond the latest offset, the high watermark 1000",
        ),
    ],
)
def test_invalid_options_fail_with_name_and_reason(
    load: Callable[..., DataFrame], root: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(root, **options).collect()
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_path_without_log_directory_is_refused(load: Callable[..., DataFrame], tmp_path: Path) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(tmp_path / "nowhere").collect()
    sentence = f"cannot open the log directory: No such file or directory: '{tmp_path}/nowhere'"
    assert f"pyspark_kafkalog.errors.LogDirError: {sentence}\n SQLSTATE" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_schema_of_fewer_columns_in_another_order_is_read(spark: SparkSession, root: Path) -> None:
    reader = (
        spark.read.format("kafkalog")
        .option("subscribe", "t")
        .schema("value binary, offset bigint, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    )
    row = reader.load(str(root)).where("offset = 7").first()
    assert row.asDict() == {"value": bytearray(b"7".zfill(80)), "offset": 7, "headers": None}


def test_schema_with_unknown_column_or_other_type_is_refused(spark: SparkSession, root: Path) -> None:
    with pytest.raises(AnalysisException, match="unknown column 'valu'; allowed columns: key binary, value binary"):
        spark.read.format("kafkalog").schema("valu binary").load(str(root)).collect()
    with pytest.raises(AnalysisException, match="column value as string; allowed columns"):
        spark.read.format("kafkalog").schema("value string").load(str(root)).collect()


@pytest.fixture
def table(spark: SparkSession, root: Path) -> Iterator[str]:
    spark.sql(
        f"CREATE TABLE orders USING kafkalog OPTIONS (path '{root}', subscribe 't', "
        f"""startingOffsets '{offsets(p0=990, p1=995)}', includeHeaders 'true')"""
    )
    yield "orders"
    spark.sql("DROP TABLE orders")


def test_sql_table_keeps_its_options(spark: SparkSession, table: str) -> None:
    assert spark.sql(f"SELECT count(*), min(offset), count(headers) FROM {table}").first() == (15, 990, 0)
    assert spark.table(table).columns[-1] == "headers"
    assert spark.read.option("minPartitions", "4").table(table).rdd.getNumPartitions() == 4
    with pytest.raises(AnalysisException, match="option path is missing"):
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")


def test_sql_insert_with_path_and_topic_appends_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    LogDir.create(path).create_topic("t", partitions=1)
    spark.sql(f"CREATE TABLE inserted USING kafkalog OPTIONS (path '{path}', subscribe 't')")
    try:
        spark.sql(
            f"INSERT INTO inserted WITH (path = '{path}', topic = 't') (key, value) "
            "SELECT cast(id AS STRING)::BINARY, cast('v' AS BINARY) FROM range(3)"
        )
        assert spark.sql("SELECT count(*), count(timestamp) FROM inserted").first() == (3, 3)
    finally:
        spark.sql("DROP TABLE inserted")


def test_temporary_view_reads_topic(spark: SparkSession, root: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING kafkalog OPTIONS (path '{root}', subscribe 't')")
    assert spark.sql("SELECT count(*) FROM v").first() == (2000,)


def test_damaged_batch_fails_read_with_file_and_position(
    load: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    (log,) = (copy / "t-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    with pytest.raises(PythonException, match=r"t-0/0{20}\.log at byte 17: expected CRC-32C"):
        load(copy, subscribe="t").collect()


def test_stream_into_a_table_of_the_catalog_needs_path_and_topic_and_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "log")
    LogDir.create(path).create_topic("t", partitions=1)
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    values = stream.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")

    def to_table(checkpoint: str, **options: str) -> None:
        writer = values.writeStream.trigger(once=True).option("checkpointLocation", str(tmp_path / checkpoint))
        writer.options(**options).toTable("streamed").awaitTermination()

    spark.sql(f"CREATE TABLE streamed USING kafkalog OPTIONS (path '{path}', subscribe 't')")
    try:
        with pytest.raises(StreamingQueryException, match=r"INSERT INTO t WITH.*writeTo.*toTable"):
            to_table("without")
        to_table("with", path=path, topic="t")
        assert spark.table("streamed").count() == 1
    finally:
        spark.sql("DROP TABLE streamed")
