"""Plans a read: finds the partitions, resolves options to one offset range for each, then cuts the ranges into tasks.

Which partitions a subscription covers follows Spark's Kafka source (org.apache.spark.sql.kafka010.ConsumerStrategy),
with two exceptions: a missing topic or partition is an error that lists the existing ones, and an internal topic is
read if it is requested by name.

All ends are resolved, from one view of the log, before any range is cut, so that `minPartitions` and
`maxRecordsPerPartition` apply to real sizes. They cut as Spark's KafkaOffsetRangeCalculator does. After that, ranges
of more than `maxBytesPerPartition` are cut at index entries into pieces of similar size. A range consists of offsets,
never of file positions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import (
    DataLossError,
    DiskFormatError,
    InvalidOptionError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from pyspark_kafkalog.metadata.acl import AclOperation, ResourceType
from pyspark_kafkalog.root.reads import open_transaction_text
from pyspark_kafkalog.root.snapshot import remote_offsets
from pyspark_kafkalog.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AllTopics,
    Assign,
    Earliest,
    GlobalTimestamp,
    GroupOffsets,
    Latest,
    OffsetSpec,
    OnNoMatch,
    SpecificOffsets,
    SpecificTimestamps,
    Subscribe,
    Subscription,
    asked_for,
    given_partitions,
    listed,
)
from pyspark_kafkalog.spark.read.filters import PushedFilters
from pyspark_kafkalog.storage.below_root import keep_directories
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.storage.segment.reader import LocalExtent, SegmentReader
from pyspark_kafkalog.values import guess, quick_dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot
    from pyspark_kafkalog.storage.log.reader import LogReader


def subscribed_partitions(root: Root, subscription: Subscription) -> list[PartitionSnapshot]:
    """The partitions to read, ordered by topic and number.

    Raises UnknownTopicError for a topic or partition that is requested by name and does not exist, and
    AuthorizationError for a topic that the principal may not read.
    """
    if isinstance(subscription, Assign):
        readable_topics(root, subscription)
        return _assigned_partitions(root, subscription.partitions)
    partitions: list[PartitionSnapshot] = []
    topics = readable_topics(root, subscription)
    if isinstance(subscription, Subscribe):
        _check_topics_exist(subscription.topics, root.topics())
    for topic in topics:
        partitions.extend(sorted(root.topic(topic).partitions, key=lambda found: found.partition))
    return partitions


def readable_topics(root: Root, subscription: Subscription) -> list[str]:
    """The topics that the subscription covers, in order. Raises AuthorizationError for a topic that may not be read."""
    topics = subscribed_topics(root.topics(), subscription)
    named: Iterable[str] = ()
    if isinstance(subscription, Subscribe):
        named = subscription.topics
    elif isinstance(subscription, Assign):
        named = (each.topic for each in subscription.partitions)
    for topic in sorted({*topics, *named}):
        root.check(AclOperation.READ, ResourceType.TOPIC, topic)
    return topics


def subscribed_topics(existing: Sequence[str], subscription: Subscription) -> list[str]:
    """The topics among `existing` that the subscription covers, in order."""
    if isinstance(subscription, Subscribe):
        return sorted(set(subscription.topics).intersection(existing))
    if isinstance(subscription, Assign):
        return sorted({each.topic for each in subscription.partitions}.intersection(existing))
    public = [topic for topic in existing if topic not in INTERNAL_TOPICS and topic != CLUSTER_METADATA_TOPIC]
    if isinstance(subscription, AllTopics):
        return sorted(public)
    from pyspark_kafkalog.java_regex.patterns import compile_topic_pattern

    pattern = compile_topic_pattern(subscription.pattern)
    return sorted(topic for topic in public if pattern.is_found_in(topic))


def _assigned_partitions(root: Root, assigned: Sequence[TopicPartition]) -> list[PartitionSnapshot]:
    topics = dict.fromkeys(each.topic for each in assigned)
    _check_topics_exist(topics, root.topics())
    numbers = {topic: frozenset(root.partition_numbers(topic)) for topic in topics}
    for each in assigned:
        if each.partition not in numbers[each.topic]:
            existing = ", ".join(map(str, sorted(numbers[each.topic])))
            raise UnknownTopicError(f"no partition {each}; topic {each.topic} has partitions {existing}")
    return [root.partition(each.topic, each.partition) for each in sorted(assigned)]


def _check_topics_exist(requested: Iterable[str], existing: Sequence[str]) -> None:
    known = frozenset(existing)
    for topic in requested:
        if topic not in known:
            raise UnknownTopicError(
                f"no topic {topic!r} in this log directory: {guess(topic, existing)}existing topics: {listed(existing)}"
            )


_LOG = logging.getLogger(__name__)
_TASKS_MAX: Final = 1_000_000
#: The default of index.interval.bytes: the offset index of a smaller segment is empty.
_UNINDEXED_BYTES: Final = 4096


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets [start_offset, end_offset) of one partition."""

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def offsets_count(self) -> int:
        return self.end_offset - self.start_offset


