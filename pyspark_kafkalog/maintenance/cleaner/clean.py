"""The log cleaner: compaction, which keeps the last record of each key of a compacted topic.

    plan        closed segments from the cleaner's checkpoint on are dirty                       clean_plan.py
    map         the latest offset of each key in the dirty part                                  survivors.py
    recopy      group by group into a new segment, tombstones and markers by their horizons      group_recopy.py
    swap        the new segment replaces the group, under the root's lock                        segment_swap.py
    checkpoint  <root>/cleaner-offset-checkpoint stores the offset up to which the log is clean

One run at a time works on a partition (partition_lock.py); readers and writers continue meanwhile. A crash leaves the
old segments of each group, the new one or both, and no new checkpoint: the next run finishes swaps and cleans the rest.
Source of the rules: org.apache.kafka.storage.internals.log.LogCleaner, LogCleanerManager and Cleaner.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.cleaned_transactions import CleanedTransactions
from pyspark_kafkalog.maintenance.cleaner.cleaning import ACTION, Cleaning, judge
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier
from pyspark_kafkalog.maintenance.cleaner.offset_map import OffsetMap
from pyspark_kafkalog.maintenance.cleaner.survivors import find_survivors
from pyspark_kafkalog.maintenance.jobs.partition_lock import partition_lock
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.throttle import Throttle
from pyspark_kafkalog.maintenance.segments.stored_segments import has_directory
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)


def clean_partition(
    log_dir: LogDir,
    topic: str,
    partition: int,
    *,
    now_ms: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    dedupe_buffer_bytes: int | None = None,
    throttle: Throttle | None = None,
    offset_map: OffsetMap | None = None,
) -> PartitionReport:
    """Clean one partition of a compacted topic if it is due, or, with `force`, if anything can be cleaned.

    `now_ms` is the time to use, by default the clock's. `dedupe_buffer_bytes` is by default
    log.cleaner.dedupe.buffer.size, `throttle` log.cleaner.io.max.bytes.per.second. `offset_map` is used instead of a
    new one. With `dry_run` nothing changes. Errors of the partition are in the report. Raises ReadOnlyLogDirError for a
    broker's directory, and UnknownTopicError.
    """
    root = log_dir.own_root()
    root.refresh()
    where = TopicPartition(topic, partition)
    root.partition(where)
    began = time.perf_counter()
    now = root.clock() if now_ms is None else now_ms
    broker = root.broker_config()
    report = PartitionReport(topic=topic, partition=partition, action=ACTION)
    cleaning = Cleaning(
        root=root,
        where=where,
        now_ms=now,
        buffer_bytes=dedupe_buffer_bytes or broker.log_cleaner_dedupe_buffer_size,
        load_factor=broker.log_cleaner_io_buffer_load_factor,
        throttle=throttle or Throttle(broker.log_cleaner_io_max_bytes_per_second),
    )
    try:
        if not has_directory(root, where):
            return replace(report, skipped="nothing was ever written to it")
        if dry_run:
            return judge(report, cleaning.look(), force=force)
        with partition_lock(cleaning.directory, fs=root.fs) as is_mine:
            if not is_mine:
                return left_to_another_run(where, ACTION)
            report = _clean(cleaning, report, force=force, offset_map=offset_map)
    except (KafkalogError, OSError) as error:
        _LOG.warning("%s: cleaning failed: %s", where, error)
        report = replace(report, error=str(error))
    return replace(report, seconds=time.perf_counter() - began)


def _clean(
    cleaning: Cleaning, report: PartitionReport, *, force: bool, offset_map: OffsetMap | None
) -> PartitionReport:
    """The whole cleaning, in this process."""
    report, found = cleaning.begin(report, force=force)
    if report.skipped is None:
        part = cleaning.part(found)
        survivors, shards = find_survivors(part, offset_map or cleaning.new_map(found.plan))
        transactions = CleanedTransactions.of(part.aborted)
        copier = GroupCopier(part, survivors, cleaning.rules(found), transactions, found.config, cleaning.root.fs)
        groups = cleaning.groups(found)
        counts = CopyCounts()
        for group in groups:
            counts = counts.plus(copier.copy(group))
            cleaning.target(found).swap(group[0].base_offset, [each.base_offset for each in group])
        report = cleaning.finish(report, found, counts, groups=len(groups), shards=shards)
    cleaning.remove_deleted()
    return report
