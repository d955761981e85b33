"""The origin of a stream's offsets: the log directory and the topic ids, in a form that Spark's Kafka source reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fakes.stream_queries import Query, append, make_root, plain, rows_of, stream
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, LogDirError
from pyspark_kafkalog.spark.stream.plan import Origin, from_json, origin_from_json, to_json
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.names import TopicPartition

EARLIEST = {"startingOffsets": "earliest", "subscribe": "t"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "log")


def as_brokers(root: Path) -> Path:
    """The directory as if a broker had written it."""
    shutil.rmtree(root / "__cluster_metadata-0")
    return root


def recreate_as_brokers(root: Path, topic: str, count: int) -> None:
    """`topic` of a broker's directory deleted and re-created, with `count` records in partition 0."""
    scratch = root.with_name("scratch")
    LogDir.create(scratch).create_topic(topic, partitions=1)
    append(scratch, topic, count)
    for directory in root.glob(f"{topic}-*"):
        shutil.rmtree(directory)
    (scratch / f"{topic}-0").rename(root / f"{topic}-0")
    shutil.rmtree(scratch)


# The form


def partition_offsets_of_sparks_kafka_source(text: str) -> dict[tuple[str, int], int]:
    """org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets: a Map[String, Map[Int, Long]], flattened."""
    return {(topic, int(at)): int(offset) for topic, by in json.loads(text).items() for at, offset in by.items()}


ids = st.text(min_size=1, max_size=30)


@given(
    offsets=st.dictionaries(
        st.tuples(st.sampled_from(["a", "b.c", "d-1"]), st.integers(0, 9)), st.integers(0, 1 << 60)
    ),
    cluster=st.none() | ids,
    directory=st.none() | ids,
    topic_ids=st.dictionaries(st.sampled_from(["a", "b.c", "d-1"]), ids),
)
def test_origin_round_trips_and_leaves_offsets_unchanged(
    offsets: dict[tuple[str, int], int], cluster: str | None, directory: str | None, topic_ids: dict[str, str]
) -> None:
    root = None if cluster is None and directory is None else RootIdentity(cluster, directory)
    origin = Origin(root, topic_ids)
    text = json.dumps(to_json({TopicPartition(*where): offset for where, offset in offsets.items()}, origin))
    assert origin_from_json(json.loads(text)) == origin
    assert from_json(json.loads(text)) == {TopicPartition(*where): offset for where, offset in offsets.items()}
    assert partition_offsets_of_sparks_kafka_source(text) == offsets


def test_offsets_of_sparks_kafka_source_have_no_origin() -> None:
    assert origin_from_json({"t": {"0": 5}}) == Origin()


@pytest.mark.parametrize(
    "name",
    [
        "kafkalog:root:a",
        "kafkalog:root::",
        "kafkalog:root:a:b:c",
        "kafkalog:topic:t:",
        "kafkalog:topic::id",
        "kafkalog:other:a:b",
        "kafkalog:",
    ],
)
def test_unknown_origin_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidOptionError, match="checkpointLocation names a checkpoint with offsets"):
        origin_from_json({"t": {"0": 5}, name: {}})


def test_origin_with_partitions_or_two_origins_are_refused() -> None:
    for given_json in ({"kafkalog:root:a:b": {"0": 1}}, {"kafkalog:root:a:b": {}, "kafkalog:root:a:c": {}}):
        with pytest.raises(InvalidOptionError, match="kafkalog:root:"):
            origin_from_json(given_json)


# The log directory


