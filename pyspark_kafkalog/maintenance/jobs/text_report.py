"""Readable reports of a maintenance run: the findings, a table of the partitions, and a summary line.

Partitions in which nothing was done are only counted. Findings are printed as they occur, the table and the summary at
the end of the round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from pyspark_kafkalog.maintenance.jobs.report import ANOTHER_RUN, PartitionReport
from pyspark_kafkalog.maintenance.jobs.sinks import beside_progress_bar
from pyspark_kafkalog.units import plural, size_text

if TYPE_CHECKING:
    from pyspark_kafkalog.maintenance.jobs.runner import Round

_Cell = Callable[[PartitionReport], str]
#: By action: the columns of the table after the partition's.
_COLUMNS: Final[Mapping[str, Mapping[str, _Cell]]] = {
    "clean": {
        "dirty": lambda report: "-" if report.dirty_percent is None else f"{report.dirty_percent:.0f}%",
        "records removed": lambda report: f"{report.records_dropped:,}",
        "bytes removed": lambda report: size_text(report.bytes_dropped),
        "bytes kept": lambda report: size_text(report.bytes_kept),
    },
    "merge-segments": {
        "segments fewer": lambda report: f"{report.segments_dropped:,}",
        "bytes copied": lambda report: size_text(report.bytes_read),
    },
    "reindex": {"files written": lambda report: f"{report.files_written:,}"},
    "retention": {
        "segments deleted": lambda report: f"{report.segments_dropped:,}",
        "bytes deleted": lambda report: size_text(report.bytes_dropped),
        "log start": lambda report: "-" if report.log_start_offset is None else str(report.log_start_offset),
    },
    "verify": {
        "errors": lambda report: str(report.errors_found or 0),
        "warnings": lambda report: str(report.warnings_found or 0),
        "bytes read": lambda report: size_text(report.bytes_read),
    },
}


class TextReport:
    """A sink of reports. `stream` is standard output by default."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._action = ""
        self._is_dry_run = False
        self._began = 0.0
        self._reports: list[PartitionReport] = []
        self._notes = 0

    def begin(self, action: str, this_round: Round, partitions_count: int) -> None:
        self._action = action
        self._is_dry_run = this_round.dry_run
        self._began = self._clock()
        self._reports = []
        self._notes = 0

    def tell(self, tree: Mapping[str, Any]) -> None:
        """Print a finding or a repair step of `kafkalog verify`; findings that need no action are only counted."""
        if tree.get("severity") == "info":
            self._notes += 1
            return
        self._write([_finding(tree) if tree["action"] == "finding" else _step(tree)])

    def take(self, report: PartitionReport) -> None:
        self._reports.append(report)

    def end(self) -> None:
        """Print the table, the failures, and the summary."""
        shown = sorted(
            (each for each in self._reports if _is_shown(each)), key=lambda each: (each.topic, each.partition)
        )
        failed = [each for each in shown if each.error is not None]
        columns = _COLUMNS[self._action]
        rows = [
            (f"{each.topic}-{each.partition}", *(cell(each) for cell in columns.values()))
            for each in shown
            if each.error is None
        ]
        lines = list(_table(("partition", *columns), rows)) if rows else []
        lines += [f"failed: {each.topic}-{each.partition}: {each.error}" for each in failed]
        self._write([*lines, self._sum(len(failed))])

    def _sum(self, failed: int) -> str:
        reports = self._reports
        parts = [_SUMS[self._action](reports, self._is_dry_run)]
        if self._notes:
            parts.append(f"{plural(self._notes, 'note')} without need for action")
        others = sum(each.skipped == ANOTHER_RUN for each in reports)
        if others:
            parts.append(f"{plural(others, 'partition')} left to another run")
        if failed:
            parts.append(f"{plural(failed, 'partition')} failed")
        return f"{self._action}: {', '.join(parts)} ({self._clock() - self._began:.1f} s)"

    def _write(self, lines: Iterable[str]) -> None:
        stream = self._stream or sys.stdout
        with beside_progress_bar(stream):
            stream.writelines(f"{line}\n" for line in lines)
            stream.flush()


def _is_shown(report: PartitionReport) -> bool:
    """Whether anything was done, was found, or failed."""
    if report.error is not None or report.errors_found or report.warnings_found:
        return True
    if report.action == "verify" or report.skipped is not None:
        return False
    return bool(report.segments_dropped or report.bytes_dropped or report.records_dropped or report.files_written)


def _finding(tree: Mapping[str, Any]) -> str:
    at = "".join(f", {name} {tree[name]}" for name in ("position", "offset") if tree.get(name) is not None)
    return (
        f"{tree['severity']}: {tree['file']}{at}: {tree['what']}: expected {tree['expected']}, found {tree['found']}\n"
        f"    {tree['advice']}"
    )


def _step(tree: Mapping[str, Any]) -> str:
    where = "the log directory" if tree["topic"] is None else f"{tree['topic']}-{tree['partition']}"
    error = f": {tree['error']}" if tree.get("error") else ""
    return f"repair {tree['state']}: {where}: {tree['does']}{error}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """The rows of a table with the first column aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = row
        cells = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *cells))


def _sum_of(reports: Sequence[PartitionReport], name: str) -> int:
    return sum(getattr(each, name) or 0 for each in reports)


def _in_partitions(reports: Sequence[PartitionReport], name: str) -> str:
    touched = sum(bool(getattr(each, name)) for each in reports)
    return f"in {touched:,} of {plural(len(reports), 'partition')}"


def _sum_cleaned(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    if is_dry_run:
        due = sum(each.skipped is None and each.error is None for each in reports)
        return f"{due:,} of {plural(len(reports), 'partition')} would be cleaned"
    records, size = _sum_of(reports, "records_dropped"), size_text(_sum_of(reports, "bytes_dropped"))
    return f"removed {plural(records, 'record')}, {size}, {_in_partitions(reports, 'records_dropped')}"


def _sum_merged(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    fewer = plural(_sum_of(reports, "segments_dropped"), "segment")
    return f"{fewer} {'would be ' if is_dry_run else ''}merged away {_in_partitions(reports, 'segments_dropped')}"


def _sum_reindexed(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    files = plural(_sum_of(reports, "files_written"), "index file")
    return f"{files} {'would be ' if is_dry_run else ''}written {_in_partitions(reports, 'files_written')}"


def _sum_retained(reports: Sequence[PartitionReport], is_dry_run: bool) -> str:
    segments, size = _sum_of(reports, "segments_dropped"), size_text(_sum_of(reports, "bytes_dropped"))
    verb = "would be deleted" if is_dry_run else "deleted"
    return f"{plural(segments, 'segment')}, {size}, {verb} {_in_partitions(reports, 'segments_dropped')}"


def _sum_verified(reports: Sequence[PartitionReport], _is_dry_run: bool) -> str:
    errors, warnings = (_sum_of(reports, name) for name in ("errors_found", "warnings_found"))
    size = size_text(_sum_of(reports, "bytes_read"))
    return f"{plural(errors, 'error')}, {plural(warnings, 'warning')} in {plural(len(reports), 'partition')}, {size}"


_SUMS: Final[Mapping[str, Callable[[Sequence[PartitionReport], bool], str]]] = {
    "clean": _sum_cleaned,
    "merge-segments": _sum_merged,
    "reindex": _sum_reindexed,
    "retention": _sum_retained,
    "verify": _sum_verified,
}
