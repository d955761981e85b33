"""Carries out commits on a file system: a leader's units and a follower's changes, on logs that stay open.

    lock the root; refresh the image
    plan       by the writer (committer.py), on logs that are opened for it (open_logs.py). Truncations and starts of a
               follower change no log yet; what they cut is saved (cut_files.py)
    append, publish    (open_logs.py)
    cut        what a follower's truncations drop, and the files of removed topics; make the directories of new ones
    unlock

A usual commit has batches of clients alone, for logs that are open. Instead of refreshing the image it holds the end of
the commit log (`HeldEnd` in metadata/local/log.py) from before the plan until it is published.

What a crash before the publish leaves is in open_logs.py. A crash after it may leave the bytes of a truncation,
which are above the high watermark now, and those below a log that starts later, which retention removes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CommitConflictError, InvalidRecordError, KafkalogError
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.local.backend import NextCommit
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AppendedBatches,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.messages.usual_commits import STATES_MAX
from pyspark_kafkalog.metadata.root_lock import DEFAULT_LOCK_TIMEOUT_S, LockHeldError
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.root.commit.changes import StartAt, Truncation
from pyspark_kafkalog.root.commit.committer import (
    Attempt,
    CheckedFollowerAppend,
    Plan,
    producer_ids_record,
    state_after_append,
    truncation_record,
)
from pyspark_kafkalog.root.commit.cut_files import CutFiles, KeptRecords, LocalCutFiles
from pyspark_kafkalog.root.commit.leader_plan import PartitionPlan, PlacedBatches, UsualAppend
from pyspark_kafkalog.root.commit.open_logs import FileCommits, LogNotKeptError, OpenLog, OpenLogs
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    LOG_START_OFFSET_CHECKPOINT,
    lower_cleaned_offset,
    offsets_by_partition,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.filesystem import flush_earlier
from pyspark_kafkalog.storage.log.follower import (
    append_as_follower,
    delete_records,
    drop_outdated,
    empty_state,
    truncated_state,
)
from pyspark_kafkalog.storage.log.leader_append import LeaderBatches, ProducerView
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.reader import LocalExtents, LogReader
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

_LOG: Final = logging.getLogger(__name__)

#: How often a commit is retried after it lost the race to a writer that does not take the root's lock.
_ATTEMPTS: Final = 10
#: More than a commit and the metadata records of each unit take, unless the unit makes further ones.
_RECORDS_BYTES: Final = 512
#: How much of a partition that is far behind may stay in the page cache, about.
_CACHED_BYTES: Final = 32 * MIB


class FileEngine(FileCommits):
    """Carries out commits on a file system. See `CommitEngine` and `FileCommits`."""

    def cut_files(self, on_kept: KeptRecords) -> LocalCutFiles:
        """As in CommitEngine."""
        return LocalCutFiles(self.root.path, clock=self.root.clock, fs=self.root.fs, on_kept=on_kept)

    def carry_out(self, plan: Plan) -> FileAttempt:
        """As in CommitEngine."""
        return self._carry_out(plan, DEFAULT_LOCK_TIMEOUT_S, may_resume=True)

    def carry_out_at_once(self, plan: Plan, units_count: int) -> FileAttempt | None:
        """As in CommitEngine."""
        if self.store.snapshot_follows((1 + units_count) * _RECORDS_BYTES):
            return None
        try:
            return self._carry_out(plan, 0, may_resume=False)
        except (LockHeldError, LogNotKeptError):
            return None

    def append_usual(self, appends: Sequence[UsualAppend], *, is_at_once: bool) -> list[PlacedBatches] | None:
        """As in CommitEngine."""
        if len(appends) > 1 and len({each.of.topic_partition for each in appends}) < len(appends):
            return None
        if len(appends) > STATES_MAX or self.following_id is not None:
            return None
        try:
            with self.locked(0 if is_at_once else DEFAULT_LOCK_TIMEOUT_S), self.directories:
                commit = self.store.next_commit((1 + len(appends)) * _RECORDS_BYTES)
                if commit is None:
                    return None
                with commit:
                    return self._append_usual(commit, appends)
        except (CommitConflictError, LogNotKeptError):
            return None
        except LockHeldError:
            if is_at_once:
                return None
            raise

    def _append_usual(self, commit: NextCommit, appends: Sequence[UsualAppend]) -> list[PlacedBatches] | None:
        """Raises LogNotKeptError, and then nothing was done."""
        self.logs.begin()
        now_ms = self.root.clock()
        plans, results = [], []
        for each in appends:
            plan = self._usual_plan(commit.image, each.of.topic_partition, each.of.topic_id)
            placed = None if plan is None else each.add(plan, now_ms)
            if plan is None or placed is None:
                return None
            plans.append(_LeaderAppend(plan))
            results.append(placed)
        self.publish_usual(commit, sorted(plans, key=lambda each: each.topic_partition))
        return results

    def _usual_plan(self, image: MetadataImage, of: TopicPartition, topic_id: str | None) -> PartitionPlan | None:
        """The plan of an append to an open log of files alone, without an open transaction; None for another log."""
        topic = image.topics.get(of.topic)
        partition = image.find(of.topic, of.partition)
        if topic is None or partition is None or topic_id not in (None, topic.topic_id):
            return None
        state = partition.state
        if partition.has_extents or state.has_remote_start or state.first_unstable_offset >= 0:
            return None
        try:
            return _plan_of(of, self.logs.open(image, of, may_resume=False))
        except (KafkalogError, OSError):
            return None

    def flush_earlier(self) -> None:
        """As in CommitEngine."""
        with self.locked():
            flush_earlier(self.root.path, self.fs)
            self.store.sync()

    def _carry_out(self, plan: Plan, timeout_s: float, *, may_resume: bool) -> FileAttempt:
        # The commit of a follower may give the directories of topics other names.
        keeping = self.directories if self.following_id is None else contextlib.nullcontext()
        with self.locked(timeout_s), keeping:
            for left in reversed(range(_ATTEMPTS)):
                attempt = FileAttempt(self, self.begin(), may_resume=may_resume)
                plan(attempt)
                try:
                    attempt.carry_out()
                except CommitConflictError:
                    if not left:
                        raise
                else:
                    return attempt
            raise AssertionError


class FileAttempt(Attempt):
    """One attempt to commit with `engine`. See `Attempt`. Unless it `may_resume`, only open logs are appended to."""

    def __init__(self, engine: FileEngine, image: MetadataImage, *, may_resume: bool) -> None:
        super().__init__(image, engine.root.clock())
        self._engine = engine
        self._may_resume = may_resume
        self._appends: list[_LeaderAppend | _FollowerAppend] = []
        #: The states after truncations and starts.
        self._cut_states: dict[TopicPartition, LogState] = {}

    def open(self, topic_partition: TopicPartition) -> PartitionPlan:
        return _plan_of(
            topic_partition, self._engine.logs.open(self.image, topic_partition, may_resume=self._may_resume)
        )

    def append(self, plan: PartitionPlan) -> None:
        self._appends.append(_LeaderAppend(plan))

    def _append_copied(self, checked: CheckedFollowerAppend, before: LogState) -> None:
        if isinstance(checked.batches, StagedBatches):
            raise InvalidRecordError(
                f"{checked.topic_partition}: batches in an object store cannot be appended to a file"
            )
        self._appends.append(_FollowerAppend(checked, before, self.refused))

    def _cut(self, change: Truncation | StartAt, before: LogState, cut_files: CutFiles) -> None:
        of = change.topic_partition
        log = self._engine.logs.open(self.image, of).log
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
            expiration_ms = self._engine.root.configs.broker(self.image).producer_id_expiration_ms
            state = truncated_state(log, change.end_offset, producer_id_expiration_ms=expiration_ms)
            first_offset = max(state.log_end_offset, before.log_start_offset)
        if first_offset < before.log_end_offset:
            reader = LogReader(LocalExtents(log.directory), of)
            cut_files.save(of, reader, first_offset, before.log_end_offset)
        state = replace(state, leader_epoch=max(before.leader_epoch, state.leader_epoch))
        self._cut_states[of] = self.states[of] = state

    def carry_out(self) -> None:
        """Append and publish what was planned; then let the files follow. Raises as `append_and_publish`."""
        if not (self._appends or self._cut_states or self.records):
            return
        after = self._engine.append_and_publish(self.image, self._appends, self._commit_records).image
        if self._engine.following_id is not None:
            self._settle(after)

    def _commit_records(self, image: MetadataImage, states: Mapping[TopicPartition, LogState]) -> list[MetadataRecord]:
        records = list(self.records)
        if self._cut_states:
            records.append(truncation_record(image))
        if self._engine.following_id is not None:
            self.states.update(states)
            made = (each.checked for each in self._appends if isinstance(each, _FollowerAppend))
            records += producer_ids_record(image, [each for each in made if each.topic_partition in states])
        for each in self._appends:
            of = each.topic_partition
            if of in states:
                topic_id = image.topic(of.topic).topic_id
                records.append(partition_state_record(topic_id, of.partition, states[of], each.appended()))
        for of, state in self._cut_states.items():
            records.append(partition_state_record(image.topic(of.topic).topic_id, of.partition, state))
        return records

    def _settle(self, after: MetadataImage) -> None:
        """Let the files follow what was committed, where appends did not do it. The next writer repairs a failure."""
        engine, logs = self._engine, self._engine.logs
        moved: list[TopicPartition] = []
        for of, state in self.states.items():
            is_cut = of in self._cut_states
            if is_cut:
                logs.drop(of)
            elif state.log_start_offset <= self.image.partition(of.topic, of.partition).state.log_start_offset:
                continue
            moved.append(of)
            with _after_commit(of, logs):
                log = logs.open(after, of).log
                if is_cut:
                    drop_outdated(log)
                else:
                    delete_records(log, state.log_start_offset)
                logs.committed(of, state)
                if is_cut:
                    lower_cleaned_offset(engine.root.path, of, state.log_end_offset, fs=engine.root.fs)
        if moved:
            self._checkpoint_log_starts(after, moved)
        if any(isinstance(each, (TopicRecord, PartitionRecord, RemoveTopicRecord)) for each in self.records):
            engine.root.follow_topics(self.image, after)

    def _checkpoint_log_starts(self, after: MetadataImage, moved: Iterable[TopicPartition]) -> None:
        """Give Kafka the log starts that are inside of segments, or that remote storage holds."""
        path = self._engine.root.path / LOG_START_OFFSET_CHECKPOINT
        with _after_commit(LOG_START_OFFSET_CHECKPOINT):
            before = offsets_by_partition(path)
            offsets = dict(before)
            for of in moved:
                partition = after.partition(of.topic, of.partition)
                first_base = self._engine.logs.open(after, of).log.segments.first.base_offset
                offsets.pop(of, None)
                if partition.segments or partition.state.log_start_offset > first_base:
                    offsets[of] = partition.state.log_start_offset
            if offsets != before:
                write_offset_checkpoint(path, offsets, fs=self._engine.root.fs)


class _LeaderAppend:
    """A leader's append to one partition. See `PartitionAppend`."""

    def __init__(self, plan: PartitionPlan) -> None:
        self._plan = plan

    @property
    def topic_partition(self) -> TopicPartition:
        return self._plan.topic_partition

    @property
    def size_bytes(self) -> int:
        return sum([len(each.data) for each in self._plan.parts])

    def append_to(self, logs: OpenLogs, image: MetadataImage) -> UnifiedLog:
        log = logs.open(image, self.topic_partition).log
        if self._plan.leader_epoch >= 0:
            log.epochs.note(self._plan.leader_epoch, log.log_end_offset)
        log.append(*_joined(self._plan.parts), known=self._plan.appended_producers)
        return log

    def state_of(self, log: UnifiedLog) -> LogState:
        return log.state()

    def appended(self) -> AppendedBatches:
        """The range for the history."""
        first_offset, records, size_bytes = self.range()
        return AppendedBatches(first_offset=first_offset, records=records, bytes=size_bytes)

    def range(self) -> tuple[int, int, int]:
        """The first offset, the number of records and their bytes."""
        first_offset = int(self._plan.parts[0].batches["base_offset"][0])
        # A leader stores no batch with gaps.
        return first_offset, self._plan.next_offset - first_offset, self.size_bytes


