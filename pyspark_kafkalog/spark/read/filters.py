"""Filters that Spark pushes down, translated to limits on a read.

Filters on topic and partition choose partitions. Filters on offset and timestamp narrow a range. Neither column is ever
null, so `IS NOT NULL` is always true. Spark's timestamps are in microseconds, Kafka's in milliseconds: limits are
rounded so that exactly the records that Spark would keep are kept. Filters that cannot be applied exactly are returned
to Spark, which evaluates them again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

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

from pyspark_kafkalog.units import EPOCH

_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})

#: Comparisons of a value on the left with a literal on the right.
_COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: bytes.startswith,
    StringEndsWith: bytes.endswith,
    StringContains: operator.contains,
}


@dataclass(frozen=True, slots=True)
class Interval:
    """Integers from `start` (inclusive) to `end` (exclusive); None leaves a side open."""

    start: int | None = None
    end: int | None = None

    def intersect(self, other: Interval) -> Interval:
        starts = [each for each in (self.start, other.start) if each is not None]
        ends = [each for each in (self.end, other.end) if each is not None]
        return Interval(max(starts, default=None), min(ends, default=None))

    @property
    def is_empty(self) -> bool:
        return self.start is not None and self.end is not None and self.start >= self.end


EMPTY: Final = Interval(0, 0)


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The pushed filters: predicates that choose partitions, and limits on offsets and timestamps (ms)."""

    on_topic: tuple[Filter, ...] = ()
    on_partition: tuple[Filter, ...] = ()
    offsets: Interval = Interval()
    timestamps_ms: Interval = Interval()

    def allows_partition(self, topic: str, partition: int) -> bool:
        """Whether any record of the partition can pass the filters."""
        if self.offsets.is_empty or self.timestamps_ms.is_empty:
            return False
        return all(_holds(each, topic.encode()) for each in self.on_topic) and all(
            _holds(each, partition) for each in self.on_partition
        )


def push_filters(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Split `filters`, a conjunction, into limits that the read applies and filters that Spark has to evaluate.

    A filter may narrow the read and still be in the second list.
    """
    pushed = PushedFilters()
    left: list[Filter] = []
    for each in filters:
        narrowed, is_exact = _push(pushed, each)
        pushed = narrowed
        if not is_exact:
            left.append(each)
    return pushed, left


def _push(pushed: PushedFilters, each: Filter) -> tuple[PushedFilters, bool]:
    column = _column(each)
    if isinstance(each, IsNotNull) and column in _NEVER_NULL:
        return pushed, True
    if column == "topic" and _is_predicate_on(each, str):
        return replace(pushed, on_topic=(*pushed.on_topic, each)), True
    if column == "partition" and _is_predicate_on(each, int):
        return replace(pushed, on_partition=(*pushed.on_partition, each)), True
    if column == "offset":
        interval, is_exact = _interval(each, _offset_interval)
        return replace(pushed, offsets=pushed.offsets.intersect(interval)), is_exact
    if column == "timestamp":
        interval, is_exact = _interval(each, _timestamp_interval)
        return replace(pushed, timestamps_ms=pushed.timestamps_ms.intersect(interval)), is_exact
    return pushed, False


def _column(each: Filter) -> str | None:
    if isinstance(each, Not):
        return _column(each.child)
    path: tuple[str, ...] = getattr(each, "attribute", ())
    return path[0] if len(path) == 1 else None


def _is_predicate_on(each: Filter, literal_type: type) -> bool:
    if isinstance(each, Not):
        return _is_predicate_on(each.child, literal_type)
    if isinstance(each, IsNull | IsNotNull):
        return True
    if isinstance(each, In):
        return all(_is_literal(value, literal_type) for value in each.value)
    return type(each) in _COMPARISONS and _is_literal(each.value, literal_type)  # type: ignore[attr-defined]


def _is_literal(value: object, literal_type: type) -> bool:
    return value is None or (isinstance(value, literal_type) and not isinstance(value, bool))


def _holds(each: Filter, value: bytes | int) -> bool:
    return _evaluate(each, value) is True


def _evaluate(each: Filter, value: bytes | int) -> bool | None:
    """A predicate on a value that is not null, in SQL's three-valued logic. Strings compare by their UTF-8 bytes."""
    if isinstance(each, Not):
        truth = _evaluate(each.child, value)
        return None if truth is None else not truth
    if isinstance(each, IsNull | IsNotNull):
        return isinstance(each, IsNotNull)
    if isinstance(each, In):
        if any(_comparable(literal) == value for literal in each.value):
            return True
        return None if None in each.value else False
    literal = each.value  # type: ignore[attr-defined]
    if literal is None:
        return False if isinstance(each, EqualNullSafe) else None
    return _COMPARISONS[type(each)](value, _comparable(literal))


def _comparable(literal: str | int | None) -> bytes | int | None:
    return literal.encode() if isinstance(literal, str) else literal


def _interval(each: Filter, of_comparison: Callable[[type[Filter], Any], Interval | None]) -> tuple[Interval, bool]:
    """The interval of values that pass `each`, and whether it is exact."""
    if isinstance(each, IsNull):
        return EMPTY, True
    if isinstance(each, In):
        return _hull([of_comparison(EqualTo, value) for value in each.value if value is not None])
    literal = getattr(each, "value", None)
    if type(each) not in _COMPARISONS:
        return Interval(), False
    if literal is None:
        return EMPTY, True
    interval = of_comparison(type(each), literal)
    return (Interval(), False) if interval is None else (interval, True)


def _hull(points: list[Interval | None]) -> tuple[Interval, bool]:
    """The smallest interval that contains the single values, and whether it contains nothing else."""
    if any(point is None for point in points):
        return Interval(), False
    values = sorted({point.start for point in points if point and not point.is_empty and point.start is not None})
    if not values:
        return EMPTY, True
    return Interval(values[0], values[-1] + 1), values[-1] - values[0] == len(values) - 1


def _offset_interval(comparison: type[Filter], literal: object) -> Interval | None:
    if not isinstance(literal, int) or isinstance(literal, bool):
        return None
    return _between(comparison, at=literal, after=literal + 1, is_reached=True)


def _timestamp_interval(comparison: type[Filter], literal: object) -> Interval | None:
    if not isinstance(literal, datetime) or literal.tzinfo is None:
        return None
    timestamp_us = (literal - EPOCH) // timedelta(microseconds=1)
    floor_ms, rest_us = divmod(timestamp_us, 1000)
    at_or_after_ms = floor_ms + 1 if rest_us else floor_ms
    return _between(comparison, at=at_or_after_ms, after=floor_ms + 1, is_reached=rest_us == 0)


def _between(comparison: type[Filter], *, at: int, after: int, is_reached: bool) -> Interval | None:
    """`at`: the first value not below the literal; `after`: the first above it; `is_reached`: if a value equals it."""
    if comparison in (EqualTo, EqualNullSafe):
        return Interval(at, after) if is_reached else EMPTY
    if comparison is GreaterThan:
        return Interval(after, None)
    if comparison is GreaterThanOrEqual:
        return Interval(at, None)
    if comparison is LessThan:
        return Interval(None, at)
    if comparison is LessThanOrEqual:
        return Interval(None, after)
    return None
