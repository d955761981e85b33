"""The table of topic configurations: all that Kafka 4.1 has, with the broker-level names that they fall back to.

A topic's own value comes first, then the first of the broker-level names that is set, then the default. Source of the
names, defaults and limits: org.apache.kafka.storage.internals.log.LogConfig; of the broker-level names and their units:
org.apache.kafka.server.config.ServerTopicConfigSynonyms and ServerLogConfigs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.config.definitions import (
    NO_EFFECT,
    Allowed,
    ConfigDefinition,
    ConfigType,
    ConfigValue,
    at_least,
    between,
    between_or,
    each_matches_or,
    each_of,
    one_of,
)
from pyspark_kafkalog.record.codecs.codec import CODECS, TOPIC_CODEC_NAMES, Levels
from pyspark_kafkalog.units import DAY_MS, HOUR_MS, INT64_MAX, MIB, MINUTE_MS

CLEANUP_POLICY_COMPACT: Final = "compact"
CLEANUP_POLICY_DELETE: Final = "delete"

#: compression.type that keeps the codec of the producer's batches.
COMPRESSION_PRODUCER: Final = "producer"

_LOG_OVERHEAD_BYTES: Final = 12
_DERIVED: Final = -2

_THROTTLED: Final = each_matches_or(r"([0-9]+:[0-9]+)?", "*", "* or a list of partition:broker pairs")


@dataclass(frozen=True, slots=True)
class BrokerSynonym:
    """A broker-level name for a topic config; its value times `scale` is the topic config's value."""

    definition: ConfigDefinition
    scale: int = 1


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic config and its broker-level names, in order of precedence."""

    definition: ConfigDefinition
    synonyms: tuple[BrokerSynonym, ...] = ()

    @property
    def name(self) -> str:
        return self.definition.name


def _config(
    name: str, type_: ConfigType, default: ConfigValue, allowed: Allowed | None, doc: str, *broker_names: str
) -> TopicConfig:
    """A topic config whose broker-level names have its own type, limits and unit."""
    synonyms = (BrokerSynonym(ConfigDefinition(broker, type_, default, doc, allowed)) for broker in broker_names)
    return TopicConfig(ConfigDefinition(name, type_, default, doc, allowed), tuple(synonyms))


def _time_config(
    name: str, default: int, allowed: Allowed, doc: str, *synonyms: tuple[str, ConfigType, int, Allowed | None]
) -> TopicConfig:
    """A topic config in ms with broker-level names in several units: (name, type, ms per unit, limits)."""
    return TopicConfig(
        ConfigDefinition(name, ConfigType.LONG, default, doc, allowed),
        tuple(
            BrokerSynonym(ConfigDefinition(broker, type_, None, doc, limits), scale)
            for broker, type_, scale, limits in synonyms
        ),
    )


def _segment_configs() -> Iterator[TopicConfig]:
    yield _config(
        "segment.bytes",
        ConfigType.INT,
        1 << 30,
        at_least(MIB),
        "Maximum size of a segment in bytes: an append that would exceed it first rolls the segment.",
        "log.segment.bytes",
    )
    yield _time_config(
        "segment.ms",
        7 * DAY_MS,
        at_least(1),
        "A segment is rolled when the timestamps of its records span more than this, even if it is not full.",
        ("log.roll.ms", ConfigType.LONG, 1, at_least(1)),
        ("log.roll.hours", ConfigType.INT, HOUR_MS, at_least(1)),
    )
    yield _time_config(
        "segment.jitter.ms",
        0,
        at_least(0),
        "Maximum random deduction from segment.ms, so that partitions do not all roll at once.",
        ("log.roll.jitter.ms", ConfigType.LONG, 1, at_least(0)),
        ("log.roll.jitter.hours", ConfigType.INT, HOUR_MS, at_least(0)),
    )
    yield _config(
        "segment.index.bytes",
        ConfigType.INT,
        10 * MIB,
        at_least(4),
        "Preallocated size of each index of the active segment; a full index rolls the segment.",
        "log.index.size.max.bytes",
    )
    yield _config(
        "index.interval.bytes",
        ConfigType.INT,
        4096,
        at_least(0),
        "Bytes of the log between two index entries; a smaller value finds records faster but enlarges indexes.",
        "log.index.interval.bytes",
    )
    yield _config(
        "preallocate",
        ConfigType.BOOLEAN,
        False,
        None,
        f"Whether a broker allocates a new segment file at full length. {NO_EFFECT}",
        "log.preallocate",
    )
    yield _config(
        "internal.segment.bytes",
        ConfigType.INT,
        None,
        None,
        "Overrides segment.bytes and has no minimum: for tests.",
    )


def _retention_configs() -> Iterator[TopicConfig]:
    yield _config(
        "cleanup.policy",
        ConfigType.LIST,
        (CLEANUP_POLICY_DELETE,),
        each_of(CLEANUP_POLICY_COMPACT, CLEANUP_POLICY_DELETE),
        "Policy for old segments: delete removes them by age or size, compact keeps the last record of each key.",
        "log.cleanup.policy",
    )
    yield _time_config(
        "retention.ms",
        7 * DAY_MS,
        at_least(-1),
        "With delete: a segment is deleted once its latest record is older than this; -1 keeps all.",
        ("log.retention.ms", ConfigType.LONG, 1, None),
        ("log.retention.minutes", ConfigType.INT, MINUTE_MS, None),
        ("log.retention.hours", ConfigType.INT, HOUR_MS, None),
    )
    yield _config(
        "retention.bytes",
        ConfigType.LONG,
        -1,
        None,
        "With delete: the oldest segments of a partition are deleted while it is larger than this; -1: no limit.",
        "log.retention.bytes",
    )
    yield _config(
        "file.delete.delay.ms",
        ConfigType.LONG,
        MINUTE_MS,
        at_least(0),
        "How long the renamed files of a deleted segment are kept.",
        "log.segment.delete.delay.ms",
    )
    yield _config(
        "delete.retention.ms",
        ConfigType.LONG,
        DAY_MS,
        at_least(0),
        "With compact: how long a tombstone is kept after the first cleaning pass that meets it.",
        "log.cleaner.delete.retention.ms",
    )
    yield _config(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        at_least(0),
        "With compact: a record younger than this is not compacted.",
        "log.cleaner.min.compaction.lag.ms",
    )
    yield _config(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        INT64_MAX,
        at_least(1),
        "With compact: an uncleaned record older than this makes its partition due for cleaning.",
        "log.cleaner.max.compaction.lag.ms",
    )
    yield _config(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        0.5,
        between(0, 1),
        "With compact: a partition is due for cleaning when this share of it is dirty.",
        "log.cleaner.min.cleanable.ratio",
    )


def _message_configs() -> Iterator[TopicConfig]:
    yield _config(
        "max.message.bytes",
        ConfigType.INT,
        MIB + _LOG_OVERHEAD_BYTES,
        at_least(0),
        "Maximum size of a record batch, after compression.",
        "message.max.bytes",
    )
    yield _config(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "The source of timestamps: the producer's clock, or the log's clock at the append.",
        "log.message.timestamp.type",
    )
    yield _config(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        INT64_MAX,
        at_least(0),
        "With CreateTime: a record whose timestamp is further in the past than this is refused.",
        "log.message.timestamp.before.max.ms",
    )
    yield _config(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        HOUR_MS,
        at_least(0),
        "With CreateTime: a record whose timestamp is further in the future than this is refused.",
        "log.message.timestamp.after.max.ms",
    )
    yield _config(
        "compression.type",
        ConfigType.STRING,
        COMPRESSION_PRODUCER,
        one_of(*TOPIC_CODEC_NAMES, COMPRESSION_PRODUCER),
        "The codec of stored batches; producer keeps the codec of the writer.",
        "compression.type",
    )
    for codec in CODECS.values():
        if codec.levels is not None:
            yield _level_config(codec.name, codec.levels)


def _level_config(codec: str, levels: Levels) -> TopicConfig:
    is_default_in_range = levels.minimum <= levels.default <= levels.maximum
    return _config(
        f"compression.{codec}.level",
        ConfigType.INT,
        levels.default,
        between(levels.minimum, levels.maximum)
        if is_default_in_range
        else between_or(levels.minimum, levels.maximum, levels.default),
        f"Compression level of {codec} if compression.type is {codec}.",
        f"compression.{codec}.level",
    )


def _durability_configs() -> Iterator[TopicConfig]:
    yield _config(
        "flush.messages",
        ConfigType.LONG,
        INT64_MAX,
        at_least(1),
        "A broker flushes the log after this many records. Here the writer's option flush decides.",
        "log.flush.interval.messages",
    )
    yield _time_config(
        "flush.ms",
        INT64_MAX,
        at_least(0),
        f"A broker flushes the log after this time. {NO_EFFECT}",
        ("log.flush.interval.ms", ConfigType.LONG, 1, at_least(0)),
        ("log.flush.scheduler.interval.ms", ConfigType.LONG, 1, at_least(0)),
    )
    yield _config(
        "min.insync.replicas",
        ConfigType.INT,
        1,
        at_least(1),
        f"Replicas that must have a record before a broker acknowledges it. {NO_EFFECT}",
        "min.insync.replicas",
    )
    yield _config(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        None,
        f"Whether a lagging broker may become leader and lose records. {NO_EFFECT}",
        "unclean.leader.election.enable",
    )
    yield _config(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        _THROTTLED,
        f"Replicas whose outgoing replication a broker throttles. {NO_EFFECT}",
    )
    yield _config(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        _THROTTLED,
        f"Replicas whose incoming replication a broker throttles. {NO_EFFECT}",
    )


def _remote_configs() -> Iterator[TopicConfig]:
    yield _config(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        False,
        None,
        "Whether a broker copies closed segments to remote storage. Nothing copies them here, so retention by age or "
        "size then deletes none.",
    )
    yield _config(
        "local.retention.ms",
        ConfigType.LONG,
        _DERIVED,
        at_least(_DERIVED),
        f"How long a broker keeps a copied segment locally too; -2: as long as retention.ms. {NO_EFFECT}",
        "log.local.retention.ms",
    )
    yield _config(
        "local.retention.bytes",
        ConfigType.LONG,
        _DERIVED,
        at_least(_DERIVED),
        f"Bytes of copied segments that a broker keeps locally too; -2: retention.bytes. {NO_EFFECT}",
        "log.local.retention.bytes",
    )
    yield _config(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        False,
        None,
        "Whether a broker has stopped copying to remote storage; it still reads the copies. Retention by age or size "
        "then deletes segments here again.",
    )
    yield _config(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        None,
        f"Whether switching remote.storage.enable off deletes the copies in remote storage. {NO_EFFECT}",
    )


def _all_configs() -> dict[str, TopicConfig]:
    groups = (_segment_configs, _retention_configs, _message_configs, _durability_configs, _remote_configs)
    return {config.name: config for group in groups for config in group()}


#: All topic configs by name.
TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = MappingProxyType(_all_configs())
