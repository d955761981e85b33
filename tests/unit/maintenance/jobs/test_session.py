"""Sessions of jobs: what a starting JVM prints is held back, and shown if it does not start."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import termios
import time

import pytest
from patience import PATIENCE_S, wait_until

from pyspark_kafkalog.maintenance.jobs.tasks import _held_back_stderr

PROGRAM = """
import sys
print("banner", file=sys.stderr, flush=True)
print("started", flush=True)
sys.stdin.readline()
print("later", file=sys.stderr, flush=True)
"""


def start(stderr_fd: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr_fd
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    wait_until(lambda: fcntl.ioctl(stderr_fd, termios.FIONREAD, bytes(4)) == bytes(4), "that the banner is read")
    time.sleep(0.3)  # it is held back a moment after it is read, which cannot be seen
    return process


def end(process: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str]) -> str:
    """What has been shown when the process has said its last."""
    process.communicate(b"\n", timeout=PATIENCE_S)
    shown = ""

    def is_over() -> bool:
        nonlocal shown
        shown += capfd.readouterr().err
        return shown.endswith("later\n")

    wait_until(is_over)
    return shown


def test_output_of_start_is_dropped_and_later_output_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with _held_back_stderr() as stderr_fd:
        process = start(stderr_fd)
    assert end(process, capfd) == "later\n"


def test_output_of_failed_start_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    processes = []

    def fail_to_start() -> None:
        with _held_back_stderr() as stderr_fd:
            processes.append(start(stderr_fd))
            raise RuntimeError("not started")

    with pytest.raises(RuntimeError, match="not started"):
        fail_to_start()
    assert end(processes[0], capfd) == "banner\nlater\n"
