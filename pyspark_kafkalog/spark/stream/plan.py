"""Plans a stream: the end of the next micro-batch, its limits, and the ranges to read for it; its offsets as JSON.

*Offsets* are stored in the checkpoint, with the log directory and the topics that they belong to:

    {"orders": {"0": 23, "1": 42},                            the next offset of each partition
     "kafkalog:root:<cluster id>:<directory id>": {},         the log directory
     "kafkalog:topic:orders:<topic id>": {}}                  the topic of that name

The format is that of Spark's Kafka source (org.apache.spark.sql.kafka010.KafkaSourceOffset), ordered by topic name and
partition number, because Spark takes equal text to mean "no new data". That source, and earlier versions of this one,
ignore a name without partitions, and no topic name contains a colon. So all of them can use the same checkpoint, and
ids are checked if it contains them. Ids are quoted as in URLs; an unknown id is empty.

*Plans.* The only I/O is PartitionView's, and that of a limit of bytes.

A plan is made on a `StreamView`: the readable partitions of the subscription, all as of one moment.

The meaning of a start and an end in the checkpoint must not depend on the memory of a process: after a crash, the query
plans its last micro-batch again from these two alone. Therefore:

- a partition that is in the end but not in the start is new, and is read from its earliest offset;
- a partition that is in the start but not in the end was deleted; a re-created topic is first left out of one end, and
  is new in the next;
- the topic ids in the start and the end are those of the topics that were read; a topic that now has another id was
  re-created, and none of its records are read for them;
- an end below its start means that the log was truncated, and the stream continues at that end.

The plan reports losses, with the requested and the available range; the caller raises or logs a warning. A range with
gaps, as compaction and transactions leave them, is complete: only its ends count.

Limits, which are divided among the partitions, and delays until there are enough records have the options of Spark's
Kafka source (org.apache.spark.sql.kafka010.KafkaMicroBatchStream). A Python source can pass only one of the built-in
read limits to Spark 4.2, and none of them has a delay. So the source reports one limit, which informs Spark that limits
exist, and the reader applies all of them unless Spark asks for everything. Under a limit every partition with new
records advances, in proportion to their number.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, unquote

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_kafkalog.errors import InvalidOptionError, UnknownTopicError
from pyspark_kafkalog.root.snapshot import known_size_bytes
from pyspark_kafkalog.spark.options.parse import StreamReadOptions
from pyspark_kafkalog.spark.options.positions import Assign, SpecificOffsets, Subscription, parse_offset_spec
from pyspark_kafkalog.spark.read.plan import OffsetRange, readable_topics
from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity
from pyspark_kafkalog.storage.log.read_only import load_read_only
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot
    from pyspark_kafkalog.storage.log.reader import PartitionExtents

_TRIES: Final = 10
_IDS_PREFIX: Final = "kafkalog:"
_ROOT_ID: Final = "root"
_TOPIC_ID: Final = "topic"
#: The next offset to read, by partition. A partition that is not in it starts at its earliest offset.
StreamOffsets: TypeAlias = Mapping[TopicPartition, int]
#: The id of each topic that the stream reads, None if a broker's directory has no id for it.
TopicIds: TypeAlias = Mapping[str, str | None]

_NO_IDS: Final[TopicIds] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Origin:
    """What offsets belong to: the log directory (None if it or the checkpoint has no ids), and topic ids by name."""

    root: RootIdentity | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)


def to_json(offsets: StreamOffsets, origin: Origin | None = None) -> dict[str, dict[str, int]]:
    """The offsets as a stream reader returns them to Spark."""
    by_topic: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        by_topic.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[topic_partition]
    if origin is not None and origin.root is not None:
        by_topic[_ids_name(_ROOT_ID, origin.root.cluster_id or "", origin.root.directory_id or "")] = {}
    if origin is not None:
        by_topic |= {_ids_name(_TOPIC_ID, topic, origin.topic_ids[topic]): {} for topic in sorted(origin.topic_ids)}
    return by_topic


def from_json(given: dict[str, Any]) -> dict[TopicPartition, int]:
    """The offsets that Spark passes to a stream reader, possibly from a checkpoint.

    Raises InvalidOptionError for content that neither this source nor Spark's Kafka source writes.
    """
    text = json.dumps(given)
    try:
        spec = parse_offset_spec(text)
    except ValueError as error:
        raise _not_ours(text, str(error)) from error
    if not isinstance(spec, SpecificOffsets) or any(offset < 0 for offset in spec.offsets.values()):
        raise _not_ours(text, "expected offsets of 0 and above")
    return dict(spec.offsets)


def origin_from_json(given: dict[str, Any]) -> Origin:
    """The origin of the offsets in `given`, as far as it contains ids. Raises InvalidOptionError as `from_json`."""
    roots: list[RootIdentity] = []
    topic_ids: dict[str, str] = {}
    for name, partitions in given.items():
        if not name.startswith(_IDS_PREFIX):
            continue
        kind, *ids = [unquote(part) for part in name.removeprefix(_IDS_PREFIX).split(":")]
        if partitions == {} and kind == _ROOT_ID and len(ids) == 2 and any(ids) and not roots:
            roots.append(RootIdentity(ids[0] or None, ids[1] or None))
        elif partitions == {} and kind == _TOPIC_ID and len(ids) == 2 and all(ids) and ids[0] not in topic_ids:
            topic_ids[ids[0]] = ids[1]
        else:
            raise _not_ours(
                json.dumps({name: partitions}),
                f'expected one "{_IDS_PREFIX}{_ROOT_ID}:<cluster id>:<directory id>" and a '
                f'"{_IDS_PREFIX}{_TOPIC_ID}:<name>:<id>" a topic, without partitions',
            )
    return Origin(roots[0] if roots else None, topic_ids)


def _ids_name(*parts: str) -> str:
    return _IDS_PREFIX + ":".join(quote(part, safe="") for part in parts)


def _not_ours(text: str, why: str) -> InvalidOptionError:
    return InvalidOptionError(
        f"option checkpointLocation names a checkpoint with offsets that this source cannot continue from: "
        f"{text[:200]}: {why}; give the query its own checkpoint"
    )


@dataclass(frozen=True, slots=True)
class LatestPlan:
    """The end of a micro-batch without limits, and the losses found while planning it."""

    ends: dict[TopicPartition, int]
    losses: list[str]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The ranges of a micro-batch before they are cut, in the partitions' order, and the losses among them."""

    ranges: list[OffsetRange]
    losses: list[str]


