"""Pushed filters keep exactly the rows that Spark would keep, or are left to Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pyspark_kafkalog.spark.read.filters import EMPTY, Interval, push_filters

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
COMPARISONS = {
    EqualTo: lambda value, literal: value == literal,
    EqualNullSafe: lambda value, literal: value == literal,
    GreaterThan: lambda value, literal: value > literal,
    GreaterThanOrEqual: lambda value, literal: value >= literal,
    LessThan: lambda value, literal: value < literal,
    LessThanOrEqual: lambda value, literal: value <= literal,
}


def contains(interval: Interval, value: int) -> bool:
    return (interval.start is None or value >= interval.start) and (interval.end is None or value < interval.end)


@given(st.sampled_from(list(COMPARISONS)), st.integers(-20, 20), st.integers(-20, 20))
def test_offset_comparisons_are_exact(comparison: type, literal: int, offset: int) -> None:
    pushed, left = push_filters([comparison(("offset",), literal)])
    assert not left
    assert contains(pushed.offsets, offset) == COMPARISONS[comparison](offset, literal)


@given(st.sampled_from(list(COMPARISONS)), st.integers(-5000, 5000), st.integers(-5, 5))
def test_timestamp_comparisons_in_microseconds_are_exact_for_milliseconds(
    comparison: type, literal_us: int, timestamp_ms: int
) -> None:
    literal = EPOCH + timedelta(microseconds=literal_us)
    pushed, left = push_filters([comparison(("timestamp",), literal)])
    assert not left
    expected = COMPARISONS[comparison](timestamp_ms * 1000, literal_us)
    assert contains(pushed.timestamps_ms, timestamp_ms) == expected


def test_timestamps_of_any_zone_mean_the_same_instant() -> None:
    literal = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("America/New_York"))
    pushed, _ = push_filters([GreaterThanOrEqual(("timestamp",), literal)])
    assert pushed.timestamps_ms == Interval(int(literal.timestamp() * 1000), None)


def test_timestamp_without_zone_is_left_to_spark() -> None:
    each = LessThan(("timestamp",), datetime(2024, 7, 1))
    assert push_filters([each]) == push_filters([each])
    assert push_filters([each])[1] == [each]


@given(st.lists(st.one_of(st.none(), st.integers(-10, 10)), max_size=5), st.integers(-12, 12))
def test_offsets_in_list_narrow_range_and_are_taken_only_when_exact(literals: list[int | None], offset: int) -> None:
    each = In(("offset",), tuple(literals))
    pushed, left = push_filters([each])
    if offset in literals:
        assert contains(pushed.offsets, offset)
    elif not left:
        assert not contains(pushed.offsets, offset)


def test_timestamps_in_list_narrow_range_and_are_left_to_spark() -> None:
    values = tuple(EPOCH + timedelta(milliseconds=each) for each in (3, 9))
    pushed, left = push_filters([In(("timestamp",), values)])
    assert pushed.timestamps_ms == Interval(3, 10)
    assert len(left) == 1
    between = In(("timestamp",), (EPOCH + timedelta(microseconds=1),))
    assert push_filters([between])[0].timestamps_ms == EMPTY


@pytest.mark.parametrize("column", ["topic", "partition", "offset", "timestamp", "timestampType"])
def test_is_not_null_on_columns_never_null_keeps_all(column: str) -> None:
    pushed, left = push_filters([IsNotNull((column,))])
    assert not left
    assert pushed.allows_partition("a", 0)


@pytest.mark.parametrize(
    ("each", "passes"),
    [
        (EqualTo(("topic",), "orders"), True),
        (EqualTo(("topic",), "order"), False),
        (Not(EqualTo(("topic",), "orders")), False),
        (In(("topic",), ("x", "orders")), True),
        (Not(In(("topic",), ("x", None))), False),
        (StringStartsWith(("topic",), "ord"), True),
        (StringEndsWith(("topic",), "ord"), False),
        (StringContains(("topic",), "rde"), True),
        (GreaterThan(("topic",), "o"), True),
        (LessThan(("topic",), "é"), True),
        (IsNull(("topic",)), False),
        (EqualTo(("topic",), None), False),
        (Not(EqualTo(("topic",), None)), False),
        (EqualNullSafe(("topic",), None), False),
        (Not(EqualNullSafe(("topic",), None)), True),
        (EqualTo(("partition",), 3), True),
        (LessThan(("partition",), 3), False),
        (Not(In(("partition",), (1, 2))), True),
    ],
)
def test_predicates_choose_partitions(each: Filter, passes: bool) -> None:
    pushed, left = push_filters([each])
    assert not left
    assert pushed.allows_partition("orders", 3) == passes


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("offset",), None),
        EqualNullSafe(("offset",), None),
        IsNull(("timestamp",)),
        LessThan(("timestamp",), None),
    ],
)
def test_comparison_with_null_keeps_nothing(each: Filter) -> None:
    pushed, left = push_filters([each])
    assert not left
    assert not pushed.allows_partition("a", 0)


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("key",), b"x"),
        EqualTo(("headers", "key"), "x"),
        IsNotNull(("value",)),
        EqualTo(("timestampType",), 0),
        Not(EqualTo(("offset",), 3)),
        EqualTo(("offset",), 3.5),
        EqualTo(("partition",), True),
        StringStartsWith(("offset",), "x"),
        In(("topic",), (1,)),
    ],
)
def test_unsupported_filters_are_left_to_spark(each: Filter) -> None:
    pushed, left = push_filters([each])
    assert left == [each]
    assert pushed == push_filters([])[0]


def test_all_filters_apply_together() -> None:
    kept = EqualTo(("value",), b"x")
    pushed, left = push_filters(
        [GreaterThan(("offset",), 5), LessThan(("offset",), 10), kept, GreaterThanOrEqual(("offset",), 7)]
    )
    assert pushed.offsets == Interval(7, 10)
    assert left == [kept]
