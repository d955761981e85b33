"""What commits say of the batches of producers in runs: one row for each batch with a producer id, 51 bytes.

    baseOffset int64, lastOffset int64   in the partition's log
    producerId int64
    maxTimestamp int64
    transactionStart int64               of a batch in a transaction: the first offset of it in the partition; of a
                                         marker: that of the transaction which it ends; -1 without one
    coordinatorEpoch int32               of a marker, else -1
    baseSequence int32, producerEpoch int16
    kind int8                            0 data, 1 data in a transaction, 2 commit marker, 3 abort marker

All big-endian where they are stored. From the rows follow the producers of a partition and the aborted transactions for
its readers, without a request for the batches themselves. A merge makes producer snapshots and transaction indexes of
the same batches, and the commit of its segments drops their rows (metadata/extents.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn

PRODUCER_BATCH_DTYPE: Final = np.dtype(
    [
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("producer_id", np.int64),
        ("max_timestamp_ms", np.int64),
        ("transaction_start", np.int64),
        ("coordinator_epoch", np.int32),
        ("base_sequence", np.int32),
        ("producer_epoch", np.int16),
        ("kind", np.int8),
    ]
)
_STORED_DTYPE: Final = PRODUCER_BATCH_DTYPE.newbyteorder(">")

#: For an AbortedTxn whose last stable offset is not known: later transactions may overlap the same range.
_UNKNOWN: Final = -1


class ProducerBatchKind(IntEnum):
    """What a batch is to its producer's transactions."""

    DATA = 0
    TRANSACTIONAL = 1
    COMMIT = 2
    ABORT = 3


def encode_rows(rows: NDArray[np.void]) -> bytes:
    """The rows (PRODUCER_BATCH_DTYPE) as they are stored."""
    return rows.astype(_STORED_DTYPE).tobytes()


def parse_rows(data: bytes, *, start_offset: int, end_offset: int) -> NDArray[np.void]:
    """The stored rows of batches in [start_offset, end_offset). Raises InvalidRecordError for any that cannot be."""
    if len(data) % _STORED_DTYPE.itemsize:
        raise InvalidRecordError(f"the batches of producers take {len(data)} bytes, not a number of whole rows")
    rows = np.frombuffer(data, _STORED_DTYPE).astype(PRODUCER_BATCH_DTYPE)
    bases, lasts = rows["base_offset"], rows["last_offset"]
    is_wrong = (
        (lasts < bases) | (rows["producer_id"] < 0) | (rows["kind"] < 0) | (rows["kind"] > max(ProducerBatchKind))
    )
    is_wrong |= (bases < start_offset) | (lasts >= end_offset) | (rows["transaction_start"] > bases)
    is_wrong[1:] |= bases[1:] <= lasts[:-1]
    if is_wrong.any():
        raise InvalidRecordError(
            f"a batch of a producer in the offsets {start_offset} to {end_offset - 1} cannot be "
            f"{rows[int(np.argmax(is_wrong))]}"
        )
    return rows


def last_of_each_producer(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The last row of each producer: what is kept when the batches themselves are deleted."""
    _, firsts = np.unique(rows["producer_id"][::-1], return_index=True)
    return rows[np.sort(len(rows) - 1 - firsts)]


def aborted_rows(rows: NDArray[np.void], start_offset: int, end_offset: int) -> NDArray[np.void]:
    """The abort markers whose transactions overlap [start_offset, end_offset)."""
    is_marker = (rows["kind"] == ProducerBatchKind.ABORT) & (rows["transaction_start"] >= 0)
    is_overlapping = (rows["last_offset"] >= start_offset) & (rows["transaction_start"] < end_offset)
    found: NDArray[np.void] = rows[is_marker & is_overlapping]
    return found


def aborted_transactions(rows: NDArray[np.void], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions that overlap [start_offset, end_offset), by their markers."""
    found = aborted_rows(rows, start_offset, end_offset)
    return [
        AbortedTxn(int(each["producer_id"]), int(each["transaction_start"]), int(each["last_offset"]), _UNKNOWN)
        for each in found
    ]
