"""Valid names of consumer groups: any non-empty text of at most 32,767 bytes of UTF-8, so that it fits a record key."""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.errors import InvalidGroupError
from pyspark_kafkalog.units import INT16_MAX

_MAX_BYTES: Final = INT16_MAX


def check_group_id(group: str) -> str:
    """Return `group` if it is a valid name of a group. Raises InvalidGroupError otherwise."""
    if not group:
        raise InvalidGroupError("the name of a consumer group cannot be empty")
    try:
        size_bytes = len(group.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidGroupError(f"the name of a consumer group must be text, not {group!r}") from None
    if size_bytes > _MAX_BYTES:
        raise InvalidGroupError(
            f"the name of a consumer group has {size_bytes} bytes, at most {_MAX_BYTES} are allowed"
        )
    return group
