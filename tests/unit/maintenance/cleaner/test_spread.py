"""A cleaning that is spread over tasks leaves the same files as a cleaning in a single process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.engine_fixtures import files_of, manifest
from fakes.thread_tasks import ThreadTasks
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition, clean_spread
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.cleaner.logs import CleanerLimits
from pyspark_kafkalog.maintenance.jobs.partition import (
    ANOTHER_RUN,
    MaintenanceLostError,
    PartitionReport,
    file_claim,
    join_partition_lock,
    partition_lock,
    shared_partition_lock,
)
from pyspark_kafkalog.maintenance.jobs.runner import JobRun
from pyspark_kafkalog.storage.names import TopicPartition

NOW_MS = 1_795_400_000_000
_LOCK = ".maintenance-lock"
_MANY_MAPS_BYTES = 24 * 8


def spread(
    root: Path, topic: str, *, buffer_bytes: int, now_ms: int = NOW_MS, tasks: ThreadTasks | None = None
) -> PartitionReport:
    limits = CleanerLimits(buffer_bytes=buffer_bytes)
    job_run = JobRun(path=root, now_ms=now_ms)
    return clean_spread(tasks or ThreadTasks(), job_run, TopicPartition(topic, 0), limits)


def files_but_lock(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(directory).items() if name != _LOCK}


def make_root(root: Path) -> LogDir:
    """Some twenty segments in several groups."""
    log_dir = create_log_dir(root, clock=lambda: NOW_MS)
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": "600", "index.interval.bytes": "100"}
    log_dir.create_topic("orders", partitions=1, configs=configs)
    for number in range(20):
        keys = [str(number % 5), str(number * 7 % 10), f"only-{number}"] * 3
        values = [f"{number}-{at}" + "." * 30 for at in range(9)]
        log_dir.append("orders", pa.table({"key": keys, "value": values}), partition=0, flush="os")
    log_dir.alter_topic("orders", add={"internal.segment.bytes": "2500"})
    return log_dir


@pytest.fixture(scope="module")
def whole_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spread") / "root"
    make_root(root)
    return root


@pytest.fixture
def root(whole_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole_root, tmp_path / "root")
    return tmp_path / "root"


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["compacted-1-dirty", "compacted-3-dirty"])
@pytest.mark.parametrize("buffer_bytes", [1 << 20, _MANY_MAPS_BYTES], ids=["one map", "many maps"])
def test_spread_cleaning_writes_same_files_as_single_process(tmp_path: Path, fixture: str, buffer_bytes: int) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(FIXTURES / fixture, whole, ignore=shutil.ignore_patterns("expected"))
    log_dir = LogDir.adopt(whole)
    for topic, described in manifest(fixture)["topics"].items():
        log_dir.alter_topic(topic, add={**described["configs"], "segment.bytes": "1048576"})
    shutil.copytree(whole, tmp_path / "spread")
    for topic in manifest(fixture)["topics"]:
        one = clean_partition(LogDir.open(whole).root, topic, 0, now_ms=NOW_MS, dedupe_buffer_bytes=buffer_bytes)
        other = spread(tmp_path / "spread", topic, buffer_bytes=buffer_bytes)
        assert (one.error, other.error) == (None, None)
        assert (other.key_shards == 1) == (buffer_bytes == 1 << 20)
        assert (one.records_kept, one.bytes_kept) == (other.records_kept, other.bytes_kept)
        assert one.records_without_key == other.records_without_key == 0
        assert files_but_lock(tmp_path / "spread" / f"{topic}-0") == files_but_lock(whole / f"{topic}-0")


@pytest.mark.parametrize("buffer_bytes", [1 << 20, _MANY_MAPS_BYTES], ids=["one map", "many maps"])
def test_groups_copied_concurrently_match_single_process(root: Path, tmp_path: Path, buffer_bytes: int) -> None:
    shutil.copytree(root, tmp_path / "whole")
    one = clean_partition(
        LogDir.open(tmp_path / "whole").root, "orders", 0, now_ms=NOW_MS, dedupe_buffer_bytes=buffer_bytes
    )
    tasks = ThreadTasks()
    other = spread(root, "orders", buffer_bytes=buffer_bytes, tasks=tasks)
    assert (one.error, other.error) == (None, None)
    assert tasks.submitted >= 2 + 3  # transactions, map, three groups at least
    assert files_but_lock(root / "orders-0") == files_but_lock(tmp_path / "whole" / "orders-0")


@pytest.mark.slow
@pytest.mark.parametrize("lost", range(8))
@pytest.mark.parametrize("buffer_bytes", [1 << 20, _MANY_MAPS_BYTES], ids=["one map", "many maps"])
def test_lost_task_fails_run_and_next_run_completes_it(
    root: Path, tmp_path: Path, lost: int, buffer_bytes: int
) -> None:
    shutil.copytree(root, tmp_path / "whole")
    clean_partition(LogDir.open(tmp_path / "whole").root, "orders", 0, now_ms=NOW_MS)
    tasks = ThreadTasks(lose=lambda number: number == lost)
    report = spread(root, "orders", buffer_bytes=buffer_bytes, tasks=tasks)
    if tasks.submitted <= lost:
        assert report.error is None
    else:
        assert report.error == "the task was lost: its executor died"
        tasks._pool.shutdown(wait=True)
        report = spread(root, "orders", buffer_bytes=buffer_bytes)
        assert report.error is None
    names = {each for each in files_of(root / "orders-0") if each.startswith(".")}
    assert names == {_LOCK}
    columns = ["offset", "key", "value"]
    expected = LogDir.open(tmp_path / "whole").read("orders", columns=columns)
    assert LogDir.open(root).read("orders", columns=columns) == expected


def test_job_spreads_large_partition_and_cleans_small_ones_whole(root: Path) -> None:
    log_dir = LogDir.open(root)
    log_dir.create_topic("small", partitions=2, configs={"cleanup.policy": "compact", "internal.segment.bytes": "300"})
    for number in range(6):
        log_dir.append("small", pa.table({"key": ["a", "b", "c"], "value": [f"{number}" * 40] * 3}), flush="os")
    job = CleanerJob(spread_bytes=5000)
    job_run = JobRun(path=root, now_ms=NOW_MS)
    tasks = ThreadTasks()
    reports = list(job.run(tasks, job_run, job.choose(job_run)))
    assert sorted((each.topic, each.partition) for each in reports) == [("orders", 0), ("small", 0), ("small", 1)]
    assert [each.error for each in reports] == [None] * 3
    assert all(each.skipped in (None, "not dirty enough", "nothing to clean") for each in reports)
    assert tasks.submitted > 2 + 3
    again = list(job.run(ThreadTasks(), job_run, job.choose(job_run)))
    assert [each.records_dropped for each in again] == [0] * 3


def test_shared_lock_admits_its_own_tasks_and_no_other_run(tmp_path: Path) -> None:
    with shared_partition_lock(tmp_path) as ticket:
        assert ticket is not None
        with join_partition_lock(tmp_path, ticket), join_partition_lock(tmp_path, ticket):
            with partition_lock(tmp_path) as is_mine:
                assert not is_mine
            with shared_partition_lock(tmp_path) as other:
                assert other is None
        with partition_lock(tmp_path) as is_mine:
            assert not is_mine
    with partition_lock(tmp_path) as is_mine:
        assert is_mine


def test_task_that_outlives_its_driver_keeps_lock_and_late_task_fails(tmp_path: Path) -> None:
    with shared_partition_lock(tmp_path) as ticket:
        assert ticket is not None
        task = join_partition_lock(tmp_path, ticket)
        task.__enter__()
    with partition_lock(tmp_path) as is_mine, shared_partition_lock(tmp_path) as other:
        assert not is_mine
        assert other is None
    task.__exit__(None, None, None)
    with shared_partition_lock(tmp_path), pytest.raises(MaintenanceLostError), join_partition_lock(tmp_path, ticket):
        pass
    with partition_lock(tmp_path), pytest.raises(MaintenanceLostError), join_partition_lock(tmp_path, ticket):
        pass
    with pytest.raises(MaintenanceLostError), join_partition_lock(tmp_path, ticket):
        pass


def test_second_attempt_at_task_cannot_claim_file(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"a")
    inode = path.stat().st_ino
    with file_claim(path, inode), pytest.raises(MaintenanceLostError), file_claim(path, inode):
        pass
    (tmp_path / "new").write_bytes(b"b")
    (tmp_path / "new").rename(path)
    with pytest.raises(MaintenanceLostError), file_claim(path, inode):
        pass


def test_partition_locked_by_another_run_is_skipped(root: Path) -> None:
    with partition_lock(root / "orders-0"):
        assert spread(root, "orders", buffer_bytes=1 << 20).skipped == ANOTHER_RUN