@quick_dataclass(frozen=True, slots=True)
class AvailableOffsets:
    """A partition's offsets [start_offset, end_offset). For read_committed they end at the last stable offset.

    Offsets below `readable_start_offset` are in remote storage and cannot be read here.
    """

    start_offset: int
    readable_start_offset: int
    end_offset: int


class PlanReaders:
    """The partitions of one plan and their readers, one for each, all over the same view of the log directory.

    `partitions`: those that are known already.
    """

    def __init__(self, root: Root, partitions: Mapping[TopicPartition, PartitionSnapshot] | None = None) -> None:
        self._root = root
        self._partitions = dict(partitions or {})
        self._readers: dict[TopicPartition, LogReader] = {}

    def partition(self, topic_partition: TopicPartition) -> PartitionSnapshot:
        """The partition as of the plan."""
        found = self._partitions.get(topic_partition)
        if found is None:
            found = self._root.partition(topic_partition.topic, topic_partition.partition)
            self._partitions[topic_partition] = found
        return found

    def known_bytes(self, each: OffsetRange) -> int | None:
        """A bound on the bytes of a range, if it is in the active segment and its size is known."""
        return self.partition(each.topic_partition).known_size_bytes(each.start_offset)

    def of(self, topic_partition: TopicPartition) -> LogReader:
        """The reader of the partition, opened by the first call."""
        reader = self._readers.get(topic_partition)
        if reader is None:
            reader = self._root.reader(topic_partition.topic, topic_partition.partition)
            self._readers[topic_partition] = reader
        return reader


