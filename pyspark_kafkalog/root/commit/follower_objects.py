"""`FollowerWriter` of a root in an object store: many partitions in one commit, with at most one object for appends.

    check      the batches of each append: lengths, order of offsets, leader epochs, CRCs
    plan       by the newest image: which changes fit, and the runs of the batches, one for each leader epoch
    compose    one body of all runs: inside the commit if it is small, else put as an object
    commit     a record of the body, in which each run has the leader's epoch; the states of the partitions

Batches that a task has put into the store (staged_batches.py) are not read: their object is committed as it is, unless
what was planned when it was put has expired.

A run begins where the log ends, so a gap in front of a batch, as compaction leaves it, is part of its run. Truncations
are in object_truncation.py. A commit that loses the race for its name is planned again; the object stays if the same
batches are stored again.

A crash before the commit leaves objects that no commit names: the clean-up deletes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.metadata.extents import AT_LOG_END, RunPlace, data_object_record
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, partition_state_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.object_store.store import ObjectStoreError
from pyspark_kafkalog.root.commit.cut_files import CutFiles, KeptRecords, StoredCutFiles, ignore_kept, saved_once
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
    check_changes,
    producer_ids_record,
    state_after_append,
    state_before,
    truncation_records,
)
from pyspark_kafkalog.root.commit.object_truncation import ObjectPuts, PlannedTruncation, plan_truncation
from pyspark_kafkalog.root.commit.runs import runs_of
from pyspark_kafkalog.root.commit.staged_batches import RunSpan, StagedBatches
from pyspark_kafkalog.root.objects.extents import ObjectExtents
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.root.objects.producers import (
    KnownProducers,
    rows_of,
    with_transaction_starts,
)
from pyspark_kafkalog.storage.log.follower import FETCH_RESPONSE, FollowerBatches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producers import producer_batches
from pyspark_kafkalog.storage.log.reader import LogReader
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.objects.data_object import ProducerBatchKind, encode_rows
from pyspark_kafkalog.storage.objects.upload import INLINE_BYTES, NewRun
from pyspark_kafkalog.units import INT32_MAX

_OPERATION: Final = "follow"


class ObjectFollowerWriter:
    """Commits the changes of the follower with `following_id` to a root in an object store. See `FollowerWriter`."""

    def __init__(
        self,
        root: ObjectRoot,
        following_id: str,
        *,
        inline_bytes: int = INLINE_BYTES,
        on_kept: KeptRecords = ignore_kept,
    ) -> None:
        self._root = root
        self._following_id = following_id
        self._cut_files = StoredCutFiles(root.objects, clock=root.clock, on_kept=on_kept)
        self._inline_bytes = inline_bytes
        self._producers = KnownProducers(root.objects)

    def commit(
        self, changes: Sequence[FollowerChange], records: PlanFollowerRecords = no_records
    ) -> list[FollowerResult]:
        """As in FollowerWriter."""
        checked = check_changes(changes)
        with saved_once(self._cut_files):
            return self._commit(checked, records)

    def close(self) -> None:
        """Does nothing: no file is open between commits."""

    def _commit(
        self, changes: Sequence[CheckedChange | KafkalogError], records: PlanFollowerRecords
    ) -> list[FollowerResult]:
        puts = ObjectPuts(self._root.objects, uuid.uuid4().hex, inline_bytes=self._inline_bytes)
        commit = _Commit(self._root, self._producers, puts, changes, records, self._cut_files)
        try:
            self._root.store.commit(commit.build, operation=_OPERATION, following_id=self._following_id)
        except InvalidRecordError as error:
            # One of the changes breaks an invariant, or all are too large for one commit.
            if len(changes) + (records is not no_records) <= 1:
                if not changes:
                    raise
                return [error]
            self._commit((), records)
            return [result for each in changes for result in self._alone(each)]
        return commit.results()

    def _alone(self, change: CheckedChange | KafkalogError) -> list[FollowerResult]:
        """Commit one change. What prevents the commit is its result."""
        try:
            return self._commit([change], no_records)
        except KafkalogError as error:
            return [error]


@dataclass(frozen=True, slots=True)
class _PlannedAppend:
    """An append that fits the image: its runs, what the commit says of them, and the state after it.

    `runs` is empty for batches that are in the store.
    """

    checked: CheckedAppend
    runs: Sequence[NewRun]
    places: Sequence[RunPlace]
    before: LogState
    after: LogState


class _Commit:
    """The commit of changes that were checked. Results are those of the last attempt to build it."""

    def __init__(
        self,
        root: ObjectRoot,
        producers: KnownProducers,
        puts: ObjectPuts,
        changes: Sequence[CheckedChange | KafkalogError],
        records: PlanFollowerRecords,
        cut_files: CutFiles,
    ) -> None:
        self._cut_files = cut_files
        self._root = root
        self._producers = producers
        self._puts = puts
        self._changes = changes
        self._plan_records = records
        self._results: dict[TopicPartition, LogState | KafkalogError] = {}

    def results(self) -> list[FollowerResult]:
        return [
            each if isinstance(each, KafkalogError) else self._results[_partition_of(each)] for each in self._changes
        ]

    def build(self, image: MetadataImage) -> list[MetadataRecord]:
        """The records of the commit after `image`; none if nothing changes. Raises ObjectStoreError."""
        self._results = {}
        further = list(self._plan_records(image))
        appends: list[_PlannedAppend] = []
        cuts: list[PlannedTruncation] = []
        for change in self._changes:
            if isinstance(change, KafkalogError):
                continue
            of = _partition_of(change)
            try:
                if isinstance(change, CheckedAppend):
                    appends.append(self._plan_append(image, change))
                    self._results[of] = appends[-1].after
                else:
                    cuts.append(self._plan_cut(image, change))
                    self._results[of] = cuts[-1].after
            except ObjectStoreError:
                raise  # of the store, not of the change
            except KafkalogError as error:
                self._results[of] = error.with_traceback(None)
        return [
            *further,
            *producer_ids_record(image, [each.checked for each in appends]),
            *self._cut_records(image, cuts),
            *self._append_records(image, appends),
        ]

    # Appends

    def _plan_append(self, image: MetadataImage, checked: CheckedAppend) -> _PlannedAppend:
        change, batches = checked.change, checked.batches
        before = state_before(image, change)
        of = change.topic_partition
        partition = image.partition(of.topic, of.partition)
        if not len(batches):
            return _PlannedAppend(checked, (), (), before, state_after_append(change, before, before))
        runs: list[NewRun] = []
        base_offset = AT_LOG_END
        if isinstance(batches, StagedBatches):
            _check_staged(of, image, partition, batches)
            spans, rows = batches.spans, batches.producer_rows.copy()
        else:
            base_offset = _check_begin(of, partition, batches)
            first_offset = before.log_end_offset if base_offset == AT_LOG_END else base_offset
            made = runs_of(change.topic_id, of.partition, first_offset, batches)
            runs = [run for run, _, _ in made]
            spans = [RunSpan(run.first_offset, end_offset, epoch) for run, epoch, end_offset in made]
            stored = producer_batches(batches.data, batches.batches, data_position=0, file=FETCH_RESPONSE)
            rows = rows_of(stored)
        rows, first_unstable = self._with_starts(image, of, rows, before)
        appended = replace(
            before,
            log_end_offset=batches.next_offset,
            leader_epoch=max(before.leader_epoch, spans[-1].leader_epoch),
            first_unstable_offset=first_unstable,
        )
        after = state_after_append(change, before, appended)
        return _PlannedAppend(checked, runs, _places(spans, rows, base_offset), before, after)

    def _with_starts(
        self, image: MetadataImage, of: TopicPartition, rows: NDArray[np.void], before: LogState
    ) -> tuple[NDArray[np.void], int]:
        """What the commit says of the batches of producers, and the first offset of the oldest open transaction."""
        if not (rows["kind"] != ProducerBatchKind.DATA).any():
            # No transaction begins or ends: who has one open does not matter.
            return rows, before.first_unstable_offset
        base = self._producers.at(image, of, now_ms=self._root.clock())
        appended = with_transaction_starts(base, rows)
        return appended.rows, appended.first_unstable_offset

    def _append_records(self, image: MetadataImage, appends: Sequence[_PlannedAppend]) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        composed = [each for each in appends if each.runs]
        runs = [(run, place) for each in composed for run, place in zip(each.runs, each.places, strict=True)]
        if runs:
            written, places = self._puts.put(image, runs)
            records.append(data_object_record(written, places))
        for each in appends:
            batches = each.checked.batches
            if isinstance(batches, StagedBatches):
                records.append(data_object_record(batches.written, each.places))
            if each.after != replace(each.before, log_end_offset=each.after.log_end_offset):
                of = each.checked.change.topic_partition
                records.append(partition_state_record(each.checked.change.topic_id, of.partition, each.after))
        return records

    # Truncations

    def _plan_cut(self, image: MetadataImage, change: Truncation | StartAt) -> PlannedTruncation:
        before = state_before(image, change)
        planned = plan_truncation(self._root, image, change, before)
        if isinstance(change, Truncation):
            first_offset = max(planned.after.log_end_offset, before.log_start_offset)
        else:
            first_offset = before.log_start_offset if change.keeps_records else before.log_end_offset
        if first_offset < before.log_end_offset:
            extents = ObjectExtents(lambda: planned.log, lambda: planned.log, self._root.objects)
            reader = LogReader(extents, change.topic_partition)
            self._cut_files.save(change.topic_partition, reader, first_offset, before.log_end_offset)
        self._producers.forget(change.topic_id, change.topic_partition.partition)
        return planned

    def _cut_records(self, image: MetadataImage, cuts: Sequence[PlannedTruncation]) -> list[MetadataRecord]:
        changed = [each for each in cuts if each.changes]
        if not changed:
            return []
        records = truncation_records(image, is_cut=True)
        for each in changed:
            records += each.records(image, self._puts)
        return records


def _partition_of(change: CheckedChange) -> TopicPartition:
    return change.change.topic_partition if isinstance(change, CheckedAppend) else change.topic_partition


def _places(spans: Sequence[RunSpan], rows: NDArray[np.void], base_offset: int) -> list[RunPlace]:
    """What the commit says of runs with these offsets. `base_offset`: of the first one."""
    places: list[RunPlace] = []
    for span in spans:
        own = rows[(rows["base_offset"] >= span.first_offset) & (rows["base_offset"] < span.end_offset)]
        run_base = AT_LOG_END if places else base_offset
        places.append(RunPlace(encode_rows(own), span.leader_epoch, run_base, span.first_offset))
    return places


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
