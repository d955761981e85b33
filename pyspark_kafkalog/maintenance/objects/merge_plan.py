"""Plans merges by object: which partitions one task merges, and which runs one round of it takes.

A write puts the runs of all its partitions into one object, sorted by partition. So neighbours in that order are merged
by one task, which gets each object once, or the part of it that holds their runs (storage/objects/spool.py). Large work
is divided among tasks by slices of that order; each then gets its own part of the objects.

    task     a slice of the partitions, about equal in bytes; one for all below `TASK_BYTES`
    round    of a task: runs in the oldest objects, so many that they take at most `ROUND_BYTES` of scratch space
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.maintenance.objects.replace import segments_record
from pyspark_kafkalog.maintenance.objects.stored import topic_id_partition
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.root.objects.extents import ObjectLog
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import TABLE_ENTRY_BYTES
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import MIB

#: The runs of a round take at most this much scratch space, or those of one object.
ROUND_BYTES: Final = 1024 * MIB
#: A task for each, if there are cores for them.
TASK_BYTES: Final = 256 * MIB
#: A range that is mostly of other tasks' partitions is not worth getting as a whole.
_WASTE_MAX: Final = 2
_WASTE_BYTES_MAX: Final = MIB


def merge_tasks(
    image: MetadataImage, partitions: Sequence[TopicPartition], tasks_max: int
) -> list[Sequence[TopicPartition]]:
    """`partitions`, which have runs or not, for at most `tasks_max` tasks."""
    ordered = sorted(partitions)
    sizes = [image.partition(each.topic, each.partition).runs.size_bytes for each in ordered]
    total = sum(sizes)
    count = max(min(tasks_max, -(-total // TASK_BYTES)), 1)
    slices: list[list[TopicPartition]] = [[] for _ in range(count)]  # bounded: a setting
    done = 0
    for each, size_bytes in zip(ordered, sizes, strict=True):
        middle = done + size_bytes // 2
        slices[min(middle * count // max(total, 1), count - 1)].append(each)
        done += size_bytes
    return [each for each in slices if each]


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The extents to replace: the last `replaced` segments of the partition, then its first `runs_count` runs.

    `before` is the segment ahead of them, None without one; `batches_before` are batches of producers in runs that were
    deleted (metadata/extents.ProducerBatches). `epochs` are the leader epochs of the whole log, `log` is
    what the merge reads.
    """

    of: TopicIdPartition
    log: ObjectLog
    before: SegmentObject | None
    replaced: tuple[SegmentObject, ...]
    runs_count: int
    start_offset: int
    end_offset: int
    size_bytes: int
    epochs: tuple[EpochEntry, ...]
    planned_at: int
    batches_before: NDArray[np.void]

    @staticmethod
    def of_partition(
        image: MetadataImage, topic_partition: TopicPartition, segment_bytes: int, *, last_object_id: int | None = None
    ) -> MergePlan | None:
        """The merge of its runs in objects up to that one; None if it has none there. Raises UnknownTopicError."""
        partition = image.partition(topic_partition.topic, topic_partition.partition)
        rows = partition.runs.table
        runs_count = len(rows)
        if last_object_id is not None:
            runs_count = int(np.searchsorted(rows["object_id"], last_object_id, side="right"))
        if not runs_count:
            return None
        size_bytes = int(rows["size_bytes"][:runs_count].sum(dtype=np.int64))
        segments = partition.segments
        first = len(segments)
        while first and _is_merged_again(segments[first - 1], size_bytes, segment_bytes):
            first -= 1
            size_bytes += segments[first].size_bytes
        replaced = segments[first:]
        start_offset = replaced[0].base_offset if replaced else int(rows["base_offset"][0])
        end_offset = int(rows["end_offset"][runs_count - 1])
        batches = partition.producer_batches.table
        return MergePlan(
            topic_id_partition(image, topic_partition),
            ObjectLog.of(image, topic_partition).part(start_offset, end_offset, committed=False),
            segments[first - 1] if first else None,
            replaced,
            runs_count,
            start_offset,
            end_offset,
            size_bytes,
            tuple(leader_epochs(partition)),
            image.next_offset,
            batches[batches["last_offset"] < start_offset],
        )

    def record(self, segments: Sequence[SegmentObject]) -> SegmentObjectsRecord:
        """The record with which `segments` replace the extents."""
        return segments_record(self.of, self.planned_at, self.replaced, segments, replaced_runs=self.runs_count)


