"""Retention: deletes old segments by age, by size and below the log start offset, by the rules of Kafka's brokers.

For a number of partitions at a time, each kept from other runs (a partition that another run works on is skipped):

    plan which segments go (plan.py)
    increase the log start offsets in one commit; if the active segment goes too, an empty one begins at the log end
    remove what is below
    delete the offsets of groups that were last committed offsets.retention.minutes ago (groups/offsets_topic.py), and
    the ids of clients that were not used for transactional.id.expiration.ms (root/transactions/state_log.py); a root
    that follows gets both deletions from its leader

then, once, remove what deleted topics left, delete from remote storage what is not needed there, forget the ids of
writers that were not used for writer.id.expiration.ms, and remove the commits that are older than
metadata.max.retention.ms (metadata/store.py). All of these steps work on a full disk: the commit uses the reserve, and
other writes without room are left to the next run. Removing the files frees the space, so a run after the delay does.

From the commit on the records are invisible to new reads. A read that was planned before may still return them, or fail
because they are gone (OffsetOutOfRangeError). The next run completes the work after a crash at any step.

*On a file system*

    plan      under the partition's maintenance lock, from the image, the directory and the time indexes
    remove    rename the files below the local log start to `.deleted` (delete_records.py); remove files renamed at
              least file.delete.delay.ms ago, and the directories of deleted topics
    finish    remove staged files of writes that were abandoned for staging.retention.ms; delete from remote storage
              what commits have dropped, and what killed copies have left (objects/clean_up.py)

*In an object store* whole segment objects and runs are deleted, by the rules for segments. The commit that raises log
starts drops the extents below from the image (metadata/extent_changes.trimmed), which lists their objects as dropped.
No lock is held: log starts only rise, so that the plans of two runs agree. The end of the run cleans up the root
(objects/clean_up.py), which deletes objects that any commit has dropped, and those of abandoned writes. The remote
segments of a file root are dropped and deleted in the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.group import expire_offsets
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC
from pyspark_kafkalog.maintenance.jobs.partition import (
    PartitionReport,
    PartitionWork,
    empty_report,
    left_to_another_run,
    locks_at_once,
    partition_lock,
)
from pyspark_kafkalog.maintenance.jobs.runner import PartitionsJob, partitions_to_work_on
from pyspark_kafkalog.maintenance.objects.clean_up import clean_up_root
from pyspark_kafkalog.maintenance.retention.delete_records import (
    first_base_if_done,
    mark_deleted_below_log_start,
    write_log_start_checkpoint,
)
from pyspark_kafkalog.maintenance.retention.plan import (
    PlannedRetention,
    RetainedLogs,
    StoredPart,
    plan_retention,
    segment_parts,
    stored_extents,
)
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory, remove_deleted_files
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.metadata.root_lock import file_system_time_ns
from pyspark_kafkalog.root.commit.log_starts import move_log_starts
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.transactions.state_log import expire_ids
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_epochs
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import is_out_of_space
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    CLUSTER_METADATA_TOPIC,
    LEADER_EPOCH_CHECKPOINT,
    TopicPartition,
    partition_path,
)
from pyspark_kafkalog.storage.segment.stored import StoredSegment, stored_segments
from pyspark_kafkalog.storage.staged_file import remove_abandoned, staged_files
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import plural

_LOG: Final = logging.getLogger(__name__)

ACTION: Final = "retention"

#: Partitions that one commit covers at most, and whose locks are held meanwhile.
PARTITIONS_A_COMMIT: Final = 128
#: Partitions of one task at most: it updates log-start-offset-checkpoint, a file of the whole root, once.
_PARTITIONS_A_TASK: Final = 1_024


class _RetainedFiles:
    """The logs of a root on a file system, for one run."""

    def __init__(self, root: FileRoot, now_ms: int | None, *, dry_run: bool) -> None:
        self._root = root
        self._asked_ms = now_ms
        self._now_ms = root.clock() if now_ms is None else now_ms
        self._dry_run = dry_run
        #: The base offsets of the first segments of the partitions of the present task.
        self._first_bases: dict[TopicPartition, int] = {}
        #: Those of partitions in which nothing is to be removed.
        self._done: dict[TopicPartition, int] = {}

    def take(self, topic_partition: TopicPartition, locks: ExitStack) -> bool:
        """Take the partition's maintenance lock; False when another run holds it."""
        directory = partition_path(self._root.path, topic_partition)
        return not directory.is_dir() or locks.enter_context(partition_lock(directory, fs=self._root.fs))

    def plan(self, topic_partition: TopicPartition) -> PlannedRetention:
        topic = self._root.store.image.topic(topic_partition.topic)
        partition = self._root.store.image.partition(topic_partition.topic, topic_partition.partition)
        state = partition.state
        directory = partition_path(self._root.path, topic_partition)
        config = self._root.log_config(topic_partition.topic)
        listing: PartitionListing | None = None
        try:
            listing = PartitionListing.read(directory)
        except FileNotFoundError:
            has_directory(self._root, topic_partition)  # raises if there should be one
        if listing is not None and (listing.cleaned or listing.swaps) and not self._dry_run:
            SwapTarget.of(self._root, topic_partition, self._now_ms).finish()
            listing = PartitionListing.read(directory)
        segments = stored_segments(directory, state, listing=listing)
        of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
        remote = self._remote(of, partition)

        def largest_timestamp_ms(part: StoredSegment | StoredPart) -> int:
            if isinstance(part, StoredPart):
                return part.max_timestamp_ms
            if part.base_offset == state.active_base_offset:
                return state.active_max_timestamp_ms
            return part.largest_timestamp_ms(directory)

        plan = plan_retention(segments, remote, largest_timestamp_ms, config, state, now_ms=self._now_ms)
        planned = PlannedRetention(
            topic_partition, topic.topic_id, state, config, plan, has_remote_segments=bool(partition.segments)
        )
        if planned.move is not None:
            read_epochs(directory / LEADER_EPOCH_CHECKPOINT)  # before the commit: the epochs are cut after it
        elif listing is not None and not self._dry_run:
            first_base = first_base_if_done(directory, listing, state)
            if first_base is not None:
                self._done[topic_partition] = first_base
        return planned

    def _remote(self, of: TopicIdPartition, partition: PartitionImage) -> list[StoredPart]:
        def put_ms(segment: SegmentObject) -> int:
            storage = self._root.remote_storage
            assert storage is not None  # it stays as long as there are segments (root/admin.py)
            return storage.store().head(storage.keys(of, segment)[0]).last_modified_ms

        return segment_parts(partition, put_ms)

    def remove_dropped(self, planned: PlannedRetention) -> None:
        topic_partition = planned.topic_partition
        if topic_partition in self._done:
            self._first_bases[topic_partition] = self._done.pop(topic_partition)
            return
        first_base = mark_deleted_below_log_start(self._root, topic_partition, planned.topic_id, now_ms=self._now_ms)
        if first_base is not None:
            self._first_bases[topic_partition] = first_base
            remove_deleted_files(
                partition_path(self._root.path, topic_partition),
                now_ms=self._now_ms,
                delay_ms=planned.config.file_delete_delay_ms,
                fs=self._root.fs,
            )

    def end_task(self) -> None:
        first_bases, self._first_bases = self._first_bases, {}
        try:
            write_log_start_checkpoint(self._root, first_bases)
        except (KafkalogError, OSError) as error:
            _LOG.warning("log-start-offset-checkpoint is not updated: %s", error)

    def finish(self) -> None:
        self._remove_abandoned()  # first: on a full disk this makes room for what follows
        self._root.remove_deleted_topics(self._asked_ms)
        clean_up_root(self._root, now_ms=self._asked_ms)

    def _remove_abandoned(self) -> None:
        """Remove the staged files of writes that were abandoned for staging.retention.ms."""
        root = self._root
        staged = list(staged_files(root.path))
        if staged:
            retention_ms = root.broker_config().staging_retention_ms
            now_ns = file_system_time_ns(root.path, root.fs)
            remove_abandoned(root.path, staged, now_ns=now_ns, retention_ms=retention_ms, fs=root.fs)


