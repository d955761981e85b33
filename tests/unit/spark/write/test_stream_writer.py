"""The streaming writer without Spark: its messages, and that each micro-batch is committed once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from builders.root_places import RootPlace
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import InvalidOptionError, LowerVersionError, ProducerFencedError, ReadOnlyLogDirError
from pyspark_kafkalog.spark.options.parse import WriteOptions, parse_stream_write_options, parse_write_options
from pyspark_kafkalog.spark.write.plan import BATCH_ID_PROPERTY, QUERY_ID_PROPERTY, RUN_ID_PROPERTY, plan_stream
from pyspark_kafkalog.spark.write.writers import KafkalogBatchWriter, KafkalogStreamWriter

Messages = list[WriterCommitMessage | None]


@dataclass
class FakeTask:
    """The part of Spark's TaskContext that a writer looks at."""

    partition: int
    attempt: int
    properties: dict[str, str]

    def partitionId(self) -> int:
        return self.partition

    def taskAttemptId(self) -> int:
        return self.attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    LogDir.create(root_place).create_topic("t", partitions=4)
    return root_place


@pytest.fixture
def enter_task(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeTask], None]:
    current: list[FakeTask] = []
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: current[-1])
    return current.append


def stream_options(root: RootPlace, **given: str) -> WriteOptions:
    return parse_stream_write_options({"path": str(root), **given})


def fresh_writer(root: RootPlace, **given: str) -> KafkalogStreamWriter:
    """A writer as each worker of Spark makes one for itself."""
    return KafkalogStreamWriter.make(stream_options(root, **{"topic": "t", **given}))


class Query:
    """Runs micro-batches as Spark does: plan, tasks and commit in processes of their own, messages pickled."""

    def __init__(self, root: RootPlace, enter_task: Callable[[FakeTask], None], **options: str) -> None:
        self.root, self.options, self.attempts = root, options, 0
        self._enter_task = enter_task

    def stage(self, batch_id: int, values: list[list[str]], *, run: str = "run 1", query: str = "query") -> Messages:
        """One task for each list of values; the messages of all."""
        writer = pickle.loads(pickle.dumps(fresh_writer(self.root, **self.options)))
        return [self.task(writer, partition, batch_id, rows, run, query) for partition, rows in enumerate(values)]

    def task(
        self, writer: KafkalogStreamWriter, partition: int, batch_id: int, rows: list[str], run: str, query: str
    ) -> WriterCommitMessage:
        properties = {QUERY_ID_PROPERTY: query, RUN_ID_PROPERTY: run, BATCH_ID_PROPERTY: str(batch_id)}
        self.attempts += 1
        self._enter_task(FakeTask(partition, self.attempts, properties))
        batch = pa.RecordBatch.from_pydict({"value": pa.array(rows, pa.string())})
        message: WriterCommitMessage = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
        return message

    def commit(self, batch_id: int, messages: Messages) -> None:
        fresh_writer(self.root, **self.options).commit(messages, batch_id)

    def run(self, batch_id: int, *values: list[str], run: str = "run 1", query: str = "query") -> None:
        self.commit(batch_id, self.stage(batch_id, list(values), run=run, query=query))

    def values(self) -> list[str]:
        return sorted(value.decode() for value in LogDir.open(self.root).read("t").column("value").to_pylist())

    def staged_files(self) -> list[Path]:
        return staged_in(self.root)


def staged_in(root: RootPlace) -> list[Path]:
    """Staged files; few rows for a root in an object store travel with the messages."""
    return list(root.glob("*/*.staged")) if isinstance(root, Path) else []


@pytest.fixture
def query(root: RootPlace, enter_task: Callable[[FakeTask], None]) -> Query:
    return Query(root, enter_task)


def test_all_tasks_of_micro_batch_are_one_commit_with_query_and_batch_ids(query: Query) -> None:
    query.run(0, [])
    query.run(7, ["a", "b"], [], ["c"])
    assert query.values() == ["a", "b", "c"]
    assert LogDir.open(query.root).last_version("query") == 7
    assert query.staged_files() == []


