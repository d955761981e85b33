"""Remote log segments: what is known of each copy of a segment (KIP-405), and which copies hold a partition's log.

A copy of a segment has an id of its own, so that a segment that is copied again, by a new leader or after a crash,
never overwrites an earlier copy. Its objects are written once and only deleted.

Leaders copy segments independently of each other. A new leader may copy again what the one before it had copied, with
other segment boundaries, and a leader that was replaced in an unclean election leaves copies of records that the log
has lost. The partition's leader epochs decide which copies count. Of those that overlap, each offset is read from one.

Source of the terms: org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata and RemoteLogSegmentState. Of
the rules: isRemoteSegmentWithinLeaderEpochs, buildFilteredLeaderEpochMap, findHighestRemoteOffset and
findLogStartOffset of org.apache.kafka.server.log.remote.storage.RemoteLogManager (Kafka 4.1).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Final

from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.values import dataclass

#: Kafka's Uuid as text: 16 bytes of base64url, without padding. It may begin with `-`, and hold `-` and `_`.
UUID_CHARS: Final = 22
_LISTED_MAX: Final = 8
_UUID: Final = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")
NO_REMOTE_OFFSET = -1


class RemoteSegmentState(IntEnum):
    """The states of a copy, in their order; only one that is COPY_SEGMENT_FINISHED is read."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """A partition of the topic with this id: a topic that was re-created has another one."""

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def key(self) -> tuple[str, int]:
        """What identifies it."""
        return self.topic_id, self.partition

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """One copy of a segment with the offsets [start_offset, last_offset].

    `size_bytes` is that of the `.log`. `leader_epochs` are the segment's own, the first one clamped to its start.
    `max_timestamp_ms` is the largest timestamp, None if it is not known without reading the time index.
    `has_transaction_index` is False if it is known to have none. `custom_metadata` is the storage plugin's.
    """

    segment_id: str
    start_offset: int
    last_offset: int
    size_bytes: int
    leader_epochs: tuple[EpochEntry, ...]
    state: RemoteSegmentState = RemoteSegmentState.COPY_SEGMENT_FINISHED
    max_timestamp_ms: int | None = None
    has_transaction_index: bool = True
    custom_metadata: bytes | None = None

    @property
    def base_offset(self) -> int:
        """The start offset, as a local segment calls it."""
        return self.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        return self.last_offset + 1


def is_uuid(text: str) -> bool:
    """Whether `text` is a Uuid as Kafka prints it."""
    return _UUID.fullmatch(text) is not None


def check_leader_epochs(
    epochs: Sequence[EpochEntry], start_offset: int, last_offset: int, error: Callable[[str, str], Exception]
) -> None:
    """Raise `error(expected, found)` unless these can be the leader epochs of a segment with these offsets."""
    starts = [each.start_offset for each in epochs]
    is_rising = starts == sorted(starts) and len({each.epoch for each in epochs}) == len(epochs)
    if not epochs or not is_rising or epochs[0].epoch < 0 or not start_offset <= starts[0] or starts[-1] > last_offset:
        found = ", ".join(f"{each.epoch} from {each.start_offset}" for each in epochs[:_LISTED_MAX]) or "none"
        raise error(f"rising leader epochs that begin in the offsets {start_offset} to {last_offset}", found)


def clamp_epochs(epochs: Iterable[EpochEntry], start_offset: int, last_offset: int) -> tuple[EpochEntry, ...]:
    """The leader epochs of a segment with these offsets, from those of its log: the first begins at its start."""
    own: list[EpochEntry] = []
    for each in epochs:
        if each.start_offset > last_offset:
            break
        if each.start_offset <= start_offset:
            own.clear()
        own.append(EpochEntry(each.epoch, max(each.start_offset, start_offset)))
    return tuple(own)


def with_records(epochs: Iterable[EpochEntry]) -> tuple[EpochEntry, ...]:
    """The epochs in which there are records: of several that start at one offset, the last."""
    kept: list[EpochEntry] = []
    for each in sorted(epochs):
        if kept and kept[-1].start_offset == each.start_offset:
            kept.pop()
        kept.append(each)
    return tuple(kept)


def is_within_leader_epochs(segment: RemoteSegment, log_end_offset: int, epochs: Sequence[EpochEntry]) -> bool:
    """Whether the segment belongs to the log with these epochs (see `with_records`) and this end.

    Its epochs must be the log's, with the same boundaries. The log may have lost epochs from its start since.
    """
    own = with_records(segment.leader_epochs)
    if not own or not epochs or segment.last_offset >= log_end_offset:
        return False
    lost_count = bisect_right(own, epochs[0].epoch - 1, key=_epoch)
    own = own[lost_count:]
    # Stricter than Kafka, which finds segments by the leader epoch of the offset it looks for.
    if not own or (lost_count and own[0].start_offset > epochs[0].start_offset):
        return False
    at = bisect_right(epochs, own[0].epoch, key=_epoch) - 1
    if at < 0 or epochs[at].epoch != own[0].epoch or at + len(own) > len(epochs):
        return False
    if at > 0 and own[0].start_offset < epochs[at].start_offset:
        return False
    if tuple(epochs[at + 1 : at + len(own)]) != own[1:]:
        return False
    following = at + len(own)
    return following == len(epochs) or segment.last_offset < epochs[following].start_offset


def readable_segments(
    segments: Iterable[RemoteSegment], *, log_end_offset: int, epochs: Iterable[EpochEntry]
) -> tuple[RemoteSegment, ...]:
    """The segments to read: copied completely, of this log, in order of their offsets, none inside another.

    They may overlap: the one with the larger start then has the larger end, and is read from where the other ends. An
    offset between two of them that is in neither was deleted or never copied.
    """
    own_epochs = with_records(epochs)
    finished = [
        each
        for each in segments
        if each.state is RemoteSegmentState.COPY_SEGMENT_FINISHED
        and is_within_leader_epochs(each, log_end_offset, own_epochs)
    ]
    found: list[RemoteSegment] = []
    for each in sorted(finished, key=lambda one: (one.start_offset, -one.last_offset, one.segment_id)):
        if not found or each.last_offset > found[-1].last_offset:
            found.append(each)
    return tuple(found)


def highest_remote_offset(
    highest_by_epoch: Mapping[int, int], epochs: Sequence[EpochEntry], log_end_offset: int
) -> int:
    """The last offset that was copied in the lineage of `epochs`, -1 if none was: what ListOffsets calls LATEST_TIERED.

    `highest_by_epoch`: for each leader epoch, the last offset of the segments that were ever copied, also of those that
    were deleted since.
    """
    end_offset = log_end_offset
    for each in reversed(epochs):
        highest = highest_by_epoch.get(each.epoch)
        if highest is not None:
            return min(highest, end_offset - 1)
        end_offset = each.start_offset
    return NO_REMOTE_OFFSET


def first_remote_offset(segments: Iterable[RemoteSegment], epochs: Sequence[EpochEntry]) -> int | None:
    """The start of the first segment of the earliest epoch of `epochs` that has any, None without one.

    A leader raises its log start to it. Half-copied and half-deleted segments count too.
    """
    starts: dict[int, int] = {}
    for segment in segments:
        if segment.state is not RemoteSegmentState.DELETE_SEGMENT_FINISHED:
            for each in segment.leader_epochs:
                starts[each.epoch] = min(segment.start_offset, starts.get(each.epoch, segment.start_offset))
    return next((starts[each.epoch] for each in epochs if each.epoch in starts), None)


_epoch = attrgetter("epoch")
