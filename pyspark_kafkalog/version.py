"""Versions: that of the package, and versions of Kafka, since which a configuration or a message exists."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__version__ = "0.2.0"

_NUMBERS: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True, order=True)
class KafkaVersion:
    """A version of Apache Kafka. Versions are ordered, and as text have three numbers."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> KafkaVersion:
        """The version of a text such as `4.3` or `4.3.1`. Raises ValueError for any other text."""
        found = _NUMBERS.fullmatch(text)
        if found is None:
            raise ValueError(f"Kafka version {text!r}: expected two or three numbers, such as 4.3 or 4.3.1")
        return cls(*(int(number) for number in found.groups(default="0")))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"
