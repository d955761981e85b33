"""The log cleaner on object roots: rules and engine of file roots (maintenance/cleaner), commits in place of swaps.

    merge       runs become segments, if that closes a segment                                  merge.py
    survivors   the latest offset of each key in the dirty part, read from the store            cleaner/offset_map.py
    copy        group by group into a new segment in a scratch directory, then put              cleaner/copy.py
    commit      the new segments take the places of their groups, one after the other           replace.py

*Which segments.* The last segment, with the runs after it, is the active one, which is never cleaned. It is closed when
a merge has to roll: by segment.bytes or segment.ms, as in a broker. All segments before it are cleaned. A cleaned
segment keeps the range of offsets of its group, even if no record is left in it.

*The checkpoint* is in the segments: those that a cleaning has written are marked (`isCleaned`), and the dirty part
begins after the last one. Groups are committed in order, so after a kill the marked ones hold at most one record of
each key, and a tombstone only goes after all earlier records of its key.

*Preconditions.* All groups are copied before the first is committed. So a damaged or missing object, and a transaction
index that is wrong, end a cleaning before it changes anything; a dry run reads the same.

*Races.* Nothing is locked. A commit replaces exactly the segments that were read, or nothing: of two cleanings the one
that is later at a group ends there, with retention in between too. So does one that finds segments deleted from the
store because others have replaced them. Writers and merges change what is after the last segment. So no commit brings a
record back, and a record goes only after a later one of its key was committed. A kill leaves objects that no commit
names, which the clean-up deletes (clean_up.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions, RetentionRules
from pyspark_kafkalog.maintenance.cleaner.logs import CLEAN_ACTION, active_producers, judge, with_counts
from pyspark_kafkalog.maintenance.cleaner.offset_map import KeyCounts, LogPart, OffsetMap, find_survivors, map_bytes
from pyspark_kafkalog.maintenance.cleaner.plan import CleanPlan, group_segments, plan_cleaning
from pyspark_kafkalog.maintenance.jobs.report import PartitionReport, empty_report, left_to_another_run
from pyspark_kafkalog.maintenance.jobs.tasks import Throttle
from pyspark_kafkalog.maintenance.objects.merge import merge_all
from pyspark_kafkalog.maintenance.objects.merge_plan import leader_epochs
from pyspark_kafkalog.maintenance.objects.replace import replace_extents, segments_record
from pyspark_kafkalog.maintenance.objects.stored import stored_extents, topic_id_partition
from pyspark_kafkalog.maintenance.retention.plan import StoredPart
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.log.isolation import (
    AbortedTransactions,
    ScannedTransactions,
    abort_markers,
    wrong_index_error,
)
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import (
    CLEANED_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    offset_file_name,
    segment_file,
)
from pyspark_kafkalog.storage.objects.data_object import aborted_transactions
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.tiered.layouts.segment_objects import IndexKind
from pyspark_kafkalog.tiered.own_layouts import segment_keys
from pyspark_kafkalog.tiered.own_segments import SegmentObjectExtent, put_segment
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT64_MAX

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerLimits:
    """What one cleaning may use: bytes of the map of keys, how full it gets, and bytes a second."""

    buffer_bytes: int
    load_factor: float
    throttle: Throttle


@dataclass(frozen=True, slots=True)
class CleanableLog:
    """A partition as of an image, with its cleaning plan. `needs_merge`: the plan counts runs as segments."""

    of: TopicIdPartition
    partition: PartitionImage
    config: LogConfig
    plan: CleanPlan
    needs_merge: bool

    @property
    def segments(self) -> Mapping[int, SegmentObject]:
        """The segments by their base offsets."""
        return {each.base_offset: each for each in self.partition.segments}


def inspect_log(
    root: ObjectRoot, topic_partition: TopicPartition, now_ms: int, *, is_merged: bool = False
) -> CleanableLog:
    """The partition and its cleaning plan, as of the root's last refresh.

    The plan also has what a merge would close, unless that was made (`is_merged`): runs that came since, or that it
    has left to another one, wait for the next cleaning. Takes requests only if a compaction lag is configured. Raises
    UnknownTopicError, ObjectStoreError, DiskFormatError.
    """
    image = root.store.image
    of = topic_id_partition(image, topic_partition)
    partition = image.partition(topic_partition.topic, topic_partition.partition)
    config = root.log_config(topic_partition.topic)
    extents = stored_extents(root, topic_partition, now_ms)
    segments_count = len(partition.segments)
    needs_merge = not is_merged and _closes_a_segment(extents, segments_count, config)
    log = extents if needs_merge else extents[:segments_count]
    active_base_offset = log[-1].base_offset if log else partition.state.log_end_offset
    by_base = {each.base_offset: each for each in log}
    cleaned = [each.end_offset for each in partition.segments if each.is_cleaned]

    def largest_timestamp_ms(segment: StoredSegment) -> int:
        extent = by_base[segment.base_offset]
        return extent.max_timestamp_ms if extent.max_timestamp_ms >= 0 else extent.modified_ms

    def first_timestamp_ms(segment: StoredSegment) -> int:
        stored = next((each for each in partition.segments if each.base_offset == segment.base_offset), None)
        if stored is None:  # a run: a write of one moment
            return by_base[segment.base_offset].max_timestamp_ms
        with SegmentReader(SegmentObjectExtent(root.objects, of, stored)) as reader:
            for _, header in reader.headers(0):
                return header.max_timestamp_ms
        return -1

    plan = plan_cleaning(
        _closed(partition, log[:-1]),
        replace(partition.state, active_base_offset=active_base_offset),
        config,
        checkpoint_offset=cleaned[-1] if cleaned else None,
        now_ms=now_ms,
        largest_timestamp_ms=largest_timestamp_ms,
        first_timestamp_ms=first_timestamp_ms,
    )
    return CleanableLog(of, partition, config, plan, needs_merge)


def _closes_a_segment(extents: Sequence[StoredPart], segments_count: int, config: LogConfig) -> bool:
    """Whether the last segment and the runs are too large, or too long in time, for one segment."""
    if len(extents) == segments_count:
        return False
    active = extents[max(segments_count - 1, 0) :]
    times_ms = [each.max_timestamp_ms for each in active if each.max_timestamp_ms >= 0]
    lasts_ms = max(times_ms) - min(times_ms) if times_ms else 0
    return sum(each.size_bytes for each in active) > config.segment_bytes or lasts_ms > config.max_segment_ms


def _closed(partition: PartitionImage, extents: Sequence[StoredPart]) -> list[StoredSegment]:
    """`extents`, which begin with the partition's segments, as the planning of a cleaning takes them."""
    closed = [
        StoredSegment(
            each.base_offset, each.end_offset, each.size_bytes, each.offset_index_bytes, each.time_index_bytes, 0
        )
        for each in partition.segments[: len(extents)]
    ]
    runs = extents[len(closed) :]
    return closed + [StoredSegment(each.base_offset, each.end_offset, each.size_bytes, 0, 0, 0) for each in runs]


