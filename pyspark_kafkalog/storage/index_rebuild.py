"""A segment's `.index`, `.timeindex` and `.txnindex` made anew from its `.log`, equal to what Kafka writes.

The `.log` is not changed: a torn or damaged tail is left where it is, and the indexes end before it. Transactions that
began in an earlier segment are known from the producer snapshot at the base offset or, without it, from the batches
before. The new files replace the old ones whole, so readers go on with either.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError
from pyspark_kafkalog.record.scan import first_bad_crc
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.index_rows import IndexRows
from pyspark_kafkalog.storage.log_config import LogConfig
from pyspark_kafkalog.storage.log_file import read_chunks
from pyspark_kafkalog.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
)
from pyspark_kafkalog.storage.producer_append import CompletedTransaction, producer_batches
from pyspark_kafkalog.storage.producer_rebuild import producer_state_at
from pyspark_kafkalog.storage.transaction_index import AbortedTxn

_NEVER_MS: Final = 1 << 62


def rebuild_indexes(directory: Path, base_offset: int, config: LogConfig, *, fs: FileSystem = LOCAL) -> int:
    """Write the three indexes of the segment at `base_offset` anew, trimmed; returns the valid bytes of its `.log`.

    The indexes are those of a segment appended to without a restart and then closed. An empty transaction index is no
    file. Raises FileNotFoundError without the `.log`, DiskFormatError for damage in earlier segments that have to be
    read, UnsupportedFormatError for batches of an older record format.
    """
    builder = _IndexBuilder(directory, base_offset, config)
    valid_bytes = builder.read()
    builder.write(fs)
    return valid_bytes


class _IndexBuilder:
    def __init__(self, directory: Path, base_offset: int, config: LogConfig) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._rows = IndexRows(base_offset, config)
        self._aborted: list[bytes] = []

    def read(self) -> int:
        """Go through the `.log`; returns its valid length."""
        producers = producer_state_at(
            self._directory, self._base_offset, log_start_offset=0, expiration_ms=_NEVER_MS, now_ms=0
        )
        path = segment_file(self._directory, self._base_offset, LOG_SUFFIX)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(fd).st_size
            for chunk in read_chunks(fd, file=str(path), start=0, end=size_bytes, base_offset=self._base_offset):
                bad = first_bad_crc(chunk.data, chunk.batches, chunk.position)
                valid = chunk.batches if bad < 0 else chunk.batches[:bad]
                self._rows.add(valid)
                found = producer_batches(chunk.data, valid, data_position=chunk.position, file=str(path))
                producers.replay(found, self._add_aborted)
                if bad >= 0:
                    break
        except CorruptRecordError:
            pass  # No batch begins there; recovery would cut the file.
        finally:
            os.close(fd)
        return self._rows.counters.size_bytes

    def write(self, fs: FileSystem) -> None:
        """Put the new files in place, with the closing time index entry."""
        fs.write_file_atomic(self._path(INDEX_SUFFIX), self._rows.offset_index(), durable=False)
        fs.write_file_atomic(self._path(TIME_INDEX_SUFFIX), self._rows.time_index(), durable=False)
        if self._aborted:
            fs.write_file_atomic(self._path(TXN_INDEX_SUFFIX), b"".join(self._aborted), durable=False)
        else:
            fs.unlink_if_there(self._path(TXN_INDEX_SUFFIX))

    def _add_aborted(self, transaction: CompletedTransaction, last_stable_offset: int) -> None:
        if transaction.is_aborted:
            entry = AbortedTxn(
                transaction.producer_id, transaction.first_offset, transaction.last_offset, last_stable_offset
            )
            self._aborted.append(entry.pack())

    def _path(self, suffix: str) -> Path:
        return segment_file(self._directory, self._base_offset, suffix)
