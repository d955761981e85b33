"""Scans a closed segment: whole batches of its own offsets, in order, up to its end.

For jobs that copy closed segments and must not copy damage: merging, and copying to remote storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.scan import scan_batches
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
