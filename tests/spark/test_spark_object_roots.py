"""Roots in an object store through Spark, on S3Proxy: batch reads and writes, streams, groups, transactions, SQL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from http_relay import HttpRelay
from pyspark.sql import DataFrame, SparkSession
from s3_proxy import S3Proxy

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.object_store.address import StoreAddress

pytestmark = pytest.mark.spark

SECONDS_MAX = 120
T0_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Place:
    """A root, and the options that reach it."""

    url: str
    options: dict[str, str]

    def open(self) -> LogDir:
        return LogDir.open_or_create(StoreAddress.parse(self.url, self.options))

    def load(self, spark: SparkSession, **options: object) -> DataFrame:
        return spark.read.format("kafkalog").options(**self.options, **options).load(self.url)

    def stream(self, spark: SparkSession, **options: object) -> DataFrame:
        return spark.readStream.format("kafkalog").options(**self.options, **options).load(self.url)

    def save(self, frame: DataFrame, **options: object) -> None:
        frame.write.format("kafkalog").mode("append").options(**self.options, **options).save(self.url)

    def run(self, frame: DataFrame, checkpoint: Path, **options: object) -> None:
        """A query into this root that ends with what is there."""
        writer = frame.writeStream.format("kafkalog").options(**self.options, **options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(self.url)
        assert query.awaitTermination(SECONDS_MAX)
        assert query.exception() is None

    def values(self, topic: str) -> list[int]:
        return sorted(int(value) for value in self.open().read(topic)["value"].to_pylist())


@pytest.fixture
def place(s3_proxy: S3Proxy) -> Place:
    return Place(f"{s3_proxy.new_location().url}/log", s3_proxy.options())


@pytest.fixture
def filled(place: Place) -> Place:
    """Topic t with 100 and 20 records, a second apart from T0_MS on; topic u with 10."""
    log_dir = place.open()
    log_dir.create_topic("t", partitions=2)
    for partition, count in ((0, 100), (1, 20)):
        log_dir.append("t", records(count), partition=partition)
    log_dir.append("u", records(10))
    return place


def records(count: int) -> pa.Table:
    times = pa.array([T0_MS + 1000 * number for number in range(count)], pa.timestamp("ms", "UTC"))
    return pa.table({"value": [str(number) for number in range(count)], "timestamp": times})


def numbers(spark: SparkSession, start: int, end: int, tasks: int = 2) -> DataFrame:
    return spark.range(start, end, 1, tasks).selectExpr("cast(id % 17 as string) key", "cast(id as string) value")


@pytest.mark.parametrize("count", [20, 200_000], ids=["inside the commit", "in objects"])
def test_written_rows_are_read_back_in_the_order_of_their_keys(spark: SparkSession, place: Place, count: int) -> None:
    place.open().create_topic("t", partitions=3)
    for start in (0, count):
        place.save(numbers(spark, start, start + count, 4), topic="t")
    rows = place.load(spark).selectExpr(
        "partition", "offset", "cast(key as string)", "cast(cast(value as string) as int) v"
    )
    assert rows.count() == 2 * count
    assert rows.select("partition", "offset").distinct().count() == 2 * count
    ordered = rows.filter("key = '5'").orderBy("partition", "offset").collect()
    expected = [value for value in range(2 * count) if value % 17 == 5]
    assert [row.v for row in ordered] == expected


def test_topics_offsets_and_times_choose_rows(spark: SparkSession, filled: Place) -> None:
    assert filled.load(spark, subscribe="t").count() == 120
    assert filled.load(spark, subscribePattern="[tu]").count() == 130
    assert filled.load(spark, assign='{"t": [1]}').count() == 20
    ranges = {"startingOffsets": '{"t": {"0": 10, "1": -2}}', "endingOffsets": '{"t": {"0": 15, "1": -1}}'}
    found = filled.load(spark, subscribe="t", **ranges).groupBy("partition").count().collect()
    assert {row.partition: row["count"] for row in found} == {0: 5, 1: 20}
    since = filled.load(
        spark, subscribe="t", startingTimestamp=str(T0_MS + 90_000), startingOffsetsByTimestampStrategy="latest"
    )
    assert [row.offset for row in since.collect()] == list(range(90, 100))


def test_stream_reads_what_is_there_and_what_comes_in_limited_batches(
    spark: SparkSession, filled: Place, tmp_path: Path
) -> None:
    target = Place(f"{filled.url}-copy", filled.options)
    source = filled.stream(spark, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=50).select("value")
    target.run(source, tmp_path / "checkpoint", topic="copy")
    versions = [each.version for each in target.open().history(newest_first=False) if each.version is not None]
    assert versions == [0, 1, 2]
    filled.open().append("t", pa.table({"value": ["1000", "1001"]}))
    target.run(source, tmp_path / "checkpoint", topic="copy")
    assert target.values("copy") == sorted([*range(100), *range(20), 1000, 1001])


def test_stream_without_its_last_commit_in_the_checkpoint_repeats_no_row(
    spark: SparkSession, filled: Place, tmp_path: Path
) -> None:
    target = Place(f"{filled.url}-copy", filled.options)
    source = filled.stream(spark, subscribe="t", startingOffsets="earliest").select("value")
    target.run(source, tmp_path / "checkpoint", topic="copy")
    before = target.values("copy")
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    target.run(source, tmp_path / "checkpoint", topic="copy")
    assert target.values("copy") == before


def test_group_starts_a_query_and_follows_it(spark: SparkSession, filled: Place, tmp_path: Path) -> None:
    filled.open().group("g").commit({("t", 0): 95, ("t", 1): 20})
    target = Place(f"{filled.url}-copy", filled.options)
    source = filled.stream(spark, subscribe="t", **{"startingOffsets": "group", "kafka.group.id": "g"})
    target.run(source.select("value"), tmp_path / "checkpoint", topic="copy")
    assert target.values("copy") == list(range(95, 100))
    assert [each.lag for each in filled.open().group("g").lag()] == [0, 0]


def test_batch_write_with_transaction_is_committed_once(spark: SparkSession, place: Place) -> None:
    for version in (1, 1, 2, 1):
        place.save(numbers(spark, 0, 10), topic="t", txnAppId="nightly", txnVersion=version)
    assert place.values("t") == sorted([*range(10), *range(10)])
    assert place.open().last_version("nightly") == 2


def test_sql_table_is_read_and_inserted_into(spark: SparkSession, filled: Place) -> None:
    options = ", ".join(f"{name} '{value}'" for name, value in {**filled.options, "subscribe": "t"}.items())
    spark.sql(f"CREATE TABLE in_store USING kafkalog OPTIONS (path '{filled.url}', {options})")
    try:
        assert spark.sql("SELECT count(*) FROM in_store WHERE partition = 1").first()[0] == 20
        shown = spark.sql("EXPLAIN EXTENDED SELECT * FROM in_store").first()[0]
        assert filled.options["storeSecretKey"] not in shown
    finally:
        spark.sql("DROP TABLE in_store")


def test_requests_of_writes_and_reads_are_as_few_as_promised(
    spark: SparkSession, place: Place, s3_proxy: S3Proxy
) -> None:
    """Of a commit: an object each task and the commit. A small one: the commit alone."""
    log_dir = place.open()
    log_dir.create_topic("t", partitions=2)
    with HttpRelay(s3_proxy.endpoint) as relay:
        relayed = Place(place.url, s3_proxy.options(relay.endpoint))
        for rows, tasks, puts_max in ((40, 4, 1), (400_000, 4, 5)):
            relay.reset()
            relayed.save(numbers(spark, 0, rows, tasks), topic="t")
            print(f"write of {rows} rows by {tasks} tasks: {dict(relay.requests)}")
            assert relay.requests["PUT"] <= puts_max
        small = relayed.open()
        relay.reset()
        small.append("t", pa.table({"value": ["x"]}))
        print(f"append: {dict(relay.requests)}")
        assert relay.requests["PUT"] == 1
        assert relay.requests["GET"] + relay.requests["HEAD"] <= 1
