"""A topic's effective configuration: its own values override the broker-level ones, which override the defaults.

Source of the rules: org.apache.kafka.storage.internals.log.LogConfig (values, cross-checks) and
kafka.server.KafkaConfig (how broker-level names map to a topic's values).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from pyspark_kafkalog.config.definitions import ConfigValue
from pyspark_kafkalog.config.topic import (
    CLEANUP_POLICY_COMPACT,
    CLEANUP_POLICY_DELETE,
    COMPRESSION_PRODUCER,
    TOPIC_CONFIGS,
    TopicConfig,
)
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType, codec_named
from pyspark_kafkalog.record.header import TimestampType

__all__ = ["TOPIC_CONFIGS", "LogConfig", "topic_config_values", "validate_topic_config", "validate_topic_configs"]

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
    whole log directory, is allowed only for topics with cleanup.policy delete, and local retention must not exceed
    total retention. `existing` are the topic's own configs before the change. Raises InvalidConfigError.
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


def _check_turned_off(config: LogConfig) -> None:
    if not config.remote_log_delete_on_disable:
        raise InvalidConfigError(
            "remote.storage.enable=false is not allowed for a topic that had it on: also set "
            "remote.log.delete.on.disable=true to delete what is there, or keep it on with remote.log.copy.disable=true"
        )
