"""Writers and readers on shared topics, killed at random and restarted: no record lost, none twice, none out of order.

2 batch writers commit numbered records by version, 2 streaming writers do it with Spark queries, 2 streaming readers
follow with theirs; metadata snapshots are written and old commits removed all the while. A killer SIGKILLs one process
after the other, each of which is restarted at once. In the end each record's (writer, number) is checked, in the log
and in the readers' output. KAFKALOG_SOAK_SECONDS sets the duration, 40 by default.
"""

from __future__ import annotations

import operator
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka_processes.oracle import dump_log

from pyspark_kafkalog import LogDir
from tests.soak.batch_writer import RECORDS
from tests.soak.drivers import PARTITIONS, ROWS_A_BATCH

pytestmark = [pytest.mark.spark, pytest.mark.interop]

SECONDS = float(os.environ.get("KAFKALOG_SOAK_SECONDS", "40"))
HERE = Path(__file__).parent
#: How long a process lives once it has begun to work; some are killed before, while they start.
BATCH_LIFE_SECONDS = (0.2, 5.0)
DRIVER_LIFE_SECONDS = (1.0, 10.0)
EARLY_KILLS = 0.2
#: On a machine with much else to do drivers take long to start; so much longer they may take.
EXTRA_SECONDS_MAX = 240
STOP_SECONDS_MAX = 120

Found = dict[str, dict[tuple[str, int], list[int]]]


@dataclass
class Worker:
    """A process that is started again whenever it ends."""

    script: str
    arguments: list[str]
    log: Path
    life_seconds: tuple[float, float]
    kills: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _dies_at: float = field(default=0, init=False)
    _has_worked: bool = field(default=False, init=False)

    @property
    def working(self) -> Path:
        """The file that the process makes when it has begun to work."""
        return self.log.with_suffix(".working")

    @property
    def has_worked(self) -> bool:
        return self._has_worked or self.working.exists()

    def start(self) -> None:
        self._has_worked = self.has_worked
        self.working.unlink(missing_ok=True)
        self._dies_at = time.monotonic() + random.uniform(*self.life_seconds) if random.random() < EARLY_KILLS else 0
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / self.script), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # its JVM dies with it
            )

    def tend(self) -> None:
        """Kill it when its time has come, start it when it is dead. One that failed by itself is a failure."""
        assert self._process is not None
        status = self._process.poll()
        assert status is None, f"{self.arguments} ended by itself with {status}:\n{self.said()}"
        if not self._dies_at and self.working.exists():
            self._dies_at = time.monotonic() + random.uniform(*self.life_seconds)
        if self._dies_at and time.monotonic() >= self._dies_at:
            self.die_now()

    def die_now(self) -> None:
        self.kill()
        self.kills += 1
        self.start()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def finish(self) -> None:
        """Wait until it has ended by itself."""
        assert self._process is not None
        status = self._process.wait(STOP_SECONDS_MAX)
        assert status == 0, f"{self.arguments} ended with {status}:\n{self.said()}"

    def said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    started: list[Worker] = []
    yield started
    for worker in started:
        worker.kill()


