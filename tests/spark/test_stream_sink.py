"""The streaming sink through Spark: every row is written once, however often the query stops, starts and replays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafkalog import LogDir

pytestmark = pytest.mark.spark

QUERY_SECONDS_MAX = 120


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "log").create_topic("t", partitions=8)
    return tmp_path / "log"


class Input:
    """A directory of text files, each of which is a micro-batch; its rows are the numbers from 0."""

    def __init__(self, spark: SparkSession, directory: Path, rows_a_file: int = 20) -> None:
        self._spark, self._directory, self._rows_a_file, self.rows = spark, directory, rows_a_file, 0
        directory.mkdir()

    def add_files(self, count: int) -> None:
        for _ in range(count):
            numbers = range(self.rows, self.rows + self._rows_a_file)
            target = self._directory / f"{self.rows:06}.txt"
            target.with_name("." + target.name).write_text("".join(f"{number}\n" for number in numbers))
            # The source takes files by their times.
            os.utime(target.with_name("." + target.name), (1_700_000_000 + self.rows,) * 2)
            target.with_name("." + target.name).rename(target)
            self.rows += self._rows_a_file

    def stream(self, *columns: str) -> DataFrame:
        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._directory))
        return lines.selectExpr(*(columns or ("cast(cast(value as int) % 7 as string) key", "value")))


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Input:
    return Input(spark, tmp_path / "input")


def start(frame: DataFrame, root: Path, checkpoint: Path, **options: str | int) -> StreamingQuery:
    """Starts the query; its trigger is processingTime, as fast as it can."""
    writer = frame.writeStream.format("kafkalog").options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).start(str(root))


def run(frame: DataFrame, root: Path, checkpoint: Path, mode: str = "append", **options: str | int) -> StreamingQuery:
    """Runs the query over all that is there."""
    writer = frame.writeStream.format("kafkalog").options(**options).outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start(str(root))
    assert query.awaitTermination(QUERY_SECONDS_MAX)
    return query


def wait(until: Callable[[], object]) -> None:
    deadline = time.monotonic() + QUERY_SECONDS_MAX
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_progress(query: StreamingQuery) -> None:
    wait(lambda: query.lastProgress or not query.isActive)


def numbers(root: Path, topic: str = "t") -> list[int]:
    """All values of the topic, by partition and offset."""
    return [int(value) for value in LogDir.open(root).read(topic, columns=["value"]).column("value").to_pylist()]


def forget_last_commit(checkpoint: Path) -> int:
    """Takes back that Spark noted its last micro-batch as done; which one it was."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    return last


def write_commits(root: Path) -> list[tuple[str | None, int | None]]:
    """Transactional id and version of each commit that wrote records, oldest first."""
    entries = LogDir.open(root).history(newest_first=False)
    return [(entry.transactional_id, entry.version) for entry in entries if entry.operation == "write"]


