"""What a read covers: its topics or partitions, and the positions at which it starts and ends.

The options are those of Spark's Kafka source (org.apache.spark.sql.kafka010.ConsumerStrategy and JsonUtils):

    orders,payments                       topics (subscribe)
    {"topicA": [0, 1]}                    partitions (assign)
    {"topicA": {"0": 23, "1": -1}}        offsets by partition; -1 latest, -2 earliest
    {"topicA": {"0": 1700000000000}}      timestamps in ms by partition

This module only parses; read/plan.py finds the partitions and offsets that exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX
from pyspark_kafkalog.values import guess

_LISTED_AT_MOST: Final = 20
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
_POSITIONS: Final = ("earliest", "latest")
_ANY_OFFSETS: Final = 'expected earliest, latest, or JSON as {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'

OnNoMatch: TypeAlias = Literal["error", "latest"]
OffsetReset: TypeAlias = Literal["earliest", "latest", "none"]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose names contain a match of the Java regular expression, except internal ones."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Only these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class AllTopics:
    """Every topic of the root that is not internal: the default if only a path is given."""


Subscription: TypeAlias = Subscribe | SubscribePattern | Assign | AllTopics


def parse_subscribe(text: str) -> Subscribe:
    """Topic names, separated by commas. Raises ValueError if the list is empty."""
    topics = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not topics:
        raise ValueError("expected topic names with commas between them, at least one")
    return Subscribe(topics)


def parse_subscribe_pattern(text: str) -> SubscribePattern:
    """A Java regular expression. Raises ValueError if it is empty, invalid or not supported."""
    from pyspark_kafkalog.java_regex.patterns import compile_topic_pattern

    pattern = text.strip()
    if not pattern:
        raise ValueError("expected a regular expression, it is empty")
    compile_topic_pattern(pattern)
    return SubscribePattern(pattern)


@dataclass(frozen=True, slots=True)
class Earliest:
    """From the log start offset of every partition."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of every partition: the high watermark, or the last stable offset for read_committed."""


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition; `LATEST_OFFSET` and `EARLIEST_OFFSET` stand for the ends."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GlobalTimestamp:
    """In every partition, the first record with this timestamp or a later one."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SpecificTimestamps:
    """As `GlobalTimestamp`, with one timestamp per partition."""

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A consumer group's committed offsets; `reset` for partitions without one, or with one that is out of range."""

    group_id: str = ""
    reset: OffsetReset = "latest"


OffsetSpec: TypeAlias = Earliest | Latest | SpecificOffsets | GlobalTimestamp | SpecificTimestamps | GroupOffsets


def parse_starting_offsets(text: str) -> OffsetSpec:
    """`earliest`, `latest`, `group` (other options add its details) or offset JSON. Raises ValueError."""
    if text.strip().lower() == "group":
        return GroupOffsets()
    return parse_offset_spec(
        text,
        'expected earliest, group, or JSON as {"topicA":{"0":23,"1":-2}} with an offset for each partition and -2 for '
        "earliest; in streaming reads also latest, and -1 for it",
    )


def parse_ending_offsets(text: str) -> OffsetSpec:
    """`latest` or offset JSON; also `earliest`, which every read refuses later. Raises ValueError for other text."""
    return parse_offset_spec(
        text,
        'expected latest, or JSON as {"topicA":{"0":50,"1":-1}} with the first offset of each partition that is not to '
        "be read, and -1 for latest",
    )


def parse_offset_spec(text: str, expected: str = _ANY_OFFSETS) -> OffsetSpec:
    """`earliest`, `latest` or offset JSON. Raises ValueError with a message that begins with `expected`."""
    word = text.strip().lower()
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    offsets = _parse_by_partition(text, guess(word, _POSITIONS) + expected)
    for topic_partition, offset in offsets.items():
        if offset < EARLIEST_OFFSET:
            raise ValueError(f"{expected}; {topic_partition} has {offset}")
    return SpecificOffsets(offsets)


def asked_for(
    end: Literal["starting", "ending"], spec: OffsetSpec, topic_partition: TopicPartition, offset: int
) -> str:
    """A text with the option, its value for the partition, and the resolved `offset` if it differs from the value."""
    if isinstance(spec, SpecificOffsets):
        given = spec.offsets[topic_partition]
        return f"{end}Offsets {given}" if given == offset else f"{end}Offsets {given} (offset {offset})"
    if isinstance(spec, GlobalTimestamp):
        return f"{end}Timestamp {spec.timestamp_ms} (offset {offset})"
    if isinstance(spec, SpecificTimestamps):
        return f"{end}OffsetsByTimestamp {spec.timestamps_ms[topic_partition]} (offset {offset})"
    word = "earliest" if isinstance(spec, Earliest) else "latest" if isinstance(spec, Latest) else "group"
    return f"{end}Offsets {word} (offset {offset})"


