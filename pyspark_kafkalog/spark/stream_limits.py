"""Ends of a micro-batch under a limit: every partition with something new comes on, in proportion to what it has."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.spark.read_limits import prorate
from pyspark_kafkalog.spark.stream_offsets import StreamOffsets
from pyspark_kafkalog.spark.stream_plan import unread_start
from pyspark_kafkalog.spark.stream_view import PartitionView, StreamView
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class _Unread:
    """What a partition has that is new: offsets [start_offset, end_offset), never empty."""

    found: PartitionView
    start_offset: int
    end_offset: int

    @property
    def offsets_count(self) -> int:
        return self.end_offset - self.start_offset


def unread_count(start: StreamOffsets, ends: StreamOffsets, view: StreamView) -> int:
    """How many offsets there are from `start` to `ends`; gaps count."""
    return sum(each.offsets_count for each in _unread(start, ends, view))


def limit_offsets(start: StreamOffsets, ends: StreamOffsets, view: StreamView, max_offsets: int) -> StreamOffsets:
    """`ends`, drawn in so that there are `max_offsets` from `start` on, or 1 for each partition where that is more."""
    unread = _unread(start, ends, view)
    shares = prorate(max_offsets, [each.offsets_count for each in unread])
    limited = {
        each.found.topic_partition: each.start_offset + share for each, share in zip(unread, shares, strict=True)
    }
    return {**ends, **limited}


def limit_bytes(start: StreamOffsets, ends: StreamOffsets, view: StreamView, max_bytes: int) -> StreamOffsets:
    """`ends`, drawn in so that there are about `max_bytes` on disk from `start` on, cut at index entries.

    Looks at files only where sizes are not known to be small enough, at no more of each log than `max_bytes`.
    """
    unread = _unread(start, ends, view)
    bounds = [each.found.known_size_bytes(each.start_offset) for each in unread]
    known = [size_bytes for size_bytes in bounds if size_bytes is not None]
    if len(known) == len(bounds) and sum(known) <= max_bytes:
        return ends
    sizes = [_head(each, max_bytes)[1] for each in unread]
    limited: dict[TopicPartition, int] = dict(ends)
    for each, size_bytes, share_bytes in zip(unread, sizes, prorate(max_bytes, sizes), strict=True):
        if share_bytes < size_bytes or size_bytes >= max_bytes:
            limited[each.found.topic_partition] = _head(each, share_bytes)[0]
    return limited


def _head(unread: _Unread, max_bytes: int) -> tuple[int, int]:
    """Where the first `max_bytes` or so of it end, and how many bytes that are, 1 at least."""
    from pyspark_kafkalog.storage.log_reader import LogReader

    try:
        head = LogReader(unread.found.directory, unread.found.topic_partition).head(
            unread.start_offset, unread.end_offset, max_bytes
        )
    except FileNotFoundError:  # The topic was deleted meanwhile: reading it tells.
        return unread.end_offset, 1
    return head.end_offset, max(head.size_bytes, 1)


def _unread(start: StreamOffsets, ends: StreamOffsets, view: StreamView) -> list[_Unread]:
    unread = [_Unread(view[each], unread_start(each, start, view), end_offset) for each, end_offset in ends.items()]
    return [each for each in unread if each.offsets_count > 0]
