"""Encodes columns of records into record batches with the layout of Kafka's producer and MemoryRecordsBuilder.

Sizes, deltas and header fields are those of org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType, decompressed_limit_bytes
from pyspark_kafkalog.record.columns import BATCH_DTYPE, BinaryColumn, RecordColumns, address_of
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    TimestampType,
    crc32c,
)
from pyspark_kafkalog.record.kernels import encode as kernels
from pyspark_kafkalog.record.kernels.native import COPY_SLACK_BYTES, crc32c_function
from pyspark_kafkalog.record.kernels.scan import compute_crcs
from pyspark_kafkalog.units import INT32_MAX

_MAX_BATCH_BYTES: Final = INT32_MAX  # batchLength is an int32

_ALL_NULL: Final = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class EncodedBatches:
    """Record batches back to back in `data`; `batches` has BATCH_DTYPE with positions in `data`."""

    data: NDArray[np.uint8]
    batches: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Records to encode, which lie in one or several pieces and are numbered through: `count` in all.

    `pieces` has their addresses, as the kernels take them. `owners` keep the memory alive.
    """

    owners: Sequence[RecordColumns]
    count: int
    pieces: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Sequence[RecordColumns]) -> RecordSource:
        """`columns` need timestamps_ms (-1: no timestamp); offsets and timestamp types are not used."""
        ends = np.cumsum([0, *(each.count for each in columns)], dtype=np.int64)
        pieces = [(*bounds, *_addresses(each)) for bounds, each in zip(pairwise(ends.tolist()), columns, strict=True)]
        return cls(columns, int(ends[-1]), np.array(pieces, np.int64).reshape(-1, kernels.PIECE_WORDS))

    def timestamp_ms(self, row: int) -> int:
        """The timestamp of the record with this number."""
        piece = int(np.searchsorted(self.pieces[:, kernels.END_AT], row, side="right"))
        timestamps_ms = self.owners[piece].timestamps_ms
        assert timestamps_ms is not None
        return int(timestamps_ms[row - int(self.pieces[piece, kernels.FIRST_AT])])

    def write(
        self,
        rows: NDArray[np.int64],
        *,
        batch_limit_bytes: int,
        record_limit_bytes: int,
        record_max_bytes: int = INT32_MAX,
    ) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
        """Uncompressed batches without headers, and a table with their positions, counts and timestamps.

        `record_limit_bytes`: of a batch of one record; `record_max_bytes`: of a record without its length.
        """
        body_sizes = np.empty(len(rows), np.int64)
        firsts = np.empty(len(rows) + 1, np.int64)
        batches, fault, at = kernels.plan_batches(
            rows, self.pieces, batch_limit_bytes, record_limit_bytes, body_sizes, firsts
        )
        if fault == kernels.BAD_TIMESTAMP:
            raise InvalidRecordError(
                f"row {rows[at]} has timestamp {self.timestamp_ms(rows[at])} ms; it must be 0 or later, or -1 for none"
            )
        if fault == kernels.RECORD_TOO_LARGE:
            raise _too_large(int(rows[at]), int(body_sizes[at]), record_limit_bytes)
        if len(rows) and body_sizes.max() > record_max_bytes:
            at = int(body_sizes.argmax())
            raise InvalidRecordError(
                f"row {rows[at]} is a record of {body_sizes[at]} bytes before compression, larger than "
                f"max.decompressed.message.bytes = {record_max_bytes}; raise that, or write it without compression"
            )
        table = np.empty(batches, BATCH_DTYPE)
        # The length of a record's body is a varint of 32 bits, which takes at most 5 bytes.
        room = int(body_sizes.sum()) + 5 * len(rows) + RECORD_BATCH_OVERHEAD_BYTES * batches + COPY_SLACK_BYTES
        out = np.empty(room, np.uint8)
        size = kernels.write_records(rows, self.pieces, body_sizes, firsts, out, table)
        return out[:size], table


