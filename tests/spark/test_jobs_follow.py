"""Following a leader with tasks of Spark, which fetch ranges of offsets ahead."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from builders.following_roots import check_equal

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.replication import task_leader
from pyspark_kafkalog.replication.range_task import RangeRequest, StagedRange, fetch_range
from pyspark_kafkalog.tools.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogDir:
    """A leader with ten megabytes, of which a fetch takes one and a task a half."""
    monkeypatch.setattr(task_leader, "_FILE_RANGE_BYTES", 500_000)
    monkeypatch.setattr("pyspark_kafkalog.replication.fetch_loop._FETCH_BYTES_MAX", 1 << 20)
    made = LogDir.create(tmp_path / "leader")
    made.create_topic("orders", 2)
    append(made, 10)
    return made


def append(leader: LogDir, count: int) -> None:
    for _ in range(count):
        leader.append("orders", pa.table({"value": [os.urandom(2000) for _ in range(500)]}))


def follow(tmp_path: Path) -> int:
    places = ["--from", str(tmp_path / "leader"), "--path", str(tmp_path / "copy")]
    return main(["follow", "--spark", *places, "--once", "--flush", "os"])


def test_tasks_copy_all_and_a_second_run_what_is_new(
    tmp_path: Path, leader: LogDir, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[RangeRequest] = []
    begin = task_leader.RangeRequest

    def note(**fields: object) -> RangeRequest:
        requests.append(begin(**fields))  # type: ignore[arg-type]
        return requests[-1]

    monkeypatch.setattr(task_leader, "RangeRequest", note)
    for number in range(2):
        assert follow(tmp_path) == 0
        check_equal(leader.path, tmp_path / "copy")
        assert len(requests) > 4 * (number + 1)
        append(leader, 6)
    assert not list((tmp_path / "copy").glob("*/*.staged"))


@pytest.mark.full
def test_range_of_a_killed_worker_is_fetched_again(
    tmp_path: Path, leader: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"

    def dying(request: RangeRequest) -> StagedRange:
        found = fetch_range(request)
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    monkeypatch.setattr(task_leader, "fetch_range", dying)
    assert follow(tmp_path) == 0
    assert killed.exists()
    check_equal(leader.path, tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("*/*.staged"))
