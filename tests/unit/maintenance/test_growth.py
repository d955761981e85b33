"""Operations cost the same however many partitions there are that they are not about, and jobs the same a partition.

Costs are counted in steps (tests/support/counted_steps.py), with warm caches. `make bench-growth` draws the curves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from counted_steps import counted_steps
from simulations.compacted_model import InlineTasks

from pyspark_kafkalog.groups import group as group_module
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob
from pyspark_kafkalog.maintenance.jobs.runner import Job, JobRun, is_small, run_once
from pyspark_kafkalog.maintenance.merge import MERGE_JOB
from pyspark_kafkalog.maintenance.metrics import _group_ids, _lag_metric
from pyspark_kafkalog.maintenance.retention.delete import RETENTION_JOB
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.storage.artefacts import partition_listing
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, write_offset_checkpoint
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import TopicPartition

FEW, MANY = 10, 1_000
#: Trees and searches of the image grow by the logarithm.
GROWTH_MAX: Final = 1.25


def steps_of(work: Callable[[], object]) -> int:
    work()
    with counted_steps() as steps:
        work()
    return steps.count


def operations(path: Path, partitions: int) -> Mapping[str, Callable[[], object]]:
    log_dir = LogDir.create(path)
    log_dir.create_topic("orders", partitions=partitions)
    table = pa.table({"value": ["x"]})
    group = log_dir.group("nightly")
    group.commit({("orders", 3): 0})
    return {
        "open": lambda: LogDir.open(path),
        "append": lambda: log_dir.append("orders", table, partition=3, flush="os"),
        "commit offsets": lambda: group.commit({("orders", 3): 0}, flush="os"),
        "lag": group.lag,
        "list groups": log_dir.groups,
        "configuration": lambda: log_dir.log_config("orders"),
    }


@pytest.mark.slow
def test_operations_on_one_partition_do_not_grow_with_the_topic(tmp_path: Path) -> None:
    few = {name: steps_of(work) for name, work in operations(tmp_path / "few", FEW).items()}
    many = {name: steps_of(work) for name, work in operations(tmp_path / "many", MANY).items()}
    assert [name for name in few if many[name] > GROWTH_MAX * few[name]] == [], (few, many)


@pytest.mark.slow
def test_jobs_with_nothing_to_do_cost_the_same_for_each_partition(tmp_path: Path) -> None:
    """So all of it is linear; with the checkpoint of the cleaner, which has a line for each partition."""
    counts: dict[str, list[float]] = {}
    for partitions in (10, 80):
        log_dir = LogDir.create(tmp_path / str(partitions))
        log_dir.create_topic("users", partitions=partitions, configs={"cleanup.policy": "compact"})
        keys = [str(each) for each in range(8 * partitions)]
        log_dir.append("users", pa.table({"key": keys, "value": keys}), flush="os")
        job_run = JobRun(path=tmp_path / str(partitions))
        chosen = RETENTION_JOB.choose(job_run)
        write_offset_checkpoint(tmp_path / str(partitions) / CLEANER_OFFSET_CHECKPOINT, dict.fromkeys(chosen, 0))
        jobs: list[Job] = [RETENTION_JOB, MERGE_JOB, CleanerJob()]
        for job in jobs:

            def run(job: Job = job, job_run: JobRun = job_run) -> None:
                assert is_small(job, job_run, job.choose(job_run))
                assert run_once(job, lambda _: InlineTasks(), job_run, []) == 0

            counts.setdefault(job.action, []).append(steps_of(run) / partitions)
    assert [name for name, (few, many) in counts.items() if many > GROWTH_MAX * few] == [], counts


def run_job(job: Job, job_run: JobRun) -> None:
    assert run_once(job, lambda _: InlineTasks(), job_run, []) == 0


def test_jobs_with_nothing_to_do_list_each_directory_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of partitions with closed segments, from which retention has deleted before."""
    log_dir = LogDir.create(tmp_path)
    configs = {"cleanup.policy": "compact,delete", "internal.segment.bytes": "300", "min.cleanable.dirty.ratio": "1"}
    log_dir.create_topic("users", partitions=6, configs=configs)
    for number in range(8):
        keys = [str(each) for each in range(60)]
        log_dir.append("users", pa.table({"key": keys, "value": [str(number)] * len(keys)}), flush="os")
    moved = delete_records(log_dir.root, {TopicPartition("users", number): 5 for number in range(3)})
    assert all(each.error is None for each in moved)
    listed: list[str] = []
    real = partition_listing.list_names
    monkeypatch.setattr(
        partition_listing, "list_names", lambda directory: listed.append(str(directory)) or real(directory)
    )
    job_run = JobRun(path=tmp_path)
    jobs: list[Job] = [RETENTION_JOB, MERGE_JOB, CleanerJob()]
    for hours in range(4):  # until what was renamed is removed
        job_run = JobRun(path=tmp_path, now_ms=time_ms() + hours * 3_600_000)
        for job in jobs:
            run_job(job, job_run)
    for job in jobs:
        listed.clear()
        run_job(job, job_run)
        assert sorted(Counter(listed).values()) == [1] * 6, job.action


def test_lags_of_many_groups_decode_each_partition_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.create_topic("orders", partitions=20)
    for number in range(10):
        log_dir.group(f"g{number}").commit({("orders", each): 0 for each in range(20)}, flush="os")
    log_dir.refresh()
    log_dir.groups()
    decoded: list[str] = []
    for name in ("parse_offset_key", "parse_offset_value"):
        real = getattr(group_module, name)
        monkeypatch.setattr(group_module, name, lambda data, real=real: decoded.append("") or real(data))
    snapshots: list[str] = []
    real_snapshot = FileRoot._snapshot
    monkeypatch.setattr(FileRoot, "_snapshot", lambda *each: snapshots.append("") or real_snapshot(*each))
    assert len(_lag_metric(log_dir.root, _group_ids(log_dir.root)).values) == 200
    assert len(decoded) == 20
    snapshots.clear()
    assert len(log_dir.group("g1").lag()) == 20
    assert len(snapshots) <= 1