def plan_latest(start: StreamOffsets, view: StreamView, topic_ids: TopicIds) -> LatestPlan:
    """The end of all records in `view`, for a stream that has read up to `start` in the topics of `topic_ids`."""
    losses = [
        f"{topic_partition}: offsets from {offset} on were requested, {_gone()}"
        for topic_partition, offset in start.items()
        if topic_partition not in view
    ]
    ends: dict[TopicPartition, int] = {}
    for topic_partition, found in view.items():
        offset = start.get(topic_partition)
        if _is_recreated(found, topic_ids):  # also for partitions new in the topic: none of it may be in the end
            if offset is not None:
                losses.append(f"{topic_partition}: offsets from {offset} on were requested, {_recreated(found)}")
        elif offset is None:
            ends[topic_partition] = found.readable_end_offset
        elif not found.reaches(offset):
            losses.append(f"{topic_partition}: offsets from {offset} on were requested, {_shorter(found)}")
            if found.may_be_truncated:
                ends[topic_partition] = found.readable_end_offset
        else:
            if offset < found.readable_start_offset:
                losses.append(f"{topic_partition}: offsets from {offset} on were requested, {_below(offset, found)}")
            ends[topic_partition] = max(offset, found.readable_end_offset)
    return LatestPlan(ends, losses)


