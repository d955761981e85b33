"""The stream reader over real directories, without a Spark session: starts, limits, targets, tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from fakes.stream_queries import Query, append, make_root, plain, rows_of, stream
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, InvalidOptionError, UnknownTopicError
from pyspark_kafkalog.root.planned import LocalPartition
from pyspark_kafkalog.spark.read.reader import StreamRange, share_tasks
from pyspark_kafkalog.storage.names import TopicPartition


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    return make_root(root_place)


# Starts


def test_earliest_reads_all_records_and_then_new_ones(root: RootPlace) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest"))
    assert query.run() == [*rows_of("t", 0, 0, 100), *rows_of("t", 1, 0, 20)]
    assert [plain(each) for each in query.offsets] == [{"t": {"0": 100, "1": 20}, "u": {"0": 0}}]
    append(root, "u", 3)
    assert query.run() == rows_of("u", 0, 0, 3)
    assert query.run() == []


def test_latest_is_default_and_reads_records_appended_later(root: RootPlace) -> None:
    query = Query(lambda: stream(root))
    assert query.run() == []
    append(root, "t", 5)
    assert query.run() == rows_of("t", 0, 100, 105)


def test_latest_is_fixed_by_first_batch_not_by_its_repetition(root: RootPlace) -> None:
    query = Query(lambda: stream(root))
    query.reader.initialOffset()
    append(root, "t", 5)
    query.plan()
    query.restart()
    append(root, "t", 5)
    assert query.read() == [], "the first batch, made again by a process that takes a later offset for latest"
    assert query.run() == rows_of("t", 0, 100, 110)


def test_stream_starts_at_given_offsets_or_timestamps(root: RootPlace) -> None:
    starting = json.dumps({"t": {"0": 97, "1": -2}})
    query = Query(lambda: stream(root, subscribe="t", startingOffsets=starting))
    assert query.run() == [*rows_of("t", 0, 97, 100), *rows_of("t", 1, 0, 20)]
    by_time = Query(lambda: stream(root, subscribe="t", startingTimestamp=1))
    assert len(by_time.run()) == 120
    later = stream(root, subscribe="t", startingTimestamp=2**60)
    with pytest.raises(InvalidOptionError, match="no record has the timestamp"):
        later.initialOffset()
    latest = {"startingTimestamp": 2**60, "startingOffsetsByTimestampStrategy": "latest"}
    assert Query(lambda: stream(root, **latest)).run() == []


def test_start_beyond_latest_fails_or_is_skipped_if_data_loss_is_allowed(root: RootPlace) -> None:
    starting = json.dumps({"t": {"0": 101, "1": 0}})
    with pytest.raises(
        DataLossError, match="t-0: startingOffsets 101 is beyond the latest offset, the high watermark 100; either"
    ):
        stream(root, subscribe="t", startingOffsets=starting).initialOffset()
    query = Query(lambda: stream(root, subscribe="t", startingOffsets=starting, failOnDataLoss="false"))
    assert query.run() == rows_of("t", 1, 0, 20)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"assign": '{"t":[1],"u":[0]}'}, 20), ({"subscribePattern": "^t"}, 120), ({"subscribe": "u"}, 0)],
)
def test_subscription_options_choose_records(root: RootPlace, options: dict[str, str], expected: int) -> None:
    assert len(Query(lambda: stream(root, startingOffsets="earliest", **options)).run()) == expected


def test_missing_topic_is_refused_at_start(root: RootPlace) -> None:
    with pytest.raises(UnknownTopicError, match="no topic 'v' in this log directory: existing topics: t, u"):
        stream(root, subscribe="t,v").initialOffset()


def test_pattern_without_match_reads_topic_created_later(root: RootPlace) -> None:
    query = Query(lambda: stream(root, subscribePattern="^v"))
    assert query.run() == []
    assert [plain(each) for each in query.offsets] == [{}]
    LogDir.open(root).create_topic("v1", partitions=1)
    append(root, "v1", 3)
    assert query.run() == rows_of("v1", 0, 0, 3)


@pytest.mark.file_roots
def test_path_of_one_partition_is_read(root: RootPlace) -> None:
    assert len(Query(lambda: stream(root / "t-1", startingOffsets="earliest")).run()) == 20


# Limits and targets


def test_limit_is_shared_and_small_partitions_progress(root: RootPlace) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=30))
    assert len(query.run()) == 120
    assert [len(rows) for rows in query.rows] == [30] * 4
    assert plain(query.offsets[0]) == {"t": {"0": 25, "1": 5}, "u": {"0": 0}}
    once = Query(lambda: stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=30))
    assert len(once.run(ReadAllAvailable())) == 120
    assert len(once.rows) == 1


def test_bytes_are_limited_at_index_entries(tmp_path: Path) -> None:
    root = tmp_path / "log"
    LogDir.create(root).create_topic("t", partitions=2, configs={"internal.segment.bytes": "20000"})
    for _ in range(40):
        append(root, "t", 20)
    append(root, "t", 20, 1)
    query = Query(lambda: stream(root, startingOffsets="earliest", maxBytesPerTrigger="10k"))
    assert query.run() == [*rows_of("t", 0, 0, 800), *rows_of("t", 1, 0, 20)] or len(query.rows) > 1
    total_bytes = sum(path.stat().st_size for path in root.glob("t-*/*.log"))
    assert total_bytes // 20_000 <= len(query.rows) <= total_bytes // 8_000
    assert sorted(row for rows in query.rows for row in rows) == [*rows_of("t", 0, 0, 800), *rows_of("t", 1, 0, 20)]
    large = Query(lambda: stream(root, startingOffsets="earliest", maxBytesPerTrigger="1g"))
    large.run()
    assert len(large.rows) == 1


def test_minimum_delays_small_batches_but_not_first_one(root: RootPlace) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest", minOffsetsPerTrigger=10))
    assert len(query.run()) == 120
    append(root, "t", 9)
    assert query.run() == []
    append(root, "t", 1)
    assert query.run() == rows_of("t", 0, 100, 110)
    append(root, "t", 1)
    query.restart(available_now=True)
    assert query.run() == rows_of("t", 0, 110, 111), "Trigger.AvailableNow would never come to its end"


def test_available_now_ends_at_its_target_in_limited_batches_also_after_restart(root: RootPlace) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=50))
    query.restart(available_now=True)
    append(root, "t", 1000)
    LogDir.open(root).create_topic("v", partitions=1)
    append(root, "v", 7)
    query.plan()
    assert len(query.read()) == 50
    query.restart(available_now=True)
    append(root, "t", 500)
    rows = query.read() + query.run()
    assert len(rows) == 100 + 1000 + 20 + 7
    assert sorted(rows) == [*rows_of("t", 0, 0, 1100), *rows_of("t", 1, 0, 20), *rows_of("v", 0, 0, 7)]
    assert query.run() == []


def test_latest_offset_is_reported_beside_limited_one(root: RootPlace) -> None:
    reader = stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.reportLatestOffset() == {"t": {"0": 100, "1": 20}, "u": {"0": 0}}


# Tasks


def test_split_options_choose_number_of_tasks_and_keep_rows(root: RootPlace) -> None:
    for options, expected in (
        ({"maxRecordsPerPartition": 30}, 4 + 1),
        ({"minPartitions": 6}, 6),
        ({"minPartitions": 1}, 2),
        ({}, 1),
    ):
        reader = stream(root, startingOffsets="earliest", **options)
        start = reader.initialOffset()
        planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        assert len(planned) == expected, options
        rows = [tuple(row.values()) for each in planned for batch in reader.read(each) for row in batch.to_pylist()]
        assert rows == [*rows_of("t", 0, 0, 100), *rows_of("t", 1, 0, 20)]


def test_small_ranges_share_a_task_and_others_do_not() -> None:
    planned = [LocalPartition("/none", TopicPartition("t", at), None, None) for at in range(7)]
    ranges = [StreamRange(each, 0, 1, False, True, None, None, False) for each in planned]
    sizes = [200_000, 60_000, 10_000, None, 1, 300_000, 1]
    tasks = share_tasks(zip(ranges, sizes, strict=True))
    assert [[each.topic_partition.partition for each in task.ranges] for task in tasks] == [
        [0, 1],
        [2],
        [3],
        [4],
        [5],
        [6],
    ]


def test_schema_of_fewer_columns_and_headers_is_read(root: RootPlace) -> None:
    reader = stream(root, ("value", "headers"), assign='{"t":[1]}', startingOffsets="earliest")
    start = reader.initialOffset()
    (planned,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    table = pa.Table.from_batches(reader.read(planned))
    assert table.schema.names == ["value", "headers"]
    assert table.num_rows == 20


def test_range_without_offsets_plans_no_task(root: RootPlace) -> None:
    reader = stream(root, startingOffsets="earliest")
    assert list(reader.partitions({"t": {"0": 5}}, {"t": {"0": 5}})) == []
    assert reader.stop() is None


@pytest.mark.file_roots
def test_log_shorter_than_its_high_watermark_is_corrupt(root: RootPlace) -> None:
    (log,) = root.glob("t-1/*.log")
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError):
        Query(lambda: stream(root, startingOffsets="earliest", failOnDataLoss="false")).run()


@pytest.mark.file_roots
def test_planning_loads_no_compiled_code(root: RootPlace) -> None:
    """The reader's process lives as long as its query; planning must not cost the memory of the decoder."""
    script = """
import sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
source = KafkalogDataSource({"path": sys.argv[1], "startingOffsets": "earliest"})
reader = source.streamReader(source.schema())
start = reader.initialOffset()
assert len(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))) == 1
assert "numba" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
