"""Turns the runs of a partition into segment objects: valid segments with indexes, by the engine of file roots.

    1  read the runs, and the small segments before them, and append their batches to a log in a scratch directory:
       it rolls, indexes and snapshots producers as a log of a file root does
    2  put each of its segments: `.log`, `.indexes`, `.rsm-manifest` (tiered/own_segments.py)
    3  commit that these segments replace those extents, if they are still there as they were

Readers go on with the old objects, which remain for file.delete.delay.ms. Of two merges of the same runs the second
one's commit is not made, and it deletes what it has put. A kill before step 3 leaves objects that no commit names; the
clean-up deletes them. Nothing is locked.

A segment of less than half of segment.bytes is merged again with the runs after it, if it is at most twice as large as
all that follows: so what is merged often is small. One that the cleaner has cleaned stays as it is, since the cleaned
part of the log ends with it (clean.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.objects.replace import replace_extents, segments_record
from pyspark_kafkalog.maintenance.objects.stored import topic_id_partition
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.objects.extents import ObjectExtents, ObjectLog
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import PRODUCER_SNAPSHOT_SUFFIX, TopicPartition, segment_file
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import SegmentObjectExtent, new_segment_id, put_segment
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import MIB

OPERATION: Final = "merge"
#: The runs of one merge take at most this much scratch space, or one of them.
MERGE_BYTES: Final = 2048 * MIB


@dataclass(frozen=True, slots=True)
class Merged:
    """What one merge did: `segments` now hold the bytes of so many runs and earlier segments.

    No segments: another merge was faster, or retention has dropped the runs.
    """

    topic_partition: TopicPartition
    runs_count: int
    replaced_count: int
    size_bytes: int
    segments: tuple[SegmentObject, ...]


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The extents to replace: the last `replaced` segments of the partition, then its first `runs_count` runs.

    `before` is the segment ahead of them, None without one. `epochs` are the leader epochs of the whole log.
    """

    of: TopicIdPartition
    before: SegmentObject | None
    replaced: tuple[SegmentObject, ...]
    runs_count: int
    start_offset: int
    end_offset: int
    size_bytes: int
    epochs: tuple[EpochEntry, ...]
    planned_at: int

    @staticmethod
    def of_partition(image: MetadataImage, topic_partition: TopicPartition, segment_bytes: int) -> MergePlan | None:
        """The next merge of the partition; None if it has no runs. Raises UnknownTopicError."""
        partition = image.partition(topic_partition.topic, topic_partition.partition)
        rows = partition.runs.table
        if not len(rows):
            return None
        ends = np.cumsum(rows["size_bytes"], dtype=np.int64)
        runs_count = max(int(np.searchsorted(ends, MERGE_BYTES, side="right")), 1)
        size_bytes = int(ends[runs_count - 1])
        segments = partition.segments
        first = len(segments)
        while first and _is_merged_again(segments[first - 1], size_bytes, segment_bytes):
            first -= 1
            size_bytes += segments[first].size_bytes
        replaced = segments[first:]
        return MergePlan(
            topic_id_partition(image, topic_partition),
            segments[first - 1] if first else None,
            replaced,
            runs_count,
            replaced[0].base_offset if replaced else int(rows["base_offset"][0]),
            int(rows["end_offset"][runs_count - 1]),
            size_bytes,
            tuple(leader_epochs(partition)),
            image.next_offset,
        )

    def record(self, segments: Sequence[SegmentObject]) -> SegmentObjectsRecord:
        """The record with which `segments` replace the extents."""
        return segments_record(self.of, self.planned_at, self.replaced, segments, replaced_runs=self.runs_count)


def _is_merged_again(segment: SegmentObject, following_bytes: int, segment_bytes: int) -> bool:
    is_small = segment.size_bytes < segment_bytes // 2
    return is_small and not segment.is_cleaned and segment.size_bytes <= 2 * following_bytes


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


def merge_partition(
    metadata: MetadataStore,
    objects: ObjectStore,
    config: LogConfig,
    topic_partition: TopicPartition,
    *,
    clock: Callable[[], int],
    scratch: Path | None = None,
) -> Merged | None:
    """Merge the runs of a partition, at most MERGE_BYTES of them; None if it has none.

    `config` is the topic's, `scratch` a directory of this machine (None: that for temporary files).

    Raises UnknownTopicError, ObjectStoreError, OffsetOutOfRangeError for a missing object, DiskFormatError for damage
    in one: all is as before then, but for objects that the clean-up deletes.
    """
    plan = MergePlan.of_partition(metadata.refresh(), topic_partition, config.segment_bytes)
    if plan is None:
        return None
    with tempfile.TemporaryDirectory(prefix="kafkalog-merge-", dir=scratch) as top:
        directory = Path(top) / str(topic_partition)
        directory.mkdir()
        bases = _build_segments(metadata, objects, config, plan, directory, clock)
        segments = [
            put_segment(
                objects,
                plan.of,
                directory,
                base_offset,
                end_offset,
                epochs=plan.epochs,
                segment_id=new_segment_id(plan.planned_at),
                now_ms=clock(),
            )
            for base_offset, end_offset in pairwise(bases)
        ]
    is_made = replace_extents(metadata, objects, plan.of, plan.record(segments), operation=OPERATION)
    made = tuple(segments) if is_made else ()
    return Merged(topic_partition, plan.runs_count, len(plan.replaced), plan.size_bytes, made)


def merge_all(
    metadata: MetadataStore,
    objects: ObjectStore,
    config: LogConfig,
    topic_partition: TopicPartition,
    *,
    clock: Callable[[], int],
) -> Iterator[Merged]:
    """Merge the runs of a partition until none is left, or another run does it; see `merge_partition`."""
    while True:
        merged = merge_partition(metadata, objects, config, topic_partition, clock=clock)
        if merged is None or not merged.segments:
            return
        yield merged


def _build_segments(
    metadata: MetadataStore,
    objects: ObjectStore,
    config: LogConfig,
    plan: MergePlan,
    directory: Path,
    clock: Callable[[], int],
) -> list[int]:
    """Append the batches of the extents to a log in `directory`; its base offsets, the last of an empty segment."""
    if plan.before is not None:
        snapshot = SegmentObjectExtent(objects, plan.of, plan.before).index(IndexKind.PRODUCER_SNAPSHOT)
        segment_file(directory, plan.start_offset, PRODUCER_SNAPSHOT_SUFFIX).write_bytes(bytes(snapshot))
    log = UnifiedLog.open(
        directory,
        config,
        log_start_offset=plan.start_offset,
        clean_shutdown=True,
        clock=clock,
        fs=flushing_file_system(LOCAL, "os"),
    )
    with log:
        for run in _reader(metadata, objects, plan).runs(plan.start_offset, plan.end_offset):
            batches = run.batches.copy()
            batches["position"] -= run.position
            epochs, firsts = np.unique(batches["leader_epoch"], return_index=True)
            for epoch, first in zip(epochs.tolist(), firsts.tolist(), strict=True):
                log.assign_epoch(epoch, int(batches["base_offset"][first]))
            log.append(run.data, batches)
        log.roll(plan.end_offset)
        return [segment.base_offset for segment in log.segments]


def _reader(metadata: MetadataStore, objects: ObjectStore, plan: MergePlan) -> LogReader:
    def present() -> ObjectLog:
        return ObjectLog.of(metadata.image, plan.of.topic_partition)

    def refreshed() -> ObjectLog:
        return ObjectLog.of(metadata.refresh(), plan.of.topic_partition)

    return LogReader(ObjectExtents(present, refreshed, objects), plan.of.topic_partition)
