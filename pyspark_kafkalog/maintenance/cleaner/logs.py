"""The logs that a cleaning works on: what it needs of them, and those of roots on a file system.

    CleanableLogs   what clean.py asks for, of either kind of root
    CleanedFiles    segments as files: replaced by swaps (maintenance/swap.py), under the partition's maintenance lock
    CleanedObjects  segment objects: replaced by commits (objects.py)

A log is inspected as of an image. A copied group takes the place of its segments when `replace` gets to it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.cleaner.copy import CopyCounts, GroupCopier
from pyspark_kafkalog.maintenance.cleaner.filter import CleanedTransactions
from pyspark_kafkalog.maintenance.cleaner.offset_map import OffsetMap, has_task_files, map_bytes, remove_task_files
from pyspark_kafkalog.maintenance.cleaner.plan import CleanPlan, plan_cleaning
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanOffset, store_clean_offsets
from pyspark_kafkalog.maintenance.jobs.partition import (
    PartitionReport,
    file_claim,
    join_partition_lock,
    partition_lock,
    shared_partition_lock,
)
from pyspark_kafkalog.maintenance.jobs.tasks import NO_LIMIT
from pyspark_kafkalog.maintenance.swap import SwapTarget, has_directory, remove_deleted_files
from pyspark_kafkalog.metadata.image import PartitionImage
from pyspark_kafkalog.metadata.messages.metadata_records import SegmentObject
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import cleaned_offsets
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import load_latest_snapshot, producer_state_at
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, partition_path, segment_file
from pyspark_kafkalog.storage.segment.reader import Extent
from pyspark_kafkalog.storage.segment.recovery import check_closed_segment
from pyspark_kafkalog.storage.segment.stored import StoredSegment, closed_segments, local_extent
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.units import INT32_MAX

#: The action of the cleaner's reports, and the operation of its commits on object roots.
CLEAN_ACTION: Final = "clean"

#: The largest map that Kafka creates for a thread.
_BUFFER_BYTES_MAX: Final = INT32_MAX

Group = Sequence[StoredSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerLimits:
    """What one cleaning, or each of its tasks, may use: bytes of the map of keys, how full it gets, bytes a second."""

    buffer_bytes: int
    load_factor: float = 0.9
    bytes_per_second: float = NO_LIMIT

    @classmethod
    def of(cls, config: BrokerConfig, slots: int = 1) -> CleanerLimits:
        """The limits of a broker divided by `slots` concurrent tasks."""
        return cls(
            buffer_bytes=min(config.log_cleaner_dedupe_buffer_size // slots, _BUFFER_BYTES_MAX),
            load_factor=config.log_cleaner_io_buffer_load_factor,
            bytes_per_second=config.log_cleaner_io_max_bytes_per_second / slots,
        )

    def new_map(self, plan: CleanPlan) -> OffsetMap:
        """An empty map with room for the keys of the plan, within the buffer."""
        return OffsetMap(map_bytes(plan, self.buffer_bytes, self.load_factor), self.load_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableLog:
    """A partition as of an image, with its cleaning plan. Tasks get it from the driver.

    `planned_at` is the metadata offset of the image. `is_tidy`: a cleaning finds nothing to finish or to remove before
    or after it. `needs_merge`: the plan counts runs as segments.
    """

    of: TopicIdPartition
    partition: PartitionImage
    config: LogConfig
    plan: CleanPlan
    planned_at: int
    is_tidy: bool = True
    needs_merge: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's name."""
        return self.of.topic_partition

    @property
    def state(self) -> LogState:
        """The partition's state."""
        return self.partition.state


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedGroup:
    """A group whose new segment is there: as `.cleaned` files, or as `segment` in the store, planned at `planned_at`.

    `claim` is of the group's first segment, see `CleanableLogs.claim_of`.
    """

    group: Group
    counts: CopyCounts
    claim: int | None = None
    segment: SegmentObject | None = None
    planned_at: int = 0


