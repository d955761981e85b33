"""Sessions of jobs: what a starting JVM prints is held back, and shown if it does not start."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from pyspark_kafkalog.maintenance.jobs.session import _held_back_stderr

PROGRAM = """
import sys
print("banner", file=sys.stderr, flush=True)
print("started", flush=True)
sys.stdin.readline()
print("later", file=sys.stderr, flush=True)
"""
COPIED_S = 0.5


def start(stderr_fd: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr_fd
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    time.sleep(COPIED_S)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(b"\n", timeout=60)
    time.sleep(COPIED_S)


def test_output_of_start_is_dropped_and_later_output_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with _held_back_stderr() as stderr_fd:
        process = start(stderr_fd)
    end(process)
    assert capfd.readouterr().err == "later\n"


def test_output_of_failed_start_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    processes = []

    def fail_to_start() -> None:
        with _held_back_stderr() as stderr_fd:
            processes.append(start(stderr_fd))
            raise RuntimeError("not started")

    with pytest.raises(RuntimeError, match="not started"):
        fail_to_start()
    end(processes[0])
    assert capfd.readouterr().err == "banner\nlater\n"