def plan_read(
    start: StreamOffsets, end: StreamOffsets, view: StreamView, *, is_initial: bool, topic_ids: TopicIds = _NO_IDS
) -> ReadPlan:
    """The ranges to read from `start` up to `end`, which belong to the topics with `topic_ids`.

    `is_initial`: the start comes from options, and may be later than the end: a query that was killed in its first
    micro-batch computes it again. Then differences between start and end do not indicate losses.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for topic_partition, end_offset in sorted(end.items()):
        start_offset = start.get(topic_partition)
        asked = f"offsets {start_offset or 0} to {end_offset} were requested"
        found = view.get(topic_partition)
        if found is None:
            losses.append(f"{topic_partition}: {asked}, {_gone()}")
            continue
        if _is_recreated(found, topic_ids):
            losses.append(f"{topic_partition}: {asked}, {_recreated(found)}")
            continue
        available, loss = _clamp_to_available(start_offset, end_offset, found, is_initial)
        if loss:
            losses.append(f"{topic_partition}: {asked}, {loss}")
        if available is not None:
            ranges.append(available)
    if not is_initial:
        losses.extend(_left_out(start, end, view))
    return ReadPlan(ranges, losses)


def unread_start(topic_partition: TopicPartition, start: StreamOffsets, view: StreamView) -> int:
    """The first offset of a partition of `view` that a stream at `start` has not read."""
    first_offset = view[topic_partition].readable_start_offset
    return max(start.get(topic_partition, first_offset), first_offset)


def _clamp_to_available(
    start_offset: int | None, end_offset: int, found: PartitionView, is_initial: bool
) -> tuple[OffsetRange | None, str]:
    """The available part of a range (None if empty), and a description of the loss ("" if the range is complete)."""
    loss = ""
    if start_offset is None:
        start_offset = found.log_start_offset
        if start_offset > 0:
            loss = f"as the partition is new to the stream, {_taken(found)}"
    if end_offset < start_offset:
        if is_initial or loss:
            return None, loss
        return None, _shorter(found)
    if not found.reaches(end_offset):
        loss = _shorter(found)
        end_offset = found.log_end_offset() if found.may_be_truncated else start_offset
    elif start_offset < found.readable_start_offset:
        loss = _below(start_offset, found)
        start_offset = found.readable_start_offset
    if start_offset >= end_offset:
        return None, loss
    return OffsetRange(topic_partition=found.topic_partition, start_offset=start_offset, end_offset=end_offset), loss


def _left_out(start: StreamOffsets, end: StreamOffsets, view: StreamView) -> list[str]:
    losses = []
    for topic_partition, offset in sorted(start.items()):
        if topic_partition in end:
            continue
        found = view.get(topic_partition)
        if found is None:
            why = _gone()
        elif found.reaches(offset):
            why = _recreated(found)
        else:
            why = _shorter(found)
        losses.append(f"{topic_partition}: offsets from {offset} on were requested, {why}")
    return losses


def _is_recreated(found: PartitionView, topic_ids: TopicIds) -> bool:
    known = topic_ids.get(found.topic_partition.topic)
    return known is not None and found.topic_id is not None and found.topic_id != known


def _available_text(found: PartitionView) -> str:
    return f"available are log start {found.log_start_offset} to high watermark {found.high_watermark}"


def _gone() -> str:
    return "the partition does not exist: the topic was deleted, or is no longer subscribed to"


def _recreated(found: PartitionView) -> str:
    return f"{_available_text(found)}: the topic was re-created, its id is now {found.topic_id}"


def _shorter(found: PartitionView) -> str:
    return f"{_available_text(found)}: the log was truncated, or the topic was re-created"


def _below(offset: int, found: PartitionView) -> str:
    """The reason why `offset`, which is below the first one in the directory, cannot be read."""
    if offset < found.log_start_offset:
        return _taken(found)
    remote = f"{found.log_start_offset} to {found.readable_start_offset - 1}"
    return (
        f"but offsets {remote} are in remote storage (tiered storage), the first one in this directory is "
        f"{found.readable_start_offset}"
    )


def _taken(found: PartitionView) -> str:
    return f"{_available_text(found)}: retention or delete-records has deleted the others"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition: [readable_start_offset, readable_end_offset) can be read; those before are in remote storage.

    The readable end is the last stable offset for read_committed, else the high watermark. `topic_id` is None if a
    broker's directory has no id for the topic, `directory` None for a log in object
    stores only. The active segment's base offset and size in bytes are -1 if unknown.
    """

    topic_partition: TopicPartition
    topic_id: str | None
    directory: Path | None
    log_start_offset: int
    readable_start_offset: int
    high_watermark: int
    readable_end_offset: int
    active_base_offset: int
    active_size_bytes: int
    #: Whether its log can become shorter, and can be longer than the checkpoint of high watermarks says: a broker's.
    may_be_truncated: bool
    #: What a LogReader of the partition reads.
    extents: Callable[[], PartitionExtents]

    def reaches(self, offset: int) -> bool:
        """Whether the log is long enough that `offset` can be a reader's next offset."""
        return offset <= self.high_watermark or offset <= self.log_end_offset()

    def log_end_offset(self) -> int:
        """The end of the log on disk; in a native log directory the high watermark.

        A broker's checkpoint of high watermarks may be behind the position of a reader, because a partition without a
        line in it is read to the log end offset. The log itself is not behind unless it was truncated.
        """
        if not self.may_be_truncated or self.directory is None:
            return self.high_watermark
        return load_read_only(self.directory, log_start_offset=self.log_start_offset).log_end_offset

    def known_size_bytes(self, start_offset: int) -> int | None:
        """A bound on the bytes from `start_offset` on, if that is in the active segment and its size is known."""
        return known_size_bytes(self.active_base_offset, self.active_size_bytes, start_offset)

    def estimated_bytes(self, start_offset: int, end_offset: int) -> int | None:
        """The approximate size in bytes of the offsets [start_offset, end_offset), if in the active segment."""
        size_bytes, span = self.known_size_bytes(start_offset), self.high_watermark - self.active_base_offset
        return None if size_bytes is None or span <= 0 else size_bytes * (end_offset - start_offset) // span