class CleanableLogs:
    """The logs of a root, for one run of the cleaner at `now_ms`. Methods raise KafkalogError, OSError.

    What a kind of root does not need, locks or notes, does nothing here. `fs`: the calls that write new segments.
    """

    #: Whether all tasks of a cleaning see the partition's directory, and exchange maps of keys there.
    shares_files: ClassVar[bool] = False

    now_ms: int
    fs: FileSystem

    def exists(self, topic_partition: TopicPartition) -> bool:
        """Whether anything was ever written to the partition."""
        return True

    def lock(self, topic_partition: TopicPartition) -> AbstractContextManager[bool]:
        """Keep other runs from the partition for the block; False when another run has it."""
        return nullcontext(True)

    def share_lock(self, topic_partition: TopicPartition) -> AbstractContextManager[str | None]:
        """As `lock`, shared with the tasks that get the ticket; None when another run has the partition."""
        return nullcontext("")

    def join_lock(self, topic_partition: TopicPartition, ticket: str) -> AbstractContextManager[None]:
        """In a task: share the lock for the block."""
        return nullcontext()

    def claim_of(self, log: CleanableLog, group: Group) -> int | None:
        """What identifies the group's first segment as it is now."""
        return None

    def inspect(self, topic_partition: TopicPartition) -> CleanableLog:
        """The partition and its cleaning plan, as of the root's last refresh. Raises UnknownTopicError."""
        raise NotImplementedError

    def begin(self, topic_partition: TopicPartition, is_due: Callable[[CleanableLog], bool]) -> CleanableLog:
        """Refresh the root, put the log in the state that a cleaning begins with, and return its plan then."""
        raise NotImplementedError

    def check(self, log: CleanableLog, find: Callable[[CleanableLog], None]) -> None:
        """Read what a cleaning reads, for a dry run. `find` finds the survivors of a log."""
        raise NotImplementedError

    def name(self, log: CleanableLog) -> str:
        """The log's name in errors."""
        return "the log"

    def extent(self, log: CleanableLog, segment: StoredSegment) -> Extent:
        """A segment of the log, to be read."""
        raise NotImplementedError

    def aborted(self, log: CleanableLog) -> list[AbortedTxn]:
        """The aborted transactions that begin below the end of the dirty part."""
        raise NotImplementedError

    def check_unended(
        self, log: CleanableLog, aborted: Sequence[AbortedTxn], transactions: CleanedTransactions
    ) -> None:
        """Compare the transactions that reach over the end of the dirty part with their markers."""

    def producers(self, log: CleanableLog) -> dict[int, ProducerStateEntry]:
        """The active producers by id."""
        raise NotImplementedError

    def scratch(self, log: CleanableLog) -> AbstractContextManager[Path]:
        """The directory for the new segments."""
        raise NotImplementedError

    def copy(self, log: CleanableLog, copier: GroupCopier, group: Group, claim: int | None = None) -> CopiedGroup:
        """Copy a group into a new segment, which is not in use before `replace` gets to it."""
        raise NotImplementedError

    def replace(self, log: CleanableLog, copies: Iterable[CopiedGroup], done: list[CopiedGroup]) -> None:
        """Let the copies take the places of their groups, in order; add each to `done` when that is decided."""
        raise NotImplementedError

    def is_outdated(self, log: CleanableLog, done: Sequence[CopiedGroup]) -> bool:
        """Whether an error may only say that others have replaced segments of the log since it was planned."""
        return False

    def finish(self, log: CleanableLog) -> None:
        """Note that the log is clean, after all groups are replaced."""

    def end(self, topic_partition: TopicPartition) -> None:
        """The work on the partition is done; not called after an error."""

    def end_run(self) -> None:
        """The run over all partitions is done."""


