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
from pyspark_kafkalog.maintenance.jobs import runner as job_runner
from pyspark_kafkalog.maintenance.jobs.runner import is_small
from pyspark_kafkalog.maintenance.jobs.tasks import LocalTasks, StoppedError, TaskFailedError
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


def test_work_is_small_up_to_limits_of_bytes_and_partitions(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [TopicPartition("orders", number) for number in range(2)]
    size_bytes = sum(path.stat().st_size for path in root.glob("orders-*/*.log"))
    assert is_small(root, partitions)
    monkeypatch.setattr(job_runner, "LOCAL_BYTES_MAX", size_bytes)
    assert is_small(root, partitions)
    monkeypatch.setattr(job_runner, "LOCAL_BYTES_MAX", size_bytes - 1)
    assert not is_small(root, partitions)
    assert is_small(root, [TopicPartition("deleted", 0)])
    monkeypatch.setattr(job_runner, "LOCAL_PARTITIONS_MAX", 1)
    assert not is_small(root, partitions)


def test_local_and_spark_exclude_each_other(root: Path) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog.tools.main", "verify", "--path", str(root), "--local", "--spark"]
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
    command = [sys.executable, "-m", "pyspark_kafkalog.tools.main", "retention", "--path", str(root), "--loop"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*command, "--interval", "0.1"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for _ in range(4):  # two rounds over two partitions
            assert json.loads(process.stdout.readline())["action"] == "retention"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(SECONDS_MAX) == 0
