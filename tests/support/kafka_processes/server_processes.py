"""`kafkalog serve` in processes of its own, which die with the test."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_processes.java_processes import start_server

_READY_MAX_S = 120  # on a machine that has not compiled the record kernels yet, and is busy
_ADDRESS = re.compile(r"^(\S+):(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server, or the supervisor of several. Its outputs are in the file `log`."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    log: Path

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def stop(self) -> int:
        """End it as a service manager does; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(
    root: Path | str | None,
    *options: str,
    listen: str = "127.0.0.1:0",
    files_max: int | None = None,
    program: Sequence[str | Path] = (sys.executable, "-m", "pyspark_kafkalog"),
) -> Iterator[ServerProcess]:
    """Serve `root`, or what the options name, while the block runs, with `files_max` descriptors if given.

    `program` begins the command line. Servers of a test's own environment begin with another one.

    Raises AssertionError with its log if it does not start.
    """
    limited = [] if files_max is None else ["sh", "-c", f'ulimit -S -n {files_max} && exec "$@"', "sh"]
    path = [] if root is None else ["--path", str(root)]
    command = [*limited, *map(str, program), "serve", *path]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "server.log"
        with log.open("wb") as output:
            process = start_server([*command, "--listen", listen, *options], output)
        try:
            yield ServerProcess(process, *_printed_address(process, log), log)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(60)


def _printed_address(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    deadline = time.monotonic() + _READY_MAX_S
    while process.poll() is None and time.monotonic() < deadline:
        found = _ADDRESS.search(log.read_text())
        if found is not None:
            return found.group(1), int(found.group(2))
        time.sleep(0.02)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")
