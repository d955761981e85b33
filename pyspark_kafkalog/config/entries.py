"""The configurations of a topic, a group or a broker as Kafka describes them: values, and where each one comes from.

A value has a list of synonyms, the sources that have one for it, in order of precedence; the first of them counts:

    DYNAMIC_TOPIC_CONFIG             the topic's own value
    DYNAMIC_GROUP_CONFIG             the group's own value
    DYNAMIC_BROKER_CONFIG            the setting of one broker of a cluster
    DYNAMIC_DEFAULT_BROKER_CONFIG    the broker-level setting of the root, under one of its broker-level names
    STATIC_BROKER_CONFIG             a property of the running server
    DEFAULT_CONFIG                   the default of the broker-level name

Source of the rules: kafka.server.ConfigHelper and DynamicBrokerConfig; of the numbers:
org.apache.kafka.common.requests.DescribeConfigsResponse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.config.definitions import ConfigDefinition, ConfigType, format_value
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS, topic_config_values
from pyspark_kafkalog.values import dataclass


class ConfigSource(IntEnum):
    """Where a value comes from, with its number in Kafka's protocol."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """One source of a value for a configuration; the first of an entry's synonyms is effective."""

    source: ConfigSource
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.source.name}:{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration: its effective value as text, None if it has none, and the sources of its values.

    `is_read_only`: it cannot be altered.
    """

    name: str
    value: str | None
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    doc: str
    is_read_only: bool = False

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT_CONFIG

    @property
    def is_set(self) -> bool:
        """Whether the value is not a default."""
        return self.source != ConfigSource.DEFAULT_CONFIG

    @property
    def is_set_by_topic(self) -> bool:
        """Whether the value is the topic's own."""
        return self.source == ConfigSource.DYNAMIC_TOPIC_CONFIG

    def __str__(self) -> str:
        """The entry as kafka-configs prints it."""
        value = "null" if self.value is None else self.value
        return f"{self.name}={value} sensitive=false synonyms={{{', '.join(map(str, self.synonyms))}}}"

    def to_json(self) -> dict[str, Any]:
        synonyms = [{"source": each.source.name, "name": each.name, "value": each.value} for each in self.synonyms]
        return {"name": self.name, "value": self.value, "source": self.source.name, "synonyms": synonyms}


def topic_entries(overrides: Mapping[str, str], broker: Mapping[str, str]) -> list[ConfigEntry]:
    """All configurations of a topic with `overrides` under broker-level settings `broker`, by name.

    Configurations for tests, such as internal.segment.bytes, are included only if they are set.
    """
    values = topic_config_values(overrides, broker)
    entries = []
    for name, value in sorted(values.items()):
        if value is None:
            continue
        config, text = TOPIC_CONFIGS[name], format_value(value)
        own = (Synonym(ConfigSource.DYNAMIC_TOPIC_CONFIG, name, text),) if name in overrides else ()
        names = [each.definition.name for each in config.synonyms]
        inherited = _broker_synonyms(names, broker) if names else ()
        entries.append(_entry(config.definition, text, own + inherited))
    return entries


def own_topic_entries(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """The topic's own values, by name, unchanged: the only ones that are known in a broker's directory."""
    return [
        _given_entry(
            None if (known := TOPIC_CONFIGS.get(name)) is None else known.definition,
            Synonym(ConfigSource.DYNAMIC_TOPIC_CONFIG, name, value),
        )
        for name, value in sorted(overrides.items())
    ]


def group_entries(own: Mapping[str, str], broker: Mapping[str, str]) -> list[ConfigEntry]:
    """All configurations of a group with its `own` ones under broker-level settings `broker`, by name.

    A value that all groups have counts as a default, as in Kafka's answers.
    """
    entries = []
    for name, definition in sorted(GROUP_CONFIGS.items()):
        source = ConfigSource.DYNAMIC_GROUP_CONFIG if name in own else ConfigSource.DEFAULT_CONFIG
        value = own.get(name, broker.get(definition.broker_name or "", definition.default_text))
        if not value and definition.default is None:
            entries.append(_entry(definition, None, ()))
        else:
            entries.append(_entry(definition, value, (Synonym(source, name, value),)))
    return entries


def broker_entries(settings: Mapping[str, str]) -> list[ConfigEntry]:
    """All effective broker-level configurations with the given `settings`, by name."""
    entries = []
    for name, definition in sorted(BROKER_CONFIGS.items()):
        synonyms = _broker_synonyms([name], settings)
        entries.append(_entry(definition, synonyms[0].value if synonyms else None, synonyms))
    return entries


def set_broker_entries(
    settings: Mapping[str, str], source: ConfigSource = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
) -> list[ConfigEntry]:
    """The given broker-level settings, by name."""
    return [
        _given_entry(BROKER_CONFIGS.get(name), Synonym(source, name, value)) for name, value in sorted(settings.items())
    ]


def _given_entry(definition: ConfigDefinition | None, given: Synonym) -> ConfigEntry:
    """The entry of a value as it was given; without a definition for one that only a broker knows."""
    if definition is None:
        return ConfigEntry(given.name, given.value, (given,), ConfigType.STRING, "")
    return _entry(definition, given.value, (given,))


def _entry(definition: ConfigDefinition, value: str | None, synonyms: tuple[Synonym, ...]) -> ConfigEntry:
    return ConfigEntry(definition.name, value, synonyms, definition.type, definition.doc)


def _broker_synonyms(names: Sequence[str], settings: Mapping[str, str]) -> tuple[Synonym, ...]:
    """Given settings under one of `names`, then defaults, starting with the first one of the first name."""
    defaults = _broker_defaults()
    given, default = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, ConfigSource.DEFAULT_CONFIG
    found = [Synonym(given, name, settings[name]) for name in names if name in settings]
    found += [Synonym(default, name, defaults[name]) for name in names if name in defaults]
    first = next((at for at, each in enumerate(found) if each.name == names[0]), None)
    return () if first is None else tuple(found[first:])


@cache
def _broker_defaults() -> Mapping[str, str]:
    """Defaults by broker-level name. Of several names with different units, the last one has the topic's default."""
    defaults = {name: each.default for name, each in BROKER_CONFIGS.items() if each.default is not None}
    for config in TOPIC_CONFIGS.values():
        if len(config.synonyms) > 1 and isinstance(config.definition.default, int):
            last = config.synonyms[-1]
            defaults[last.definition.name] = config.definition.default // last.scale
    return {name: format_value(default) for name, default in defaults.items()}
