"""Carries out commits in an object store: many changes, one commit, at most one object put for all appends.

    plan        by the writer (committer.py), on the newest image: which changes fit, and the runs of their batches;
                a follower has one for each leader epoch. Producers are those of the image and of the newest segments
                (root/object_producers.py)
    compose     one body of all runs, sorted by partition: inside the commit if it is small, else put as an object
    commit      a record of the body with the runs and the batches of producers in them; the state of partitions of
                which more changes than the log end, as the oldest open transaction; further records

Batches that a task has put into the store (runs.py) are not read: their object is committed as it is, unless what was
planned when it was put has expired. A run of a follower begins where the log ends, so a gap in front of a batch, as
compaction leaves it, is part of its run.

A commit that loses the race for its name is planned again on the newest image. The object stays as it is if the same
batches are stored again: their offsets are added when they are read.

Nothing is locked. The commit of the other units, or else a refresh, confirms that the newest image has judged a batch
that was refused, or was a duplicate. A crash before the commit leaves objects that no commit names: the clean-up
deletes them.

*Truncation.* Objects do not change, so a log is cut between its extents. Of the segment or run that contains the end,
the batches before it are stored again, as new runs:

    state      the log ends after the last extent that is kept; the commit drops the extents above it
    runs       the batches that remain of the extent that was cut, up to `_PIECE_BYTES` in an object
    state      the log end, and what transactions are open there

All of it is one commit. A crash before it leaves objects that no commit names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError, OffsetOutOfRangeError
from pyspark_kafkalog.metadata.extents import AT_LOG_END, RunAttributes, data_object_record
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, partition_state_record
from pyspark_kafkalog.metadata.invariants import check_not_following
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.metadata.store import NewCommit
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.commit.changes import StartAt, Truncation
from pyspark_kafkalog.root.commit.committer import (
    Attempt,
    CheckedFollowerAppend,
    Plan,
    producer_ids_record,
    state_after_append,
    truncation_record,
)
from pyspark_kafkalog.root.commit.cut_files import CutFiles, KeptRecords, StoredCutFiles
from pyspark_kafkalog.root.commit.leader_plan import PartitionPlan, UsualAppend
from pyspark_kafkalog.root.commit.runs import ObjectPuts, RunSpan, StagedBatches, run_attributes_of, runs_of
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.object_log import ObjectLog
from pyspark_kafkalog.root.object_producers import (
    KnownProducers,
    LazyProducers,
    PartitionProducers,
    appended_to,
    earlier_batches,
    producers_below,
    rows_of,
    with_transaction_starts,
)
from pyspark_kafkalog.storage.log.follower import FETCH_RESPONSE, FollowerBatches
from pyspark_kafkalog.storage.log.leader_append import ProducerView
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producers import ProducerBatch, producer_batches
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import ProducerBatchKind, encode_rows
from pyspark_kafkalog.storage.objects.upload import INLINE_BYTES, NewRun
from pyspark_kafkalog.units import INT32_MAX, MIB

_PIECE_BYTES: Final = 32 * MIB


@dataclass(frozen=True, slots=True)
class PlannedTruncation:
    """The truncation of one partition. `cut` is its state when the log ends at an extent; None: it is `after`.

    `log` and `end_offset` are the log before, and where what is stored again of it ends. `producers` are those where
    that begins.
    """

    topic_partition: TopicPartition
    topic_id: str
    before: LogState
    after: LogState
    store: ObjectStore
    log: ObjectLog
    cut: LogState | None = None
    end_offset: int = 0

    @property
    def changes(self) -> bool:
        """Whether there is anything to commit."""
        return self.after != self.before

    def records(self, image: MetadataImage, puts: ObjectPuts) -> Iterator[MetadataRecord]:
        """The records of the truncation, in order; puts what is stored again."""
        number = self.topic_partition.partition
        if self.cut is not None:
            yield partition_state_record(self.topic_id, number, self.cut)
            producers = producers_below(image, self.store, self.topic_partition, self.cut.log_end_offset)
            first_offset = self.cut.log_end_offset
            for batches in _kept_batches(self.store, self.log, first_offset, self.end_offset):
                rows = _rows(producers, batches)
                runs, spans = runs_of(self.topic_id, number, first_offset, batches)
                # Nothing for the history: the batches were there before.
                places = [RunAttributes(encode_rows(span.rows(rows)), span.leader_epoch) for span in spans]
                yield data_object_record(*puts.put(image, list(zip(runs, places, strict=True))))
                first_offset = batches.next_offset
        yield partition_state_record(self.topic_id, number, self.after)


def plan_truncation(
    store: ObjectStore, image: MetadataImage, change: Truncation | StartAt, before: LogState
) -> PlannedTruncation:
    """Decide what `change` leaves of the partition's log. Reads the batches of the extent that is cut.

    Raises OffsetOutOfRangeError for a negative offset, DiskFormatError for damage, ObjectStoreError.
    """
    of = change.topic_partition
    log = ObjectLog.of(image, of)
    offset = change.start_offset if isinstance(change, StartAt) else change.end_offset
    if offset < 0:
        raise OffsetOutOfRangeError(f"{of} cannot be truncated to the negative offset {offset}")
    if isinstance(change, StartAt):
        return PlannedTruncation(of, change.topic_id, before, _empty(before, offset), store, log)
    if offset >= before.log_end_offset:
        return PlannedTruncation(of, change.topic_id, before, before, store, log)
    kept_end = _kept_end(image.partition(of.topic, of.partition), offset)
    producers = producers_below(image, store, of, kept_end)
    end_offset = kept_end
    for batches in _kept_batches(store, log, kept_end, offset):
        _rows(producers, batches)
        end_offset = batches.next_offset
    if end_offset <= before.log_start_offset:
        empty = _empty(before, min(offset, before.log_start_offset))
        return PlannedTruncation(of, change.topic_id, before, empty, store, log)
    first_unstable_offset = next(iter(producers.open_transactions), -1)
    after = replace(before, log_end_offset=end_offset, first_unstable_offset=first_unstable_offset)
    if end_offset == kept_end:
        return PlannedTruncation(of, change.topic_id, before, after, store, log)
    # The log starts below for a moment: what is known of producers from before the log start stays.
    cut = replace(before, log_end_offset=kept_end, log_start_offset=0)
    return PlannedTruncation(of, change.topic_id, before, after, store, log, cut, end_offset)


def _empty(before: LogState, offset: int) -> LogState:
    return LogState(leader_epoch=before.leader_epoch, log_start_offset=offset, log_end_offset=offset)


def _kept_end(partition: PartitionImage, offset: int) -> int:
    """The end of the last extent that ends at or below `offset`; where the first one begins if there is none."""
    ends = [each.end_offset for each in partition.segments] + partition.runs.table["end_offset"].tolist()
    return max((end for end in ends if end <= offset), default=partition.extents_range[0])


def _kept_batches(store: ObjectStore, log: ObjectLog, start_offset: int, end_offset: int) -> Iterator[FollowerBatches]:
    """The batches of `log` from `start_offset` on that end at or below `end_offset`, some MiB at a time."""
    if start_offset >= end_offset:
        return
    extents = log.extents(store, lambda: log)
    pieces: list[NDArray[np.uint8]] = []
    tables: list[NDArray[np.void]] = []
    size_bytes = 0
    for run in LogReader(extents, log.topic_partition).runs(start_offset, end_offset):
        batches = run.batches[(run.batches["base_offset"] >= start_offset) & (run.batches["last_offset"] < end_offset)]
        if not len(batches):
            continue
        start = int(batches["position"][0]) - run.position
        end = int(batches["position"][-1] + batches["size_bytes"][-1]) - run.position
        table = batches.copy()
        table["position"] += size_bytes - int(batches["position"][0])
        pieces.append(np.array(run.data[start:end]))
        tables.append(table)
        size_bytes += end - start
        if size_bytes >= _PIECE_BYTES:
            yield FollowerBatches(np.concatenate(pieces), np.concatenate(tables))
            pieces, tables, size_bytes = [], [], 0
    if pieces:
        yield FollowerBatches(np.concatenate(pieces), np.concatenate(tables))


def _rows(producers: PartitionProducers, batches: FollowerBatches) -> NDArray[np.void]:
    """The commit's rows of the batches of producers in `batches`, which are added to `producers`."""
    stored = producer_batches(batches.data, batches.batches, data_position=0, file="<batches stored again>")
    rows = appended_to(producers, stored).rows
    producers.add(rows)
    return rows


