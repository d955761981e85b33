"""Points in time on the command line: milliseconds since 1970, or ISO 8601."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timezone
from typing import Final

from pyspark_kafkalog.tools.java_text import parse_long

#: The help text of options that accept both.
FORMS: Final = "ms since 1970, or ISO 8601, in UTC unless it names an offset: 2026-01-31T10:15:00"

_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?)?(Z|z|[+-]\d\d(?::?\d\d)?)?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def parse_time_ms(text: str) -> int | None:
    """The time in ms since 1970; None if `text` is neither a number nor ISO 8601. Digits below ms are truncated."""
    number = parse_long(text)
    if number is not None:
        return number
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    date, time_of_day, fraction, zone = match.groups()
    offset = _offset(zone)
    if offset is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{date}T{time_of_day or '00:00'}{offset}")
        since = moment - _EPOCH
    except (ValueError, OverflowError):
        return None
    return (since.days * 86_400 + since.seconds) * 1000 + int((fraction or "").ljust(3, "0")[:3])


def time_ms(text: str) -> int:
    """The argparse type of points in time from 1970 on."""
    found = parse_time_ms(text)
    if found is None or found < 0:
        raise argparse.ArgumentTypeError(f"{text} is no time: {FORMS}")
    return found


def _offset(zone: str | None) -> str | None:
    """The zone in the form that datetime.fromisoformat of Python 3.10 accepts; None if there is no such zone."""
    if zone is None or zone in "Zz":
        return "+00:00"
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[:2]) > 18 or int(digits[2:]) > 59:  # java.time.ZoneOffset
        return None
    return f"{zone[0]}{digits[:2]}:{digits[2:]}"
