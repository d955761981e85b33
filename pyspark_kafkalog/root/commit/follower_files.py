"""`FollowerWriter` of a root on a file system: changes the partitions' logs and publishes one commit.

    check      the batches of each append: lengths, order of offsets, leader epochs, CRCs
    lock the root; refresh the image; the root must still follow with the writer's id
    append     one write a partition (root/commit/file_engine.py)
    plan       the states after truncations and starts, which change no log yet; what they cut is saved (cut_files.py)
    publish    one commit with all new states and further records, when the appends are on disk
    cut        what the truncations drop, and the files of removed topics; make the directories of new ones
    unlock

A crash before the publish leaves bytes above the high watermark, which the next writer truncates. A crash after it may
leave the bytes of a truncation, which are above the high watermark now, and those below a log that starts later, which
retention removes. Logs stay open between commits.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import CommitConflictError, InvalidRecordError, KafkalogError, LogDirError
from pyspark_kafkalog.metadata.following import check_follower
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import AppendedBatches, MetadataRecord
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.commit.cut_files import CutFiles, KeptRecords, LocalCutFiles, ignore_kept, saved_once
from pyspark_kafkalog.root.commit.file_engine import ATTEMPTS, OpenLogCommits, state_records
from pyspark_kafkalog.root.commit.follower_changes import (
    FollowerChange,
    FollowerResult,
    PlanFollowerRecords,
    StartAt,
    Truncation,
    no_records,
)
from pyspark_kafkalog.root.commit.follower_plan import (
    CheckedAppend,
    CheckedChange,
    changes_topics,
    check_changes,
    producer_ids_record,
    state_after_append,
    state_before,
    truncation_records,
)
from pyspark_kafkalog.root.commit.open_logs import OpenLogs
from pyspark_kafkalog.root.commit.staged_batches import StagedBatches
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    lower_cleaned_offset,
    offsets_by_partition,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.log.follower import (
    append_as_follower,
    delete_records,
    drop_outdated,
    empty_state,
    truncated_state,
)
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

_LOG: Final = logging.getLogger(__name__)
_OPERATION: Final = "follow"
#: How much of a partition that is far behind may stay in the page cache, about.
_CACHED_BYTES: Final = 32 * MIB


class FileFollowerWriter:
    """Commits the changes of the follower with `following_id` to a root on a file system. See `FollowerWriter`."""

    def __init__(
        self, root: FileRoot, following_id: str, *, flush: FlushMode, on_kept: KeptRecords = ignore_kept
    ) -> None:
        self._root = root
        self._following_id = following_id
        self._cut_files = LocalCutFiles(root.path, clock=root.clock, fs=root.fs, on_kept=on_kept)
        self._commits = OpenLogCommits(root, flush=flush, operation=_OPERATION, following_id=following_id)

    def commit(
        self, changes: Sequence[FollowerChange], records: PlanFollowerRecords = no_records
    ) -> list[FollowerResult]:
        """As in FollowerWriter."""
        checked = check_changes(changes)
        with self._commits.locked(), saved_once(self._cut_files):
            return self._commit_locked(checked, records)

    def close(self) -> None:
        """As in FollowerWriter."""
        self._commits.logs.close()

    def _commit_locked(
        self, changes: Sequence[CheckedChange | KafkalogError], records: PlanFollowerRecords
    ) -> list[FollowerResult]:
        for attempt in range(ATTEMPTS):
            image = self._commits.begin()
            check_follower(image, self._following_id)
            commit = _Commit(self._root, self._commits, image, changes, records, self._cut_files)
            try:
                return commit.carry_out()
            except CommitConflictError:
                if attempt == ATTEMPTS - 1:
                    raise
            except InvalidRecordError as error:
                # One of the changes breaks an invariant, or all are too large for one commit.
                if len(changes) + (records is not no_records) <= 1:
                    if not changes:
                        raise
                    return [error]
                self._commit_locked((), records)
                return [result for each in changes for result in self._alone(each)]
        raise AssertionError

    def _alone(self, change: CheckedChange | KafkalogError) -> list[FollowerResult]:
        """Commit one change. What prevents the commit is its result."""
        try:
            return self._commit_locked([change], no_records)
        except KafkalogError as error:
            return [error]
        except OSError as error:
            return [LogDirError(str(error))]


class _Commit:
    """One attempt to commit changes that were checked, on `image`."""

    def __init__(
        self,
        root: FileRoot,
        commits: OpenLogCommits,
        image: MetadataImage,
        changes: Sequence[CheckedChange | KafkalogError],
        records: PlanFollowerRecords,
        cut_files: CutFiles,
    ) -> None:
        self._cut_files = cut_files
        self._root = root
        self._commits = commits
        self._image = image
        self._changes = changes
        self._plan_records = records
        self._refused: dict[TopicPartition, KafkalogError] = {}
        self._cut: dict[TopicPartition, LogState] = {}

    def carry_out(self) -> list[FollowerResult]:
        further = list(self._plan_records(self._image))
        appends: list[_Append] = []
        for change in self._changes:
            if isinstance(change, CheckedAppend):
                appends.append(_Append(change, self._refused))
            elif not isinstance(change, KafkalogError):
                self._plan_cut(change)
        states: dict[TopicPartition, LogState] = {}

        def records(appended: Mapping[TopicPartition, LogState]) -> list[MetadataRecord]:
            states.update(appended)
            made = [each.checked for each in appends if each.topic_partition in appended]
            return [
                *further,
                *truncation_records(self._image, is_cut=bool(self._cut)),
                *producer_ids_record(self._image, made),
                *state_records(self._image, {**appended, **self._cut}, appends),
            ]

        after = self._commits.carry_out(self._image, appends, records)
        self._settle(after, states)
        if changes_topics(further):
            self._root.follow_topics(self._image, after)
        return [self._result(each, {**states, **self._cut}) for each in self._changes]

    def _result(
        self, change: CheckedChange | KafkalogError, states: Mapping[TopicPartition, LogState]
    ) -> FollowerResult:
        if isinstance(change, KafkalogError):
            return change
        of = change.change.topic_partition if isinstance(change, CheckedAppend) else change.topic_partition
        return states[of] if of in states else self._refused[of]

    def _plan_cut(self, change: Truncation | StartAt) -> None:
        """Decide the state after a truncation, or after a start elsewhere."""
        of = change.topic_partition
        try:
            before = state_before(self._image, change)
            log = self._open(of)
            if PartitionListing.read(log.directory).swaps:
                raise InvalidRecordError(
                    f"{log.directory} has a segment that a killed cleaning or merge was about to put in place: run "
                    "kafkalog log-cleaner or merge-segments, which completes that; then it can be truncated"
                )
            first_offset = before.log_end_offset
            if isinstance(change, StartAt):
                state = empty_state(log, change.start_offset)
                if change.keeps_records:
                    first_offset = max(before.log_start_offset, before.local_log_start_offset)
            else:
                expiration_ms = broker_config(self._image).producer_id_expiration_ms
                state = truncated_state(log, change.end_offset, producer_id_expiration_ms=expiration_ms)
                first_offset = max(state.log_end_offset, before.log_start_offset)
            if first_offset < before.log_end_offset:
                reader = LogReader(LocalExtents(log.directory), of)
                self._cut_files.save(of, reader, first_offset, before.log_end_offset)
        except KafkalogError as error:
            self._refused[of] = error.with_traceback(None)
        else:
            self._cut[of] = replace(state, leader_epoch=max(before.leader_epoch, state.leader_epoch))

    def _open(self, of: TopicPartition) -> UnifiedLog:
        return self._commits.logs.open(self._image, of).log

    def _settle(self, after: MetadataImage, appended: Mapping[TopicPartition, LogState]) -> None:
        """Let the files follow what was committed, where appends did not do it. The next writer repairs a failure."""
        logs = self._commits.logs
        for of, state in self._cut.items():
            logs.drop(of)
            with _after_commit(of, logs):
                drop_outdated(logs.open(after, of).log)
                logs.committed(of, state)
                lower_cleaned_offset(self._root.path, of, state.log_end_offset, fs=self._root.fs)
        moved = list(self._cut)
        for of, state in appended.items():
            if state.log_start_offset > self._image.partition(of.topic, of.partition).state.log_start_offset:
                moved.append(of)
                with _after_commit(of, logs):
                    delete_records(logs.open(after, of).log, state.log_start_offset)
                    logs.committed(of, state)
        if moved:
            self._checkpoint_log_starts(after, moved)

    def _checkpoint_log_starts(self, after: MetadataImage, moved: Iterable[TopicPartition]) -> None:
        """Give Kafka the log starts that are inside of segments, or that remote storage holds."""
        path = self._root.path / LOG_START_OFFSET_CHECKPOINT
        with _after_commit(LOG_START_OFFSET_CHECKPOINT):
            before = offsets_by_partition(path)
            offsets = dict(before)
            for of in moved:
                partition = after.partition(of.topic, of.partition)
                first_base = self._commits.logs.open(after, of).log.segments.first.base_offset
                offsets.pop(of, None)
                if partition.segments or partition.state.log_start_offset > first_base:
                    offsets[of] = partition.state.log_start_offset
            if offsets != before:
                write_offset_checkpoint(path, offsets, fs=self._root.fs)


class _Append:
    """The append of checked batches to one partition, which may be refused. See `PartitionAppend`."""

    def __init__(self, checked: CheckedAppend, refused: dict[TopicPartition, KafkalogError]) -> None:
        self.checked = checked
        self._refused = refused
        self._before: LogState | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.checked.change.topic_partition

    def append_to(self, logs: OpenLogs, image: MetadataImage) -> UnifiedLog | None:
        of, change, batches = self.topic_partition, self.checked.change, self.checked.batches
        try:
            if isinstance(batches, StagedBatches):
                raise InvalidRecordError(f"{of}: batches in an object store cannot be appended to a file")
            self._before = state_before(image, change)
            log = logs.open(image, of).log
            log.epochs.truncate_from_end(log.log_end_offset + 1)  # what a crashed append has left
            append_as_follower(log, batches, is_read_soon=not change.is_far_behind)
            if change.is_far_behind:
                # Reaches back to earlier appends, whose pages can be dropped once they are on disk.
                log.active_segment.drop_cached(_CACHED_BYTES)
            latest = log.epochs.latest
            # While records come, the epoch may have begun further up at the leader.
            if not len(batches) and change.leader_epoch > (-1 if latest is None else latest.epoch):
                log.assign_epoch(change.leader_epoch, log.log_end_offset)
        except KafkalogError as error:
            self._refused[of] = error.with_traceback(None)
            return None
        return log

    def state_of(self, log: UnifiedLog) -> LogState:
        assert self._before is not None
        return state_after_append(self.checked.change, self._before, log.state())

    def appended(self) -> AppendedBatches | None:
        batches = self.checked.batches
        if not len(batches):
            return None
        return AppendedBatches(
            first_offset=batches.first_offset, records=batches.records_count, bytes=batches.size_bytes
        )


@contextlib.contextmanager
def _after_commit(of: TopicPartition | str, logs: OpenLogs | None = None) -> Iterator[None]:
    """Log an error in the block, after which the log of the partition has to be opened again."""
    try:
        yield
    except (KafkalogError, OSError) as error:
        if logs is not None and isinstance(of, TopicPartition):
            logs.drop(of)
        _LOG.warning("%s: files do not follow the commit yet; the next writer does that: %s", of, error)
