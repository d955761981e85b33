"""Re-reads a segment batch by batch, for recovery and for rebuilding indexes.

Every header and CRC is checked, and offset, time and transaction index are derived from the batches before the first
damaged or torn one.

`recover_segment`, which a writer calls, truncates the `.log` at that batch. Whole messages of an older record format
are not damage: a broker would keep them. Source of the rules: LogSegment.recover in
org.apache.kafka.storage.internals.log.

`read_indexes` and `RebuiltIndexes`, for repairs, do not change the `.log`: a torn or damaged tail stays, and the
indexes end before it. Each new file, equal to the one that Kafka writes, replaces the old one as a whole, so readers
can continue with either.

`scan_closed_segment` reads a closed segment for jobs that copy it (merge, tiering) and must not copy damage: whole
batches of the segment's own offsets, in order, up to its end.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.record.header import LENGTH_AT, LOG_OVERHEAD_BYTES, MAGIC_AT
from pyspark_kafkalog.record.scan import first_bad_crc, scan_batches, verify_crcs
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.below_root import open_file
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.producers import (
    CompletedTransaction,
    ProducerBatch,
    ProducerStateManager,
    producer_batches,
)
from pyspark_kafkalog.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, segment_file
from pyspark_kafkalog.storage.segment.index_entries import IndexRows, SegmentCounters
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX
from pyspark_kafkalog.storage.segment.segment import BatchChunk, LogSegment, read_chunks, read_range
from pyspark_kafkalog.storage.segment.stored import StoredSegment

_LEGACY_CRC_BYTES: Final = 4  # the first field of a message of format v0 or v1, after offset and length


def recover_segment(
    segment: LogSegment,
    producers: ProducerStateManager,
    epochs: LeaderEpochCheckpoint | None,
    *,
    keep_counter: bool = False,
) -> int:
    """Re-read `segment`, truncate it at the first bad batch, rebuild its indexes; returns the number of bytes cut off.

    `producers` is at the segment's base offset and is advanced to its end; the epochs of the batches are added to
    `epochs`. Unless `keep_counter`, the counter of bytes since the last index entry is then 0, as in a broker that has
    just started. Raises UnsupportedFormatError for a whole message of format v0 or v1, which is left unchanged.
    """
    segment.clear_indexes()
    counters = SegmentCounters(max_timestamp_offset=segment.base_offset)
    try:
        for chunk in segment.chunks():
            valid = _valid_part(chunk)
            counters = segment.index_batches(valid.batches, counters)
            _assign_epochs(epochs, valid)
            replay_batches(segment, producers, valid)
            if len(valid.batches) < len(chunk.batches):
                break
    except UnsupportedFormatError as error:
        if _is_whole_legacy_message(segment, max(error.position - MAGIC_AT, 0)):
            raise
    except CorruptRecordError:
        pass  # unreadable data ends the segment; the batches before it have been counted
    cut_bytes = segment.size_bytes - counters.size_bytes
    if cut_bytes:
        segment.cut(counters.size_bytes)
    segment.set_counters(counters)
    segment.become_inactive()
    if not keep_counter:
        segment.bytes_since_last_index_entry = 0
    return cut_bytes


def replay_batches(segment: LogSegment, producers: ProducerStateManager, chunk: BatchChunk) -> None:
    """Apply a chunk's batches, and add the aborted transactions that end in it to the segment's index."""
    if len(chunk.batches):
        batches = producer_batches(chunk.data, chunk.batches, data_position=chunk.position, file=str(segment.log_path))
        replay_producers(segment, producers, batches, end_offset=int(chunk.batches["last_offset"][-1]) + 1)


def replay_producers(
    segment: LogSegment, producers: ProducerStateManager, batches: Iterable[ProducerBatch], *, end_offset: int
) -> None:
    """As `replay_batches`, of the batches with a producer id among those before `end_offset`."""

    def completed(transaction: CompletedTransaction, last_stable_offset: int) -> None:
        add_aborted(segment, transaction, last_stable_offset)

    producers.replay(batches, completed)
    producers.end_offset = end_offset


def add_aborted(segment: LogSegment, transaction: CompletedTransaction, last_stable_offset: int) -> None:
    """Add `transaction` to the segment's transaction index if it was aborted."""
    if transaction.is_aborted:
        segment.txn_index.append(
            AbortedTxn(transaction.producer_id, transaction.first_offset, transaction.last_offset, last_stable_offset)
        )


def _valid_part(chunk: BatchChunk) -> BatchChunk:
    bad = first_bad_crc(chunk.data, chunk.batches, chunk.position)
    return chunk if bad < 0 else BatchChunk(chunk.data, chunk.position, chunk.batches[:bad])


def _is_whole_legacy_message(segment: LogSegment, position: int) -> bool:
    """Whether bytes with the magic of an older format also have its CRC, which covers all bytes after it."""
    head = read_range(segment.fd, position, LOG_OVERHEAD_BYTES).tobytes()
    size_bytes = int.from_bytes(head[LENGTH_AT:], "big", signed=True)
    if size_bytes > min(BATCH_BYTES_MAX, segment.size_bytes - position - LOG_OVERHEAD_BYTES):
        return False
    message = read_range(segment.fd, position + LOG_OVERHEAD_BYTES, size_bytes).tobytes()
    return zlib.crc32(message[_LEGACY_CRC_BYTES:]) == int.from_bytes(message[:_LEGACY_CRC_BYTES], "big")


def _assign_epochs(epochs: LeaderEpochCheckpoint | None, chunk: BatchChunk) -> None:
    """Add the epochs above the latest known one, each at the first batch that has it."""
    if epochs is None or not len(chunk.batches):
        return
    latest = epochs.latest
    known = -1 if latest is None else latest.epoch
    if int(chunk.batches["leader_epoch"].max()) <= known:
        return
    for epoch, base_offset in zip(
        chunk.batches["leader_epoch"].tolist(), chunk.batches["base_offset"].tolist(), strict=True
    ):
        if epoch > known:
            epochs.assign(epoch, base_offset)
            known = epoch


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
    fd = open_file(path)
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
                file=file, position=at, expected=f"batches up to byte {len(data)}", found="a torn batch", advice=advice
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