class _RetainedObjects:
    """The logs of a root in an object store, for one run."""

    def __init__(self, root: ObjectRoot, now_ms: int | None) -> None:
        self._root = root
        self._asked_ms = now_ms
        self._now_ms = root.clock() if now_ms is None else now_ms

    def take(self, topic_partition: TopicPartition, locks: ExitStack) -> bool:
        return True

    def plan(self, topic_partition: TopicPartition) -> PlannedRetention:
        image = self._root.store.image
        topic = image.topic(topic_partition.topic)
        state = image.partition(topic_partition.topic, topic_partition.partition).state
        config = self._root.log_config(topic_partition.topic)
        extents = stored_extents(self._root, topic_partition, self._now_ms)
        plan = plan_retention((), extents, lambda extent: extent.max_timestamp_ms, config, state, now_ms=self._now_ms)
        return PlannedRetention(topic_partition, topic.topic_id, state, config, plan)

    def remove_dropped(self, planned: PlannedRetention) -> None:
        """Does nothing: the clean-up of the whole root does it, after the delay."""

    def end_task(self) -> None:
        pass

    def finish(self) -> None:
        clean_up_root(self._root, now_ms=self._asked_ms)


def apply_retention(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    partitions: Collection[TopicPartition] | None = None,
) -> list[PartitionReport]:
    """Apply retention to all topics, to `topics`, or to `partitions`; return one report for each partition.

    `now_ms` is the time to use, by default the clock's. With `dry_run` nothing changes; reports describe what would
    happen. A partition's failure is in its report, and the others continue. Old commits are reported as segments of
    the partition `__cluster_metadata-0`, if there are any. Raises ReadOnlyLogDirError for a broker's directory, and
    UnknownTopicError.
    """
    reports = retain(root, topics=topics, now_ms=now_ms, dry_run=dry_run, partitions=partitions)
    return reports + finish(root, now_ms=now_ms, dry_run=dry_run)


