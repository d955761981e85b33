"""Batches as rows of a table, and records as columns: the decoder's output and the encoder's input.

The arrays of records have Arrow's layout (int32 offsets into one byte array, validity as a bitmap with the lowest bit
first), so they convert to and from Arrow arrays without a copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.header import LEADER_EPOCH_AT, LENGTH_AT, LOG_OVERHEAD_BYTES, MAGIC_AT
from pyspark_kafkalog.values import dataclass

#: One row per batch of a scanned run, as kernels, indexes and the commit path exchange it. Native byte order.
#: `position` is the batch's first byte in its file, `size_bytes` its total length with the 12 bytes of overhead.
BATCH_DTYPE: Final = np.dtype(
    [
        ("position", np.int64),
        ("size_bytes", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp_ms", np.int64),
        ("max_timestamp_ms", np.int64),
        ("producer_id", np.int64),
        ("leader_epoch", np.int32),
        ("base_sequence", np.int32),
        ("records_count", np.int32),
        ("crc", np.uint32),
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
    ]
)


def assigned_heads(batches: NDArray[np.void]) -> NDArray[np.uint8]:
    """The bytes that a log assigns, a row a batch (BATCH_DTYPE): base offset, length and leader epoch."""
    heads = np.empty((len(batches), MAGIC_AT), dtype=np.uint8)
    heads[:, :LENGTH_AT] = batches["base_offset"].astype(">i8")[:, None].view(np.uint8)
    heads[:, LENGTH_AT:LEADER_EPOCH_AT] = (
        (batches["size_bytes"] - LOG_OVERHEAD_BYTES).astype(">i4")[:, None].view(np.uint8)
    )
    heads[:, LEADER_EPOCH_AT:] = batches["leader_epoch"].astype(">i4")[:, None].view(np.uint8)
    return heads


#: TimestampType.NO_TIMESTAMP_TYPE of Kafka's clients: of records that have no timestamp, in messages of format 0.
NO_TIMESTAMP_TYPE: Final = -1


def address_of(array: NDArray[Any]) -> int:
    """Memory address of the array's first element. The caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """n byte strings, any of them null.

    `offsets` int32[n+1]: element i is `data[offsets[i]:offsets[i+1]]`; offsets[0] need not be 0.
    `validity` uint8[>= (n+7)//8]: bit i is set if element i is not null; None: no element is null.
    """

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    validity: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> BinaryColumn:
        """Elements start to stop, sharing memory; `start` is a multiple of 8."""
        validity = None if self.validity is None else self.validity[start // 8 :]
        return BinaryColumn(self.offsets[start : stop + 1], self.data, validity)


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """n lists of record headers: list i is elements offsets[i] to offsets[i+1] of `keys` and `values`.

    `keys` are never null, and UTF-8 unless their writer violated the format; `values` may be null.
    """

    offsets: NDArray[np.int32]
    keys: BinaryColumn
    values: BinaryColumn

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> HeaderColumn:
        """Lists start to stop, sharing memory."""
        return HeaderColumn(self.offsets[start : stop + 1], self.keys, self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """`count` records; columns that were not requested are None.

    `offsets` int64[count]; `timestamps_ms` int64[count], -1 for none; `timestamp_types` int32[count],
    the numbers of TimestampType, or NO_TIMESTAMP_TYPE.
    """

    count: int
    offsets: NDArray[np.int64] | None = None
    timestamps_ms: NDArray[np.int64] | None = None
    timestamp_types: NDArray[np.int32] | None = None
    keys: BinaryColumn | None = None
    values: BinaryColumn | None = None
    headers: HeaderColumn | None = None

    def without_timestamp_types(self) -> RecordColumns:
        """The same with NO_TIMESTAMP_TYPE, if it has the column: records of a format that has no timestamps."""
        if self.timestamp_types is None:
            return self
        return replace(self, timestamp_types=np.full_like(self.timestamp_types, NO_TIMESTAMP_TYPE))

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Records start to stop, sharing memory; `start` is a multiple of 8 because of the validity bitmaps."""
        if start == 0 and stop == self.count:
            return self
        return RecordColumns(
            count=stop - start,
            offsets=None if self.offsets is None else self.offsets[start:stop],
            timestamps_ms=None if self.timestamps_ms is None else self.timestamps_ms[start:stop],
            timestamp_types=None if self.timestamp_types is None else self.timestamp_types[start:stop],
            keys=None if self.keys is None else self.keys.slice(start, stop),
            values=None if self.values is None else self.values.slice(start, stop),
            headers=None if self.headers is None else self.headers.slice(start, stop),
        )
