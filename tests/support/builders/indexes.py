"""Small indexes for the tests of their files, and those of a segment, written again from its changed `.log`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.log.producer_replay import producer_state_at
from pyspark_kafkalog.storage.segment.recovery import read_indexes

_NEVER_MS = 1 << 62


def rebuild_indexes(directory: Path, base_offset: int, config: LogConfig) -> int:
    """Rebuild the three indexes of the segment at `base_offset`, trimmed; returns the valid bytes of its `.log`."""
    producers = producer_state_at(directory, base_offset, log_start_offset=0, expiration_ms=_NEVER_MS, now_ms=0)
    rebuilt = read_indexes(directory, base_offset, config, producers)
    rebuilt.write(directory, base_offset, fs=LOCAL)
    return rebuilt.valid_bytes


BASE = 1000
ROOM_BYTES = 1024


def offset_index(path: Path, *, writable: bool = True, room_bytes: int = ROOM_BYTES) -> OffsetIndex:
    return OffsetIndex.open(path, BASE, max_index_bytes=room_bytes, writable=writable)


def time_index(path: Path, *, writable: bool = True, room_bytes: int = ROOM_BYTES) -> TimeIndex:
    return TimeIndex.open(path, BASE, max_index_bytes=room_bytes, writable=writable)


def add_entry(index: OffsetIndex, offset: int, position: int) -> None:
    index.append_many(np.array([offset]), np.array([position]))
