"""Re-reads a segment batch by batch, for recovery and for rebuilding indexes.

Every header and CRC is checked. The file is truncated at the first damaged or torn batch; offset, time and transaction
index are rebuilt from the batches before it. Whole messages of an older record format are not damage: a broker would
keep them. Source of the rules: LogSegment.recover in org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import zlib
from typing import Final

from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.record.header import LENGTH_AT, LOG_OVERHEAD_BYTES, MAGIC_AT
from pyspark_kafkalog.record.scan import first_bad_crc
from pyspark_kafkalog.storage.artefacts.leader_epochs import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn
from pyspark_kafkalog.storage.log.producer_append import CompletedTransaction, producer_batches
from pyspark_kafkalog.storage.log.producers import ProducerStateManager
from pyspark_kafkalog.storage.segment.append_plan import SegmentCounters
from pyspark_kafkalog.storage.segment.log_file import BatchChunk, read_range
from pyspark_kafkalog.storage.segment.reader import BATCH_BYTES_MAX
from pyspark_kafkalog.storage.segment.segment import LogSegment

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

    def completed(transaction: CompletedTransaction, last_stable_offset: int) -> None:
        add_aborted(segment, transaction, last_stable_offset)

    batches = producer_batches(chunk.data, chunk.batches, data_position=chunk.position, file=str(segment.log_path))
    producers.replay(batches, completed)
    if len(chunk.batches):
        producers.end_offset = int(chunk.batches["last_offset"][-1]) + 1


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
