"""Planning of micro-batches from offsets alone: each offset once and in order, losses named, replays the same."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.spark.options.parse import parse_stream_read_options
from pyspark_kafkalog.spark.read.plan import OffsetRange
from pyspark_kafkalog.spark.stream.plan import (
    BatchDelay,
    PartitionView,
    default_read_limit,
    from_json,
    limit_offsets,
    plan_latest,
    plan_read,
    prorate,
    to_json,
    unread_count,
)
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def there(
    topic_partition: TopicPartition,
    start_offset: int,
    end_offset: int,
    *,
    stable: int | None = None,
    topic_id: str = "id",
    foreign_in: Path | None = None,
) -> dict[TopicPartition, PartitionView]:
    found = PartitionView(
        topic_partition=topic_partition,
        topic_id=topic_id,
        directory=foreign_in or Path("/none"),
        log_start_offset=start_offset,
        readable_start_offset=start_offset,
        high_watermark=end_offset,
        readable_end_offset=end_offset if stable is None else stable,
        active_base_offset=-1,
        active_size_bytes=-1,
        may_be_truncated=foreign_in is not None,
        extents=lambda: LocalExtents(foreign_in or Path("/none")),
    )
    return {topic_partition: found}


def spans(ranges: list[OffsetRange]) -> list[tuple[TopicPartition, int, int]]:
    return [(each.topic_partition, each.start_offset, each.end_offset) for each in ranges]


def test_plan_reads_all_records_and_new_partitions_from_earliest() -> None:
    view = there(A0, 0, 10) | there(A1, 0, 7) | there(B0, 0, 0)
    plan = plan_latest({A0: 4}, view, {"a": "id"})
    assert plan.ends == {A0: 10, A1: 7, B0: 0}
    assert plan.losses == []
    read = plan_read({A0: 4}, plan.ends, view, is_initial=False)
    assert spans(read.ranges) == [(A0, 4, 10), (A1, 0, 7)]
    assert read.losses == []


def test_read_committed_never_goes_back_when_last_stable_offset_is_behind() -> None:
    view = there(A0, 0, 10, stable=3)
    assert plan_latest({A0: 5}, view, {}).ends == {A0: 5}
    assert plan_latest({A0: 5}, view, {}).losses == []


def test_offsets_below_log_start_are_loss_with_partition_and_ranges() -> None:
    view = there(A0, 6, 10)
    plan = plan_latest({A0: 4}, view, {})
    assert plan.ends == {A0: 10}
    assert plan.losses == [
        "a-0: offsets from 4 on were requested, available are log start 6 to high watermark 10: "
        "retention or delete-records has deleted the others"
    ]
    read = plan_read({A0: 4}, {A0: 8}, view, is_initial=False)
    assert spans(read.ranges) == [(A0, 6, 8)]
    assert "a-0: offsets 4 to 8 were requested, available are log start 6" in read.losses[0]
    assert plan_read({A0: 6}, {A0: 8}, view, is_initial=False).losses == []


def test_range_wholly_below_log_start_is_loss_without_ranges() -> None:
    read = plan_read({A0: 4}, {A0: 6}, there(A0, 20, 20), is_initial=False)
    assert (read.ranges, len(read.losses)) == ([], 1)


def test_new_partition_that_does_not_start_at_0_is_loss() -> None:
    read = plan_read({}, {A0: 8}, there(A0, 6, 10), is_initial=False)
    assert spans(read.ranges) == [(A0, 6, 8)]
    assert "a-0: offsets 0 to 8 were requested, as the partition is new to the stream, available are" in read.losses[0]


def test_missing_partition_is_loss_and_others_are_read() -> None:
    plan = plan_latest({A0: 4, B0: 1}, there(A0, 0, 10), {})
    assert plan.ends == {A0: 10}
    assert plan.losses[0].startswith("b-0: offsets from 1 on were requested, the partition does not exist")
    read = plan_read({A0: 4, B0: 1}, {A0: 10}, there(A0, 0, 10), is_initial=False)
    assert spans(read.ranges) == [(A0, 4, 10)]
    assert "b-0" in read.losses[0]
    vanished_since = plan_read({A0: 4, B0: 1}, {A0: 10, B0: 3}, there(A0, 0, 10), is_initial=False)
    assert spans(vanished_since.ranges) == [(A0, 4, 10)]
    assert "b-0: offsets 1 to 3 were requested" in vanished_since.losses[0]


def test_recreated_topic_is_left_out_once_and_then_new() -> None:
    view = there(A0, 0, 50, topic_id="anew")
    plan = plan_latest({A0: 4}, view, {"a": "id"})
    assert plan.ends == {}
    assert "re-created, its id is now anew" in plan.losses[0]
    read = plan_read({A0: 4}, {}, view, is_initial=False)
    assert read.ranges == []
    assert "re-created" in read.losses[0]
    assert plan_latest({}, view, {"a": "anew"}).ends == {A0: 50}
    assert spans(plan_read({}, {A0: 50}, view, is_initial=False).ranges) == [(A0, 0, 50)]


def test_recreated_topic_with_more_partitions_is_left_out_as_whole() -> None:
    view = there(A0, 0, 50, topic_id="anew") | there(A1, 0, 7, topic_id="anew")
    assert plan_latest({A0: 10}, view, {"a": "id"}).ends == {}, "with A1 in it the topic would go on to be the old one"


def test_shorter_log_of_own_root_is_taken_for_recreated() -> None:
    view = there(A0, 0, 3)
    plan = plan_latest({A0: 4}, view, {})
    assert plan.ends == {}
    assert "the log was truncated, or the topic was re-created" in plan.losses[0]
    replayed = plan_read({A0: 1}, {A0: 4}, view, is_initial=False)
    assert replayed.ranges == [], "its records are not those that were requested"
    assert len(replayed.losses) == 1


def test_shorter_log_of_broker_is_continued_at_its_end(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(b"")
    view = there(A0, 0, 3, foreign_in=tmp_path)
    plan = plan_latest({A0: 4}, view, {})
    assert plan.ends == {A0: 3}
    assert len(plan.losses) == 1
    read = plan_read({A0: 4}, {A0: 3}, view, is_initial=False)
    assert read.ranges == []
    assert "a-0: offsets 4 to 3 were requested" in read.losses[0]


def test_repeated_first_batch_from_later_start_reports_no_loss() -> None:
    view = there(A0, 0, 10) | there(A1, 0, 5)
    read = plan_read({A0: 9, A1: 0}, {A0: 6}, view, is_initial=True)
    assert (read.ranges, read.losses) == ([], [])


@pytest.mark.parametrize("given_json", [{"a": {"0": -1}}, {"a": 5}, {"a": {"x": 5}}, {"a": {"0": 1.5}}, {"p": "q"}])
def test_offsets_of_another_source_are_refused(given_json: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match="checkpointLocation names a checkpoint"):
        from_json(given_json)


def test_json_form_is_that_of_sparks_kafka_source_in_order() -> None:
    offsets = {TopicPartition("b", 0): 2**62, **{TopicPartition("a", number): number for number in (10, 9, 2)}}
    assert (
        json.dumps(to_json(offsets), separators=(",", ":"))
        == '{"a":{"2":2,"9":9,"10":10},"b":{"0":4611686018427387904}}'
    )
    assert from_json(to_json(offsets)) == offsets


PARTITIONS = [TopicPartition(topic, partition) for topic in "ab" for partition in range(3)]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(PARTITIONS), st.integers(1, 50)),
        st.tuples(st.just("retain"), st.sampled_from(PARTITIONS), st.integers(0, 100)),
        st.tuples(st.just("batch"), st.just(A0), st.integers(1, 60)),
        st.tuples(st.just("replay"), st.just(A0), st.integers(1, 60)),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_each_offset_is_read_once_and_in_order_whatever_happens_between_batches(
    actions: list[tuple[str, TopicPartition, int]],
) -> None:
    """Appends (the first one creates the partition) and retention of read records, limited batches, killed batches."""
    logs: dict[TopicPartition, tuple[int, int]] = {}
    read_to: dict[TopicPartition, int] = {}
    offsets: dict[TopicPartition, int] = {}

    def view() -> dict[TopicPartition, PartitionView]:
        return {each: there(each, *log)[each] for each, log in sorted(logs.items())}

    def batch(limit: int, *, killed: bool) -> int:
        nonlocal offsets
        seen = view()
        plan = plan_latest(offsets, seen, {})
        ends = limit_offsets(offsets, plan.ends, seen, limit)
        assert all(ends[each] >= offset for each, offset in offsets.items()), "never back"
        read = plan_read(offsets, ends, seen, is_initial=False)
        if killed:
            for each, (start_offset, end_offset) in list(logs.items()):
                logs[each] = (start_offset, end_offset + 5)
            again = plan_read(from_json(to_json(offsets)), from_json(to_json(ends)), view(), is_initial=False)
            assert again == read
        assert plan.losses == read.losses == []
        for each in read.ranges:
            assert each.start_offset == read_to.get(each.topic_partition, 0)
            read_to[each.topic_partition] = each.end_offset
        count = sum(each.offsets_count for each in read.ranges)
        unread = unread_count(offsets, plan.ends, seen)
        waiting = len([each for each in seen if plan.ends[each] > offsets.get(each, 0)])
        assert count == min(unread, max(limit, waiting))
        assert len(read.ranges) == waiting, "every partition that has something progresses"
        offsets = from_json(to_json(ends))
        return count

    for action, topic_partition, number in actions:
        if action == "append":
            start_offset, end_offset = logs.get(topic_partition, (0, 0))
            logs[topic_partition] = (start_offset, end_offset + number)
        elif action == "retain" and topic_partition in logs:
            start_offset, end_offset = logs[topic_partition]
            logs[topic_partition] = (max(start_offset, min(number, read_to.get(topic_partition, 0))), end_offset)
        elif action in ("batch", "replay"):
            batch(number, killed=action == "replay")
    while batch(25, killed=False):
        pass
    assert read_to == {each: end_offset for each, (_, end_offset) in logs.items()}


SIZES = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 2**62)), min_size=1, max_size=40)


@given(SIZES, st.one_of(st.integers(1, 60), st.integers(1, 2**62)))
def test_shares_add_up_to_limit_and_each_partition_progresses(sizes: list[int], limit: int) -> None:
    shares = prorate(limit, sizes)
    assert all(1 <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) == min(sum(sizes), max(limit, len(sizes)))


@given(SIZES, st.integers(1, 2**62))
def test_shares_are_within_one_offset_of_sparks_where_no_partition_starves(sizes: list[int], limit: int) -> None:
    shares, total = prorate(limit, sizes), sum(sizes)
    if total > limit and all(limit * size >= total for size in sizes):
        assert all(0 <= share - limit * size // total <= 1 for share, size in zip(shares, sizes, strict=True))


@given(SIZES, st.integers(1, 1000))
def test_larger_partition_never_gets_less(sizes: list[int], limit: int) -> None:
    shares = prorate(limit, sorted(sizes))
    assert all(after >= before - 1 for before, after in itertools.pairwise(shares))


def test_shares_equal_those_of_sparks_own_test() -> None:
    sizes = [101, 11, 1]
    assert prorate(10, sizes) == [8, 1, 1]
    assert prorate(10, [93, 10]) == [9, 1]
    assert prorate(10, [84, 9]) == [9, 1]


def test_equal_partitions_get_equal_shares() -> None:
    assert prorate(10, [7, 7, 7]) == [4, 3, 3]
    assert prorate(2, [7, 7, 7]) == [1, 1, 1]
    assert prorate(10, [1000, *[1] * 9]) == [1] * 10
    assert prorate(5, []) == []


def test_batch_waits_for_minimum_no_longer_than_max_delay() -> None:
    clock = Clock()
    delay = BatchDelay(10, 500, clock_ms=clock)
    assert not delay.holds_back(1), "the first batch of a run never waits"
    assert delay.holds_back(9)
    assert not delay.holds_back(10)
    clock.now_ms += 499
    assert delay.holds_back(9)
    clock.now_ms += 1
    assert not delay.holds_back(0)
    assert delay.holds_back(9), "the wait begins anew with each batch"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2", "maxBytesPerTrigger": "9"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "1k"}, ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "2"}, ReadMinRows(2)),
    ],
)
def test_default_read_limit_is_one_limit(options: dict[str, str], expected: ReadLimit) -> None:
    assert default_read_limit(parse_stream_read_options({"path": "/x", **options})) == expected
