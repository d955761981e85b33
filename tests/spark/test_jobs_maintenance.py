"""Maintenance jobs on a Spark session: their reports, marks and exit status, and that a kill costs no record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from repository import REPOSITORY
from tiers import rest_full

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.cleaner.run_record import RecordFiles, read_last_run, read_uncleanable
from pyspark_kafkalog.maintenance.jobs.partition import ANOTHER_RUN, PartitionReport, partition_lock
from pyspark_kafkalog.maintenance.jobs.runner import ALL_FINE, SOME_FAILED, JobRun, run_once
from pyspark_kafkalog.maintenance.jobs.tasks import SparkTasks, StoppedError, TaskFailedError
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = REPOSITORY / "jobs"
KAFKALOG = Path(sys.executable).with_name("kafkalog")
SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
SECONDS_MAX = 120
_COLUMNS = ["offset", "key", "value"]


def make_root(root: Path) -> LogDir:
    """Three topics: one with more than retention.bytes, a compacted one, one with small segments."""
    log_dir = LogDir.create(root)
    small = {"internal.segment.bytes": "1000"}
    log_dir.create_topic("events", partitions=2, configs={**small, "retention.bytes": "2000"})
    log_dir.create_topic("users", partitions=2, configs={**small, "cleanup.policy": "compact"})
    log_dir.create_topic("pieces", partitions=1, configs=small)
    for number in range(12):
        keys = [str(at % 5 + number % 3) for at in range(24)]
        table = pa.table({"key": keys, "value": [f"{number}-{at}" + "." * 40 for at in range(24)]})
        for topic in ("events", "users", "pieces"):
            log_dir.append(topic, table, flush="os")
    for topic in ("users", "pieces"):
        log_dir.alter_topic(topic, add={"internal.segment.bytes": "5000"})
    return log_dir


@pytest.fixture(scope="module")
def whole_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jobs") / "root"
    make_root(root)
    return root


@pytest.fixture
def root(whole_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole_root, tmp_path / "root")
    return tmp_path / "root"


Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def job(root: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """`job("retention", "--dry-run")`: exit status and the lines of reports, with the tests' session."""

    def run(name: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        capsys.readouterr()
        status = main([name, "--path", str(root), *arguments])
        return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def latest_by_key(root: Path, topic: str) -> dict[str, tuple[int, str]]:
    table = LogDir.open(root).read(topic, columns=_COLUMNS)
    rows = zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    return {key: (offset, value) for offset, key, value in rows}


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def is_lock(name: str) -> bool:
    return name.endswith((".maintenance-lock", ".lock"))


@pytest.mark.parametrize("name", rest_full(["retention", "log-cleaner", "merge-segments"]))
def test_dry_run_reports_every_partition_and_changes_no_file(job: Run, root: Path, name: str) -> None:
    before = files_of(root)
    status, reports = job(name, "--dry-run")
    assert status == ALL_FINE
    expected = 2 if name == "log-cleaner" else 5
    assert len({(each["topic"], each["partition"]) for each in reports}) == len(reports) == expected
    assert all(each["dryRun"] for each in reports)
    assert {key: data for key, data in files_of(root).items() if not is_lock(key)} == {
        key: data for key, data in before.items() if not is_lock(key)
    }


def test_retention_advances_log_start_and_merge_keeps_records(job: Run, root: Path) -> None:
    status, reports = job("retention", "--topic", "events")
    assert status == ALL_FINE
    assert all(each["bytesDropped"] > 0 and each["logStartOffset"] > 0 for each in reports)
    log_dir = LogDir.open(root)
    assert [each.log_start_offset for each in log_dir.topic("events").partitions] == [
        each["logStartOffset"] for each in sorted(reports, key=lambda each: each["partition"])
    ]
    before = log_dir.read("pieces")
    status, reports = job("merge-segments", "--topic", "pieces")
    assert (status, reports[0]["segmentsDropped"] > 3) == (ALL_FINE, True)
    assert LogDir.open(root).read("pieces") == before


def test_cleaner_cleans_every_dirty_partition_and_records_the_run(job: Run, root: Path) -> None:
    before = latest_by_key(root, "users")
    status, reports = job("log-cleaner")
    assert status == ALL_FINE
    assert all(each["recordsDropped"] > 0 and "recopyPercent" in each for each in reports)
    assert latest_by_key(root, "users") == before
    run = read_last_run(RecordFiles(root))
    assert run is not None
    assert (run.partitions_cleaned, run.partitions_failed, run.max_dirty_percent) == (2, 0, 100.0)
    assert run.bytes_read == sum(each["bytesRead"] for each in reports)
    status, reports = job("log-cleaner")
    assert (status, {each["skipped"] for each in reports}) == (ALL_FINE, {"nothing to clean"})
    with pytest.raises(UnknownTopicError):
        CleanerJob().choose(JobRun(path=root, topics=("nix",)))


def test_damaged_partition_is_marked_uncleanable_and_others_are_cleaned(job: Run, root: Path) -> None:
    path = root / "users-0" / "00000000000000000000.log"
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    status, reports = job("log-cleaner")
    by_partition = {each["partition"]: each for each in reports}
    assert status == SOME_FAILED
    assert str(path) in by_partition[0]["error"]
    assert by_partition[1]["recordsDropped"] > 0
    assert read_uncleanable(RecordFiles(root)) == {TopicPartition("users", 0): by_partition[0]["error"]}
    path.write_bytes(data)
    status, reports = job("log-cleaner")
    assert (status, read_uncleanable(RecordFiles(root))) == (ALL_FINE, {})


def test_second_run_skips_partition_that_first_run_has_locked(job: Run, root: Path) -> None:
    with partition_lock(root / "users-0"):
        for name in ("log-cleaner", "retention", "merge-segments"):
            status, reports = job(name, "--topic", "users")
            by_partition = {each["partition"]: each for each in reports}
            assert (status, by_partition[0]["skipped"]) == (ALL_FINE, ANOTHER_RUN)
            assert by_partition[1].get("skipped") != ANOTHER_RUN


def test_cleaning_spread_over_tasks_keeps_same_records(root: Path, spark: SparkSession, tmp_path: Path) -> None:
    log_dir = LogDir.open(root)
    log_dir.alter_broker_configs(add={"log.cleaner.dedupe.buffer.size": "2200000"})
    shutil.copytree(root, tmp_path / "whole")
    tasks = SparkTasks(spark, slots=1)
    reports: list[PartitionReport] = []
    for path, spread_bytes, slots in ((tmp_path / "whole", 1 << 40, tasks), (root, 0, SparkTasks(spark, slots=2))):
        job_run = JobRun(path=path, now_ms=1_795_400_000_000)
        cleaner = CleanerJob(spread_bytes=spread_bytes)
        reports += cleaner.run(slots, job_run, cleaner.choose(job_run))
        slots.close()
    assert [each.error for each in reports] == [None] * 4
    assert LogDir.open(root).read("users") == LogDir.open(tmp_path / "whole").read("users")


@pytest.mark.full
def test_killed_worker_fails_its_task_only(spark: SparkSession) -> None:
    tasks = SparkTasks(spark)
    dead = tasks.submit(partial(exec, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    failed, well = tasks.submit(partial(int, "no")), tasks.submit(partial(sum, [1, 2]))
    with pytest.raises(TaskFailedError, match="the task was lost: "):
        dead.result(SECONDS_MAX)
    with pytest.raises(TaskFailedError, match="ValueError: invalid literal"):
        failed.result(SECONDS_MAX)
    assert well.result(SECONDS_MAX) == 3
    tasks.close()


@pytest.mark.full
def test_stopped_run_ends_without_waiting_for_its_tasks(spark: SparkSession) -> None:
    stop = threading.Event()
    tasks = SparkTasks(spark, stop=stop)
    futures: list[Future[None]] = [tasks.submit(partial(time.sleep, SECONDS_MAX)) for _ in range(5)]
    threading.Timer(1.0, stop.set).start()
    with pytest.raises(StoppedError):
        list(tasks.as_completed(futures))
    tasks.close()
    ended = [each for each in futures if each.done() and not each.cancelled()]
    assert all(each.exception() is not None for each in ended)
    assert spark.sparkContext.parallelize([1], 1).collect() == [1]


class Reader:
    """A sink that goes away, as `head` does."""

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        self.ended = False

    def take(self, report: PartitionReport) -> None:
        raise BrokenPipeError

    def end(self) -> None:
        self.ended = True


@pytest.mark.full
def test_sink_is_ended_when_round_ends_early(root: Path, spark: SparkSession) -> None:
    tasks, sink = SparkTasks(spark), Reader()
    with pytest.raises(BrokenPipeError):
        run_once(CleanerJob(), lambda _: tasks, JobRun(path=root), [sink])
    tasks.close()
    assert sink.ended


@pytest.mark.full
def test_next_run_finishes_what_killed_cleaner_left(job: Run, root: Path) -> None:
    before = latest_by_key(root, "users")
    log_dir = LogDir.open(root)
    log_dir.alter_broker_configs(add={"log.cleaner.io.max.bytes.per.second": "6000"})  # some seconds' work
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        [KAFKALOG, "log-cleaner", "--path", root, "--spark"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + SECONDS_MAX
        while not any(root.glob("users-*/*.cleaned")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    log_dir.alter_broker_configs(delete=["log.cleaner.io.max.bytes.per.second"])
    skipped = {ANOTHER_RUN}
    while ANOTHER_RUN in skipped:  # the workers end soon after their driver
        assert time.monotonic() < deadline
        status, reports = job("log-cleaner")
        skipped = {each.get("skipped") for each in reports}
    assert status == ALL_FINE
    assert latest_by_key(root, "users") == before
    assert not [path for path in root.glob("users-*/*") if path.suffix in (".cleaned", ".swap")]
    assert LogDir.open(root).read("users").num_rows < 50


@pytest.mark.full
def test_spark_submit_on_cluster_cleans_as_local_run(root: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    before = latest_by_key(root, "users")
    done = subprocess.run(
        [SPARK_SUBMIT, "--master", "local-cluster[2,1,1024]", JOBS / "log_cleaner.py", "--path", root],
        env=environment,
        cwd=root.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == ALL_FINE, done.stderr[-4000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(each["partition"] for each in reports) == [0, 1]
    assert all(each["recordsDropped"] > 0 for each in reports)
    assert latest_by_key(root, "users") == before
