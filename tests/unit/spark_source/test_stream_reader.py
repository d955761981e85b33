"""The stream reader over real directories, without a Spark session: starts, targets, restarts, losses, tasks."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, InvalidOptionError, UnknownTopicError
from pyspark_kafkalog.metadata.records import partition_state_record
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.schema import read_schema
from pyspark_kafkalog.spark.stream_reader import KafkalogStreamReader
from pyspark_kafkalog.spark.stream_task import StreamRange, share_tasks
from pyspark_kafkalog.storage.names import META_PROPERTIES, PARTITION_METADATA

Offsets = dict[str, dict[str, int]]
COLUMNS = ("topic", "partition", "offset")


def stream(root: Path, columns: Sequence[str] = COLUMNS, **options: object) -> KafkalogStreamReader:
    source = KafkalogDataSource({"path": str(root), **{name: str(value) for name, value in options.items()}})
    made = source.streamReader(StructType([read_schema(include_headers=True)[name] for name in columns]))
    assert isinstance(made, KafkalogStreamReader)
    return made


class Query:
    """What Spark does with a reader: offsets to a checkpoint first, then the batch, then the next."""

    def __init__(self, make: Callable[[], KafkalogStreamReader]) -> None:
        self._make = make
        self.offsets: list[str] = []  # the checkpoint's offset log
        self.rows: list[list[tuple[str, int, int]]] = []
        self._is_committed = True
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        """As after a kill: whatever the reader knew is gone."""
        self.reader = self._make()
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def _start(self, number: int) -> Offsets:
        start: Offsets = json.loads(self.offsets[number - 1]) if number else self.reader.initialOffset()
        return start

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write the next end to the checkpoint; False when it is the start again, which Spark makes no batch of."""
        limit = limit if limit is not None else self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(self._start(len(self.offsets)), limit))
        if self.offsets and end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def read(self) -> list[tuple[str, int, int]]:
        """The rows of the last planned batch, also again."""
        number = len(self.offsets) - 1
        planned = self.reader.partitions(self._start(number), json.loads(self.offsets[number]))
        rows = []
        for each in pickle.loads(pickle.dumps(list(planned))):
            for batch in pickle.loads(pickle.dumps(self._make())).read(each):
                rows.extend(tuple(row.values()) for row in batch.to_pylist())
        return rows

    def run(self, limit: ReadLimit | None = None) -> list[tuple[str, int, int]]:
        """All batches there are to make; the rows of all."""
        rows = []
        while self.plan(limit):
            batch = self.read()
            self.rows.append(batch)
            rows.extend(batch)
        return rows


def append(root: Path, topic: str, count: int, partition: int = 0) -> None:
    LogDir.open(root).append(topic, pa.table({"value": [b"x" * 50] * count}), partition=partition)


