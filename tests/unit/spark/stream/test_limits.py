"""Limits of a micro-batch: shares add up, no partition starves, and waiting for more records ends."""

from __future__ import annotations

import itertools

import pytest
from fakes.clock import Clock
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_kafkalog.spark.options.parse import parse_stream_read_options
from pyspark_kafkalog.spark.stream.limits import BatchDelay, default_read_limit, prorate

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