@pytest.mark.parametrize("run", ["run 1", "run 2"])
def test_replayed_micro_batch_is_committed_once(query: Query, run: str) -> None:
    for batch_id in (0, 1):
        query.run(batch_id, [f"value {batch_id}"])
    before = commits(query.root)
    query.run(1, ["value 1"], run=run)
    assert query.values() == ["value 0", "value 1"]
    assert commits(query.root) == before
    assert query.staged_files() == []
    query.run(2, ["value 2"], run=run)
    assert query.values() == ["value 0", "value 1", "value 2"]


def test_run_is_fenced_by_later_run_and_error_names_both(query: Query) -> None:
    query.run(0, ["a"], run="old")
    late = query.stage(1, [["from the zombie"]], run="old")
    query.run(0, ["a"], run="new")
    query.run(1, ["b"], run="new")
    query.commit(1, late)  # a batch that is there already: nothing to do, whoever asks
    with pytest.raises(ProducerFencedError, match=r"old.*is fenced.*new"):
        query.run(2, ["from the zombie"], run="old")
    query.run(2, ["c"], run="new")
    assert query.values() == ["a", "b", "c"]


def test_two_queries_into_one_topic_are_no_replays_of_each_other(query: Query) -> None:
    for name in ("one", "two"):
        query.run(0, [f"of {name}"], query=name)
    assert query.values() == ["of one", "of two"]


def test_only_first_of_micro_batches_without_rows_is_committed(query: Query) -> None:
    before = commits(query.root)
    query.run(0, [], [])
    assert commits(query.root) == before + 1
    assert LogDir.open(query.root).last_version("query") == 0
    query.run(0, [], [], run="run 2")
    query.run(1, [], [], run="run 2")
    assert commits(query.root) == before + 1
    query.run(2, ["a"])
    assert query.values() == ["a"]


@pytest.mark.file_roots
def test_only_one_attempt_of_task_is_committed(query: Query) -> None:
    writer = fresh_writer(query.root)
    first, second = (query.task(writer, 0, 0, ["a"], "run 1", "query") for _ in range(2))
    assert len(query.staged_files()) == 2
    query.commit(0, [second])
    assert query.values() == ["a"]
    assert query.staged_files() == []
    query.commit(0, [first])
    assert query.values() == ["a"]


@pytest.mark.file_roots
def test_replay_that_is_skipped_leaves_no_file_of_other_attempts(query: Query) -> None:
    query.run(0, ["a"])
    writer = fresh_writer(query.root)
    first, _ = (query.task(writer, 0, 0, ["a"], "run 2", "query") for _ in range(2))
    query.commit(0, [first])
    assert query.staged_files() == []


@pytest.mark.file_roots
def test_tries_of_a_micro_batch_that_always_fails_leave_the_files_of_the_last_one(query: Query) -> None:
    """No task has a message, so the abort has nothing to find the files by."""
    other = query.stage(3, [["of another query"]], query="other")
    for number in range(5):
        query.stage(3, [["a"], ["b"], ["c"]], run=f"run {number}")
        fresh_writer(query.root).abort([None, None, None], 3)
        assert len(query.staged_files()) == 4
    query.run(0, [])
    query.run(3, ["a"], ["b"], ["c"], run="run 5")
    assert len(query.staged_files()) == 1
    query.run(0, [], query="other")
    query.commit(3, other)
    assert query.values() == ["a", "b", "c", "of another query"]
    assert query.staged_files() == []


@pytest.mark.file_roots
def test_abort_finds_files_of_tasks_without_a_message_by_query_batch_and_run(query: Query) -> None:
    mine = query.stage(3, [["a"], ["b"]], run="run 1")
    later, other = query.stage(4, [["c"]], run="run 1"), query.stage(3, [["d"]], query="other")
    fresh_writer(query.root).abort([mine[0], None], 3)
    left = sorted(each.name for message in (*later, *other) for each in message.staged)  # type: ignore[union-attr]
    assert sorted(path.name for path in query.staged_files()) == left


