"""Topics into Delta tables: each record once, bad records found, upserts that keep the latest record of a key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.delta.topic_to_delta import BAD, DELETED, RECORD, RecordShape, TopicToDelta, latest_by_key
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.tools.main import main

pytestmark = pytest.mark.spark

QUERY_SECONDS_MAX = 120


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=3)
    return log_dir


def put(log_dir: LogDir, values: Mapping[str | None, str | None]) -> None:
    keys = pa.array(list(values), pa.string())
    log_dir.append("t", pa.table({"key": keys, "value": pa.array(list(values.values()), pa.string())}), flush="os")


def run(spark: SparkSession, tmp_path: Path, **options: object) -> DataFrame:
    """Runs the query over what there is; gives the table."""
    settings = {
        "path": str(tmp_path / "log"),
        "topic": "t",
        "table": str(tmp_path / "table"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    query = TopicToDelta(**{**settings, **options}).start(spark)  # type: ignore[arg-type]
    assert query.awaitTermination(QUERY_SECONDS_MAX)
    return spark.read.format("delta").load(settings["table"])


def forget_last_batch(checkpoint: Path) -> None:
    """As a driver leaves it that was killed between the table's commit and Spark's."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def versions(spark: SparkSession, table: Path) -> list[str]:
    """The operations of the table's versions, oldest first."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").orderBy("version").collect()
    return [row.operation for row in history]


def test_raw_append_has_source_columns_and_writes_replayed_batch_once(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    put(log_dir, {"a": "1", "b": "2", None: "3"})
    run(spark, tmp_path)
    forget_last_batch(tmp_path / "checkpoint")
    put(log_dir, {"c": "4"})
    table = run(spark, tmp_path)
    expected = spark.read.format("kafkalog").option("subscribe", "t").load(str(tmp_path / "log"))
    assert table.schema == expected.schema
    assert sorted(map(str, table.collect())) == sorted(map(str, expected.collect()))
    assert versions(spark, tmp_path / "table") == ["CREATE TABLE", "WRITE", "WRITE"]


def test_command_prints_what_it_wrote_and_runs_few_tasks(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.conf.unset("spark.databricks.delta.snapshotPartitions")
    for count in (200, 3):
        log_dir.append("t", pa.table({"value": [f"{number}" for number in range(count)]}), partition=1, flush="os")
        options = {"path": "log", "table": "table", "checkpoint": "checkpoint"}
        places = [f"--{option}={tmp_path / name}" for option, name in options.items()]
        jobs = spark.sparkContext._jsc.sc().statusStore()
        before = jobs.jobsList(None).size()
        assert main(["topic-to-delta", "--topic", "t", *places]) == 0
        found = [jobs.jobsList(None).apply(at) for at in range(jobs.jobsList(None).size() - before)]
        assert 2 <= sum(job.numTasks() - job.numSkippedTasks() for job in found) <= 20
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "t-1: up to offset 199",
        f"{tmp_path}/table: version 1; rows: 200 appended",
        "t-1: offsets 200 to 202",
        f"{tmp_path}/table: version 2; rows: 3 appended",
    ]
    assert main(["topic-to-delta", "--topic", "t", *places]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "t: no new records",
        f"{tmp_path}/table: version 2; rows: none written",
    ]


@pytest.mark.full
def test_schema_makes_columns_of_values_and_bad_records_go_to_quarantine_once(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    good = {"1": '{"id": 1, "at": "2026-01-01T00:00:00.123456Z", "tags": ["x"]}', "2": None, "3": '{"other": 1}'}
    bad = {"4": '{"id": "no"}', "5": "{", "6": "", "x": '{"id": 1}'}
    bad |= {"7": '{"id": 1}{"id": 2}', "8": '{"id": 1},{"id": 2}', "9": '{"id": 1} ]', "10": '{"id": 1} no'}
    put(log_dir, {**good, **bad})
    log_dir.append("t", pa.table({"key": ["11"], "value": [b'{"tags": ["\xff"]}']}), flush="os")
    options = {
        "schema": "id LONG, at TIMESTAMP, tags ARRAY<STRING>",
        "key_schema": "number INT",
        "metadata_columns": True,
        "bad_records": "quarantine",
        "bad_records_table": str(tmp_path / "bad"),
    }
    run(spark, tmp_path, **options)
    forget_last_batch(tmp_path / "checkpoint")
    table = run(spark, tmp_path, **options)
    assert table.columns == ["number", "id", "at", "tags", "_partition", "_offset", "_timestamp"]
    rows = table.orderBy("number").selectExpr("number", "id", "cast(at as string) at", "tags").collect()
    assert rows == [
        Row(number=1, id=1, at="2026-01-01 00:00:00.123456", tags=["x"]),
        Row(number=2, id=None, at=None, tags=None),
        Row(number=3, id=None, at=None, tags=None),
    ]
    aside = spark.read.format("delta").load(str(tmp_path / "bad"))
    found = {row.key: row.reason for row in aside.selectExpr("cast(key as string) key", "reason").collect()}
    assert set(found) == {*bad, "11"}
    assert aside.count() == len(bad) + 1
    assert found["x"] == "its key is no struct<number:int>"


@pytest.mark.full
def test_bad_record_fails_query_with_partition_and_offset_and_leaves_table_unchanged(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    put(log_dir, {"a": '{"id": 1}'})
    log_dir.append("t", pa.table({"value": ["nonsense"]}), partition=1)
    offset = log_dir.partition("t", 1).high_watermark - 1
    with pytest.raises(StreamingQueryException, match=f"bad record in t-1 at offset {offset}: its value is no JSON"):
        run(spark, tmp_path, schema="id LONG")
    assert spark.read.format("delta").load(str(tmp_path / "table")).isEmpty()
    assert run(spark, tmp_path, schema="id LONG", bad_records="skip").collect() == [Row(key="a", id=1)]


@pytest.mark.full
def test_upserts_keep_latest_value_of_each_key_and_delete_by_tombstone_also_on_replay(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    options = {
        "mode": "upsert",
        "schema": "id LONG, name STRING",
        "key_schema": "id LONG",
        "table_properties": {"delta.enableChangeDataFeed": "true"},
        "source_options": {"maxOffsetsPerTrigger": "11"},
    }
    expected: dict[int, str] = {}
    for turn in range(3):
        for key in range(turn, 8):
            is_tombstone = (key + turn) % 3 == 0
            put(log_dir, {str(key): None if is_tombstone else f'{{"id": {key}, "name": "{turn}-{key}"}}'})
            expected[key] = f"{turn}-{key}"
            if is_tombstone:
                del expected[key]
    run(spark, tmp_path, **options)
    before = versions(spark, tmp_path / "table")
    forget_last_batch(tmp_path / "checkpoint")
    table = run(spark, tmp_path, **options)
    assert {row.id: row.name for row in table.collect()} == expected
    assert table.count() == len(expected)
    assert versions(spark, tmp_path / "table") == before
    assert before[1:] == ["MERGE"] * 2
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    assert changes.load(str(tmp_path / "table")).where("_change_type = 'insert'").count() >= len(expected)


@pytest.mark.full
def test_checkpoint_restored_to_an_older_state_fails_and_names_the_last_batch_and_its_time(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    for number in range(3):
        put(log_dir, {str(number): f'{{"id": {number}}}'})
        run(spark, tmp_path, schema="id LONG")
    for name in ("commits", "offsets"):
        for number in (1, 2):
            (tmp_path / "checkpoint" / name / str(number)).unlink()
            (tmp_path / "checkpoint" / name / f".{number}.crc").unlink(missing_ok=True)
    put(log_dir, {"9": '{"id": 9}'})
    with pytest.raises(StreamingQueryException, match=r"batch 1 of query .* below the last committed batch 2.* at 2"):
        run(spark, tmp_path, schema="id LONG")
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 3


@pytest.mark.full
def test_older_batch_of_same_query_does_not_undo_newer_one(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    """A driver that was stopped for long within its batch does this, while another one continued."""
    from pyspark_kafkalog.delta.delta_target import BatchIdentity, DeltaTarget

    target = DeltaTarget(str(tmp_path / "table"))
    rows = {
        number: spark.createDataFrame([("a", number, False)], f"key STRING, n INT, {DELETED} BOOLEAN")
        for number in range(3)
    }
    target.create(spark, rows[0].drop(DELETED).schema)
    for number in (0, 2, 1):
        target.merge_by_key(rows[number], ["key"], DELETED, BatchIdentity("query", number))
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert table.collect() == [Row(key="a", n=2)]
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_latest_record_of_key_is_by_offset_within_partition_and_by_time_between_partitions(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    def put_in(partition: int, key: str, value: str, second: int) -> None:
        at = pa.array([second * 1000], pa.timestamp("ms"))
        log_dir.append("t", pa.table({"key": [key], "value": [value], "timestamp": at}), partition=partition)

    put_in(0, "a", "1", 50)
    put_in(0, "a", "2", 10)  # later by offset, earlier by time
    put_in(1, "b", "3", 20)
    put_in(2, "b", "4", 10)
    records = spark.read.format("kafkalog").option("subscribe", "t").load(str(log_dir.path))
    rows = latest_by_key(RecordShape.parse("v INT").apply(records.withColumn("value", records.value)), ["key"])
    raw = latest_by_key(RecordShape.parse(None).apply(records), ["key"])
    assert {row.key: row.value for row in raw.collect()} == {b"a": b"2", b"b": b"3"}
    assert rows.columns == ["key", "v", DELETED]


def test_key_of_several_columns_with_trailing_text_is_bad_record(spark: SparkSession, log_dir: LogDir) -> None:
    key = '{"a": 1, "b": 2}'
    put(log_dir, {key + behind: '{"id": 1}' for behind in ("", "\n", key, "," + key, "]\n", "x")})
    records = spark.read.format("kafkalog").option("subscribe", "t").load(str(log_dir.path))
    shaped = RecordShape.parse("id LONG", key_schema="a INT, b INT").apply(records)
    good = shaped.filter(f"{BAD} IS NULL").selectExpr(f"string({RECORD}.key) key").collect()
    assert sorted(row.key for row in good) == [key, key + "\n"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema": "id LANG"}, "is no DDL"),
        ({"schema": "a INT, A INT"}, "occurs twice"),
        ({"schema": "INT"}, "has no columns"),
        ({"key_schema": "a INT"}, "need a schema"),
        ({"schema": "_offset INT", "metadata_columns": True}, "metadata columns"),
        ({"bad_records": "quarantine"}, "need a table"),
        ({"bad_records_table": "x"}, "need a table"),
        ({"partition_by": ["nothing"]}, "cannot be partitioned by nothing"),
    ],
)
def test_invalid_options_are_refused_before_table_is_created(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path, options: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        run(spark, tmp_path, **options)
    assert not (tmp_path / "table").exists()


def test_time_beyond_those_of_spark_makes_a_bad_record(spark: SparkSession, log_dir: LogDir, tmp_path: Path) -> None:
    far_ms = 1_700_000_000_000_000_000
    log_dir.create_topic("far", partitions=1, configs={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    times = pa.array([1_700_000_000_000, far_ms], pa.timestamp("ms", "UTC"))
    log_dir.append("far", pa.table({"value": ["near", "far"], "timestamp": times}), flush="os")
    aside = tmp_path / "aside"
    table = run(spark, tmp_path, topic="far", bad_records="quarantine", bad_records_table=str(aside))
    assert [bytes(row.value) for row in table.collect()] == [b"near"]
    (row,) = spark.read.format("delta").load(str(aside)).collect()
    assert (bytes(row.value), row.offset, row.timestamp) == (b"far", 1, None)
    assert row.reason == f"its timestamp, {far_ms} ms, is beyond those of Spark"
    numbers = spark.read.format("kafkalog").option("subscribe", "far").schema("timestamp BIGINT")
    read = numbers.load(str(tmp_path / "log")).orderBy("timestamp").collect()
    assert [row.timestamp for row in read] == [1_700_000_000_000, far_ms]
    whole = spark.read.format("kafkalog").option("subscribe", "far").load(str(tmp_path / "log"))
    with pytest.raises(PythonException, match=r"the record at offset 1 of far-0 has timestamp .* timestamp BIGINT"):
        whole.collect()
