"""Half-written files that killed committers left in the metadata directory; nothing reads them.

    00000000000000000005.log.<hex>.tmp                      a commit before its link
    00000000000000000194-0000000000-<hex>.checkpoint.part   a snapshot before its rename

They are removed once they are an hour old by the clock of the file system, since no process can still be writing them.
The search follows each snapshot and covers the first few thousand names in the directory, so a long history costs no
more than a short one.
"""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.filesystem import FileSystem

_NAMES_MAX: Final = 4_000
_AGE_NS: Final = 3_600_000_000_000
_LEFTOVER = re.compile(r"\d{20}\.log\.[0-9a-f]+\.tmp|\d{20}-\d{10}-[0-9a-f]+\.checkpoint\.part")


def remove_leftovers(directory: Path, *, now_ns: int, fs: FileSystem) -> None:
    """Remove leftovers last written more than an hour before `now_ns`, the file system's time. Raises OSError."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, _NAMES_MAX) if _LEFTOVER.fullmatch(entry.name)]
    for name in names:
        path = directory / name
        try:
            written_ns = os.stat(path).st_mtime_ns
        except FileNotFoundError:
            continue  # it was at work after all, or another process was first
        if now_ns - written_ns > _AGE_NS:
            fs.unlink_if_there(path)