@dataclass(frozen=True, slots=True)
class MergeRound:
    """Merges of several partitions that read the same objects, and the range of each object to get."""

    plans: tuple[MergePlan, ...]
    ranges: Mapping[int, ByteRange]

    @staticmethod
    def of(
        image: MetadataImage,
        partitions: Sequence[TopicPartition],
        segment_bytes: Mapping[str, int],
        *,
        last_object_id: int | None = None,
    ) -> MergeRound:
        """The next round of the partitions that exist, with segment.bytes by topic; no plans if none has runs.

        Runs in objects after `last_object_id` are left out.
        """
        there = [each for each in partitions if image.find(each.topic, each.partition) is not None]
        runs = [image.partition(each.topic, each.partition).runs.table for each in there]
        if last_object_id is not None:
            runs = [rows[rows["object_id"] <= last_object_id] for rows in runs]
        last_object_id = _last_of_round(runs)
        planned = (
            MergePlan.of_partition(image, each, segment_bytes[each.topic], last_object_id=last_object_id)
            for each in there
        )
        plans = tuple(each for each in planned if each is not None)
        return MergeRound(plans, _ranges([each.log.runs.table for each in plans]))


def _is_merged_again(segment: SegmentObject, following_bytes: int, segment_bytes: int) -> bool:
    is_small = segment.size_bytes < segment_bytes // 2
    return is_small and not segment.is_cleaned and segment.size_bytes <= 2 * following_bytes


def _last_of_round(runs: Sequence[NDArray[np.void]]) -> int:
    """The last object whose runs, with those in all before it, fit into a round; -1 without a run."""
    if not any(map(len, runs)):
        return -1
    ids, owners = np.unique(np.concatenate([each["object_id"] for each in runs]), return_inverse=True)
    ends = np.cumsum(np.bincount(owners, np.concatenate([each["size_bytes"] for each in runs])))
    count = max(int(np.searchsorted(ends, ROUND_BYTES, side="right")), 1)
    return int(ids[min(count, len(ids)) - 1])


def _ranges(runs: Sequence[NDArray[np.void]]) -> dict[int, ByteRange]:
    """Of each object that holds several of the runs the range with all of them, unless it is mostly something else."""
    found: dict[int, tuple[int, int, int, int]] = {}
    for rows in runs:
        ends = rows["position"] + rows["size_bytes"] + rows["batches_count"] * np.int64(TABLE_ENTRY_BYTES)
        for object_id, start, end in zip(
            rows["object_id"].tolist(), rows["position"].tolist(), ends.tolist(), strict=True
        ):
            first, last, wanted, count = found.get(object_id, (start, end, 0, 0))
            found[object_id] = min(first, start), max(last, end), wanted + end - start, count + 1
    return {
        object_id: ByteRange(first, last - first)
        for object_id, (first, last, wanted, count) in found.items()
        if count > 1 and last - first <= _WASTE_MAX * wanted + _WASTE_BYTES_MAX
    }


def leader_epochs(partition: PartitionImage) -> Iterator[EpochEntry]:
    """The leader epochs of a partition of an object root, each with the first offset that its extents have of it."""
    last = -1
    for segment in partition.segments:
        for each in segment.leader_epochs:
            if each.leader_epoch > last:
                yield EpochEntry(each.leader_epoch, each.start_offset)
                last = each.leader_epoch
    epochs, firsts = np.unique(partition.runs.table["leader_epoch"], return_index=True)
    for epoch, first in zip(epochs.tolist(), firsts.tolist(), strict=True):
        if epoch > last:
            yield EpochEntry(epoch, int(partition.runs.table["base_offset"][first]))
            last = epoch
