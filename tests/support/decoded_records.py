"""All records of some batches in one result, as the compiled decoder gives them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.columns import BinaryColumn, HeaderColumn, RecordColumns
from pyspark_kafkalog.record.decode import decode_slices

_MAX_ROWS: Final = 1 << 20
_MAX_BYTES: Final = 1 << 26


def decode_batches(
    data: NDArray[np.uint8], batches: NDArray[np.void], *, columns: frozenset[str], **arguments: Any
) -> RecordColumns:
    """The one result of `decode_slices`, which takes the same arguments; one without records where that gives none."""
    slices = list(decode_slices(data, batches, columns=columns, max_rows=_MAX_ROWS, max_bytes=_MAX_BYTES, **arguments))
    assert len(slices) <= 1
    return slices[0] if slices else _nothing(columns)


def _nothing(columns: frozenset[str]) -> RecordColumns:
    offsets = np.zeros(1, np.int32)
    binary = BinaryColumn(offsets, np.empty(0, np.uint8), None)
    made = {
        "offset": ("offsets", np.empty(0, np.int64)),
        "timestamp": ("timestamps_ms", np.empty(0, np.int64)),
        "timestampType": ("timestamp_types", np.empty(0, np.int32)),
        "key": ("keys", binary),
        "value": ("values", binary),
        "headers": ("headers", HeaderColumn(offsets, binary, binary)),
    }
    return RecordColumns(count=0, **dict(made[name] for name in columns))  # type: ignore[arg-type]
