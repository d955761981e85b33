"""Writers of a root: they plan a commit on the newest image, and let the engine of the root carry it out.

    LeaderWriter       units of producers and coordinators (a server, commands)
    FollowerWriter     changes of a root that follows a leader

    plan               on the newest image, again if the commit has lost a race (plan.py)
    store, publish     by the engine: file_engine.py for a file system, object_engine.py for an object store

If the records of a commit break an invariant, its units or changes are committed one by one: one of them fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError, LogDirError
from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStoreError
from pyspark_kafkalog.root.commit.changes import (
    CommitUnit,
    FollowerChange,
    FollowerResult,
    PlanFollowerRecords,
    UnitResult,
    no_records,
)
from pyspark_kafkalog.root.commit.cut_files import CutFiles, KeptRecords, ignore_kept, saved_once
from pyspark_kafkalog.root.commit.plan import Attempt, CheckedChange, CommitPlan, check_changes, plan_units

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
        """As `carry_out` for a plan of so many units, if nothing is to be waited for: no disk, no other writer, no log
        to be opened, no snapshot to be written. None otherwise, and then nothing was done.
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
        if self._engine.waits_for_disk and any(map(_tells_of_earlier, results)):
            # Who stored the batch, or decided the request, may have been killed before its commit was on disk.
            self._engine.flush_earlier()
        return results

    def commit_at_once(self, units: Sequence[CommitUnit]) -> list[UnitResult] | None:
        """As `commit` if nothing is to be waited for: see `CommitEngine.carry_out_at_once`."""
        planned = _PlannedUnits(units)
        try:
            made = self._engine.carry_out_at_once(planned.plan, len(units))
        except InvalidRecordError:
            return None  # to be committed one by one
        return None if made is None else planned.results

    def close(self) -> None:
        """Close the files of logs that are kept open between commits."""
        self._engine.close()

    def _commit(self, units: Sequence[CommitUnit]) -> list[UnitResult]:
        if not units:
            return []
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


class _PlannedUnits:
    """The plan of the commit of `units`. `results` are those of the last attempt."""

    def __init__(self, units: Sequence[CommitUnit]) -> None:
        self._units = units
        self.results: list[UnitResult] = []

    def plan(self, attempt: Attempt) -> None:
        planned = CommitPlan(attempt.image, attempt.open, attempt.now_ms)
        self.results = plan_units(planned, self._units)
        for each in self.results:
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