class ObjectEngine:
    """Carries out commits to `root`, whose store is `objects`. See `CommitEngine`.

    `operation` is the commits' operation in the history. `following_id`: they are those of the follower that has it.
    """

    def __init__(
        self,
        root: NativeRoot,
        objects: ObjectStore,
        *,
        operation: str = "append",
        following_id: str | None = None,
        inline_bytes: int = INLINE_BYTES,
    ) -> None:
        self.root = root
        self.objects = objects
        self.producers = KnownProducers(objects)
        self._operation = operation
        self._following_id = following_id
        self._inline_bytes = inline_bytes

    @property
    def waits_for_disk(self) -> bool:
        """No: what is in the store is durable."""
        return False

    def cut_files(self, on_kept: KeptRecords) -> StoredCutFiles:
        """As in CommitEngine."""
        return StoredCutFiles(self.objects, clock=self.root.clock, on_kept=on_kept)

    def carry_out(self, plan: Plan) -> ObjectAttempt:
        """As in CommitEngine."""
        puts = ObjectPuts(self.objects, uuid.uuid4().hex, inline_bytes=self._inline_bytes)
        now_ms = self.root.clock()  # the same for all attempts, as it may be in the batches
        made = ObjectAttempt(self, MetadataImage(), puts, now_ms)

        def build(image: MetadataImage) -> list[MetadataRecord]:
            nonlocal made
            if self._following_id is None:
                check_not_following(image)
            made = ObjectAttempt(self, image, puts, now_ms)
            plan(made)
            return made.commit_records()

        new = NewCommit(build=build, operation=self._operation, following_id=self._following_id)
        self.root.store.make(new)
        return made

    def carry_out_at_once(self, plan: Plan, units_count: int) -> None:
        """See CommitEngine: every commit waits for the store."""

    def append_usual(self, appends: Sequence[UsualAppend], *, is_at_once: bool) -> None:
        """See CommitEngine: there is no shorter way to a store."""

    def flush_earlier(self) -> None:
        """Does nothing: what is in the store is durable."""

    def close(self) -> None:
        """Does nothing: no file is open between commits."""


