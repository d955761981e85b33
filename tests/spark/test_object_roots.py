"""Roots in an object store through Spark, on S3Proxy: batch reads and writes, streams, groups, transactions, SQL."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from fakes.http_relay import HttpRelay
from kafka_processes.s3_proxy import S3Proxy
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from tiers import rest_full

from pyspark_kafkalog import LogDir, register
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


@pytest.mark.parametrize("count", rest_full([20, 200_000]), ids=["inside the commit", "in objects"])
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


@pytest.mark.full
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


@pytest.mark.full
def test_group_starts_a_query_and_follows_it(spark: SparkSession, filled: Place, tmp_path: Path) -> None:
    filled.open().group("g").commit({("t", 0): 95, ("t", 1): 20})
    target = Place(f"{filled.url}-copy", filled.options)
    source = filled.stream(spark, subscribe="t", **{"startingOffsets": "group", "kafka.group.id": "g"})
    target.run(source.select("value"), tmp_path / "checkpoint", topic="copy")
    assert target.values("copy") == list(range(95, 100))
    assert [each.lag for each in filled.open().group("g").lag()] == [0, 0]


def test_batch_write_with_transaction_is_committed_once(spark: SparkSession, place: Place) -> None:
    for version in (1, 1, 2, 2):
        place.save(numbers(spark, 0, 10), topic="t", txnAppId="nightly", txnVersion=version)
    with pytest.raises(PySparkException, match=r"version 1 .* is below the last committed version 2, committed at"):
        place.save(numbers(spark, 0, 10), topic="t", txnAppId="nightly", txnVersion=1)
    assert place.values("t") == sorted([*range(10), *range(10)])
    assert place.open().last_version("nightly") == 2


@pytest.fixture
def session_settings(spark: SparkSession, s3_proxy: S3Proxy) -> Iterator[dict[str, str]]:
    """Hadoop's settings of the session for the store, which is where SQL tables find them."""
    given = s3_proxy.options()
    settings = {
        "spark.hadoop.fs.s3a.endpoint": given["storeEndpoint"],
        "spark.hadoop.fs.s3a.access.key": given["storeAccessKey"],
        "spark.hadoop.fs.s3a.secret.key": given["storeSecretKey"],
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    register(spark)
    yield settings
    for name in settings:
        spark.conf.unset(name)
    register(spark)


@pytest.mark.full
def test_sql_table_is_read_and_inserted_into_with_credentials_of_session(
    spark: SparkSession, filled: Place, session_settings: dict[str, str], tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE in_store USING kafkalog OPTIONS (path '{filled.url}', subscribe 't')")
    try:
        assert spark.sql("SELECT count(*) FROM in_store WHERE partition = 1").first()[0] == 20
        spark.sql(
            f"INSERT INTO in_store WITH (path = '{filled.url}', topic = 't') (value) "
            "SELECT cast(cast(id AS STRING) AS BINARY) FROM range(3)"
        )
        rows = spark.table("in_store")
        assert rows.count() == 123
        rows.write.parquet(str(tmp_path / "copy"))
        shown = [
            rows.schema.json(),
            *(str(spark.sql(text).collect()) for text in ("EXPLAIN EXTENDED SELECT * FROM in_store",)),
            *(str(spark.sql(f"{text} in_store").collect()) for text in ("DESCRIBE EXTENDED", "SHOW CREATE TABLE")),
            *(each.read_bytes().decode("latin-1") for each in (tmp_path / "copy").glob("*.parquet")),
        ]
    finally:
        spark.sql("DROP TABLE in_store")
    assert len(shown) > 4
    assert not [text for text in shown if filled.options["storeSecretKey"] in text]


def test_sql_table_with_secrets_among_its_options_is_refused(spark: SparkSession, filled: Place) -> None:
    options = ", ".join(f"{name} '{value}'" for name, value in filled.options.items())
    with pytest.raises(AnalysisException, match="key of CREATE TABLE would be stored in clear") as e:
        spark.sql(f"CREATE TABLE in_store USING kafkalog OPTIONS (path '{filled.url}', {options})")
    assert filled.options["storeSecretKey"] not in str(e.value)
    assert not spark.catalog.tableExists("in_store")


@pytest.fixture
def relay(s3_proxy: S3Proxy) -> Iterator[HttpRelay]:
    """Counts the requests that arrive at the store."""
    with HttpRelay(s3_proxy.endpoint) as found:
        yield found


@pytest.fixture
def counted(place: Place, relay: HttpRelay, s3_proxy: S3Proxy) -> Place:
    """The place, with topics t and copy, as reached through the relay."""
    log_dir = place.open()
    log_dir.create_topic("t", partitions=2)
    log_dir.create_topic("copy", partitions=2)
    return Place(place.url, s3_proxy.options(relay.endpoint))


def reads_and_puts(relay: HttpRelay, title: str) -> tuple[int, int]:
    """Requests since the last call: of all kinds but PUT, and PUT."""
    found = Counter(relay.requests)
    relay.reset()
    print(f"{title}: {dict(found)}")
    return found.total() - found["PUT"], found["PUT"]


@pytest.mark.full
def test_commit_of_write_is_one_put_a_task_and_one_more(spark: SparkSession, counted: Place, relay: HttpRelay) -> None:
    """Workers that have written to the root before: opening it is of the plan, and also shows the last commit."""
    for _ in range(2):
        counted.save(numbers(spark, 0, 40, 4), topic="t")
    for rows, tasks, puts in ((40, 4, 1), (100_000, 4, 5)):
        relay.reset()
        counted.save(numbers(spark, 0, rows, tasks), topic="t")
        planned = next(each for each, request in enumerate(relay.log) if request.method == "PUT")
        opening = [request.path.rpartition("/")[2] for request in relay.log[:planned]]
        assert len(opening) == 3
        assert opening[-1] == "kafkalog-start"
        reads, found = reads_and_puts(relay, f"write of {rows} rows by {tasks} tasks")
        assert found == puts
        assert reads - len(opening) <= 2


@pytest.mark.full
def test_first_write_of_a_session_opens_root_twice(spark: SparkSession, counted: Place, relay: HttpRelay) -> None:
    counted.save(numbers(spark, 0, 40, 4), topic="t")
    reads, puts = reads_and_puts(relay, "first write")
    assert reads <= 2 * 8
    assert puts == 1


def test_micro_batch_into_root_is_one_put(
    spark: SparkSession, counted: Place, relay: HttpRelay, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def add(number: int) -> None:
        (tmp_path / "new").write_text(f"{number}\n")
        (tmp_path / "new").rename(source / f"{number}.txt")

    add(0)
    stream = spark.readStream.text(str(source))
    writer = stream.writeStream.format("kafkalog").options(**counted.options, topic="t")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(counted.url)
    try:
        counts = []
        for number in range(1, 7):
            query.processAllAvailable()
            counts.append(reads_and_puts(relay, f"micro-batch {number - 1}"))
            add(number)
    finally:
        query.stop()
    assert counts[0][0] <= 2 * 8
    assert [puts for _, puts in counts] == [1] * len(counts)
    # A worker asks for the newest commit once in half a minute; the rest is the one PUT.
    assert sum(reads for reads, _ in counts[3:]) <= len(counts[3:])
    assert counted.values("t") == list(range(6))


@pytest.mark.full
def test_idle_trigger_is_one_get_and_batch_of_one_commit_five(
    spark: SparkSession, filled: Place, relay: HttpRelay, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    counted = Place(filled.url, s3_proxy.options(relay.endpoint))
    writer = filled.open()
    stream = counted.stream(spark, subscribe="t", startingOffsets="latest").writeStream.format("noop")
    stream = stream.trigger(processingTime="100 milliseconds")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        counts = []
        for _ in range(3):
            writer.append("t", pa.table({"value": ["x"]}))
            query.processAllAvailable()
            time.sleep(0.3)
            log = [(request.method, request.path) for request in relay.log]
            counts.append(Counter(dict.fromkeys(log, 1)).total())  # those of idle triggers repeat the last one
            reads_and_puts(relay, "batch of one commit")
        relay.reset()
        triggers = len(query.recentProgress)
        time.sleep(1.0)
        idle = len(relay.log)
    finally:
        query.stop()
    assert {request.method for request in relay.log} == {"GET"}
    assert len({request.path for request in relay.log}) == 1
    assert triggers
    assert idle
    assert max(counts[1:]) <= 5
