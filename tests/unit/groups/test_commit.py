"""Offsets of a group are committed whole, fetched, reset, deleted and expired, also beside writers and a cleaner."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from builders.cleaned_groups import ANOTHER, delete_and_clean
from builders.controlled import create_log_dir
from builders.root_places import RootPlace
from fakes.clock import Clock

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import (
    InvalidGroupError,
    InvalidOptionError,
    InvalidTopicError,
    UnknownGroupError,
    UnknownTopicError,
)
from pyspark_kafkalog.groups import group as group_module
from pyspark_kafkalog.groups.group import Group, KnownEnds, expire_offsets, known_lags
from pyspark_kafkalog.groups.offset_records import (
    OFFSETS_TOPIC,
    OffsetAndMetadata,
    group_partition,
    offset_key,
    offset_value,
)
from pyspark_kafkalog.groups.offsets_topic import append_records, ensure_offsets_topic
from pyspark_kafkalog.groups.resets import ShiftBy, ToCurrent, ToEarliest, ToLatest, ToOffset, ToOffsets, ToTimestamp
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.root import internal_topic
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition

NOW_MS = 1_700_000_000_000
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
DAY_MS = 86_400_000


@pytest.fixture
def log_dir(root_place: RootPlace, clock: Clock) -> LogDir:
    """Topic orders with 60 and 30 records, one a second, the newest now; __consumer_offsets is to get 5 partitions."""
    log_dir = create_log_dir(root_place, clock=clock)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "5"})
    log_dir.create_topic("orders", partitions=2)
    for partition, count in ((0, 60), (1, 30)):
        times = pa.array([NOW_MS - 1000 * (count - 1 - n) for n in range(count)], pa.timestamp("ms"))
        log_dir.append("orders", pa.table({"value": ["v"] * count, "timestamp": times}), partition=partition)
    return log_dir


@pytest.fixture
def group(log_dir: LogDir) -> Group:
    return log_dir.group("g")


def offsets_of(group: Group) -> dict[TopicPartition, int]:
    return {each: committed.offset for each, committed in group.fetch().items()}


def test_committed_offsets_are_fetched_unchanged(log_dir: LogDir, group: Group) -> None:
    group.commit({("orders", 0): 12, P1: OffsetAndMetadata(offset=7, leader_epoch=2, metadata="own")}, "said")
    topic_id = log_dir.topic("orders").topic_id
    expected = {
        P0: OffsetAndMetadata(offset=12, metadata="said", commit_timestamp_ms=NOW_MS, topic_id=topic_id),
        P1: OffsetAndMetadata(offset=7, leader_epoch=2, metadata="own", commit_timestamp_ms=NOW_MS, topic_id=topic_id),
    }
    assert group.fetch() == LogDir.open(log_dir.path).group("g").fetch() == expected
    assert list(group.fetch()) == [P0, P1]
    assert group.fetch(["clicks"]) == {}
    assert [(each.topic_partition, each.lag) for each in group.lag()] == [(P0, 48), (P1, 23)]
    assert known_lags(group, KnownEnds(log_dir.root)) == {("orders", 0): 48, ("orders", 1): 23}
    assert log_dir.groups() == ("g",)


def test_first_commit_creates_offsets_topic_configured_like_kafka(log_dir: LogDir, group: Group) -> None:
    assert group.fetch() == {}
    assert not group.exists()
    assert OFFSETS_TOPIC not in log_dir.topics()
    group.commit({})
    assert OFFSETS_TOPIC not in log_dir.topics()
    group.commit({P0: 1})
    topic = log_dir.topic(OFFSETS_TOPIC)
    assert dict(topic.configs) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    assert len(topic.partitions) == 5
    ends = [each.high_watermark for each in topic.partitions]
    assert ends == [1 if number == group_partition("g", 5) else 0 for number in range(5)]


def test_commit_of_many_partitions_is_one_append(log_dir: LogDir, group: Group) -> None:
    log_dir.create_topic("wide", partitions=200)
    group.commit({P0: 0})
    before = log_dir.version
    group.commit({("wide", number): 0 for number in range(200)}, metadata="m" * 4000)
    entries = list(log_dir.history(topic=OFFSETS_TOPIC, limit=1))
    assert [each.records for each in entries[0].partitions] == [200]
    assert log_dir.version is not None
    assert before is not None
    assert log_dir.version - before < 10
    assert len(LogDir.open(log_dir.path).group("g").fetch(["wide"])) == 200


@pytest.mark.file_roots
def test_commit_recreates_missing_directories_of_offsets_topic(log_dir: LogDir, group: Group) -> None:
    log_dir.create_topic(OFFSETS_TOPIC, partitions=5)
    for directory in log_dir.path.glob(f"{OFFSETS_TOPIC}-*"):
        shutil.rmtree(directory)
    group.commit({P0: 1})
    assert offsets_of(LogDir.open(log_dir.path).group("g")) == {P0: 1}


@pytest.mark.file_roots
@pytest.mark.parametrize("codec", range(5))
def test_configured_codec_compresses_offsets(log_dir: LogDir, group: Group, codec: int) -> None:
    log_dir.alter_broker_configs(add={"offsets.topic.compression.codec": str(codec)})
    group.commit({P0: 3, P1: 4}, "m" * 1000)
    partition = log_dir.partition(OFFSETS_TOPIC, group_partition("g", 5))
    log = (partition.directory / f"{0:020d}.log").read_bytes()
    assert log[22] & 7 == codec
    assert offsets_of(group) == {P0: 3, P1: 4}


def test_message_timestamp_type_of_offsets_topic_applies(log_dir: LogDir, group: Group) -> None:
    group.commit({P0: 1})
    log_dir.alter_topic(OFFSETS_TOPIC, add={"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"})
    group.commit({P0: 2})
    records = log_dir.read(OFFSETS_TOPIC, partition=group_partition("g", 5))
    assert records["timestampType"].to_pylist() == [0, 1]
    assert offsets_of(group) == {P0: 2}


def test_invalid_commits_are_rejected_without_creating_topic(log_dir: LogDir, group: Group) -> None:
    for offsets, error in [
        ({("clicks", 0): 1}, UnknownTopicError),
        ({("orders", 2): 1}, UnknownTopicError),
        ({("orders", -1): 1}, UnknownTopicError),
        ({P0: 1, P1: -1}, InvalidGroupError),
        ({P0: 2**63}, InvalidGroupError),
        ({P0: OffsetAndMetadata(offset=1, metadata="m" * 4097)}, InvalidGroupError),
    ]:
        with pytest.raises(error):
            group.commit(offsets)
    with pytest.raises(InvalidGroupError):
        log_dir.group("")
    assert OFFSETS_TOPIC not in log_dir.topics()


def test_offsets_of_recreated_topic_are_not_fetched(log_dir: LogDir, group: Group) -> None:
    log_dir.create_topic("clicks", partitions=1)
    group.commit({P0: 12, ("clicks", 0): 0})
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=2)
    assert offsets_of(group) == {TopicPartition("clicks", 0): 0}
    group.commit({P0: 0})
    assert offsets_of(group)[P0] == 0


def commit_without_id(log_dir: LogDir, name: str, offset: int, *, expires_ms: int = -1) -> None:
    """Commit for P0 without the topic's id, as brokers do in transactions and for clients that set a retention time."""
    committed = OffsetAndMetadata(offset=offset, commit_timestamp_ms=NOW_MS, expire_timestamp_ms=expires_ms)
    number = group_partition(name, ensure_offsets_topic(log_dir.root))
    append_records(log_dir.root, number, {offset_key(name, P0): offset_value(committed)})
    log_dir.refresh()


