"""Scans a closed segment: whole batches of its own offsets, in order, up to its end.

For jobs that copy closed segments and must not copy damage: merging, and copying to remote storage.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file
from pyspark_kafkalog.storage.segment.stored import StoredSegment

_BATCHES_A_SCAN: Final = 1 << 16


def scan_closed_segment(
    data: NDArray[np.uint8], segment: StoredSegment, *, file: str, advice: str | None = None
) -> Iterator[NDArray[np.void]]:
    """The batches of `data`, all bytes of the segment's `.log`, in tables of BATCH_DTYPE with positions in the file.

    CRCs are not checked. Raises CorruptRecordError for bytes that are no whole batch, and for offsets that are not the
    segment's or not in order; `advice` is that of its errors.
    """
    at, next_offset = 0, segment.base_offset
    while at < len(data):
        scan = scan_batches(data[at:], file=file, file_position=at, max_batches=_BATCHES_A_SCAN)
        if not len(scan.batches):
            raise scan.fault or CorruptRecordError(
                file=file,
                position=at,
                expected=f"batches up to byte {len(data)}",
                found="a torn batch",
                advice=advice,
            )
        first, last = int(scan.batches["base_offset"][0]), int(scan.batches["last_offset"][-1])
        if first < next_offset or last >= segment.end_offset:
            raise CorruptRecordError(
                file=file,
                position=at,
                expected=f"batches of offsets {next_offset} to {segment.end_offset - 1}",
                found=f"offsets {first} to {last}",
                advice=advice,
            )
        yield scan.batches
        at += scan.consumed_bytes
        next_offset = last + 1


def check_closed_segment(
    directory: Path, segment: StoredSegment, *, are_crcs_checked: bool, advice: str | None = None
) -> int:
    """Raise CorruptRecordError unless the segment's `.log` consists of whole batches of its offsets, in order.

    Returns the offset after the last batch. `are_crcs_checked`: and their CRCs are right. Otherwise only the headers
    are read.
    """
    path = segment_file(directory, segment.base_offset, LOG_SUFFIX)
    fd = open_file(path)
    try:
        size_bytes = os.fstat(fd).st_size
        if not size_bytes:
            return segment.base_offset
        mapped = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)  # bounded: the file's size, as planned
    finally:
        os.close(fd)
    # The mapping ends with the last array that refers to it.
    data = np.frombuffer(mapped, dtype=np.uint8)
    next_offset = segment.base_offset
    for batches in scan_closed_segment(data, segment, file=str(path), advice=advice):
        if are_crcs_checked:
            verify_crcs(data, batches, data_position=0, file=str(path))
        next_offset = int(batches["last_offset"][-1]) + 1
    return next_offset
