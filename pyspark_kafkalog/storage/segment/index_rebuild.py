"""Rebuilds a segment's `.index`, `.timeindex` and `.txnindex` from its `.log`, equal to the files that Kafka writes.

The `.log` is not changed: a torn or damaged tail stays, and the indexes end before it. Transactions that began in an
earlier segment are taken from the producer snapshot at the base offset or, without it, from the earlier batches. Each
new file replaces the old one as a whole, so readers can continue with either.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.scan import first_bad_crc
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.filesystem import LOCAL, READ_FLAGS, FileSystem
from pyspark_kafkalog.storage.log.producer_append import CompletedTransaction, producer_batches
from pyspark_kafkalog.storage.log.producer_replay import producer_state_at
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from pyspark_kafkalog.storage.segment.index_rows import IndexRows
from pyspark_kafkalog.storage.segment.log_file import read_chunks

_NEVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class RebuiltIndexes:
    """A segment's indexes as derived from its `.log`, trimmed.

    The first `valid_bytes` of the `size_bytes` of the `.log` hold valid batches. An empty `txn_index` means no file.
    """

    valid_bytes: int
    size_bytes: int
    offset_index: bytes
    time_index: bytes
    txn_index: bytes

    def files(self) -> dict[str, bytes]:
        """Content by suffix."""
        return {INDEX_SUFFIX: self.offset_index, TIME_INDEX_SUFFIX: self.time_index, TXN_INDEX_SUFFIX: self.txn_index}

    def write(self, directory: Path, base_offset: int, *, fs: FileSystem) -> None:
        """Replace the existing files."""
        for suffix, content in self.files().items():
            path = segment_file(directory, base_offset, suffix)
            if content or suffix != TXN_INDEX_SUFFIX:
                fs.write_file_atomic(path, content, durable=False)
            else:
                fs.unlink_if_there(path)


def rebuild_indexes(directory: Path, base_offset: int, config: LogConfig, *, fs: FileSystem = LOCAL) -> int:
    """Rebuild the three indexes of the segment at `base_offset`, trimmed; returns the valid bytes of its `.log`.

    The indexes are those of a segment that was appended to without a restart and then closed. An empty transaction
    index means no file. Raises FileNotFoundError if the `.log` is missing, DiskFormatError for damage in earlier
    segments that have to be read, UnsupportedFormatError for batches of an older record format.
    """
    producers = producer_state_at(directory, base_offset, log_start_offset=0, expiration_ms=_NEVER_MS, now_ms=0)
    rebuilt = read_indexes(directory, base_offset, config, producers)
    rebuilt.write(directory, base_offset, fs=fs)
    return rebuilt.valid_bytes


def read_indexes(
    directory: Path,
    base_offset: int,
    config: LogConfig,
    producers: ProducerStateManager,
    *,
    size_bytes: int | None = None,
    is_closed: bool = True,
) -> RebuiltIndexes:
    """Scan a segment's `.log`, or its first `size_bytes`, and derive the indexes that it should have.

    `producers` is at the base offset and is advanced to the end of the valid batches. A segment that is not closed has
    no closing time index entry. Raises FileNotFoundError if the `.log` is missing, UnsupportedFormatError for an older
    record format.
    """
    rows = IndexRows(base_offset, config)
    aborted: list[bytes] = []

    def completed(transaction: CompletedTransaction, last_stable_offset: int) -> None:
        if transaction.is_aborted:
            entry = AbortedTxn(
                transaction.producer_id, transaction.first_offset, transaction.last_offset, last_stable_offset
            )
            aborted.append(entry.pack())

    path = segment_file(directory, base_offset, LOG_SUFFIX)
    fd = os.open(path, READ_FLAGS)
    try:
        end = os.fstat(fd).st_size if size_bytes is None else size_bytes
        for chunk in read_chunks(fd, file=str(path), start=0, end=end, base_offset=base_offset):
            bad = first_bad_crc(chunk.data, chunk.batches, chunk.position)
            valid = chunk.batches if bad < 0 else chunk.batches[:bad]
            rows.add(valid)
            producers.replay(
                producer_batches(chunk.data, valid, data_position=chunk.position, file=str(path)), completed
            )
            if bad >= 0:
                break
    except CorruptRecordError:
        pass  # No batch begins there; recovery would truncate the file.
    finally:
        os.close(fd)
    return RebuiltIndexes(
        rows.counters.size_bytes, end, rows.offset_index(), rows.time_index(is_closed=is_closed), b"".join(aborted)
    )