def encode_batches(
    records: RecordColumns | RecordSource,
    *,
    rows: NDArray[np.int64] | None = None,
    compression: CompressionType,
    level: int | None = None,
    batch_size_bytes: int,
    max_batch_bytes: int,
    record_max_bytes: int = INT32_MAX,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time_ms: int | None = None,
    is_transactional: bool = False,
) -> EncodedBatches:
    """The records as batches with offsets from `base_offset` on.

    `rows` selects and orders the records (None: all, in their order). A batch is closed when the next record would make
    it larger than `batch_size_bytes` before compression. No batch is longer than `max_batch_bytes` after compression; a
    longer one is split. With LOG_APPEND_TIME the time of all records is `log_append_time_ms`. Sequence numbers start at
    `base_sequence` unless it is -1. `record_max_bytes` is the topic's max.decompressed.message.bytes, the limit of
    records in compressed batches: a broker that compacts the log would stop at a larger one.

    Raises InvalidRecordError for a record that alone is too large, or that compresses so well that decompression would
    take it for a bomb, and for a timestamp below -1.
    """
    source = records if isinstance(records, RecordSource) else RecordSource.of([records])
    if rows is None:
        rows = np.arange(source.count, dtype=np.int64)
    elif len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < source.count:
        raise IndexError(f"rows {rows.min()} to {rows.max()} are not all within 0 to {source.count - 1}")
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if compression is CompressionType.NONE:
        limit = min(max_batch_bytes, _MAX_BATCH_BYTES)
        data, table = source.write(rows, batch_limit_bytes=min(batch_size_bytes, limit), record_limit_bytes=limit)
    else:
        limits = _Limits(batch_size_bytes, max_batch_bytes, record_max_bytes)
        data, table = _write_compressed(source, rows, compression, level, limits)
    _fill_offsets(table, base_offset, base_sequence)
    table["leader_epoch"] = leader_epoch
    table["producer_id"] = producer_id
    table["producer_epoch"] = producer_epoch
    attributes = int(compression)
    if is_transactional:
        attributes |= TRANSACTIONAL_MASK
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        if log_append_time_ms is None:
            raise InvalidRecordError("LogAppendTime needs the time of the append")
        attributes |= TIMESTAMP_TYPE_MASK
        table["max_timestamp_ms"] = log_append_time_ms
    table["attributes"] = attributes
    seal_headers(data, table)
    return EncodedBatches(data, table)


def _addresses(columns: RecordColumns) -> tuple[int, ...]:
    """The columns of one piece, as `kernels` describes them."""
    timestamps_ms = columns.timestamps_ms
    assert timestamps_ms is not None
    if timestamps_ms.dtype != np.int64 or not timestamps_ms.flags.c_contiguous:
        raise ValueError(f"timestamps must be contiguous int64, not {timestamps_ms.dtype}")
    if len(timestamps_ms) != columns.count:
        raise ValueError(f"{len(timestamps_ms)} timestamps for {columns.count} records")
    for column in (columns.keys, columns.values, columns.headers):
        if column is not None and len(column) != columns.count:
            raise ValueError(f"a column of {len(column)} for {columns.count} records")
    headers = (0, *_ALL_NULL, *_ALL_NULL)
    if columns.headers is not None:
        lists = address_of(columns.headers.offsets)
        headers = (lists, *_column_addresses(columns.headers.keys), *_column_addresses(columns.headers.values))
    return address_of(timestamps_ms), *_column_addresses(columns.keys), *_column_addresses(columns.values), *headers


def _column_addresses(column: BinaryColumn | None) -> tuple[int, int, int, int]:
    if column is None:
        return _ALL_NULL
    offsets = column.offsets
    if offsets.dtype != np.int32 or not offsets.flags.c_contiguous:
        raise ValueError(f"offsets of a column must be contiguous int32, not {offsets.dtype}")
    if not 0 <= int(offsets[0]) <= int(offsets[-1]) <= len(column.data):
        raise ValueError(f"offsets {offsets[0]} to {offsets[-1]} of a column with {len(column.data)} bytes")
    data = address_of(column.data)
    validity = 0 if column.validity is None else address_of(column.validity)
    return address_of(offsets), data, data + len(column.data), validity


@dataclass(frozen=True, slots=True)
class _Limits:
    """Bytes of a batch before and after compression, and of a record."""

    batch_size_bytes: int
    max_batch_bytes: int
    record_max_bytes: int