class CleanedFiles(CleanableLogs):
    """The logs of a root on a file system.

    `later` gets the lines of the cleaner's checkpoint, for the caller to store; None: they are stored at once.
    """

    shares_files = True

    def __init__(self, root: FileRoot, now_ms: int, later: list[CleanOffset] | None = None) -> None:
        self._root = root
        self.now_ms = now_ms
        self.fs = root.fs
        self._later = later

    def _directory(self, topic_partition: TopicPartition) -> Path:
        return partition_path(self._root.path, topic_partition)

    def exists(self, topic_partition: TopicPartition) -> bool:
        return has_directory(self._root, topic_partition)

    def lock(self, topic_partition: TopicPartition) -> AbstractContextManager[bool]:
        return partition_lock(self._directory(topic_partition), fs=self.fs)

    @contextlib.contextmanager
    def share_lock(self, topic_partition: TopicPartition) -> Iterator[str | None]:
        directory = self._directory(topic_partition)
        with shared_partition_lock(directory, fs=self.fs) as ticket:
            try:
                yield ticket
            finally:
                if ticket is not None:
                    remove_task_files(directory, fs=self.fs)

    def join_lock(self, topic_partition: TopicPartition, ticket: str) -> AbstractContextManager[None]:
        return join_partition_lock(self._directory(topic_partition), ticket)

    def claim_of(self, log: CleanableLog, group: Group) -> int | None:
        return os.stat(self._first_file(log, group)).st_ino

    def _first_file(self, log: CleanableLog, group: Group) -> Path:
        return segment_file(self._directory(log.topic_partition), group[0].base_offset, LOG_SUFFIX)

    def inspect(self, topic_partition: TopicPartition) -> CleanableLog:
        image = self._root.store.image
        topic = image.topic(topic_partition.topic)
        partition = image.partition(topic.name, topic_partition.partition)
        directory = self._directory(topic_partition)
        config = self._root.log_config(topic.name)
        listing: PartitionListing | None = None
        closed: list[StoredSegment] = []
        with contextlib.suppress(FileNotFoundError):
            listing = PartitionListing.read(directory)
        if listing is not None:
            active = partition.state.active_base_offset
            closed = closed_segments(directory, active, with_index_sizes=True, listing=listing)
        plan = plan_cleaning(
            closed,
            partition.state,
            config,
            checkpoint_offset=cleaned_offsets(self._root.path).get(topic_partition),
            now_ms=self.now_ms,
            largest_timestamp_ms=lambda segment: segment.largest_timestamp_ms(directory),
            first_timestamp_ms=lambda segment: segment.first_timestamp_ms(directory),
        )
        return CleanableLog(
            of=TopicIdPartition(topic.name, topic.topic_id, partition.partition),
            partition=partition,
            config=config,
            plan=plan,
            planned_at=image.next_offset,
            is_tidy=listing is not None
            and listing.is_tidy
            and not has_task_files(listing)
            and not plan.resets_checkpoint,
        )

    def begin(self, topic_partition: TopicPartition, is_due: Callable[[CleanableLog], bool]) -> CleanableLog:
        """Finish what a killed run left, whether the log is due or not."""
        log = self._inspect_anew(topic_partition)
        if log.config.compact and not log.is_tidy:
            self._target(log).finish()
            remove_task_files(self._directory(topic_partition), fs=self.fs)
            log = self._inspect_anew(topic_partition)  # finished swaps change the segments
            if log.plan.resets_checkpoint:
                self._note_clean(log, log.plan.first_dirty_offset)
        return log

    def _inspect_anew(self, topic_partition: TopicPartition) -> CleanableLog:
        self._root.refresh()
        return self.inspect(topic_partition)

    def check(self, log: CleanableLog, find: Callable[[CleanableLog], None]) -> None:
        for segment in log.plan.segments:
            check_closed_segment(self._directory(log.topic_partition), segment, are_crcs_checked=True)

    def extent(self, log: CleanableLog, segment: StoredSegment) -> Extent:
        return local_extent(self._directory(log.topic_partition), segment)

    def aborted(self, log: CleanableLog) -> list[AbortedTxn]:
        segments = log.plan.segments
        extents = LocalExtents(self._directory(log.topic_partition))
        start_offset = segments[0].base_offset if segments else 0
        return list(extents.indexed_transactions(start_offset, log.plan.first_uncleanable_offset))

    def producers(self, log: CleanableLog) -> dict[int, ProducerStateEntry]:
        expiration_ms = self._root.broker_config().producer_id_expiration_ms
        return active_producers(
            self._directory(log.topic_partition), log.state, now_ms=self.now_ms, expiration_ms=expiration_ms
        )

    def scratch(self, log: CleanableLog) -> AbstractContextManager[Path]:
        return nullcontext(self._directory(log.topic_partition))

    def copy(self, log: CleanableLog, copier: GroupCopier, group: Group, claim: int | None = None) -> CopiedGroup:
        with self._claimed(log, group, claim):
            return CopiedGroup(group=group, counts=copier.copy(group), claim=claim)

    def _claimed(self, log: CleanableLog, group: Group, claim: int | None) -> AbstractContextManager[None]:
        """The group, for one attempt at a time; without a claim the caller has the lock alone."""
        return nullcontext() if claim is None else file_claim(self._first_file(log, group), claim)

    def replace(self, log: CleanableLog, copies: Iterable[CopiedGroup], done: list[CopiedGroup]) -> None:
        """Swap each copy in before the next one is made or waited for."""
        for copied in copies:
            bases = [segment.base_offset for segment in copied.group]
            with self._claimed(log, copied.group, copied.claim):
                self._target(log).swap(bases[0], bases)
            done.append(copied)

    def _target(self, log: CleanableLog) -> SwapTarget:
        return SwapTarget(self._root, log.topic_partition, log.of.topic_id, log.config, self.now_ms, log.planned_at)

    def finish(self, log: CleanableLog) -> None:
        self._note_clean(log, log.plan.first_uncleanable_offset)

    def _note_clean(self, log: CleanableLog, offset: int) -> None:
        """Note that the partition is clean below `offset`. Raises UnknownTopicError for a topic deleted meanwhile."""
        self._target(log).state_now()
        clean = CleanOffset(log.topic_partition, log.of.topic_id, log.planned_at, offset)
        if self._later is None:
            store_clean_offsets(self._root, [clean])
        else:
            self._later.append(clean)

    def end(self, topic_partition: TopicPartition) -> None:
        """Remove `.deleted` files whose delay is over."""
        delay_ms = self._root.log_config(topic_partition.topic).file_delete_delay_ms
        directory = self._directory(topic_partition)
        remove_deleted_files(directory, now_ms=self.now_ms, delay_ms=delay_ms, fs=self.fs)


