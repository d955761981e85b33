"""Topic configurations: the table of all that Kafka 4.4 has, and a topic's effective values.

A topic's own value comes first, then the first of the broker-level names that is set, then the default. Source of the
names, defaults and limits: org.apache.kafka.storage.internals.log.LogConfig (also the cross-checks of values); of the
broker-level names and their units: org.apache.kafka.server.config.ServerTopicConfigSynonyms, ServerLogConfigs and
kafka.server.KafkaConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from random import Random
from types import MappingProxyType
from typing import Any, Final

from pyspark_kafkalog.config.definitions import (
    FIRST_VERSION,
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
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.record.codecs.codec import CODECS, TOPIC_CODEC_NAMES, CompressionType, Levels, codec_named
from pyspark_kafkalog.record.header import TimestampType
from pyspark_kafkalog.units import DAY_MS, HOUR_MS, INT32_MAX, INT64_MAX, MIB, MINUTE_MS
from pyspark_kafkalog.values import dataclass
from pyspark_kafkalog.version import KafkaVersion

__all__ = ["TOPIC_CONFIGS", "LogConfig", "topic_config_values", "validate_topic_config", "validate_topic_configs"]


CLEANUP_POLICY_COMPACT: Final = "compact"
CLEANUP_POLICY_DELETE: Final = "delete"

#: compression.type that keeps the codec of the producer's batches.
COMPRESSION_PRODUCER: Final = "producer"

_LOG_OVERHEAD_BYTES: Final = 12
#: The longest array of a JVM.
_RECORD_BYTES_MAX: Final = INT32_MAX - 8
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
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    allowed: Allowed | None,
    doc: str,
    *broker_names: str,
    since: KafkaVersion = FIRST_VERSION,
) -> TopicConfig:
    """A topic config whose broker-level names have its own type, limits, unit and age."""
    synonyms = (BrokerSynonym(ConfigDefinition(broker, type_, default, doc, allowed, since)) for broker in broker_names)
    return TopicConfig(ConfigDefinition(name, type_, default, doc, allowed, since), tuple(synonyms))


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
        "internal.segment.bytes", ConfigType.INT, None, None, "Overrides segment.bytes and has no minimum: for tests."
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
        "max.decompressed.message.bytes",
        ConfigType.INT,
        _RECORD_BYTES_MAX,
        between(1, _RECORD_BYTES_MAX),
        "Maximum size of a record of a compressed batch, after decompression. Writes and servers refuse larger ones; "
        "cleaning, and a server's lookup of an offset by time, fail at one that is stored already.",
        "max.decompressed.message.bytes",
        since=KafkaVersion(4, 4),
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
        "Whether kafkalog tier copies closed segments to remote storage; local retention deletes only what is copied.",
    )
    yield _config(
        "local.retention.ms",
        ConfigType.LONG,
        _DERIVED,
        at_least(_DERIVED),
        "How long a copied segment is kept locally too; -2: as long as retention.ms.",
        "log.local.retention.ms",
    )
    yield _config(
        "local.retention.bytes",
        ConfigType.LONG,
        _DERIVED,
        at_least(_DERIVED),
        "Bytes of a partition that are kept locally, as far as older segments are copied; -2: retention.bytes.",
        "log.local.retention.bytes",
    )
    yield _config(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        False,
        None,
        "Whether copying to remote storage has stopped; copies are still read, and local retention is total retention.",
    )
    yield _config(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        None,
        "Whether remote.storage.enable may be switched off, which deletes the copies in remote storage.",
    )
    yield _config(
        "remote.copy.lag.ms",
        ConfigType.LONG,
        0,
        at_least(-1),
        f"Age of its latest record at which a broker copies a segment to remote storage. {NO_EFFECT}",
        "log.remote.copy.lag.ms",
        since=KafkaVersion(4, 4),
    )
    yield _config(
        "remote.copy.lag.bytes",
        ConfigType.LONG,
        -1,
        at_least(-1),
        f"Bytes after a segment at which a broker copies it to remote storage. {NO_EFFECT}",
        "log.remote.copy.lag.bytes",
        since=KafkaVersion(4, 4),
    )


def _share_group_configs() -> Iterator[TopicConfig]:
    yield _config(
        "errors.deadletterqueue.group.enable",
        ConfigType.BOOLEAN,
        False,
        None,
        f"Whether share groups may write records to the topic that they could not deliver. {NO_EFFECT}",
        since=KafkaVersion(4, 4),
    )


def _all_configs() -> dict[str, TopicConfig]:
    groups = (
        _segment_configs,
        _retention_configs,
        _message_configs,
        _durability_configs,
        _remote_configs,
        _share_group_configs,
    )
    return {config.name: config for group in groups for config in group()}


#: All topic configs by name.
TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = MappingProxyType(_all_configs())


_TIMESTAMP_TYPES = {"CreateTime": TimestampType.CREATE_TIME, "LogAppendTime": TimestampType.LOG_APPEND_TIME}
_INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
_REMOTE_SYSTEM_ENABLE = "remote.log.storage.system.enable"


def _default(name: str) -> Any:
    return TOPIC_CONFIGS[name].definition.default


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Effective topic configs, parsed. Each field is the config of its name with `.` for `_`; names include the units.

    `segment_bytes` is the value of internal.segment.bytes if that is set.
    """

    segment_bytes: int = _default("segment.bytes")
    segment_ms: int = _default("segment.ms")
    segment_jitter_ms: int = _default("segment.jitter.ms")
    segment_index_bytes: int = _default("segment.index.bytes")
    index_interval_bytes: int = _default("index.interval.bytes")
    preallocate: bool = _default("preallocate")
    cleanup_policy: tuple[str, ...] = _default("cleanup.policy")
    retention_ms: int = _default("retention.ms")
    retention_bytes: int = _default("retention.bytes")
    file_delete_delay_ms: int = _default("file.delete.delay.ms")
    delete_retention_ms: int = _default("delete.retention.ms")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    max_message_bytes: int = _default("max.message.bytes")
    max_decompressed_message_bytes: int = _default("max.decompressed.message.bytes")
    message_timestamp_type: TimestampType = _TIMESTAMP_TYPES[_default("message.timestamp.type")]
    message_timestamp_before_max_ms: int = _default("message.timestamp.before.max.ms")
    message_timestamp_after_max_ms: int = _default("message.timestamp.after.max.ms")
    compression_type: str = _default("compression.type")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_zstd_level: int = _default("compression.zstd.level")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    min_insync_replicas: int = _default("min.insync.replicas")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")
    leader_replication_throttled_replicas: tuple[str, ...] = _default("leader.replication.throttled.replicas")
    follower_replication_throttled_replicas: tuple[str, ...] = _default("follower.replication.throttled.replicas")
    remote_storage_enable: bool = _default("remote.storage.enable")
    local_retention_ms: int = _default("local.retention.ms")
    local_retention_bytes: int = _default("local.retention.bytes")
    remote_log_copy_disable: bool = _default("remote.log.copy.disable")
    remote_log_delete_on_disable: bool = _default("remote.log.delete.on.disable")
    remote_copy_lag_ms: int = _default("remote.copy.lag.ms")
    remote_copy_lag_bytes: int = _default("remote.copy.lag.bytes")

    @classmethod
    def from_properties(
        cls, topic_overrides: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> LogConfig:
        """The configuration of a topic with `topic_overrides` under broker-level properties `broker`.

        Broker-level names that do not concern topics are ignored. Raises InvalidConfigError for an unknown topic
        config, a bad value on either level, or values that contradict each other.
        """
        values = topic_config_values(topic_overrides or {}, broker or {})
        _check_compaction_lag(values)
        internal_segment_bytes = values[_INTERNAL_SEGMENT_BYTES]
        if internal_segment_bytes is not None:
            values["segment.bytes"] = internal_segment_bytes
        arguments: dict[str, Any] = {field.name: values[field.name.replace("_", ".")] for field in fields(cls)}
        arguments["message_timestamp_type"] = _TIMESTAMP_TYPES[arguments["message_timestamp_type"]]
        return cls(**arguments)

    @property
    def compact(self) -> bool:
        """Whether the cleaner keeps only the last record of each key."""
        return CLEANUP_POLICY_COMPACT in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether old segments are deleted by age and size."""
        return CLEANUP_POLICY_DELETE in self.cleanup_policy

    def stored_compression(self, producers: CompressionType) -> CompressionType:
        """The codec of stored batches: the topic's, or that of their producer if compression.type is `producer`."""
        if self.compression_type == COMPRESSION_PRODUCER:
            return producers
        return codec_named(self.compression_type).compression_type

    def compression_level(self, compression: CompressionType) -> int | None:
        """The level for a codec; None if it has no levels."""
        codec = CODECS[compression]
        return None if codec.levels is None else getattr(self, f"compression_{codec.name}_level")

    @property
    def max_segment_ms(self) -> int:
        """Time in ms after which a segment is rolled: segment.ms, or a compacted topic's maximum lag if less."""
        if self.compact and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    def random_segment_jitter_ms(self, rng: Random) -> int:
        """The time in ms by which one segment rolls earlier: below segment.jitter.ms and segment.ms."""
        if self.segment_jitter_ms == 0:
            return 0
        return rng.randrange(min(self.segment_jitter_ms, self.segment_ms))


def validate_topic_config(name: str, value: str) -> ConfigValue:
    """The parsed value of one topic config. Raises InvalidConfigError, which names it and lists what is allowed."""
    return _topic_config(name).definition.parse(value)


def validate_topic_configs(
    topic_overrides: Mapping[str, str],
    broker: Mapping[str, str] | None = None,
    *,
    existing: Mapping[str, str] | None = None,
) -> LogConfig:
    """Check the configs of a topic that is to be created or altered; returns the resulting configuration.

    Besides the checks of `LogConfig.from_properties`, the rules for tiered storage apply: it must be enabled for the
    whole log directory, is allowed only for topics with cleanup.policy delete, local retention must not exceed total
    retention, and remote.copy.lag.* must not exceed local retention. `existing` are the topic's own configs before the
    change. Raises InvalidConfigError.
    """
    config = LogConfig.from_properties(topic_overrides, broker)
    if config.remote_storage_enable:
        _check_remote_storage(config, broker or {})
    elif (existing or {}).get("remote.storage.enable", "").strip().lower() == "true":
        _check_turned_off(config)
    return config


def topic_config_values(topic_overrides: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, ConfigValue]:
    """The effective values of all topic configs by name, parsed."""
    for name in topic_overrides:
        _topic_config(name)
    return {name: _value_in_force(config, topic_overrides, broker) for name, config in TOPIC_CONFIGS.items()}


def _topic_config(name: str) -> TopicConfig:
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        raise InvalidConfigError(f"{name} is no topic config; there are {', '.join(sorted(TOPIC_CONFIGS))}")
    return config


def _value_in_force(config: TopicConfig, topic_overrides: Mapping[str, str], broker: Mapping[str, str]) -> ConfigValue:
    own = topic_overrides.get(config.name)
    if own is not None:
        return config.definition.parse(own)
    for synonym in config.synonyms:
        text = broker.get(synonym.definition.name)
        if text is None:
            continue
        value = synonym.definition.parse(text)
        if config.name == "retention.ms":
            return _retention_ms(synonym.definition.name, value, synonym.scale)
        return value * synonym.scale if isinstance(value, int) and synonym.scale != 1 else value
    return config.definition.default


def _retention_ms(name: str, value: ConfigValue, scale: int) -> int:
    """A broker's retention time in ms: values below 0 mean unlimited, and 0 is rejected."""
    assert isinstance(value, int)
    if value == 0:
        raise InvalidConfigError(f"{name}=0 is not allowed: expected at least 1, or -1 for ever")
    return value * scale if value > 0 else -1


def _check_compaction_lag(values: Mapping[str, ConfigValue]) -> None:
    minimum, maximum = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(minimum, int)
    assert isinstance(maximum, int)
    if minimum > maximum:
        raise InvalidConfigError(
            f"min.compaction.lag.ms={minimum} is not allowed: expected at most max.compaction.lag.ms={maximum}"
        )


def _check_remote_storage(config: LogConfig, broker: Mapping[str, str]) -> None:
    if broker.get(_REMOTE_SYSTEM_ENABLE, "false").strip().lower() != "true":
        raise InvalidConfigError(
            f"remote.storage.enable=true is not allowed: expected false while {_REMOTE_SYSTEM_ENABLE} is not true"
        )
    if set(config.cleanup_policy) != {CLEANUP_POLICY_DELETE}:
        policy = ",".join(config.cleanup_policy)
        raise InvalidConfigError(f"cleanup.policy={policy} is not allowed: expected delete with remote.storage.enable")
    _check_local_retention("ms", config.local_retention_ms, config.retention_ms, config)
    _check_local_retention("bytes", config.local_retention_bytes, config.retention_bytes, config)
    _check_copy_lag("ms", config.remote_copy_lag_ms, config.local_retention_ms, config.retention_ms)
    _check_copy_lag("bytes", config.remote_copy_lag_bytes, config.local_retention_bytes, config.retention_bytes)


def _check_local_retention(unit: str, local: int, total: int, config: LogConfig) -> None:
    if local == -2:
        return
    if total >= 0 and not 0 <= local <= total:
        raise InvalidConfigError(
            f"local.retention.{unit}={local} is not allowed: expected -2, or at most retention.{unit}, which is {total}"
        )
    if config.remote_log_copy_disable and local != total:
        raise InvalidConfigError(
            f"local.retention.{unit}={local} is not allowed: expected -2 or {total}, which is retention.{unit}, "
            "with remote.log.copy.disable"
        )


def _check_copy_lag(unit: str, lag: int, local: int, total: int) -> None:
    """Segments must be copied before local retention deletes them. Source: LogConfig of Kafka 4.4."""
    local = total if local == _DERIVED else local
    if 0 <= local < lag:
        raise InvalidConfigError(
            f"remote.copy.lag.{unit}={lag} is not allowed: expected at most local.retention.{unit}, which is {local}"
        )


def _check_turned_off(config: LogConfig) -> None:
    if not config.remote_log_delete_on_disable:
        raise InvalidConfigError(
            "remote.storage.enable=false is not allowed for a topic that had it on: also set "
            "remote.log.delete.on.disable=true to delete what is there, or keep it on with remote.log.copy.disable=true"
        )