def rows_of(topic: str, partition: int, start: int, end: int) -> list[tuple[str, int, int]]:
    return [(topic, partition, offset) for offset in range(start, end)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic t: 100 and 20 records. Topic u: one empty partition."""
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("t", partitions=2)
    log_dir.create_topic("u", partitions=1)
    append(log_dir.path, "t", 100)
    append(log_dir.path, "t", 20, 1)
    return tmp_path / "log"


def move_log_start(root: Path, topic: str, log_start_offset: int, partition: int = 0) -> None:
    store = MetadataStore.open(root)
    found = store.image.topic(topic)
    state = replace(found.partitions[partition].state, log_start_offset=log_start_offset)
    store.commit(lambda _: [partition_state_record(found.topic_id, partition, state)], operation="delete records")


# Starts


def test_earliest_reads_all_and_then_what_comes(root: Path) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest"))
    assert query.run() == [*rows_of("t", 0, 0, 100), *rows_of("t", 1, 0, 20)]
    assert query.offsets == ['{"t": {"0": 100, "1": 20}, "u": {"0": 0}}']
    append(root, "u", 3)
    assert query.run() == rows_of("u", 0, 0, 3)
    assert query.run() == []


def test_latest_is_the_default_and_reads_what_comes_after(root: Path) -> None:
    query = Query(lambda: stream(root))
    assert query.run() == []
    append(root, "t", 5)
    assert query.run() == rows_of("t", 0, 100, 105)


def test_latest_is_fixed_by_the_first_batch_also_when_records_come_before_it_is_planned(root: Path) -> None:
    query = Query(lambda: stream(root))
    query.reader.initialOffset()
    append(root, "t", 5)
    query.plan()
    query.restart()
    append(root, "t", 5)
    assert query.read() == [], "the first batch, made again by a process that takes a later offset for latest"
    assert query.run() == rows_of("t", 0, 100, 110)


def test_offsets_and_timestamps_to_start_at(root: Path) -> None:
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


def test_offsets_that_are_not_there_to_start_at(root: Path) -> None:
    starting = json.dumps({"t": {"0": 101, "1": 0}})
    with pytest.raises(DataLossError, match="offsets 101 to 100 were asked for"):
        stream(root, subscribe="t", startingOffsets=starting).initialOffset()
    query = Query(lambda: stream(root, subscribe="t", startingOffsets=starting, failOnDataLoss="false"))
    assert query.run() == rows_of("t", 1, 0, 20)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"assign": '{"t":[1],"u":[0]}'}, 20), ({"subscribePattern": "^t"}, 120), ({"subscribe": "u"}, 0)],
)
def test_subscriptions(root: Path, options: dict[str, str], expected: int) -> None:
    assert len(Query(lambda: stream(root, startingOffsets="earliest", **options)).run()) == expected


def test_a_topic_that_is_not_there_to_start_with(root: Path) -> None:
    with pytest.raises(UnknownTopicError, match="no topic 'v' in this log directory; topics there: t, u"):
        stream(root, subscribe="t,v").initialOffset()


def test_a_pattern_that_no_topic_matches_yet(root: Path) -> None:
    query = Query(lambda: stream(root, subscribePattern="^v"))
    assert query.run() == []
    assert query.offsets == ["{}"]
    LogDir.open(root).create_topic("v1", partitions=1)
    append(root, "v1", 3)
    assert query.run() == rows_of("v1", 0, 0, 3)


def test_a_path_of_one_partition(root: Path) -> None:
    assert len(Query(lambda: stream(root / "t-1", startingOffsets="earliest")).run()) == 20


# Limits and targets


def test_limits_share_out_and_small_partitions_progress(root: Path) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=30))
    assert len(query.run()) == 120
    assert [len(rows) for rows in query.rows] == [30] * 4
    assert query.offsets[0] == '{"t": {"0": 25, "1": 5}, "u": {"0": 0}}'
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


def test_a_minimum_holds_back_what_is_too_little_but_not_the_first_batch(root: Path) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest", minOffsetsPerTrigger=10))
    assert len(query.run()) == 120
    append(root, "t", 9)
    assert query.run() == []
    append(root, "t", 1)
    assert query.run() == rows_of("t", 0, 100, 110)
    append(root, "t", 1)
    query.restart(available_now=True)
    assert query.run() == rows_of("t", 0, 110, 111), "Trigger.AvailableNow would never come to its end"


def test_available_now_ends_at_what_it_saw_in_limited_batches_also_after_a_restart(root: Path) -> None:
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


def test_the_latest_offset_is_reported_beside_a_limited_one(root: Path) -> None:
    reader = stream(root, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.reportLatestOffset() == {"t": {"0": 100, "1": 20}, "u": {"0": 0}}


# Tasks


def test_cuts_by_records_and_bytes(root: Path) -> None:
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
    ranges = [StreamRange("t", number, "/none", 0, 1, False, True, None, None, None, False) for number in range(7)]
    sizes = [200_000, 60_000, 10_000, None, 1, 300_000, 1]
    tasks = share_tasks(zip(ranges, sizes, strict=True))
    assert [[each.partition for each in task.ranges] for task in tasks] == [[0, 1], [2], [3], [4], [5], [6]]


def test_a_schema_of_fewer_columns_and_headers(root: Path) -> None:
    reader = stream(root, ("value", "headers"), assign='{"t":[1]}', startingOffsets="earliest")
    start = reader.initialOffset()
    (planned,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    table = pa.Table.from_batches(reader.read(planned))
    assert table.schema.names == ["value", "headers"]
    assert table.num_rows == 20


def test_nothing_to_read_is_no_work(root: Path) -> None:
    reader = stream(root, startingOffsets="earliest")
    assert list(reader.partitions({"t": {"0": 5}}, {"t": {"0": 5}})) == []
    assert reader.stop() is None


def test_a_log_that_does_not_reach_its_high_watermark(root: Path) -> None:
    (log,) = root.glob("t-1/*.log")
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError):
        Query(lambda: stream(root, startingOffsets="earliest", failOnDataLoss="false")).run()


# Partitions and topics that come and go


def test_new_partitions_and_topics_start_at_earliest(root: Path) -> None:
    query = Query(lambda: stream(root))
    query.run()
    LogDir.open(root).add_partitions("t", 3)
    append(root, "t", 4, 2)
    LogDir.open(root).create_topic("v", partitions=1)
    append(root, "v", 2)
    query.restart()
    assert query.run() == [*rows_of("t", 2, 0, 4), *rows_of("v", 0, 0, 2)]
    assert query.offsets[-1] == '{"t": {"0": 100, "1": 20, "2": 4}, "u": {"0": 0}, "v": {"0": 2}}'


def test_a_deleted_topic_is_data_loss_or_a_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    strict = Query(lambda: stream(root, startingOffsets="earliest"))
    lenient = Query(lambda: stream(root, startingOffsets="earliest", failOnDataLoss="false"))
    strict.run()
    lenient.run()
    LogDir.open(root).delete_topic("t")
    with pytest.raises(DataLossError, match=r"t-0: offsets from 100 on were asked for.*t-1: offsets from 20 on"):
        strict.run()
    with caplog.at_level(logging.WARNING):
        assert lenient.run() == []
    assert "t-1: offsets from 20 on were asked for, the partition is not there" in caplog.text
    assert lenient.offsets[-1] == '{"u": {"0": 0}}'


@pytest.mark.parametrize("count", [3, 150], ids=["shorter", "longer"])
def test_a_topic_made_anew_is_noticed_by_its_id(root: Path, count: int, caplog: pytest.LogCaptureFixture) -> None:
    strict = Query(lambda: stream(root, startingOffsets="earliest", subscribe="t"))
    lenient = Query(lambda: stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss="false"))
    strict.run()
    lenient.run()
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=2)
    append(root, "t", count)
    with pytest.raises(DataLossError, match=r"t-0: offsets from 100 on were asked for.*deleted and made anew"):
        strict.run()
    with caplog.at_level(logging.WARNING):
        assert lenient.plan()
    assert lenient.offsets[-1] == "{}"
    lenient.restart()
    assert lenient.read() == []
    assert lenient.run() == rows_of("t", 0, 0, count)


def test_a_shorter_log_of_ours_is_noticed_after_a_restart_too(root: Path) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss="false"))
    query.run()
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=1)
    append(root, "t", 3)
    query.restart()
    assert query.run() == rows_of("t", 0, 0, 3)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_made_anew_between_plan_and_task_gives_no_row_of_the_new_one(root: Path, fail: str) -> None:
    reader = stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss=fail)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    for state in ("deleted", "made anew"):
        if state == "made anew":
            log_dir.create_topic("t", partitions=2)
            append(root, "t", 100)
        if fail == "true":
            with pytest.raises(DataLossError, match="t-0: offsets 0 to 100 were asked for, but the topic was deleted"):
                list(reader.read(planned[0]))
        else:
            assert list(reader.read(planned[0])) == []


def test_a_topic_made_anew_while_a_task_reads_fails_it_in_any_case(root: Path) -> None:
    reader = stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss="false")
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    batches = reader.read(planned[0])
    next(batches)
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=2)
    with pytest.raises(DataLossError, match="made anew"):
        list(batches)


def test_offsets_below_the_log_start_are_data_loss_or_a_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 12}
    strict = Query(lambda: stream(root, **options))
    lenient = Query(lambda: stream(root, **options, failOnDataLoss="false"))
    for query in (strict, lenient):
        query.plan()
        assert query.read() == [*rows_of("t", 0, 0, 10), *rows_of("t", 1, 0, 2)]
    move_log_start(root, "t", 10)
    strict.plan()
    assert len(strict.read()) == 12, "what was read may go"
    move_log_start(root, "t", 40)
    asked_and_there = "t-0: offsets from 20 on were asked for, those from the log start 40 to the high watermark 100"
    with pytest.raises(DataLossError, match=asked_and_there):
        strict.run()
    with caplog.at_level(logging.WARNING):
        rows = lenient.run()
    assert sorted(rows) == [*rows_of("t", 0, 40, 100), *rows_of("t", 1, 2, 20)]
    assert "t-0: offsets 10 to" in caplog.text
    assert "those from the log start 40 to the high watermark 100 are there" in caplog.text


# Directories of brokers


def test_every_fixture_of_a_broker_as_a_batch_read_has_it(kafka_fixtures: Path) -> None:
    for path in sorted(kafka_fixtures.glob("*/expected/manifest.json")):
        topics = [topic for topic in json.loads(path.read_text()).get("records") or {} if not topic.startswith("__")]
        for isolation in ("read_uncommitted", "read_committed"):
            if topics:
                check_fixture(path.parents[1], topics, isolation)


def check_fixture(fixture: Path, topics: list[str], isolation: Any) -> None:
    """Gaps of compaction and transactions are no loss; only what is there comes, in batches of 37 offsets."""
    options = {"isolationLevel": isolation, "startingOffsets": "earliest", "subscribe": ",".join(topics)}
    log_dir = LogDir.open(fixture)
    expected = [
        (topic, *row.values())
        for topic in topics
        for row in log_dir.read(topic, isolation=isolation, columns=["partition", "offset"]).to_pylist()
    ]
    is_whole = all(each.log_start_offset == 0 for topic in topics for each in log_dir.topic(topic).partitions)
    query = Query(lambda: stream(fixture, **options, maxOffsetsPerTrigger=37))
    assert is_whole or fixture.name == "retention"
    assert sorted(query.run()) == sorted(expected), fixture


@pytest.fixture
def foreign(root: Path) -> Path:
    """`root` as if a broker had written it, with small segments in partition 0."""
    shutil.rmtree(root)
    LogDir.create(root).create_topic("t", partitions=1, configs={"internal.segment.bytes": "4096"})
    for _ in range(20):
        append(root, "t", 10)
    shutil.rmtree(root / "__cluster_metadata-0")
    assert (root / META_PROPERTIES).exists()
    return root


def test_segments_that_a_broker_deleted(foreign: Path) -> None:
    strict = Query(lambda: stream(foreign, startingOffsets="earliest", maxOffsetsPerTrigger=10))
    lenient = Query(
        lambda: stream(foreign, startingOffsets="earliest", maxOffsetsPerTrigger=10, failOnDataLoss="false")
    )
    for query in (strict, lenient):
        query.plan()
        assert len(query.read()) == 10
    logs = sorted(foreign.glob("t-0/*.log"))
    for log in logs[:2]:
        log.unlink()
    log_start_offset = int(logs[2].stem)
    with pytest.raises(DataLossError, match=f"from 10 on were asked for, those from the log start {log_start_offset}"):
        strict.run()
    assert lenient.run() == rows_of("t", 0, log_start_offset, 200)


def test_a_log_start_checkpoint_that_rose(foreign: Path) -> None:
    query = Query(lambda: stream(foreign, startingOffsets="earliest", maxOffsetsPerTrigger=10))
    query.plan()
    query.read()
    (foreign / "log-start-offset-checkpoint").write_text("0\n1\nt 0 15\n")
    with pytest.raises(DataLossError, match="those from the log start 15 to the high watermark 200 are there"):
        query.run()


def test_a_checkpointed_high_watermark_that_lags_is_no_loss(foreign: Path) -> None:
    query = Query(lambda: stream(foreign, startingOffsets="earliest"))
    assert len(query.run()) == 200
    (foreign / "replication-offset-checkpoint").write_text("0\n1\nt 0 150\n")
    assert query.run() == []
    query.restart()
    assert query.read() == rows_of("t", 0, 0, 200)
    assert query.run() == []


def test_a_broker_without_topic_ids(foreign: Path) -> None:
    (foreign / "t-0" / PARTITION_METADATA).unlink()
    query = Query(lambda: stream(foreign, startingOffsets="earliest"))
    assert len(query.run()) == 200


def test_a_brokers_directory_that_became_ours_while_it_was_read(foreign: Path) -> None:
    reader = stream(foreign, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"t": {"0": 200}}
    shutil.rmtree(foreign)
    LogDir.create(foreign).create_topic("t", partitions=1)
    with pytest.raises(DataLossError):
        reader.latestOffset(end, ReadAllAvailable())


def test_planning_loads_no_compiled_code(root: Path) -> None:
    """The reader's process lives as long as its query; what plans must not cost the memory of what decodes."""
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
