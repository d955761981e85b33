"""Writes and streaming queries that begin in Python threads other than the one that created the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from pyspark_kafkalog import LogDir, set_active_session
from pyspark_kafkalog.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("a", "b", "c", "d")


def write(rows: DataFrame, topic: str, root: Path) -> None:
    rows.selectExpr("cast(id as string) value").write.format("kafkalog").mode("append").option("topic", topic).save(
        str(root)
    )


def in_thread(run: Callable[[], None]) -> BaseException | None:
    """Runs it in a thread of its own; what it raised."""
    raised: list[BaseException] = []

    def caught() -> None:
        try:
            run()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.full
def test_write_in_thread_without_active_session_fails_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The reason for `set_active_session`. When this test fails, Spark is fixed, and the helper can go."""
    write(spark.range(1), "t", tmp_path)  # the data source is known to the session, that is not the cause
    error = in_thread(lambda: write(spark.range(1), "t", tmp_path))
    assert isinstance(error, Py4JJavaError)
    assert "DATA_SOURCE_NOT_FOUND" in str(error)


@pytest.mark.full
def test_threads_of_pool_write_and_start_queries(spark: SparkSession, tmp_path: Path) -> None:
    def copy(topic: str) -> None:
        write(spark.range(10), topic, tmp_path)
        records = spark.readStream.format("kafkalog").option("startingOffsets", "earliest").option("subscribe", topic)
        copies = records.load(str(tmp_path)).select("value").writeStream.format("kafkalog").option("topic", topic * 2)
        query = copies.option("checkpointLocation", str(tmp_path / f"of-{topic}")).trigger(availableNow=True)
        query.start(str(tmp_path)).awaitTermination()

    with ThreadPoolExecutor(2, initializer=set_active_session, initargs=(spark,)) as pool:
        list(pool.map(copy, TOPICS[:2]))
    log_dir = LogDir.open(tmp_path)
    assert log_dir.topics() == ("a", "aa", "b", "bb")
    assert {log_dir.read(topic).num_rows for topic in log_dir.topics()} == {10}


@pytest.mark.full
def test_threads_inside_foreach_batch_write(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(spark.range(10), "source", root)
    without: list[BaseException | None] = []

    def split(batch: DataFrame, batch_id: int) -> None:
        ids = batch.selectExpr("cast(cast(value as string) as long) id")
        without.append(in_thread(lambda: write(ids, "never", root)))
        with ThreadPoolExecutor(4, initializer=set_active_session, initargs=(batch.sparkSession,)) as pool:
            list(pool.map(lambda topic: write(ids, topic, root), TOPICS))

    records = spark.readStream.format("kafkalog").option("startingOffsets", "earliest").option("subscribe", "source")
    writer = records.load(str(root)).writeStream.foreachBatch(split).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    log_dir = LogDir.open(root)
    assert log_dir.topics() == (*TOPICS, "source")
    assert {log_dir.read(topic).num_rows for topic in TOPICS} == {10}
    assert ["DATA_SOURCE_NOT_FOUND" in str(error) for error in without] == [True]


def test_session_without_pinned_threads_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "_gateway", object())
    with pytest.raises(InvalidOptionError, match="PYSPARK_PIN_THREAD is false"):
        set_active_session(spark)
