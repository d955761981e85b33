"""A back-fill by Spark out of a real broker, on executors of their own, which are killed, and so is the driver.

The driver is two processes: the JVM that spark-submit is, and Python below it. Each executor is a JVM below the
driver's, with the Python processes of its tasks. Ranges and fetches are small, so that little data takes many tasks.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from builders.following_roots import batches_of
from builders.leader_reads import log_bytes
from fakes.tcp_relay import TcpRelay
from kafka_processes.clients import producing
from kafka_processes.java_processes import free_port, start_server
from kafka_processes.oracle import Broker
from patience import wait_until
from repository import REPOSITORY

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.names import TopicPartition

JOB: Final = REPOSITORY / "jobs" / "follow.py"
_SPARK_SUBMIT: Final = Path(sys.executable).with_name("spark-submit")
_SECONDS_MAX: Final = 240
_DRIVER: Final = """\
import runpy

from pyspark_kafkalog.replication import fetch_loop, task_leader

fetch_loop._FETCH_BYTES_MAX = 1 << 20
task_leader._FILE_RANGE_BYTES = task_leader._OBJECT_RANGE_BYTES = {range_bytes}
runpy.run_path({job!r}, run_name="__main__")
"""


class FollowJob:
    """Follows `leader` with the root `copy` on two executors of one core; its log is in `home`."""

    def __init__(self, leader: str, copy: str | Path, home: Path, *options: str, range_bytes: int = 500_000) -> None:
        self.log = home / "follow-job.log"
        self._driver = home / "driver.py"
        self._driver.write_text(_DRIVER.format(range_bytes=range_bytes, job=str(JOB)))
        self._arguments = ["--from", leader, "--path", str(copy), "--once", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FollowJob:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill_driver()

    def start(self) -> FollowJob:
        """Start it, or start it again."""
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        command = [str(_SPARK_SUBMIT), "--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false"]
        with self.log.open("wb") as output:
            self._process = start_server([*command, str(self._driver), *self._arguments], output)
        return self

    def wait(self) -> int:
        """The exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait(_SECONDS_MAX)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill_executor(self) -> None:
        """SIGKILL for the JVM of one of the executors."""
        executors = [pid for pid in self._descendants() if b"CoarseGrainedExecutorBackend" in _command_of(pid)]
        os.kill(executors[0], signal.SIGKILL)

    def kill_driver(self) -> None:
        """SIGKILL for both processes of the driver; what runs on executors is left to itself."""
        if self._process is None or not self.is_running:
            return
        drivers = [pid for pid in self._descendants() if str(self._driver).encode() in _command_of(pid)]
        for pid in (self._process.pid, *drivers):
            os.kill(pid, signal.SIGKILL)
        self._process.wait(_SECONDS_MAX)

    def _descendants(self) -> list[int]:
        assert self._process is not None
        parents = {int(path.name): _parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):  # it has ended
        return -1


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


#: Starts a broker and Spark clusters: the full tier alone.
pytestmark = [pytest.mark.full, pytest.mark.spark]

TOPIC: Final = "orders"
PARTITIONS: Final = [TopicPartition(TOPIC, number) for number in range(3)]
RECORDS: Final = 4000
_LISTENER: Final = "RELAYED"


@pytest.fixture(scope="module")
def relay() -> Iterator[TcpRelay]:
    with TcpRelay(free_port()) as relay:
        yield relay


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, relay: TcpRelay) -> Iterator[Broker]:
    """A broker with eight megabytes in each of three partitions, which is reached through the relay."""
    protocols = ",".join(f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", _LISTENER))
    settings = {"listener.security.protocol.map": protocols}
    ports = {_LISTENER: relay.target_port}
    home = tmp_path_factory.mktemp("broker")
    with Broker(home, settings, more_listeners=ports, advertised_ports={_LISTENER: relay.port}) as broker:
        broker.create_topic(TOPIC, len(PARTITIONS), {"segment.bytes": "2097152"})
        rng = random.Random(1)
        with producing(broker.bootstrap, **{"linger.ms": 5, "batch.size": 100_000}) as producer:
            for number in range(RECORDS):
                for name in PARTITIONS:
                    producer.produce(TOPIC, rng.randbytes(2000), partition=name.partition)
                if number % 500 == 499:
                    producer.flush(30)
        yield broker


def ends_of(copy: Path) -> list[int]:
    with contextlib.suppress(LogDirError):
        log_dir = LogDir.open(copy)
        return [each.log_end_offset for each in log_dir.topic(TOPIC).partitions] if TOPIC in log_dir.topics() else []
    return []


@contextlib.contextmanager
def standing_in_the_middle(job: FollowJob, copy: Path, relay: TcpRelay) -> Iterator[None]:
    """A part of each partition is committed, tasks fetch the rest, and no answer comes through during the block."""
    relay.delay_s = 0.005

    def is_in_the_middle() -> bool:
        assert job.is_running, job.said()[-4000:]
        ends = ends_of(copy)
        # From then on the driver itself asks for records no more, and so it keeps both executors busy.
        return len(ends) == len(PARTITIONS) and all(ends) and len(staged(copy)) > 1

    try:
        wait_until(is_in_the_middle, "a back-fill that is under way")
        relay.is_silent = True
        yield
    finally:
        relay.heal()


def staged(copy: Path) -> list[Path]:
    return list(copy.glob("*/*.staged"))


def check_equal(broker: Broker, copy: Path) -> None:
    log_dir = LogDir.open(copy)
    for name in PARTITIONS:
        ours = b"".join(batches_of(log_dir, name))
        assert ours == log_bytes([broker.data], name)
        assert len(ours) > 8_000_000


def test_ranges_of_a_killed_executor_are_fetched_again(broker: Broker, relay: TcpRelay, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with FollowJob(f"127.0.0.1:{relay.port}", copy, tmp_path) as job:
        with standing_in_the_middle(job, copy, relay):
            job.kill_executor()
            wait_until(lambda: "ExecutorLostFailure" in job.said(), "the loss of an executor with its task")
        assert job.wait() == 0, job.said()[-4000:]
    check_equal(broker, copy)
    assert "is fetched without tasks" not in job.said()
    assert not staged(copy)


def test_second_run_goes_on_where_a_killed_driver_has_committed(
    broker: Broker, relay: TcpRelay, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    with FollowJob(f"127.0.0.1:{relay.port}", copy, tmp_path) as job:
        with standing_in_the_middle(job, copy, relay):
            job.kill_driver()
        before = ends_of(copy)
        assert 0 < sum(before) < len(PARTITIONS) * RECORDS
        assert job.start().wait() == 0, job.said()[-4000:]
    check_equal(broker, copy)
    assert f"Copied {len(PARTITIONS) * RECORDS - sum(before):,} records" in job.said()
