"""Turns runs into segment objects: valid segments with indexes, by the engine of file roots.

    1  get the objects that the runs are in, each once for all partitions of the round
    2  append the batches of a partition's runs, and of the small segments before them, to a log in a scratch directory:
       it rolls, indexes and snapshots producers as a log of a file root does
    3  put each of its segments: `.log`, `.indexes`, `.rsm-manifest` (tiered/own_segments.py)
    4  commit, for all partitions of the round, that these segments replace those extents, where they are as they were

Readers keep using the old objects, which remain for file.delete.delay.ms. Of two merges of the same runs the second
one's commit leaves them out, and it deletes what it has put for them. A kill before step 4 leaves objects that no
commit names; the clean-up deletes them. Nothing is locked. A partition that fails has no part in the commit.

A segment of less than half of segment.bytes is merged again with the runs after it, if it is at most twice as large as
all that follows: so what is merged often is small. One that the cleaner has cleaned stays as it is, since the cleaned
part of the log ends with it (cleaner/clean.py).

A write puts the runs of all its partitions into one object, sorted by partition. So neighbours in that order are merged
by one task, which gets each object once, or the part of it that holds their runs (storage/objects/spool.py). Large work
is divided among tasks by slices of that order; each then gets its own part of the objects.

    task     a slice of the partitions, about equal in bytes; one for all below `TASK_BYTES`
    round    of a task: runs in the oldest objects, so many that they take at most `ROUND_BYTES` of scratch space

`MergedObjects` is the backend of the job merge-segments: it merges until no run is left.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report
from pyspark_kafkalog.maintenance.jobs.runner import even_slices
from pyspark_kafkalog.maintenance.objects.clean_up import finish_job
from pyspark_kafkalog.maintenance.objects.segments import append_run, replace_extents, segments_record
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.store import ByteRange, ObjectStore
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_producers import producers_below
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.reads import leader_epochs
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition, partition_path
from pyspark_kafkalog.storage.objects.data_object import TABLE_ENTRY_BYTES
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory, Spool
from pyspark_kafkalog.tiered.own_segments import put_segment
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import MIB

_LOG: Final = logging.getLogger(__name__)

OPERATION: Final = "merge"
#: The action of the reports of a merge.
MERGE_ACTION: Final = "merge-segments"

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
    count = max(min(tasks_max, -(-sum(sizes) // TASK_BYTES)), 1)
    return [ordered[first:end] for first, end in even_slices(sizes, count)]


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The extents to replace: the last `replaced` segments of the partition, then its first `runs_count` runs.

    `epochs` are the leader epochs of the whole log, `log` is what the merge reads.
    """

    of: TopicIdPartition
    log: ObjectLog
    replaced: tuple[SegmentObject, ...]
    runs_count: int
    start_offset: int
    end_offset: int
    size_bytes: int
    epochs: tuple[EpochEntry, ...]
    planned_at: int

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
        log = ObjectLog.of(image, topic_partition)
        return MergePlan(
            log.topic_id_partition,
            log.part(start_offset, end_offset, committed=False),
            replaced,
            runs_count,
            start_offset,
            end_offset,
            size_bytes,
            tuple(leader_epochs(partition)),
            image.next_offset,
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


@dataclass(frozen=True, slots=True)
class Merged:
    """What one merge did: `segments` now hold the bytes of so many runs and earlier segments.

    No segments: another merge was faster, or retention has dropped the runs; or the merge failed with `error`.
    """

    topic_partition: TopicPartition
    runs_count: int
    replaced_count: int
    size_bytes: int
    segments: tuple[SegmentObject, ...] = ()
    error: Exception | None = None


def merge_partition(
    metadata: MetadataStore,
    objects: ObjectStore,
    config: LogConfig,
    topic_partition: TopicPartition,
    *,
    clock: Callable[[], int],
    last_object_id: int | None = None,
    scratch: Path | None = None,
) -> Merged | None:
    """Merge the runs of a partition, at most ROUND_BYTES of them; None if it has none.

    `config` is the topic's. Runs in objects after `last_object_id` are left out. `scratch` is a directory of this
    machine (None: that for temporary files).

    Raises UnknownTopicError, ObjectStoreError, OffsetOutOfRangeError for a missing object, DiskFormatError for damage
    in one: all is as before then, but for objects that the clean-up deletes.
    """
    metadata.refresh().topic(topic_partition.topic)
    configs = {topic_partition.topic: config}
    for merged in merge_round(
        metadata, objects, configs, [topic_partition], clock=clock, last_object_id=last_object_id, scratch=scratch
    ):
        if merged.error is not None:
            raise merged.error
        return merged
    return None


def merge_round(
    metadata: MetadataStore,
    objects: ObjectStore,
    configs: Mapping[str, LogConfig],
    partitions: Sequence[TopicPartition],
    *,
    clock: Callable[[], int],
    last_object_id: int | None = None,
    scratch: Path | None = None,
) -> list[Merged]:
    """Merge runs of the partitions that are in the same objects; one result for each partition that has some there.

    `configs` are those of the topics. Runs in objects after `last_object_id` are left out. Errors of a partition are in
    its result; raises those of the commit.
    """
    segment_bytes = {topic: config.segment_bytes for topic, config in configs.items()}
    image = metadata.refresh()
    planned = MergeRound.of(image, partitions, segment_bytes, last_object_id=last_object_id)
    if not planned.plans:
        return []
    results: list[Merged] = []
    with ScratchDirectory("merge", within=scratch) as top, Spool(planned.ranges, top) as spool:
        for plan in planned.plans:
            merge = _PartitionMerge(metadata, image, objects, configs[plan.of.topic], plan, spool, clock)
            results.append(merge.put(top))
    records = [
        (plan.of, plan.record(result.segments))
        for plan, result in zip(planned.plans, results, strict=True)
        if result.segments
    ]
    made = replace_extents(metadata, objects, records, operation=OPERATION)
    return [each if each.topic_partition in made else replace(each, segments=()) for each in results]


@dataclass(frozen=True, slots=True)
class _PartitionMerge:
    """The merge of one partition, planned on `image`, up to its commit."""

    metadata: MetadataStore
    image: MetadataImage
    objects: ObjectStore
    config: LogConfig
    plan: MergePlan
    spool: Spool
    clock: Callable[[], int]

    def put(self, scratch: Path) -> Merged:
        """Build the segments and put them."""
        plan = self.plan
        of = plan.of.topic_partition
        directory = partition_path(scratch, of)
        directory.mkdir()
        try:
            segments = tuple(self._put(directory))
        except (KafkalogError, OSError) as error:
            return Merged(of, plan.runs_count, len(plan.replaced), plan.size_bytes, error=error)
        finally:
            shutil.rmtree(directory)
        return Merged(of, plan.runs_count, len(plan.replaced), plan.size_bytes, segments)

    def _put(self, directory: Path) -> Iterator[SegmentObject]:
        for base_offset, end_offset in pairwise(self._build(directory)):
            yield put_segment(
                self.objects,
                self.plan.of,
                directory,
                base_offset,
                end_offset,
                epochs=self.plan.epochs,
                segment_id=new_segment_id(self.plan.planned_at),
                now_ms=self.clock(),
            )

    def _build(self, directory: Path) -> list[int]:
        """Append the batches of the extents to a log in `directory`; its base offsets, the last of an empty segment."""
        plan = self.plan
        log = UnifiedLog.open(
            directory,
            self.config,
            log_start_offset=plan.start_offset,
            clean_shutdown=True,
            producer_id_expiration_ms=broker_config(self.image).producer_id_expiration_ms,
            clock=self.clock,
            fs=flushing_file_system(LOCAL, "os"),
        )
        with log:
            before = producers_below(self.image, self.objects, plan.of.topic_partition, plan.start_offset)
            log.producers.begin_at(
                plan.start_offset, [each.entry() for each in before.producers.values()], self.clock()
            )
            for run in self._reader().runs(plan.start_offset, plan.end_offset):
                append_run(log, run)
            log.roll(plan.end_offset)
            return [segment.base_offset for segment in log.segments]

    def _reader(self) -> LogReader:
        of = self.plan.of.topic_partition
        extents = self.plan.log.extents(
            self.objects, lambda: ObjectLog.of(self.metadata.refresh(), of), through=self.spool.over
        )
        return LogReader(extents, of)


@dataclass(frozen=True, slots=True)
class MergedObjects:
    """The logs of a root in an object store, for merge-segments: runs become segments."""

    root: ObjectRoot

    def merge(self, partitions: Sequence[TopicPartition], *, dry_run: bool) -> list[PartitionReport]:
        """One report each: bytes merged, and the reduction in runs and segments.

        Its time is an equal share of that of all: the partitions of a round are merged together.
        """
        root = self.root
        began = time.perf_counter()
        reports = {each: empty_report(each, MERGE_ACTION) for each in partitions}
        configs = {each.topic: root.log_config(each.topic) for each in partitions}
        image = root.store.refresh()
        if dry_run:
            for each in partitions:
                plan = MergePlan.of_partition(image, each, configs[each.topic].segment_bytes)
                if plan is not None:
                    reports[each] = _tried(root, plan, reports[each])
        else:
            for merged in _merge(root, configs, partitions, image.objects.last_id):
                reports[merged.topic_partition] = _added(reports[merged.topic_partition], merged)
        seconds = (time.perf_counter() - began) / max(len(reports), 1)
        return [replace(each, seconds=seconds) for each in reports.values()]

    def bytes_to_merge(self, topic_partition: TopicPartition) -> int:
        partition = self.root.store.image.find(topic_partition.topic, topic_partition.partition)
        return 0 if partition is None else partition.runs.size_bytes

    def groups(self, partitions: Sequence[TopicPartition], slots: int) -> list[Sequence[TopicPartition]]:
        return merge_tasks(self.root.store.image, partitions, slots)

    def end_run(self) -> None:
        finish_job(self.root)


def _tried(root: ObjectRoot, plan: MergePlan, report: PartitionReport) -> PartitionReport:
    """The report of a merge that is not made: its batches are read, as a merge reads them."""
    of = plan.of.topic_partition
    extents = plan.log.extents(root.objects, lambda: ObjectLog.of(root.store.refresh(), of))
    try:
        for _ in LogReader(extents, of).runs(plan.start_offset, plan.end_offset):
            pass
    except (KafkalogError, OSError) as failure:
        return replace(report, error=str(failure))
    return replace(report, bytes_read=plan.size_bytes, bytes_kept=plan.size_bytes)


def _merge(
    root: ObjectRoot, configs: Mapping[str, LogConfig], partitions: Sequence[TopicPartition], last_object_id: int
) -> Iterator[Merged]:
    """The merges of all runs that there are up to that object, round by round."""
    left = list(partitions)
    while True:
        try:
            merged = merge_round(
                root.store, root.objects, configs, left, clock=root.clock, last_object_id=last_object_id
            )
        except (KafkalogError, OSError) as failure:  # of the commit, so of all
            yield from (Merged(each, 0, 0, 0, error=failure) for each in left)
            return
        if not merged:
            return
        yield from merged
        ended = {each.topic_partition for each in merged if not each.segments}
        left = [each for each in left if each not in ended]


def _added(report: PartitionReport, merged: Merged) -> PartitionReport:
    """The report of a partition with one more merge of it."""
    if merged.error is not None:
        _LOG.warning("%s: %s failed: %s", merged.topic_partition, report.action, merged.error)
        return replace(report, error=str(merged.error))
    if not merged.segments:
        return report
    dropped = report.segments_dropped + merged.runs_count + merged.replaced_count - len(merged.segments)
    size_bytes = report.bytes_read + merged.size_bytes
    return replace(report, bytes_read=size_bytes, bytes_kept=size_bytes, segments_dropped=max(dropped, 0))
