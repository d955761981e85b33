"""Effective configurations with the source of each value, as in a broker's answer to DescribeConfigs.

    DYNAMIC_TOPIC_CONFIG            the topic's own value
    DYNAMIC_DEFAULT_BROKER_CONFIG   set for the whole log directory, by a broker-level name
    DEFAULT_CONFIG                  Kafka's default, by the broker-level name that has it

Source of the rules: kafka.server.ConfigHelper. As there, a value that does not come from the first broker-level name
has no synonyms (segment.ms, which log.roll.hours determines).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.config.definitions import format_value
from pyspark_kafkalog.config.log_config import topic_config_values
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS

TOPIC_SOURCE: Final = "DYNAMIC_TOPIC_CONFIG"
BROKER_SOURCE: Final = "DYNAMIC_DEFAULT_BROKER_CONFIG"
DEFAULT_SOURCE: Final = "DEFAULT_CONFIG"


@dataclass(frozen=True, slots=True)
class Synonym:
    """One source of a value for a configuration; the first of an entry's synonyms is effective."""

    source: str
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.source}:{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration: its effective value as text, and the sources of its values."""

    name: str
    value: str
    synonyms: tuple[Synonym, ...]

    @property
    def source(self) -> str:
        return self.synonyms[0].source if self.synonyms else DEFAULT_SOURCE

    def __str__(self) -> str:
        """The entry as kafka-configs prints it."""
        return f"{self.name}={self.value} sensitive=false synonyms={{{', '.join(map(str, self.synonyms))}}}"

    def to_json(self) -> dict[str, Any]:
        synonyms = [{"source": each.source, "name": each.name, "value": each.value} for each in self.synonyms]
        return {"name": self.name, "value": self.value, "source": self.source, "synonyms": synonyms}


def topic_entries(overrides: Mapping[str, str], broker: Mapping[str, str]) -> list[ConfigEntry]:
    """All configurations of a topic with `overrides` under broker-level settings `broker`, by name.

    Configurations for tests, such as internal.segment.bytes, are included only if they are set.
    """
    values = topic_config_values(overrides, broker)
    entries = []
    for name, value in sorted(values.items()):
        if value is None:
            continue
        own = (Synonym(TOPIC_SOURCE, name, format_value(value)),) if name in overrides else ()
        names = [each.definition.name for each in TOPIC_CONFIGS[name].synonyms]
        inherited = _broker_synonyms(names, broker) if names else ()
        entries.append(ConfigEntry(name, format_value(value), own + inherited))
    return entries


def own_topic_entries(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """The topic's own values, by name, unchanged: the only ones that are known in a broker's directory."""
    return [
        ConfigEntry(name, value, (Synonym(TOPIC_SOURCE, name, value),)) for name, value in sorted(overrides.items())
    ]


def broker_entries(settings: Mapping[str, str]) -> list[ConfigEntry]:
    """All effective broker-level configurations with the given `settings`, by name."""
    entries = []
    for name in sorted(BROKER_CONFIGS):
        synonyms = _broker_synonyms([name], settings)
        if synonyms:
            entries.append(ConfigEntry(name, synonyms[0].value, synonyms))
    return entries


def set_broker_entries(settings: Mapping[str, str]) -> list[ConfigEntry]:
    """The given broker-level settings, by name."""
    return [
        ConfigEntry(name, value, (Synonym(BROKER_SOURCE, name, value),)) for name, value in sorted(settings.items())
    ]


def _broker_synonyms(names: Sequence[str], settings: Mapping[str, str]) -> tuple[Synonym, ...]:
    """Given settings under one of `names`, then defaults, starting with the first one of the first name."""
    defaults = _broker_defaults()
    found = [Synonym(BROKER_SOURCE, name, settings[name]) for name in names if name in settings]
    found += [Synonym(DEFAULT_SOURCE, name, defaults[name]) for name in names if name in defaults]
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
