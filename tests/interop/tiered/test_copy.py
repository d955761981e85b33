"""`kafkalog tier` to a real object store and to a directory, killed on the way, and what another reader finds there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from builders.tiered_roots import TOPIC, log_bytes, remote_bytes, tiered_root
from kafka_processes.s3_proxy import S3Proxy

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.names import TopicPartition
from tests.interop.samples import reports_of

pytestmark = pytest.mark.interop

KAFKALOG = str(Path(sys.executable).parent / "kafkalog")
PARTITIONS = 2
KILLS = 3
#: A whole run takes one to three seconds.
KILL_AFTER_S = (0.5, 2.5)


@pytest.fixture(
    params=[
        pytest.param(("directory", "local"), id="directory"),
        pytest.param(("s3", "aiven"), id="s3", marks=pytest.mark.full),
    ]
)
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """A place for segments and a layout, with the settings of a store in the environment."""
    kind, layout = request.param
    if kind == "directory":
        (tmp_path / "store").mkdir()
        yield str(tmp_path / "store"), layout
        return
    with S3Proxy(tmp_path / "server") as server:
        server.set_variables(monkeypatch)
        yield f"{server.new_location().url}/tiered", layout


def tier(root: Path, *arguments: str) -> list[dict[str, object]]:
    return reports_of("tier", "--path", str(root), *arguments)


def fill(log_dir: LogDir, rounds: int) -> None:
    for number in range(rounds):
        values = pa.array([os.urandom(10_000) for _ in range(20)], pa.binary())
        log_dir.append(TOPIC, pa.table({"value": values}), partition=number % PARTITIONS, flush="os")


def test_killed_runs_leave_nothing_wrong_and_the_last_one_completes(tmp_path: Path, storage: tuple[str, str]) -> None:
    location, layout = storage
    root = tmp_path / "log"
    log_dir = tiered_root(root, location, layout=layout, partitions=PARTITIONS, internal_segment_bytes="250000")
    fill(log_dir, 60)
    planned = tier(root, "--dry-run")
    tier(root)
    fill(log_dir, 60)
    drawn = random.Random(1)
    for _ in range(KILLS):
        process = subprocess.Popen(
            [KAFKALOG, "tier", "--path", str(root), "--local"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(drawn.uniform(*KILL_AFTER_S))
        process.kill()
        process.wait()
    reports = tier(root)

    assert all(each["segmentsCopied"] for each in planned)
    before = [log_dir.read(TOPIC, partition=number) for number in range(PARTITIONS)]
    bucket = LogDir.open(None, remote_storage=location)  # as a reader of what brokers tiered, without the root
    for number, report in enumerate(reports):
        of = TopicPartition(TOPIC, number)
        end = int(str(report["remoteEndOffset"]))
        assert end > 500
        assert remote_bytes(log_dir, of) == log_bytes(log_dir, of, end)
        assert bucket.partition(TOPIC, number).log_end_offset == end
        assert bucket.read(TOPIC, partition=number) == before[number].slice(0, end)
