"""What the explanations of a search in a log are made of: segments, index entries, the batches looked at on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.notebook.points_in_time import iso_text
from pyspark_kafkalog.record.plain import Record
from pyspark_kafkalog.storage.mapped_index import MAX_INDEX_BYTES
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file,
)
from pyspark_kafkalog.storage.offset_index import OFFSET_INDEX_DTYPE, OffsetIndex
from pyspark_kafkalog.storage.segment_reader import SegmentReader
from pyspark_kafkalog.storage.time_index import TIME_INDEX_DTYPE, TimeIndex

#: Batches of a scan that are kept for showing, the last ones; the others are counted.
_BATCHES_KEPT: Final = 48
_TEXT_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """A batch whose header was read on the way."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    records_count: int
    max_timestamp_ms: int

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """Headers read one after the other from `position` on; `count` of them, of which the last ones are `batches`.

    `found` is the batch that ended the scan; None when the segment ended first.
    """

    position: int
    count: int
    batches: tuple[SeenBatch, ...]
    found: SeenBatch | None


def scan_until(segment: SegmentReader, position: int, is_wanted: Callable[[SeenBatch], bool]) -> Scan:
    """Read headers from `position` on up to the first batch that is wanted. Raises CorruptRecordError."""
    kept: deque[SeenBatch] = deque(maxlen=_BATCHES_KEPT)
    count = 0
    for at, header in segment.headers(position):
        batch = SeenBatch(
            at, header.size_bytes, header.base_offset, header.last_offset, header.records_count, header.max_timestamp_ms
        )
        kept.append(batch)
        count += 1
        if is_wanted(batch):
            return Scan(position, count, tuple(kept), batch)
    return Scan(position, count, tuple(kept), None)


def offset_index_entries(directory: Path, base_offset: int) -> NDArray[np.void]:
    """The entries of the segment's offset index (OFFSET_INDEX_DTYPE), none where it cannot be read."""
    path = segment_file(directory, base_offset, INDEX_SUFFIX)
    try:
        with OffsetIndex.open(path, base_offset, max_index_bytes=MAX_INDEX_BYTES) as index:
            return index.entries_array()
    except (DiskFormatError, FileNotFoundError):
        return np.empty(0, OFFSET_INDEX_DTYPE)


def time_index_entries(directory: Path, base_offset: int) -> NDArray[np.void]:
    """The entries of the segment's time index (TIME_INDEX_DTYPE), none where it cannot be read."""
    path = segment_file(directory, base_offset, TIME_INDEX_SUFFIX)
    try:
        with TimeIndex.open(path, base_offset, max_index_bytes=MAX_INDEX_BYTES) as index:
            return index.entries_array()
    except (DiskFormatError, FileNotFoundError):
        return np.empty(0, TIME_INDEX_DTYPE)


def floor_slot(keys: NDArray[Any], key: int) -> int:
    """Number of the last entry at or below `key`, -1 when there is none."""
    return int(np.searchsorted(keys, key, side="right")) - 1


def record_text(record: Record) -> str:
    """A record in one line: offset, time, key and value, cut where they are long."""
    when = iso_text(record.timestamp_ms)
    return f"offset {record.offset}, {when}, key {_short(record.key)}, value {_short(record.value)}"


def _short(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = data[: 4 * _TEXT_MAX].decode(errors="replace")
    return repr(text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…")
