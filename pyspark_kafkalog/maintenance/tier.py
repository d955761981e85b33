"""Copies closed segments to the root's remote storage, and commits that they are there.

    1  under the partition's maintenance lock, plan what is due
    2  check the batches of each segment, and put its objects (tiered/own_segments.py)
    3  one commit for all partitions whose segments were put, at the latest after COMMIT_BYTES
    4  delete the objects of segments that the commit has left out: another run was faster, or retention, or the topic
       was deleted

Due is, in order, from the end of what is copied on, or from the segment with the log start offset, each segment that is
closed and whose end is at or below the last stable offset: remote storage holds decided transactions only. The active
segment is never copied. Topics are left out without remote.storage.enable, with remote.log.copy.disable, if they are
internal, and if they are compacted.

The local files stay; local retention removes them later. From the commit on the segments are in remote storage, before
it they are unknown. A kill before the commit leaves objects that no commit names; retention deletes them once they
have expired, as their ids tell when they were planned.

The lock keeps merges and retention of other runs away from the files. It does not decide: two runs at once commit each
segment once.

Source of the rules: RLMCopyTask and candidateLogSegments of org.apache.kafka.server.log.remote.storage.
RemoteLogManager, RemoteLogManager.onLeadershipChange.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidConfigError, KafkalogError, LogDirError
from pyspark_kafkalog.maintenance.jobs.partition import (
    ANOTHER_RUN,
    PartitionReport,
    PartitionWork,
    locks_at_once,
    partition_lock,
)
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, PartitionsJob, known_sizes, partitions_to_work_on
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory
from pyspark_kafkalog.metadata.extents import new_segment_id
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, SegmentObject, SegmentObjectsRecord
from pyspark_kafkalog.object_store.store import ObjectStoreError
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.file_root import FileRoot, on_file_system
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry, read_epochs
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, LEADER_EPOCH_CHECKPOINT, TopicPartition, partition_path
from pyspark_kafkalog.storage.segment.recovery import check_closed_segment
from pyspark_kafkalog.storage.segment.stored import StoredSegment, closed_segments
from pyspark_kafkalog.tiered.own_location import LOCATION_CONFIG
from pyspark_kafkalog.tiered.own_segments import put_segment
from pyspark_kafkalog.tiered.remote_storage import OwnStorage
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import MIB


def why_not(topic: str, config: LogConfig) -> str | None:
    """Why segments of a topic with this configuration are not copied; None if they are."""
    if topic in INTERNAL_TOPICS:
        return "the topic is internal"
    if not config.remote_storage_enable:
        return "remote.storage.enable is not true"
    if config.remote_log_copy_disable:
        return "remote.log.copy.disable is true"
    return "the topic is compacted" if config.compact else None


def remote_end(partition: PartitionImage) -> int | None:
    """The offset after the last one in remote storage; None if nothing is there."""
    return partition.segments[-1].end_offset if partition.segments else None


def only_local(partition: PartitionImage, closed: Sequence[StoredSegment]) -> list[StoredSegment]:
    """Those of the `closed` segments with offsets of the log that remote storage does not have."""
    end = remote_end(partition)
    start = max(partition.state.log_start_offset, -1 if end is None else end)
    return [each for each in closed if each.end_offset > start]


def due(partition: PartitionImage, closed: Sequence[StoredSegment]) -> list[StoredSegment]:
    """Those of the `closed` segments that are to be copied, in order."""
    stable = partition.state.last_stable_offset
    return [each for each in only_local(partition, closed) if each.end_offset <= stable]


def check_follows(name: str, partition: PartitionImage, segments: Sequence[StoredSegment]) -> None:
    """Raise LogDirError if the due `segments` of the partition called `name` do not follow what remote storage has.

    Files are missing then. Only true while no other run can change the files.
    """
    end, start = remote_end(partition), partition.state.log_start_offset
    if segments and (segments[0].base_offset > start if end is None else segments[0].base_offset != end):
        raise LogDirError(
            f"{name}: expected a closed segment with offset {start if end is None else end}, where its copies end, "
            f"found one at {segments[0].base_offset}: run kafkalog verify"
        )


_LOG: Final = logging.getLogger(__name__)

ACTION: Final = "tier"
#: Put before a commit, or one segment. Locks are held and objects are unknown to others for as long.
COMMIT_BYTES: Final = 1024 * MIB
#: Partitions that one commit covers, and whose locks, one file descriptor each, are held meanwhile.
PARTITIONS_A_COMMIT: Final = 128
_IN_STORE: Final = "its segments are in the store, and `kafkalog merge-segments` puts them there"
_DAMAGED: Final = "nothing was copied; run kafkalog verify, and restore the segment from a copy"


def tier_segments(
    root: Root,
    *,
    topics: Collection[str] | None = None,
    partitions: Collection[TopicPartition] | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> list[PartitionReport]:
    """Copy what is due of all topics, of `topics`, or of `partitions`; return one report for each partition.

    With `dry_run` nothing changes. A partition's failure is in its report, and the others continue; if the remote
    storage fails, all that are left have its error. Raises ReadOnlyLogDirError for a broker's directory, LogDirError
    for a root in an object store, InvalidConfigError without remote storage, UnknownTopicError.
    """
    root.refresh()
    files, storage = _tiered_root(root)
    chosen = partitions_to_work_on(files, topics, partitions)
    run = _Run(files, storage, files.clock() if now_ms is None else now_ms, dry_run)
    return run.copy([_Work(each) for each in chosen])


@dataclass(slots=True, eq=False)
class _Work(PartitionWork):
    """One partition during the run."""

    segments_count: int = 0
    size_bytes: int = 0
    end_offset: int | None = None
    skipped: str | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.skipped is not None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is due of a partition. `epochs` are those of its log."""

    of: TopicIdPartition
    directory: Path
    segments: tuple[StoredSegment, ...]
    epochs: tuple[EpochEntry, ...]
    log_start_offset: int
    planned_at: int


