"""Parses points in time in human-readable form to ms since 1970, the unit of records' timestamps.

>>> point_in_time_ms("2024-01-15T10:00")
1705312800000
>>> point_in_time_ms("2024-01-15T11:00+01:00") == point_in_time_ms("2024-01-15 10:00:00Z")
True
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.units import EPOCH

#: ISO 8601 text or a datetime; UTC if it has no zone. A date means its midnight.
PointInTime: TypeAlias = str | date

_MS: Final = timedelta(milliseconds=1)


def point_in_time_ms(point: PointInTime) -> int:
    """`point` in ms, rounded up: a record is at or after the result exactly if it is at or after `point`.

    Raises InvalidOptionError for text that is not an ISO 8601 date or time.
    """
    if isinstance(point, str):
        point = _parse(point)
    elif not isinstance(point, date):
        raise InvalidOptionError(f"{point!r} is no point in time: expected ISO 8601 text, a datetime or a date")
    elif not isinstance(point, datetime):
        point = datetime.combine(point, time())
    if point.tzinfo is None:
        point = point.replace(tzinfo=timezone.utc)
    return -((EPOCH - point) // _MS)


def iso_text(timestamp_ms: int) -> str:
    """`timestamp_ms` as ISO 8601 text in UTC; the number itself if it is outside the calendar."""
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except OverflowError:
        return f"{timestamp_ms} ms"


def _parse(text: str) -> datetime:
    written = text.strip()
    if written.endswith(("Z", "z")):
        written = written[:-1] + "+00:00"
    try:
        return datetime.fromisoformat(written)
    except ValueError as error:
        raise InvalidOptionError(
            f"{text!r} is no point in time: expected ISO 8601, as 2024-01-15T10:00 or 2024-01-15T10:00:30.5+01:00"
        ) from error