def clean_log(
    root: ObjectRoot,
    topic_partition: TopicPartition,
    limits: CleanerLimits,
    *,
    now_ms: int,
    force: bool = False,
    dry_run: bool = False,
    offset_map: OffsetMap | None = None,
) -> PartitionReport:
    """Clean one partition if it is due, or with `force` if anything can be cleaned; its errors are in the report.

    See `clean_partition` for the arguments. Raises UnknownTopicError.
    """
    root.refresh()
    root.partition(topic_partition.topic, topic_partition.partition)
    began = time.perf_counter()
    report = empty_report(topic_partition, CLEAN_ACTION)
    try:
        found = inspect_log(root, topic_partition, now_ms)
        report = judge(report, found.plan, found.config, force=force)
        if report.skipped is None and dry_run:
            _check(root, found, limits, now_ms, offset_map)
        elif report.skipped is None:
            report = _clean(root, found, report, limits, now_ms, force, offset_map)
    except (KafkalogError, OSError) as error:
        _LOG.warning("%s: cleaning failed: %s", topic_partition, error)
        report = replace(report, error=str(error))
    return replace(report, seconds=time.perf_counter() - began)


def _clean(
    root: ObjectRoot,
    found: CleanableLog,
    report: PartitionReport,
    limits: CleanerLimits,
    now_ms: int,
    force: bool,
    offset_map: OffsetMap | None,
) -> PartitionReport:
    if found.needs_merge:
        for _ in merge_all(root.store, root.objects, found.config, found.of.topic_partition, clock=root.clock):
            pass
        found = inspect_log(root, found.of.topic_partition, now_ms, is_merged=True)
        report = judge(report, found.plan, found.config, force=force)
        if report.skipped is not None:
            return report
    groups = group_segments(
        found.plan.segments, found.config, first_uncleanable_offset=found.plan.first_uncleanable_offset
    )
    put: list[PutGroup] = []
    tried = 0  # a commit that fails may have been made
    done: list[PutGroup] = []
    try:
        with ScratchDirectory("clean") as top:
            copier, keys = copier_of(root, found, limits, top, now_ms, offset_map)
            for group in groups:
                put.append(put_group(root, found, copier, group, keys))
        for each in put:
            tried += 1
            if not commit_group(root, found, each):
                break
            done.append(each)
    except (KafkalogError, OSError):
        if not is_outdated(root, found, done):
            raise
    finally:
        _delete_put(root, found, put[tried:])
    return report_of(report, done)


