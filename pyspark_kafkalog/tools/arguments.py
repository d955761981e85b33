"""Values on the command line: points in time, settings, and the topics and partitions that an option selects.

    --time, --from-time     milliseconds since 1970, or ISO 8601
    --property              NAME=VALUE, also from a Java properties file
    --topic                 a Java regular expression for the whole name; a comma means "or"
    --include               the same, but a comma is literal, as in console-consumer
    --topic-partitions      topic:partition,topic:from-to,:-to,... with a regular expression for each topic

Source of the rules: org.apache.kafka.server.util.TopicFilter.IncludeList, org.apache.kafka.tools.GetOffsetShell and
org.apache.kafka.tools.consumer.ConsoleConsumer.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.java_regex.topic_pattern import TopicPattern, compile_topic_pattern
from pyspark_kafkalog.storage.artefacts.marker_files import read_properties_file
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.dump.java_text import parse_long
from pyspark_kafkalog.units import EPOCH, INT32_MAX

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir

#: The help text of options that accept both.
FORMS: Final = "ms since 1970, or ISO 8601, in UTC unless it names an offset: 2026-01-31T10:15:00"

_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?)?(Z|z|[+-]\d\d(?::?\d\d)?)?")

#: java.time.ZoneOffset
_ZONE_HOURS_MAX: Final = 18


def parse_time_ms(text: str) -> int | None:
    """The time in ms since 1970; None if `text` is neither a number nor ISO 8601. Digits below ms are truncated."""
    number = parse_long(text)
    if number is not None:
        return number
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    date, time_of_day, fraction, zone = match.groups()
    try:
        seconds = epoch_seconds(f"{date}T{time_of_day or '00:00'}", zone or "Z", zone_hours_max=_ZONE_HOURS_MAX)
    except (ValueError, OverflowError):
        return None
    return seconds * 1000 + int((fraction or "").ljust(3, "0")[:3])


def epoch_seconds(local: str, zone: str, *, zone_hours_max: int) -> int:
    """Seconds since 1970 of an ISO 8601 time to the second in the zone `Z`, `+02`, `+0200` or `+02:00`.

    Raises ValueError for a time or zone that does not exist, OverflowError for one outside of the calendar.
    """
    moment = datetime.fromisoformat(local).replace(tzinfo=timezone.utc)
    if zone not in ("Z", "z"):
        digits = zone[1:].replace(":", "")
        hours, minutes = int(digits[:2]), int(digits[2:] or "0")
        if hours > zone_hours_max or minutes > 59:
            raise ValueError(zone)
        offset = timedelta(hours=hours, minutes=minutes)
        moment = moment + offset if zone[0] == "-" else moment - offset
    return (moment - EPOCH) // timedelta(seconds=1)


def time_ms(text: str) -> int:
    """The argparse type of points in time from 1970 on."""
    found = parse_time_ms(text)
    if found is None or found < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a time: expected {FORMS}")
    return found


def parse_properties_options(texts: Iterable[str], file: Path | None = None) -> dict[str, str]:
    """Each text's NAME=VALUE, which overrides the properties file if one is given. Raises UsageError."""
    properties = {} if file is None else read_properties_file(file)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"Invalid command line properties: {text}: expected NAME=VALUE")
        properties[name] = value
    return properties


def is_true(properties: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Whether the property is `true`, in upper or lower case; anything else is false, as in Kafka's console tools."""
    return properties[name].strip().lower() == "true" if name in properties else default


PartitionFilter = Callable[[TopicPartition], bool]

_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_ANY_TOPIC: Final = ".*"
_PARTITION_DIGITS_MAX: Final = 10


def topic_pattern(text: str) -> TopicPattern:
    """The pattern that a topic's whole name must match: enclosing quotes and blanks are dropped, a comma means "or"."""
    return include_pattern(text.strip().replace(",", "|").replace(" ", "").strip("\"'"))


def include_pattern(text: str) -> TopicPattern:
    """The pattern that a topic's whole name must match, unchanged."""
    try:
        return compile_topic_pattern(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def topics_and_partitions(topic: str | None, partitions: str | None) -> PartitionFilter:
    """`--topic` (None: all) and `--partitions`, numbers separated by commas (None or empty: all)."""
    pattern = topic_pattern(_ANY_TOPIC if topic is None else topic)
    numbers = [text for text in (partitions or "").split(",") if text]
    if not all(each.isdecimal() for each in numbers):
        raise UsageError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
        )
    selected = {int(each) for each in numbers}
    return lambda each: pattern.matches(each.topic) and (not selected or each.partition in selected)


def topic_partition_rules(text: str) -> PartitionFilter:
    """`--topic-partitions`: a partition is selected if one of the rules selects it."""
    rules = [_rule(each) for each in text.split(",")]
    return lambda each: any(rule(each) for rule in rules)


def _rule(text: str) -> PartitionFilter:
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(f"Invalid rule specification: {text}")
    pattern = topic_pattern(match[1] or _ANY_TOPIC)
    if match[2]:
        first, end = int(match[2]), int(match[2]) + 1
    else:
        first, end = int(match[3] or 0), int(match[4] or INT32_MAX)
    return lambda each: pattern.matches(each.topic) and first <= each.partition < end


def topic_partitions(log_dir: LogDir, topics: Sequence[str]) -> tuple[list[TopicPartition], list[str]]:
    """The partitions that values of --topic name (`topic` or `topic:0,1`), and the topics that do not exist."""
    found: list[TopicPartition] = []
    unknown: list[str] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if colon:
            found += [TopicPartition(topic, _partition_number(number, text)) for number in numbers.split(",")]
            continue
        try:
            found += [TopicPartition(topic, each.partition) for each in log_dir.topic(topic).partitions]
        except UnknownTopicError:
            unknown.append(topic)
    return list(dict.fromkeys(found)), unknown


def _partition_number(text: str, argument: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _PARTITION_DIGITS_MAX:
        raise UsageError(f"Invalid partition '{text}' specified in topic arg '{argument}'")
    return int(text)
