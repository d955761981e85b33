"""The configurations that a group of the consumer protocol has for itself; without them it has the broker-level ones.

    consumer.session.timeout.ms       else group.consumer.session.timeout.ms, which is not held to the limits
    consumer.heartbeat.interval.ms    else group.consumer.heartbeat.interval.ms

A group need not exist to have configurations, and keeps them when it is deleted, as in Kafka. Those of share groups and
of groups of Kafka Streams' own protocol are unknown here, as these groups are.

Source of the rules: org.apache.kafka.coordinator.group.GroupConfig and GroupCoordinatorConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.config.definitions import ConfigDefinition, ConfigType, at_least
from pyspark_kafkalog.errors import InvalidConfigError

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"

#: The configurations of a group by name. Their defaults are the broker-level settings of `BROKER_NAMES`.
GROUP_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {
    HEARTBEAT_INTERVAL: ConfigDefinition(
        HEARTBEAT_INTERVAL,
        ConfigType.INT,
        5_000,
        "Interval at which members of the group send heartbeats.",
        at_least(1),
    ),
    SESSION_TIMEOUT: ConfigDefinition(
        SESSION_TIMEOUT, ConfigType.INT, 45_000, "Session timeout of the members of the group.", at_least(1)
    ),
}
BROKER_NAMES: Final = {name: f"group.{name}" for name in GROUP_CONFIGS}


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The configurations that hold for one group, in milliseconds."""

    session_timeout_ms: int
    heartbeat_interval_ms: int

    @classmethod
    def of(cls, broker: BrokerConfig, configs: Mapping[str, str]) -> GroupConfig:
        """Those of a group with `configs` of its own. Raises InvalidConfigError for a value that is none."""

        def value(name: str, default: int) -> int:
            if name not in configs:
                return default
            parsed = GROUP_CONFIGS[name].parse(configs[name])
            assert isinstance(parsed, int)
            return parsed

        return cls(
            session_timeout_ms=value(SESSION_TIMEOUT, broker.group_consumer_session_timeout_ms),
            heartbeat_interval_ms=value(HEARTBEAT_INTERVAL, broker.group_consumer_heartbeat_interval_ms),
        )


def validate_group_configs(configs: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raise InvalidConfigError unless a group may have `configs` under the broker-level settings.

    Those with names that only a broker knows, which adoption has brought, are not looked at.
    """
    config = GroupConfig.of(broker, configs)
    if SESSION_TIMEOUT in configs:
        least = broker.group_consumer_min_session_timeout_ms
        _check(SESSION_TIMEOUT, config.session_timeout_ms, least, broker.group_consumer_max_session_timeout_ms)
    if HEARTBEAT_INTERVAL in configs:
        least = broker.group_consumer_min_heartbeat_interval_ms
        _check(HEARTBEAT_INTERVAL, config.heartbeat_interval_ms, least, broker.group_consumer_max_heartbeat_interval_ms)
    if configs.keys() & GROUP_CONFIGS.keys() and config.session_timeout_ms <= config.heartbeat_interval_ms:
        raise InvalidConfigError(
            f"{SESSION_TIMEOUT}={config.session_timeout_ms} is not allowed: expected more than "
            f"{HEARTBEAT_INTERVAL}, which is {config.heartbeat_interval_ms}"
        )


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        suffix = name.removeprefix("consumer.")
        raise InvalidConfigError(
            f"{name}={value} is not allowed: expected {least} to {most} (group.consumer.min.{suffix} and "
            f"group.consumer.max.{suffix})"
        )
