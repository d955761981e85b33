"""The results of the cleaner's last run over a root, for its metrics: `<root>/kafkalog-cleaner-run.json`.

Replaced as a whole at the end of a run: a crash leaves the old file or the new one, and of two concurrent runs the one
that ends later wins. A broker ignores unknown files in its log directory. Without the file, or if it cannot be parsed,
there was no run.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, read_text_file

_LOG: Final = logging.getLogger(__name__)

LAST_RUN_FILE: Final = "kafkalog-cleaner-run.json"
_MAX_FILE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerRun:
    """One run of the cleaner over a root; bytes are those of the recopying.

    `max_clean_seconds` is that of the slowest partition, `max_dirty_percent` that of the filthiest one before the run.
    """

    began_ms: int
    ended_ms: int
    bytes_read: int = 0
    bytes_written: int = 0
    max_clean_seconds: float = 0.0
    max_dirty_percent: float = 0.0
    partitions_cleaned: int = 0
    partitions_failed: int = 0


def read_last_run(root: Path) -> CleanerRun | None:
    """The last run, None if there was none. Raises OSError if the file cannot be read."""
    path = root / LAST_RUN_FILE
    try:
        data = read_text_file(path, max_bytes=_MAX_FILE_BYTES, kind=DiskFormatError, advice="delete the file")
        tree = json.loads(data)
        return CleanerRun(
            began_ms=int(tree["began_ms"]),
            ended_ms=int(tree["ended_ms"]),
            bytes_read=int(tree["bytes_read"]),
            bytes_written=int(tree["bytes_written"]),
            max_clean_seconds=float(tree["max_clean_seconds"]),
            max_dirty_percent=float(tree["max_dirty_percent"]),
            partitions_cleaned=int(tree["partitions_cleaned"]),
            partitions_failed=int(tree["partitions_failed"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        _LOG.warning("%s is passed over, it cannot be understood: %s", path, error)
        return None


def write_last_run(root: Path, run: CleanerRun, *, fs: FileSystem = LOCAL) -> None:
    """Replace the stored results of the last run."""
    fs.write_file_atomic(root / LAST_RUN_FILE, json.dumps(asdict(run)).encode(), durable=False)
