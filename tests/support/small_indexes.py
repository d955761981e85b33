"""Small offset and time indexes for the tests of their files."""

from __future__ import annotations

from pathlib import Path

from pyspark_kafkalog.storage.artefacts.offset_index import OffsetIndex
from pyspark_kafkalog.storage.artefacts.time_index import TimeIndex

BASE = 1000
ROOM_BYTES = 1024


def offset_index(path: Path, *, writable: bool = True, room_bytes: int = ROOM_BYTES) -> OffsetIndex:
    return OffsetIndex.open(path, BASE, max_index_bytes=room_bytes, writable=writable)


def time_index(path: Path, *, writable: bool = True, room_bytes: int = ROOM_BYTES) -> TimeIndex:
    return TimeIndex.open(path, BASE, max_index_bytes=room_bytes, writable=writable)


def add_entry(index: OffsetIndex, offset: int, position: int) -> None:
    index.append(offset, position)