class OffsetResolver:
    """Resolves offset specs to ranges against one view of a log directory.

    `partitions`: the partitions to read. `committed`: end them at the last stable offset. `on_no_match`: the meaning of
    a starting timestamp later than all records. With `fail_on_data_loss`, unavailable offsets raise DataLossError;
    without it, the range shrinks to the available offsets and a warning is logged. `readers` are for the whole plan.
    """

    def __init__(
        self,
        root: Root,
        partitions: Iterable[PartitionSnapshot],
        *,
        committed: bool,
        on_no_match: OnNoMatch,
        fail_on_data_loss: bool,
    ) -> None:
        self._root = root
        self._partitions = {each.topic_partition: each for each in partitions}
        self.readers = PlanReaders(root, self._partitions)
        self._committed = committed
        self._on_no_match = on_no_match
        self._fail_on_data_loss = fail_on_data_loss
        self._group_offsets: dict[TopicPartition, int] | None = None

    def resolve(self, starting: OffsetSpec, ending: OffsetSpec) -> list[OffsetRange]:
        """One range per partition, without empty ones, in the partitions' order."""
        self._check_same_partitions("starting", starting, "-2 stands for earliest")
        self._check_same_partitions("ending", ending, "-1 stands for latest")
        ranges = [self._range(each, starting, ending) for each in self._partitions]
        return [each for each in ranges if each.offsets_count > 0]

    def resolve_starts(self, starting: OffsetSpec) -> dict[TopicPartition, int]:
        """The starting offset of every partition, in the partitions' order."""
        self._check_same_partitions("starting", starting, "-1 stands for latest, -2 for earliest")
        return {each: self._stream_start(each, starting) for each in self._partitions}

    def _stream_start(self, topic_partition: TopicPartition, starting: OffsetSpec) -> int:
        """A stream may start above the last stable offset: like a consumer, it waits until that offset reaches it."""
        available = self.available(topic_partition)
        start_offset = self._start(topic_partition, starting, available)
        high_watermark = self._partitions[topic_partition].high_watermark
        asked = OffsetRange(topic_partition=topic_partition, start_offset=start_offset, end_offset=high_watermark)
        texts = (
            asked_for("starting", starting, topic_partition, start_offset),
            asked_for("ending", Latest(), topic_partition, high_watermark),
        )
        return self._clamp_to_available(asked, replace(available, end_offset=high_watermark), texts).start_offset

    def available(self, topic_partition: TopicPartition) -> AvailableOffsets:
        found = self._partitions[topic_partition]
        end_offset = found.readable_end("read_committed" if self._committed else "read_uncommitted")
        return AvailableOffsets(found.log_start_offset, found.readable_start_offset, end_offset)

    def _check_same_partitions(self, end: str, spec: OffsetSpec, words: str) -> None:
        given = given_partitions(spec)
        if given is None or given.keys() == self._partitions.keys():
            return
        option, advice = f"{end}Offsets", f" ({words})"
        if isinstance(spec, SpecificTimestamps):
            option, advice = f"{end}OffsetsByTimestamp", f" ({end}Timestamp is for all of them)"
        raise InvalidOptionError(
            f"option {option} must name exactly the partitions that are read{advice}. "
            f"Specified: {listed(map(str, given))}. Assigned: {listed(map(str, self._partitions))}"
        )

    def _range(self, topic_partition: TopicPartition, starting: OffsetSpec, ending: OffsetSpec) -> OffsetRange:
        available = self.available(topic_partition)
        start_offset = self._start(topic_partition, starting, available)
        end_offset = self._end(topic_partition, ending, available)
        asked = OffsetRange(topic_partition=topic_partition, start_offset=start_offset, end_offset=end_offset)
        first_offset = max(available.start_offset, available.readable_start_offset)
        if first_offset <= start_offset <= end_offset <= available.end_offset:
            return asked
        texts = (
            asked_for("starting", starting, topic_partition, start_offset),
            asked_for("ending", ending, topic_partition, end_offset),
        )
        found = self._clamp_to_available(asked, available, texts)
        if start_offset > end_offset and found == asked:
            raise InvalidOptionError(f"{topic_partition}: {texts[0]} is greater than {texts[1]}")
        return found

    def _start(self, topic_partition: TopicPartition, spec: OffsetSpec, available: AvailableOffsets) -> int:
        if isinstance(spec, GroupOffsets):
            return self._group_start(topic_partition, spec, available)
        offset = self._offset(topic_partition, spec, available)
        if offset is not None:
            return offset
        if self._on_no_match == "latest":
            return available.end_offset
        raise InvalidOptionError(
            f"{topic_partition}: no record has the timestamp {_timestamp_ms(spec, topic_partition)} or a later one; "
            "set startingOffsetsByTimestampStrategy to latest to start at the end of such partitions"
        )

    def _group_start(self, topic_partition: TopicPartition, spec: GroupOffsets, available: AvailableOffsets) -> int:
        if self._group_offsets is None:
            from pyspark_kafkalog.groups.guarded_group import open_group

            fetched = open_group(self._root, spec.group_id).fetch()
            self._group_offsets = {each: committed.offset for each, committed in fetched.items()}
        offset = self._group_offsets.get(topic_partition)
        if offset is not None and available.start_offset <= offset <= self._partitions[topic_partition].high_watermark:
            return min(offset, available.end_offset)
        if offset is None:
            why = f"group {spec.group_id} has no committed offset"
        else:
            why = (
                f"the offset {offset} that group {spec.group_id} has committed is out of range: offsets "
                f"{available.start_offset} to {available.end_offset} are available"
            )
        if spec.reset == "none":
            raise InvalidOptionError(
                f"{topic_partition}: {why}, and auto.offset.reset is none; set it to earliest or latest, or reset the "
                "group's offsets"
            )
        if offset is not None:
            _LOG.warning("%s: %s; starting at the %s one", topic_partition, why, spec.reset)
        return available.start_offset if spec.reset == "earliest" else available.end_offset

    def _end(self, topic_partition: TopicPartition, spec: OffsetSpec, available: AvailableOffsets) -> int:
        offset = self._offset(topic_partition, spec, available)
        return available.end_offset if offset is None else offset

    def _offset(self, topic_partition: TopicPartition, spec: OffsetSpec, available: AvailableOffsets) -> int | None:
        """The offset that `spec` (no group) stands for; None if it is a timestamp later than all records."""
        if isinstance(spec, Earliest):
            return available.start_offset
        if isinstance(spec, Latest):
            return available.end_offset
        if isinstance(spec, SpecificOffsets):
            return _specific(spec.offsets[topic_partition], available)
        return self._offset_for_timestamp(topic_partition, _timestamp_ms(spec, topic_partition), available)

    def _offset_for_timestamp(
        self, topic_partition: TopicPartition, timestamp_ms: int, available: AvailableOffsets
    ) -> int | None:
        if available.readable_start_offset >= available.end_offset:
            return None
        if available.start_offset < available.readable_start_offset:
            found = remote_offsets(self._partitions[topic_partition])
            self._lose(f"{topic_partition}: the offset for timestamp {timestamp_ms} may be a remote one: {found}")
        first = self.readers.of(topic_partition).offset_for_timestamp(
            timestamp_ms, available.readable_start_offset, available.end_offset
        )
        return None if first is None else first.offset

    def _clamp_to_available(
        self, asked: OffsetRange, available: AvailableOffsets, texts: tuple[str, str]
    ) -> OffsetRange:
        """The available part of `asked`, without missing offsets at its ends. `texts`: how its ends were given."""
        reason = self._why_unavailable(asked, available, texts)
        if reason is None:
            return asked
        self._lose(f"{asked.topic_partition}: {reason}")
        start_offset = min(max(asked.start_offset, available.readable_start_offset), available.end_offset)
        end_offset = max(min(asked.end_offset, available.end_offset), start_offset)
        return replace(asked, start_offset=start_offset, end_offset=end_offset)

    def _why_unavailable(self, asked: OffsetRange, available: AvailableOffsets, texts: tuple[str, str]) -> str | None:
        """The reason why not all of `asked` can be read; None if it can."""
        found = self._partitions[asked.topic_partition]
        ends = tuple(zip(texts, (asked.start_offset, asked.end_offset), strict=True))
        lost = [text for text, offset in ends if not available.start_offset <= offset <= available.end_offset]
        if not lost:
            is_remote = asked.start_offset < min(available.readable_start_offset, asked.end_offset)
            return f"{texts[0]} was requested, but {remote_offsets(found)}" if is_remote else None
        if all(available.start_offset <= offset <= found.high_watermark for _, offset in ends):
            return f"{' and '.join(lost)} was requested, but {open_transaction_text(found)}"
        end_name = "high watermark" if available.end_offset == found.high_watermark else "last stable offset"
        places = (
            f"{text} is before the earliest offset, the log start {available.start_offset}"
            if offset < available.start_offset
            else f"{text} is beyond the latest offset, the {end_name} {available.end_offset}"
            for text, offset in ends
            if text in lost
        )
        causes = "or the topic was re-created"
        if min(asked.start_offset, asked.end_offset) < available.start_offset:
            causes = f"or retention has removed records, {causes}"
        return f"{' and '.join(places)}; either the offset was set wrong, {causes}"

    def _lose(self, message: str) -> None:
        """Raise DataLossError, or log a warning if failOnDataLoss is false."""
        if self._fail_on_data_loss:
            raise DataLossError(f"{message}. Set failOnDataLoss to false to read the available records")
        _LOG.warning(message)