@pytest.mark.parametrize("whose", ["ours", "a broker's"])
@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_query_fails_on_other_or_missing_log_directory_and_continues_with_its_own(
    root: Path, whose: str, fail: str, restarts: bool
) -> None:
    query = Query(lambda: stream(root, **EARLIEST, failOnDataLoss=fail))
    if whose == "a broker's":
        as_brokers(root)
    assert len(query.run()) == 120
    identity = LogDir.open(root).identity
    root.rename(root.with_name("away"))
    make_root(root)
    append(root, "t", 50)
    if whose == "a broker's":
        as_brokers(root)
    other = LogDir.open(root).identity
    if restarts:
        query.restart()
    for call in (query.plan, query.read):
        with pytest.raises(LogDirError, match=f"expected .*{identity}, found the log directory with {other}; .*new ch"):
            call()
    shutil.rmtree(root)
    if restarts:
        query.restart()
    with pytest.raises(LogDirError, match=f"expected .*{identity}, found no such directory"):
        query.plan()
    root.with_name("away").rename(root)
    query.restart()
    assert query.run() == []
    assert len(query.read()) == 120


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_task_fails_when_log_directory_disappeared_after_planning(root: Path, fail: str, left: str) -> None:
    reader = stream(root, **EARLIEST, failOnDataLoss=fail)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    root.rename(root.with_name("away"))
    if left == "an empty directory":
        root.mkdir()
    for task in planned:
        with pytest.raises(LogDirError, match="expected the log directory with cluster id"):
            list(reader.read(task))


def test_checkpoint_without_ids_gets_them_with_next_offsets(root: Path) -> None:
    query = Query(lambda: stream(root, **EARLIEST))
    query.run()
    query.offsets = [json.dumps(plain(each)) for each in query.offsets]
    query.restart()
    assert not query.plan()  # no micro-batch just for the ids
    append(root, "t", 5)
    assert query.run() == rows_of("t", 0, 100, 105)
    found = origin_from_json(json.loads(query.offsets[-1]))
    assert found == Origin(LogDir.open(root).identity, {"t": LogDir.open(root).topic("t").topic_id or ""})


def test_query_continues_after_its_directory_is_adopted(root: Path) -> None:
    as_brokers(root)
    query = Query(lambda: stream(root, **EARLIEST))
    assert len(query.run()) == 120
    LogDir.adopt(root)
    query.restart()
    append(root, "t", 5)
    assert query.run() == rows_of("t", 0, 100, 105)


def test_bare_partition_directories_are_read_without_identity(root: Path) -> None:
    as_brokers(root)
    (root / "meta.properties").unlink()
    query = Query(lambda: stream(root, **EARLIEST))
    assert len(query.run()) == 120
    assert origin_from_json(json.loads(query.offsets[-1])).root is None
    query.restart()
    assert query.run() == []


# Topics that are re-created while no query runs


@pytest.mark.parametrize("whose", ["ours", "a broker's"])
@pytest.mark.parametrize("count", [7, 300], ids=["shorter", "longer"])
def test_topic_recreated_while_query_was_stopped_fails_or_is_read_from_earliest(
    root: Path, whose: str, count: int
) -> None:
    if whose == "a broker's":
        as_brokers(root)
    strict = Query(lambda: stream(root, **EARLIEST))
    lenient = Query(lambda: stream(root, **EARLIEST, failOnDataLoss="false"))
    for query in (strict, lenient):
        assert len(query.run()) == 120
    if whose == "a broker's":
        recreate_as_brokers(root, "t", count)
    else:
        LogDir.open(root).delete_topic("t")
        LogDir.open(root).create_topic("t", partitions=1)
        append(root, "t", count)
    for query in (strict, lenient):
        query.restart()
    topic_id = LogDir.open(root).topic("t").topic_id
    with pytest.raises(DataLossError, match=rf"t-0: offsets from 100 on were requested.*its id is now {topic_id}"):
        strict.run()
    assert lenient.run() == rows_of("t", 0, 0, count)


@pytest.mark.parametrize("count", [7, 300], ids=["shorter", "longer"])
def test_replayed_micro_batch_reads_nothing_of_topic_recreated_since(root: Path, count: int) -> None:
    strict = Query(lambda: stream(root, **EARLIEST, maxOffsetsPerTrigger=60))
    lenient = Query(lambda: stream(root, **EARLIEST, maxOffsetsPerTrigger=60, failOnDataLoss="false"))
    for query in (strict, lenient):
        query.plan()
    LogDir.open(root).delete_topic("t")
    LogDir.open(root).create_topic("t", partitions=1)
    append(root, "t", count)
    for query in (strict, lenient):
        query.restart()
    with pytest.raises(DataLossError, match=r"t-0: .*its id is now"):
        strict.run()
    assert lenient.read() == []
    assert lenient.run() == rows_of("t", 0, 0, count)