@pytest.mark.parametrize("expires_ms", [-1, NOW_MS + DAY_MS])
def test_offset_without_topic_id_is_of_the_topic_that_existed_when_it_was_committed(
    log_dir: LogDir, expires_ms: int
) -> None:
    commit_without_id(log_dir, "before", 12, expires_ms=expires_ms)
    log_dir.delete_topic("orders")
    assert offsets_of(log_dir.group("before")) == {}
    commit_without_id(log_dir, "between", 12, expires_ms=expires_ms)
    log_dir.create_topic("orders", partitions=2)
    commit_without_id(log_dir, "after", 12, expires_ms=expires_ms)
    places = list(log_dir.root.native().store.image.topic("orders").offsets_ends)
    assert sum(places) == 2
    for opened in (log_dir, LogDir.open(log_dir.path)):
        fetched = {name: offsets_of(opened.group(name)) for name in opened.groups()}
        assert fetched == {"after": {P0: 12}, "before": {}, "between": {}}
    assert expire_offsets(log_dir.root) == {"before": [P0], "between": [P0]}
    log_dir.refresh()
    assert log_dir.groups() == ("after",)
    log_dir.delete_topic(OFFSETS_TOPIC)
    assert log_dir.root.native().store.image.topic("orders").offsets_ends == ()
    commit_without_id(log_dir, "anew", 3, expires_ms=expires_ms)
    assert offsets_of(log_dir.group("anew")) == {P0: 3}


