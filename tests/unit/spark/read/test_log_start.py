"""Queries that start at a log start inside a segment; records deleted by retention are data loss, or skipped."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import DataLossError
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore, LocalSnapshots
from pyspark_kafkalog.metadata.objects.backend import ObjectMetadataStore
from pyspark_kafkalog.spark.data_source import KafkalogDataSource, read_schema
from pyspark_kafkalog.spark.read.reader import KafkalogBatchReader, OffsetRangePartition, read_offset_range
from pyspark_kafkalog.spark.stream.reader import KafkalogStreamReader
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import TopicPartition

COUNT = 400
START = 137


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """Several segments; the log starts inside the batch of 120 to 139."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("t", partitions=1, configs={"internal.segment.bytes": "4096"})
    for first in range(0, COUNT, 20):
        values = [str(number).zfill(50) for number in range(first, first + 20)]
        log_dir.append("t", pa.table({"value": values}))
    delete_records(log_dir.root, {TopicPartition("t", 0): START})
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


def rows_of(made: DataSourceReader | KafkalogStreamReader, planned: Sequence[InputPartition]) -> list[int]:
    return [offset for each in planned for found in made.read(each) for offset in found.column("offset").to_pylist()]


def test_batch_starts_at_log_start_inside_segment(log_dir: LogDir) -> None:
    assert offsets(batch(log_dir)) == list(range(START, COUNT))
    assert offsets(batch(log_dir, maxBytesPerPartition="3000", minPartitions="7")) == list(range(START, COUNT))
    asked = json.dumps({"t": {"0": START - 1}})
    with pytest.raises(DataLossError, match="log start 137"):
        batch(log_dir, startingOffsets=asked).partitions()
    assert offsets(batch(log_dir, startingOffsets=asked, failOnDataLoss="false")) == list(range(START, COUNT))


def test_stream_starts_at_log_start_inside_segment(log_dir: LogDir) -> None:
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


def test_stream_behind_log_start_fails_or_continues_at_it_if_data_loss_is_allowed(log_dir: LogDir) -> None:
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
def test_task_planned_before_retention_fails_or_reads_from_log_start(log_dir: LogDir, is_strict: bool) -> None:
    made = batch(log_dir, failOnDataLoss=str(is_strict).lower())
    (planned,) = made.partitions()
    assert isinstance(planned, OffsetRangePartition)
    log_dir.alter_topic("t", add={"retention.bytes": "9000"})
    [report] = apply_retention(log_dir.root)
    rows = read_offset_range(planned, to_arrow_schema(read_schema(include_headers=False), timezone="UTC"))
    if is_strict:
        with pytest.raises(DataLossError):
            list(rows)
        return
    assert report.log_start_offset is not None
    found = [offset for each in rows for offset in each.column("offset").to_pylist()]
    assert found == list(range(report.log_start_offset, COUNT))


@pytest.mark.parametrize("is_strict", [True, False])
def test_task_planned_before_delete_records_returns_no_deleted_row(log_dir: LogDir, is_strict: bool) -> None:
    """The bytes of the deleted records are still in the files: segments are deleted by a retention run only."""
    made = batch(log_dir, failOnDataLoss=str(is_strict).lower(), maxBytesPerPartition="3000")
    planned = made.partitions()
    assert len(planned) > 3
    delete_records(log_dir.root, {TopicPartition("t", 0): START + 150})
    if is_strict:
        lost = f"t-0: records of offsets {START} to .* are gone: the log starts at {START + 150} now.*load\\(\\) again"
        with pytest.raises(DataLossError, match=lost):
            list(made.read(planned[0]))
        assert len(rows_of(made, planned[-1:])) > 0
    else:
        assert rows_of(made, planned) == list(range(START + 150, COUNT))


def test_stream_task_planned_before_delete_records_returns_no_deleted_row(log_dir: LogDir) -> None:
    strict, lenient = (stream(log_dir, startingOffsets="earliest", failOnDataLoss=told) for told in ("true", "false"))
    plans = []
    for made in (strict, lenient):
        start = made.initialOffset()
        plans.append(made.partitions(start, made.latestOffset(start, ReadAllAvailable())))
    delete_records(log_dir.root, {TopicPartition("t", 0): START + 150})
    with pytest.raises(DataLossError, match=r"Set failOnDataLoss to false to read the available records$"):
        rows_of(strict, plans[0])
    assert rows_of(lenient, plans[1]) == list(range(START + 150, COUNT))


@pytest.mark.file_roots
def test_task_planned_before_commits_at_the_end_of_a_file_sees_log_start(log_dir: LogDir) -> None:
    made = batch(log_dir, failOnDataLoss="false")
    planned = made.partitions()
    commits = planned[0].planned.commits  # type: ignore[attr-defined]
    assert not commits.has_later_commit()
    delete_records(log_dir.root, {TopicPartition("t", 0): START + 150})
    assert not Path(commits.next).exists()
    assert commits.has_later_commit()
    assert rows_of(made, planned) == list(range(START + 150, COUNT))


@pytest.mark.file_roots
@pytest.mark.usefixtures("one_commit_a_file")
def test_task_planned_before_commits_since_removed_sees_log_start(log_dir: LogDir) -> None:
    """The name of the next commit, by which a task sees that there is one, is removed by metadata retention."""
    made = batch(log_dir, failOnDataLoss="false")
    planned = made.partitions()
    delete_records(log_dir.root, {TopicPartition("t", 0): START + 150})
    store = log_dir.root.native().store
    store.refresh()
    named = planned[0].planned.commits  # type: ignore[attr-defined]
    last_file, next_file = Path(named.last), Path(named.next)
    assert next_file.exists()
    snapshots = LocalSnapshots(store.log.directory, LOCAL)
    snapshots.write(store.image)
    last_file.unlink()
    next_file.unlink()
    assert rows_of(made, planned) == list(range(START + 150, COUNT))


def test_log_start_is_looked_up_only_after_a_commit(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    made = batch(log_dir)
    planned = made.partitions()
    with monkeypatch.context() as without:
        without.setattr(LocalMetadataStore, "open", None)
        without.setattr(ObjectMetadataStore, "open", None)
        assert rows_of(made, planned) == list(range(START, COUNT))
    log_dir.append("t", pa.table({"value": ["later"]}))
    assert rows_of(made, planned) == list(range(START, COUNT))


def test_planned_task_sees_records_deleted_by_broker(kafka_fixtures: Path, tmp_path: Path) -> None:
    root = tmp_path / "broker"
    shutil.copytree(kafka_fixtures / "cars", root)
    made = KafkalogDataSource({"path": str(root), "failOnDataLoss": "false"})
    reader = made.reader(made.schema())
    planned = reader.partitions()
    before = {each: rows_of(reader, [each]) for each in planned}
    first = planned[0]
    assert isinstance(first, OffsetRangePartition)
    where = first.topic_partition
    write_offset_checkpoint(root / LOG_START_OFFSET_CHECKPOINT, {where: first.start_offset + 7})  # as the broker does
    assert rows_of(reader, [first]) == before[first][7:]
    assert rows_of(reader, planned[1:]) == [offset for each in planned[1:] for offset in before[each]]


def test_task_planned_before_merge_reads_same_records(log_dir: LogDir) -> None:
    made = batch(log_dir, maxBytesPerPartition="3000")
    planned = made.partitions()
    log_dir.alter_topic("t", add={"internal.segment.bytes": "100000"})
    [report] = merge_segments(log_dir.root)
    assert report.segments_dropped > 1
    found = [offset for each in planned for rows in made.read(each) for offset in rows.column("offset").to_pylist()]
    assert found == list(range(START, COUNT))
