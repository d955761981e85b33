"""Targets for resetting a group's offsets: either end of the partitions, an offset, a time, or a relative shift.

A given or shifted offset is clamped to [log start offset, high watermark], and the caller is notified.

Source of the rules: org.apache.kafka.tools.consumer.group.ConsumerGroupCommand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final, SupportsIndex, TypeAlias

from pyspark_kafkalog.errors import InvalidGroupError, InvalidOptionError
from pyspark_kafkalog.groups.offset_records import OffsetAndMetadata
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import EPOCH
from pyspark_kafkalog.values import check_one_of

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The log start offset."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The high watermark."""


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """The committed offset; the high watermark if there is no committed offset."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """One offset for all partitions."""

    offset: int


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """An offset for each partition."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """The committed offset plus `offsets`, which may be negative."""

    offsets: int


@dataclass(frozen=True, slots=True)
class ToTimestamp:
    """The first record with this timestamp (ms) or a later one; the high watermark if no record has one."""

    timestamp_ms: int


ResetTarget: TypeAlias = ToEarliest | ToLatest | ToCurrent | ToOffset | ToOffsets | ShiftBy | ToTimestamp

#: Names of the targets that have no value.
_WORDS: Final[Mapping[str, ResetTarget]] = {"earliest": ToEarliest(), "latest": ToLatest(), "current": ToCurrent()}


def as_target(given: ResetTarget | str | int | datetime) -> ResetTarget:
    """The target for `earliest`, `latest` or `current`, an offset, or a time (UTC if it has no time zone).

    Raises InvalidOptionError for anything else.
    """
    if isinstance(given, str):
        check_one_of("the target of a reset", given, tuple(_WORDS))
        return _WORDS[given]
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        return ToOffset(given.__index__())
    if isinstance(given, datetime):
        moment = given if given.tzinfo is not None else given.replace(tzinfo=timezone.utc)
        return ToTimestamp((moment - EPOCH) // timedelta(milliseconds=1))
    if not isinstance(given, ResetTarget):
        raise InvalidOptionError(
            f"the target of a reset is {given!r}: expected an offset, a datetime, or one of {', '.join(_WORDS)}"
        )
    return given


def reset_offsets(
    root: Root,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    partitions: Iterable[TopicPartition],
    target: ResetTarget,
    notify: Callable[[str], None],
) -> dict[TopicPartition, int]:
    """The new offset of each of `partitions`, in order. `notify` is called with one sentence for each clamped offset.

    Raises UnknownTopicError, and InvalidGroupError for a shift of a partition without a committed offset.
    """
    return {each: _offset(root, committed, each, target, notify) for each in sorted(set(partitions))}


def _offset(
    root: Root,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    topic_partition: TopicPartition,
    target: ResetTarget,
    notify: Callable[[str], None],
) -> int:
    found = root.partition(topic_partition.topic, topic_partition.partition)
    start_offset, end_offset = found.log_start_offset, found.high_watermark
    match target:
        case ToEarliest():
            return start_offset
        case ToLatest():
            return end_offset
        case ToCurrent():
            return committed[topic_partition].offset if topic_partition in committed else end_offset
        case ToTimestamp(timestamp_ms):
            reader = root.reader(topic_partition.topic, topic_partition.partition)
            record = reader.offset_for_timestamp(timestamp_ms, start_offset, end_offset)
            if record is not None:
                return record.offset
            notify(f"{topic_partition} has no record of that time or later: reset to the end, {end_offset}")
            return end_offset
        case ToOffset(offset):
            requested = offset
        case ToOffsets(offsets):
            requested = offsets[topic_partition]
        case ShiftBy(count):
            if topic_partition not in committed:
                raise InvalidGroupError(f"{topic_partition} cannot be shifted: the group has no committed offset of it")
            requested = committed[topic_partition].offset + count
    if requested > end_offset:
        notify(f"offset {requested} of {topic_partition} is above the end: reset to {end_offset}")
    if requested < start_offset:
        notify(f"offset {requested} of {topic_partition} is below the log start: reset to {start_offset}")
    return min(max(requested, start_offset), end_offset)