def finish(root: Root, *, now_ms: int | None = None, dry_run: bool = False) -> list[PartitionReport]:
    """Finish a run, once for all partitions: remove deleted topics; restore the commit log's reserve; clean up.

    Returns the report of the old commits that were removed, or would be; none if there were none.
    """
    native = root.native()
    if not dry_run:
        try:
            _logs_of(native, now_ms=now_ms, dry_run=False).finish()
        except (KafkalogError, OSError) as error:
            _LOG.warning(
                "what was deleted or abandoned, or the commit log's reserve, is left to the next run: %s", error
            )
        _expire_writers(native, now_ms)
    began = time.perf_counter()
    try:
        old = native.store.remove_old_commits(now_ms=now_ms, dry_run=dry_run)
    except (KafkalogError, OSError) as error:
        _LOG.warning("old commits are left to the next run: %s", error)
        return []
    if not old.count:
        return []
    report = replace(
        empty_report(TopicPartition(CLUSTER_METADATA_TOPIC, 0), ACTION),
        bytes_dropped=old.size_bytes,
        segments_dropped=old.count,
        log_start_offset=old.start_offset,
        seconds=time.perf_counter() - began,
    )
    return [report]


def _expire_writers(root: NativeRoot, now_ms: int | None) -> None:
    try:
        expired = root.expire_transactional_ids(now_ms=now_ms)
    except (KafkalogError, OSError) as error:
        _LOG.warning("ids of writers that are due are left to the next run: %s", error)
        return
    if expired:
        _LOG.info("forgot %s that no writer has used for writer.id.expiration.ms", plural(expired, "id"))


def retain(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    partitions: Collection[TopicPartition] | None = None,
) -> list[PartitionReport]:
    """As `apply_retention`, without the end of the run (`finish`)."""
    native = root.native()
    chosen = partitions_to_work_on(native, topics, partitions)
    now_ms = native.clock() if now_ms is None else now_ms
    run = _Run(native, _logs_of(native, now_ms=now_ms, dry_run=dry_run), now_ms, dry_run)
    reports: list[PartitionReport] = []
    count = locks_at_once(PARTITIONS_A_COMMIT)
    try:
        for at in range(0, len(chosen), count):
            reports += run.apply(chosen[at : at + count])
    finally:
        if not dry_run:
            run.logs.end_task()
    return reports


def _logs_of(root: NativeRoot, *, now_ms: int | None, dry_run: bool) -> RetainedLogs:
    return for_kind(
        root, lambda root: _RetainedFiles(root, now_ms, dry_run=dry_run), lambda root: _RetainedObjects(root, now_ms)
    )