@pytest.mark.file_roots
def test_abort_removes_staged_files_of_its_write_only(query: Query) -> None:
    mine, other = query.stage(0, [["a"], ["b"]]), query.stage(0, [["c"]], query="other")
    fresh_writer(query.root).abort([mine[0], None], 0)
    assert len(query.staged_files()) == 1
    query.commit(0, other)
    assert query.values() == ["c"]
    fresh_writer(query.root).abort([None, None], 0)


def test_task_without_message_fails_commit_as_in_continuous_processing(query: Query) -> None:
    (message,) = query.stage(0, [["a"]])
    with pytest.raises(InvalidOptionError, match=r"1 of 2 tasks.*not trigger\(continuous"):
        query.commit(0, [message, None])
    assert query.values() == []


@pytest.mark.parametrize("missing", [QUERY_ID_PROPERTY, RUN_ID_PROPERTY, BATCH_ID_PROPERTY])
def test_task_without_micro_batch_properties_fails_before_staging(
    root: RootPlace, enter_task: Callable[[FakeTask], None], missing: str
) -> None:
    properties = {QUERY_ID_PROPERTY: "query", RUN_ID_PROPERTY: "run", BATCH_ID_PROPERTY: "0"}
    del properties[missing]
    enter_task(FakeTask(0, 0, properties))
    with pytest.raises(InvalidOptionError, match=f"{missing}=None"):
        fresh_writer(root).write(iter([pa.RecordBatch.from_pydict({"value": pa.array(["a"])})]))
    assert staged_in(root) == []


def test_small_micro_batches_fill_partitions_in_turn_without_new_segments(query: Query) -> None:
    for batch_id in range(40):
        query.run(batch_id, [f"value {batch_id}"])
    counts = [LogDir.open(query.root).partition("t", partition).high_watermark for partition in range(4)]
    assert counts == [10] * 4
    if isinstance(query.root, Path):
        assert len(list(query.root.glob("t-*/*.log"))) == 4


def test_rows_of_two_topics_are_one_commit(query: Query) -> None:
    writer = KafkalogStreamWriter.make(parse_stream_write_options({"path": str(query.root)}))
    properties = {QUERY_ID_PROPERTY: "query", RUN_ID_PROPERTY: "run", BATCH_ID_PROPERTY: "0"}
    query._enter_task(FakeTask(0, 0, properties))
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"]), "topic": pa.array(["t", "made"])})
    message = writer.write(iter([batch]))
    before = commits(query.root)
    writer.commit([message], 0)
    assert commits(query.root) == before + 1
    assert {topic: LogDir.open(query.root).read(topic).num_rows for topic in ("t", "made")} == {"t": 1, "made": 1}


def test_flush_os_commits_the_same(root: RootPlace, enter_task: Callable[[FakeTask], None]) -> None:
    query = Query(root, enter_task, flush="os")
    for batch_id in (0, 1, 1):
        query.run(batch_id, [f"value {batch_id}"])
    assert query.values() == ["value 0", "value 1"]


def test_stream_write_into_broker_directory_is_refused_at_planning(kafka_fixtures: Path) -> None:
    for topic in ("cars", "new"):
        with pytest.raises(ReadOnlyLogDirError):
            plan_stream(stream_options(kafka_fixtures / "cars", topic=topic))


def test_query_settings_are_accepted_and_batch_write_ids_refused(root: RootPlace) -> None:
    stream_options(root, checkpointlocation="/c", queryname="q")
    with pytest.raises(InvalidOptionError, match="are for batch writes; a streaming write is made once"):
        stream_options(root, txnappid="a", txnversion="1")


# Batch writes with an id and a version


def batch_writer(root: RootPlace, version: int, app_id: str = "app", **options: str) -> KafkalogBatchWriter:
    given = {"path": str(root), "topic": "t", "txnAppId": app_id, "txnVersion": str(version), **options}
    return KafkalogBatchWriter.make(parse_write_options(given))


