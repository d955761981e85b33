"""Options to ranges: offsets resolved against the log, data loss named, splits as Spark makes them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, InvalidOptionError, UnknownTopicError
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.spark.options.positions import (
    AllTopics,
    Assign,
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    SpecificTimestamps,
    Subscribe,
    SubscribePattern,
)
from pyspark_kafkalog.spark.read.filters import Interval, PushedFilters
from pyspark_kafkalog.spark.read.plan import (
    OffsetRange,
    OffsetResolver,
    PlanReaders,
    apply_filters,
    check_ends,
    cut_by_bytes,
    cut_by_records,
    subscribed_partitions,
)
from pyspark_kafkalog.storage.log import reader as log_reader
from pyspark_kafkalog.storage.log.reader import Split, TimestampAndOffset
from pyspark_kafkalog.storage.names import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def snapshot(
    topic: str, partition: int, start_offset: int, end_offset: int, stable_offset: int, directory: Path = Path("/none")
) -> PartitionSnapshot:
    return PartitionSnapshot(
        topic=topic,
        partition=partition,
        topic_id="id",
        local_directory=directory,
        leader_epoch=0,
        log_start_offset=start_offset,
        local_log_start_offset=start_offset,
        high_watermark=end_offset,
        log_end_offset=end_offset,
        stable=stable_offset,
    )


@dataclass(frozen=True)
class FakeTopic:
    partitions: tuple[PartitionSnapshot, ...]


class FakeReader:
    """Records at every offset, 10 bytes each; the timestamp of offset n is n * 100 ms."""

    def offset_for_timestamp(self, timestamp_ms: int, start_offset: int, end_offset: int) -> TimestampAndOffset | None:
        found = max(start_offset, -(-timestamp_ms // 100))
        return TimestampAndOffset(found * 100, found, leader_epoch=0) if found < end_offset else None

    def split(self, start_offset: int, end_offset: int, target_bytes: int, *, relist: bool) -> list[Split]:
        step = max(target_bytes // 10, 1)
        starts = range(start_offset, end_offset, step)
        return [Split(at, min(at + step, end_offset), (min(at + step, end_offset) - at) * 10) for at in starts]


class FakeLogDir:
    """`log_dir.LogDir` as far as planning uses it."""

    def __init__(self, *partitions: PartitionSnapshot) -> None:
        self._partitions = partitions

    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({each.topic for each in self._partitions}))

    def check(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        pass

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        return tuple(each.partition for each in self._partitions if each.topic == topic)

    def partition(self, topic: str, partition: int) -> PartitionSnapshot:
        return next(each for each in self._partitions if (each.topic, each.partition) == (topic, partition))

    def topic(self, name: str) -> FakeTopic:
        return FakeTopic(tuple(each for each in self._partitions if each.topic == name))

    def reader(self, topic: str, partition: int) -> FakeReader:
        return FakeReader()


LOG_DIR = FakeLogDir(
    snapshot("a", 0, 10, 100, 90),
    snapshot("a", 1, 0, 50, 50),
    snapshot("b", 0, 0, 0, 0),
    snapshot("__consumer_offsets", 0, 0, 7, 7),
    snapshot("__cluster_metadata", 0, 0, 7, 7),
)


def resolve(
    starting: OffsetSpec,
    ending: OffsetSpec,
    *,
    partitions: tuple[TopicPartition, ...] = (A0, A1),
    committed: bool = False,
    on_no_match: str = "error",
    fail_on_data_loss: bool = True,
) -> dict[TopicPartition, tuple[int, int]]:
    resolver = OffsetResolver(
        LOG_DIR,
        subscribed_partitions(LOG_DIR, Assign(partitions)),
        committed=committed,
        on_no_match=on_no_match,
        fail_on_data_loss=fail_on_data_loss,
    )
    ranges = resolver.resolve(starting, ending)
    return {each.topic_partition: (each.start_offset, each.end_offset) for each in ranges}


def names(subscription: object) -> list[str]:
    return [f"{each.topic}-{each.partition}" for each in subscribed_partitions(LOG_DIR, subscription)]


def test_without_subscription_all_topics_but_internal_ones_are_read() -> None:
    assert names(AllTopics()) == ["a-0", "a-1", "b-0"]


def test_pattern_matches_anywhere_in_name_and_no_internal_topic() -> None:
    assert names(SubscribePattern("a|b|_")) == ["a-0", "a-1", "b-0"]
    assert names(SubscribePattern("^b$")) == ["b-0"]
    assert names(SubscribePattern("nothing")) == []


def test_internal_topic_is_read_by_its_name() -> None:
    assert names(Subscribe(("__consumer_offsets", "b"))) == ["__consumer_offsets-0", "b-0"]


def test_unknown_topics_and_partitions_are_named_with_existing_ones() -> None:
    with pytest.raises(UnknownTopicError, match=r"no topic 'c' .*existing topics: __cluster_metadata, .*, a, b"):
        names(Subscribe(("a", "c")))
    with pytest.raises(UnknownTopicError, match="no topic 'c'"):
        names(Assign((TopicPartition("c", 0),)))
    with pytest.raises(UnknownTopicError, match="no partition a-2; topic a has partitions 0, 1"):
        names(Assign((A0, TopicPartition("a", 2))))


def test_earliest_to_latest_is_log_start_to_high_watermark() -> None:
    assert resolve(Earliest(), Latest(), partitions=(A0, A1, B0)) == {A0: (10, 100), A1: (0, 50)}


def test_read_committed_ends_at_last_stable_offset() -> None:
    assert resolve(Earliest(), Latest(), committed=True) == {A0: (10, 90), A1: (0, 50)}


def test_specific_offsets_resolve_earliest_and_latest() -> None:
    starting, ending = SpecificOffsets({A0: -2, A1: 20}), SpecificOffsets({A0: 30, A1: -1})
    assert resolve(starting, ending) == {A0: (10, 30), A1: (20, 50)}


@pytest.mark.parametrize("offsets", [{A0: 20}, {A0: 20, A1: 20, B0: 0}, {}])
def test_specific_offsets_must_name_partitions_read(offsets: Mapping[TopicPartition, int]) -> None:
    with pytest.raises(
        InvalidOptionError,
        match=r"option startingOffsets must name exactly .*\(-2 stands for earliest\).*Assigned: a-0, a-1",
    ):
        resolve(SpecificOffsets(offsets), Latest())
    with pytest.raises(InvalidOptionError, match=r"option endingOffsets must name exactly .*\(-1 stands for latest\)"):
        resolve(Earliest(), SpecificOffsets(offsets))
    with pytest.raises(
        InvalidOptionError, match=r"option endingOffsetsByTimestamp must .*\(endingTimestamp is for all"
    ):
        resolve(Earliest(), SpecificTimestamps(offsets))


def test_timestamp_resolves_to_first_record_not_before_it() -> None:
    assert resolve(GlobalTimestamp(1950), GlobalTimestamp(3000)) == {A0: (20, 30), A1: (20, 30)}
    by_partition = SpecificTimestamps({A0: 0, A1: 4900})
    assert resolve(by_partition, Latest()) == {A0: (10, 100), A1: (49, 50)}


def test_starting_timestamp_after_all_records_fails_or_is_latest() -> None:
    with pytest.raises(InvalidOptionError, match="a-1: no record has the timestamp 6000 or a later one"):
        resolve(GlobalTimestamp(6000), Latest())
    assert resolve(GlobalTimestamp(6000), Latest(), on_no_match="latest") == {A0: (60, 100)}


def test_starting_timestamp_after_last_stable_offset_has_no_match() -> None:
    with pytest.raises(InvalidOptionError, match="a-0: no record"):
        resolve(GlobalTimestamp(9500), Latest(), partitions=(A0,), committed=True)


def test_ending_timestamp_after_all_records_is_latest() -> None:
    assert resolve(Earliest(), GlobalTimestamp(6000)) == {A0: (10, 60), A1: (0, 50)}


def test_start_that_resolves_after_end_is_refused() -> None:
    with pytest.raises(
        InvalidOptionError, match=r"a-0: startingOffsets 40 is greater than endingTimestamp 3000 \(offset 30\)"
    ):
        resolve(SpecificOffsets({A0: 40, A1: 0}), GlobalTimestamp(3000))


START_5 = "startingOffsets 5 is before the earliest offset, the log start 10"
END_101 = "endingOffsets 101 is beyond the latest offset, the high watermark 100"
START_200 = "startingOffsets 200 is beyond the latest offset, the high watermark 100"


@pytest.mark.parametrize(
    ("start", "end", "kept", "message"),
    [
        (5, 30, (10, 30), f"a-0: {START_5}; either the offset was set wrong"),
        (20, 101, (20, 100), f"a-0: {END_101}; either"),
        (5, 101, (10, 100), f"a-0: {START_5} and {END_101}; either"),
        (200, -1, None, f"a-0: {START_200}; either"),
        (200, 101, None, f"a-0: {START_200} and {END_101}; either"),
    ],
)
def test_offsets_out_of_range_are_named_as_given_or_skipped_if_data_loss_is_allowed(
    start: int, end: int, kept: tuple[int, int] | None, message: str
) -> None:
    starting, ending = SpecificOffsets({A0: start}), SpecificOffsets({A0: end})
    with pytest.raises(DataLossError, match=re.escape(message)):
        resolve(starting, ending, partitions=(A0,))
    found = resolve(starting, ending, partitions=(A0,), fail_on_data_loss=False)
    assert found == ({A0: kept} if kept else {})


def ranges(*sizes: int) -> list[OffsetRange]:
    return [
        OffsetRange(topic_partition=TopicPartition("t", number), start_offset=100, end_offset=100 + size)
        for number, size in enumerate(sizes)
    ]


def cuts(
    sizes: tuple[int, ...], min_partitions: int | None = None, max_records: int | None = None
) -> list[tuple[int, int, int]]:
    cut = cut_by_records(ranges(*sizes), min_partitions=min_partitions, max_records_per_partition=max_records)
    return [(each.topic_partition.partition, each.start_offset - 100, each.end_offset - 100) for each in cut]


def test_without_limits_each_partition_is_one_task() -> None:
    assert cuts((5, 7)) == [(0, 0, 5), (1, 0, 7)]


def test_min_partitions_already_met_splits_nothing() -> None:
    assert cuts((5, 7), min_partitions=2) == [(0, 0, 5), (1, 0, 7)]


def test_min_partitions_splits_evenly() -> None:
    assert cuts((5,), min_partitions=3) == [(0, 0, 1), (0, 1, 3), (0, 3, 5)]


def test_min_partitions_keeps_small_ranges_whole_and_splits_large_ones() -> None:
    assert cuts((1, 100, 5), min_partitions=4) == [(0, 0, 1), (1, 0, 50), (1, 50, 100), (2, 0, 5)]


def test_more_tasks_than_offsets_make_no_empty_task() -> None:
    assert cuts((2,), min_partitions=5) == [(0, 0, 1), (0, 1, 2)]


def test_max_records_splits_ranges_into_even_tasks_within_bound() -> None:
    assert cuts((10, 4), max_records=4) == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 4)]


def test_min_partitions_after_max_records_splits_further() -> None:
    assert len(cuts((10, 10), min_partitions=8, max_records=5)) == 8


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(1, 50), st.integers(1, 300))
def test_splits_cover_each_range_once_in_order(sizes: list[int], min_partitions: int, max_records: int) -> None:
    cut = cuts(tuple(sizes), min_partitions=min_partitions, max_records=max_records)
    for number, size in enumerate(sizes):
        mine = [(start, end) for partition, start, end in cut if partition == number]
        assert mine[0][0] == 0
        assert mine[-1][1] == size
        assert all(before[1] == after[0] for before, after in itertools.pairwise(mine))
        assert all(0 < end - start <= max_records for start, end in mine)


def test_split_into_too_many_tasks_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="cut this read into 10000000 tasks"):
        cuts((10_000_000,), max_records=1)


def test_large_ranges_are_split_into_pieces_of_similar_bytes() -> None:
    cut = cut_by_bytes(ranges(100, 10), PlanReaders(LOG_DIR), max_bytes=300, known_bytes=lambda each: 301)
    assert [(each.start_offset - 100, each.end_offset - 100) for each in cut] == [
        (0, 25),
        (25, 50),
        (50, 75),
        (75, 100),
        (0, 10),
    ]


def test_filters_drop_partitions_and_narrow_ranges() -> None:
    filters = PushedFilters(on_partition=(EqualTo(("partition",), 1),), offsets=Interval(104, 200))
    narrowed = apply_filters(ranges(50, 50), filters, PlanReaders(LOG_DIR))
    assert [(each.topic_partition.partition, each.start_offset, each.end_offset) for each in narrowed] == [
        (1, 104, 150)
    ]


def test_timestamp_filter_moves_start_and_drops_ranges_of_older_records() -> None:
    found = apply_filters(ranges(50, 10), PushedFilters(timestamps_ms=Interval(12_000, 12_100)), PlanReaders(LOG_DIR))
    assert [(each.topic_partition.partition, each.start_offset, each.end_offset) for each in found] == [(0, 120, 150)]


def test_filter_on_topic_drops_ranges_of_other_topics() -> None:
    filters = PushedFilters(on_topic=(GreaterThanOrEqual(("topic",), "u"),))
    assert apply_filters(ranges(50), filters, PlanReaders(LOG_DIR)) == []


def test_plan_that_ends_in_damaged_batch_is_refused(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", pa.table({"value": [b"a", b"b"]}))
    log_dir.append("orders", pa.table({"value": [b"c"]}))
    log_dir.refresh()
    where = TopicPartition("orders", 0)
    ranges = [OffsetRange(topic_partition=where, start_offset=0, end_offset=3)]
    check_ends(ranges, PlanReaders(log_dir.root))
    log = next((tmp_path / "log" / "orders-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    second = data.index(bytes(7) + b"\x02", 61)
    data[second + 7] = 0x42
    log.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        check_ends(ranges, PlanReaders(log_dir.root))
    shorter = [OffsetRange(topic_partition=where, start_offset=0, end_offset=2)]
    check_ends(shorter, PlanReaders(log_dir.root))


def test_plan_opens_each_partition_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", pa.table({"value": [b"a", b"b"]}))
    log_dir.refresh()
    opened: list[Path] = []
    refuse_link = log_reader.refuse_link
    monkeypatch.setattr(log_reader, "refuse_link", lambda path: (opened.append(path), refuse_link(path)))
    root = log_dir.root
    resolver = OffsetResolver(
        root, root.topic("orders").partitions, committed=False, on_no_match="error", fail_on_data_loss=True
    )
    assert resolver.resolve(GlobalTimestamp(0), Latest()) == resolver.resolve(Earliest(), Latest())
    filters = PushedFilters(timestamps_ms=Interval(1, 1 << 60))
    ranges = apply_filters(resolver.resolve(Earliest(), Latest()), filters, resolver.readers)
    check_ends(ranges, resolver.readers)
    assert len(cut_by_bytes(ranges, resolver.readers, max_bytes=1 << 30, known_bytes=lambda each: None)) == 1
    assert len(opened) == 1


def test_plan_of_everything_lists_no_directory_and_opens_two_names_a_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = 5
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=partitions)
    for number in range(partitions):
        log_dir.append("orders", pa.table({"value": [b"a", b"b"]}), partition=number)
    log_dir.refresh()
    resolver = OffsetResolver(
        log_dir.root,
        log_dir.root.topic("orders").partitions,
        committed=True,
        on_no_match="error",
        fail_on_data_loss=True,
    )
    opened: list[str] = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda name, *rest, **at: opened.append(str(name)) or real_open(name, *rest, **at))
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, lambda *_: pytest.fail("listed"))
    ranges = resolver.resolve(Earliest(), Latest())
    check_ends(ranges, resolver.readers)
    readers = resolver.readers
    assert cut_by_bytes(ranges, readers, max_bytes=1 << 20, known_bytes=readers.known_bytes) == ranges
    assert len(ranges) == partitions
    assert len(opened) == 2 * partitions, "the directory and its active segment"


def test_plan_that_ends_in_segment_closed_meanwhile_is_not_checked(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", pa.table({"value": [b"a"]}))
    log_dir.append("orders", pa.table({"value": [b"b"]}))
    log_dir.refresh()
    ranges = [OffsetRange(topic_partition=TopicPartition("orders", 0), start_offset=0, end_offset=2)]
    log = next((tmp_path / "log" / "orders-0").glob("*.log"))
    os.truncate(log, log.stat().st_size // 2)  # as the cleaner does, once the segment is closed
    with pytest.raises(CorruptRecordError, match="batches up to offset 1"):
        check_ends(ranges, PlanReaders(log_dir.root))
    log.with_name(f"{2:020d}.log").touch()
    check_ends(ranges, PlanReaders(log_dir.root))
    log.unlink()
    check_ends(ranges, PlanReaders(log_dir.root))  # retention has deleted all records: the read reports it
