"""The replicas of a partition in several directories of brokers: which one is read, and where another differs from it.

*Which one.* The replica with the latest leader epoch; of those with the same the one with the highest high watermark,
then the longest log. The latest leader appended in the latest epoch, so a log that a later leader has cut off elsewhere
has an earlier epoch, however long it is. A replica whose topic was deleted and created again since (another topic id)
does not count.

*Where they differ.* Offsets below the high watermarks of two replicas are committed in both, so both have the same
records there, written in the same leader epochs. They differ only after an unclean leader election, after the
loss of a disk's last writes, or if somebody changed files. Leader epochs are compared by the replicas' small
`leader-epoch-checkpoint` files. Where these differ, the epochs in the logs' batches decide: after a power failure the
small file may be older than the log. `kafkalog verify` also compares the batches themselves.

Source of the rules: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache, KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.root.snapshot import Difference, PartitionSnapshot, ReplicaState
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry, LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT
from pyspark_kafkalog.storage.segment.extent import LocalExtent
from pyspark_kafkalog.storage.segment.reader import SegmentReader


def best_of(replicas: Iterable[PartitionSnapshot]) -> PartitionSnapshot:
    """The replica to read; the first of several that are equally good."""
    return max(replicas, key=_rank)


def _rank(found: PartitionSnapshot) -> tuple[int, int, int, int]:
    readable_end = min(found.high_watermark, found.log_end_offset)  # a damaged log ends before its high watermark
    return found.leader_epoch, readable_end, found.log_end_offset, -found.local_log_start_offset


def state_of(found: PartitionSnapshot, disk: MetaProperties, best: PartitionSnapshot) -> ReplicaState:
    """One replica, in the directory with the properties `disk`, compared with the `best` one."""
    state = ReplicaState(
        directory=found.directory,
        directory_id=disk.directory_id,
        node_id=disk.node_id,
        topic_id=found.topic_id,
        leader_epoch=found.leader_epoch,
        log_start_offset=found.log_start_offset,
        local_log_start_offset=found.local_log_start_offset,
        high_watermark=found.high_watermark,
        log_end_offset=found.log_end_offset,
        is_of_other_topic=None not in (found.topic_id, best.topic_id) and found.topic_id != best.topic_id,
    )
    if found is best or state.is_of_other_topic:
        return state
    return replace(state, difference=_difference(best, state))


def _difference(best: PartitionSnapshot, other: ReplicaState) -> Difference | None:
    """Where the leader epochs of two replicas first differ below both high watermarks; None if they do not."""
    start_offset, end_offset = other.common_offsets(best)
    ours, others = _epochs(best.directory), _epochs(other.directory)
    for offset, epoch, other_epoch in epoch_differences(ours, others, start_offset, end_offset):
        logged, other_logged = _logged_epoch(best.directory, offset), _logged_epoch(other.directory, offset)
        if logged is None or other_logged is None or logged != other_logged:
            return Difference(offset, end_offset, epoch, other_epoch)
    return None


def epoch_differences(
    ours: Sequence[EpochEntry], others: Sequence[EpochEntry], start_offset: int, end_offset: int
) -> Iterator[tuple[int, int, int]]:
    """The offsets in the range from which on the epochs differ, with both epochs.

    Entries are in order. Offsets below the first entry of one of the two are not compared: their epoch is unknown.
    """
    starts = {start_offset, *(entry.start_offset for entry in (*ours, *others))}
    for offset in sorted(each for each in starts if start_offset <= each < end_offset):
        epoch, other_epoch = _epoch_at(ours, offset), _epoch_at(others, offset)
        if epoch is not None and other_epoch is not None and epoch != other_epoch:
            yield offset, epoch, other_epoch


def _epoch_at(entries: Sequence[EpochEntry], offset: int) -> int | None:
    index = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[index - 1].epoch if index else None


def _epochs(directory: Path) -> tuple[EpochEntry, ...]:
    return LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT).entries


def _logged_epoch(directory: Path, offset: int) -> int | None:
    """The leader epoch of the batch with `offset`; None if there is none, as after a cleaning, or it is damaged."""
    bases = list_base_offsets(directory)
    index = bisect_right(bases, offset)
    if not index:
        return None
    try:
        with SegmentReader(LocalExtent(directory, bases[index - 1])) as reader:
            located = reader.locate(offset)
    except DiskFormatError:
        return None
    if located is None or not located[1].base_offset <= offset <= located[1].last_offset:
        return None
    return located[1].leader_epoch
