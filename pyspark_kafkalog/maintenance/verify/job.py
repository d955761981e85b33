"""Verification, and the repair that may follow it, as a job: segments of all partitions as tasks.

Units of segments are distributed to tasks, small ones together, large partitions over several. When the last task of a
partition is done, its findings are output, then its report. With `is_repairing`, partitions that a repair can help
wait: first the whole plan is output. Then, except in a dry run, its steps are executed and these partitions verified
again.

Reports are by partition; findings on the root itself are in that of the metadata log, `__cluster_metadata` 0.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance import repair
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport, empty_report, failed
from pyspark_kafkalog.maintenance.jobs.runner import JobRun, stored_bytes
from pyspark_kafkalog.maintenance.jobs.tasks import TaskFailedError, Tasks
from pyspark_kafkalog.maintenance.repair import RepairStep
from pyspark_kafkalog.maintenance.verify.findings import ACTION, Finding, Unit, UnitOutcome, Verified
from pyspark_kafkalog.maintenance.verify.root import check_metadata
from pyspark_kafkalog.maintenance.verify.verify import (
    PartitionUnits,
    combine,
    partitions_of,
    plan_verification,
    root_report,
    run_unit,
    verify_root,
)
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.root.file_root import on_file_system
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.security.open import open_root
from pyspark_kafkalog.storage.names import CLUSTER_METADATA_TOPIC, TopicPartition

#: The most bytes that a task reads of smaller partitions, and the most units.
_TASK_BYTES: Final = 256 << 20
_TASK_UNITS: Final = 64
_NO_REPAIR: Final = (
    "lost objects come back from earlier versions, if the bucket keeps them, and `kafkalog reindex` rebuilds indexes"
)
_ROOT: Final = TopicPartition(CLUSTER_METADATA_TOPIC, 0)


@dataclass(slots=True)
class VerifyJob:
    """The job. `emit` is called with findings and repair steps as JSON-compatible values, in order of occurrence."""

    emit: Callable[[dict[str, Any]], None]
    is_repairing: bool = False
    are_records_checked: bool = False
    action: str = field(default=ACTION, init=False)

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        root = job_run.open()
        if self.is_repairing:
            on_file_system(root, instead=_NO_REPAIR)
        chosen = partitions_of(root, job_run.topics)
        return chosen if job_run.topics is not None or _ROOT in chosen else [_ROOT, *chosen]

    def bytes_to_read(self, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
        return stored_bytes(job_run, partitions)

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        waiting: dict[TopicPartition, PartitionReport] = {}
        steps: list[RepairStep] = []
        for findings, report in self._verify(tasks, job_run, partitions, with_root=job_run.topics is None):
            self._emit_findings(findings)
            needed = repair.plan_steps(findings) if self.is_repairing else []
            if needed:
                steps += needed
                waiting[report.topic_partition] = report
            else:
                yield report
        if not steps:
            return
        for step in steps:
            self.emit(step.tree())
        if job_run.dry_run:
            yield from waiting.values()
            return
        self._take(tasks, job_run, steps)
        for findings, report in self._verify(tasks, job_run, sorted(waiting), with_root=_ROOT in waiting):
            self._emit_findings(findings)
            yield report

    def _emit_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.emit(finding.tree())

    def _take(self, tasks: Tasks, job_run: JobRun, steps: Sequence[RepairStep]) -> None:
        """Execute the steps: first those of the root, then those of each partition in order, in one task."""
        by_partition: dict[TopicPartition | None, list[RepairStep]] = {None: []}
        for step in steps:
            by_partition.setdefault(step.partition, []).append(step)
        for step, error in repair.take_steps(job_run.path, by_partition.pop(None), now_ms=job_run.now_ms):
            self.emit(step.tree(error=error, is_done=error is None))
        futures = {
            tasks.submit(partial(repair.take_steps, job_run.path, tuple(own), now_ms=job_run.now_ms)): own
            for own in by_partition.values()
        }
        for future in tasks.as_completed(futures):
            try:
                outcomes = future.result()
            except TaskFailedError as failure:
                outcomes = [(step, str(failure)) for step in futures[future]]
            for step, error in outcomes:
                self.emit(step.tree(error=error, is_done=error is None))

    def _verify(
        self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition], *, with_root: bool
    ) -> Iterator[Verified]:
        """Each partition's findings and report, when its last task is done."""
        root = job_run.open()
        root_findings = verify_root(root) if with_root else []
        existing = set(partitions_of(root, job_run.topics))
        plans = plan_verification(
            root,
            partitions=[each for each in partitions if each in existing],
            are_records_checked=self.are_records_checked,
        )
        for topic_partition in partitions:
            if topic_partition not in existing and topic_partition != _ROOT:
                yield [], replace(empty_report(topic_partition, ACTION), skipped="the topic was deleted meanwhile")
        if with_root and _ROOT not in existing:
            yield root_findings, root_report(root_findings)
            root_findings = []
        open_units: Counter[TopicPartition] = Counter()
        by_partition: dict[TopicPartition, list[PartitionUnits]] = {}
        for plan in plans:
            open_units[plan.topic_partition] += len(plan.units)
            by_partition.setdefault(plan.topic_partition, []).append(plan)
        done: dict[Path | str, list[UnitOutcome]] = {plan.place: [] for plan in plans}
        futures: dict[Future[list[UnitOutcome]], tuple[Unit, ...]] = {
            tasks.submit(partial(_run_units, job_run, load)): load for load in _loads(plans, tasks.slots)
        }
        lost: dict[TopicPartition, TaskFailedError] = {}
        for future in tasks.as_completed(futures):
            load = futures.pop(future)
            try:
                for outcome in future.result():
                    done[outcome.place].append(outcome)
            except TaskFailedError as error:
                lost.update((unit.topic_partition, error) for unit in load)
            for topic_partition in [unit.topic_partition for unit in load]:
                open_units[topic_partition] -= 1
                if open_units[topic_partition]:
                    continue
                if topic_partition in lost:
                    yield [], failed(topic_partition, ACTION, lost[topic_partition])
                    continue
                findings, report = combine(
                    [plan.conclude(done.pop(plan.place)) for plan in by_partition[topic_partition]]
                )
                if topic_partition == _ROOT and root_findings:
                    findings, report = root_findings + findings, root_report(root_findings, report)
                yield findings, report


