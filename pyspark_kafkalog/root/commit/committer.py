"""Writers of a root: they plan a commit on the newest image, and let the engine of the root carry it out.

    LeaderWriter       units of producers and coordinators (a server, commands)
    FollowerWriter     changes of a root that follows a leader

    plan               on the newest image, again if the commit has lost a race: below
    store, publish     by the engine: file_engine.py for a file system, object_engine.py for an object store

If the records of a commit break an invariant, its units or changes are committed one by one: one of them fails alone.

The plan of a leader's commit is in leader_plan.py. That of a follower is the checks of its changes, and the states and
records that follow from them.

Nothing here writes. Where the logs are, and how they are opened, is the engine's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.errors import (
    CommitConflictError,
    InvalidRecordError,
    KafkalogError,
    LogDirError,
    UnknownTopicError,
)
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, ProducerIdsRecord, StagingHorizonRecord
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStoreError
from pyspark_kafkalog.root.commit.changes import (
    CommitUnit,
    FollowerAppend,
    FollowerChange,
    FollowerResult,
    PlanFollowerRecords,
    StartAt,
    Truncation,
    UnitResult,
    no_records,
)
from pyspark_kafkalog.root.commit.checked_batches import CheckedBatches
from pyspark_kafkalog.root.commit.cut_files import CutFiles, KeptRecords, ignore_kept, saved_once
from pyspark_kafkalog.root.commit.leader_plan import (
    CheckedResult,
    CommitPlan,
    PartitionPlan,
    PlacedBatches,
    UsualAppend,
    batches_by_partition,
    plan_units,
)
from pyspark_kafkalog.root.commit.runs import StagedBatches
from pyspark_kafkalog.storage.filesystem import in_parallel
from pyspark_kafkalog.storage.log.follower import FollowerBatches, check_batches
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import MIB

#: From so many bytes on, checks of a follower's batches are worth a thread for each partition.
_SIDE_BY_SIDE_BYTES: Final = 2 * MIB


@dataclass(frozen=True, slots=True)
class CheckedFollowerAppend:
    """An append whose batches are whole and undamaged; those in a store were checked by the task that put them."""

    change: FollowerAppend
    batches: FollowerBatches | StagedBatches

    @property
    def topic_partition(self) -> TopicPartition:
        return self.change.topic_partition


CheckedChange: TypeAlias = CheckedFollowerAppend | Truncation | StartAt


def check_changes(changes: Sequence[FollowerChange]) -> list[CheckedChange | KafkalogError]:
    """Each change after all checks that need no image, or why it is refused. Reads every byte of the batches."""
    seen: set[TopicPartition] = set()
    checks: list[Callable[[], CheckedChange | KafkalogError]] = []
    size_bytes = 0
    for change in changes:
        is_second = change.topic_partition in seen
        seen.add(change.topic_partition)
        checks.append(partial(_checked, change, is_second=is_second))
        size_bytes += _unchecked_bytes(change)
    # The checksums are computed without the interpreter's lock.
    return in_parallel(checks) if size_bytes >= _SIDE_BY_SIDE_BYTES else [check() for check in checks]


def _checked(change: FollowerChange, *, is_second: bool) -> CheckedChange | KafkalogError:
    if is_second:
        return InvalidRecordError(f"{change.topic_partition}: a commit takes one change of a partition, found two")
    if not isinstance(change, FollowerAppend):
        return change
    data = change.data
    try:
        if isinstance(data, StagedBatches):
            data.check(change.topic_id, change.topic_partition)
            return CheckedFollowerAppend(change, data)
        return CheckedFollowerAppend(change, data if isinstance(data, FollowerBatches) else check_batches(data))
    except KafkalogError as error:
        return error


def _unchecked_bytes(change: FollowerChange) -> int:
    if not isinstance(change, FollowerAppend) or isinstance(change.data, (FollowerBatches, StagedBatches)):
        return 0
    return len(change.data)


def state_before(image: MetadataImage, change: FollowerChange) -> LogState:
    """The partition's state before `change`. Raises UnknownTopicError, CommitConflictError for another log end."""
    of = change.topic_partition
    topic = image.topic(of.topic)
    if topic.topic_id != change.topic_id:
        raise UnknownTopicError(f"topic {of.topic!r} has the id {topic.topic_id} here, not {change.topic_id}")
    state = image.partition(of.topic, of.partition).state
    if state.log_end_offset != change.expected_end_offset:
        raise CommitConflictError(
            f"the log of {of} ends at {state.log_end_offset}, not at {change.expected_end_offset}: continue from there"
        )
    return state


