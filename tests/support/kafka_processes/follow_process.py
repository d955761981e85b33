"""`kafkalog follow` in a process of its own, which dies with the test and may be killed at any time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kafka_processes.java_processes import start_server

_STOP_SECONDS_MAX: Final = 90


class FollowProcess:
    """Follows `leader` with the root `copy`. The log and the report of the present process are in `home`.

    `options` hold from the next start on. Reports of earlier processes that ended by themselves are in `reports`.
    """

    def __init__(self, leader: str, copy: Path, home: Path, *options: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.leader = leader
        self.copy = copy
        self.options: Sequence[str] = options
        self.log = home / "follow.log"
        self.starts = 0
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FollowProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, or start it again."""
        self.starts += 1
        command = [sys.executable, "-m", "pyspark_kafkalog", "follow", "--from", self.leader]
        command += ["--path", str(self.copy), "--report", str(self._report), *self.options]
        with self.log.open("ab") as output:
            self._process = start_server(command, output)

    @property
    def _report(self) -> Path:
        return self._home / f"report-{self.starts}.json"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def check_running(self) -> None:
        """Raise AssertionError if it has ended by itself."""
        assert self._process is not None
        assert self._process.poll() is None, f"follow ended with {self._process.returncode}:\n{self.said()}"

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS_MAX)

    def stop(self) -> int:
        """SIGTERM, as a service manager ends it; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait(_STOP_SECONDS_MAX)

    def report(self) -> Any:
        """The report that the present process has written last."""
        return json.loads(self._report.read_text())

    def events(self, kind: str) -> list[Any]:
        """The events of a kind in the last report."""
        return [each for each in self.report()["events"] if each["event"] == kind]

    def said(self) -> str:
        """The end of the logs of all processes."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])