def _loads(plans: Sequence[PartitionUnits], slots: int) -> Iterator[tuple[Unit, ...]]:
    """The units of all partitions, grouped into tasks: large ones first and alone, small ones together."""
    units = sorted((unit for plan in plans for unit in plan.units), key=lambda unit: -unit.size_bytes)
    units_max = max(min(_TASK_UNITS, len(units) // slots), 1)
    load: list[Unit] = []
    size_bytes = 0
    for unit in units:
        if load and (size_bytes + unit.size_bytes > _TASK_BYTES or len(load) == units_max):
            yield tuple(load)
            load, size_bytes = [], 0
        load.append(unit)
        size_bytes += unit.size_bytes
    if load:
        yield tuple(load)


def _run_units(job_run: JobRun, units: Sequence[Unit]) -> list[UnitOutcome]:
    opened = functools.cache(job_run.open)
    return [run_unit(unit, opened) for unit in units]


def open_or_findings(path: Path | str) -> tuple[Root | None, list[Finding]]:
    """The log directory; or, for a native one whose commit log cannot be loaded, the findings on that log."""
    try:
        return open_root(path), []
    except KafkalogError:
        findings = findings_of_unopened(path)
        if not findings:
            raise
        return None, findings


def findings_of_unopened(path: Path | str) -> list[Finding]:
    """The findings on the commit log of a native log directory that cannot be opened; none of anything else."""
    return check_metadata(path) if isinstance(path, Path) and is_native_root(path) else []
