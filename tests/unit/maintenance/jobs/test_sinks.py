"""Text of maintenance commands for people, and the fields of their JSON lines."""

from __future__ import annotations

import io
import json
import os
import tempfile
from pathlib import Path
from typing import TextIO

import pytest

from pyspark_kafkalog.maintenance.jobs.partition import ANOTHER_RUN, PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.maintenance.jobs.sinks import JsonLines, ProgressBar, TextReport
from pyspark_kafkalog.tools.main import main

FINDING = {
    "action": "finding", "severity": "error", "topic": "a", "partition": 1, "file": "a-1/0.log", "position": 61,
    "offset": None, "what": "batch-crc", "expected": "1", "found": "2", "advice": "restore the file from a copy",
}  # fmt: skip


def printed(action: str, *reports: PartitionReport, dry_run: bool = False) -> list[str]:
    stream = io.StringIO()
    output = TextReport(stream, clock=iter((0.0, 1.25)).__next__)
    output.begin(action, JobRun(path=Path("/"), dry_run=dry_run), len(reports))
    for report in reports:
        output.take(report)
    output.end()
    return stream.getvalue().splitlines()


def retained(partition: int, segments: int, **fields: object) -> PartitionReport:
    return PartitionReport(
        topic="a", partition=partition, action="retention", segments_dropped=segments, bytes_dropped=segments << 20,
        log_start_offset=10 * segments, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def test_table_lists_only_changed_partitions_in_order() -> None:
    assert printed("retention", retained(10, 2), retained(1, 0), retained(2, 12)) == [
        "partition  segments deleted  bytes deleted  log start",
        "a-2                      12       12.0 MiB        120",
        "a-10                      2        2.0 MiB         20",
        "retention: 14 segments, 14.0 MiB, deleted in 2 of 3 partitions (1.2 s)",
    ]


def test_retention_shows_expired_offsets_if_there_are_any() -> None:
    assert printed("retention", retained(1, 0, offsets_expired=1200), retained(2, 1)) == [
        "partition  segments deleted  bytes deleted  log start  offsets expired",
        "a-1                       0            0 B          0            1,200",
        "a-2                       1        1.0 MiB         10                -",
        "retention: 1 segment, 1.0 MiB, deleted in 1 of 2 partitions, 1,200 offsets of groups expired (1.2 s)",
    ]
    assert printed("retention", retained(1, 0, offsets_expired=1), dry_run=True)[-1] == (
        "retention: 0 segments, 0 B, would be deleted in 0 of 1 partition, 1 offset of groups would be expired (1.2 s)"
    )


def test_retention_shows_local_segments_of_tiered_partitions() -> None:
    tiered = retained(1, 0, local_segments_dropped=3, local_bytes_dropped=100, local_log_start_offset=40)
    assert printed("retention", tiered, retained(2, 1)) == [
        "partition  segments deleted  bytes deleted  log start  local segments deleted  local log start",
        "a-1                       0            0 B          0                       3               40",
        "a-2                       1        1.0 MiB         10                       -                -",
        "retention: 1 segment, 1.0 MiB, deleted in 1 of 2 partitions, 3 local segments deleted (1.2 s)",
    ]


def test_only_summary_is_printed_if_nothing_changed() -> None:
    assert printed("retention", retained(0, 0)) == ["retention: 0 segments, 0 B, deleted in 0 of 1 partition (1.2 s)"]


def test_failed_partition_is_named_with_its_error_and_counted() -> None:
    lines = printed("retention", retained(0, 0, error="disk full"), retained(1, 1))
    assert "failed: a-0: disk full" in lines
    assert lines[-1] == "retention: 1 segment, 1.0 MiB, deleted in 1 of 2 partitions, 1 partition failed (1.2 s)"


def test_partition_of_another_run_is_counted() -> None:
    other = PartitionReport(topic="a", partition=0, action="clean", skipped=ANOTHER_RUN)
    assert printed("clean", other)[-1].endswith("0 of 1 partition, 1 partition left to another run (1.2 s)")


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (PartitionReport(topic="a", partition=0, action="clean"), "clean: 1 of 1 partition would be cleaned (1.2 s)"),
        (retained(0, 1), "retention: 1 segment, 1.0 MiB, would be deleted in 1 of 1 partition (1.2 s)"),
        (
            PartitionReport(topic="a", partition=0, action="merge-segments", segments_dropped=3),
            "merge-segments: 3 segments would be merged away in 1 of 1 partition (1.2 s)",
        ),
        (
            PartitionReport(topic="a", partition=0, action="reindex", files_written=2),
            "reindex: 2 index files would be written in 1 of 1 partition (1.2 s)",
        ),
    ],
    ids=lambda each: each.action if isinstance(each, PartitionReport) else "",
)
def test_summary_of_dry_run_uses_conditional(report: PartitionReport, expected: str) -> None:
    assert printed(report.action, report, dry_run=True)[-1] == expected