def apply_filters(ranges: Iterable[OffsetRange], filters: PushedFilters, readers: PlanReaders) -> list[OffsetRange]:
    """Narrow `ranges` to the offsets at which records can pass `filters`.

    A lower limit on timestamps moves the start to the first record that reaches it. An upper limit cannot move the end:
    Kafka orders records by offset, and a later record may have an earlier timestamp.
    """
    narrowed: list[OffsetRange] = []
    for each in ranges:
        topic_partition = each.topic_partition
        if not filters.allows_partition(topic_partition.topic, topic_partition.partition):
            continue
        start_offset, end_offset = each.start_offset, each.end_offset
        if filters.offsets.start is not None:
            start_offset = max(start_offset, filters.offsets.start)
        if filters.offsets.end is not None:
            end_offset = min(end_offset, filters.offsets.end)
        if start_offset >= end_offset:
            continue
        if filters.timestamps_ms.start is not None:
            reader = readers.of(topic_partition)
            found = reader.offset_for_timestamp(filters.timestamps_ms.start, start_offset, end_offset)
            if found is None:
                continue
            start_offset = found.offset
        narrowed.append(replace(each, start_offset=start_offset, end_offset=end_offset))
    return narrowed


def check_ends(ranges: Iterable[OffsetRange], readers: PlanReaders) -> None:
    """Raise CorruptRecordError for a range that ends at a high watermark which the log on disk does not reach.

    The active segment is opened by its name. Only if it does not have the end, the directory is listed.
    """
    for each in ranges:
        found = readers.partition(each.topic_partition)
        if each.end_offset == found.high_watermark and not _ends_in_active_segment(found):
            check_end_if_kept(readers.of(each.topic_partition), each.end_offset)


def _ends_in_active_segment(found: PartitionSnapshot) -> bool:
    if not found.has_active_file:
        return False
    extent = LocalExtent(found.directory, found.active_base_offset)
    with contextlib.suppress(FileNotFoundError, DiskFormatError), keep_directories(), SegmentReader(extent) as segment:
        return segment.has_batch_below(found.high_watermark, with_index=segment.size_bytes > _UNINDEXED_BYTES)
    return False


