"""Consumer groups in the source: committed progress, and starts from a group's committed offsets."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from fakes.stream_queries import plain
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import AuthorizationError, InvalidOptionError, LogDirError
from pyspark_kafkalog.groups.group import Group
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.options.parse import parse_read_options, parse_stream_read_options
from pyspark_kafkalog.spark.options.positions import GroupOffsets
from pyspark_kafkalog.spark.stream.reader import GroupProgress, KafkalogStreamReader
from pyspark_kafkalog.storage.names import TopicPartition

PATH = {"path": "/nowhere"}
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    """Topic t: 100 and 20 records."""
    log_dir = LogDir.create(root_place)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "2"})
    log_dir.create_topic("t", partitions=2)
    append(log_dir.path, 100)
    append(log_dir.path, 20, 1)
    return log_dir.path


def append(root: RootPlace, count: int, partition: int = 0) -> None:
    LogDir.open(root).append("t", pa.table({"value": ["x"] * count}), partition=partition)


def stream(root: RootPlace, **options: str) -> KafkalogStreamReader:
    named = {name.replace("_", "."): value for name, value in options.items()}
    source = KafkalogDataSource({"path": str(root), "subscribe": "t", "kafka.group.id": "g", **named})
    made = source.streamReader(source.schema())
    assert isinstance(made, KafkalogStreamReader)
    return made


def committed(root: RootPlace) -> dict[TopicPartition, int]:
    return {each: found.offset for each, found in LogDir.open(root).group("g").fetch().items()}


def test_progress_is_committed_once_batch_is_done(root: RootPlace) -> None:
    reader = stream(root, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {"t": {"0": 100, "1": 20}}
    assert committed(root) == {}  # the batch is planned, not done
    reader.partitions(start, end)
    assert committed(root) == {}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert committed(root) == {P0: 100, P1: 20}


@pytest.mark.parametrize("first", ["earliest", "latest"])
def test_query_that_starts_or_fails_in_its_first_batch_moves_no_group(root: RootPlace, first: str) -> None:
    LogDir.open(root).group("g").commit({P0: 50})
    version = LogDir.open(root).version
    for _ in range(2):  # the second time as after a failed first batch
        reader = stream(root, startingOffsets=first)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        reader.partitions(start, end)
        restarted = stream(root, startingOffsets=first)
        restarted.partitions(restarted.initialOffset(), end)
    assert committed(root) == {P0: 50}
    assert LogDir.open(root).version == version


def test_group_stays_in_partitions_of_which_nothing_was_processed(root: RootPlace) -> None:
    LogDir.open(root).group("g").commit({P0: 50, P1: 15})
    reader = stream(root, startingOffsets='{"t": {"0": 10, "1": 0}}', maxOffsetsPerTrigger="5")
    start = reader.initialOffset()
    first = {**start, "t": {"0": 20, "1": 0}}
    reader.partitions(start, first)
    reader.latestOffset(first, ReadAllAvailable())
    assert committed(root) == {P0: 20, P1: 15}  # backwards, as these records were read again
    reader.latestOffset({**start, "t": {"0": 20, "1": 3}}, ReadAllAvailable())
    assert committed(root) == {P0: 20, P1: 3}


def test_resumed_query_moves_group_only_forwards_before_its_first_batch(root: RootPlace) -> None:
    at = stream(root, startingOffsets="earliest").initialOffset()
    LogDir.open(root).group("g").commit({P0: 50, P1: 10})
    resumed = stream(root)
    resumed.latestOffset({**at, "t": {"0": 40, "1": 12}}, ReadAllAvailable())
    assert committed(root) == {P0: 50, P1: 12}
    resumed.latestOffset({**at, "t": {"0": 45, "1": 12}}, ReadAllAvailable())
    assert committed(root) == {P0: 45, P1: 12}


def test_polling_without_new_records_commits_nothing(root: RootPlace) -> None:
    reader = stream(root, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    version = LogDir.open(root).version
    for _ in range(5):
        reader.latestOffset(end, ReadAllAvailable())
    assert LogDir.open(root).version == version
    append(root, 1)
    moved = reader.latestOffset(end, ReadAllAvailable())
    reader.latestOffset(moved, ReadAllAvailable())
    newest = next(LogDir.open(root).history(topic=OFFSETS_TOPIC))
    assert [each.records for each in newest.partitions] == [1]  # of the partition that moved
    assert committed(root) == {P0: 101, P1: 20}


@pytest.mark.parametrize("options", [{"commitOffsets": "false"}, {"kafka_group_id": ""}])
def test_no_offsets_are_committed_without_group_or_with_commit_offsets_false(
    root: RootPlace, options: dict[str, str]
) -> None:
    named = {"kafka.group.id": "g", **{name.replace("_", "."): value for name, value in options.items()}}
    source = KafkalogDataSource({"path": str(root), **{name: value for name, value in named.items() if value}})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, KafkalogStreamReader)
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert OFFSETS_TOPIC not in LogDir.open(root).topics()


def test_failed_offset_commit_is_logged_and_does_not_fail_query(
    root: RootPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def failing(group: Group, *_: object, **__: object) -> None:
        calls.append(group.group_id)
        raise LogDirError("the disk is full")

    reader = stream(root, startingOffsets="earliest")
    start = reader.initialOffset()
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(Group, "commit", failing)
        end = reader.latestOffset(start, ReadAllAvailable())
        for _ in range(3):
            reader.latestOffset(end, ReadAllAvailable())
    assert len(calls) == 1  # once for each place, not with every look
    assert "could not be committed to group g: the disk is full" in caplog.text
    append(root, 1)
    moved = reader.latestOffset(end, ReadAllAvailable())
    reader.latestOffset(moved, ReadAllAvailable())
    assert committed(root) == {P0: 101, P1: 20}  # all of it, as nothing was there


@pytest.mark.file_roots
def test_broker_directory_is_streamed_without_committing_offsets(
    root: RootPlace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = tmp_path / "broker"
    for number in range(2):
        shutil.copytree(root / f"t-{number}", foreign / f"t-{number}")
    reader = stream(foreign, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    assert caplog.text.count("no offsets are committed to group g") == 1


def test_all_offsets_are_committed_again_after_an_hour(root: RootPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("pyspark_kafkalog.spark.stream.reader.time.monotonic", lambda: now_s[0])
    log_dir = LogDir.open(root)
    progress = GroupProgress("g")
    counts = []
    for offset, seconds in ((1, 0.0), (2, 10.0), (3, 3600.0), (4, 3700.0)):
        now_s[0] = seconds
        progress.reach({P0: offset, P1: 5, TopicPartition("deleted", 0): 7}, log_dir.root)
        log_dir.refresh()
        counts.append(next(log_dir.history(topic=OFFSETS_TOPIC)).partitions[0].records)
    assert counts == [2, 1, 2, 1]


def test_stream_starts_at_committed_offsets_of_group(root: RootPlace) -> None:
    log_dir = LogDir.open(root)
    log_dir.group("g").commit({P0: 42})
    reader = stream(root, startingOffsets="group")
    assert plain(reader.initialOffset()) == {"t": {"0": 42, "1": 20}}  # latest, as Kafka's consumers by default
    assert stream(root, startingOffsets="group", auto_offset_reset="earliest").initialOffset()["t"]["1"] == 0
    with pytest.raises(InvalidOptionError, match=r"t-1: group g has no committed offset.*auto\.offset\.reset is none"):
        stream(root, startingOffsets="group", auto_offset_reset="none").initialOffset()


def test_principal_starts_at_offsets_of_group_it_may_describe(root: RootPlace) -> None:
    log_dir = LogDir.open(root)
    log_dir.group("g").commit({P0: 42, P1: 7})
    allow = PatternType.LITERAL, "User:ann", "*", AclOperation.READ, PermissionType.ALLOW
    topic, group = Acl(ResourceType.TOPIC, "t", *allow), Acl(ResourceType.GROUP, "g", *allow)
    log_dir.access_control().add([topic, group])
    ann = stream(root, startingOffsets="group", principal="User:ann")
    assert plain(ann.initialOffset()) == {"t": {"0": 42, "1": 7}}
    log_dir.access_control().remove(group.pattern)
    with pytest.raises(AuthorizationError, match="may not DESCRIBE group 'g'"):
        stream(root, startingOffsets="group", principal="User:ann").initialOffset()


def test_committed_offset_out_of_range_is_reset_or_refused(root: RootPlace, caplog: pytest.LogCaptureFixture) -> None:
    log_dir = LogDir.open(root)
    log_dir.group("g").commit({P0: 10, P1: 21})
    delete_records(log_dir.root, {P0: 11})
    start = stream(root, startingOffsets="group", auto_offset_reset="earliest").initialOffset()
    assert plain(start) == {"t": {"0": 11, "1": 0}}
    assert caplog.text.count("is out of range") == 2
    with pytest.raises(InvalidOptionError, match=r"offset 10 that group g has committed is out of range: .* 11 to 100"):
        stream(root, startingOffsets="group", auto_offset_reset="none").initialOffset()


def test_batch_read_starts_at_offsets_of_group(root: RootPlace) -> None:
    LogDir.open(root).group("g").commit({P0: 42, P1: 20})
    source = KafkalogDataSource({"path": str(root), "kafka.group.id": "g", "startingOffsets": "group"})
    planned = source.reader(source.schema()).partitions()
    assert [(each.topic_partition.partition, each.start_offset, each.end_offset) for each in planned] == [(0, 42, 100)]
    assert committed(root) == {P0: 42, P1: 20}


def test_group_options_are_parsed() -> None:
    group = {**PATH, "kafka.group.id": " g "}
    assert parse_stream_read_options(group).group_id == "g"
    assert parse_stream_read_options(PATH).group_id is None
    assert parse_stream_read_options({**group, "commitOffsets": "false"}).group_id is None
    started = {**group, "startingOffsets": "group"}
    assert parse_stream_read_options(started).starting == GroupOffsets("g", "latest")
    assert parse_read_options(started).starting == GroupOffsets("g", "earliest")
    assert parse_read_options({**started, "kafka.auto.offset.reset": "NONE"}).starting == GroupOffsets("g", "none")
    assert parse_read_options({**started, "startingTimestamp": "5"}).starting != GroupOffsets("g", "earliest")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "group"}, "needs the option kafka.group.id"),
        ({"commitOffsets": "true"}, "needs the option kafka.group.id"),
        ({"auto.offset.reset": "earliest"}, "goes with startingOffsets group"),
        ({"kafka.group.id": " "}, "cannot be empty"),
        (
            {"kafka.group.id": "g", "startingOffsets": "group", "auto.offset.reset": "smallest"},
            "earliest, latest, none",
        ),
        ({"kafka.group.id": "g", "endingOffsets": "group"}, "endingOffsets"),
    ],
)
def test_contradictory_group_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        parse_stream_read_options({**PATH, **options})
