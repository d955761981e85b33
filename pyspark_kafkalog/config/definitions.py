"""Definitions of configurations: name, type, default and allowed values, and the text forms of these.

Values come as text (topic configs, `server.properties`) and are parsed and checked as in Kafka: blanks around a value
are removed, integers must fit their width, lists are split at commas. An error names the configuration, the value and
the allowed values. Source of the rules: org.apache.kafka.common.config.ConfigDef.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from math import isinf
from typing import Final, Literal, TypeAlias

from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.units import DAY_MS, INT32_MAX, INT64_MAX
from pyspark_kafkalog.values import dataclass
from pyspark_kafkalog.version import KafkaVersion

ConfigValue = bool | int | float | str | tuple[str, ...] | None

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LIST_SEPARATOR = re.compile(r"\s*,\s*")

#: Ends the description of a config that a broker uses and this package does not.
NO_EFFECT: Final = "Accepted, has no effect here."
#: The version that configurations without another one name: these are at least as old.
FIRST_VERSION: Final = KafkaVersion(4, 1)
#: Maximum length of a value: Kafka's records of configurations cannot hold a longer one.
VALUE_CHARS_MAX: Final = 32767
#: Default of producer.id.expiration.ms.
PRODUCER_ID_EXPIRATION_MS: Final = DAY_MS
#: Uncompressed bytes of a record batch. Kafka's producers send batches of 16 KiB to keep latency low; a write of a
#: whole DataFrame has no such need, and larger batches compress better and cost less for each record.
BATCH_SIZE_BYTES: Final = 256 << 10

#: What happens to an idempotent write whose version is below the last committed one.
LowerVersion: TypeAlias = Literal["fail", "skip"]


class ConfigType(Enum):
    """Types of configuration values; the enum's value is the name in messages and tables."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values among those of the right type: `text` describes them, `accepts` checks for them."""

    text: str
    accepts: Callable[[ConfigValue], bool]


def _number(value: ConfigValue) -> float:
    assert isinstance(value, (int, float))
    return value


def _strings(value: ConfigValue) -> tuple[str, ...]:
    assert isinstance(value, tuple)
    return value


def at_least(minimum: int) -> Allowed:
    return Allowed(f"at least {minimum}", lambda value: _number(value) >= minimum)


def between(minimum: float, maximum: float) -> Allowed:
    return Allowed(f"from {minimum} to {maximum}", lambda value: minimum <= _number(value) <= maximum)


def between_or(minimum: int, maximum: int, other: int) -> Allowed:
    text = f"from {minimum} to {maximum}, or {other}"
    return Allowed(text, lambda value: minimum <= _number(value) <= maximum or value == other)


def one_of(*choices: str) -> Allowed:
    return Allowed(f"one of {', '.join(choices)}", lambda value: value in choices)


def each_of(*choices: str) -> Allowed:
    """For lists: every element is one of `choices`; the empty list is allowed."""
    return Allowed(
        f"a comma-separated list of {', '.join(choices)}", lambda value: all(one in choices for one in _strings(value))
    )


def each_matches_or(pattern: str, other: str, text: str) -> Allowed:
    """For lists: every element matches `pattern` as a whole, or the list is `other` alone."""
    compiled = re.compile(pattern)
    return Allowed(text, lambda value: value == (other,) or all(compiled.fullmatch(one) for one in _strings(value)))


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """One configuration. `default` is None if it is not set by default, `allowed` is None for any value of the type.

    `since`: the first version of Kafka that has it. Older brokers refuse it. `is_own`: only this package has it, so
    exports leave it out of what they write for a broker.
    """

    name: str
    type: ConfigType
    default: ConfigValue
    doc: str
    allowed: Allowed | None = None
    since: KafkaVersion = FIRST_VERSION
    is_own: bool = False

    def parse(self, value: str) -> ConfigValue:
        """Parse the text of a value. Raises InvalidConfigError, which lists what is allowed."""
        if not isinstance(value, str):
            raise InvalidConfigError(
                f"{self.name} is {value!r}: configuration values are strings, not {type(value).__name__}"
            )
        try:
            parsed = _PARSERS[self.type](value.strip())
        except ValueError:
            raise self.error(value) from None
        if self.allowed is not None and not self.allowed.accepts(parsed):
            raise self.error(value)
        return parsed

    def error(self, value: object) -> InvalidConfigError:
        return InvalidConfigError(f"{self.name}={value} is not allowed: expected {self.allowed_text}")

    @property
    def allowed_text(self) -> str:
        """The type and the limits of values, for messages and tables."""
        if self.allowed is None:
            return _TYPE_TEXTS[self.type]
        if self.type in (ConfigType.STRING, ConfigType.LIST):
            return self.allowed.text
        return f"{_TYPE_TEXTS[self.type]}, {self.allowed.text}"

    @property
    def default_text(self) -> str:
        """The default as written in a properties file; empty if there is no default."""
        return format_value(self.default)


def format_value(value: ConfigValue) -> str:
    """Text form of a parsed value, as Kafka's tools print it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _double_text(value) if isinstance(value, float) else str(value)


def _double_text(value: float) -> str:
    """As java.lang.Double.toString: with an exponent below 0.001 and from 10,000,000 on."""
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(float(value))
    from decimal import Decimal  # few configurations have such a value

    digits = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(digits.exponent, int)
    first, *rest = map(str, digits.digits)
    exponent = digits.exponent + len(rest)
    return f"{'-' if digits.sign else ''}{first}.{''.join(rest) or '0'}E{exponent}"


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError
    return lowered == "true"


def _parse_integer(text: str, maximum: int) -> int:
    # The length is checked first: Python is slow on long texts, and raises for more than some thousands of digits.
    if len(text) > 64 or not _INTEGER.fullmatch(text):
        raise ValueError
    value = int(text)
    if not -maximum - 1 <= value <= maximum:
        raise ValueError
    return value


def _parse_int(text: str) -> int:
    return _parse_integer(text, INT32_MAX)


def _parse_long(text: str) -> int:
    return _parse_integer(text, INT64_MAX)


def _parse_double(text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise ValueError
    return float(text)


def _parse_string(text: str) -> str:
    return text


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(_LIST_SEPARATOR.split(text)) if text else ()


_PARSERS: Final[dict[ConfigType, Callable[[str], ConfigValue]]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.INT: _parse_int,
    ConfigType.LONG: _parse_long,
    ConfigType.DOUBLE: _parse_double,
    ConfigType.STRING: _parse_string,
    ConfigType.LIST: _parse_list,
}

_TYPE_TEXTS: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.STRING: "a string",
    ConfigType.LIST: "a comma-separated list",
}