def check_end_if_kept(reader: LogReader, high_watermark: int) -> None:
    """As LogReader.check_end, except if retention has deleted all records: then the read reports the loss."""
    with contextlib.suppress(OffsetOutOfRangeError):
        reader.check_end(high_watermark)


def cut_by_records(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records_per_partition: int | None
) -> list[OffsetRange]:
    """Cut ranges as Spark's Kafka source does. Sizes are numbers of offsets, gaps included.

    `max_records_per_partition` bounds each piece. `min_partitions` is the approximate minimum number of pieces: large
    ranges are cut in proportion, ranges of less than one and a half shares stay whole.
    """
    pieces = [each for each in ranges if each.offsets_count > 0]
    if max_records_per_partition is not None:
        counts = [-(-each.offsets_count // max_records_per_partition) for each in pieces]
        _check_tasks_count(sum(counts))
        pieces = [piece for each, count in zip(pieces, counts, strict=True) for piece in _cut_evenly(each, count)]
    if min_partitions is not None and min_partitions > len(pieces):
        _check_tasks_count(min_partitions)
        pieces = _cut_to_at_least(pieces, min_partitions)
    return pieces


def cut_by_bytes(
    ranges: Iterable[OffsetRange],
    readers: PlanReaders,
    *,
    max_bytes: int,
    known_bytes: Callable[[OffsetRange], int | None],
) -> list[OffsetRange]:
    """Cut each range of more than `max_bytes` on disk at index entries into pieces of about the same size.

    `known_bytes`: a bound on the bytes of a range, None if it is not known. A range that is small enough is not opened.
    """
    pieces: list[OffsetRange] = []
    for each in ranges:
        bound = known_bytes(each)
        if bound is not None and bound <= max_bytes:
            _check_tasks_count(len(pieces) + 1)
            pieces.append(each)
            continue
        reader = readers.of(each.topic_partition)
        splits = reader.split(each.start_offset, each.end_offset, max_bytes, relist=False)
        _check_tasks_count(len(splits) + len(pieces))
        if len(splits) > 1:
            size_bytes = sum(split.size_bytes for split in splits)
            count = -(-size_bytes // max_bytes)
            splits = reader.split(each.start_offset, each.end_offset, -(-size_bytes // count), relist=False)
        pieces.extend(replace(each, start_offset=cut.start_offset, end_offset=cut.end_offset) for cut in splits)
    return pieces


def _cut_to_at_least(ranges: list[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    total = sum(each.offsets_count for each in ranges)
    whole = [each for each in ranges if _share(each.offsets_count, total, min_partitions) == 1]
    whole_partitions = {each.topic_partition for each in whole}
    to_cut_total = total - sum(each.offsets_count for each in whole)
    to_cut_partitions = max(min_partitions - len(whole), 1)
    pieces: list[OffsetRange] = []
    for each in ranges:
        count = 1
        if each.topic_partition not in whole_partitions:
            count = _share(each.offsets_count, to_cut_total, to_cut_partitions)
        pieces.extend(_cut_evenly(each, count))
    return pieces


def _share(count: int, total: int, partitions: int) -> int:
    """The share of `partitions` pieces that `count` of `total` offsets get: rounded half up, at least 1."""
    return max((2 * count * partitions + total) // (2 * total), 1)


def _cut_evenly(whole: OffsetRange, count: int) -> list[OffsetRange]:
    pieces: list[OffsetRange] = []
    start_offset, left = whole.start_offset, whole.offsets_count
    for number in range(count):
        size = left // (count - number)
        left -= size
        if size > 0:
            pieces.append(replace(whole, start_offset=start_offset, end_offset=start_offset + size))
        start_offset += size
    return pieces


def _check_tasks_count(count: int) -> None:
    if count > _TASKS_MAX:
        raise InvalidOptionError(
            f"the options cut this read into {count} tasks, more than {_TASKS_MAX}: "
            "set minPartitions lower, or maxRecordsPerPartition or maxBytesPerPartition higher"
        )


def _specific(offset: int, available: AvailableOffsets) -> int:
    if offset == LATEST_OFFSET:
        return available.end_offset
    if offset == EARLIEST_OFFSET:
        return available.start_offset
    return offset


def _timestamp_ms(spec: OffsetSpec, topic_partition: TopicPartition) -> int:
    assert isinstance(spec, (GlobalTimestamp, SpecificTimestamps))
    return spec.timestamp_ms if isinstance(spec, GlobalTimestamp) else spec.timestamps_ms[topic_partition]
