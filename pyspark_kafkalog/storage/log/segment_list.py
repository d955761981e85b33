"""The segments of one log, ordered by base offset. The last one is active: appends go only to it."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from pyspark_kafkalog.storage.segment.segment import LogSegment


class SegmentList:
    """Segments by base offset. A segment holds the offsets from its base to below the next one's."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._segments: list[LogSegment] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(tuple(self._segments))

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(self._bases)

    @property
    def first(self) -> LogSegment:
        return self._segments[0]

    @property
    def active(self) -> LogSegment:
        return self._segments[-1]

    def add(self, segment: LogSegment) -> None:
        """Insert `segment` in order; replaces one with the same base offset."""
        at = bisect.bisect_left(self._bases, segment.base_offset)
        if at < len(self._bases) and self._bases[at] == segment.base_offset:
            self._segments[at] = segment
        else:
            self._bases.insert(at, segment.base_offset)
            self._segments.insert(at, segment)

    def remove(self, base_offset: int) -> LogSegment:
        """Remove a segment from the list; the caller deletes its files."""
        at = self._bases.index(base_offset)
        del self._bases[at]
        return self._segments.pop(at)

    def floor(self, offset: int) -> LogSegment | None:
        """The segment whose range contains `offset`: the last one with a base offset at or below it."""
        at = bisect.bisect_right(self._bases, offset)
        return self._segments[at - 1] if at else None

    def from_offset(self, offset: int) -> tuple[LogSegment, ...]:
        """The segment whose range contains `offset`, and all after it; all segments if `offset` is below the first."""
        at = bisect.bisect_right(self._bases, offset)
        return tuple(self._segments[max(at - 1, 0) :])

    def above(self, offset: int) -> tuple[LogSegment, ...]:
        """The segments whose base offset is above `offset`."""
        return tuple(self._segments[bisect.bisect_right(self._bases, offset) :])