def test_verdict_of_verify_counts_errors_and_warnings() -> None:
    reports = [
        PartitionReport(topic="a", partition=number, action="verify", bytes_read=10 << 20, errors_found=errors,
                        warnings_found=1)
        for number, errors in enumerate((0, 2))
    ]  # fmt: skip
    lines = printed("verify", *reports)
    assert lines[0].split() == ["partition", "errors", "warnings", "bytes", "read"]
    assert lines[-1] == "verify: 2 errors, 2 warnings in 2 partitions, 20.0 MiB (1.2 s)"


def test_finding_is_printed_at_once_and_notes_are_only_counted() -> None:
    stream = io.StringIO()
    output = TextReport(stream, clock=iter((0.0, 1.25)).__next__)
    output.begin("verify", JobRun(path=Path("/")), 0)
    output.emit(FINDING)
    output.emit({**FINDING, "severity": "info"})
    assert stream.getvalue() == (
        "error: a-1/0.log, position 61: batch-crc: expected 1, found 2\n    restore the file from a copy\n"
    )
    output.end()
    assert "0 partitions, 0 B, 1 note without need for action (1.2 s)" in stream.getvalue()


@pytest.mark.parametrize(
    ("action", "absent", "present"),
    [
        ("retention", {"bytesRead", "recordsDropped", "filesWritten"}, {"bytesDropped", "segmentsDropped"}),
        ("verify", {"bytesDropped", "segmentsDropped", "filesWritten"}, {"bytesRead", "recordsRead"}),
        ("reindex", {"bytesDropped", "recordsRead"}, {"filesWritten", "bytesRead"}),
        ("clean", {"filesWritten"}, {"recordsDropped", "bytesKept"}),
    ],
)
def test_json_line_has_the_counters_of_its_action_only(action: str, absent: set[str], present: set[str]) -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.begin(action, JobRun(path=Path("/")), 1)
    lines.take(PartitionReport(topic="a", partition=0, action=action))
    tree = json.loads(stream.getvalue())
    assert not absent & tree.keys()
    assert present <= tree.keys()


def test_output_option_decides_between_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyspark_kafkalog.log_dir import LogDir

    LogDir.create(tmp_path / "root").create_topic("a")
    path = ("--path", str(tmp_path / "root"), "--local")
    assert main(["verify", *path, "--output", "text"]) == 0
    assert capsys.readouterr().out.startswith("verify: 0 errors, 0 warnings in 2 partitions, 0 B (")
    assert main(["verify", *path]) == 0
    assert [json.loads(line)["action"] for line in capsys.readouterr().out.splitlines()] == ["verify", "verify"]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_bar(monkeypatch: pytest.MonkeyPatch, *sizes: int, stdout: TextIO, beside_text: bool = True) -> str:
    """What standard error gets while one partition of 1 MiB is verified."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", stdout)
    bar = ProgressBar(lambda: sizes, beside_text=beside_text)
    bar.begin("verify", JobRun(path=Path("/")), 1)
    bar.take(PartitionReport(topic="a", partition=0, action="verify", bytes_read=1 << 20))
    bar.end()
    return terminal.getvalue()


def test_bar_counts_bytes_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_bar(monkeypatch, 1 << 20, 3 << 20, stdout=Terminal())
    assert "/4.00M [" in shown
    assert "B/s]" in shown
    assert shown.split("\r")[-2].strip() == ""


def test_bar_of_a_job_that_reads_nothing_counts_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "0/1 [" in shown_bar(monkeypatch, stdout=Terminal())


def test_no_bar_gets_between_json_on_a_terminal_or_the_lines_behind_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_bar(monkeypatch, 1, stdout=Terminal(), beside_text=False) == ""
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
        assert shown_bar(monkeypatch, 1, stdout=pipe) == ""
    with tempfile.TemporaryFile("w") as file:
        assert shown_bar(monkeypatch, 1, stdout=file, beside_text=False) != ""
