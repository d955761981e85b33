"""The topics and partitions that options of Kafka's tools select.

    --topic                 a Java regular expression for the whole name; a comma means "or"
    --include               the same, but a comma is literal, as in console-consumer
    --topic-partitions      topic:partition,topic:from-to,:-to,... with a regular expression for each topic

Source of the rules: org.apache.kafka.server.util.TopicFilter.IncludeList, org.apache.kafka.tools.GetOffsetShell and
org.apache.kafka.tools.consumer.ConsoleConsumer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pyspark_kafkalog.java_regex.topic_pattern import TopicPattern, compile_topic_pattern
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import UsageError

PartitionFilter = Callable[[TopicPartition], bool]

_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_ANY_TOPIC: Final = ".*"
_INT_MAX: Final = 2**31 - 1


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
    wanted = {int(each) for each in numbers}
    return lambda each: pattern.matches(each.topic) and (not wanted or each.partition in wanted)


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
        first, end = int(match[3] or 0), int(match[4] or _INT_MAX)
    return lambda each: pattern.matches(each.topic) and first <= each.partition < end
