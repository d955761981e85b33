"""The streaming source through Spark: each record once and in order, over restarts, limits, new topics, data loss."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from fakes.stream_queries import plain
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tiers import rest_full

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.image import partition_state_record
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore

pytestmark = pytest.mark.spark

QUERY_SECONDS_MAX = 120
NOW = {"availableNow": True}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic t: 100 and 20 records."""
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=2)
    append(log_dir.path, "t", 100)
    append(log_dir.path, "t", 20, partition=1)
    return log_dir.path


def append(root: Path, topic: str, count: int, partition: int = 0) -> None:
    LogDir.open(root).append(topic, pa.table({"value": [f"{n}" for n in range(count)]}), partition=partition)


def rows_of(topic: str, partition: int, start: int, end: int) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in range(start, end)]


@pytest.fixture
def stream(spark: SparkSession) -> Callable[..., DataFrame]:
    def load(path: Path, **options: object) -> DataFrame:
        return spark.readStream.format("kafkalog").options(**{"subscribe": "t", **options}).load(str(path))

    return load


class Run:
    """A query with the rows of each of its batches as (topic, partition, offset), in the order that they came."""

    def __init__(self, frame: DataFrame, checkpoint: Path, **trigger: object) -> None:
        self.batches: list[list[tuple[str, int, int]]] = []
        writer = frame.select("topic", "partition", "offset").writeStream.foreachBatch(self._add)
        if trigger:
            writer = writer.trigger(**trigger)
        self.query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).start()

    def _add(self, frame: DataFrame, number: int) -> None:
        self.batches.append([tuple(row) for row in frame.collect()])

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for batch in self.batches for row in batch)

    def wait(self) -> Run:
        """To the end of a query that has one."""
        assert self.query.awaitTermination(QUERY_SECONDS_MAX), "the query hangs"
        return self

    def first_batch(self) -> None:
        """Stop after the first batch of a query whose trigger waits long for the second."""
        deadline = time.monotonic() + QUERY_SECONDS_MAX
        while self.query.lastProgress is None and self.query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        self.query.stop()
        assert len(self.batches) == 1

    def catch_up(self) -> Run:
        self.query.processAllAvailable()
        return self


def offset_log(checkpoint: Path) -> list[dict[str, dict[str, int]]]:
    """Last line of each file of the checkpoint's offset log, as Spark's KafkaSourceOffset would read it."""
    files = sorted(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )
    return [json.loads(path.read_text().splitlines()[-1]) for path in files]


def undo_commit(checkpoint: Path) -> None:
    """As if the query had been killed after its last batch and before Spark noted that it was done."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_running_query_reads_new_records_partitions_and_topics(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    frame = stream(root, subscribe="t,v", startingOffsets="earliest")
    log_dir = LogDir.open(root)
    log_dir.create_topic("v", partitions=1)
    first = Run(frame, checkpoint).catch_up()
    assert first.rows == [*rows_of("t", 0, 0, 100), *rows_of("t", 1, 0, 20)]
    log_dir.add_partitions("t", 3)
    append(root, "t", 5, partition=2)
    append(root, "v", 7)
    first.catch_up()
    assert first.rows[120:] == [*rows_of("t", 2, 0, 5), *rows_of("v", 0, 0, 7)]
    progress = first.query.lastProgress
    first.query.stop()
    assert json.loads(progress["sources"][0]["endOffset"]) == offset_log(checkpoint)[-1]
    append(root, "t", 10)
    again = Run(frame, checkpoint, **NOW).wait()
    assert again.rows == rows_of("t", 0, 100, 110)
    assert plain(offset_log(checkpoint)[-1]) == {"t": {"0": 110, "1": 20, "2": 5}, "v": {"0": 7}}


@pytest.mark.full
def test_latest_is_default_and_no_record_is_missed_over_restarts(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert Run(stream(root), checkpoint, once=True).wait().rows == []
    append(root, "t", 3)
    undo_commit(checkpoint)
    assert Run(stream(root), checkpoint, **NOW).wait().rows == rows_of("t", 0, 100, 103)


def test_available_now_reads_limited_batches_and_repeats_uncommitted_batch(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    frame = stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    first = Run(frame, checkpoint, **NOW).wait()
    assert [len(batch) for batch in first.batches] == [50, 50, 20]
    assert first.rows == [*rows_of("t", 0, 0, 100), *rows_of("t", 1, 0, 20)]
    undo_commit(checkpoint)
    append(root, "t", 60)
    again = Run(frame, checkpoint, **NOW).wait()
    assert again.batches[0] == first.batches[-1]
    assert [len(batch) for batch in again.batches[1:]] == [50, 10]
    assert sorted(row for batch in again.batches[1:] for row in batch) == rows_of("t", 0, 100, 160)


def test_trigger_once_reads_all_records_whatever_the_limit(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    frame = stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    run = Run(frame, tmp_path / "checkpoint", once=True).wait()
    assert [len(batch) for batch in run.batches] == [120]


def test_progress_shows_latest_offset_and_bytes_limit_splits_batches(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    frame = stream(root, startingOffsets="earliest", maxBytesPerTrigger="1", minPartitions=3)
    run = Run(frame, tmp_path / "checkpoint", **NOW).wait()
    assert run.rows == [*rows_of("t", 0, 0, 100), *rows_of("t", 1, 0, 20)]
    source = run.query.recentProgress[0]["sources"][0]
    assert json.loads(source["latestOffset"]) == {"t": {"0": 100, "1": 20}}
    assert source["numInputRows"] == len(run.batches[0])


@pytest.mark.full
def test_recreated_topic_fails_running_query_or_is_read_from_start_if_data_loss_is_allowed(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    strict = Run(stream(root, startingOffsets="earliest"), tmp_path / "strict").catch_up()
    lenient = Run(stream(root, startingOffsets="earliest", failOnDataLoss=False), tmp_path / "lenient").catch_up()
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=1)
    append(root, "t", 150)
    with pytest.raises(StreamingQueryException, match="t-0: offsets from 100 on were requested, "):
        strict.wait()
    lenient.catch_up()
    assert [row for batch in lenient.batches[1:] for row in batch] == rows_of("t", 0, 0, 150)
    lenient.query.stop()


def test_range_deleted_by_retention_fails_query_or_is_skipped_if_data_loss_is_allowed(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    options = {"startingOffsets": json.dumps({"t": {"0": 10, "1": 20}})}
    Run(stream(root, **options, maxOffsetsPerTrigger=5), checkpoint, processingTime="1 hour").first_batch()
    store = LocalMetadataStore.open(root)
    found = store.image.topic("t")
    state = replace(found.partitions[0].state, log_start_offset=40)
    store.commit(lambda _: [partition_state_record(found.topic_id, 0, state)], operation="delete records")
    message = "t-0: offsets from 15 on were requested, available are log start 40 to high watermark 100"
    with pytest.raises(StreamingQueryException, match=message):
        Run(stream(root, **options), checkpoint, **NOW).wait()
    lenient = Run(stream(root, **options, failOnDataLoss="false"), checkpoint, **NOW).wait()
    assert lenient.rows == rows_of("t", 0, 40, 100)


@pytest.mark.full
def test_segments_deleted_by_broker_fail_query_or_are_skipped_if_data_loss_is_allowed(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path
) -> None:
    """The directory is read as a broker's."""
    LogDir.open(root).create_topic("s", partitions=1, configs={"internal.segment.bytes": "1024"})
    for _ in range(20):
        append(root, "s", 10)
    shutil.rmtree(root / "__cluster_metadata-0")
    checkpoint = tmp_path / "checkpoint"
    options = {"subscribe": "s", "startingOffsets": "earliest"}
    Run(stream(root, **options, maxOffsetsPerTrigger=5), checkpoint, processingTime="1 hour").first_batch()
    logs = sorted((root / "s-0").glob("*.log"))
    log_start_offset = int(logs[2].stem)
    for log in logs[:2]:
        log.unlink()
    with pytest.raises(StreamingQueryException, match=f"s-0: offsets from 5 on .* log start {log_start_offset} to"):
        Run(stream(root, **options), checkpoint, **NOW).wait()
    lenient = Run(stream(root, **options, failOnDataLoss="false"), checkpoint, **NOW).wait()
    assert lenient.rows == rows_of("s", 0, log_start_offset, 200)


