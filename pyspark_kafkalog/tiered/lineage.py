"""Which remote segments hold a partition's log: decided from leader epochs, without any I/O.

Leaders copy segments independently of each other. A new leader may copy again what the one before it had copied, with
other segment boundaries, and a leader that was replaced in an unclean election leaves copies of records that the log
has lost. The partition's leader epochs decide which copies count. Of those that overlap, each offset is read from one.

Source of the rules: isRemoteSegmentWithinLeaderEpochs, buildFilteredLeaderEpochMap, findHighestRemoteOffset and
findLogStartOffset of org.apache.kafka.server.log.remote.storage.RemoteLogManager (Kafka 4.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.tiered.segments import RemoteSegment, RemoteSegmentState

NO_REMOTE_OFFSET = -1


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