def write_batch(query: Query, writer: KafkalogBatchWriter, *rows: str) -> None:
    query._enter_task(FakeTask(0, query.attempts, {}))
    query.attempts += 1
    batch = pa.RecordBatch.from_pydict({"value": pa.array(list(rows), pa.string())})
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([batch]))])


def test_batch_write_with_committed_version_is_not_repeated(query: Query) -> None:
    for version, app_id in ((5, "app"), (5, "app"), (6, "app"), (0, "other app")):
        write_batch(query, batch_writer(query.root, version, app_id), f"{app_id} {version}")
    assert query.values() == ["app 5", "app 6", "other app 0"]
    assert query.staged_files() == []


def test_back_fill_with_a_lower_version_fails_while_it_is_planned_and_fences_nobody(query: Query) -> None:
    write_batch(query, batch_writer(query.root, 5), "5")
    current = batch_writer(query.root, 6)
    with pytest.raises(LowerVersionError, match=r"version 4 .*last committed version 5, .*txnLowerVersion"):
        batch_writer(query.root, 4)
    write_batch(query, batch_writer(query.root, 4, txnLowerVersion="skip"), "4")
    write_batch(query, current, "6")
    assert query.values() == ["5", "6"]


def test_micro_batch_below_the_last_committed_one_fails(query: Query) -> None:
    for batch_id in (0, 1, 2):
        query.run(batch_id, [str(batch_id)])
    with pytest.raises(LowerVersionError, match="version 1 of transactional id 'query' is below"):
        query.run(1, ["another 1"])
    assert query.values() == ["0", "1", "2"]


def test_version_without_rows_counts_as_written(query: Query) -> None:
    write_batch(query, batch_writer(query.root, 1))
    write_batch(query, batch_writer(query.root, 1), "late")
    assert query.values() == []


def test_planning_batch_write_fences_earlier_one(query: Query) -> None:
    slow, fast = batch_writer(query.root, 1), batch_writer(query.root, 1)
    with pytest.raises(ProducerFencedError):
        write_batch(query, slow, "slow")
    write_batch(query, fast, "fast")
    write_batch(query, slow, "slow")  # by now the version is there
    assert query.values() == ["fast"]


@pytest.mark.file_roots
def test_commit_removes_files_of_failed_attempts_and_of_fenced_tries(query: Query) -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a"], pa.string())})
    killed, again, foreign = (batch_writer(query.root, 1, app_id) for app_id in ("app", "app", "other app"))
    for attempt, writer in enumerate((killed, again, foreign)):
        query._enter_task(FakeTask(0, 100 + attempt, {}))
        writer.write(iter([batch]))
    write_batch(query, again, "a")
    assert [path.name for path in query.staged_files()] == [f"{foreign.plan.write_id}-102.staged"]


@pytest.mark.parametrize("given", [{"txnAppId": "a"}, {"txnVersion": "1"}])
def test_id_or_version_alone_is_refused(root: RootPlace, given: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError, match="txnAppId and txnVersion go together"):
        parse_write_options({"path": str(root), **given})


def test_lower_versions_without_a_version_are_refused(root: RootPlace) -> None:
    with pytest.raises(InvalidOptionError, match="txnLowerVersion goes with txnAppId"):
        parse_write_options({"path": str(root), "txnLowerVersion": "skip"})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("txnVersion", "-1", "a whole number from 0"),
        ("txnVersion", "one", "a whole number from 0"),
        ("txnAppId", " ", "a value"),
        ("txnLowerVersion", "write", "one of fail, skip"),
        ("flush", "none", "one of fsync, os"),
    ],
)
def test_invalid_values_are_refused_with_allowed_values(root: RootPlace, name: str, text: str, expected: str) -> None:
    given = {"txnAppId": "a", "txnVersion": "1", name: text}
    with pytest.raises(InvalidOptionError, match=f"option {name} has the bad value '{text}': expected {expected}"):
        parse_write_options({"path": str(root), **given})


def commits(root: RootPlace) -> int:
    return len(list(LogDir.open(root).history()))
