"""Ends of a micro-batch under a limit: every partition with new records advances, in proportion to their number."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafkalog.spark.read.limits import prorate
from pyspark_kafkalog.spark.stream.offsets import StreamOffsets
from pyspark_kafkalog.spark.stream.plan import unread_start
from pyspark_kafkalog.spark.stream.view import PartitionView, StreamView
from pyspark_kafkalog.storage.names import TopicPartition


@dataclass(frozen=True, slots=True)
class _Unread:
    """The new offsets of a partition: [start_offset, end_offset), never empty."""

    found: PartitionView
    start_offset: int
    end_offset: int

    @property
    def offsets_count(self) -> int:
        return self.end_offset - self.start_offset


def unread_count(start: StreamOffsets, ends: StreamOffsets, view: StreamView) -> int:
    """The number of offsets from `start` to `ends`, gaps included."""
    return sum(each.offsets_count for each in _unread(start, ends, view))


def limit_offsets(start: StreamOffsets, ends: StreamOffsets, view: StreamView, max_offsets: int) -> StreamOffsets:
    """`ends`, reduced to `max_offsets` offsets after `start`, or to 1 per partition if that is more."""
    unread = _unread(start, ends, view)
    shares = prorate(max_offsets, [each.offsets_count for each in unread])
    limited = {
        each.found.topic_partition: each.start_offset + share for each, share in zip(unread, shares, strict=True)
    }
    return {**ends, **limited}


def limit_bytes(start: StreamOffsets, ends: StreamOffsets, view: StreamView, max_bytes: int) -> StreamOffsets:
    """`ends`, reduced to about `max_bytes` on disk after `start`, cut at index entries.

    Opens files only if the sizes are not known to be small enough, and examines at most `max_bytes` of each log.
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
    """The offset at which about the first `max_bytes` of it end, and their size in bytes, at least 1."""
    from pyspark_kafkalog.storage.log.reader import LogReader

    try:
        head = LogReader(unread.found.directory, unread.found.topic_partition).head(
            unread.start_offset, unread.end_offset, max_bytes
        )
    except FileNotFoundError:  # The topic was deleted meanwhile: the read reports it.
        return unread.end_offset, 1
    return head.end_offset, max(head.size_bytes, 1)


def _unread(start: StreamOffsets, ends: StreamOffsets, view: StreamView) -> list[_Unread]:
    unread = [_Unread(view[each], unread_start(each, start, view), end_offset) for each, end_offset in ends.items()]
    return [each for each in unread if each.offsets_count > 0]
