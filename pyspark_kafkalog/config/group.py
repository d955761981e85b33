"""The configurations that a group has for itself; without them it has the broker-level ones.

    consumer.session.timeout.ms       else group.consumer.session.timeout.ms, which is not held to the limits
    consumer.heartbeat.interval.ms    else group.consumer.heartbeat.interval.ms

The others concern share groups, groups of Kafka Streams' own protocol, and when a broker computes assignments. They are
checked for their type and kept, so that a broker finds them again, and have no effect here. A group need not exist to
have configurations, and keeps them when it is deleted, as in Kafka.

Source of the rules: org.apache.kafka.coordinator.group.GroupConfig and GroupCoordinatorConfig. Of the configurations
without effect, what a broker's settings allow (group.share.min.session.timeout.ms) is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.config.definitions import (
    FIRST_VERSION,
    NO_EFFECT,
    Allowed,
    ConfigDefinition,
    ConfigType,
    ConfigValue,
    at_least,
    one_of,
)
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.version import KafkaVersion

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"

_V4_2: Final = KafkaVersion(4, 2)
_V4_3: Final = KafkaVersion(4, 3)
_V4_4: Final = KafkaVersion(4, 4)
#: In Kafka a duration may also have negative parts (java.time.Duration), which make no sense here.
_RESET: Final = re.compile(
    r"latest|earliest|by_duration:(?i:P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]{0,9})?S)?)?)"
)


def _without_effect(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    allowed: Allowed | None,
    doc: str,
    since: KafkaVersion = FIRST_VERSION,
) -> ConfigDefinition:
    return ConfigDefinition(name, type_, default, f"{doc} {NO_EFFECT}", allowed, since)


def _consumer_configs() -> Iterator[ConfigDefinition]:
    number, flag = ConfigType.INT, ConfigType.BOOLEAN
    doc = "Interval at which members of the group send heartbeats."
    yield ConfigDefinition(HEARTBEAT_INTERVAL, number, 5_000, doc, at_least(1))
    doc = "Session timeout of the members of the group."
    yield ConfigDefinition(SESSION_TIMEOUT, number, 45_000, doc, at_least(1))
    doc = "Time between assignments of a group of consumers."
    yield _without_effect("consumer.assignment.interval.ms", number, 1_000, at_least(0), doc, _V4_3)
    doc = "Whether a broker assigns partitions to consumers in a thread of the background."
    yield _without_effect("consumer.assignor.offload.enable", flag, True, None, doc, _V4_4)


def _share_configs() -> Iterator[ConfigDefinition]:
    number, flag, text = ConfigType.INT, ConfigType.BOOLEAN, ConfigType.STRING
    doc = "Interval at which members of a share group send heartbeats."
    yield _without_effect("share.heartbeat.interval.ms", number, 5_000, at_least(1), doc)
    doc = "Session timeout of the members of a share group."
    yield _without_effect("share.session.timeout.ms", number, 45_000, at_least(1), doc)
    doc = "How long a member of a share group may keep a record before another one gets it."
    yield _without_effect("share.record.lock.duration.ms", number, 30_000, at_least(1_000), doc)
    doc = "Where a share group begins: at the first record, behind the last one, or so long ago."
    is_reset = Allowed(
        "latest, earliest or by_duration:PnDTnHnMn.nS", lambda value: _RESET.fullmatch(str(value)) is not None
    )
    yield _without_effect("share.auto.offset.reset", text, "latest", is_reset, doc)
    doc = "Whether a share group gets records of aborted transactions."
    levels = one_of("read_committed", "read_uncommitted")
    yield _without_effect("share.isolation.level", text, "read_uncommitted", levels, doc)
    doc = "Time between assignments of a share group."
    yield _without_effect("share.assignment.interval.ms", number, 1_000, at_least(0), doc, _V4_3)
    doc = "How often a share group is given a record that its members do not acknowledge."
    yield _without_effect("share.delivery.count.limit", number, 5, at_least(2), doc, _V4_3)
    doc = "Records of a partition that the members of a share group may keep at once."
    yield _without_effect("share.partition.max.record.locks", number, 2_000, at_least(100), doc, _V4_3)
    doc = "Whether members of a share group may keep a record for longer."
    yield _without_effect("share.renew.acknowledge.enable", flag, True, None, doc, _V4_3)
    doc = "Whether a broker assigns partitions to a share group in a thread of the background."
    yield _without_effect("share.assignor.offload.enable", flag, True, None, doc, _V4_4)
    doc = "Topic for records that a share group could not process; empty: none."
    yield _without_effect("errors.deadletterqueue.topic.name", text, "", None, doc, _V4_4)
    doc = "Whether that topic gets the records themselves, too."
    yield _without_effect("errors.deadletterqueue.copy.record.enable", flag, False, None, doc, _V4_4)


def _streams_configs() -> Iterator[ConfigDefinition]:
    number, flag, text = ConfigType.INT, ConfigType.BOOLEAN, ConfigType.STRING
    doc = "Interval at which members of a streams group send heartbeats."
    yield _without_effect("streams.heartbeat.interval.ms", number, 5_000, at_least(1), doc)
    doc = "Session timeout of the members of a streams group."
    yield _without_effect("streams.session.timeout.ms", number, 45_000, at_least(1), doc)
    doc = "Standby replicas of each task of a streams group."
    yield _without_effect("streams.num.standby.replicas", number, 0, at_least(0), doc)
    doc = "How long the first rebalance of a streams group waits for more members."
    yield _without_effect("streams.initial.rebalance.delay.ms", number, 3_000, at_least(0), doc, _V4_2)
    doc = "Time between assignments of a streams group."
    yield _without_effect("streams.assignment.interval.ms", number, 1_000, at_least(0), doc, _V4_3)
    doc = "Whether a broker assigns tasks to a streams group in a thread of the background."
    yield _without_effect("streams.assignor.offload.enable", flag, True, None, doc, _V4_4)
    doc = "Name of the assignor of a streams group; without one, the first of the broker's."
    yield _without_effect("streams.assignor.name", text, None, None, doc, _V4_4)
    doc = "Offsets by which a member of a streams group may be behind to be given an active task."
    yield _without_effect("streams.acceptable.recovery.lag", ConfigType.LONG, 10_000, at_least(0), doc, _V4_4)
    doc = "Tasks that warm up at once in a streams group."
    yield _without_effect("streams.num.warmup.replicas", number, 2, at_least(0), doc, _V4_4)
    doc = "Interval at which members of a streams group tell how far their tasks are."
    yield _without_effect("streams.task.offset.interval.ms", number, 60_000, at_least(1), doc, _V4_4)
    doc = "Tags of clients over which a streams group spreads its standby replicas."
    different = Allowed(
        "a comma-separated list of different tags",
        lambda value: isinstance(value, tuple) and len({*value}) == len(value) and all(value),
    )
    yield _without_effect("streams.rack.aware.assignment.tags", ConfigType.LIST, (), different, doc, _V4_4)


#: The configurations of a group by name. Their defaults are the broker-level settings of `BROKER_NAMES`, if these are
#: set.
GROUP_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {each.name: each for definitions in (_consumer_configs, _share_configs, _streams_configs) for each in definitions()}
)
_ONLY_OF_GROUPS: Final = frozenset(
    {
        "share.auto.offset.reset",
        "share.isolation.level",
        "share.renew.acknowledge.enable",
        "errors.deadletterqueue.topic.name",
        "errors.deadletterqueue.copy.record.enable",
        "streams.assignor.name",
    }
)
BROKER_NAMES: Final = {name: f"group.{name}" for name in GROUP_CONFIGS if name not in _ONLY_OF_GROUPS}


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
    for name in configs.keys() & GROUP_CONFIGS.keys():
        GROUP_CONFIGS[name].parse(configs[name])
    config = GroupConfig.of(broker, configs)
    if SESSION_TIMEOUT in configs:
        least = broker.group_consumer_min_session_timeout_ms
        _check(SESSION_TIMEOUT, config.session_timeout_ms, least, broker.group_consumer_max_session_timeout_ms)
    if HEARTBEAT_INTERVAL in configs:
        least = broker.group_consumer_min_heartbeat_interval_ms
        _check(HEARTBEAT_INTERVAL, config.heartbeat_interval_ms, least, broker.group_consumer_max_heartbeat_interval_ms)
    is_timed = SESSION_TIMEOUT in configs or HEARTBEAT_INTERVAL in configs
    if is_timed and config.session_timeout_ms <= config.heartbeat_interval_ms:
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
