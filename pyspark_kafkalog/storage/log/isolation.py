"""The batches that read_committed leaves out: those of aborted transactions.

A reader with read_committed ends at the last stable offset and gets no data batch of an aborted transaction. Aborted
transactions are listed in the `.txnindex` of the segment that holds their marker.

Source of the rules: org.apache.kafka.storage.internals.log.TransactionIndex.collectAbortedTxns and the consumer's
CompletedFetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.header import CONTROL_MASK, TRANSACTIONAL_MASK
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, TransactionIndex
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_file


class AbortedTransactions:
    """Aborted transactions of one partition, whose batches are left out."""

    def __init__(self, transactions: Iterable[AbortedTxn]) -> None:
        self.transactions = tuple(sorted(transactions, key=lambda each: each.last_offset))
        self._ranges: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for producer_id in {each.producer_id for each in self.transactions}:
            own = [each for each in self.transactions if each.producer_id == producer_id]
            self._ranges[producer_id] = (
                np.array([each.first_offset for each in own], dtype=np.int64),
                np.array([each.last_offset for each in own], dtype=np.int64),
            )

    @classmethod
    def overlapping(cls, directory: Path, start_offset: int, end_offset: int) -> AbortedTransactions:
        """The aborted transactions in [start_offset, end_offset), from the `.txnindex` files of the directory.

        Files that are replaced meanwhile are read again, as a cleaner moves entries between files. Raises
        CorruptIndexError for a damaged file: without it, aborted records would be taken for committed ones.
        """
        indexes = _transaction_indexes(directory, start_offset)
        while True:
            found = _collect(directory, sorted(indexes), start_offset, end_offset)
            before, indexes = indexes, _transaction_indexes(directory, start_offset)
            if indexes == before:
                return cls(found)

    def keep(self, batches: NDArray[np.void]) -> NDArray[np.void]:
        """`batches` (BATCH_DTYPE) without those of aborted transactions; control batches stay."""
        if not self._ranges:
            return batches
        is_aborted = self.is_aborted(batches)
        return batches[~is_aborted] if is_aborted.any() else batches

    def is_aborted(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """For each batch, whether it holds data of an aborted transaction."""
        result = np.zeros(len(batches), dtype=np.bool_)
        attributes = batches["attributes"]
        is_data = (attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)) == TRANSACTIONAL_MASK
        rows = np.flatnonzero(is_data)
        producer_ids = batches["producer_id"][rows]
        for producer_id in np.unique(producer_ids):
            ranges = self._ranges.get(int(producer_id))
            if ranges is None:
                continue
            own = rows[producer_ids == producer_id]
            first_offsets, last_offsets = ranges
            base_offsets = batches["base_offset"][own]
            at = np.searchsorted(last_offsets, base_offsets, side="left")
            inside = np.minimum(at, len(last_offsets) - 1)
            result[own] = (at < len(last_offsets)) & (first_offsets[inside] <= base_offsets)
        return result


def aborted_transactions(directory: Path, end_offset: int) -> list[AbortedTxn]:
    """The aborted transactions that begin below `end_offset`, from the `.txnindex` files. Raises CorruptIndexError."""
    found: list[AbortedTxn] = []
    for base_offset in sorted(PartitionListing.read(directory).files[TXN_INDEX_SUFFIX]):
        with TransactionIndex.open(segment_file(directory, base_offset, TXN_INDEX_SUFFIX), base_offset) as index:
            found += index.collect_aborted(0, end_offset).transactions
    return found


def _collect(directory: Path, bases: Iterable[int], start_offset: int, end_offset: int) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for base_offset in bases:
        path = segment_file(directory, base_offset, TXN_INDEX_SUFFIX)
        with TransactionIndex.open(path, base_offset) as index:
            result = index.collect_aborted(start_offset, end_offset)
        found.extend(result.transactions)
        if result.is_complete:
            break
    return found


def _transaction_indexes(directory: Path, start_offset: int) -> dict[int, int]:
    """Base offset and inode of the `.txnindex` files that can hold markers at or above `start_offset`."""
    files = PartitionListing.read(directory).files
    # Not by the snapshots: one may have an offset inside a segment.
    floor = max((base for base in files[LOG_SUFFIX] if base <= start_offset), default=0)
    return {base: inode for base, inode in files[TXN_INDEX_SUFFIX].items() if base >= floor}