class Attempt(ABC):
    """One attempt to commit on `image`, the newest one, at the time `now_ms`: takes the plan of the commit.

    `records` are further records of the commit. Of a follower's changes, `states` are the states that the partitions
    get, and `refused` is why others of them are not made; both are complete when the commit is made.
    """

    def __init__(self, image: MetadataImage, now_ms: int) -> None:
        self.image = image
        self.now_ms = now_ms
        self.records: list[MetadataRecord] = []
        self.states: dict[TopicPartition, LogState] = {}
        self.refused: dict[TopicPartition, KafkalogError] = {}

    @abstractmethod
    def open(self, topic_partition: TopicPartition) -> PartitionPlan:
        """The plan of a leader's appends to a partition. Raises as `OpenPartition`."""

    @abstractmethod
    def append(self, plan: PartitionPlan) -> None:
        """Add a leader's appends to the commit."""

    def change(self, change: CheckedChange, cut_files: CutFiles) -> None:
        """Add a follower's change to the commit, if the log is as the change expects; `cut_files` keep what it cuts."""
        try:
            if isinstance(change, CheckedFollowerAppend):
                self._append_copied(change, state_before(self.image, change.change))
            else:
                self._cut(change, state_before(self.image, change), cut_files)
        except ObjectStoreError:
            raise  # of the store, not of the change
        except KafkalogError as error:
            self.refused[change.topic_partition] = error.with_traceback(None)

    def result_of(self, change: CheckedChange) -> LogState | KafkalogError:
        """The partition's state after a follower's change, or why the change was refused."""
        topic_partition = change.topic_partition
        return self.states[topic_partition] if topic_partition in self.states else self.refused[topic_partition]

    @abstractmethod
    def _append_copied(self, checked: CheckedFollowerAppend, before: LogState) -> None: ...

    @abstractmethod
    def _cut(self, change: Truncation | StartAt, before: LogState, cut_files: CutFiles) -> None: ...


def state_after_append(change: FollowerAppend, before: LogState, appended: LogState) -> LogState:
    """The state to commit of a log that is `appended` after the batches of `change` were added to `before`."""
    log_start_offset = max(appended.log_start_offset, min(change.log_start_offset, appended.log_end_offset))
    return replace(
        appended,
        log_start_offset=log_start_offset,
        leader_epoch=max(before.leader_epoch, appended.leader_epoch, change.leader_epoch),
    )


def producer_ids_record(image: MetadataImage, appends: Iterable[CheckedFollowerAppend]) -> list[MetadataRecord]:
    """The record after which the root never hands out one of the producer ids in the appends; none if it is not needed.

    So the image always knows the highest id that the leader has handed out, as far as it was seen here.
    """
    highest = max((each.batches.highest_producer_id for each in appends), default=-1)
    if highest < image.next_producer_id:
        return []
    return [ProducerIdsRecord(broker_id=-1, next_producer_id=highest + 1)]


def truncation_record(image: MetadataImage) -> MetadataRecord:
    """With a truncation: what cleanings, merges and tiering have planned of logs as of `image` is never committed.

    The same offsets may soon have other records, in segments of the same names.
    """
    return StagingHorizonRecord(horizon_offset=image.next_offset + 1)


#: Plans one attempt to commit; called again with another attempt if the commit has lost a race.
Plan: TypeAlias = Callable[[Attempt], None]


