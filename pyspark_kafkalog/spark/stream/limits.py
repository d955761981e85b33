"""The size of a micro-batch: limits that are divided among partitions, and delays until there are enough records.

The options are those of Spark's Kafka source (org.apache.spark.sql.kafka010.KafkaMicroBatchStream). A Python source can
pass only one of the built-in read limits to Spark 4.2, and none of them has a delay. So the source reports one limit,
which informs Spark that limits exist, and the reader applies all of them unless Spark asks for everything. Under a
limit every partition with new records advances, in proportion to their number.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_kafkalog.spark.options.parse import StreamReadOptions
from pyspark_kafkalog.spark.stream.offsets import StreamOffsets
from pyspark_kafkalog.spark.stream.plan import PartitionView, StreamView, unread_start
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition


def default_read_limit(options: StreamReadOptions) -> ReadLimit:
    """The limit to report to Spark."""
    if options.max_offsets_per_trigger is not None:
        return ReadMaxRows(options.max_offsets_per_trigger)
    if options.max_bytes_per_trigger is not None:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    if options.min_offsets_per_trigger is not None:
        return ReadMinRows(options.min_offsets_per_trigger)
    return ReadAllAvailable()


def prorate(limit: int, sizes: Sequence[int]) -> list[int]:
    """Shares of `limit` in proportion to `sizes`, all above 0: each share is at least 1 and at most its size.

    As in Spark's Kafka source, each share is rounded down, but to no less than 1, so that small partitions do not
    starve. Unlike there, the shares add up to `limit`, unless the sum of `sizes` is smaller or there are more sizes
    than `limit`.
    """
    total = sum(sizes)
    if total <= limit:
        return list(sizes)
    shares = [max(limit * size // total, 1) for size in sizes]
    left = limit - sum(shares)
    if left > 0:
        by_remainder = sorted(range(len(sizes)), key=lambda at: -(limit * sizes[at] % total))
        for at in [each for each in by_remainder if shares[each] < sizes[each]][:left]:
            shares[at] += 1
    elif left < 0:
        _take_back(shares, -left)
    return shares


def _take_back(shares: list[int], excess: int) -> None:
    """Reduce `shares` by `excess` in total, the largest first, none below 1."""
    largest_first = [(-share, at) for at, share in enumerate(shares)]
    heapq.heapify(largest_first)
    for _ in range(min(excess, sum(shares) - len(shares))):
        negative_share, at = largest_first[0]
        shares[at] -= 1
        heapq.heapreplace(largest_first, (negative_share + 1, at))


class BatchDelay:
    """Implements `minOffsetsPerTrigger` and `maxTriggerDelay`. `clock_ms` must be monotonic.

    As in Spark's Kafka source, the first micro-batch of a run does not wait.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int, *, clock_ms: Callable[[], int]) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._clock_ms = clock_ms
        self._last_ms: int | None = None

    def holds_back(self, offsets_count: int) -> bool:
        """Whether a micro-batch of so many new offsets must wait. False restarts the delay: the batch runs now."""
        now_ms = self._clock_ms()
        is_late = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not is_late and offsets_count < self._min_offsets:
            return True
        self._last_ms = now_ms
        return False


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
    try:
        head = LogReader(unread.found.extents(), unread.found.topic_partition).head(
            unread.start_offset, unread.end_offset, max_bytes
        )
    except FileNotFoundError:  # The topic was deleted meanwhile: the read reports it.
        return unread.end_offset, 1
    return head.end_offset, max(head.size_bytes, 1)


def _unread(start: StreamOffsets, ends: StreamOffsets, view: StreamView) -> list[_Unread]:
    unread = [_Unread(view[each], unread_start(each, start, view), end_offset) for each, end_offset in ends.items()]
    return [each for each in unread if each.offsets_count > 0]
