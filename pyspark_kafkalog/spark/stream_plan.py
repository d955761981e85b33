"""Planning of a stream, no I/O but what a PartitionView does: where the next micro-batch ends, what to read for it.

What a start and an end in the checkpoint mean must not depend on what a process remembers: a killed query plans its
last micro-batch again from these two alone. So

- a partition that is in the end and not in the start is new, and is read from its earliest offset;
- one that is in the start and not in the end is gone; a topic that was deleted and made anew is first left out of one
  end, and is new in the next;
- the ids of topics that the two say are those of what was read; a topic with another id now is a new one of its name,
  and nothing of it is read for them;
- an end below its start says that the log got shorter, and the stream goes on there.

Losses are told of, with the range asked for and what is there, and it is the caller that raises or warns. A range with
gaps, as compaction and transactions leave them, is whole: only its ends count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from pyspark_kafkalog.spark.offset_ranges import OffsetRange
from pyspark_kafkalog.spark.stream_offsets import StreamOffsets
from pyspark_kafkalog.spark.stream_view import PartitionView, StreamView
from pyspark_kafkalog.storage.names import TopicPartition

#: The id of each topic that the stream reads, None where a broker's directory tells none.
TopicIds: TypeAlias = Mapping[str, str | None]

_NO_IDS: Final[TopicIds] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LatestPlan:
    """Where a micro-batch without limits ends, and what was lost on the way."""

    ends: dict[TopicPartition, int]
    losses: list[str]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a micro-batch reads, not cut yet, in the partitions' order, and what of it was lost."""

    ranges: list[OffsetRange]
    losses: list[str]


def plan_latest(start: StreamOffsets, view: StreamView, topic_ids: TopicIds) -> LatestPlan:
    """The end of all there is in `view`, for a stream that has come to `start` in the topics of `topic_ids`."""
    losses = [
        f"{topic_partition}: offsets from {offset} on were asked for, {_gone()}"
        for topic_partition, offset in start.items()
        if topic_partition not in view
    ]
    ends: dict[TopicPartition, int] = {}
    for topic_partition, found in view.items():
        offset = start.get(topic_partition)
        if _is_made_anew(found, topic_ids):  # also a partition that it had not before: the end must have none of it
            if offset is not None:
                losses.append(f"{topic_partition}: offsets from {offset} on were asked for, {_made_anew(found)}")
        elif offset is None:
            ends[topic_partition] = found.readable_end_offset
        elif not found.reaches(offset):
            losses.append(f"{topic_partition}: offsets from {offset} on were asked for, {_shorter(found)}")
            if found.is_foreign:
                ends[topic_partition] = found.readable_end_offset
        else:
            if offset < found.local_log_start_offset:
                losses.append(f"{topic_partition}: offsets from {offset} on were asked for, {_below(offset, found)}")
            ends[topic_partition] = max(offset, found.readable_end_offset)
    return LatestPlan(ends, losses)


def plan_read(
    start: StreamOffsets, end: StreamOffsets, view: StreamView, *, is_initial: bool, topic_ids: TopicIds = _NO_IDS
) -> ReadPlan:
    """What to read from `start` up to `end`, which are of the topics with `topic_ids`.

    `is_initial`: the start was made from options, maybe anew after the end was, by a query that was killed in its first
    micro-batch. Then differences between the two say nothing of losses.
    """
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for topic_partition, end_offset in sorted(end.items()):
        start_offset = start.get(topic_partition)
        asked = f"offsets {start_offset or 0} to {end_offset} were asked for"
        found = view.get(topic_partition)
        if found is None:
            losses.append(f"{topic_partition}: {asked}, {_gone()}")
            continue
        if _is_made_anew(found, topic_ids):
            losses.append(f"{topic_partition}: {asked}, {_made_anew(found)}")
            continue
        there, loss = _there(start_offset, end_offset, found, is_initial)
        if loss:
            losses.append(f"{topic_partition}: {asked}, {loss}")
        if there is not None:
            ranges.append(there)
    if not is_initial:
        losses.extend(_left_out(start, end, view))
    return ReadPlan(ranges, losses)


def unread_start(topic_partition: TopicPartition, start: StreamOffsets, view: StreamView) -> int:
    """The first offset of a partition of `view` that a stream at `start` has still to read."""
    first_offset = view[topic_partition].local_log_start_offset
    return max(start.get(topic_partition, first_offset), first_offset)


def _there(
    start_offset: int | None, end_offset: int, found: PartitionView, is_initial: bool
) -> tuple[OffsetRange | None, str]:
    """What is there of a range, None for nothing, and the loss if it is not all, "" if it is."""
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
        end_offset = found.log_end_offset() if found.is_foreign else start_offset
    elif start_offset < found.local_log_start_offset:
        loss = _below(start_offset, found)
        start_offset = found.local_log_start_offset
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
            why = _made_anew(found)
        else:
            why = _shorter(found)
        losses.append(f"{topic_partition}: offsets from {offset} on were asked for, {why}")
    return losses


def _is_made_anew(found: PartitionView, topic_ids: TopicIds) -> bool:
    known = topic_ids.get(found.topic_partition.topic)
    return known is not None and found.topic_id is not None and found.topic_id != known


def _offsets_there(found: PartitionView) -> str:
    return f"those from the log start {found.log_start_offset} to the high watermark {found.high_watermark} are there"


def _gone() -> str:
    return "the partition is not there: the topic was deleted, or is not subscribed to any more"


def _made_anew(found: PartitionView) -> str:
    return f"{_offsets_there(found)}: the topic was deleted and made anew, its id is now {found.topic_id}"


def _shorter(found: PartitionView) -> str:
    return f"{_offsets_there(found)}: the log got shorter, or the topic was deleted and made anew"


def _below(offset: int, found: PartitionView) -> str:
    """Why `offset`, which lies below the first one in the directory, cannot be read."""
    if offset < found.log_start_offset:
        return _taken(found)
    remote = f"{found.log_start_offset} to {found.local_log_start_offset - 1}"
    return (
        f"but offsets {remote} are in remote storage (tiered storage), the first one in this directory is "
        f"{found.local_log_start_offset}"
    )


def _taken(found: PartitionView) -> str:
    return f"{_offsets_there(found)}: retention or delete-records has taken the others"
