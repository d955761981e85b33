"""A server of objects for tests: a process that listens on a port of this machine, and dies with its maker."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final, TypeVar

from kafka_processes.java_processes import accepts, free_port, processor_seconds_of, start_server

_START_SECONDS_MAX: Final = 60

S = TypeVar("S", bound="StoreProcess")


class StoreProcess:
    """Runs while it is entered. `home` holds its log and what it stores; `port` is known from then on."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """What to run to listen on `port`."""
        raise NotImplementedError

    def __enter__(self: S) -> S:
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        command = self.command()
        with (self.home / "server.log").open("ab") as log:
            self._process = start_server(command, log)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not accepts(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise OSError(f"{command} did not start\n{(self.home / 'server.log').read_text()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        assert self._process is not None
        return self._process.pid

    def processor_seconds(self) -> float:
        """The processor time that the server has used so far."""
        return processor_seconds_of(self.pid)
