"""Queries begin at a log start that lies inside a segment, and what retention takes is a loss as they were told to."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.maintenance.delete_records import delete_records
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention import apply_retention
from pyspark_kafkalog.spark.batch_reader import KafkalogBatchReader
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.range_task import OffsetRangePartition, read_offset_range
from pyspark_kafkalog.spark.schema import read_schema
from pyspark_kafkalog.spark.stream_reader import KafkalogStreamReader
from pyspark_kafkalog.storage.names import TopicPartition

COUNT = 400
START = 137


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir:
    """Several segments; the log starts inside the batch of 120 to 139."""
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=1, configs={"internal.segment.bytes": "4096"})
    for first in range(0, COUNT, 20):
        values = [str(number).zfill(50) for number in range(first, first + 20)]
        log_dir.append("t", pa.table({"value": values}))
    delete_records(log_dir, {TopicPartition("t", 0): START})
    log_dir.refresh()
    return log_dir


def batch(log_dir: LogDir, **options: str) -> KafkalogBatchReader:
    source = KafkalogDataSource({"path": str(log_dir.path), **options})
    made = source.reader(source.schema())
    assert isinstance(made, KafkalogBatchReader)
    return made


def stream(log_dir: LogDir, **options: str) -> KafkalogStreamReader:
    source = KafkalogDataSource({"path": str(log_dir.path), **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, KafkalogStreamReader)
    return made


def offsets(made: KafkalogBatchReader) -> list[int]:
    made, planned = pickle.loads(pickle.dumps((made, made.partitions())))
    return [offset for each in planned for found in made.read(each) for offset in found.column("offset").to_pylist()]


def test_a_batch_query_begins_elsewhere(log_dir: LogDir) -> None:
    assert offsets(batch(log_dir)) == list(range(START, COUNT))
    assert offsets(batch(log_dir, maxBytesPerPartition="3000", minPartitions="7")) == list(range(START, COUNT))
    asked = json.dumps({"t": {"0": START - 1}})
    with pytest.raises(DataLossError, match="log start 137"):
        batch(log_dir, startingOffsets=asked).partitions()
    assert offsets(batch(log_dir, startingOffsets=asked, failOnDataLoss="false")) == list(range(START, COUNT))


def test_a_stream_begins_elsewhere(log_dir: LogDir) -> None:
    made = stream(log_dir, startingOffsets="earliest")
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    found = [
        offset
        for each in made.partitions(start, end)
        for rows in made.read(each)
        for offset in rows.column("offset").to_pylist()
    ]
    assert found == list(range(START, COUNT))


def test_a_stream_that_lags_behind_the_log_start_goes_on_silently(log_dir: LogDir) -> None:
    lagging = {"t": {"0": 20}}
    strict, lenient = stream(log_dir), stream(log_dir, failOnDataLoss="false")
    with pytest.raises(DataLossError, match="log start 137"):
        strict.partitions(lagging, strict.latestOffset(lagging, ReadAllAvailable()))
    end = lenient.latestOffset(lagging, ReadAllAvailable())
    found = [
        offset
        for each in lenient.partitions(lagging, end)
        for rows in lenient.read(each)
        for offset in rows.column("offset").to_pylist()
    ]
    assert found == list(range(START, COUNT))


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_task_planned_before_retention_repeats_or_hides(log_dir: LogDir, is_strict: bool) -> None:
    made = batch(log_dir, failOnDataLoss=str(is_strict).lower())
    (planned,) = made.partitions()
    assert isinstance(planned, OffsetRangePartition)
    log_dir.alter_topic("t", add={"retention.bytes": "9000"})
    [report] = apply_retention(log_dir)
    rows = read_offset_range(planned, to_arrow_schema(read_schema(include_headers=False), timezone="UTC"))
    if is_strict:
        with pytest.raises(DataLossError):
            list(rows)
        return
    assert report.log_start_offset is not None
    found = [offset for each in rows for offset in each.column("offset").to_pylist()]
    assert found == list(range(report.log_start_offset, COUNT))


def test_a_task_planned_before_a_merge_reads_something_else(log_dir: LogDir) -> None:
    made = batch(log_dir, maxBytesPerPartition="3000")
    planned = made.partitions()
    log_dir.alter_topic("t", add={"internal.segment.bytes": "100000"})
    [report] = merge_segments(log_dir)
    assert report.segments_dropped > 1
    found = [offset for each in planned for rows in made.read(each) for offset in rows.column("offset").to_pylist()]
    assert found == list(range(START, COUNT))