def _delete_put(root: ObjectRoot, found: CleanableLog, put: Sequence[PutGroup]) -> None:
    """Delete the segments of groups whose commit was not tried; the clean-up deletes what cannot be deleted now."""
    keys = [key for each in put for key in segment_keys(found.of, each.segment.base_offset, each.segment.segment_id)]
    with contextlib.suppress(KafkalogError, OSError):
        root.objects.delete(keys)


def _check(
    root: ObjectRoot, found: CleanableLog, limits: CleanerLimits, now_ms: int, offset_map: OffsetMap | None
) -> None:
    """Read what a cleaning reads, and change nothing. Runs that it would merge first are not read.

    Raises ObjectStoreError, DiskFormatError.
    """
    stored = [each for each in found.plan.segments if each.base_offset in found.segments]
    if not stored:
        return
    end_offset = min(found.plan.first_uncleanable_offset, stored[-1].end_offset)
    part = replace(part_of(root, found, limits, now_ms), segments=stored, end_offset=end_offset)
    for segment in stored:
        with SegmentReader(part.extent_of(segment)) as reader:
            for _ in reader.runs(0, start_offset=segment.base_offset, end_offset=segment.end_offset):
                pass
    if offset_map is None:
        offset_map = OffsetMap(map_bytes(found.plan, limits.buffer_bytes, limits.load_factor), limits.load_factor)
    find_survivors(part, offset_map)


def report_of(report: PartitionReport, done: Sequence[PutGroup]) -> PartitionReport:
    """The report after the groups `done` were committed; without any, another run is at work."""
    if not done:
        return left_to_another_run(TopicPartition(report.topic, report.partition), CLEAN_ACTION)
    counts = CopyCounts()
    for each in done:
        counts = counts.plus(each.counts)
    return with_counts(report, counts, segments=sum(len(each.replaced) - 1 for each in done), keys=done[0].keys)


def is_outdated(root: ObjectRoot, found: CleanableLog, done: Sequence[PutGroup]) -> bool:
    """Whether others have replaced or deleted segments of the log since it was planned.

    Those are deleted from the store after a delay, so an error may say no more than that. `done`: the groups that this
    cleaning itself has replaced. Raises ObjectStoreError.
    """
    newest = root.store.refresh().find(found.of.topic, found.of.partition)
    if newest is None or root.store.image.topic(found.of.topic).topic_id != found.of.topic_id:
        return True
    own = {segment.segment_id for each in done for segment in each.replaced}
    there = {each.segment_id for each in newest.segments}
    return not {each.segment_id for each in found.partition.segments} - own <= there


def copier_of(
    root: ObjectRoot,
    found: CleanableLog,
    limits: CleanerLimits,
    scratch: Path,
    now_ms: int,
    offset_map: OffsetMap | None = None,
) -> tuple[GroupCopier, KeyCounts]:
    """A copier for all groups of the log, which begins at the first, and the counts of its keys."""
    part = part_of(root, found, limits, now_ms)
    if offset_map is None:
        offset_map = OffsetMap(map_bytes(found.plan, limits.buffer_bytes, limits.load_factor), limits.load_factor)
    survivors, keys = find_survivors(part, offset_map)
    copier = GroupCopier(
        part,
        survivors,
        _rules(root, found, scratch, now_ms),
        part.transactions(),
        found.config,
        scratch,
        flushing_file_system(LOCAL, "os"),
    )
    return copier, keys


def part_of(root: ObjectRoot, found: CleanableLog, limits: CleanerLimits, now_ms: int) -> LogPart:
    """The part of the log to read, with a new seed for the hash of keys. Raises CorruptIndexError."""
    plan = found.plan
    aborted = _aborted(root, found)
    name = f"{root.objects.url}: {found.of.topic_partition}"
    return LogPart(
        extent_of=partial(_extent, root.objects, found.of, found.segments),
        segments=plan.segments,
        first_dirty_offset=plan.first_dirty_offset,
        end_offset=plan.first_uncleanable_offset,
        aborted=aborted,
        seed=np.frombuffer(os.urandom(16), np.uint64),
        now_ms=now_ms,
        throttle=limits.throttle,
        record_max_bytes=found.config.max_decompressed_message_bytes,
        name=name,
        check_unended=partial(_check_unended, root, found, AbortedTransactions(aborted, indexed_until=INT64_MAX), name),
    )


def _extent(
    objects: ObjectStore, of: TopicIdPartition, segments: Mapping[int, SegmentObject], segment: StoredSegment
) -> SegmentObjectExtent:
    return SegmentObjectExtent(objects, of, segments[segment.base_offset])


