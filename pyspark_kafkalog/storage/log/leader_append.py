"""For the Kafka protocol server's Produce: appends the batches of clients as a leader does.

    split         whole batches, their sizes and CRCs checked
    validate      record counts, keys in compacted topics, timestamps; no control batches
    assign        offsets and leader epoch, in the 16 header bytes that the CRC does not cover
    stamp         with LogAppendTime, the type bit and maxTimestamp are set and the CRC is recomputed, while base
                  timestamp and deltas stay
    recompress    records are re-encoded only if compression.type requires another codec than theirs
    sequences     a producer's batch that the log already holds is a duplicate, a gap is an error, an older epoch fenced

All batches of an append are checked before the first is stored (`UnifiedLog.append`); a crash leaves at worst a torn
batch at the end.

Source of the rules: UnifiedLog.appendAsLeader, LogValidator and ProducerAppendInfo of
org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError, OutOfOrderSequenceError
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.decode import decode_batches
from pyspark_kafkalog.record.header import (
    LENGTH_AT,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    TimestampType,
    next_sequence,
    parse_header,
)
from pyspark_kafkalog.record.reference import check_crc, decode_batch, encode_batch
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.storage.log.producers import BatchMetadata, ProducerBatch, ProducerState, producer_batches
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog, check_batch_size, stamp

#: The name in errors for batches that are not in a file yet.
REQUEST: Final = "<produce request>"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendInfo:
    """The result of an append. `last_offset` is below `first_offset` when there was nothing to append.

    `log_append_time_ms` is the timestamp given to the records, None when they keep their own. If `is_duplicate`,
    nothing was stored, and the offsets are those of the batch that the log already holds.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int | None = None
    is_duplicate: bool = False


def append_as_leader(log: UnifiedLog, data: Buffer, *, leader_epoch: int) -> AppendInfo:
    """Check the batches in `data` as a leader does, assign offsets and store them; all of them or none.

    Raises InvalidRecordError, ProducerFencedError, OutOfOrderSequenceError, CorruptRecordError.
    """
    now_ms = log.clock()
    first_offset = log.log_end_offset
    stored = _validated(data, next_offset=first_offset, leader_epoch=leader_epoch, config=log.config, now_ms=now_ms)
    batches = scan_batches(stored, file=REQUEST).batches
    if not len(batches):
        return AppendInfo(first_offset=first_offset, last_offset=first_offset - 1)
    found = list(producer_batches(stored, batches, data_position=0, file=str(log.directory)))
    duplicate = _check_sequences(log.producers.producers, found)
    if duplicate is not None:
        return AppendInfo(first_offset=duplicate.first_offset, last_offset=duplicate.last_offset, is_duplicate=True)
    log.producers.check(found)
    log.assign_epoch(leader_epoch, first_offset)
    log.append(stored, batches)
    uses_append_time = log.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    return AppendInfo(
        first_offset=first_offset,
        last_offset=log.log_end_offset - 1,
        log_append_time_ms=now_ms if uses_append_time else None,
    )


def _validated(
    data: Buffer, *, next_offset: int, leader_epoch: int, config: LogConfig, now_ms: int
) -> NDArray[np.uint8]:
    """The batches of `data` as they will be stored, with offsets from `next_offset` on.

    Raises CorruptRecordError for damage, InvalidRecordError for batches that a leader rejects.
    """
    stored: list[NDArray[np.uint8]] = []
    for header, batch in _split_batches(data, config):
        _check_header(header)
        max_timestamp_ms = _check_records(header, batch, config, now_ms)
        target = config.stored_compression(CompressionType(header.compression_bits))
        if header.compression_bits == target:
            final = batch.copy()
            final_header = header
        else:
            final = as_bytes_array(_recompress(header, batch, target, config)).copy()
            check_batch_size(len(final), config)
            final_header = parse_header(final, 0, file=REQUEST, file_position=0)
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            max_timestamp_ms = now_ms
        final_header = replace(final_header, base_offset=next_offset, leader_epoch=leader_epoch)
        stamp(final, final_header, config.message_timestamp_type, max_timestamp_ms)
        stored.append(final)
        next_offset = final_header.next_offset
    return np.concatenate(stored) if stored else np.empty(0, dtype=np.uint8)


def _split_batches(data: Buffer, config: LogConfig) -> list[tuple[BatchHeader, NDArray[np.uint8]]]:
    """The whole batches in `data` with their headers, sizes and CRCs checked.

    Raises CorruptRecordError or UnsupportedFormatError for bad bytes, InvalidRecordError for a batch that is too large.
    """
    view = as_bytes_array(data)
    result = []
    at = 0
    while at < len(view):
        header = parse_header(view, at, file=REQUEST, file_position=at)
        if header.size_bytes > len(view) - at:
            raise CorruptRecordError(
                file=REQUEST,
                position=at + LENGTH_AT,
                expected=f"a batch of at most {len(view) - at} bytes",
                found=f"{header.size_bytes} bytes",
            )
        batch = view[at : at + header.size_bytes]
        check_crc(batch, header, file=REQUEST, file_position=at)
        check_batch_size(header.size_bytes, config)
        result.append((header, batch))
        at += header.size_bytes
    return result