StreamView: TypeAlias = Mapping[TopicPartition, PartitionView]


def take_view(root: Root, subscription: Subscription, *, committed: bool) -> StreamView:
    """The existing subscribed partitions, in order, as of the last refresh of `root`.

    In a running broker's directory a partition may be deleted while it is read: then all are read again.
    """
    for _ in range(_TRIES - 1):
        try:
            return _read_view(root, subscription, committed)
        except (FileNotFoundError, UnknownTopicError):
            root.refresh()
    return _read_view(root, subscription, committed)


def _read_view(root: Root, subscription: Subscription, committed: bool) -> StreamView:
    assigned = frozenset(subscription.partitions) if isinstance(subscription, Assign) else None
    view: dict[TopicPartition, PartitionView] = {}
    for name in readable_topics(root, subscription):
        topic = root.topic(name, readable_only=assigned is not None)
        for number, error in topic.unreadable.items():
            if assigned is not None and TopicPartition(name, number) in assigned:
                raise error
        for found in topic.partitions:
            topic_partition = TopicPartition(name, found.partition)
            if assigned is None or topic_partition in assigned:
                view[topic_partition] = _view(root, found, committed)
    return view


def _view(root: Root, found: PartitionSnapshot, committed: bool) -> PartitionView:
    return PartitionView(
        topic_partition=found.topic_partition,
        topic_id=found.topic_id,
        directory=found.local_directory,
        log_start_offset=found.log_start_offset,
        readable_start_offset=found.readable_start_offset,
        high_watermark=found.high_watermark,
        readable_end_offset=found.readable_end("read_committed" if committed else "read_uncommitted"),
        active_base_offset=found.active_base_offset,
        active_size_bytes=found.active_size_bytes,
        may_be_truncated=root.version is None and not (found.remote is not None and found.remote.is_all),
        extents=found.extents,
    )


# The limits of a micro-batch


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
