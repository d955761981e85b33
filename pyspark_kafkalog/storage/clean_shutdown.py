"""`.kafka_cleanshutdown` in the root of a log directory: the broker stopped in good order and no recovery is needed.

    {"version":0,"brokerEpoch":11}

Its presence is what counts. Written last when a broker stops, removed first when it starts, so a crash leaves none.
Source of the rules: org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"


def was_clean_shutdown(root: Path) -> bool:
    """Whether the last broker on `root` stopped in good order."""
    return (root / CLEAN_SHUTDOWN_FILE).exists()


def write_clean_shutdown(root: Path, broker_epoch: int, *, fs: FileSystem = LOCAL) -> None:
    """Note that all of `root` is flushed and closed."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    fs.write_file_atomic(root / CLEAN_SHUTDOWN_FILE, content.encode())


def remove_clean_shutdown(root: Path, *, fs: FileSystem = LOCAL) -> None:
    """Note that `root` is in use: what a crash leaves from here on must be recovered."""
    fs.unlink_if_there(root / CLEAN_SHUTDOWN_FILE)
