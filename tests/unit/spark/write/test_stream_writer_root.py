"""The streaming sink and its log directory: created by the first micro-batch only, and the same one ever after."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from builders.metadata_roots import forget_images
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.spark.data_source import KafkalogDataSource, read_schema
from pyspark_kafkalog.spark.options.parse import parse_write_options
from pyspark_kafkalog.spark.write.plan import BATCH_ID_PROPERTY, QUERY_ID_PROPERTY, RUN_ID_PROPERTY, MicroBatch
from pyspark_kafkalog.spark.write.writers import KafkalogBatchWriter, KafkalogStreamWriter

Messages = list[WriterCommitMessage | None]


@dataclass
class FakeTask:
    """The part of Spark's TaskContext that a writer looks at."""

    partition: int
    properties: dict[str, str]

    def partitionId(self) -> int:
        return self.partition

    def taskAttemptId(self) -> int:
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


@dataclass
class Sink:
    """A query's micro-batches as Spark runs them: a writer to plan, one in each task, one to commit."""

    root: Path
    enter: Callable[[FakeTask], None]
    topic: str | None = "t"
    query: str = "query"

    def writer(self) -> KafkalogStreamWriter:
        given = {"path": str(self.root), **({} if self.topic is None else {"topic": self.topic})}
        schema = read_schema(include_headers=False)
        made = KafkalogDataSource(given).streamWriter(type(schema)([schema["value"], schema["topic"]]), overwrite=False)
        assert isinstance(made, KafkalogStreamWriter)
        return made

    def stage(self, writer: KafkalogStreamWriter, batch_id: int, *tasks: list[str]) -> Messages:
        messages: Messages = []
        for partition, values in enumerate(tasks):
            properties = {QUERY_ID_PROPERTY: self.query, RUN_ID_PROPERTY: "run", BATCH_ID_PROPERTY: str(batch_id)}
            self.enter(FakeTask(partition, properties))
            columns = {"value": pa.array(values, pa.string()), "topic": pa.array(["t"] * len(values), pa.string())}
            batch = pa.RecordBatch.from_pydict(columns)
            messages.append(pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter([batch])))))
        return messages

    def run(self, batch_id: int, *tasks: list[str]) -> None:
        self.writer().commit(self.stage(self.writer(), batch_id, *tasks), batch_id)

    def values(self) -> list[str]:
        return sorted(value.decode() for value in LogDir.open(self.root).read("t").column("value").to_pylist())


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeTask], None]:
    current: list[FakeTask] = []
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: current[-1])
    return current.append


@pytest.fixture(params=["t", None], ids=["one topic", "rows name topics"])
def sink(tmp_path: Path, enter: Callable[[FakeTask], None], request: pytest.FixtureRequest) -> Sink:
    return Sink(tmp_path / "volume" / "log", enter, topic=request.param)


def replace_root(root: Path, by: str) -> None:
    root.rename(root.with_name("away"))
    if by == "an empty directory":
        root.mkdir()
    elif by == "an empty mount point":
        root.parent.rename(root.parent.with_name("unmounted"))
        root.parent.mkdir()
    elif by == "another log directory":
        LogDir.create(root).create_topic("t", partitions=1)


def test_planning_creates_nothing_and_first_micro_batch_creates_root_and_topic(sink: Sink) -> None:
    writer = sink.writer()
    assert not sink.root.exists()
    messages = sink.stage(writer, 0, ["a"], ["b"])
    sink.writer().commit(messages, 0)
    sink.run(1, ["c"])
    assert sink.values() == ["a", "b", "c"]


@pytest.mark.parametrize("by", ["nothing", "an empty directory", "an empty mount point"])
@pytest.mark.parametrize("first", [["a"], []], ids=["rows", "no rows"])
def test_later_micro_batch_creates_no_log_directory(sink: Sink, by: str, first: list[str]) -> None:
    sink.run(0, first)
    replace_root(sink.root, by)
    found = "an empty directory" if by == "an empty directory" else "no such directory"
    for batch_id in (1, 57):
        for rows in (["b"], []):
            expected = f"earlier micro-batches of query query went to, found {found}, for micro-batch {batch_id};"
            with pytest.raises(LogDirError, match=expected):
                sink.run(batch_id, rows)
    assert not sink.root.exists() or list(sink.root.iterdir()) == []


