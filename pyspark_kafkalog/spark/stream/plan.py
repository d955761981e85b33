"""Plans a stream: the end of the next micro-batch, and the ranges to read for it. The only I/O is PartitionView's.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from pyspark_kafkalog.spark.read.plan import OffsetRange
from pyspark_kafkalog.spark.stream.offsets import StreamOffsets
from pyspark_kafkalog.spark.stream.view import PartitionView, StreamView
from pyspark_kafkalog.storage.names import TopicPartition

#: The id of each topic that the stream reads, None if a broker's directory has no id for it.
TopicIds: TypeAlias = Mapping[str, str | None]

_NO_IDS: Final[TopicIds] = MappingProxyType({})


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
            if found.is_broker_directory:
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
        end_offset = found.log_end_offset() if found.is_broker_directory else start_offset
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