def test_every_row_of_file_source_is_written_once_and_keys_stay_in_order(
    files: Input, load: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    files.add_files(6)
    query = run(files.stream(), root, tmp_path / "checkpoint", topic="t", **{"compression.type": "zstd"})
    assert sorted(numbers(root)) == list(range(files.rows))
    rows = (
        load(root)
        .orderBy("partition", "offset")
        .selectExpr("cast(cast(key as string) as int) key", "cast(cast(value as string) as int) value")
        .collect()
    )
    for key in range(7):
        assert [row.value for row in rows if row.key == key] == list(range(key, files.rows, 7))
    assert write_commits(root) == [(query.id, batch) for batch in range(6)]


def test_replayed_micro_batch_is_written_once(files: Input, root: Path, tmp_path: Path) -> None:
    for _ in range(3):
        files.add_files(2)
        query = run(files.stream(), root, tmp_path / "checkpoint", topic="t")
        replayed = forget_last_commit(tmp_path / "checkpoint")
        before = write_commits(root)
        assert before[-1] == (query.id, replayed)
        again = run(files.stream(), root, tmp_path / "checkpoint", topic="t")
        assert again.recentProgress[0]["batchId"] == replayed
        assert write_commits(root) == before
    assert sorted(numbers(root)) == list(range(files.rows))


def test_query_stopped_anywhere_and_restarted_loses_and_repeats_no_row(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).option("numPartitions", 2).load()
    frame = rate.selectExpr("cast(value as string) value")

    def partitions_written() -> int:
        return len(list(root.glob("t-*/*.log")))

    restart = 0
    while restart < 6 or (partitions_written() < 8 and restart < 24):  # a slow machine makes few batches a run
        query = start(frame, root, tmp_path / "checkpoint", topic="t", queryName="restarted")
        wait_for_progress(query)
        time.sleep(0.07 * (restart % 6))
        query.stop()
        assert query.exception() is None
        restart += 1
    found = numbers(root)
    assert len(found) >= 300
    assert sorted(found) == list(range(len(found)))
    assert partitions_written() == 8


@pytest.mark.full
def test_two_queries_write_to_one_topic_concurrently(
    spark: SparkSession, files: Input, root: Path, tmp_path: Path
) -> None:
    files.add_files(5)
    frames = {name: files.stream("value", f"'{name}' key") for name in ("one", "two")}
    writers = [
        frame.writeStream.format("kafkalog")
        .trigger(availableNow=True)
        .options(topic="t", checkpointLocation=str(tmp_path / name))
        .start(str(root))
        for name, frame in frames.items()
    ]
    assert all(writer.awaitTermination(QUERY_SECONDS_MAX) for writer in writers)
    assert sorted(numbers(root)) == sorted([*range(files.rows), *range(files.rows)])
    assert len(write_commits(root)) == 10


def test_column_topic_spreads_micro_batch_over_topics_in_one_commit(files: Input, root: Path, tmp_path: Path) -> None:
    files.add_files(3)
    stream = files.stream("value", "if(cast(value as int) % 2 = 0, 't', 'odd') topic")
    query = run(stream, root, tmp_path / "checkpoint")
    assert sorted(numbers(root)) == list(range(0, files.rows, 2))
    assert numbers(root, "odd") == list(range(1, files.rows, 2))
    assert write_commits(root) == [(query.id, batch) for batch in range(3)]


def test_only_first_of_micro_batches_without_rows_is_committed(files: Input, root: Path, tmp_path: Path) -> None:
    files.add_files(3)
    run(files.stream().where("cast(value as int) between 20 and 39"), root, tmp_path / "checkpoint", topic="t")
    assert [version for _, version in write_commits(root)] == [0, 1]
    assert sorted(numbers(root)) == list(range(20, 40))


def test_trigger_once_creates_root_and_topic_and_writes_all_rows(
    spark: SparkSession, files: Input, tmp_path: Path
) -> None:
    files.add_files(1)
    writer = files.stream().writeStream.format("kafkalog").trigger(once=True).option("topic", "made")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "new"))
    assert query.awaitTermination(QUERY_SECONDS_MAX)
    assert sorted(numbers(tmp_path / "new", "made")) == list(range(20))


@pytest.mark.full
def test_complete_mode_appends_each_result_as_sparks_kafka_sink(files: Input, root: Path, tmp_path: Path) -> None:
    files.add_files(2)
    counts = files.stream("value").groupBy().count().selectExpr("cast(count as string) value")
    run(counts, root, tmp_path / "checkpoint", "complete", topic="t")
    assert sorted(numbers(root)) == [20, 40]


def test_update_mode_is_refused_by_spark(files: Input, root: Path, tmp_path: Path) -> None:
    files.add_files(1)
    counts = files.stream("value").groupBy().count().selectExpr("cast(count as string) value")
    with pytest.raises(StreamingQueryException, match="kafkalog does not support Update mode"):
        run(counts, root, tmp_path / "checkpoint", "update", topic="t")


