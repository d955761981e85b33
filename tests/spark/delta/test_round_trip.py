"""Tables to topics and back: each change arrives once and in order, deleted rows disappear, values stay equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.delta.delta_to_topic import ChangeRecords, DeltaToTopic
from pyspark_kafkalog.delta.topic_to_delta import TopicToDelta
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.tools.main import main

pytestmark = [pytest.mark.spark, pytest.mark.full]

QUERY_SECONDS_MAX = 120
COLUMNS = "region STRING, id LONG, name STRING, at TIMESTAMP, price DECIMAL(10, 2), data BINARY, parts ARRAY<INT>"
FEED = "_change_type STRING, _commit_version LONG, _commit_timestamp TIMESTAMP"


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=2, configs={"cleanup.policy": "compact"})
    return log_dir


def changes_to_topic(spark: SparkSession, tmp_path: Path, **options: object) -> None:
    query = DeltaToTopic(
        table=str(tmp_path / "source"),
        path=str(tmp_path / "log"),
        topic="t",
        checkpoint=str(tmp_path / "out"),
        **options,  # type: ignore[arg-type]
    ).start(spark)
    assert query.awaitTermination(QUERY_SECONDS_MAX)


def topic_to_copy(spark: SparkSession, tmp_path: Path, **options: object) -> DataFrame:
    query = TopicToDelta(
        path=str(tmp_path / "log"),
        topic="t",
        table=str(tmp_path / "copy"),
        checkpoint=str(tmp_path / "in"),
        mode="upsert",
        **options,  # type: ignore[arg-type]
    ).start(spark)
    assert query.awaitTermination(QUERY_SECONDS_MAX)
    return spark.read.format("delta").load(str(tmp_path / "copy"))


def records(log_dir: LogDir) -> list[tuple[str, str | None]]:
    """Key and value of all records, by partition and offset."""
    log_dir.refresh()
    table = log_dir.read("t", columns=["key", "value"])
    pairs = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    return [(key.decode(), None if value is None else value.decode()) for key, value in pairs]


def test_table_copied_through_topic_equals_source_after_all_kinds_of_changes(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path
) -> None:
    table = f"delta.`{tmp_path / 'source'}`"
    keys = {"keys": ["region", "id"]}
    schema = {"schema": COLUMNS, "key_schema": "region STRING, id LONG"}
    spark.sql(f"CREATE TABLE {table} ({COLUMNS}) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(
        f"INSERT INTO {table} SELECT 'eu', id, concat('näme \"', id), timestamp_micros(1767225600123456 + id), "
        "id / 4, cast(string(id) AS BINARY), if(id % 2 = 0, array(int(id)), null) FROM range(20)"
    )
    changes_to_topic(spark, tmp_path, **keys)  # the rows that are there
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT id FROM range(25)) s ON t.id = s.id "
        "WHEN MATCHED AND s.id < 5 THEN UPDATE SET name = 'new', at = null "
        "WHEN MATCHED AND s.id = 7 THEN UPDATE SET region = 'us' "  # the key changes
        "WHEN MATCHED AND s.id >= 15 THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (region, id) VALUES ('us', s.id)"
    )
    spark.sql(f"DELETE FROM {table} WHERE id = 3")
    changes_to_topic(spark, tmp_path, **keys)
    copy = topic_to_copy(spark, tmp_path, **schema)
    source = spark.read.format("delta").load(str(tmp_path / "source"))
    assert sorted(map(str, copy.select(*source.columns).collect())) == sorted(map(str, source.collect()))
    found = records(log_dir)
    by_key = [(json.loads(key), None if value is None else json.loads(value)) for key, value in found]
    assert [value for key, value in by_key if key == {"region": "eu", "id": 7}][1:] == [None]
    of_three = [value["name"] if value else None for key, value in by_key if key["id"] == 3]
    assert of_three == ['näme "3', "new", None]
    assert len(found) == 20 + (5 + 2 + 5 + 5) + 1


def test_command_prints_the_version_that_it_read_and_the_offsets_that_it_wrote(
    spark: SparkSession, log_dir: LogDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = f"delta.`{tmp_path / 'source'}`"
    spark.sql(f"CREATE TABLE {table} (id LONG) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(f"INSERT INTO {table} SELECT id FROM range(3)")
    places = [f"--{option}={tmp_path / name}" for option, name in (("table", "source"), ("path", "log"))]
    command = ["delta-to-topic", "--topic", "new", "--key", "id", f"--checkpoint={tmp_path / 'out'}", *places]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{tmp_path}/source: changes up to version 1\nnew-0: offsets 0 to 2\n"
    assert main(command) == 0
    assert capsys.readouterr().out == f"{tmp_path}/source: changes up to version 1\nnew: no new records\n"


def test_changes_of_one_version_become_last_state_of_each_key(spark: SparkSession) -> None:
    feed = spark.createDataFrame(
        [
            ("overwritten", "1", "delete", 1),
            ("overwritten", "2", "insert", 1),
            ("renamed", "1", "update_preimage", 1),
            ("anew", "1", "update_postimage", 1),
            ("gone", "1", "delete", 1),
            ("gone", "0", "delete", 1),  # a key that was there twice
            ("kept", "1", "insert", 1),
            ("kept", "2", "insert", 1),
            ("later", "1", "insert", 2),
            ("later", "1", "delete", 3),
            ("later", "2", "insert", 10),
        ],
        "k STRING, v STRING, _change_type STRING, _commit_version LONG",
    ).selectExpr("*", "timestamp_seconds(0) _commit_timestamp")
    shape = ChangeRecords.of(feed.schema, ["k"], value_column="v")
    found: dict[str, list[str | None]] = {}
    for row in shape.apply(feed).selectExpr("string(key) key", "string(value) value").collect():
        found.setdefault(row.key, []).append(row.value)
    assert sorted(found.pop("kept"), key=str) == ["1", "2"]
    assert found == {"overwritten": ["2"], "renamed": [None], "anew": ["1"], "gone": [None], "later": ["1", None, "2"]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": []}, "a key is needed"),
        ({"keys": ["nothing"]}, "no column nothing; it has: k, v, n"),
        ({"keys": ["k"], "value_column": "n"}, "column n is bigint"),
        ({"keys": ["k"], "timestamp_column": "n"}, "column n is bigint"),
        ({"keys": ["k"], "value_column": "v", "value_columns": ["n"]}, "give one of the two"),
    ],
)
def test_columns_that_cannot_make_a_record_are_refused(
    spark: SparkSession, options: dict[str, object], said: str
) -> None:
    feed = spark.createDataFrame([], f"k STRING, v STRING, n LONG, {FEED}")
    with pytest.raises(InvalidOptionError, match=said):
        ChangeRecords.of(feed.schema, **options)  # type: ignore[arg-type]
