"""Parsers of single option values. Each raises ValueError with a message that states the expected value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, get_args

from pyspark_kafkalog.groups.group_id import check_group_id
from pyspark_kafkalog.metadata.acl import check_principal
from pyspark_kafkalog.spark.read.offsets import OffsetReset, OnNoMatch
from pyspark_kafkalog.storage.names import validate_topic_name

COMPRESSION_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
OFFSET_RESETS: Final = get_args(OffsetReset)
PARTITIONERS: Final = ("murmur2", "round_robin")
_DURATION: Final = re.compile(r"([0-9]{1,15})([a-z]*)", re.ASCII)
_UNIT_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_text(text: str) -> str:
    """Any text that is not blank."""
    if not text.strip():
        raise ValueError("expected a value, it is empty")
    return text.strip()


def parse_bool(text: str) -> bool:
    """`true` or `false`, in upper or lower case."""
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError("expected true or false")
    return words[text.strip().lower()]


def parse_topic(text: str) -> str:
    """A topic name that Kafka allows."""
    return validate_topic_name(text.strip())


def parse_group_id(text: str) -> str:
    """The name of a consumer group that Kafka allows."""
    return check_group_id(text.strip())


def parse_principal(text: str) -> str:
    """A principal, `type:name`."""
    return check_principal(text.strip())


def parse_on_no_match(text: str) -> OnNoMatch:
    """`error` or `latest`."""
    word = text.strip().lower()
    if word == "error":
        return "error"
    if word == "latest":
        return "latest"
    raise ValueError("expected error or latest")


def parse_committed(text: str) -> bool:
    """Whether the isolation level is read_committed."""
    return one_of(*ISOLATION_LEVELS)(text) == "read_committed"


def one_of(*words: str) -> Callable[[str], str]:
    """A parser that accepts one of `words`, in upper or lower case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return word

    return parse


def integer(smallest: int, largest: int) -> Callable[[str], int]:
    """A parser of integers from `smallest` to `largest`."""

    def parse(text: str) -> int:
        try:
            number = int(text.strip())
        except ValueError:
            number = smallest - 1
        if not smallest <= number <= largest:
            raise ValueError(f"expected a whole number from {smallest} to {largest}")
        return number

    return parse


def duration_ms(text: str) -> int:
    """A duration in ms, as a number or with a unit: 500, 500ms, 30s, 15m (also min), 1h, 1d, as in Spark."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNIT_MS:
        raise ValueError("expected a time as 500ms, 30s, 15m, 1h or 1d; a number without a unit is in ms")
    return int(found[1]) * _UNIT_MS[found[2]]


def byte_size(smallest: int, largest: int) -> Callable[[str], int]:
    """A parser of sizes in bytes, as a number or with a unit: 1048576, 1024k, 128m, 1g (1k is 1024)."""
    units = {"k": 10, "m": 20, "g": 30}

    def parse(text: str) -> int:
        digits = text.strip().lower().removesuffix("b")
        shift = units.get(digits[-1:], 0)
        digits = digits[:-1] if shift else digits
        size_bytes = int(digits) << shift if digits.isascii() and digits.isdigit() else smallest - 1
        if not smallest <= size_bytes <= largest:
            raise ValueError(f"expected a size from {smallest} to {largest} bytes, as 1048576 or 1024k or 128m")
        return size_bytes

    return parse
