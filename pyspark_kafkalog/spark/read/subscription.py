"""The topic partitions that a read covers: `subscribe`, `subscribePattern`, `assign`, or all topics of the root.

The rules are those of Spark's Kafka source (org.apache.spark.sql.kafka010.ConsumerStrategy), with two exceptions: a
missing topic or partition is an error that lists the existing ones, and an internal topic is read if it is requested by
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark_kafkalog.errors import InvalidOptionError, UnknownTopicError
from pyspark_kafkalog.spark.options.location import Location
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir, PartitionDescription

_LISTED_AT_MOST: Final = 20


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
    from pyspark_kafkalog.java_regex.topic_pattern import compile_topic_pattern

    pattern = text.strip()
    if not pattern:
        raise ValueError("expected a regular expression, it is empty")
    compile_topic_pattern(pattern)
    return SubscribePattern(pattern)


def subscribed_partitions(log_dir: LogDir, subscription: Subscription) -> list[PartitionDescription]:
    """The partitions to read, ordered by topic and number.

    Raises UnknownTopicError for a topic or partition that is requested by name and does not exist, and
    AuthorizationError for a topic that the principal may not read.
    """
    if isinstance(subscription, Assign):
        readable_topics(log_dir, subscription)
        return _assigned_partitions(log_dir, subscription.partitions)
    partitions: list[PartitionDescription] = []
    topics = readable_topics(log_dir, subscription)
    if isinstance(subscription, Subscribe):
        _check_topics_there(subscription.topics, log_dir.topics())
    for topic in topics:
        partitions.extend(sorted(log_dir.topic(topic).partitions, key=lambda found: found.partition))
    return partitions


def at_location(subscription: Subscription, location: Location) -> Subscription:
    """`subscription`, or the partition whose directory the path names. Raises InvalidOptionError if both are given."""
    if location.partition is None:
        return subscription
    if not isinstance(subscription, AllTopics):
        raise InvalidOptionError(
            f"option path names the partition directory of {location.partition}, which is then all "
            "that is read: leave out subscribe, subscribePattern and assign, or give the root as path"
        )
    return Assign((location.partition,))


def readable_topics(log_dir: LogDir, subscription: Subscription) -> list[str]:
    """The topics that the subscription covers, in order. Raises AuthorizationError for a topic that may not be read."""
    topics = subscribed_topics(log_dir.topics(), subscription)
    named: Iterable[str] = ()
    if isinstance(subscription, Subscribe):
        named = subscription.topics
    elif isinstance(subscription, Assign):
        named = (each.topic for each in subscription.partitions)
    log_dir.check_read(sorted({*topics, *named}))
    return topics


def subscribed_topics(there: Sequence[str], subscription: Subscription) -> list[str]:
    """The topics among `there`, the existing ones, that the subscription covers, in order."""
    if isinstance(subscription, Subscribe):
        return sorted(set(subscription.topics).intersection(there))
    if isinstance(subscription, Assign):
        return sorted({each.topic for each in subscription.partitions}.intersection(there))
    public = [topic for topic in there if topic not in INTERNAL_TOPICS and topic != CLUSTER_METADATA_TOPIC]
    if isinstance(subscription, AllTopics):
        return sorted(public)
    from pyspark_kafkalog.java_regex.topic_pattern import compile_topic_pattern

    pattern = compile_topic_pattern(subscription.pattern)
    return sorted(topic for topic in public if pattern.is_found_in(topic))


def _assigned_partitions(log_dir: LogDir, assigned: Sequence[TopicPartition]) -> list[PartitionDescription]:
    _check_topics_there([each.topic for each in assigned], log_dir.topics())
    for wanted in assigned:
        numbers = log_dir.partition_numbers(wanted.topic)
        if wanted.partition not in numbers:
            there = ", ".join(map(str, sorted(numbers)))
            raise UnknownTopicError(f"no partition {wanted}; topic {wanted.topic} has partitions {there}")
    return [log_dir.partition(wanted.topic, wanted.partition) for wanted in sorted(assigned)]


def _check_topics_there(wanted: Iterable[str], there: Sequence[str]) -> None:
    for topic in wanted:
        if topic not in there:
            raise UnknownTopicError(f"no topic {topic!r} in this log directory; topics there: {listed(there)}")


def listed(names: Iterable[str]) -> str:
    """The first of `names` in order, and the number of the others."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:_LISTED_AT_MOST]) or "none"
    more = len(ordered) - _LISTED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown
