"""Tasks of the sink: staged partitions, batches, timestamps and codecs, and no files left after an error."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from open_files import open_files_left

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError, ReadOnlyLogDirError, UnknownTopicError
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.spark.options.parse import WriteOptions, parse_write_options
from pyspark_kafkalog.spark.write.plan import TopicTarget, plan_batch
from pyspark_kafkalog.spark.write.writers import KafkalogBatchWriter, StagedMessage, TaskWriter
from pyspark_kafkalog.storage import staged_file as staging
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, micro_batch_write_id, write_id_of
from pyspark_kafkalog.storage.stager import RowBuffer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "log").create_topic("orders", partitions=4)
    return tmp_path / "log"


def options(root: Path, **given: str) -> WriteOptions:
    return parse_write_options({"path": str(root), **{name.replace("_", "."): text for name, text in given.items()}})


def stage(
    root: Path,
    batches: Sequence[pa.RecordBatch],
    *,
    topic: str | None = "orders",
    task: int = 0,
    write_id: str = "write",
    planned_ns: int = 0,
    **given: str,
) -> list[StagedFile]:
    plan, _ = plan_batch(options(root, **given, **({} if topic is None else {"topic": topic})))
    staging_task = StagingTask(root=root, write_id=write_id, task=task, planned_ns=planned_ns)
    return TaskWriter(staging_task, plan, first_partition=task).write(iter(batches))


def commit(root: Path, staged: list[StagedFile]) -> LogDir:
    log_dir = LogDir.open(root)
    log_dir.commit_staged(staged)
    return log_dir


def rows(count: int, **columns: object) -> pa.RecordBatch:
    values = pa.array([f"value {number}" for number in range(count)])
    return pa.RecordBatch.from_pydict({"value": values, **columns})


def records_by_partition(staged: Sequence[StagedFile]) -> dict[int, int]:
    counts: Counter[int] = Counter()
    for each in staged:
        for partition, records in zip(each.partitions.tolist(), each.batches["records_count"].tolist(), strict=True):
            counts[partition] += records
    return dict(counts)


def staged_files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.staged"))


def test_rows_are_written_once_and_keyed_rows_keep_order(root: Path) -> None:
    batches = [rows(1000, key=pa.array([f"key {number % 17}" for number in range(1000)])) for _ in range(3)]
    table = commit(root, stage(root, batches)).read("orders")
    assert table.num_rows == 3000
    by_key: dict[bytes, list[bytes]] = {}
    for row in table.select(["key", "value"]).to_pylist():
        by_key.setdefault(row["key"], []).append(row["value"])
    for number in range(17):
        expected = [f"value {row}".encode() for row in range(number, 1000, 17)] * 3
        assert by_key[f"key {number}".encode()] == expected


def test_small_arrow_batches_are_joined_into_whole_record_batches(root: Path) -> None:
    staged = stage(root, [rows(100) for _ in range(100)], batch_size="16k")
    sizes = [int(size) for each in staged for size in each.batches["size_bytes"]]
    assert sum(size > 14_000 for size in sizes) >= len(sizes) - 4
    assert [set(each.partitions.tolist()) for each in staged] == [{0, 1, 2, 3}]


@pytest.mark.parametrize("topic", ["orders", None])
def test_cuts_between_arrow_batches_change_no_byte(root: Path, topic: str | None) -> None:
    names = pa.array([f"topic {number % 3}".replace(" ", "-") for number in range(300)])
    keys = pa.array([None if number % 4 == 0 else f"key {number}" for number in range(300)])
    whole = rows(300, topic=names, key=keys, timestamp=pa.array([1_700_000_000_000] * 300, pa.timestamp("ms", "UTC")))
    bytes_written = []
    for number, step in enumerate((300, 7, 64)):
        batches = [whole.slice(at, step) for at in range(0, 300, step)]
        staged = stage(root, batches, topic=topic, write_id=f"write{number}", batch_size="1k")
        bytes_written.append([(each.topic_partition, each.path(root).read_bytes()) for each in staged])
    assert bytes_written[0] == bytes_written[1] == bytes_written[2]


def test_few_rows_without_key_make_one_batch_and_tasks_start_at_different_partitions(root: Path) -> None:
    for task in range(3):
        (staged,) = stage(root, [rows(10)], task=task)
        assert records_by_partition([staged]) == {task: 10}
        assert staged.name == f"write-{task}.staged"


def test_partition_column_decides_and_null_uses_partitioner(root: Path) -> None:
    partitions = pa.array([3, 3, None, 1], pa.int32())
    staged = stage(root, [rows(4, partition=partitions, key=pa.array(["a", "a", "21", "a"]))])
    assert records_by_partition(staged) == {(-973932308 & 0x7FFFFFFF) % 4: 1, 1: 1, 3: 2}


@pytest.mark.parametrize("bad", [4, -1])
def test_partition_out_of_range_fails_and_leaves_no_file(root: Path, bad: int) -> None:
    good = rows(10, partition=pa.array([0] * 10, pa.int32()))
    with pytest.raises(InvalidRecordError, match=f"partition {bad}"):
        stage(root, [good, rows(1, partition=pa.array([bad], pa.int32()))])
    assert staged_files(root) == []


def test_failure_in_later_buffer_removes_files_staged_before(root: Path) -> None:
    class Failing:
        def __iter__(self) -> Failing:
            self.left = 2
            return self

        def __next__(self) -> pa.RecordBatch:
            self.left -= 1
            if self.left < 0:
                raise OSError("the task was killed")
            return pa.RecordBatch.from_pydict({"value": pa.array([b"x" * (40 << 20)])})

    log_dir = LogDir.open(root)
    log_dir.alter_topic("orders", add={"max.message.bytes": "100000000"})
    task = StagingTask(root=root, write_id="write", task=0)
    plan, _ = plan_batch(options(root, topic="orders"))
    with pytest.raises(OSError, match="killed"):
        TaskWriter(task, plan, first_partition=0).write(iter(Failing()))
    assert staged_files(root) == []


def test_only_a_run_planned_later_removes_what_a_try_of_a_micro_batch_staged(root: Path) -> None:
    failed, current, next_run = (micro_batch_write_id("query", 0, run) for run in ("failed", "current", "next"))
    stage(root, [rows(10)], write_id=current, planned_ns=2_000)
    for path in staged_files(root):
        os.utime(path, ns=(2_500, 2_500))
    stage(root, [rows(10)], write_id=failed, planned_ns=1_000)  # it ran on while the query was started again
    assert {write_id_of(path.name) for path in staged_files(root)} == {failed, current}
    for path in staged_files(root):
        os.utime(path, ns=(2_700, 2_700))
    stage(root, [rows(10)], write_id=next_run, planned_ns=3_000)
    assert {write_id_of(path.name) for path in staged_files(root)} == {next_run}


def test_topics_of_rows_are_created_and_get_their_rows_in_order(root: Path) -> None:
    topics = pa.array(["orders", "new", "orders", "other"] * 50)
    log_dir = commit(root, stage(root, [rows(200, topic=topics)], topic=None))
    log_dir.refresh()
    assert set(log_dir.topics()) >= {"orders", "new", "other"}
    new = log_dir.read("new").column("value").to_pylist()
    assert new == [f"value {row}".encode() for row in range(1, 200, 4)]
    assert log_dir.read("orders").num_rows == 100


def test_task_with_more_partitions_than_open_files_allowed_writes_all(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_OPEN_FILES_MAX", 4)
    monkeypatch.setattr(staging, "SHARED_BYTES", 0)
    LogDir.open(root).create_topic("wide", partitions=60)
    everywhere = [rows(60, partition=pa.array(range(60), pa.int32())) for _ in range(2)]
    plan_batch(options(root, topic="wide"))  # what it imports is not to be counted
    with open_files_left(40):
        staged = stage(root, everywhere, topic="wide")
    assert len(staged) == 60
    assert commit(root, staged).read("wide").num_rows == 120


def test_topic_deleted_before_task_is_named(root: Path) -> None:
    plan, _ = plan_batch(options(root, topic="orders"))
    LogDir.open(root).delete_topic("orders")
    task = StagingTask(root=root, write_id="write", task=0)
    with pytest.raises(UnknownTopicError, match=r"orders-0: expected its directory in .*: the topic was deleted"):
        TaskWriter(task, plan, first_partition=0).write(iter([rows(1)]))


def test_null_topic_fails_as_in_sparks_sink(root: Path) -> None:
    with pytest.raises(InvalidRecordError, match="contains a null topic"):
        stage(root, [rows(2, topic=pa.array(["orders", None]))], topic=None)
    assert staged_files(root) == []


def test_topic_option_precedes_column(root: Path) -> None:
    (staged,) = stage(root, [rows(2, topic=pa.array(["a", None]))])
    assert staged.topic_partition.topic == "orders"


def test_microsecond_timestamps_are_truncated_and_null_is_now(root: Path) -> None:
    given = pa.array([1_700_000_000_123_999, None], pa.timestamp("us", "Europe/Berlin"))
    before = datetime.now(timezone.utc)
    table = commit(root, stage(root, [rows(2, timestamp=given)])).read("orders")
    first, second = table.column("timestamp").to_pylist()
    assert first == datetime.fromtimestamp(1_700_000_000.123, timezone.utc)
    assert abs((second - before).total_seconds()) < 60


def test_negative_timestamps_are_refused(root: Path) -> None:
    with pytest.raises(InvalidRecordError, match="timestamp"):
        stage(root, [rows(1, timestamp=pa.array([-2_000_000], pa.timestamp("us", "UTC")))])


def test_headers_nulls_and_slices_are_written(root: Path) -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = [[("a", b"1"), ("a", None)], None, [], [("é", b"")]]
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None, b"k", b"", b"x"], pa.binary()),
            "value": pa.array([b"v", None, b"", b"y"], pa.binary()),
            "headers": pa.array(
                [None if h is None else [{"key": k, "value": v} for k, v in h] for h in headers], pa.list_(pair)
            ),
            "partition": pa.array([1] * 4, pa.int32()),
        }
    )
    table = commit(root, stage(root, [batch.slice(1), batch.slice(0, 1)])).read("orders")
    assert table.column("key").to_pylist() == [b"k", b"", b"x", None]
    assert table.column("value").to_pylist() == [None, b"", b"y", b"v"]
    found = [[(each["key"], each["value"]) for each in row or []] for row in table.column("headers").to_pylist()]
    assert found == [[], [], [("é", b"")], [("a", b"1"), ("a", None)]]


@pytest.mark.parametrize(
    ("asked", "configured", "codec"),
    [
        (None, "producer", CompressionType.NONE),
        ("zstd", "producer", CompressionType.ZSTD),
        ("zstd", "lz4", CompressionType.LZ4),
        ("zstd", "uncompressed", CompressionType.NONE),
        (None, "gzip", CompressionType.GZIP),
        ("snappy", "producer", CompressionType.SNAPPY),
    ],
)
def test_codec_of_topic_precedes_that_of_writer(
    root: Path, asked: str | None, configured: str, codec: CompressionType
) -> None:
    LogDir.open(root).alter_topic("orders", add={"compression.type": configured})
    (staged,) = stage(root, [rows(50)], **({"compression_type": asked} if asked else {}))
    assert set(staged.batches["attributes"] & 7) == {codec}


def test_topic_with_log_append_time_sets_append_time(root: Path) -> None:
    LogDir.open(root).alter_topic("orders", add={"message.timestamp.type": "LogAppendTime"})
    old = pa.array([0], pa.timestamp("us", "UTC"))
    table = commit(root, stage(root, [rows(1, timestamp=old)])).read("orders")
    assert table.column("timestampType").to_pylist() == [1]
    assert table.column("timestamp")[0].as_py().year > 2000


def test_compacted_topic_refuses_record_without_key(root: Path) -> None:
    LogDir.open(root).alter_topic("orders", add={"cleanup.policy": "compact"})
    for key in (None, pa.array(["a", None])):
        with pytest.raises(InvalidRecordError, match="compacted: every record needs a key"):
            stage(root, [rows(2) if key is None else rows(2, key=key)])
    assert len(stage(root, [rows(2, key=pa.array(["a", ""]))])) >= 1


def test_timestamps_beyond_topics_limits_are_refused(root: Path) -> None:
    LogDir.open(root).alter_topic("orders", add={"message.timestamp.before.max.ms": "60000"})
    with pytest.raises(InvalidRecordError, match=r"message.timestamp.before.max.ms"):
        stage(root, [rows(1, timestamp=pa.array([1_000_000], pa.timestamp("us", "UTC")))])
    far = int(datetime(2200, 1, 1, tzinfo=timezone.utc).timestamp() * 1_000_000)
    with pytest.raises(InvalidRecordError, match=r"message.timestamp.after.max.ms"):
        stage(root, [rows(1, timestamp=pa.array([far], pa.timestamp("us", "UTC")))])


def test_record_over_max_message_bytes_is_refused_with_limit(root: Path) -> None:
    with pytest.raises(InvalidRecordError, match=r"max.message.bytes"):
        stage(root, [pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 2_000_000])})])
    assert staged_files(root) == []


def test_round_robin_spreads_rows_with_keys(root: Path) -> None:
    staged = stage(root, [rows(1000, key=pa.array(["same"] * 1000))], partitioner="round_robin", batch_size="1k")
    assert set(records_by_partition(staged)) == {0, 1, 2, 3}


def test_empty_task_stages_nothing(root: Path) -> None:
    assert stage(root, []) == []
    assert stage(root, [rows(0)]) == []


def test_large_arrow_batch_is_taken_in_slices() -> None:
    buffer = RowBuffer(limit_bytes=1000)
    batch = rows(1000)
    collected = [*buffer.add(batch), *buffer.flush()]
    assert len(collected) > 5
    values = [piece["value"] for pieces in collected for piece in pieces]
    assert pa.concat_arrays(values).equals(batch.column("value"))


def test_commit_appends_tasks_in_order_and_abort_removes_their_files(root: Path) -> None:
    writer = KafkalogBatchWriter.make(options(root, topic="orders"))
    for commits in (True, False):
        messages = []
        for partition_id in (1, 0):
            batch = rows(2, key=pa.array(["k", "k"]), value=pa.array([f"task {partition_id}"] * 2))
            staged = stage(root, [batch], task=partition_id, write_id=writer.plan.write_id)
            messages.append(pickle.loads(pickle.dumps(StagedMessage(partition_id, tuple(staged)))))
        if commits:
            writer.commit(messages)
        else:
            writer.abort([messages[0], None])
        assert staged_files(root) == []
    values = LogDir.open(root).read("orders").column("value").to_pylist()
    assert values == [b"task 0"] * 2 + [b"task 1"] * 2


def test_write_without_rows_commits_nothing(root: Path) -> None:
    KafkalogBatchWriter.make(options(root, topic="orders")).commit([StagedMessage(0, ())])
    assert LogDir.open(root).read("orders").num_rows == 0


def test_planning_creates_root_and_topic_and_plan_can_be_pickled(tmp_path: Path) -> None:
    writer = KafkalogBatchWriter.make(options(tmp_path / "made", topic="t"))
    assert LogDir.open(tmp_path / "made").topics() == ("t",)
    assert isinstance(pickle.loads(pickle.dumps(writer)).plan.target, TopicTarget)


def test_write_into_broker_or_partition_directory_is_refused(kafka_fixtures: Path) -> None:
    with pytest.raises(ReadOnlyLogDirError):
        KafkalogBatchWriter.make(options(kafka_fixtures / "cars", topic="cars"))
    with pytest.raises(InvalidOptionError, match="names the partition directory of cars-0"):
        KafkalogBatchWriter.make(options(kafka_fixtures / "cars" / "cars-0", topic="cars"))
