"""Parts of the explanation of a lookup in a log: segments, index entries, and the batches scanned."""

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
from pyspark_kafkalog.record.reference import Record
from pyspark_kafkalog.storage.artefacts.index_file import MAX_INDEX_BYTES
from pyspark_kafkalog.storage.artefacts.offset_index import OFFSET_INDEX_DTYPE, OffsetIndex
from pyspark_kafkalog.storage.artefacts.time_index import TIME_INDEX_DTYPE, TimeIndex
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file,
)
from pyspark_kafkalog.storage.segment.reader import SegmentReader

#: The number of batches of a scan that are kept for display, the last ones; the others are only counted.
_BATCHES_KEPT: Final = 48
_TEXT_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """A batch whose header was read in the scan."""

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
    """`count` headers read in order from `position` on; `batches` are the last of them.

    `found` is the batch that ended the scan; None if the segment ended first.
    """

    position: int
    count: int
    batches: tuple[SeenBatch, ...]
    found: SeenBatch | None


def scan_until(segment: SegmentReader, position: int, is_wanted: Callable[[SeenBatch], bool]) -> Scan:
    """Read headers from `position` on up to the first batch for which `is_wanted`. Raises CorruptRecordError."""
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
    """The entries of the segment's offset index (OFFSET_INDEX_DTYPE); none if it cannot be read."""
    path = segment_file(directory, base_offset, INDEX_SUFFIX)
    try:
        with OffsetIndex.open(path, base_offset, max_index_bytes=MAX_INDEX_BYTES) as index:
            return index.entries_array()
    except (DiskFormatError, FileNotFoundError):
        return np.empty(0, OFFSET_INDEX_DTYPE)


def time_index_entries(directory: Path, base_offset: int) -> NDArray[np.void]:
    """The entries of the segment's time index (TIME_INDEX_DTYPE); none if it cannot be read."""
    path = segment_file(directory, base_offset, TIME_INDEX_SUFFIX)
    try:
        with TimeIndex.open(path, base_offset, max_index_bytes=MAX_INDEX_BYTES) as index:
            return index.entries_array()
    except (DiskFormatError, FileNotFoundError):
        return np.empty(0, TIME_INDEX_DTYPE)


def floor_slot(keys: NDArray[Any], key: int) -> int:
    """The number of the last entry at or below `key`, or -1."""
    return int(np.searchsorted(keys, key, side="right")) - 1


def record_text(record: Record) -> str:
    """A record in one line: offset, time, key and value, truncated if they are long."""
    when = iso_text(record.timestamp_ms)
    return f"offset {record.offset}, {when}, key {_short(record.key)}, value {_short(record.value)}"


def _short(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = data[: 4 * _TEXT_MAX].decode(errors="replace")
    return repr(text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…")
