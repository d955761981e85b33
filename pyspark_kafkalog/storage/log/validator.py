"""The processing of batches by a leader before it stores them: checks, offsets, timestamps, codec.

Offsets and leader epoch are assigned in the 16 header bytes that the CRC does not cover; with message.timestamp.type
LogAppendTime the type bit and maxTimestamp are set and the CRC is recomputed, while base timestamp and deltas stay.
Records are re-encoded only if compression.type requires another codec than theirs.

Source of the rules: org.apache.kafka.storage.internals.log.LogValidator and UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.config.log_config import LogConfig
from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.decode import decode_batches
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    LENGTH_AT,
    NO_TIMESTAMP,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    Buffer,
    TimestampType,
    crc32c,
    parse_header,
)
from pyspark_kafkalog.record.reference import check_crc, decode_batch, encode_batch
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches, verify_crcs
from pyspark_kafkalog.storage.log.producers import AppendOrigin

#: The name in errors for batches that are not in a file yet.
HANDED_IN: Final = "<batches handed in>"


@dataclass(frozen=True, slots=True)
class ValidatedBatches:
    """Batches ready for storing: their bytes, and their table with positions in `data` and final offsets."""

    data: NDArray[np.uint8]
    batches: NDArray[np.void]


def split_batches(data: Buffer, config: LogConfig) -> list[tuple[BatchHeader, NDArray[np.uint8]]]:
    """The whole batches in `data` with their headers, sizes and CRCs checked.

    Raises CorruptRecordError or UnsupportedFormatError for bad bytes, InvalidRecordError for a batch that is too large.
    """
    view = as_bytes_array(data)
    result = []
    at = 0
    while at < len(view):
        header = parse_header(view, at, file=HANDED_IN, file_position=at)
        if header.size_bytes > len(view) - at:
            raise CorruptRecordError(
                file=HANDED_IN,
                position=at + LENGTH_AT,
                expected=f"a batch of at most {len(view) - at} bytes",
                found=f"{header.size_bytes} bytes",
            )
        batch = view[at : at + header.size_bytes]
        check_crc(batch, header, file=HANDED_IN, file_position=at)
        check_batch_size(header.size_bytes, config)
        result.append((header, batch))
        at += header.size_bytes
    return result


def check_batch_size(size_bytes: int, config: LogConfig) -> None:
    """Raise InvalidRecordError for a batch over max.message.bytes or segment.bytes."""
    if size_bytes > config.max_message_bytes:
        raise InvalidRecordError(f"a batch of {size_bytes} bytes is over max.message.bytes={config.max_message_bytes}")
    if size_bytes > config.segment_bytes:
        raise InvalidRecordError(f"a batch of {size_bytes} bytes is over segment.bytes={config.segment_bytes}")


def validate_and_assign_offsets(
    data: Buffer, *, next_offset: int, leader_epoch: int, config: LogConfig, now_ms: int, origin: AppendOrigin
) -> ValidatedBatches:
    """Check each batch of `data` as a leader does, and assign offsets from `next_offset` on.

    Raises CorruptRecordError for damage, InvalidRecordError for batches that a leader rejects.
    """
    stored: list[NDArray[np.uint8]] = []
    for header, batch in split_batches(data, config):
        _check_batch(header, origin)
        max_timestamp_ms = _check_records(header, batch, config, now_ms)
        target = config.stored_compression(CompressionType(header.compression_bits))
        if header.compression_bits == target or header.is_control:
            final = batch.copy()
            final_header = header
        else:
            final = as_bytes_array(_recompress(header, batch, target, config)).copy()
            check_batch_size(len(final), config)
            final_header = parse_header(final, 0, file=HANDED_IN, file_position=0)
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            max_timestamp_ms = now_ms
        final_header = replace(final_header, base_offset=next_offset, leader_epoch=leader_epoch)
        stamp(final, final_header, config.message_timestamp_type, max_timestamp_ms)
        stored.append(final)
        next_offset = final_header.next_offset
    joined = np.concatenate(stored) if stored else np.empty(0, dtype=np.uint8)
    return ValidatedBatches(joined, scan_batches(joined, file=HANDED_IN).batches)


def stamp(
    batch: NDArray[np.uint8], header: BatchHeader, timestamp_type: TimestampType, max_timestamp_ms: int
) -> BatchHeader:
    """Overwrite the header of `batch` with `header`, a timestamp type and a largest timestamp.

    The CRC is recomputed only if these differ.
    """
    if header.timestamp_type != timestamp_type or header.max_timestamp_ms != max_timestamp_ms:
        attributes = header.attributes & ~TIMESTAMP_TYPE_MASK | int(timestamp_type) << 3
        header = replace(header, attributes=attributes, max_timestamp_ms=max_timestamp_ms)
        batch[:RECORD_BATCH_OVERHEAD_BYTES] = np.frombuffer(header.pack(), dtype=np.uint8)
        header = replace(header, crc=crc32c(batch[ATTRIBUTES_AT:]))
    batch[:RECORD_BATCH_OVERHEAD_BYTES] = np.frombuffer(header.pack(), dtype=np.uint8)
    return header


def follower_batches(data: Buffer, *, next_offset: int, config: LogConfig) -> NDArray[np.void]:
    """The table of batches that a leader has stored; positions in `data`.

    Raises CorruptRecordError for damage or offsets that do not increase, InvalidRecordError for an offset below
    `next_offset`, or for more data than fits in a segment.
    """
    scan = scan_batches(data, file=HANDED_IN)
    if scan.fault is not None:
        raise scan.fault
    size_bytes = len(as_bytes_array(data))
    if scan.consumed_bytes != size_bytes:
        raise CorruptRecordError(
            file=HANDED_IN,
            position=scan.consumed_bytes,
            expected="whole batches",
            found=f"{size_bytes - scan.consumed_bytes} bytes of one",
        )
    verify_crcs(data, scan.batches, data_position=0, file=HANDED_IN)
    if size_bytes > config.segment_bytes:
        raise InvalidRecordError(f"batches of {size_bytes} bytes are over segment.bytes={config.segment_bytes}")
    if len(scan.batches) and int(scan.batches["base_offset"][0]) < next_offset:
        raise InvalidRecordError(
            f"offset {int(scan.batches['base_offset'][0])} to append is below the log end {next_offset}"
        )
    return scan.batches


def _check_batch(header: BatchHeader, origin: AppendOrigin) -> None:
    if origin is not AppendOrigin.CLIENT:
        return
    if header.records_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"a batch of {header.records_count} records spans {header.last_offset_delta + 1} offsets"
        )
    if header.is_control:
        raise InvalidRecordError("clients may not write control records")
    if header.has_producer_id and header.base_sequence < 0:
        raise InvalidRecordError(f"a batch of producer {header.producer_id} has sequence {header.base_sequence}")


def _check_records(header: BatchHeader, batch: NDArray[np.uint8], config: LogConfig, now_ms: int) -> int:
    """Check every record of a data batch; returns their largest timestamp."""
    if header.is_control:
        return header.max_timestamp_ms
    table = scan_batches(batch, file=HANDED_IN).batches
    columns = decode_batches(
        batch,
        table,
        data_position=0,
        file=HANDED_IN,
        columns=frozenset({"offset", "timestamp"} | ({"key"} if config.compact else set())),
        start_offset=header.base_offset,
        end_offset=header.next_offset,
    )
    assert columns.timestamps_ms is not None
    if columns.count != header.records_count:
        raise InvalidRecordError(f"a batch says {header.records_count} records and holds {columns.count}")
    if config.compact and columns.keys is not None and columns.keys.validity is not None:
        present = np.unpackbits(columns.keys.validity, count=columns.count, bitorder="little")
        if not present.all():
            raise InvalidRecordError("a compacted topic takes no record without a key")
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
                f"timestamp {timestamp_ms} is out of [{earliest}, {latest}], which message.timestamp.before.max.ms "
                f"and message.timestamp.after.max.ms leave open"
            )


def _recompress(header: BatchHeader, batch: NDArray[np.uint8], codec: CompressionType, config: LogConfig) -> bytes:
    decoded = decode_batch(batch, 0, file=HANDED_IN, file_position=0)
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