@dataclass(frozen=True, slots=True)
class _Put:
    """A segment that is in remote storage and not committed yet."""

    work: _Work
    plan: _Plan
    segment: SegmentObject


@dataclass(frozen=True, slots=True)
class _Run:
    root: FileRoot
    storage: OwnStorage
    now_ms: int
    dry_run: bool

    def copy(self, works: Sequence[_Work]) -> list[PartitionReport]:
        """Copy what is due, commit by commit."""
        waiting = deque(works)
        while waiting:
            with ExitStack() as locks:
                puts: list[_Put] = []
                try:
                    self._fill(puts, waiting, locks)
                except ObjectStoreError as error:
                    for work in waiting:
                        work.error = error
                    waiting.clear()
                self._commit(puts)
        return [
            work.report(
                ACTION,
                bytes_copied=work.size_bytes,
                segments_copied=work.segments_count,
                remote_end_offset=work.end_offset,
                skipped=work.skipped,
            )
            for work in works
        ]

    def _fill(self, puts: list[_Put], waiting: deque[_Work], locks: ExitStack) -> None:
        """Put segments until there is enough for a commit; partitions of which nothing is left leave `waiting`.

        Raises ObjectStoreError.
        """
        room = COMMIT_BYTES
        for _ in range(min(len(waiting), locks_at_once(PARTITIONS_A_COMMIT))):
            work = waiting[0]
            if work.is_over:
                waiting.popleft()
                continue
            with work.step("copying to remote storage"):
                plan = self._plan(work, locks)
                for each in () if plan is None else plan.segments:
                    if room <= 0:
                        return
                    room -= each.size_bytes
                    assert plan is not None
                    self._check(plan, each)
                    if self.dry_run:
                        _count(work, each.size_bytes, each.end_offset)
                    else:
                        puts.append(_Put(work, plan, self._put(plan, each)))
            if isinstance(work.error, ObjectStoreError):
                raise work.error
            waiting.popleft()

    def _plan(self, work: _Work, locks: ExitStack) -> _Plan | None:
        """What is due of a partition whose lock is taken until `locks` end; None if nothing is to be done."""
        topic_partition = work.topic_partition
        image = self.root.store.refresh()
        topic = image.topic(topic_partition.topic)
        partition = image.partition(topic.name, topic_partition.partition)
        work.skipped = why_not(topic.name, self.root.log_config(topic.name))
        work.end_offset = remote_end(partition)
        if work.skipped is not None or not has_directory(self.root, topic_partition):
            return None
        target = SwapTarget.of(self.root, topic_partition, self.now_ms)
        found = self._due(target, partition, image.next_offset)
        if self.dry_run or not found.segments:
            return found
        if not locks.enter_context(partition_lock(target.directory, fs=self.root.fs)):
            work.skipped = ANOTHER_RUN
            return None
        image = self.root.store.refresh()  # as of when no other run can change the files any more
        target.finish()
        partition = image.partition(topic.name, topic_partition.partition)
        found = self._due(target, partition, image.next_offset)
        check_follows(str(topic_partition), partition, found.segments)
        return found

    def _due(self, target: SwapTarget, partition: PartitionImage, planned_at: int) -> _Plan:
        closed = closed_segments(target.directory, partition.state.active_base_offset)
        return _Plan(
            TopicIdPartition(target.topic_partition.topic, target.topic_id, partition.partition),
            target.directory,
            tuple(due(partition, closed)),
            read_epochs(target.directory / LEADER_EPOCH_CHECKPOINT),
            partition.state.log_start_offset,
            planned_at,
        )

    def _check(self, plan: _Plan, segment: StoredSegment) -> None:
        """Raise CorruptRecordError, CorruptIndexError or LogDirError unless the segment can be copied."""
        check_closed_segment(plan.directory, segment, are_crcs_checked=True, advice=_DAMAGED)
        LocalExtents(plan.directory).check_transaction_index(segment.base_offset, segment.end_offset)
        first_offset = max(segment.base_offset, plan.log_start_offset)
        if not plan.epochs or plan.epochs[0].start_offset > first_offset:
            raise LogDirError(
                f"{plan.directory / LEADER_EPOCH_CHECKPOINT}: expected the leader epoch of offset {first_offset}, "
                "found none: run kafkalog verify --repair"
            )

    def _put(self, plan: _Plan, segment: StoredSegment) -> SegmentObject:
        return put_segment(
            self.storage.store(),
            plan.of,
            plan.directory,
            segment.base_offset,
            segment.end_offset,
            epochs=plan.epochs,
            segment_id=new_segment_id(plan.planned_at),
            now_ms=self.now_ms,
            layout=self.storage.layout,
        )

    def _commit(self, puts: Sequence[_Put]) -> None:
        """Commit the segments that still fit; if it fails, its error is that of each partition."""
        if not puts:
            return
        try:
            self.root.commit(lambda image: list(_records(image, puts)), operation=ACTION)
        except (KafkalogError, OSError) as error:  # the commit may have been made, so nothing is deleted
            _LOG.warning("copied segments were not committed: %s", error)
            for each in puts:
                each.work.error = error
            return
        named = _named(self.root.store.refresh(), puts)
        keys: list[str] = []
        for each in puts:
            if each.segment.segment_id in named:
                _count(each.work, each.segment.size_bytes, each.segment.end_offset)
            else:
                each.work.skipped = ANOTHER_RUN
                keys += self.storage.keys(each.plan.of, each.segment)
        try:
            self.storage.store().delete(keys)
        except ObjectStoreError as error:
            _LOG.warning("copies that lost against another run are left to retention: %s", error)