def _plan_of(of: TopicPartition, opened: OpenLog) -> PartitionPlan:
    log, producers = opened.log, ProducerView(opened.log.producers.producers)
    return PartitionPlan(of, log.config, log.log_start_offset, log.log_end_offset, opened.leader_epoch, producers)


def _joined(parts: Sequence[LeaderBatches]) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """The bytes of all batches, and their table."""
    if len(parts) == 1:
        return parts[0].data, parts[0].batches
    # As bytes: numpy would compare the fields of the tables, which takes longer than to copy them.
    batches = np.frombuffer(bytearray().join([each.batches.tobytes() for each in parts]), dtype=BATCH_DTYPE)
    sizes = batches["size_bytes"]
    batches["position"] = np.cumsum(sizes) - sizes
    return np.frombuffer(b"".join([each.data.data for each in parts]), dtype=np.uint8), batches


class _FollowerAppend:
    """The append of checked batches to one partition, which may be refused. See `PartitionAppend`."""

    def __init__(
        self, checked: CheckedFollowerAppend, before: LogState, refused: dict[TopicPartition, KafkalogError]
    ) -> None:
        self.checked = checked
        self._before = before
        self._refused = refused

    @property
    def topic_partition(self) -> TopicPartition:
        return self.checked.topic_partition

    @property
    def size_bytes(self) -> int:
        return self.checked.batches.size_bytes

    def append_to(self, logs: OpenLogs, image: MetadataImage) -> UnifiedLog | None:
        of, change, batches = self.topic_partition, self.checked.change, self.checked.batches
        try:
            assert not isinstance(batches, StagedBatches)
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
        return state_after_append(self.checked.change, self._before, log.state())

    def appended(self) -> AppendedBatches | None:
        """The range for the history; None if there is no batch."""
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
