"""What ends a job or part of it: a disk that fails for one partition, which fails alone, and a signal."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.controlled import open_log_dir
from builders.staged_writes import SMALL_SEGMENTS, stage
from fakes.stopping_filesystem import WatchedFileSystem, broken_disk
from patience import wait_until

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance import merge
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import SOME_FAILED, Job, JobRun, run_once
from pyspark_kafkalog.maintenance.jobs.tasks import LocalTasks
from pyspark_kafkalog.maintenance.merge import MERGE_JOB, merge_segments
from pyspark_kafkalog.maintenance.reindex import reindex_job
from pyspark_kafkalog.maintenance.retention.delete import RETENTION_JOB
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main
from pyspark_kafkalog.tools.maintenance import jobs

TOPICS = ("a", "bad", "c")
BAD = "bad-0"
YEAR_MS = 365 * 86_400_000
LARGE_SEGMENTS = {"internal.segment.bytes": "1000000"}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}

JOBS: dict[str, tuple[Job, dict[str, str]]] = {
    "retention": (RETENTION_JOB, {"retention.ms": "1000"}),
    "merge-segments": (MERGE_JOB, LARGE_SEGMENTS),
    "log-cleaner": (CleanerJob(), COMPACTED),
    "reindex": (reindex_job(), {}),
}


class BrokenBelow(WatchedFileSystem):
    """Fails with EIO at each change of a file in the directory, by its name or by a descriptor."""

    def __init__(self) -> None:
        pass

    def on_change(self, name: str, arguments: tuple[Any, ...]) -> None:
        if any(_is_bad(each) for each in arguments[:2]) and not str(arguments[0]).endswith("lock"):
            raise broken_disk()


def _is_bad(file: object) -> bool:
    if isinstance(file, int):
        try:
            file = os.readlink(f"/proc/self/fd/{file}")
        except OSError:
            return False
    return isinstance(file, (str, Path)) and f"/{BAD}" in str(file)


def _break_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each read of a file in the directory that is not a lock fail with EIO."""

    def broken(call: Callable[..., Any]) -> Callable[..., Any]:
        def read(fd: int, *arguments: Any) -> Any:
            if _is_bad(fd):
                raise broken_disk()
            return call(fd, *arguments)

        return read

    for name in ("pread", "preadv", "copy_file_range"):
        monkeypatch.setattr(os, name, broken(getattr(os, name)))


class Reports:
    """A sink that keeps the reports by topic."""

    def __init__(self) -> None:
        self.found: dict[str, PartitionReport] = {}

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        self.found.clear()

    def take(self, report: PartitionReport) -> None:
        self.found[report.topic] = report

    def end(self) -> None:
        pass


def _prepare(path: Path, configs: dict[str, str], *, breaks_index: bool) -> None:
    """Each topic has several segments, which every job has work with."""
    log_dir = LogDir.create(path)
    for topic in TOPICS:
        log_dir.create_topic(topic, 1, SMALL_SEGMENTS)
        for number in range(3):
            where = TopicPartition(topic, 0)
            log_dir.commit_staged([stage(path, f"write-{number}", 100, topic_partition=where)])
        log_dir.alter_topic(topic, add=configs)
        if breaks_index:
            min((path / f"{topic}-0").glob("*.index")).write_bytes(bytes(16))


@pytest.mark.parametrize("breaks", ["reads", "changes"])
@pytest.mark.parametrize("name", JOBS)
def test_broken_partition_fails_alone(tmp_path: Path, name: str, breaks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, configs = JOBS[name]
    root = tmp_path / "log"
    _prepare(root, configs, breaks_index=name == "reindex")
    before = {path: path.read_bytes() for path in (root / BAD).glob("*.log")}
    reports = Reports()

    def opened(job_run: JobRun) -> Root:
        return open_log_dir(root, **({} if breaks == "reads" else {"fs": BrokenBelow()})).root

    job_run = JobRun(path=root, now_ms=time_ms() + (YEAR_MS if name == "retention" else 0))
    with monkeypatch.context() as patch:
        patch.setattr(JobRun, "open", opened)
        if breaks == "reads":
            _break_reads(patch)
        assert run_once(job, lambda _: LocalTasks(slots=1), job_run, [reports]) == SOME_FAILED
    assert os.strerror(errno.EIO) in str(reports.found["bad"].error)
    for topic in ("a", "c"):
        found = reports.found[topic]
        assert found.error is None
        assert found.segments_dropped or found.files_written or found.records_dropped
    assert {path: path.read_bytes() for path in before} == before

    assert run_once(job, lambda _: LocalTasks(slots=1), job_run, [reports]) == 0
    assert reports.found["bad"].error is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_a_job_before_its_next_partition(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _prepare(tmp_path / "log", LARGE_SEGMENTS, breaks_index=False)
    rows = LogDir.open(tmp_path / "log").read("bad").num_rows
    begun: list[str] = []

    def merged(root: Root, *, partitions: Collection[TopicPartition], **options: Any) -> list[PartitionReport]:
        begun.extend(each.topic for each in partitions)
        os.kill(os.getpid(), number)
        # Handled by the main thread: the next signal is that of before again.
        wait_until(lambda: signal.getsignal(number) is signal.SIG_DFL)
        return merge_segments(root, partitions=partitions, **options)

    monkeypatch.setattr(merge, "_TASK_PARTITIONS", 1)
    monkeypatch.setattr(jobs, "MERGE_JOB", replace(MERGE_JOB, work=merged))
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    try:
        assert main(["merge-segments", "--path", str(tmp_path / "log"), "--local", "--tasks", "1"]) == SOME_FAILED
    finally:
        signal.signal(number, before)
    assert "stopped early; the next run continues" in capsys.readouterr().err
    assert begun == ["a"]
    monkeypatch.undo()
    assert main(["merge-segments", "--path", str(tmp_path / "log"), "--local"]) == 0
    assert LogDir.open(tmp_path / "log").read("bad").num_rows == rows
