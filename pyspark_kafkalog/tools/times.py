"""Points in time on the command line: milliseconds since 1970, or ISO 8601."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta, timezone
from typing import Final

from pyspark_kafkalog.tools.dump.java_text import parse_long

#: The help text of options that accept both.
FORMS: Final = "ms since 1970, or ISO 8601, in UTC unless it names an offset: 2026-01-31T10:15:00"

_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?)?(Z|z|[+-]\d\d(?::?\d\d)?)?")
#: java.time.ZoneOffset
_ZONE_HOURS_MAX: Final = 18
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
    try:
        seconds = epoch_seconds(f"{date}T{time_of_day or '00:00'}", zone or "Z", zone_hours_max=_ZONE_HOURS_MAX)
    except (ValueError, OverflowError):
        return None
    return seconds * 1000 + int((fraction or "").ljust(3, "0")[:3])


def epoch_seconds(local: str, zone: str, *, zone_hours_max: int) -> int:
    """Seconds since 1970 of an ISO 8601 time to the second in the zone `Z`, `+02`, `+0200` or `+02:00`.

    Raises ValueError for a time or zone that does not exist, OverflowError for one outside of the calendar.
    """
    moment = datetime.fromisoformat(local).replace(tzinfo=timezone.utc)
    if zone not in ("Z", "z"):
        digits = zone[1:].replace(":", "")
        hours, minutes = int(digits[:2]), int(digits[2:] or "0")
        if hours > zone_hours_max or minutes > 59:
            raise ValueError(zone)
        offset = timedelta(hours=hours, minutes=minutes)
        moment = moment + offset if zone[0] == "-" else moment - offset
    return (moment - _EPOCH) // timedelta(seconds=1)


def time_ms(text: str) -> int:
    """The argparse type of points in time from 1970 on."""
    found = parse_time_ms(text)
    if found is None or found < 0:
        raise argparse.ArgumentTypeError(f"{text} is no time: {FORMS}")
    return found
