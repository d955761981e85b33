"""The configurations that a group has for itself; without them it has the broker-level ones.

    consumer.session.timeout.ms       else group.consumer.session.timeout.ms, which is not held to the limits
    consumer.heartbeat.interval.ms    else group.consumer.heartbeat.interval.ms

The others concern share groups, groups of Kafka Streams' own protocol, and when a broker computes assignments. They are
checked as a broker checks them and kept, so that a broker finds them again, and have no effect here. A group need not
exist to have configurations, and keeps them when it is deleted, as in Kafka.

Source of the rules: org.apache.kafka.coordinator.group.GroupConfig, GroupCoordinatorConfig and ShareGroupConfig. The
broker-level settings that bound configurations without effect (group.share.min.session.timeout.ms) have Kafka's
defaults, unless adoption has brought others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.config.broker import BROKER_CONFIGS, BrokerConfig
from pyspark_kafkalog.config.definitions import (
    FIRST_VERSION,
    NO_EFFECT,
    Allowed,
    ConfigDefinition,
    ConfigType,
    ConfigValue,
    at_least,
    between,
    one_of,
)
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.values import dataclass
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


@dataclass(frozen=True, slots=True)
class GroupConfigDefinition(ConfigDefinition):
    """A configuration of groups, and the broker-level settings that belong to it.

    `broker_name`: the setting that holds for groups without a value of their own, None if there is none. `minimum` and
    `maximum`: the settings that bound the values of groups. `has_effect`: whether this package uses the configuration.
    """

    broker_name: str | None = None
    minimum: ConfigDefinition | None = None
    maximum: ConfigDefinition | None = None
    has_effect: bool = False

    def check_bounds(self, value: ConfigValue, broker: BrokerConfig) -> None:
        """Raise InvalidConfigError for a value that the broker-level settings do not allow a group."""
        bounds = [bound for bound in (self.minimum, self.maximum) if bound is not None]
        least = 0 if self.minimum is None else _setting(self.minimum.name, self.minimum, broker)
        most = None if self.maximum is None else _setting(self.maximum.name, self.maximum, broker)
        allowed = at_least(least) if most is None else between(least, most)
        if bounds and not allowed.accepts(value):
            names = " and ".join(bound.name for bound in bounds)
            raise InvalidConfigError(f"{self.name}={value} is not allowed: expected {allowed.text} ({names})")


def _setting(name: str | None, definition: ConfigDefinition, broker: BrokerConfig) -> int:
    """The value of a number that is set at the broker level by that name, else the default."""
    text = None if name is None else broker.properties.get(name)
    value = definition.default if text is None else definition.parse(text)
    assert isinstance(value, int)
    return value


def _bound(name: str, default: int) -> ConfigDefinition:
    """A broker-level setting that bounds values of groups."""
    return BROKER_CONFIGS.get(name, ConfigDefinition(name, ConfigType.INT, default, "", at_least(0)))


def _config(
    name: str,
    type_: ConfigType,
    default: ConfigValue,
    allowed: Allowed | None,
    doc: str,
    since: KafkaVersion = FIRST_VERSION,
    *,
    is_only_of_groups: bool = False,
    minimum: ConfigDefinition | None = None,
    maximum: ConfigDefinition | None = None,
    has_effect: bool = False,
) -> GroupConfigDefinition:
    return GroupConfigDefinition(
        name,
        type_,
        default,
        doc if has_effect else f"{doc} {NO_EFFECT}",
        allowed,
        since,
        broker_name=None if is_only_of_groups else f"group.{name}",
        minimum=minimum,
        maximum=maximum,
        has_effect=has_effect,
    )


def _timing_configs(
    kind: str, members: str, group: str, *, has_effect: bool = False
) -> Iterator[GroupConfigDefinition]:
    """The configurations that groups of members with heartbeats have, whatever their kind."""
    for name, default, least, bounds, doc, since, is_used in (
        (
            "heartbeat.interval.ms",
            5_000,
            1,
            (5_000, 15_000),
            f"Interval at which {members} send heartbeats.",
            FIRST_VERSION,
            has_effect,
        ),
        (
            "session.timeout.ms",
            45_000,
            1,
            (45_000, 60_000),
            f"Session timeout of {members}.",
            FIRST_VERSION,
            has_effect,
        ),
        ("assignment.interval.ms", 1_000, 0, (0, 15_000), f"Time between assignments of {group}.", _V4_3, False),
    ):
        yield _config(
            f"{kind}.{name}",
            ConfigType.INT,
            default,
            at_least(least),
            doc,
            since,
            minimum=_bound(f"group.{kind}.min.{name}", bounds[0]),
            maximum=_bound(f"group.{kind}.max.{name}", bounds[1]),
            has_effect=is_used,
        )


def _consumer_configs() -> Iterator[GroupConfigDefinition]:
    yield from _timing_configs("consumer", "members of the group", "a group of consumers", has_effect=True)
    doc = "Whether a broker assigns partitions to consumers in a thread of the background."
    yield _config("consumer.assignor.offload.enable", ConfigType.BOOLEAN, True, None, doc, _V4_4)


def _share_configs() -> Iterator[GroupConfigDefinition]:
    number, flag, text = ConfigType.INT, ConfigType.BOOLEAN, ConfigType.STRING
    yield from _timing_configs("share", "members of a share group", "a share group")
    yield _config(
        "share.record.lock.duration.ms",
        number,
        30_000,
        at_least(1_000),
        "How long a member of a share group may keep a record before another one gets it.",
        minimum=_bound("group.share.min.record.lock.duration.ms", 15_000),
        maximum=_bound("group.share.max.record.lock.duration.ms", 60_000),
    )
    doc = "Where a share group begins: at the first record, behind the last one, or so long ago."
    is_reset = Allowed(
        "latest, earliest or by_duration:PnDTnHnMn.nS", lambda value: _RESET.fullmatch(str(value)) is not None
    )
    yield _config("share.auto.offset.reset", text, "latest", is_reset, doc, is_only_of_groups=True)
    doc = "Whether a share group gets records of aborted transactions."
    levels = one_of("read_committed", "read_uncommitted")
    yield _config("share.isolation.level", text, "read_uncommitted", levels, doc, is_only_of_groups=True)
    yield _config(
        "share.delivery.count.limit",
        number,
        5,
        at_least(2),
        "How often a share group is given a record that its members do not acknowledge.",
        _V4_3,
        minimum=_bound("group.share.min.delivery.count.limit", 2),
        maximum=_bound("group.share.max.delivery.count.limit", 10),
    )
    yield _config(
        "share.partition.max.record.locks",
        number,
        2_000,
        at_least(100),
        "Records of a partition that the members of a share group may keep at once.",
        _V4_3,
        minimum=_bound("group.share.min.partition.max.record.locks", 100),
        maximum=_bound("group.share.max.partition.max.record.locks", 4_000),
    )
    doc = "Whether members of a share group may keep a record for longer."
    yield _config("share.renew.acknowledge.enable", flag, True, None, doc, _V4_3, is_only_of_groups=True)
    doc = "Whether a broker assigns partitions to a share group in a thread of the background."
    yield _config("share.assignor.offload.enable", flag, True, None, doc, _V4_4)
    doc = "Topic for records that a share group could not process; empty: none."
    is_topic = Allowed("a name that does not begin with __", lambda value: not str(value).startswith("__"))
    yield _config("errors.deadletterqueue.topic.name", text, "", is_topic, doc, _V4_4, is_only_of_groups=True)
    doc = "Whether that topic gets the records themselves, too."
    yield _config("errors.deadletterqueue.copy.record.enable", flag, False, None, doc, _V4_4, is_only_of_groups=True)


def _streams_configs() -> Iterator[GroupConfigDefinition]:
    number, flag, text = ConfigType.INT, ConfigType.BOOLEAN, ConfigType.STRING
    yield from _timing_configs("streams", "members of a streams group", "a streams group")
    doc = "Standby replicas of each task of a streams group."
    most = _bound("group.streams.max.standby.replicas", 2)
    yield _config("streams.num.standby.replicas", number, 0, at_least(0), doc, maximum=most)
    doc = "How long the first rebalance of a streams group waits for more members."
    yield _config("streams.initial.rebalance.delay.ms", number, 3_000, at_least(0), doc, _V4_2)
    doc = "Whether a broker assigns tasks to a streams group in a thread of the background."
    yield _config("streams.assignor.offload.enable", flag, True, None, doc, _V4_4)
    doc = "Name of the assignor of a streams group; without one, the first of the broker's."
    yield _config("streams.assignor.name", text, None, None, doc, _V4_4, is_only_of_groups=True)
    doc = "Offsets by which a member of a streams group may be behind to be given an active task."
    yield _config("streams.acceptable.recovery.lag", ConfigType.LONG, 10_000, at_least(0), doc, _V4_4)
    doc = "Tasks that warm up at once in a streams group."
    most = _bound("group.streams.max.warmup.replicas", 20)
    yield _config("streams.num.warmup.replicas", number, 2, at_least(0), doc, _V4_4, maximum=most)
    doc = "Interval at which members of a streams group tell how far their tasks are."
    least = _bound("group.streams.min.task.offset.interval.ms", 15_000)
    yield _config("streams.task.offset.interval.ms", number, 60_000, at_least(1), doc, _V4_4, minimum=least)
    doc = "Tags of clients over which a streams group spreads its standby replicas."
    different = Allowed(
        "a comma-separated list of different tags",
        lambda value: isinstance(value, tuple) and len({*value}) == len(value) and all(value),
    )
    yield _config("streams.rack.aware.assignment.tags", ConfigType.LIST, (), different, doc, _V4_4)


#: The configurations of a group by name. Their defaults are the broker-level settings of their `broker_name`, if these
#: are set.
GROUP_CONFIGS: Final[Mapping[str, GroupConfigDefinition]] = MappingProxyType(
    {each.name: each for definitions in (_consumer_configs, _share_configs, _streams_configs) for each in definitions()}
)
#: The assignors of streams groups that a broker has, of which `streams.assignor.name` names one.
_STREAMS_ASSIGNORS: Final = ConfigDefinition("group.streams.assignors", ConfigType.LIST, ("sticky",), "")


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


def validate_group_configs(configs: Mapping[str, str], broker: BrokerConfig, *, is_copy: bool = False) -> None:
    """Raise InvalidConfigError unless a group may have `configs` under the broker-level settings.

    Those with names that only a broker knows, which adoption has brought, are not looked at. Of a copy (`is_copy`) of
    a leader's, those without effect here may have any value of their type: the leader's own settings bound them.
    """
    own = {name: GROUP_CONFIGS[name].parse(value) for name, value in configs.items() if name in GROUP_CONFIGS}
    checked = {name for name in own if GROUP_CONFIGS[name].has_effect or not is_copy}
    for name in sorted(checked):
        GROUP_CONFIGS[name].check_bounds(own[name], broker)
    if "streams.assignor.name" in checked:
        _check_assignor(str(own["streams.assignor.name"]), broker)
    for kind in ("consumer", "share", "streams"):
        _check_session(f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms", own, checked, broker)


def _check_session(
    session: str, heartbeat: str, own: Mapping[str, ConfigValue], checked: Collection[str], broker: BrokerConfig
) -> None:
    if session not in checked and heartbeat not in checked:
        return
    timeout_ms, interval_ms = (
        own[name] if name in own else _setting(GROUP_CONFIGS[name].broker_name, GROUP_CONFIGS[name], broker)
        for name in (session, heartbeat)
    )
    assert isinstance(timeout_ms, int)
    assert isinstance(interval_ms, int)
    if timeout_ms <= interval_ms:
        raise InvalidConfigError(
            f"{session}={timeout_ms} is not allowed: expected more than {heartbeat}, which is {interval_ms}"
        )


def _check_assignor(name: str, broker: BrokerConfig) -> None:
    known = _STREAMS_ASSIGNORS.parse(broker.properties.get(_STREAMS_ASSIGNORS.name, _STREAMS_ASSIGNORS.default_text))
    assert isinstance(known, tuple)
    if name not in known:
        raise InvalidConfigError(
            f"streams.assignor.name={name} is not allowed: expected one of {', '.join(known)} "
            f"({_STREAMS_ASSIGNORS.name})"
        )