class CommitEngine(Protocol):
    """Carries out commits where the records of a root are."""

    @property
    def waits_for_disk(self) -> bool:
        """Whether commits of earlier writers may not be on disk when they are seen; see `flush_earlier`."""
        ...

    def cut_files(self, on_kept: KeptRecords) -> CutFiles:
        """The place for what truncations cut."""
        ...

    def carry_out(self, plan: Plan) -> Attempt:
        """Commit what `plan` plans, all of it at once; returns the attempt that was made.

        When this returns, the commit is visible, and durable as the flush mode says. Raises what `plan` raises, and
        what prevents the commit: CommitStateUnknownError if it may have been published, OSError or ObjectStoreError of
        a full or failing disk or store. After any error but CommitStateUnknownError nothing was committed.
        """
        ...

    def carry_out_at_once(self, plan: Plan, units_count: int) -> Attempt | None:
        """As `carry_out` for a plan of so many units, if nothing is to be waited for: no other writer, no log to be
        opened, no snapshot to be written. None otherwise, and then nothing was done. Not if it `waits_for_disk`.
        """
        ...

    def append_usual(self, appends: Sequence[UsualAppend], *, is_at_once: bool) -> list[PlacedBatches] | None:
        """Commit batches of clients alone in a shorter way, as most commits are: what each append got, in order.

        None, and nothing was done, if the commit has to be carried out in general; also if it `is_at_once`, as in
        `carry_out_at_once`, and something is to be waited for. Raises as `carry_out`.
        """
        ...

    def flush_earlier(self) -> None:
        """Wait until the commits of earlier writers are on disk."""
        ...

    def close(self) -> None:
        """Close the files of logs that are kept open between commits."""
        ...


class LeaderWriter:
    """Commits units, one call after the other, in one thread; one writer a process and root."""

    def __init__(self, engine: CommitEngine) -> None:
        self._engine = engine

    def commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        """Append and publish the units in order, in one commit; the result of each, an error for one that was refused.

        Raises what prevents the whole commit, as `CommitEngine.carry_out`.
        """
        results = self._commit(units)
        self._flush_earlier(results)
        return results

    def commit_checked(self, batches: Sequence[CheckedBatches]) -> list[CheckedResult]:
        """As `commit`, of batches that were checked before, each of which is a unit; the results of each partition."""
        usual = [UsualAppend(each, partial(_add_checked, each)) for each in batches]
        placed = self._engine.append_usual(usual, is_at_once=False)
        if placed is not None:
            return list(placed)
        planned = _PlannedBatches(batches)
        try:
            self._engine.carry_out(planned.plan)
        except (InvalidRecordError, ObjectNotFoundError):
            return [self.commit(each.units()) for each in batches]
        self._flush_earlier(planned.single_results)
        return planned.results

    def commit_at_once(self, units: Sequence[CommitUnit]) -> list[UnitResult] | None:
        """As `commit` if nothing is to be waited for: see `CommitEngine.carry_out_at_once`."""
        if self._engine.waits_for_disk:
            return None
        results = self._append_usual(units, is_at_once=True)
        if results is not None:
            return results
        planned = _PlannedUnits(units)
        try:
            made = self._engine.carry_out_at_once(planned.plan, len(units))
        except InvalidRecordError:
            return None  # to be committed one by one
        return None if made is None else planned.results

    def close(self) -> None:
        """Close the files of logs that are kept open between commits."""
        self._engine.close()

    def _flush_earlier(self, results: Sequence[UnitResult]) -> None:
        if self._engine.waits_for_disk and any(map(_tells_of_earlier, results)):
            # Who stored the batch, or decided the request, may have been killed before its commit was on disk.
            self._engine.flush_earlier()

    def _commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        if not units:
            return []
        results = self._append_usual(units, is_at_once=False)
        if results is not None:
            return results
        planned = _PlannedUnits(units)
        try:
            self._engine.carry_out(planned.plan)
        except (InvalidRecordError, ObjectNotFoundError) as error:
            # The records of a unit contradict the image, or those of another unit, which only the image can tell;
            # those of all are too large for one commit; or the producers of one partition cannot be read.
            if len(units) == 1:
                return [error]
            return [result for unit in units for result in _alone(unit, self._commit)]
        return planned.results

    def _append_usual(self, units: Sequence[CommitUnit], *, is_at_once: bool) -> list[UnitResult] | None:
        """Commit units that are batches of clients in the usual way; None, and nothing was done, if that cannot be."""
        by_partition = batches_by_partition(units)
        appends = [each.usual() for each in by_partition]
        placed = self._engine.append_usual(appends, is_at_once=is_at_once) if appends else None
        if placed is None:
            return None
        results: list[UnitResult] = [()] * len(units)
        for some, made in zip(by_partition, placed, strict=True):
            for row, result in zip(some.rows, made.ranges(), strict=True):
                results[row] = result
        return results