# Validation


def _check_header(header: BatchHeader) -> None:
    if header.records_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"a batch of {header.records_count} records spans {header.last_offset_delta + 1} offsets"
        )
    if header.is_control:
        raise InvalidRecordError("clients may not write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise InvalidRecordError(f"a batch of producer {header.producer_id} has sequence {header.base_sequence}")


def _check_records(header: BatchHeader, batch: NDArray[np.uint8], config: LogConfig, now_ms: int) -> int:
    """Check every record of a batch; returns their largest timestamp."""
    table = scan_batches(batch, file=REQUEST).batches
    columns = decode_batches(
        batch,
        table,
        data_position=0,
        file=REQUEST,
        columns=frozenset({"offset", "timestamp"} | ({"key"} if config.compact else set())),
        start_offset=header.base_offset,
        end_offset=header.next_offset,
    )
    assert columns.timestamps_ms is not None
    if columns.count != header.records_count:
        raise InvalidRecordError(
            f"the header of a batch says {header.records_count} records, but the batch contains {columns.count}"
        )
    if config.compact and columns.keys is not None and columns.keys.validity is not None:
        present = np.unpackbits(columns.keys.validity, count=columns.count, bitorder="little")
        if not present.all():
            raise InvalidRecordError("a compacted topic accepts no record without a key")
    _check_timestamps(header, columns.timestamps_ms, config, now_ms)
    return int(columns.timestamps_ms.max()) if columns.count else NO_TIMESTAMP


def _check_timestamps(header: BatchHeader, timestamps_ms: NDArray[np.int64], config: LogConfig, now_ms: int) -> None:
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            raise InvalidRecordError("a producer may not set the timestamp type LogAppendTime itself")
        return
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    for timestamp_ms in (int(timestamps_ms.min()), int(timestamps_ms.max())) if len(timestamps_ms) else ():
        if timestamp_ms != NO_TIMESTAMP and not earliest <= timestamp_ms <= latest:
            raise InvalidRecordError(
                f"timestamp {timestamp_ms} is out of [{earliest}, {latest}], the range that "
                "message.timestamp.before.max.ms and message.timestamp.after.max.ms allow"
            )


# Compression


def _recompress(header: BatchHeader, batch: NDArray[np.uint8], codec: CompressionType, config: LogConfig) -> bytes:
    decoded = decode_batch(batch, 0, file=REQUEST, file_position=0)
    return encode_batch(
        decoded.records,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        compression=codec,
        level=config.compression_level(codec),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )


# Sequences


def _check_sequences(producers: Mapping[int, ProducerState], batches: Iterable[ProducerBatch]) -> BatchMetadata | None:
    """The stored batch that one of `batches` repeats, or None. Raises OutOfOrderSequenceError for a gap.

    Stops at a batch with an older epoch, which `ProducerStateManager.check` then rejects.
    """
    latest: dict[int, tuple[int, int]] = {}  # producer id -> epoch and last sequence
    for batch in batches:
        producer = producers.get(batch.producer_id)
        if producer is not None:
            duplicate = _find_duplicate(producer, batch)
            if duplicate is not None:
                return duplicate
            latest.setdefault(batch.producer_id, (producer.producer_epoch, producer.last_sequence))
        epoch, last_sequence = latest.get(batch.producer_id, (NO_PRODUCER_EPOCH, NO_SEQUENCE))
        if batch.producer_epoch < epoch:
            return None
        # A producer that the log does not know, or has forgotten, may start with any sequence.
        if batch.producer_id in latest:
            _check_sequence(batch, epoch, last_sequence)
        latest[batch.producer_id] = batch.producer_epoch, batch.last_sequence
    return None


def _find_duplicate(producer: ProducerState, batch: ProducerBatch) -> BatchMetadata | None:
    """The remembered batch with the same epoch and sequence range; None if no batch has it."""
    if batch.producer_epoch != producer.producer_epoch:
        return None
    for known in producer.batches:
        if known.first_sequence == batch.base_sequence and known.last_sequence == batch.last_sequence:
            return known
    return None


def _check_sequence(batch: ProducerBatch, epoch: int, last_sequence: int) -> None:
    first = batch.base_sequence
    if batch.producer_epoch != epoch:
        if first != 0 and epoch != NO_PRODUCER_EPOCH:
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} begins its epoch {batch.producer_epoch} "
                f"with sequence {first}, expected 0"
            )
        return
    expected = 0 if last_sequence == NO_SEQUENCE else next_sequence(last_sequence, 1)
    if epoch != NO_PRODUCER_EPOCH and first != expected:
        raise OutOfOrderSequenceError(f"producer {batch.producer_id} sent sequence {first}, expected {expected}")
