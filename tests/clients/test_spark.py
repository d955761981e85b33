"""Spark's own Kafka source and sink at this package's server: the rows are those of format("kafkalog")."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from repository import REPOSITORY

from pyspark_kafkalog import LogDir, register

BENCHMARKS = REPOSITORY / "benchmarks"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
RECORDS = 2000


@pytest.fixture(scope="module")
def session(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the connector and a stand-in for its provider of tokens; it ends before the server does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        from bench_peers import KAFKA_CONNECTOR, TOKEN_PROVIDER, standin_jar

        standin = standin_jar(tmp_path_factory.mktemp("standin"))
        if standin is None:
            pytest.skip("no javac")
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.jars.packages", KAFKA_CONNECTOR).config("spark.jars.excludes", TOKEN_PROVIDER)
        found = builder.config("spark.jars", str(standin)).config("spark.sql.shuffle.partitions", "2").getOrCreate()
        register(found)
        yield found
        found.stop()


@pytest.fixture(scope="module")
def written(session: SparkSession, bootstrap: str, served_root: Path) -> str:
    """A topic into which the sink wrote RECORDS rows with keys and headers."""
    LogDir.open(served_root).create_topic("rows", partitions=3)
    header = f.array(f.struct(f.lit("h").alias("key"), f.encode(f.lit("x"), "utf-8").alias("value")))
    key = f.col("id").cast("string")
    rows = session.range(RECORDS).select(
        key.alias("key"), f.concat(f.lit("v"), key).alias("value"), header.alias("headers")
    )
    sink = rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", "rows")
    sink.option("includeHeaders", "true").save()
    return "rows"


def compared(rows: DataFrame) -> list[tuple[object, ...]]:
    found = rows.select(*COLUMNS).orderBy("topic", "partition", "offset").collect()
    return [tuple(row) for row in found]


def test_rows_of_the_kafka_source_are_those_of_kafkalog(
    session: SparkSession, bootstrap: str, served_root: Path, written: str
) -> None:
    source = session.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    served = compared(source.option("subscribe", written).option("includeHeaders", "true").load())
    own = session.read.format("kafkalog").option("includeHeaders", "true").option("subscribe", written)
    assert len(served) == RECORDS
    assert served == compared(own.load(str(served_root)))


def test_stream_of_the_kafka_source_continues_at_its_checkpoint(
    session: SparkSession, bootstrap: str, served_root: Path, written: str, tmp_path: Path
) -> None:
    def run_to_end() -> None:
        source = session.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        rows = source.option("subscribe", written).option("startingOffsets", "earliest").load()
        sink = rows.select("key", "value").writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        sink = sink.option("topic", "streamed").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None

    run_to_end()
    more = session.range(10).selectExpr("'more' AS key", "CAST(id AS STRING) AS value")
    more.write.format("kafkalog").mode("append").option("topic", written).save(str(served_root))
    run_to_end()
    own = session.read.format("kafkalog").option("subscribe", "streamed").load(str(served_root))
    keys = [bytes(row.key) for row in own.collect()]
    assert sorted(keys) == sorted([str(i).encode() for i in range(RECORDS)] + [b"more"] * 10)