def test_every_record_is_read_once_when_processes_are_killed(tmp_path: Path, workers: list[Worker]) -> None:
    root = tmp_path / "log"
    log_dir = LogDir.create(root)
    log_dir.alter_broker_configs(
        add={"metadata.log.max.record.bytes.between.snapshots": "20000", "metadata.max.retention.ms": "5000"}
    )
    for topic, partitions in PARTITIONS.items():
        log_dir.create_topic(topic, partitions, {"internal.segment.bytes": "50000", "index.interval.bytes": "1000"})
    batch = ["batch-0", "batch-1"]
    streams = ["stream-0", "stream-1"]
    readers = ["reader-0", "reader-1"]

    def worker(script: str, name: str, *arguments: str, life: tuple[float, float]) -> Worker:
        return Worker(script, list(arguments), tmp_path / f"{name}.log", life)

    def driver(role: str, name: str) -> Worker:
        return worker("drivers.py", name, role, str(root), name, str(tmp_path / name), life=DRIVER_LIFE_SECONDS)

    workers += [driver("writer", name) for name in streams]
    workers += [driver("reader", name) for name in readers]
    workers += [
        worker("batch_writer.py", name, str(root), name, str(tmp_path / f"{name}.journal"), life=BATCH_LIFE_SECONDS)
        for name in batch
    ]
    for each in workers:
        each.start()
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline or (
        time.monotonic() < deadline + EXTRA_SECONDS_MAX and not all(each.has_worked for each in workers)
    ):
        for each in workers:
            each.tend()
        time.sleep(0.2)
    for each in workers:
        if not each.kills:
            each.die_now()
    (tmp_path / "stop").touch()
    for each in workers:
        each.finish()
    drains = [driver("drain", name) for name in readers]
    workers += drains
    for each in drains:
        each.start()
        each.finish()

    found, offsets = in_the_log(root)
    for name in (*batch, *streams):
        check_writer(name, found[name])
    for name in batch:
        acknowledged = (tmp_path / f"{name}.journal").read_text().split()
        assert count(found[name]) >= (int(acknowledged[-1]) + 1) * RECORDS
    for name in streams:
        noted = [
            int(path.name) for path in (tmp_path / name / "checkpoint" / "commits").iterdir() if path.name.isdigit()
        ]
        assert count(found[name]) >= (max(noted) + 1) * ROWS_A_BATCH
    for name in readers:
        assert taken(tmp_path / name) == offsets, f"{name} took other records than there are"
    dumped = dump_log(sorted(root.glob("s?-*/*.log")))
    assert dumped.returncode == 0, dumped.stderr
    verdicts = re.findall(r"isvalid: (\w+)", dumped.stdout)
    assert set(verdicts) == {"true"}
    kills = {each.log.stem: each.kills for each in workers if each not in drains}
    print(
        f"\nsoak: {SECONDS:g} s, {sum(kills.values())} kills ({kills}), {len(offsets)} records; "
        + ", ".join(f"{name} {count(found[name])}" for name in (*batch, *streams))
    )
    assert sum(kills.values()) >= SECONDS / 10


def in_the_log(root: Path) -> tuple[Found, dict[tuple[str, int, int], str]]:
    """Numbers by writer and partition in the order of their offsets; and each offset's value."""
    log_dir = LogDir.open(root)
    found: Found = {}
    values: dict[tuple[str, int, int], str] = {}
    for topic in PARTITIONS:
        rows = log_dir.read(topic, columns=["partition", "offset", "value"]).to_pydict()
        for partition, offset, value in zip(rows["partition"], rows["offset"], rows["value"], strict=True):
            name, number = value.decode().split(" ")
            found.setdefault(name, {}).setdefault((topic, partition), []).append(int(number))
            values[topic, partition, offset] = value.decode()
    return found, values


def count(of_writer: dict[tuple[str, int], list[int]]) -> int:
    return sum(map(len, of_writer.values()))


def check_writer(name: str, of_writer: dict[tuple[str, int], list[int]]) -> None:
    """All numbers from 0 to the last one are there, once, and rise within each partition."""
    for place, numbers in of_writer.items():
        assert all(map(operator.lt, numbers, numbers[1:])), f"{name}: out of order or twice in {place}"
    together = sorted(number for numbers in of_writer.values() for number in numbers)
    assert together == list(range(len(together))), f"{name}: numbers are missing or there twice"


def taken(home: Path) -> dict[tuple[str, int, int], str]:
    """What a reader's micro-batches hold, each offset once."""
    values: dict[tuple[str, int, int], str] = {}
    for file in home.glob("*.txt"):
        for line in file.read_text().splitlines():
            topic, partition, offset, value = line.split(" ", 3)
            place = (topic, int(partition), int(offset))
            assert place not in values, f"{home.name} took {place} twice"
            values[place] = value
    return values