@pytest.mark.full
def test_continuous_processing_commits_no_batch(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    # Spark 4.2 starts such a query with a Python sink, and would take its rows for written: it asks for a commit with
    # nothing from the tasks. The sink refuses; Spark logs that and goes on, so that nobody but the log tells the user.
    rate = spark.readStream.format("rate").option("rowsPerSecond", 20).option("numPartitions", 1).load()
    writer = rate.selectExpr("cast(value as string) value").writeStream.format("kafkalog").option("topic", "t")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(continuous="100 milliseconds")
    query = writer.start(str(root))
    wait(lambda: (tmp_path / "c" / "offsets" / "0").exists())
    time.sleep(1.5)
    query.stop()
    assert [path.name for path in (tmp_path / "c" / "commits").iterdir() if path.name.isdigit()] == []
    assert numbers(root) == []


def test_run_is_fenced_by_later_run_of_same_query(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    query = start(rate.selectExpr("cast(value as string) value"), root, tmp_path / "checkpoint", topic="t")
    wait(lambda: write_commits(root))
    LogDir.open(root).init_transaction(query.id, "a later run")
    with pytest.raises(StreamingQueryException, match=rf"{query.runId}.*is fenced.*a later run"):
        query.awaitTermination(QUERY_SECONDS_MAX)
    wait(lambda: not list(root.glob("*/*.staged")))


def test_foreach_batch_with_id_and_version_writes_each_batch_once(files: Input, root: Path, tmp_path: Path) -> None:
    def write_twice(batch: DataFrame, batch_id: int) -> None:
        for name in ("left", "right"):
            options = {"topic": name, "txnAppId": f"copy to {name}", "txnVersion": batch_id}
            batch.write.format("kafkalog").mode("append").options(**options).save(str(root))

    def run_all() -> None:
        writer = files.stream().writeStream.foreachBatch(write_twice).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(QUERY_SECONDS_MAX)

    files.add_files(2)
    run_all()
    forget_last_commit(tmp_path / "checkpoint")
    files.add_files(1)
    run_all()
    for name in ("left", "right"):
        assert sorted(numbers(root, name)) == list(range(files.rows))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["value"], {}, "topic option required when no 'topic' attribute is present"),
        (["value", "1L partition"], {"topic": "t"}, "partition attribute unsupported type bigint"),
        (["value"], {"topic": "t", "txnAppId": "a", "txnVersion": "1"}, "are for batch writes"),
        (["value"], {"topic": "t", "flush": "never"}, "expected one of fsync, os"),
    ],
)
def test_invalid_columns_or_options_fail_query_with_reason(
    files: Input, root: Path, tmp_path: Path, columns: list[str], options: dict[str, str], message: str
) -> None:
    files.add_files(1)
    with pytest.raises(StreamingQueryException) as caught:
        run(files.stream(*columns), root, tmp_path / "checkpoint", **options)
    assert message in str(caught.value)


def test_invalid_row_fails_batch_and_leaves_no_record(files: Input, root: Path, tmp_path: Path) -> None:
    files.add_files(1)
    stream = files.stream("value", "if(value = '7', null, 't') topic")
    with pytest.raises(StreamingQueryException, match="contains a null topic"):
        run(stream, root, tmp_path / "checkpoint")
    assert numbers(root) == []
    assert list(root.glob("*/*.staged")) == []


@pytest.mark.full
def test_restarts_with_a_function_that_fails_leave_the_files_of_one_try(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    files = Input(spark, tmp_path / "input", rows_a_file=25_000)  # more than one Arrow batch of a task
    files.add_files(1)
    # More than fits between Spark and its worker, so that the worker has written when the last row fails.
    poisoned = files.stream("if(value = '24999', raise_error('a poison row'), value) value", "repeat('k', 1000) key")
    counts = []
    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="a poison row"):
            run(poisoned, root, tmp_path / "checkpoint", topic="t")
        counts.append(len(list(root.glob("*/*.staged"))))
    assert 0 < counts[0] == counts[1] == counts[2]
    run(files.stream("value"), root, tmp_path / "checkpoint", topic="t")
    assert sorted(numbers(root)) == list(range(files.rows))
    assert list(root.glob("*/*.staged")) == []


@pytest.mark.full
def test_stream_between_log_directories_keeps_partitions_and_order_over_restarts(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    source = LogDir.create(tmp_path / "source")
    source.create_topic("t", partitions=3)
    stream = spark.readStream.format("kafkalog").options(startingOffsets="earliest", maxOffsetsPerTrigger=40)
    for start in (0, 100):
        values = [f"{number}" for number in range(start, start + 100)]
        source.append("t", pa.table({"key": [value[-1] for value in values], "value": values}))
        frame = stream.load(str(source.path)).select("key", "value", "partition", "timestamp")
        run(frame, root, tmp_path / "checkpoint", topic="t")
        forget_last_commit(tmp_path / "checkpoint")
    run(frame, root, tmp_path / "checkpoint", topic="t")
    columns = ["key", "value", "partition", "timestamp"]
    source.refresh()
    assert LogDir.open(root).read("t", columns=columns) == source.read("t", columns=columns)