def test_later_micro_batch_is_refused_by_other_log_directory(sink: Sink) -> None:
    sink.run(0, ["a"])
    replace_root(sink.root, "another log directory")
    other = LogDir.open(sink.root)
    before = other.version
    for rows in (["b"], []):
        writer = sink.writer()
        with pytest.raises(LogDirError, match=f"found one with {other.identity} that has nothing of it, for micro-b"):
            sink.run(1, rows)
        writer.abort([], 1)
    assert LogDir.open(sink.root).version == before
    shutil.rmtree(sink.root)
    sink.root.with_name("away").rename(sink.root)
    sink.run(1, ["b"])
    assert sink.values() == ["a", "b"]


def test_no_topic_is_created_in_other_log_directory(sink: Sink) -> None:
    sink.run(0, ["a"])
    sink.root.rename(sink.root.with_name("away"))
    LogDir.create(sink.root)
    with pytest.raises(LogDirError, match="has nothing of it, for micro-batch 1"):
        sink.run(1, ["b"])
    assert LogDir.open(sink.root).topics() == ()


@pytest.mark.parametrize("by", ["nothing", "an empty directory", "another log directory"])
@pytest.mark.parametrize("batch_id", [0, 1])
@pytest.mark.parametrize("after", ["plan", "tasks"])
def test_log_directory_replaced_during_micro_batch_fails_it(sink: Sink, by: str, batch_id: int, after: str) -> None:
    LogDir.create(sink.root).create_topic("t", partitions=1)
    identity = LogDir.open(sink.root).identity
    sink.run(0, ["a"])
    writer = sink.writer()
    messages = sink.stage(writer, batch_id, ["b"]) if after == "tasks" else []
    replace_root(sink.root, by)
    with pytest.raises(LogDirError, match=f"expected the log directory with {identity}, found"):
        sink.writer().commit(messages or sink.stage(writer, batch_id, ["b"]), batch_id)
    if by == "another log directory":
        assert sink.values() == []


def test_query_continues_in_other_log_directory_after_registration(sink: Sink) -> None:
    sink.run(0, ["a"])
    shutil.rmtree(sink.root)
    with pytest.raises(LogDirError) as raised:
        sink.run(1, ["b"])
    advice = re.search(r"run first: (LogDir\.open_or_create\(.*\)\.init_transaction\(.*\))", str(raised.value))
    assert advice is not None
    eval(advice[1], {"LogDir": LogDir})
    sink.run(1, ["b"])
    assert sink.values() == ["b"]


def test_first_micro_batch_finishes_root_whose_creation_was_killed(sink: Sink) -> None:
    LogDir.create(sink.root)
    for commit in (sink.root / "__cluster_metadata-0").glob("*.log"):
        commit.unlink()
    (sink.root / "__cluster_metadata-0" / "kafkalog-head").unlink()
    forget_images()
    sink.run(0, ["a"])
    assert sink.values() == ["a"]


def test_batch_written_in_foreach_batch_is_checked_alike(tmp_path: Path) -> None:
    root = tmp_path / "log"
    MicroBatch("query", "", 0).check_path(root)
    with pytest.raises(LogDirError, match="found no such directory, for micro-batch 3"):
        MicroBatch("query", "", 3).check_path(root)
    LogDir.create(root)
    with pytest.raises(LogDirError, match="has nothing of it, for micro-batch 3"):
        MicroBatch("query", "", 3).check_path(root)
    LogDir.open(root).init_transaction("query", "run")
    MicroBatch("query", "", 3).check_path(root)


# Batch writes


@pytest.mark.parametrize("given", [{}, {"txnAppId": "app", "txnVersion": "1"}], ids=["plain", "with a transaction"])
@pytest.mark.parametrize("by", ["nothing", "an empty directory", "another log directory"])
@pytest.mark.parametrize("after", ["plan", "tasks"])
def test_log_directory_replaced_during_batch_write_fails_it(
    tmp_path: Path, enter: Callable[[FakeTask], None], given: dict[str, str], by: str, after: str
) -> None:
    root = tmp_path / "log"
    writer = KafkalogBatchWriter.make(parse_write_options({"path": str(root), "topic": "t", **given}))
    identity = LogDir.open(root).identity
    enter(FakeTask(0, {}))
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a"])})
    messages = [writer.write(iter([batch]))] if after == "tasks" else []
    replace_root(root, by)
    with pytest.raises(LogDirError, match=f"expected the log directory with {identity}, found"):
        writer.commit(messages or [writer.write(iter([batch]))])
    if by == "another log directory":
        assert LogDir.open(root).read("t").num_rows == 0
    else:
        assert not root.exists() or list(root.iterdir()) == []
