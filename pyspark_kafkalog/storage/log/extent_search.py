"""Searches the extents of a log, from an offset on, beside jobs that replace extents.

Retention, the cleaner, merges and tiering may delete or replace an extent between its listing and its opening: then
the extents are listed again. Nothing is stored, so a crash loses nothing.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from pyspark_kafkalog.errors import CorruptRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.storage.log.reader import PartitionExtents
from pyspark_kafkalog.storage.segment.extent import Extent

_LOST_EXTENT_TRIES: Final = 10
_BASE_OFFSET: Final = attrgetter("base_offset")
_T = TypeVar("_T")


def search_listed(extents: PartitionExtents, search: Callable[[Sequence[Extent]], _T]) -> _T:
    """What `search` returns for the extents; it is called again when it has raised LostExtentError.

    Raises FileNotFoundError if they are replaced faster than they can be opened.
    """
    current = extents.current()
    for _ in range(_LOST_EXTENT_TRIES):
        try:
            return search(current)
        except LostExtentError as lost:
            current = extents.after_loss(lost.extent)
    raise FileNotFoundError(f"the segments of {extents.name} are replaced faster than they can be opened")


def search_from(
    extents: PartitionExtents,
    offset: int,
    end_offset: int,
    look: Callable[[Extent], _T | None],
    *,
    partition: object,
    high_watermark: int,
) -> _T | None:
    """The first that `look` finds in an extent, from the one with `offset` on and below `end_offset`; else None.

    `look` raises FileNotFoundError for an extent that is gone. Raises OffsetOutOfRangeError for an offset below all
    extents, and CorruptRecordError for one above all of them, which says that committed records are missing.
    """

    def search(current: Sequence[Extent]) -> _T | None:
        at = bisect.bisect_right(current, offset, key=_BASE_OFFSET) - 1
        if at < 0:
            start = current[0].base_offset if current else high_watermark
            raise OffsetOutOfRangeError(f"offset {offset} of {partition} is below {start}, its first segment")
        for extent in current[at:]:
            if extent.base_offset >= end_offset:
                break
            if extent.end_offset is not None and extent.end_offset <= offset:
                continue
            try:
                found = look(extent)
            except FileNotFoundError:
                raise LostExtentError(extent) from None
            if found is not None:
                return found
        last = current[-1].end_offset
        if last is not None and last <= offset:
            raise CorruptRecordError(
                file=extents.name,
                position=0,
                expected=f"a segment with offset {offset}",
                found=f"the end of the log at offset {last}",
                advice="committed records are missing: run kafkalog verify",
            )
        return None

    return search_listed(extents, search)


class LostExtentError(Exception):
    """An extent was deleted or replaced since it was listed."""

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