def _aborted(root: ObjectRoot, found: CleanableLog) -> list[AbortedTxn]:
    """The aborted transactions that begin below the end of the dirty part, also by markers in runs.

    Entries of transaction indexes are compared with the markers of the dirty part while that is read. An entry with a
    marker before the dirty part counts only if the marker is there. Raises CorruptIndexError.
    """
    plan = found.plan
    end_offset = plan.first_uncleanable_offset
    extents = [SegmentObjectExtent(root.objects, found.of, each) for each in found.partition.segments]
    indexed = [txn for extent in extents for txn in extent.aborted_transactions() if txn.first_offset < end_offset]
    reader = root.reader(found.of.topic, found.of.partition)
    kept = [txn for txn in indexed if txn.last_offset >= plan.first_dirty_offset or _has_marker(reader, txn)]
    return kept + aborted_transactions(found.partition.producer_batches.table, 0, end_offset)


def _has_marker(reader: LogReader, transaction: AbortedTxn) -> bool:
    marker = transaction.producer_id, transaction.last_offset
    for run in reader.runs(transaction.last_offset, transaction.last_offset + 1, is_scan=True):
        return marker in abort_markers(run)
    return False


def _check_unended(
    root: ObjectRoot, found: CleanableLog, said: AbortedTransactions, name: str, transactions: CleanedTransactions
) -> None:
    """Compare the transactions that reach over the end of the dirty part with their markers.

    Raises CorruptIndexError.
    """
    end_offset = found.plan.first_uncleanable_offset
    scanned = ScannedTransactions(end_offset, transactions.unended())
    if scanned.open:
        root.reader(found.of.topic, found.of.partition).end_open(scanned, end_offset, INT64_MAX)
    for each in scanned.ended:
        if each.has_data and not said.agree(each):
            raise wrong_index_error(each, file=name)


def _rules(root: ObjectRoot, found: CleanableLog, scratch: Path, now_ms: int) -> RetentionRules:
    """The parameters of the filter; the active producers are those at the end of the last segment."""
    last = found.partition.segments[-1]
    snapshot = SegmentObjectExtent(root.objects, found.of, last).index(IndexKind.PRODUCER_SNAPSHOT)
    segment_file(scratch, last.end_offset, PRODUCER_SNAPSHOT_SUFFIX).write_bytes(snapshot)
    return RetentionRules(
        now_ms=now_ms,
        delete_retention_ms=found.config.delete_retention_ms,
        end_offset=found.plan.first_uncleanable_offset,
        producers=active_producers(
            scratch,
            replace(found.partition.state, log_end_offset=last.end_offset),
            now_ms=now_ms,
            expiration_ms=root.broker_config().producer_id_expiration_ms,
        ),
    )


@dataclass(frozen=True, slots=True)
class PutGroup:
    """A group whose new segment is in the store: it takes the place of `replaced` once that is committed.

    `keys` counts those of the whole log.
    """

    replaced: tuple[SegmentObject, ...]
    segment: SegmentObject
    counts: CopyCounts
    keys: KeyCounts
    planned_at: int


def put_group(
    root: ObjectRoot, found: CleanableLog, copier: GroupCopier, group: Sequence[StoredSegment], keys: KeyCounts
) -> PutGroup:
    """Copy a group into one segment, and put it."""
    planned_at = root.store.image.next_offset
    replaced = tuple(found.segments[each.base_offset] for each in group)
    directory = copier.directory / offset_file_name(group[0].base_offset, "")
    directory.mkdir()
    counts = replace(copier, directory=directory).copy(group)
    for path in directory.iterdir():
        path.rename(path.with_name(path.name.removesuffix(CLEANED_SUFFIX)))
    end_offset = replaced[-1].end_offset
    snapshot = SegmentObjectExtent(root.objects, found.of, replaced[-1]).index(IndexKind.PRODUCER_SNAPSHOT)
    segment_file(directory, end_offset, PRODUCER_SNAPSHOT_SUFFIX).write_bytes(snapshot)
    segment = put_segment(
        root.objects,
        found.of,
        directory,
        group[0].base_offset,
        end_offset,
        epochs=tuple(leader_epochs(found.partition)),
        segment_id=new_segment_id(planned_at),
        now_ms=root.clock(),
        is_cleaned=True,
    )
    shutil.rmtree(directory)
    return PutGroup(replaced, segment, counts, keys, planned_at)


def commit_group(root: ObjectRoot, found: CleanableLog, put: PutGroup) -> bool:
    """Commit that the segment takes the place of its group; False, and it is deleted, if the group is gone."""
    record = segments_record(found.of, put.planned_at, put.replaced, [put.segment])
    return bool(replace_extents(root.store, root.objects, [(found.of, record)], operation=CLEAN_ACTION))
