"""`.kafka_cleanshutdown` in the root of a log directory: the broker stopped in good order and no recovery is needed.

    {"version":0,"brokerEpoch":11}

Its presence is what counts. Written last when a broker stops, removed first when it starts, so a crash leaves none.
Source of the rules: org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, open_to_read

CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
_MAX_FILE_BYTES: Final = 4096


def was_clean_shutdown(root: Path) -> bool:
    """Whether the last broker on `root` stopped in good order."""
    return (root / CLEAN_SHUTDOWN_FILE).exists()


def read_broker_epoch(root: Path) -> int | None:
    """The epoch of the broker that stopped; None when there is no file or, as with Kafka, it makes no sense."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with open_to_read(root / CLEAN_SHUTDOWN_FILE) as stream:
            content = json.loads(stream.read(_MAX_FILE_BYTES))
        epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
        if isinstance(epoch, int) and not isinstance(epoch, bool):
            return epoch
    return None


def write_clean_shutdown(root: Path, broker_epoch: int, *, fs: FileSystem = LOCAL) -> None:
    """Note that all of `root` is flushed and closed."""
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    fs.write_file_atomic(root / CLEAN_SHUTDOWN_FILE, content.encode())


def remove_clean_shutdown(root: Path, *, fs: FileSystem = LOCAL) -> None:
    """Note that `root` is in use: what a crash leaves from here on must be recovered."""
    fs.unlink_if_there(root / CLEAN_SHUTDOWN_FILE)