def parse_timestamp(text: str) -> GlobalTimestamp:
    """One timestamp in ms. Raises ValueError."""
    try:
        timestamp_ms = int(text.strip())
    except ValueError:
        timestamp_ms = -1
    if not 0 <= timestamp_ms <= INT64_MAX:
        raise ValueError(
            "expected a timestamp in milliseconds since 1970, 0 or more, as 1704067200000 for 2024-01-01T00:00:00Z; "
            "unix_millis(timestamp) computes it in SQL"
        )
    return GlobalTimestamp(timestamp_ms)


def parse_partition_timestamps(text: str) -> SpecificTimestamps:
    """Timestamp JSON. Raises ValueError."""
    expected = 'expected JSON as {"topicA":{"0":1700000000000,"1":1700000000000}} with milliseconds since 1970'
    timestamps = _parse_by_partition(text, expected)
    if any(timestamp_ms < 0 for timestamp_ms in timestamps.values()):
        raise ValueError(expected)
    return SpecificTimestamps(timestamps)


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Partition JSON, in the order given. Raises ValueError for other text and if it names no partition."""
    expected = 'expected JSON as {"topicA":[0,1],"topicB":[0,1]}'
    parsed = _load_object(text, expected)
    partitions: list[TopicPartition] = []
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list) or any(isinstance(number, str) for number in numbers):
            raise ValueError(expected)
        partitions.extend(TopicPartition(topic, _checked_partition(number, expected)) for number in numbers)
    if not partitions:
        raise ValueError(f"{expected}, with at least one partition")
    return tuple(dict.fromkeys(partitions))


def _parse_by_partition(text: str, expected: str) -> dict[TopicPartition, int]:
    values: dict[TopicPartition, int] = {}
    for topic, by_partition in _load_object(text, expected).items():
        if not isinstance(by_partition, dict):
            raise ValueError(expected)
        for number, value in by_partition.items():
            if not isinstance(value, int) or isinstance(value, bool) or not -INT64_MAX <= value <= INT64_MAX:
                raise ValueError(f"{expected}; {topic}-{number} has {value!r}")
            topic_partition = TopicPartition(topic, _checked_partition(number, expected))
            if topic_partition in values:
                raise ValueError(f"{expected}; {topic_partition} appears twice")
            values[topic_partition] = value
    return values


def _checked_partition(number: object, expected: str) -> int:
    if isinstance(number, str) and number.isascii() and number.isdigit():
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= INT32_MAX:
        raise ValueError(f"{expected}; {number!r} is no partition number")
    return number


def _load_object(text: str, expected: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:
        why = f": {error}" if text.lstrip().startswith("{") else ""
        raise ValueError(f"{expected}{why}") from error
    if not isinstance(parsed, dict):
        raise ValueError(expected)
    return parsed


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name appears twice")
    return names


def check_unresolved(starting: OffsetSpec, ending: OffsetSpec) -> None:
    """Check for mistakes that do not depend on the log: different partitions at start and end, a start after its end.

    Raises InvalidOptionError for both.
    """
    if type(starting) is not type(ending):
        return
    if isinstance(starting, GlobalTimestamp) and isinstance(ending, GlobalTimestamp):
        if starting.timestamp_ms > ending.timestamp_ms:
            raise InvalidOptionError(
                f"startingTimestamp {starting.timestamp_ms} is greater than endingTimestamp {ending.timestamp_ms}"
            )
        return
    starts, ends = given_partitions(starting), given_partitions(ending)
    if starts is None or ends is None:
        return
    if starts.keys() != ends.keys():
        raise InvalidOptionError(
            "starting and ending offsets must name the same partitions. "
            f"Starting: {listed(map(str, starts))}. Ending: {listed(map(str, ends))}"
        )
    kind = "Offsets" if isinstance(starting, SpecificOffsets) else "OffsetsByTimestamp"
    for topic_partition, start in starts.items():
        end = ends[topic_partition]
        if start > end and start >= 0 and end >= 0:
            raise InvalidOptionError(f"{topic_partition}: starting{kind} {start} is greater than ending{kind} {end}")


def given_partitions(spec: OffsetSpec) -> Mapping[TopicPartition, int] | None:
    """The offsets or timestamps in ms by partition; None for a spec that does not name partitions."""
    if isinstance(spec, SpecificOffsets):
        return spec.offsets
    if isinstance(spec, SpecificTimestamps):
        return spec.timestamps_ms
    return None


def listed(names: Iterable[str]) -> str:
    """The first of `names` in order, and the number of the others."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:_LISTED_AT_MOST]) or "none"
    more = len(ordered) - _LISTED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown
