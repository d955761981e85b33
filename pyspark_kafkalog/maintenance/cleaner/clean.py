"""The log cleaner: compaction, which keeps the last record of each key of a compacted topic.

    begin       finish what a killed run left; segments from the cleaner's checkpoint on are dirty      plan.py
    survivors   the latest offset of each key in the dirty part                                         offset_map.py
    copy        group by group into a new segment, tombstones and markers by their horizons             copy.py
    swap        the new segment replaces the group, under the root's lock                               segments/swap.py
    finish      <root>/cleaner-offset-checkpoint stores up to where the log is clean                    run_record.py

`Cleaning` has the steps; `clean_partition` calls them in one process, `clean_spread` (job.py) in several tasks.

One run at a time works on a partition (jobs/partition_lock.py); readers and writers continue meanwhile. A crash leaves
the old segments of each group, the new one or both, and no new checkpoint: the next run finishes swaps and cleans the
rest. Source of the rules: org.apache.kafka.storage.internals.log.LogCleaner, LogCleanerManager and Cleaner.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier
from pyspark_kafkalog.maintenance.cleaner.filter import RetentionRules
from pyspark_kafkalog.maintenance.cleaner.logs import CLEAN_ACTION, active_producers, judge, with_counts
from pyspark_kafkalog.maintenance.cleaner.objects import CleanableLog, CleanerLimits, clean_log, inspect_log
from pyspark_kafkalog.maintenance.cleaner.offset_map import (
    KeyCounts,
    LogPart,
    OffsetMap,
    find_survivors,
    has_task_files,
    map_bytes,
    remove_task_files,
)
from pyspark_kafkalog.maintenance.cleaner.plan import CleanPlan, group_segments, plan_cleaning
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanOffset, store_clean_offsets
from pyspark_kafkalog.maintenance.jobs.partition_lock import partition_lock
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.tasks import Throttle
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory, remove_deleted_files
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import cleaned_offsets
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import TopicPartition, partition_path
from pyspark_kafkalog.storage.segment.recovery import check_closed_segment
from pyspark_kafkalog.storage.segment.stored import StoredSegment, closed_segments, local_extent

_LOG: Final = logging.getLogger(__name__)


def clean_partition(
    root: Root,
    topic: str,
    partition: int,
    *,
    now_ms: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    dedupe_buffer_bytes: int | None = None,
    throttle: Throttle | None = None,
    offset_map: OffsetMap | None = None,
    later: list[CleanOffset] | None = None,
) -> PartitionReport:
    """Clean one partition of a compacted topic if it is due, or, with `force`, if anything can be cleaned.

    `now_ms` is the time to use, by default the clock's. `dedupe_buffer_bytes` is by default
    log.cleaner.dedupe.buffer.size, `throttle` log.cleaner.io.max.bytes.per.second. `offset_map` is used instead of a
    new one. `later` gets what the cleaner's checkpoint should say, which is stored at once without it. With `dry_run`
    nothing changes. Errors of the partition are in the report. On an object root,
    commits replace segments (objects/clean.py). Raises ReadOnlyLogDirError for a
    broker's directory, and UnknownTopicError.
    """
    topic_partition = TopicPartition(topic, partition)
    broker = root.native().broker_config()
    now = root.native().clock() if now_ms is None else now_ms
    limits = CleanerLimits(
        buffer_bytes=dedupe_buffer_bytes or broker.log_cleaner_dedupe_buffer_size,
        load_factor=broker.log_cleaner_io_buffer_load_factor,
        throttle=throttle or Throttle(broker.log_cleaner_io_max_bytes_per_second),
    )
    objects = root.native()
    if isinstance(objects, ObjectRoot):
        return clean_log(
            objects, topic_partition, limits, now_ms=now, force=force, dry_run=dry_run, offset_map=offset_map
        )
    native = on_file_system(root)
    native.refresh()
    native.partition(topic, partition)
    began = time.perf_counter()
    report = empty_report(topic_partition, CLEAN_ACTION)
    cleaning = Cleaning(
        root=native,
        topic_partition=topic_partition,
        now_ms=now,
        buffer_bytes=limits.buffer_bytes,
        load_factor=limits.load_factor,
        throttle=limits.throttle,
        later=later,
    )
    try:
        if not has_directory(native, topic_partition):
            return replace(report, skipped="nothing was ever written to it")
        if dry_run:
            found = cleaning.inspect()
            judged = judge(report, found.plan, found.config, force=force)
            if judged.skipped is None:
                check_segments(found)
            return judged
        with partition_lock(cleaning.directory, fs=native.fs) as is_mine:
            if not is_mine:
                return left_to_another_run(topic_partition, CLEAN_ACTION)
            report = _clean(cleaning, report, force=force, offset_map=offset_map)
    except (KafkalogError, OSError) as error:
        _LOG.warning("%s: cleaning failed: %s", topic_partition, error)
        report = replace(report, error=str(error))
    return replace(report, seconds=time.perf_counter() - began)


def _clean(
    cleaning: Cleaning, report: PartitionReport, *, force: bool, offset_map: OffsetMap | None
) -> PartitionReport:
    """The whole cleaning, in this process."""
    report, found = cleaning.begin(report, force=force)
    if report.skipped is None:
        part = cleaning.part(found)
        survivors, keys = find_survivors(part, offset_map or cleaning.new_map(found.plan))
        transactions = part.transactions()
        copier = GroupCopier(
            part, survivors, cleaning.rules(found), transactions, found.config, found.directory, cleaning.root.fs
        )
        groups = cleaning.groups(found)
        counts = CopyCounts()
        for group in groups:
            counts = counts.plus(copier.copy(group))
            cleaning.target(found).swap(group[0].base_offset, [each.base_offset for each in group])
        report = cleaning.finish(report, found, counts, groups=len(groups), keys=keys)
    cleaning.remove_deleted()
    return report


@dataclass(frozen=True, slots=True)
class CleanablePartition:
    """A partition with its cleaning plan; `topic_id` distinguishes its topic from a re-created one."""

    topic_partition: TopicPartition
    topic_id: str
    directory: Path
    state: LogState
    config: LogConfig
    plan: CleanPlan
    planned_at: int
    #: Whether a cleaning finds its directory, and nothing there to finish or remove before or after it.
    is_tidy: bool


def inspect_partition(
    root: FileRoot, topic_partition: TopicPartition, checkpoint_offset: int | None, now_ms: int
) -> CleanablePartition:
    """The partition and its cleaning plan, as of the root's last refresh. Raises DiskFormatError, OSError."""
    topic = root.store.image.topic(topic_partition.topic)
    state = root.store.image.partition(topic_partition.topic, topic_partition.partition).state
    directory = partition_path(root.path, topic_partition)
    config = root.log_config(topic_partition.topic)
    listing: PartitionListing | None = None
    with contextlib.suppress(FileNotFoundError):
        listing = PartitionListing.read(directory)
    closed = (
        []
        if listing is None
        else closed_segments(directory, state.active_base_offset, with_index_sizes=True, listing=listing)
    )
    plan = plan_cleaning(
        closed,
        state,
        config,
        checkpoint_offset=checkpoint_offset,
        now_ms=now_ms,
        largest_timestamp_ms=lambda segment: segment.largest_timestamp_ms(directory),
        first_timestamp_ms=lambda segment: segment.first_timestamp_ms(directory),
    )
    planned_at = root.store.image.next_offset
    is_tidy = listing is not None and listing.is_tidy and not has_task_files(listing) and not plan.resets_checkpoint
    return CleanablePartition(topic_partition, topic.topic_id, directory, state, config, plan, planned_at, is_tidy)


def check_segments(found: CleanablePartition) -> None:
    """Check the batches that a cleaning would read, for a dry run. Raises CorruptRecordError."""
    for segment in found.plan.segments:
        check_closed_segment(found.directory, segment, are_crcs_checked=True)


def inspection(root: Root, now_ms: int) -> Callable[[TopicPartition], CleanablePartition | CleanableLog]:
    """The function that plans the cleaning of a partition."""
    native = root.native()
    if isinstance(native, ObjectRoot):
        return partial(inspect_log, native, now_ms=now_ms)
    files = on_file_system(root)
    checkpoint = cleaned_offsets(files.path)
    return lambda each: inspect_partition(files, each, checkpoint.get(each), now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """One cleaning of one partition. The caller holds its maintenance lock."""

    root: FileRoot
    topic_partition: TopicPartition
    now_ms: int
    buffer_bytes: int
    load_factor: float
    throttle: Throttle
    #: Gets the lines of the checkpoint, for the caller to store; None: they are stored at once.
    later: list[CleanOffset] | None = None

    @property
    def directory(self) -> Path:
        """The directory of the partition."""
        return partition_path(self.root.path, self.topic_partition)

    def inspect(self) -> CleanablePartition:
        """The current cleaning plan."""
        self.root.refresh()
        checkpoint_offset = cleaned_offsets(self.root.path).get(self.topic_partition)
        return inspect_partition(self.root, self.topic_partition, checkpoint_offset, self.now_ms)

    def begin(self, report: PartitionReport, *, force: bool) -> tuple[PartitionReport, CleanablePartition]:
        """Finish what a killed run left, then plan; the report has the results of `judge`."""
        found = self.inspect()
        if found.config.compact and not found.is_tidy:
            self.target(found).finish()
            remove_task_files(self.directory, fs=self.root.fs)
            found = self.inspect()  # finished swaps change the segments
            if found.plan.resets_checkpoint:
                self._note_clean(found, found.plan.first_dirty_offset)
        return judge(report, found.plan, found.config, force=force), found

    def target(self, found: CleanablePartition) -> SwapTarget:
        """The partition as the target of swaps."""
        return SwapTarget(self.root, self.topic_partition, found.topic_id, found.config, self.now_ms, found.planned_at)

    def part(self, found: CleanablePartition) -> LogPart:
        """The part of the log to read, with a new seed for the hash of keys."""
        plan = found.plan
        return LogPart(
            extent_of=partial(local_extent, found.directory),
            segments=plan.segments,
            first_dirty_offset=plan.first_dirty_offset,
            end_offset=plan.first_uncleanable_offset,
            aborted=LocalExtents(found.directory).indexed_transactions(
                plan.segments[0].base_offset if plan.segments else 0, plan.first_uncleanable_offset
            ),
            seed=np.frombuffer(os.urandom(16), np.uint64),
            now_ms=self.now_ms,
            throttle=self.throttle,
            record_max_bytes=found.config.max_decompressed_message_bytes,
        )

    def groups(self, found: CleanablePartition) -> list[tuple[StoredSegment, ...]]:
        """The groups of segments, in order; each becomes one segment."""
        plan = found.plan
        return group_segments(plan.segments, found.config, first_uncleanable_offset=plan.first_uncleanable_offset)

    def map_bytes(self, plan: CleanPlan) -> int:
        """The size of the map that the plan needs, within the buffer."""
        return map_bytes(plan, self.buffer_bytes, self.load_factor)

    def new_map(self, plan: CleanPlan) -> OffsetMap:
        """An empty map for the plan, within the buffer."""
        return OffsetMap(self.map_bytes(plan), self.load_factor)

    def rules(self, found: CleanablePartition) -> RetentionRules:
        """The parameters of the filter."""
        return RetentionRules(
            now_ms=self.now_ms,
            delete_retention_ms=found.config.delete_retention_ms,
            end_offset=found.plan.first_uncleanable_offset,
            producers=active_producers(
                found.directory,
                found.state,
                now_ms=self.now_ms,
                expiration_ms=self.root.broker_config().producer_id_expiration_ms,
            ),
        )

    def finish(
        self, report: PartitionReport, found: CleanablePartition, counts: CopyCounts, *, groups: int, keys: KeyCounts
    ) -> PartitionReport:
        """After all groups are swapped in: note it for the checkpoint and complete the report."""
        self._note_clean(found, found.plan.first_uncleanable_offset)
        return with_counts(report, counts, segments=len(found.plan.segments) - groups, keys=keys)

    def remove_deleted(self) -> None:
        """Remove `.deleted` files whose delay is over."""
        delay_ms = self.root.log_config(self.topic_partition.topic).file_delete_delay_ms
        remove_deleted_files(self.directory, now_ms=self.now_ms, delay_ms=delay_ms, fs=self.root.fs)

    def _note_clean(self, found: CleanablePartition, offset: int) -> None:
        """Note that the partition is clean below `offset`. Raises UnknownTopicError for a topic deleted meanwhile."""
        self.target(found).state_now()
        clean = CleanOffset(self.topic_partition, found.topic_id, found.planned_at, offset)
        if self.later is None:
            store_clean_offsets(self.root, [clean])
        else:
            self.later.append(clean)