def _add_checked(batches: CheckedBatches, plan: PartitionPlan, now_ms: int) -> PlacedBatches | None:
    return plan.add_checked(batches)


class _PlannedUnits:
    """The plan of the commit of `units`. `results` are those of the last attempt."""

    def __init__(self, units: Sequence[CommitUnit]) -> None:
        self._units = units
        self.results: list[UnitResult] = []

    def plan(self, attempt: Attempt) -> None:
        planned = CommitPlan(attempt.image, attempt.open, attempt.now_ms)
        self.results = plan_units(planned, self._units)
        _hand_to(attempt, planned, self.results)


class _PlannedBatches:
    """The plan of the commit of checked batches. `results` are those of the last attempt."""

    def __init__(self, batches: Sequence[CheckedBatches]) -> None:
        self._batches = batches
        self.results: list[CheckedResult] = []

    @property
    def single_results(self) -> list[UnitResult]:
        """The results of the batches that were not appended together with those after them."""
        return [each for some in self.results if not isinstance(some, PlacedBatches) for each in some]

    def plan(self, attempt: Attempt) -> None:
        planned = CommitPlan(attempt.image, attempt.open, attempt.now_ms)
        self.results = [planned.add_checked(each) for each in self._batches]
        _hand_to(attempt, planned, self.single_results)


def _hand_to(attempt: Attempt, planned: CommitPlan, results: Sequence[UnitResult]) -> None:
    """Give the plan to the attempt, unless one of the results is an error of the store."""
    for each in results:
        if isinstance(each, ObjectStoreError):
            raise each  # of the store, not of the unit; or the image is old
    for partition in planned.changed:
        attempt.append(partition)
    attempt.records += planned.records


def _tells_of_earlier(result: UnitResult) -> bool:
    """Whether a unit has succeeded by what an earlier commit has stored."""
    return not isinstance(result, KafkalogError) and (not result or any(each.is_duplicate for each in result))


class FollowerWriter:
    """Commits the changes of a follower to its root, one call after the other, in one thread; one a process and root.

    The engine is made for the follower's id: every commit checks that the root still follows with it, so a root that
    was promoted, or follows another leader, refuses it (FollowingEndedError). `on_kept` is called before each commit
    that drops records, once they are kept in files.
    """

    def __init__(self, engine: CommitEngine, *, on_kept: KeptRecords = ignore_kept) -> None:
        self._engine = engine
        self._cut_files = engine.cut_files(on_kept)

    def commit(
        self, changes: Sequence[FollowerChange], records: PlanFollowerRecords = no_records
    ) -> list[FollowerResult]:
        """Make the changes in one commit, together with `records`; the result of each change.

        Raises FollowingEndedError, and what prevents the whole commit, as `CommitEngine.carry_out`.
        """
        checked = check_changes(changes)
        with saved_once(self._cut_files):
            return self._commit(checked, records)

    def close(self) -> None:
        """Close the files of logs that are kept open between commits."""
        self._engine.close()

    def _commit(
        self, changes: Sequence[CheckedChange | KafkalogError], records: PlanFollowerRecords = no_records
    ) -> list[FollowerResult]:
        def plan(attempt: Attempt) -> None:
            attempt.records += records(attempt.image)
            for change in changes:
                if not isinstance(change, KafkalogError):
                    attempt.change(change, self._cut_files)

        try:
            made = self._engine.carry_out(plan)
        except InvalidRecordError as error:
            # One of the changes breaks an invariant, or all are too large for one commit.
            if not changes:
                raise
            if len(changes) == 1 and records is no_records:
                return [error]
            self._commit((), records)
            return [result for change in changes for result in _alone(change, self._commit)]
        return [each if isinstance(each, KafkalogError) else made.result_of(each) for each in changes]


_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


def _alone(part: _Part, commit: Callable[[Sequence[_Part]], list[_Result]]) -> list[_Result | KafkalogError]:
    """Commit one unit or change. What prevents its commit is its result."""
    try:
        return [*commit([part])]
    except KafkalogError as error:
        return [error]
    except OSError as error:
        return [LogDirError(str(error))]