def _count(work: _Work, size_bytes: int, end_offset: int) -> None:
    work.segments_count += 1
    work.size_bytes += size_bytes
    work.end_offset = end_offset


def _records(image: MetadataImage, puts: Sequence[_Put]) -> Iterator[MetadataRecord]:
    """A record for each partition with the segments that follow what remote storage has in `image`."""
    broker = broker_config(image)
    plans = {id(each.plan): each.plan for each in puts}
    for plan in plans.values():
        topic = image.topics.get(plan.of.topic)
        if topic is None or topic.topic_id != plan.of.topic_id or why_not(topic.name, broker.log_config(topic.configs)):
            continue
        partition = topic.partitions[plan.of.partition]
        end, log_start = remote_end(partition), partition.state.log_start_offset
        fitting: list[SegmentObject] = []
        for segment in (each.segment for each in puts if each.plan is plan):
            if segment.end_offset <= log_start:
                continue
            if segment.base_offset <= log_start if end is None else segment.base_offset == end:
                fitting.append(segment)
                end = segment.end_offset
        if fitting:
            yield SegmentObjectsRecord(
                topic_id=plan.of.topic_id,
                partition=plan.of.partition,
                planned_at=plan.planned_at,
                segments=tuple(fitting),
            )


def _named(image: MetadataImage, puts: Sequence[_Put]) -> set[str]:
    """The ids of the segments of the partitions of `puts`, and of those that are dropped already."""
    named = {segment.segment_id for dropped in image.dropped for segment in dropped.segments}
    for of in {each.plan.of for each in puts}:
        partition = image.find(of.topic, of.partition)
        named.update(segment.segment_id for segment in (() if partition is None else partition.segments))
    return named


def _tiered_root(root: Root) -> tuple[FileRoot, OwnStorage]:
    """The root and its remote storage. Raises LogDirError, ReadOnlyLogDirError, InvalidConfigError without one."""
    files = on_file_system(root, instead=_IN_STORE)
    if files.remote_storage is None:
        raise InvalidConfigError(
            f"{files.path} has no remote storage: expected the configuration {LOCATION_CONFIG}; set it with kafkalog "
            "configs --broker-defaults"
        )
    return files, files.remote_storage


def _chosen(job_run: JobRun) -> Sequence[TopicPartition]:
    """The partitions of the run's topics; without such, of all topics that are tiered."""
    root, _ = _tiered_root(job_run.open())
    chosen = root.partitions(job_run.topics)
    if job_run.topics is not None:
        return chosen
    is_tiered = {name: why_not(name, root.log_config(name)) is None for name in root.topics()}
    return [each for each in chosen if is_tiered[each.topic]]


def _sizes(job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
    root, _ = _tiered_root(job_run.open())

    def due_bytes(topic_partition: TopicPartition) -> int:
        partition = root.store.image.find(topic_partition.topic, topic_partition.partition)
        if partition is None or not partition.state.has_closed_segments:
            return 0
        closed = closed_segments(partition_path(root.path, topic_partition), partition.state.active_base_offset)
        return sum(segment.size_bytes for segment in due(partition, closed))

    return known_sizes(partitions, due_bytes)


TIER_JOB: Final = PartitionsJob(
    action=ACTION, work=tier_segments, chosen=_chosen, sizes=_sizes, partitions_max=PARTITIONS_A_COMMIT
)
