"""Maintenance in the command's own process: the size limit, and success, failure and stop of its tasks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.jobs import runner as job_runner
from pyspark_kafkalog.maintenance.jobs.runner import Job, JobRun, is_small
from pyspark_kafkalog.maintenance.jobs.tasks import LocalTasks, StoppedError, TaskFailedError
from pyspark_kafkalog.maintenance.merge import MERGE_JOB
from pyspark_kafkalog.maintenance.retention.delete import RETENTION_JOB
from pyspark_kafkalog.maintenance.verify.job import VerifyJob
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.names import TopicPartition

SECONDS_MAX = 120
RUN_AND_SHOW_LOADED = """
import sys
from pyspark_kafkalog.tools.main import main
status = main(sys.argv[1:])
print(sorted({"pyspark", "py4j"} & set(sys.modules)))
sys.exit(status)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", partitions=2, configs={"cleanup.policy": "compact"})
    log_dir.append("orders", pa.table({"key": ["a", "b"] * 50, "value": ["x" * 40] * 100}))
    return tmp_path / "root"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "retention", "log-cleaner", "merge-segments", "reindex"])
def test_small_work_is_done_without_loading_spark(root: Path, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_SHOW_LOADED, command, "--path", str(root)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *reports, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert {(each["topic"], each["partition"]) for each in map(json.loads, reports)} >= {("orders", 0), ("orders", 1)}


def test_run_is_small_up_to_a_limit_of_bytes_that_it_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, job_run = VerifyJob(print), JobRun(path=root)
    partitions = [TopicPartition("orders", number) for number in range(2)]
    size_bytes = sum(path.stat().st_size for path in root.glob("orders-*/*.log"))
    assert is_small(job, job_run, partitions)
    monkeypatch.setattr(job_runner, "LOCAL_BYTES_MAX", size_bytes)
    assert is_small(job, job_run, partitions)
    monkeypatch.setattr(job_runner, "LOCAL_BYTES_MAX", size_bytes - 1)
    assert not is_small(job, job_run, partitions)
    assert is_small(job, job_run, [TopicPartition("deleted", 0)])


def test_sizes_of_files_are_asked_for_until_the_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runner, "LOCAL_BYTES_MAX", 0)
    asked = iter([TopicPartition("orders", 0), TopicPartition("deleted", 0)])
    assert not is_small(VerifyJob(print), JobRun(path=root), asked)  # type: ignore[arg-type]
    assert next(asked) == TopicPartition("deleted", 0)


def test_jobs_with_nothing_to_do_read_no_bytes_whatever_is_there(root: Path) -> None:
    """Of logs without closed segments there is nothing to merge, clean or delete, and no directory is listed."""
    job_run = JobRun(path=root)
    jobs: list[Job] = [RETENTION_JOB, MERGE_JOB, CleanerJob()]
    for job in jobs:
        partitions = job.choose(job_run)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PartitionListing, "read", staticmethod(pytest.fail))
            assert (job.action, list(job.bytes_to_read(job_run, partitions))) == (job.action, [])


def test_merge_and_cleaner_read_closed_segments_that_are_due(root: Path) -> None:
    log_dir = LogDir.open(root)
    log_dir.create_topic("small", configs={"segment.bytes": "1048576", "cleanup.policy": "compact,delete"})
    for _ in range(3):
        log_dir.append("small", pa.table({"key": ["a"] * 30, "value": [os.urandom(25_000) for _ in range(30)]}))
    closed = sorted(root.glob("small-0/*.log"))[:-1]
    assert len(closed) == 2
    job_run = JobRun(path=root, topics=("small",))
    of = [TopicPartition("small", 0)]
    size_bytes = sum(path.stat().st_size for path in closed)
    assert sum(CleanerJob().bytes_to_read(job_run, of)) == size_bytes
    assert sum(MERGE_JOB.bytes_to_read(job_run, of)) == 0  # they are full
    log_dir.alter_topic("small", add={"segment.bytes": "4194304"})
    assert sum(MERGE_JOB.bytes_to_read(job_run, of)) == size_bytes
    clean_partition(log_dir.root, "small", 0)
    assert sum(CleanerJob().bytes_to_read(job_run, of)) == 0


def test_local_and_spark_exclude_each_other(root: Path) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog", "verify", "--path", str(root), "--local", "--spark"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "not allowed with" in done.stderr


def test_failed_call_fails_its_own_future_with_one_line() -> None:
    tasks = LocalTasks(slots=2)
    failed, well = tasks.submit(partial(int, "no")), tasks.submit(partial(sum, [1, 2]))
    with pytest.raises(TaskFailedError, match="ValueError: invalid literal"):
        failed.result(SECONDS_MAX)
    assert well.result(SECONDS_MAX) == 3
    tasks.close()


def test_calls_marked_first_overtake_waiting_calls() -> None:
    tasks, order = LocalTasks(slots=1), []
    begin = threading.Event()
    futures: list[Future[object]] = [tasks.submit(partial(begin.wait, SECONDS_MAX))]
    futures.append(tasks.submit(partial(order.append, "in turn")))
    futures.append(tasks.submit(partial(order.append, "first"), first=True))
    begin.set()
    assert len(list(tasks.as_completed(futures))) == 3
    tasks.close()
    assert order == ["first", "in turn"]


def test_stop_ends_run_without_waiting_for_running_calls() -> None:
    stop = threading.Event()
    tasks = LocalTasks(slots=2, stop=stop)
    release = threading.Event()
    futures = [tasks.submit(partial(release.wait, SECONDS_MAX)) for _ in range(5)]
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(StoppedError):
        list(tasks.as_completed(futures))
    tasks.close()
    assert not futures[0].done()
    release.set()


@pytest.mark.slow
def test_loop_in_process_ends_with_status_0_on_sigterm(root: Path) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog", "retention", "--path", str(root), "--loop"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*command, "--interval", "0.1"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for _ in range(4):  # two rounds over two partitions
            assert json.loads(process.stdout.readline())["action"] == "retention"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(SECONDS_MAX) == 0
