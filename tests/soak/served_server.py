"""`kafkalog serve` with a wall clock that a test moves, and a trace of what the coordinators of groups decide.

    python served_server.py CLOCK TRACE serve --path ...

The file CLOCK, if it exists, holds the milliseconds by which the process's wall clock is ahead; it is looked at ten
times a second. TRACE gets the latest lines of the groups' loggers, 16 MB of them at most. The processes that a server
with workers starts are plain ones.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

from pyspark_kafkalog.tools.main import main as run_command
from pyspark_kafkalog.units import NS_PER_MS

_TRACE_BYTES_MAX = 8 << 20
_LOOK_S = 0.1


def move_clock(file: Path) -> None:
    """Have time.time_ns, from which the package takes the wall clock, follow the file from now on."""
    true_ns = time.time_ns
    ahead_ns = 0

    def follow() -> None:
        nonlocal ahead_ns
        while True:
            found = 0
            with contextlib.suppress(FileNotFoundError, ValueError):
                found = int(file.read_text())
            ahead_ns = found * NS_PER_MS
            time.sleep(_LOOK_S)

    threading.Thread(target=follow, daemon=True).start()
    time.time_ns = lambda: true_ns() + ahead_ns


def trace(file: Path) -> None:
    handler = RotatingFileHandler(file, maxBytes=_TRACE_BYTES_MAX, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("pyspark_kafkalog.server.groups")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False


if __name__ == "__main__":
    clock, trace_file, *command = sys.argv[1:]
    move_clock(Path(clock))
    trace(Path(trace_file))
    sys.argv[1:] = command  # a supervisor makes the commands of its processes of it
    sys.exit(run_command(command))