@dataclass(frozen=True, slots=True)
class _PlannedAppend:
    """An append to one partition: its runs, the commit's facts about them, and the states before and after.

    `staged`: the batches that are in the store already, which have no `runs`.
    """

    topic_id: str
    partition: int
    runs: Sequence[NewRun]
    attributes: Sequence[RunAttributes]
    before: LogState
    after: LogState
    staged: StagedBatches | None = None


class ObjectAttempt(Attempt):
    """One attempt to commit with `engine`, whose objects are put by `puts`. See `Attempt`."""

    def __init__(self, engine: ObjectEngine, image: MetadataImage, puts: ObjectPuts, now_ms: int) -> None:
        super().__init__(image, now_ms)
        self._engine = engine
        self._puts = puts
        self._producers: dict[TopicPartition, LazyProducers] = {}
        self._appends: list[_PlannedAppend] = []
        self._copied: list[CheckedFollowerAppend] = []
        self._cuts: list[PlannedTruncation] = []

    def commit_records(self) -> list[MetadataRecord]:
        """The records of the commit; none if nothing changes. Puts objects. Raises ObjectStoreError."""
        records = [*self.records, *producer_ids_record(self.image, self._copied)]
        cuts = [each for each in self._cuts if each.changes]
        if cuts:
            records.append(truncation_record(self.image))
        for cut in cuts:
            records += cut.records(self.image, self._puts)
        runs = [pair for each in self._appends for pair in zip(each.runs, each.attributes, strict=False)]
        if runs:
            records.append(data_object_record(*self._puts.put(self.image, runs)))
        for each in self._appends:
            if each.staged is not None:
                records.append(data_object_record(each.staged.written, each.attributes))
            if each.after != replace(each.before, log_end_offset=each.after.log_end_offset):
                records.append(partition_state_record(each.topic_id, each.partition, each.after))
        return records

    # Of a leader

    def open(self, topic_partition: TopicPartition) -> PartitionPlan:
        image = self.image
        topic = image.topic(topic_partition.topic)
        state = image.partition(topic_partition.topic, topic_partition.partition).state
        producers = LazyProducers(
            partial(self._engine.producers.at, image, topic_partition, now_ms=self.now_ms),
            partial(self._earlier_batches, topic_partition),
        )
        self._producers[topic_partition] = producers
        return PartitionPlan(
            topic_partition,
            self._engine.root.configs.of(image, topic),
            state.log_start_offset,
            state.log_end_offset,
            state.leader_epoch,
            ProducerView(producers, recalled=producers.recalled),
        )

    def _earlier_batches(self, of: TopicPartition, producer_id: int, end_offset: int) -> list[ProducerBatch]:
        reader = LogReader(self._engine.root.partition_in(self.image, of.topic, of.partition).extents(), of)
        return list(earlier_batches(self.image, of, reader, producer_id, end_offset))

    def append(self, plan: PartitionPlan) -> None:
        of = plan.topic_partition
        topic_id = self.image.topic(of.topic).topic_id
        before = self.image.partition(of.topic, of.partition).state
        after, rows = replace(before, log_end_offset=plan.next_offset), b""
        if plan.producer_batches:
            appended = appended_to(self._producers[of].base, plan.producer_batches)
            rows = encode_rows(appended.rows)
            after = replace(after, first_unstable_offset=appended.first_unstable_offset)
        run = NewRun(topic_id, of.partition, before.log_end_offset, plan.parts)
        place = RunAttributes(rows, first_offset=before.log_end_offset)
        self._appends.append(_PlannedAppend(topic_id, of.partition, [run], [place], before, after))

    # Of a follower

    def _append_copied(self, checked: CheckedFollowerAppend, before: LogState) -> None:
        change, batches, of = checked.change, checked.batches, checked.topic_partition
        partition = self.image.partition(of.topic, of.partition)
        runs: Sequence[NewRun] = ()
        attributes: Sequence[RunAttributes] = ()
        staged, appended = None, before
        if len(batches):
            base_offset = AT_LOG_END
            spans: Sequence[RunSpan]
            if isinstance(batches, StagedBatches):
                staged = batches
                _check_staged(of, self.image, partition, batches)
                spans, rows = batches.spans, batches.producer_rows.copy()
            else:
                base_offset = _check_begin(of, partition, batches)
                first_offset = before.log_end_offset if base_offset == AT_LOG_END else base_offset
                runs, spans = runs_of(change.topic_id, of.partition, first_offset, batches)
                rows = rows_of(producer_batches(batches.data, batches.batches, data_position=0, file=FETCH_RESPONSE))
            rows, first_unstable = self._with_starts(of, rows, before)
            attributes = run_attributes_of(spans, rows, base_offset)
            appended = replace(
                before,
                log_end_offset=batches.next_offset,
                leader_epoch=max(before.leader_epoch, spans[-1].leader_epoch),
                first_unstable_offset=first_unstable,
            )
        after = state_after_append(change, before, appended)
        self._appends.append(_PlannedAppend(change.topic_id, of.partition, runs, attributes, before, after, staged))
        self._copied.append(checked)
        self.states[of] = after

    def _with_starts(
        self, of: TopicPartition, rows: NDArray[np.void], before: LogState
    ) -> tuple[NDArray[np.void], int]:
        """The commit's rows of the batches of producers, and the first offset of the oldest open transaction."""
        if not (rows["kind"] != ProducerBatchKind.DATA).any():
            # No transaction begins or ends: the owners of open ones do not matter.
            return rows, before.first_unstable_offset
        base = self._engine.producers.at(self.image, of, now_ms=self.now_ms)
        appended = with_transaction_starts(base, rows)
        return appended.rows, appended.first_unstable_offset

    def _cut(self, change: Truncation | StartAt, before: LogState, cut_files: CutFiles) -> None:
        of = change.topic_partition
        planned = plan_truncation(self._engine.objects, self.image, change, before)
        if isinstance(change, Truncation):
            first_offset = max(planned.after.log_end_offset, before.log_start_offset)
        else:
            first_offset = before.log_start_offset if change.keeps_records else before.log_end_offset
        if first_offset < before.log_end_offset:
            extents = planned.log.extents(self._engine.objects, lambda: planned.log)
            cut_files.save(of, LogReader(extents, of), first_offset, before.log_end_offset)
        self._engine.producers.forget(change.topic_id, of.partition)
        self._cuts.append(planned)
        self.states[of] = planned.after


