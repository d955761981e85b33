"""`spark-submit jobs/follow.py` on a cluster of Spark's own on this machine, whose processes tests may kill.

The driver is two processes: the JVM that spark-submit is, and Python below it. Each executor is a JVM below the
driver's, with the Python processes of its tasks. Ranges and fetches are small, so that little data takes many tasks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from java_processes import start_server

JOB: Final = Path(__file__).resolve().parents[2] / "jobs" / "follow.py"
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