def test_groups_and_appends_describe_no_partitions_that_they_do_not_use(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions a topic has: its id and their number are in the image."""
    counts = []
    for size in (2, 200):
        name, described = f"of-{size}", []
        log_dir.create_topic(name, partitions=size)
        one = pa.table({"value": ["v"]})
        log_dir.append(name, one, partition=0)
        log_dir.group("g").commit({(name, 0): 0})
        with monkeypatch.context() as patch:
            snapshot = type(log_dir.root)._snapshot  # type: ignore[attr-defined]
            patch.setattr(
                type(log_dir.root),
                "_snapshot",
                lambda *of, described=described, snapshot=snapshot: described.append(of) or snapshot(*of),
            )
            log_dir.append(name, one, partition=0)
            log_dir.group("g").commit({(name, 0): 1})
            log_dir.group("g").lag([name])
            log_dir.group("g").describe()
            assert len(log_dir.ensure_topic(name).partitions) == size
            log_dir.group("g").delete()
        counts.append(len(described))
        topic = log_dir.topic(name)
        assert topic.partitions == tuple(log_dir.partition(name, number) for number in range(size))
        if log_dir.root.directories:  # as in a UDF's closure
            assert pickle.loads(pickle.dumps(topic)) == topic
        assert topic.partitions[-1].partition == size - 1
    assert counts[0] == counts[1] < 30


def test_second_fetch_reads_only_new_records(log_dir: LogDir, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    batches = LogReader.batches

    def noting(self: LogReader, start_offset: int, end_offset: int) -> object:
        starts.append((start_offset, end_offset))
        return batches(self, start_offset, end_offset)

    monkeypatch.setattr(LogReader, "batches", noting)
    group.commit({P0: 1, P1: 1})
    group.fetch()
    group.fetch()
    log_dir.group("g").commit({P0: 2})
    assert offsets_of(log_dir.group("g")) == {P0: 2, P1: 1}
    assert starts == [(0, 2), (2, 3)]


def test_commit_of_another_writer_is_seen_after_refresh(log_dir: LogDir, group: Group) -> None:
    group.commit({P0: 1})
    assert offsets_of(group) == {P0: 1}
    LogDir.open(log_dir.path).group("g").commit({P0: 2})
    assert offsets_of(group) == {P0: 1}  # as of the last refresh
    log_dir.refresh()
    assert offsets_of(group) == {P0: 2}


def test_adding_partitions_to_offsets_topic_is_rejected(log_dir: LogDir, group: Group) -> None:
    group.commit({P0: 12})
    with pytest.raises(InvalidTopicError, match="the partition of a key depends on their number"):
        log_dir.add_partitions(OFFSETS_TOPIC, 6)
    assert offsets_of(group) == {P0: 12}


def test_offsets_of_many_groups_stay_separate(log_dir: LogDir) -> None:
    names = [f"group {number}" for number in range(20)] + ["ключ", "a\0b"]
    for number, name in enumerate(names):
        log_dir.group(name).commit({P0: number})
    again = LogDir.open(log_dir.path)
    assert again.groups() == tuple(sorted(names))
    assert [offsets_of(again.group(name)) for name in names] == [{P0: number} for number in range(len(names))]


def test_each_reset_target_resolves_to_its_offset(log_dir: LogDir, group: Group) -> None:
    delete_records(log_dir.root, {P0: 5})
    log_dir.refresh()
    group.commit({P0: 12}, "kept for now")
    told: list[str] = []
    for target, partitions, expected in [
        (ToEarliest(), [P0, P1], {P0: 5, P1: 0}),
        (ToLatest(), [("orders", 0)], {P0: 60}),
        (ToCurrent(), [P0, P1], {P0: 12, P1: 30}),
        (ToOffset(20), None, {P0: 20}),
        (ToOffset(3), None, {P0: 5}),
        (ToOffset(61), None, {P0: 60}),
        (ShiftBy(-4), None, {P0: 8}),
        (ShiftBy(-40), None, {P0: 5}),
        (ToOffsets({P1: 9}), None, {P1: 9}),
        (ToTimestamp(NOW_MS - 10_500), [P0, P1], {P0: 49, P1: 19}),
        (ToTimestamp(NOW_MS + 1), [P0], {P0: 60}),
        ("earliest", [P1], {P1: 0}),
        ("latest", [P1], {P1: 30}),
        ("current", None, {P0: 12}),
        (33, [P0], {P0: 33}),
        (datetime.fromtimestamp(NOW_MS // 1000 - 10, timezone.utc), [P0], {P0: 49}),
        (datetime.fromtimestamp(NOW_MS // 1000 - 10, timezone.utc).replace(tzinfo=None), [P0], {P0: 49}),
    ]:
        assert group.reset(target, partitions, dry_run=True, notify=told.append) == expected
    assert len(told) == 4
    assert offsets_of(group) == {P0: 12}
    assert group.reset(ToOffset(20), [P0, P1]) == offsets_of(group) == {P0: 20, P1: 20}
    assert group.fetch()[P0].metadata == ""
    with pytest.raises(InvalidOptionError, match="expected one of earliest, latest, current"):
        group.reset("oldest")  # type: ignore[arg-type]
    with pytest.raises(InvalidGroupError, match="orders-0 cannot be shifted"):
        log_dir.group("new").reset(ShiftBy(1), [P0])
    with pytest.raises(UnknownTopicError):
        group.reset(ToEarliest(), [("orders", 2)])


def test_deleted_offsets_and_groups_are_gone(log_dir: LogDir, group: Group) -> None:
    group.commit({P0: 1, P1: 2})
    log_dir.group("other").commit({P0: 3})
    assert group.delete_offsets([P0, ("clicks", 0)]) == [P0]
    assert offsets_of(group) == {P1: 2}
    group.delete()
    assert log_dir.groups() == LogDir.open(log_dir.path).groups() == ("other",)
    for change in (group.delete, lambda: group.delete_offsets([P1]), group.describe):
        with pytest.raises(UnknownGroupError):
            change()
    group.commit({P0: 4})
    assert offsets_of(group) == {P0: 4}


@pytest.mark.file_roots
def test_cleaning_keeps_latest_offsets_of_groups(log_dir: LogDir, clock: Clock) -> None:
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    names = ["a", "b", "c"]
    groups = {name: log_dir.group(name) for name in names}
    groups["a"].commit({P0: 0})
    log_dir.alter_topic(OFFSETS_TOPIC, add={"internal.segment.bytes": "1000", "delete.retention.ms": "0"})
    for number in range(60):
        groups[names[number % 3]].commit({P0: number, P1: number // 10})
    groups["c"].delete()
    groups["a"].commit({P0: 60})
    before = {name: groups[name].fetch() for name in names}
    report = clean_partition(log_dir.root, OFFSETS_TOPIC, 0, force=True, now_ms=clock.now_ms)
    assert report.bytes_dropped > report.bytes_kept
    for view in (log_dir, LogDir.open(log_dir.path)):
        view.refresh()
        assert {name: view.group(name).fetch() for name in names} == before
        assert view.groups() == ("a", "b")


@pytest.mark.parametrize("many_offsets", [1, 1000])
def test_group_is_gone_if_its_tombstones_were_cleaned_before_they_were_read(
    log_dir: LogDir, group: Group, many_offsets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal_topic, "_MANY_OFFSETS", many_offsets)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    follower = LogDir.open(log_dir.path)
    group.commit({P0: 1})
    follower.refresh()
    assert follower.groups() == ("g",)
    delete_and_clean(log_dir, "g", P0)
    follower.refresh()
    assert follower.groups() == (ANOTHER,)
    assert offsets_of(follower.group(ANOTHER)) == {P0: 4}


def test_offsets_expire_only_after_retention(log_dir: LogDir, clock: Clock) -> None:
    log_dir.alter_broker_configs(add={"offsets.retention.minutes": str(24 * 60)})
    log_dir.group("old").commit({P0: 1, P1: 2})
    log_dir.group("half").commit({P0: 1, P1: 2})
    clock.now_ms += DAY_MS
    assert expire_offsets(log_dir.root) == {}
    log_dir.group("half").commit({P1: 3})
    clock.now_ms += 1
    assert expire_offsets(log_dir.root) == {"half": [P0], "old": [P0, P1]}
    assert log_dir.groups() == ("half",)
    assert offsets_of(log_dir.group("half")) == {P1: 3}


@pytest.mark.parametrize(
    ("change", "expected", "left"),
    [
        (lambda group: group.reset(ShiftBy(1)), {P0: 8, P1: 6}, {P0: 8, P1: 6}),
        (lambda group: group.delete_offsets([P1]), [P1], {P0: 7}),
        (lambda group: group.expire_offsets(NOW_MS + 1), [P1], {P0: 7}),
        (lambda group: group.delete(), None, {}),
    ],
)
def test_change_is_planned_again_on_what_was_committed_meanwhile(
    log_dir: LogDir,
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Group], object],
    expected: object,
    left: object,
) -> None:
    group.commit({P0: 1})
    change_records = group_module.change_records

    def late(*arguments: Any) -> object:
        LogDir.open(log_dir.path).group("g").commit({P0: 7, P1: OffsetAndMetadata(offset=5, commit_timestamp_ms=1)})
        return change_records(*arguments)

    monkeypatch.setattr(group_module, "change_records", late)
    assert change(group) == expected
    assert offsets_of(group) == offsets_of(LogDir.open(log_dir.path).group("g")) == left


def test_refused_change_appends_nothing(log_dir: LogDir, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.commit({P0: 1})
    change_records = group_module.change_records

    def late(*arguments: Any) -> object:
        monkeypatch.undo()
        LogDir.open(log_dir.path).group("g").delete()
        return change_records(*arguments)

    monkeypatch.setattr(group_module, "change_records", late)
    with pytest.raises(UnknownGroupError):
        group.delete_offsets([P0])
    version = log_dir.version
    log_dir.refresh()
    assert log_dir.version == version
    assert log_dir.groups() == ()


@pytest.mark.slow
def test_group_deleted_beside_commits_is_seen_whole_or_not_at_all(log_dir: LogDir) -> None:
    log_dir.group("g").commit({P0: 0, P1: 0})
    stop = threading.Event()

    def delete_it() -> None:
        own = LogDir.open(log_dir.path).group("g")
        while not stop.is_set():
            try:
                own.delete()
            except UnknownGroupError:
                own.root.refresh()

    with ThreadPoolExecutor() as threads:
        deleting = threads.submit(delete_it)
        try:
            for number in range(1, 40):
                log_dir.group("g").commit({P0: number % 60, P1: number % 30})
                seen = LogDir.open(log_dir.path).group("g").fetch()
                assert len(seen) in (0, 2)
        finally:
            stop.set()
        deleting.result()
