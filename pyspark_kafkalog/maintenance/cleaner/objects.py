"""The log cleaner on object roots: rules and engine of file roots, commits in place of swaps.

    merge       runs become segments, if that closes a segment                                  objects/merge.py
    survivors   the latest offset of each key in the dirty part, read from the store            cleaner/offset_map.py
    copy        group by group into a new segment in a scratch directory, then put              cleaner/copy.py
    commit      the new segments take the places of their groups, one after the other           objects/segments.py

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
names, which the clean-up deletes (objects/clean_up.py).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.cleaner.copy import GroupCopier
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions
from pyspark_kafkalog.maintenance.cleaner.logs import (
    CLEAN_ACTION,
    CleanableLog,
    CleanableLogs,
    CopiedGroup,
    Group,
    active_producers,
)
from pyspark_kafkalog.maintenance.cleaner.plan import plan_cleaning
from pyspark_kafkalog.maintenance.objects.clean_up import finish_job
from pyspark_kafkalog.maintenance.objects.merge import Merged, merge_partition
from pyspark_kafkalog.maintenance.objects.segments import replace_extents, segments_record
from pyspark_kafkalog.maintenance.retention.plan import StoredPart, stored_extents
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.root.object_log import ObjectLog, aborted_transactions
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.reads import leader_epochs
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
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
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory
from pyspark_kafkalog.storage.segment.reader import SegmentReader
from pyspark_kafkalog.storage.segment.stored import StoredSegment
from pyspark_kafkalog.tiered.objects import IndexKind
from pyspark_kafkalog.tiered.own_segments import OwnLayout, put_segment, segment_keys
from pyspark_kafkalog.tiered.remote_log import RemoteExtent
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT64_MAX


class CleanedObjects(CleanableLogs):
    """The logs of a root in an object store."""

    def __init__(self, root: ObjectRoot, now_ms: int) -> None:
        self._root = root
        self.now_ms = now_ms
        self.fs = flushing_file_system(LOCAL, "os")

    def inspect(self, topic_partition: TopicPartition) -> CleanableLog:
        """The plan also has what a merge would close. Takes requests only if a compaction lag is configured."""
        return self._inspect(topic_partition, is_merged=False)

    def _inspect(self, topic_partition: TopicPartition, *, is_merged: bool) -> CleanableLog:
        """`is_merged`: runs that came since the merge, or that it has left to another one, wait for the next cleaning.

        Raises UnknownTopicError, ObjectStoreError, DiskFormatError.
        """
        image = self._root.store.image
        of = ObjectLog.of(image, topic_partition).topic_id_partition
        partition = image.partition(topic_partition.topic, topic_partition.partition)
        config = self._root.log_config(topic_partition.topic)
        extents = stored_extents(self._root, topic_partition, self.now_ms)
        segments_count = len(partition.segments)
        needs_merge = not is_merged and _closes_a_segment(extents, segments_count, config)
        log = extents if needs_merge else extents[:segments_count]
        active_base_offset = log[-1].base_offset if log else partition.state.log_end_offset
        by_base = {extent.base_offset: extent for extent in log}
        segments = {segment.base_offset: segment for segment in partition.segments}
        cleaned = [segment.end_offset for segment in partition.segments if segment.is_cleaned]

        def largest_timestamp_ms(segment: StoredSegment) -> int:
            extent = by_base[segment.base_offset]
            return extent.max_timestamp_ms if extent.max_timestamp_ms >= 0 else extent.modified_ms

        def first_timestamp_ms(segment: StoredSegment) -> int:
            stored = segments.get(segment.base_offset)
            if stored is None:  # a run: a write of one moment
                return by_base[segment.base_offset].max_timestamp_ms
            with SegmentReader(self._extent(of, stored)) as reader:
                for _, header in reader.headers(0):
                    return header.max_timestamp_ms
            return -1

        plan = plan_cleaning(
            _closed(partition, log[:-1]),
            replace(partition.state, active_base_offset=active_base_offset),
            config,
            checkpoint_offset=cleaned[-1] if cleaned else None,
            now_ms=self.now_ms,
            largest_timestamp_ms=largest_timestamp_ms,
            first_timestamp_ms=first_timestamp_ms,
        )
        return CleanableLog(
            of=of, partition=partition, config=config, plan=plan, planned_at=image.next_offset, needs_merge=needs_merge
        )

    def begin(self, topic_partition: TopicPartition, is_due: Callable[[CleanableLog], bool]) -> CleanableLog:
        """Merge runs if the log is due and that closes a segment."""
        root = self._root
        root.refresh()
        log = self.inspect(topic_partition)
        if log.needs_merge and is_due(log):
            self._merge(log)
            log = self._inspect(topic_partition, is_merged=True)
        return log

    def _merge(self, log: CleanableLog) -> None:
        """Merge the runs that the partition has now, or until another run does it."""
        root = self._root
        last_object_id = root.store.refresh().objects.last_id
        merged: Merged | None = None
        while merged is None or merged.segments:
            merged = merge_partition(
                root.store,
                root.objects,
                log.config,
                log.topic_partition,
                clock=root.clock,
                last_object_id=last_object_id,
            )
            if merged is None:
                return

    def check(self, log: CleanableLog, find: Callable[[CleanableLog], None]) -> None:
        """Read all batches and the survivors. Runs that a cleaning would merge first are not read."""
        plan = log.plan
        bases = {segment.base_offset for segment in log.partition.segments}
        stored = tuple(segment for segment in plan.segments if segment.base_offset in bases)
        if not stored:
            return
        for segment in stored:
            with SegmentReader(self.extent(log, segment)) as reader:
                for _ in reader.runs(0, start_offset=segment.base_offset, end_offset=segment.end_offset):
                    pass
        end_offset = min(plan.first_uncleanable_offset, stored[-1].end_offset)
        find(replace(log, plan=replace(plan, segments=stored, first_uncleanable_offset=end_offset)))

    def name(self, log: CleanableLog) -> str:
        return f"{self._root.objects.url}: {log.topic_partition}"

    def extent(self, log: CleanableLog, segment: StoredSegment) -> RemoteExtent[SegmentObject]:
        return self._extent(log.of, _stored(log, segment))

    def _extent(self, of: TopicIdPartition, segment: SegmentObject) -> RemoteExtent[SegmentObject]:
        return RemoteExtent(self._root.objects, of, segment, OwnLayout.AIVEN)

    def aborted(self, log: CleanableLog) -> list[AbortedTxn]:
        """The aborted transactions that begin below the end of the dirty part, also by markers in runs.

        Entries of transaction indexes are compared with the markers of the dirty part while that is read. An entry with
        a marker before the dirty part counts only if the marker is there. Raises CorruptIndexError.
        """
        plan = log.plan
        end_offset = plan.first_uncleanable_offset
        extents = [self._extent(log.of, segment) for segment in log.partition.segments]
        all_indexed = (txn for extent in extents for txn in extent.aborted_transactions() or ())
        indexed = [txn for txn in all_indexed if txn.first_offset < end_offset]
        reader = self._reader(log)
        kept = [txn for txn in indexed if txn.last_offset >= plan.first_dirty_offset or _has_marker(reader, txn)]
        return kept + aborted_transactions(log.partition.producer_batches.table, 0, end_offset)

    def _reader(self, log: CleanableLog) -> LogReader:
        return self._root.reader(log.of.topic, log.of.partition)

    def check_unended(
        self, log: CleanableLog, aborted: Sequence[AbortedTxn], transactions: CleanedTransactions
    ) -> None:
        """Compare the transactions that reach over the end of the dirty part with their markers.

        Raises CorruptIndexError.
        """
        end_offset = log.plan.first_uncleanable_offset
        said = AbortedTransactions(aborted, indexed_until=INT64_MAX)
        scanned = ScannedTransactions(end_offset, transactions.unended())
        if scanned.open:
            self._reader(log).end_open(scanned, end_offset, INT64_MAX)
        for transaction in scanned.ended:
            if transaction.has_data and not said.agree(transaction):
                raise wrong_index_error(transaction, file=self.name(log))

    def producers(self, log: CleanableLog) -> dict[int, ProducerStateEntry]:
        """The active producers are those at the end of the last segment."""
        last = log.partition.segments[-1]
        with ScratchDirectory("clean") as scratch:
            self._write_snapshot(log, last, scratch)
            return active_producers(
                scratch,
                replace(log.state, log_end_offset=last.end_offset),
                now_ms=self.now_ms,
                expiration_ms=self._root.broker_config().producer_id_expiration_ms,
            )

    def _write_snapshot(self, log: CleanableLog, segment: SegmentObject, directory: Path) -> None:
        snapshot = self._extent(log.of, segment).index_bytes(IndexKind.PRODUCER_SNAPSHOT)
        segment_file(directory, segment.end_offset, PRODUCER_SNAPSHOT_SUFFIX).write_bytes(snapshot)

    def scratch(self, log: CleanableLog) -> AbstractContextManager[Path]:
        return ScratchDirectory("clean")

    def copy(self, log: CleanableLog, copier: GroupCopier, group: Group, claim: int | None = None) -> CopiedGroup:
        """Copy the group into one segment, and put it."""
        planned_at = self._root.store.image.next_offset
        base_offset, last = group[0].base_offset, _stored(log, group[-1])
        directory = copier.directory / offset_file_name(base_offset, "")
        directory.mkdir()
        counts = replace(copier, directory=directory).copy(group)
        for path in directory.iterdir():
            path.rename(path.with_name(path.name.removesuffix(CLEANED_SUFFIX)))
        self._write_snapshot(log, last, directory)
        segment = put_segment(
            self._root.objects,
            log.of,
            directory,
            base_offset,
            last.end_offset,
            epochs=tuple(leader_epochs(log.partition)),
            segment_id=new_segment_id(planned_at),
            now_ms=self._root.clock(),
            is_cleaned=True,
        )
        shutil.rmtree(directory)
        return CopiedGroup(group=group, counts=counts, segment=segment, planned_at=planned_at)

    def replace(self, log: CleanableLog, copies: Iterable[CopiedGroup], done: list[CopiedGroup]) -> None:
        """Commit the copies when all of them are put, up to the first one whose group is gone.

        The segments whose commit was not tried are deleted.
        """
        put: list[CopiedGroup] = []
        tried = 0  # a commit that fails may have been made
        try:
            for copied in copies:
                put.append(copied)
            for copied in put:
                tried += 1
                if not self._commit(log, copied):
                    break
                done.append(copied)
        finally:
            keys = [key for copied in put[tried:] for key in _keys(log, copied)]
            with contextlib.suppress(KafkalogError, OSError):  # the clean-up deletes the rest
                self._root.objects.delete(keys)

    def _commit(self, log: CleanableLog, copied: CopiedGroup) -> bool:
        """Commit that the segment takes the place of its group; False, and it is deleted, if the group is gone."""
        replaced = [_stored(log, segment) for segment in copied.group]
        assert copied.segment is not None
        record = segments_record(log.of, copied.planned_at, replaced, [copied.segment])
        root = self._root
        return bool(replace_extents(root.store, root.objects, [(log.of, record)], operation=CLEAN_ACTION))

    def is_outdated(self, log: CleanableLog, done: Sequence[CopiedGroup]) -> bool:
        """Whether others have replaced or deleted segments of the log since it was planned.

        Those are deleted from the store after a delay, so an error may say no more than that. `done`: the groups that
        this cleaning itself has replaced. Raises ObjectStoreError.
        """
        newest = self._root.store.refresh().find(log.of.topic, log.of.partition)
        if newest is None or self._root.store.image.topic(log.of.topic).topic_id != log.of.topic_id:
            return True
        own = {_stored(log, segment).segment_id for copied in done for segment in copied.group}
        there = {segment.segment_id for segment in newest.segments}
        return not {segment.segment_id for segment in log.partition.segments} - own <= there

    def end_run(self) -> None:
        finish_job(self._root)


def _stored(log: CleanableLog, segment: StoredSegment) -> SegmentObject:
    """The segment object of the log at the base offset of `segment`."""
    return next(each for each in log.partition.segments if each.base_offset == segment.base_offset)


def _keys(log: CleanableLog, copied: CopiedGroup) -> Iterator[str]:
    """The keys of the objects of the group's new segment."""
    assert copied.segment is not None
    yield from segment_keys(log.of, copied.segment.base_offset, copied.segment.segment_id)


def _has_marker(reader: LogReader, transaction: AbortedTxn) -> bool:
    marker = transaction.producer_id, transaction.last_offset
    for run in reader.runs(transaction.last_offset, transaction.last_offset + 1, is_scan=True):
        return marker in abort_markers(run)
    return False


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