@pytest.mark.parametrize(
    ("fixture", "isolation"),
    rest_full([("transactions", "read_committed"), ("compacted-4-cleaned", "read_uncommitted")]),
)
def test_stream_of_broker_directory_equals_batch_read(
    spark: SparkSession, kafka_fixtures: Path, tmp_path: Path, fixture: str, isolation: str
) -> None:
    """Gaps of compaction and of transactions are no data loss."""
    path = str(kafka_fixtures / fixture)
    options = {"includeHeaders": "true", "isolationLevel": isolation, "startingOffsets": "earliest"}
    frame = spark.readStream.format("kafkalog").options(**options, maxOffsetsPerTrigger=400).load(path)
    query = frame.writeStream.format("memory").queryName("fixture").trigger(availableNow=True)
    assert query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(QUERY_SECONDS_MAX)
    order = ["topic", "partition", "offset"]
    batch = spark.read.format("kafkalog").options(**options).load(path)
    expected = batch.orderBy(*order).collect()
    assert spark.table("fixture").orderBy(*order).collect() == expected
    assert expected


def test_table_and_schema_of_one_column_can_be_streamed(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE streamed USING kafkalog OPTIONS (path '{root}', startingOffsets 'earliest')")
    try:
        rows = Run(spark.readStream.table("streamed"), tmp_path / "table", **NOW).wait().rows
        assert len(rows) == 120
    finally:
        spark.sql("DROP TABLE streamed")
    values = spark.readStream.format("kafkalog").schema("value binary").option("startingOffsets", "earliest")
    frame = values.load(str(root)).selectExpr("cast(value as string)")
    assert frame.writeStream.format("console").trigger(once=True).start().awaitTermination(QUERY_SECONDS_MAX)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets is not valid in a streaming read"),
        ({"subscribe": "v"}, "no topic 'v' in this log directory: existing topics: t"),
    ],
)
def test_invalid_options_fail_query_at_start(
    stream: Callable[..., DataFrame], root: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(StreamingQueryException, match=message) as caught:
        Run(stream(root, **options), tmp_path / "checkpoint", **NOW).wait()
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxOffsetPerTrigger": "5"}, r"unknown option 'maxoffsetpertrigger' .*did you mean maxOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 4}, "is greater than maxOffsetsPerTrigger"),
        ({"commitOffsets": "true"}, "commitOffsets needs the option kafka.group.id"),
    ],
)
def test_invalid_stream_options_are_refused_at_load(
    stream: Callable[..., DataFrame], root: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(AnalysisException, match=rf"(?s){message}") as caught:
        stream(root, **options)
    assert "Traceback" not in str(caught.value)