def _write_compressed(
    source: RecordSource, rows: NDArray[np.int64], compression: CompressionType, level: int | None, limits: _Limits
) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    """As `RecordSource.write`, with each batch compressed."""
    data, entries = bytearray(), []
    for entry, payload in _compressed_parts(source, rows, compression, level, limits):
        entry["position"] = len(data)
        entries.append(entry)
        data += bytes(RECORD_BATCH_OVERHEAD_BYTES)
        data += payload
    return np.frombuffer(data, np.uint8), np.array(entries, dtype=BATCH_DTYPE)


def _compressed_parts(
    source: RecordSource, rows: NDArray[np.int64], compression: CompressionType, level: int | None, limits: _Limits
) -> Iterator[tuple[np.void, bytes]]:
    """Each batch's row of the table, with the size of the compressed batch, and its compressed records."""
    data, table = source.write(
        rows,
        batch_limit_bytes=min(limits.batch_size_bytes, _MAX_BATCH_BYTES),
        record_limit_bytes=_MAX_BATCH_BYTES,
        record_max_bytes=limits.record_max_bytes,
    )
    codec = CODECS[compression]
    first = 0
    for entry in table:
        count, position = int(entry["records_count"]), int(entry["position"])
        records = data[position + RECORD_BATCH_OVERHEAD_BYTES : position + int(entry["size_bytes"])]
        payload = codec.compress(records, level)
        size_bytes = RECORD_BATCH_OVERHEAD_BYTES + len(payload)
        is_too_large = size_bytes > limits.max_batch_bytes
        if not is_too_large and len(records) <= decompressed_limit_bytes(len(payload)):
            entry["size_bytes"] = size_bytes
            yield entry, payload
        elif count == 1 and is_too_large:
            raise _too_large(int(rows[first]), size_bytes, limits.max_batch_bytes, compression)
        elif count == 1:
            raise InvalidRecordError(
                f"row {rows[first]} of {len(records)} bytes compresses to {len(payload)} bytes; readers accept at most "
                f"{decompressed_limit_bytes(len(payload))} bytes from so few; write it without compression"
            )
        else:
            middle = first + count // 2
            for half in (rows[first:middle], rows[middle : first + count]):
                yield from _compressed_parts(
                    source, half, compression, level, replace(limits, batch_size_bytes=_MAX_BATCH_BYTES)
                )
        first += count


def _too_large(row: int, size_bytes: int, limit_bytes: int, compression: CompressionType | None = None) -> Exception:
    packed = f" with {CODECS[compression].name}" if compression else ""
    return InvalidRecordError(
        f"row {row} makes a batch of {size_bytes} bytes{packed}, larger than max.message.bytes = {limit_bytes}"
    )


def _fill_offsets(table: NDArray[np.void], base_offset: int, base_sequence: int) -> None:
    ends = np.cumsum(table["records_count"], dtype=np.int64)
    relative = ends - table["records_count"]
    table["base_offset"] = base_offset + relative
    table["last_offset"] = base_offset + ends - 1
    table["base_sequence"] = NO_SEQUENCE if base_sequence == NO_SEQUENCE else (base_sequence + relative) & INT32_MAX


def seal_headers(data: NDArray[np.uint8], table: NDArray[np.void]) -> None:
    """Write the headers, then again with the CRCs, which cover most of the header."""
    table["crc"] = 0
    kernels.write_headers(data, table)
    table["crc"] = _crcs(data, table)
    kernels.write_headers(data, table)


def _crcs(data: NDArray[np.uint8], table: NDArray[np.void]) -> NDArray[np.uint32]:
    """The CRC of each batch in `data`, whose headers are complete except for the CRC."""
    starts, sizes = np.ascontiguousarray(table["position"]), np.ascontiguousarray(table["size_bytes"])
    crcs = np.empty(len(table), np.uint32)
    function = crc32c_function()
    if function:
        compute_crcs(function, data, starts, sizes, crcs)
    else:
        ends = (starts + sizes).tolist()
        crcs[:] = [crc32c(data[start:end]) for start, end in zip((starts + ATTRIBUTES_AT).tolist(), ends, strict=True)]
    return crcs
