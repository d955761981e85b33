"""Maintenance, verification, export and the report of a log directory, as methods of `LogDir` call them.

The work is that of the commands, in this process and over the root that is open. Results show themselves as the
commands print them, and have what they say as typed objects.
"""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Final, overload

from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.cleaner.job import partitions_to_clean
from pyspark_kafkalog.maintenance.export.broker_directory import ExportedBroker
from pyspark_kafkalog.maintenance.export.export import ExportedPartition, export_new_broker, export_to
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.maintenance.jobs.sinks import TextReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify.findings import Finding
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.notebook.tables import PointInTime, point_in_time_ms
from pyspark_kafkalog.report.facts import RootFacts
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.report.page import render
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.remote_log_metadata import METADATA_PARTITIONS
from pyspark_kafkalog.units import plural

__all__ = ["ExportedBroker", "ExportedPartition", "PartitionReport", "ReportPage", "RunReports"]

_FRAME_PIXELS: Final = 700


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunReports(Sequence[PartitionReport]):
    """What a run has done: a report for each partition, in order. Its text is the table that the command prints.

    `findings` are those of a verification. A partition's failure is the `error` of its report.
    """

    action: str
    reports: Sequence[PartitionReport]
    findings: Sequence[Finding] = ()
    dry_run: bool = False
    seconds: float = 0.0

    @property
    def is_fine(self) -> bool:
        """Whether every partition's run succeeded, and a verification found no error."""
        return all(each.is_fine for each in self.reports)

    @overload
    def __getitem__(self, index: int) -> PartitionReport: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PartitionReport]: ...

    def __getitem__(self, index: int | slice) -> PartitionReport | Sequence[PartitionReport]:
        return self.reports[index]

    def __len__(self) -> int:
        return len(self.reports)

    def __repr__(self) -> str:
        text = io.StringIO()
        times = itertools.chain([0.0], itertools.repeat(self.seconds))
        sink = TextReport(text, clock=lambda: next(times))
        sink.begin(self.action, JobRun(path="", dry_run=self.dry_run), len(self.reports))
        for finding in self.findings:
            sink.emit(finding.tree())
        for report in self.reports:
            sink.take(report)
        sink.end()
        return text.getvalue().rstrip()


@dataclass(frozen=True, slots=True, repr=False)
class ReportPage:
    """The report on a log directory: a page of HTML, which `save` writes, and the `facts` on it."""

    facts: RootFacts

    @property
    def html(self) -> str:
        """The page: one document, which needs nothing else."""
        return render(self.facts)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file. Raises OSError."""
        target = Path(path)
        target.write_text(self.html, encoding="utf-8")
        return target

    def __repr__(self) -> str:
        partitions = sum(len(each.partitions) for each in self.facts.topics)
        counts = (
            plural(len(self.facts.topics), "topic"),
            plural(partitions, "partition"),
            plural(len(self.facts.findings), "finding"),
        )
        return f"ReportPage({self.facts.path}: {', '.join(counts)})"

    def _repr_html_(self) -> str:
        page = escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="{_FRAME_PIXELS}" style="border:0"></iframe>'


class Maintenance:
    """The work on one root, or on these topics of it, as methods of `LogDir` describe it."""

    def __init__(self, root: Root, topics: Collection[str] = ()) -> None:
        self._root = root
        self._topics = topics or None

    def retain(self, now: PointInTime | None, *, dry_run: bool) -> RunReports:
        work = partial(apply_retention, self._root, topics=self._topics, now_ms=_ms(now), dry_run=dry_run)
        return _run("retention", work, dry_run=dry_run)

    def clean(self, now: PointInTime | None, *, force: bool, dry_run: bool) -> RunReports:
        native, now_ms = self._root.native(), _ms(now)
        native.refresh()
        chosen = partitions_to_clean(native, self._topics)

        def work() -> list[PartitionReport]:
            return [
                clean_partition(native, each.topic, each.partition, now_ms=now_ms, force=force, dry_run=dry_run)
                for each in chosen
            ]

        return _run("clean", work, dry_run=dry_run)

    def merge(self, *, dry_run: bool) -> RunReports:
        work = partial(merge_segments, self._root, topics=self._topics, dry_run=dry_run)
        return _run("merge-segments", work, dry_run=dry_run)

    def delete_records(self, offsets: Mapping[tuple[str, int], int], *, dry_run: bool) -> list[PartitionReport]:
        chosen = {TopicPartition(topic, partition): offset for (topic, partition), offset in offsets.items()}
        return delete_records(self._root, chosen, dry_run=dry_run)

    def verify(self, *, deep: bool) -> RunReports:
        began = time.perf_counter()
        found = verify(self._root, topics=self._topics, are_records_checked=deep)
        seconds = time.perf_counter() - began
        return RunReports(action="verify", reports=found.reports, findings=found.findings, seconds=seconds)

    def export(self, to: str | Path, *, link: bool, overwrite: bool, tiered: bool) -> list[ExportedPartition]:
        return export_to(self._root, Path(to), self._topics, link=link, overwrite=overwrite, tiered=tiered)

    def export_broker(self, to: str | Path, *, link: bool, tiered: bool) -> ExportedBroker:
        return export_new_broker(
            self._root, Path(to), self._topics, metadata_partitions=METADATA_PARTITIONS, link=link, tiered=tiered
        )

    def report(self, *, verify: bool, sample_bytes: int) -> ReportPage:
        return ReportPage(gather(self._root, GatherOptions(sample_bytes=sample_bytes, verify=verify)))


def _ms(point: PointInTime | None) -> int | None:
    return None if point is None else point_in_time_ms(point)


def _run(action: str, work: Callable[[], list[PartitionReport]], *, dry_run: bool) -> RunReports:
    began = time.perf_counter()
    reports = work()
    return RunReports(action=action, reports=reports, dry_run=dry_run, seconds=time.perf_counter() - began)