def _check_staged(of: TopicPartition, image: MetadataImage, partition: PartitionImage, staged: StagedBatches) -> None:
    """Raise InvalidRecordError for batches in the store that do not continue the log, or have expired."""
    log_end_offset = partition.state.log_end_offset
    if staged.first_offset != log_end_offset:
        raise InvalidRecordError(f"{of} ends at {log_end_offset}, and its next batches follow {staged.first_offset}")
    planned_at, horizon = staged.written.planned_at, image.staging_horizon
    if horizon.has_expired(planned_at):
        raise InvalidRecordError(
            f"{of}: batches that were put at metadata offset {planned_at} have expired, as what was planned below "
            f"{horizon.offset}: they are fetched again"
        )
    _check_epoch(partition, staged.first_offset, [each.leader_epoch for each in staged.spans])


def _check_epoch(partition: PartitionImage, first_offset: int, epochs: Sequence[int]) -> None:
    """Raise InvalidRecordError if the first known one of the leader epochs is below that of the log before."""
    last_epoch = _last_epoch(partition)
    first_epoch = next((each for each in epochs if each >= 0), last_epoch)
    if first_epoch < last_epoch:
        raise InvalidRecordError(
            f"the batch at offset {first_offset} has leader epoch {first_epoch}, but the log before it has "
            f"{last_epoch}: it diverges from the log of the leader"
        )