@dataclass(slots=True, eq=False)
class _Work(PartitionWork):
    """One partition during the run."""

    is_mine: bool = False
    planned: PlannedRetention | None = None
    moved: LogState | None = None
    offsets_expired: int | None = None
    ids_expired: int | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    root: NativeRoot
    logs: RetainedLogs
    now_ms: int
    dry_run: bool

    def apply(self, chosen: Sequence[TopicPartition]) -> list[PartitionReport]:
        """Plan, commit once, clean up."""
        with ExitStack() as locks:
            works = [_Work(each) for each in chosen]
            for work in works:
                with work.step(ACTION):
                    work.is_mine = self.dry_run or self.logs.take(work.topic_partition, locks)
            self.root.refresh()
            for work in works:
                if work.is_mine:
                    with work.step(ACTION):
                        work.planned = self._plan(work.topic_partition)
            if not self.dry_run:
                self._commit(works)
                self._clean_up(works)
            if self.root.follows is None:
                self._expire_offsets(works)
                self._expire_ids(works)
        return [_report(work) for work in works]

    def _plan(self, topic_partition: TopicPartition) -> PlannedRetention:
        planned = self.logs.plan(topic_partition)
        if planned.plan.future_base_offset is not None:
            _LOG.warning(
                "%s: the segment at %d has timestamps in the future, so retention.ms does not delete it",
                topic_partition,
                planned.plan.future_base_offset,
            )
        return planned

    def _commit(self, works: Sequence[_Work]) -> None:
        """One commit for all changed log start offsets; if it fails, its error is that of each partition."""
        moving = {work: work.planned.move for work in works if work.planned is not None and work.planned.move}
        if not moving:
            return
        try:
            moved = move_log_starts(self.root, [move for move in moving.values() if move], operation=ACTION)
        except (KafkalogError, OSError) as error:
            _LOG.warning("retention was not committed: %s", error)
            for work in moving:
                work.error = error
            return
        for work, each in zip(moving, moved, strict=True):
            work.error = each.error
            work.moved = each.after

    def _clean_up(self, works: Sequence[_Work]) -> None:
        """Remove everything that the image no longer contains, whichever run committed that."""
        for work in works:
            if work.planned is not None and work.error is None:
                with work.step(ACTION):
                    self.logs.remove_dropped(work.planned)

    def _expire_offsets(self, works: Sequence[_Work]) -> None:
        """Delete the offsets of groups that are due, in the partitions of `__consumer_offsets`."""
        is_refreshed = False
        for work in _planned(works, OFFSETS_TOPIC):
            with work.step(ACTION), _left_when_full(work):
                expired = expire_offsets(
                    self.root,
                    partitions={work.topic_partition.partition},
                    now_ms=self.now_ms,
                    dry_run=self.dry_run,
                    refresh=not is_refreshed,
                )
                is_refreshed = True
                work.offsets_expired = sum(map(len, expired.values()))

    def _expire_ids(self, works: Sequence[_Work]) -> None:
        """Delete the ids of clients that are due, in the partitions of `__transaction_state`."""
        for work in _planned(works, TRANSACTION_STATE_TOPIC):
            with work.step(ACTION), _left_when_full(work):
                numbers = {work.topic_partition.partition}
                work.ids_expired = expire_ids(self.root, partitions=numbers, now_ms=self.now_ms, dry_run=self.dry_run)


def _planned(works: Sequence[_Work], topic: str) -> Iterator[_Work]:
    """The works on partitions of `topic` that have not failed."""
    for work in works:
        if work.topic_partition.topic == topic and work.planned is not None and work.error is None:
            yield work


@contextmanager
def _left_when_full(work: _Work) -> Iterator[None]:
    """Leave the block's deletions to a later run if the disk is full."""
    try:
        yield
    except OSError as error:
        if not is_out_of_space(error):
            raise
        _LOG.warning("%s: the disk is full, its records expire in a later run", work.topic_partition)


def _report(work: _Work) -> PartitionReport:
    planned, topic_partition = work.planned, work.topic_partition
    if not work.is_mine and work.error is None:
        return left_to_another_run(topic_partition, ACTION)
    if planned is None or work.error is not None:
        return work.report(ACTION)
    report = work.report(
        ACTION,
        bytes_kept=planned.plan.kept_bytes,
        bytes_dropped=planned.plan.deleted_bytes,
        segments_dropped=planned.plan.deleted_count,
        offsets_expired=work.offsets_expired,
        transactional_ids_expired=work.ids_expired,
        log_start_offset=planned.plan.log_start_offset if work.moved is None else work.moved.log_start_offset,
    )
    if not planned.has_remote_segments:
        return report
    plan, moved = planned.plan, work.moved
    return replace(
        report,
        local_log_start_offset=plan.local_log_start_offset if moved is None else moved.local_log_start_offset,
        local_bytes_dropped=plan.local_deleted_bytes,
        local_segments_dropped=plan.local_deleted_count,
    )


#: Up to 128 partitions share a commit: 10,000 partitions are at least 10 tasks and about 80 commits.
RETENTION_JOB: Final = PartitionsJob(action=ACTION, work=retain, partitions_max=_PARTITIONS_A_TASK, finish=finish)
