"""`.kafka_cleanshutdown` in the root of a log directory: the broker was stopped cleanly, and no recovery is needed.

    {"version":0,"brokerEpoch":11}

Only its presence counts. It is written last when a broker stops and removed first when it starts, so that a crash
leaves no such file.
Source of the rules: org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"


def was_clean_shutdown(root: Path) -> bool:
    """Whether the last broker on `root` was stopped cleanly."""
    return (root / CLEAN_SHUTDOWN_FILE).exists()


def write_clean_shutdown(root: Path, broker_epoch: int, *, fs: FileSystem = LOCAL) -> None:
    """Mark all of `root` as flushed and closed."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    fs.write_file_atomic(root / CLEAN_SHUTDOWN_FILE, content.encode())


def remove_clean_shutdown(root: Path, *, fs: FileSystem = LOCAL) -> None:
    """Mark `root` as in use: after a crash from here on, its logs must be recovered."""
    fs.unlink_if_there(root / CLEAN_SHUTDOWN_FILE)