def _check_begin(of: TopicPartition, partition: PartitionImage, batches: FollowerBatches) -> int:
    """The base offset that the first run states: that of the first batch if an empty log begins below its start.

    Raises InvalidRecordError for batches that do not continue the log.
    """
    state = partition.state
    first_end_offset = int(batches.batches["last_offset"][0]) + 1
    _check_epoch(partition, batches.first_offset, [each.epoch for each in batches.epochs()])
    _check_gaps(of, state.log_end_offset, batches.batches)
    if batches.first_offset >= state.log_end_offset:
        return AT_LOG_END
    is_empty = state.log_start_offset == state.log_end_offset and not partition.has_extents
    if not is_empty or first_end_offset <= state.log_end_offset:
        raise InvalidRecordError(
            f"offset {batches.first_offset} to append is below the log end {state.log_end_offset} of {of}"
        )
    return batches.first_offset


def _check_gaps(of: TopicPartition, log_end_offset: int, batches: NDArray[np.void]) -> None:
    """Raise InvalidRecordError for a batch that ends too far above the one before for a run, which has both."""
    next_offsets = np.concatenate([[log_end_offset], batches["last_offset"] + 1])
    is_too_far = np.diff(next_offsets) > INT32_MAX
    if is_too_far.any():
        at = int(np.argmax(is_too_far))
        raise InvalidRecordError(
            f"{of}: the batch at offset {int(batches['base_offset'][at])} is more than {INT32_MAX} offsets above the "
            f"records before it, which end at {int(next_offsets[at])}: an object store cannot hold such a gap, follow "
            "into a file system"
        )


def _last_epoch(partition: PartitionImage) -> int:
    """The leader epoch of the last batch; -1 without one."""
    if len(partition.runs):
        return int(partition.runs.table["leader_epoch"][-1])
    known = partition.segments[-1].leader_epochs if partition.segments else ()
    return known[-1].leader_epoch if known else -1