def judge(report: PartitionReport, log: CleanableLog, *, force: bool = False) -> PartitionReport:
    """The report with the dirty ratio and the dirty range, and with the reason (`skipped`) for not cleaning, if any."""
    plan, config = log.plan, log.config
    if not config.compact:
        return replace(report, skipped="cleanup.policy is not compact")
    is_due = plan.needs_cleaning(config.min_cleanable_dirty_ratio) or (force and plan.cleanable_bytes > 0)
    skipped = None
    if not is_due or plan.first_dirty_offset >= plan.first_uncleanable_offset:
        skipped = "nothing to clean" if not plan.cleanable_bytes else "not dirty enough"
    return replace(
        report,
        skipped=skipped,
        dirty_percent=round(100 * plan.dirty_ratio, 1),
        first_dirty_offset=plan.first_dirty_offset,
        first_uncleanable_offset=plan.first_uncleanable_offset,
    )


def active_producers(
    directory: Path, state: LogState, *, now_ms: int, expiration_ms: int
) -> dict[int, ProducerStateEntry]:
    """The producers that a broker would know at the end of the log, by id.

    They come from the latest snapshot and, if a producer with an id has written since the log began, the batches after
    it.
    """
    if state.producer is not None:
        producers = producer_state_at(
            directory,
            state.log_end_offset,
            log_start_offset=state.log_start_offset,
            expiration_ms=expiration_ms,
            now_ms=now_ms,
        )
    else:
        producers = ProducerStateManager(directory, expiration_ms=expiration_ms)
        load_latest_snapshot(producers, state.log_start_offset, state.log_end_offset, now_ms)
    producers.remove_expired(now_ms)
    return {producer_id: each.entry() for producer_id, each in producers.producers.items()}
