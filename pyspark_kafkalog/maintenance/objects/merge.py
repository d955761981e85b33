"""Turns runs into segment objects: valid segments with indexes, by the engine of file roots.

    1  get the objects that the runs are in, each once for all partitions of the round (merge_plan.py)
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
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.objects.merge_plan import MergePlan, MergeRound
from pyspark_kafkalog.maintenance.objects.replace import replace_extents
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.objects.extents import ObjectExtents, ObjectLog
from pyspark_kafkalog.root.objects.producers import PartitionProducers, producer_snapshot
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition, partition_path
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory, Spool
from pyspark_kafkalog.tiered.own_segments import put_segment

OPERATION: Final = "merge"


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
    planned = MergeRound.of(metadata.refresh(), partitions, segment_bytes, last_object_id=last_object_id)
    if not planned.plans:
        return []
    results: list[Merged] = []
    with (
        ScratchDirectory("merge", within=scratch) as top,
        Spool(planned.ranges, top) as spool,
    ):
        for plan in planned.plans:
            merge = _PartitionMerge(metadata, objects, configs[plan.of.topic], plan, spool, clock)
            results.append(merge.put(top))
    records = [
        (plan.of, plan.record(result.segments))
        for plan, result in zip(planned.plans, results, strict=True)
        if result.segments
    ]
    made = replace_extents(metadata, objects, records, operation=OPERATION)
    return [each if each.topic_partition in made else _lost(each) for each in results]


def _lost(merged: Merged) -> Merged:
    return Merged(
        merged.topic_partition, merged.runs_count, merged.replaced_count, merged.size_bytes, error=merged.error
    )


@dataclass(frozen=True, slots=True)
class _PartitionMerge:
    """The merge of one partition, up to its commit."""

    metadata: MetadataStore
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
            producer_id_expiration_ms=broker_config(self.metadata.image).producer_id_expiration_ms,
            clock=self.clock,
            fs=flushing_file_system(LOCAL, "os"),
        )
        with log:
            log.producers.begin_at(plan.start_offset, self._producers_before(), self.clock())
            for run in self._reader().runs(plan.start_offset, plan.end_offset):
                batches = run.batches.copy()
                batches["position"] -= run.position
                epochs, firsts = np.unique(batches["leader_epoch"], return_index=True)
                for epoch, first in zip(epochs.tolist(), firsts.tolist(), strict=True):
                    log.assign_epoch(epoch, int(batches["base_offset"][first]))
                log.append(run.data, batches)
            log.roll(plan.end_offset)
            return [segment.base_offset for segment in log.segments]

    def _producers_before(self) -> list[ProducerStateEntry]:
        """The producers at the first offset: those of the segment before it, or of runs before it that were deleted."""
        plan = self.plan
        known = PartitionProducers()
        if plan.before is not None:
            known.begin_with(producer_snapshot(self.objects, plan.of, plan.before))
        known.apply(plan.batches_before)
        return [each.entry() for each in known.producers.values()]

    def _reader(self) -> LogReader:
        of = self.plan.of.topic_partition
        extents = ObjectExtents(
            lambda: self.plan.log,
            lambda: ObjectLog.of(self.metadata.refresh(), of),
            self.objects,
            through=self.spool.over,
        )
        return LogReader(extents, of)
