"""Decodes record batches in a file buffer into columns of records.

    choose_by_header     leaves out batches whose header rules out requested records
    open_sections        locates the records of the others in memory, after decompressing compressed batches
    choose_by_time       leaves out batches without a timestamp in the range, before anything is copied
    a kernel             decodes all batches of one result in one call

Uncompressed batches are decoded directly from the buffer, compressed ones from their decompressed bytes. CRCs are
checked here or by the caller (`scan.verify_crcs`); memory safety does not depend on them. Readers may decompress
records of any size; for the work of a broker, `LogBytes.record_max_bytes` limits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, LogDirError
from pyspark_kafkalog.record.codecs.codec import (
    CompressionType,
    check_record_size,
    decompressed_limit_bytes,
    stored_codec,
)
from pyspark_kafkalog.record.columns import BinaryColumn, HeaderColumn, RecordColumns, address_of
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    COMPRESSION_MASK,
    CONTROL_MASK,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_AT,
    RECORDS_COUNT_AT,
    TIMESTAMP_TYPE_MASK,
    crc32c,
)
from pyspark_kafkalog.record.kernels import decode as kernels
from pyspark_kafkalog.record.kernels.decode import largest_record, sections_in_time
from pyspark_kafkalog.record.kernels.native import COPY_SLACK_BYTES
from pyspark_kafkalog.record.kernels.zstd import UNKNOWN, ZstdBatchDecoder, bounds_of
from pyspark_kafkalog.record.scan import as_bytes_array, verify_crcs
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX, INT64_MIN

#: Default bounds of one result of `decode_slices`.
DEFAULT_MAX_ROWS: Final = 64 * 1024
DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024

_SMALLEST_RECORD_BYTES: Final = 7  # length, attributes, two deltas, null key, null value, no headers: one byte each
_MAX_COLUMN_BYTES: Final = INT32_MAX  # Arrow's offsets are int32

_COLUMN_BITS: Final = {
    "key": kernels.COLUMN_KEY,
    "value": kernels.COLUMN_VALUE,
    "headers": kernels.COLUMN_HEADERS,
    "offset": kernels.COLUMN_OFFSET,
    "timestamp": kernels.COLUMN_TIMESTAMP,
    "timestampType": kernels.COLUMN_TIMESTAMP_TYPE,
}

_EXPECTED: Final = {
    kernels.BAD_LENGTH: "a record length that fits the batch",
    kernels.NO_ATTRIBUTES: "a record of at least 1 byte",
    kernels.BAD_TIMESTAMP_DELTA: "a timestamp delta of at most 10 bytes in the record",
    kernels.BAD_OFFSET_DELTA: "an offset delta of at most 5 bytes in the record",
    kernels.BAD_KEY_LENGTH: "a key length from -1 to the rest of the record",
    kernels.BAD_VALUE_LENGTH: "a value length from -1 to the rest of the record",
    kernels.BAD_HEADERS_COUNT: "a count of headers from 0 to the rest of the record",
    kernels.BAD_HEADER_KEY_LENGTH: "a header key length from 0 to the rest of the record",
    kernels.BAD_HEADER_VALUE_LENGTH: "a header value length from -1 to the rest of the record",
    kernels.BYTES_LEFT_IN_RECORD: "a record to end with its last header",
    kernels.BYTES_LEFT_IN_BATCH: "a batch to end with its last record",
    kernels.OFFSET_NOT_RISING: "an offset delta above that of the record before",
    kernels.OFFSET_PAST_LAST: "an offset delta of at most lastOffsetDelta",
}
_FOUND: Final = {
    kernels.BYTES_LEFT_IN_RECORD: "{} bytes more",
    kernels.BYTES_LEFT_IN_BATCH: "{} bytes more",
    kernels.BAD_TIMESTAMP_DELTA: "no such number",
    kernels.BAD_OFFSET_DELTA: "no such number",
}

_SCRATCH_BATCH_BYTES: Final = 1 << 20  # larger batches are not worth the copy


@dataclass(frozen=True, slots=True)
class Range:
    """The requested records: start_offset <= offset < end_offset, first_ms <= timestamp <= last_ms."""

    start_offset: int
    end_offset: int
    first_ms: int
    last_ms: int

    @classmethod
    def of(cls, start_offset: int, end_offset: int, min_ms: int | None, until_ms: int | None) -> Range:
        """The range with timestamps in [min_ms, until_ms); None means without that bound."""
        first_ms = INT64_MIN if min_ms is None else max(min_ms, INT64_MIN)
        last_ms = INT64_MAX if until_ms is None else min(until_ms - 1, INT64_MAX)
        if last_ms < INT64_MIN or first_ms > INT64_MAX:
            first_ms, last_ms = 0, -1
        return cls(max(start_offset, 0), min(end_offset, INT64_MAX), first_ms, last_ms)

    @property
    def has_times(self) -> bool:
        return self.first_ms > INT64_MIN or self.last_ms < INT64_MAX


@dataclass(frozen=True, slots=True)
class LogBytes:
    """Part of a log file: `data` (uint8) starts at byte `position` of `file`. `check_crcs`: CRCs are yet unchecked.

    `record_max_bytes`: the largest record of a compressed batch, max.decompressed.message.bytes.
    """

    data: NDArray[np.uint8]
    position: int
    file: str
    check_crcs: bool
    record_max_bytes: int

    @classmethod
    def of(
        cls,
        data: NDArray[np.uint8],
        batches: NDArray[np.void],
        position: int,
        file: str,
        check_crcs: bool,
        record_max_bytes: int = INT32_MAX,
    ) -> LogBytes:
        """Build LogBytes. Raises ValueError unless `data` holds all of `batches`, which kernels rely on."""
        view = as_bytes_array(data)
        if len(batches):
            first = int(batches["position"].min())
            end = int((batches["position"] + batches["size_bytes"]).max())
            if (
                first < position
                or end > position + len(view)
                or int(batches["size_bytes"].min()) < RECORD_BATCH_OVERHEAD_BYTES
            ):
                raise ValueError(f"batches at {first} to {end} are not in bytes {position} to {position + len(view)}")
        return cls(view, position, file, check_crcs, record_max_bytes)

    def verify(self, batches: NDArray[np.void]) -> None:
        verify_crcs(self.data, batches, data_position=self.position, file=self.file)


@dataclass(frozen=True, slots=True)
class Sections:
    """The bytes of each batch's records, by address and length; `owners` keeps the memory alive."""

    batches: NDArray[np.void]
    addresses: NDArray[np.int64]
    sizes: NDArray[np.int64]
    owners: list[NDArray[np.uint8]]


def choose_by_header(batches: NDArray[np.void], requested: Range) -> NDArray[np.void]:
    """`batches` without control batches, and without those whose header rules out requested records."""
    attributes = batches["attributes"]
    chosen = (attributes & CONTROL_MASK) == 0
    chosen &= (batches["records_count"] > 0) | (batches["size_bytes"] > RECORD_BATCH_OVERHEAD_BYTES)
    chosen &= batches["last_offset"] >= requested.start_offset
    chosen &= batches["base_offset"] < requested.end_offset
    if requested.has_times:
        max_timestamps = batches["max_timestamp_ms"]
        chosen &= max_timestamps >= requested.first_ms
        chosen &= ((attributes & TIMESTAMP_TYPE_MASK) == 0) | (max_timestamps <= requested.last_ms)
    return np.ascontiguousarray(batches) if chosen.all() else batches[chosen]


def cut_sections(
    log: LogBytes, batches: NDArray[np.void], requested: Range, *, max_rows: int, max_bytes: int
) -> Iterator[Sections]:
    """Runs of batches of about `max_rows` records or `max_bytes` after decompression, opened one run at a time."""
    rows_to = np.cumsum(batches["records_count"], dtype=np.int64)
    bytes_to = np.cumsum(batches["size_bytes"])
    scratch = None
    if (batches["attributes"] & COMPRESSION_MASK).any():
        scratch = np.empty(max_bytes + _SCRATCH_BATCH_BYTES, np.uint8)  # bounded: a setting
    first = rows = size = 0
    while first < len(batches):
        end = min(
            int(np.searchsorted(rows_to, rows + max_rows, side="right")),
            int(np.searchsorted(bytes_to, size + max_bytes, side="right")),
        )
        sections = open_sections(log, batches[first : max(end, first + 1)], max_bytes=max_bytes, scratch=scratch)
        first += len(sections.batches)
        rows, size = int(rows_to[first - 1]), int(bytes_to[first - 1])
        yield choose_by_time(log, sections, requested)


def open_sections(
    log: LogBytes, batches: NDArray[np.void], *, max_bytes: int, scratch: NDArray[np.uint8] | None = None
) -> Sections:
    """Locate the records of each batch in memory, after decompressing compressed batches.

    Ends early, after at least one batch, once batches have grown to `max_bytes` in total. The content of small
    compressed batches is collected in `scratch` (max_bytes + _SCRATCH_BATCH_BYTES, reused by the next run), which
    avoids the page faults of thousands of small arrays. Raises InvalidRecordError for a compressed batch with a record
    of more than `log.record_max_bytes`.
    """
    starts = batches["position"] - (log.position - RECORD_BATCH_OVERHEAD_BYTES)
    addresses = address_of(log.data) + starts
    sizes = batches["size_bytes"] - RECORD_BATCH_OVERHEAD_BYTES
    codecs = batches["attributes"] & COMPRESSION_MASK
    compressed = np.flatnonzero(codecs)
    owners = [log.data]
    if not len(compressed):
        return Sections(batches, addresses, sizes, owners)
    compressed_codecs = codecs[compressed]
    bounds = np.full(len(compressed), UNKNOWN)
    is_zstd = compressed_codecs == CompressionType.ZSTD
    bounds[is_zstd] = bounds_of(addresses[compressed[is_zstd]], sizes[compressed[is_zstd]])
    frames = ZstdBatchDecoder(
        addresses[compressed],
        sizes[compressed],
        bounds,
        batches["crc"][compressed],
        np.cumsum(sizes)[compressed],
        stop_bytes=max_bytes,
        bound_max=_SCRATCH_BATCH_BYTES,
        check_crcs=log.check_crcs,
    )
    if scratch is not None:
        owners.append(scratch)
    while not frames.is_done:
        rows_count = len(compressed) if scratch is None else frames.decompress(scratch)
        if rows_count:
            rows = slice(frames.row, frames.row + rows_count)
            _decompress_each(log, batches[compressed[rows]], compressed_codecs[rows], frames, scratch, owners)
    done = compressed[: frames.row]
    addresses[done], sizes[done] = frames.addresses[: frames.row], frames.sizes[: frames.row]
    for row in done[sizes[done] > log.record_max_bytes].tolist():
        largest = largest_record(addresses[row], sizes[row], batches["records_count"][row])
        check_record_size(largest, log.record_max_bytes)
    taken = int(done[-1]) + 1 if frames.is_full else len(batches)
    return Sections(batches[:taken], addresses[:taken], sizes[:taken], owners)


def _decompress_each(
    log: LogBytes,
    batches: NDArray[np.void],
    codecs: NDArray[np.int16],
    frames: ZstdBatchDecoder,
    scratch: NDArray[np.uint8] | None,
    owners: list[NDArray[np.uint8]],
) -> None:
    """Decompress the rows of `frames` from its `row` on, which are `batches`, until it is full."""
    first, row, filled, grown_bytes = frames.row, frames.row, frames.filled, frames.grown_bytes
    rows = slice(first, first + len(batches))
    if scratch is not None:
        scratch_at, room = address_of(scratch), scratch.data
    for bits, count, start, size, crc, total in zip(
        codecs.tolist(),
        batches["records_count"].tolist(),
        (batches["position"] - (log.position - RECORD_BATCH_OVERHEAD_BYTES)).tolist(),
        frames.sizes[rows].tolist(),
        frames.crcs[rows].tolist(),
        frames.stored_to[rows].tolist(),
        strict=True,
    ):
        if log.check_crcs and crc32c(log.data[start - RECORDS_AT + ATTRIBUTES_AT : start + size]) != crc:
            log.verify(batches[row - first : row - first + 1])
        position = log.position + start
        codec = stored_codec(bits, file=log.file, position=position - RECORDS_AT + ATTRIBUTES_AT)
        records = codec.decompress_records(
            log.data[start : start + size],
            count,
            record_max_bytes=log.record_max_bytes,
            file=log.file,
            file_position=position,
        ).data
        length = len(records)
        if scratch is None or length > _SCRATCH_BATCH_BYTES:
            array = as_bytes_array(records)
            frames.addresses[row] = address_of(array)
            owners.append(array)
        else:
            room[filled : filled + length] = records
            frames.addresses[row] = scratch_at + filled
            filled += length
        frames.sizes[row] = length
        grown_bytes += length - size
        row += 1
        if total + grown_bytes >= frames.stop_bytes:
            break
    frames.row, frames.filled, frames.grown_bytes = row, filled, grown_bytes


def choose_by_time(log: LogBytes, sections: Sections, requested: Range) -> Sections:
    """Leave out the sections without records in the time range, then check the CRCs of the remaining uncompressed
    ones."""
    if requested.has_times:
        selected = np.ones(len(sections.batches), dtype=np.uint8)
        sections_in_time(
            sections.addresses, sections.sizes, sections.batches, requested.first_ms, requested.last_ms, selected
        )
        chosen = selected.view(np.bool_)
        sections = Sections(
            sections.batches[chosen], sections.addresses[chosen], sections.sizes[chosen], sections.owners
        )
    if log.check_crcs:
        log.verify(sections.batches[(sections.batches["attributes"] & COMPRESSION_MASK) == 0])
    return sections


def decode_slices(
    data: NDArray[np.uint8],
    batches: NDArray[np.void],
    *,
    data_position: int,
    file: str,
    columns: frozenset[str],
    start_offset: int,
    end_offset: int,
    min_timestamp_ms: int | None = None,
    until_timestamp_ms: int | None = None,
    check_crcs: bool = False,
    has_timestamps: bool = True,
    max_rows: int = DEFAULT_MAX_ROWS,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Iterator[RecordColumns]:
    """The requested records of `batches`, in results of at most `max_rows` records (a multiple of 8), none empty.

    `data` starts at byte `data_position` of `file` and holds all of `batches` (BATCH_DTYPE, positions in the file).
    Returns records with start_offset <= offset < end_offset and, if given, min <= timestamp < until, never those of
    control batches. `columns`: any of key, value, headers, offset, timestamp, timestampType; others cost nothing.
    Without `has_timestamps` the timestampType of all is NO_TIMESTAMP_TYPE.
    `check_crcs` checks the CRC of each batch that is decoded, but not of batches that are left out because of their
    header or their records' timestamps.

    Decompresses and decodes incrementally, about `max_bytes` of records at a time, but at least one batch. A batch with
    more records than `max_rows` is decoded as a whole and returned in slices that share its memory.

    Raises CorruptRecordError with the file and the position of the record or batch, UnsupportedFormatError for an
    unknown codec, ValueError if one batch does not fit a result of 2 GiB.
    """
    assert max_rows % 8 == 0, "slices of validity bitmaps start at whole bytes"
    requested = Range.of(start_offset, end_offset, min_timestamp_ms, until_timestamp_ms)
    log = LogBytes.of(data, batches, data_position, file, check_crcs)
    bits = _column_bits(columns)
    chosen = choose_by_header(batches, requested)
    try:
        for sections in cut_sections(log, chosen, requested, max_rows=max_rows, max_bytes=max_bytes):
            result = _decode(sections, requested, bits, file)
            result = result if has_timestamps else result.without_timestamp_types()
            for first in range(0, result.count, max_rows):
                yield result.slice(first, min(first + max_rows, result.count))
    except MemoryError:
        raise LogDirError(
            f"{file}: this process has too little memory for the records of a batch, which take up to "
            f"{decompressed_limit_bytes(INT32_MAX)} bytes after decompression, and their columns: give it more, or "
            "read fewer columns"
        ) from None


def _column_bits(columns: frozenset[str]) -> int:
    bits = 0
    for name in columns:
        bits |= _COLUMN_BITS[name]
    return bits


class _Output:
    """Arrays for the requested columns, with room for all records of some sections; empty arrays for the others."""

    def __init__(self, bits: int, rows: int, size_bytes: int) -> None:
        def fixed(flag: int, dtype: Any) -> NDArray[Any]:
            return np.empty(rows if bits & flag else 0, dtype)  # bounded: by check_counts

        def binary(flag: int) -> BinaryColumn:
            return _new_binary(rows, size_bytes) if bits & flag else _new_binary(0, 0)

        self.offsets = fixed(kernels.COLUMN_OFFSET, np.int64)
        self.timestamps_ms = fixed(kernels.COLUMN_TIMESTAMP, np.int64)
        self.timestamp_types = fixed(kernels.COLUMN_TIMESTAMP_TYPE, np.int32)
        self.keys = binary(kernels.COLUMN_KEY)
        self.values = binary(kernels.COLUMN_VALUE)
        self.header_addresses = fixed(kernels.COLUMN_HEADERS, np.int64)
        self.header_ends = fixed(kernels.COLUMN_HEADERS, np.int64)
        # bounded: by check_counts
        self.header_counts = np.zeros(rows + 1 if bits & kernels.COLUMN_HEADERS else 1, np.int32)


def _new_binary(rows: int, size_bytes: int) -> BinaryColumn:
    """Room for `rows` elements of `size_bytes` in total, initially not null."""
    offsets = np.empty(rows + 1, np.int32)  # bounded: by check_counts
    offsets[0] = 0
    data = np.empty(size_bytes + COPY_SLACK_BYTES, np.uint8)  # bounded: the bytes of the sections
    return BinaryColumn(offsets, data, np.full((rows + 7) // 8, 0xFF, np.uint8))  # bounded: by check_counts


def _addresses(column: BinaryColumn) -> tuple[int, int, int]:
    assert column.validity is not None
    return address_of(column.offsets), address_of(column.data), address_of(column.validity)


def _trim(column: BinaryColumn, rows: int, size_bytes: int, nulls: int) -> BinaryColumn:
    return BinaryColumn(column.offsets[: rows + 1], column.data[:size_bytes], column.validity if nulls else None)


def _decode(sections: Sections, requested: Range, bits: int, file: str) -> RecordColumns:
    check_counts(sections, file)
    size_bytes = int(sections.sizes.sum())
    if size_bytes > _MAX_COLUMN_BYTES:
        raise ValueError(f"{size_bytes} bytes of records do not fit one result of {_MAX_COLUMN_BYTES} bytes")
    out = _Output(bits, int(sections.batches["records_count"].sum(dtype=np.int64)), size_bytes)
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    bounds = np.array(
        [requested.start_offset, requested.end_offset, requested.first_ms, requested.last_ms], dtype=np.int64
    )
    fault = kernels.decode_sections(
        sections.addresses,
        sections.sizes,
        sections.batches,
        bounds,
        bits,
        out.offsets,
        out.timestamps_ms,
        out.timestamp_types,
        _addresses(out.keys),
        _addresses(out.values),
        out.header_addresses,
        out.header_ends,
        out.header_counts,
        state,
    )
    if fault != kernels.NO_FAULT:
        raise record_fault(fault, state, sections.batches, file)
    return _collect(out, state, bits)


def _collect(out: _Output, state: NDArray[np.int64], bits: int) -> RecordColumns:
    """The filled part of the output."""
    rows = int(state[kernels.ROWS])
    keys = _trim(out.keys, rows, int(state[kernels.KEY_BYTES]), int(state[kernels.NULL_KEYS]))
    values = _trim(out.values, rows, int(state[kernels.VALUE_BYTES]), int(state[kernels.NULL_VALUES]))
    return RecordColumns(
        count=rows,
        offsets=out.offsets[:rows] if bits & kernels.COLUMN_OFFSET else None,
        timestamps_ms=out.timestamps_ms[:rows] if bits & kernels.COLUMN_TIMESTAMP else None,
        timestamp_types=out.timestamp_types[:rows] if bits & kernels.COLUMN_TIMESTAMP_TYPE else None,
        keys=keys if bits & kernels.COLUMN_KEY else None,
        values=values if bits & kernels.COLUMN_VALUE else None,
        headers=_collect_headers(out, state, rows) if bits & kernels.COLUMN_HEADERS else None,
    )


def _collect_headers(out: _Output, state: NDArray[np.int64], rows: int) -> HeaderColumn:
    count = int(state[kernels.HEADERS])
    keys = _new_binary(count, int(state[kernels.HEADER_BYTES]))
    values = _new_binary(count, int(state[kernels.HEADER_BYTES]))
    nulls = kernels.decode_headers(out.header_addresses, out.header_ends, rows, _addresses(keys), _addresses(values))
    return HeaderColumn(
        out.header_counts[: rows + 1],
        _trim(keys, count, int(keys.offsets[count]), 0),
        _trim(values, count, int(values.offsets[count]), nulls),
    )


def check_counts(sections: Sections, file: str) -> None:
    """Raise CorruptRecordError for a record count that the bytes cannot hold, before memory is allocated for it."""
    are_too_many = sections.batches["records_count"] > sections.sizes // _SMALLEST_RECORD_BYTES
    if are_too_many.any():
        index = int(np.argmax(are_too_many))
        batch, size = sections.batches[index], int(sections.sizes[index])
        raise CorruptRecordError(
            file=file,
            position=int(batch["position"]) + RECORDS_COUNT_AT,
            expected=f"at most {size // _SMALLEST_RECORD_BYTES} records in the {size} bytes of {_name(batch)}",
            found=str(int(batch["records_count"])),
        )


def record_fault(fault: int, state: NDArray[np.int64], batches: NDArray[np.void], file: str) -> CorruptRecordError:
    """The error for a fault that a kernel left in `state`, at the record, or at the start of compressed records."""
    batch = batches[int(state[kernels.FAULT_BATCH])]
    at = int(state[kernels.FAULT_POSITION])
    position = int(batch["position"]) + RECORDS_AT
    found = _FOUND.get(fault, "{}").format(int(state[kernels.FAULT_FOUND]))
    if batch["attributes"] & COMPRESSION_MASK:
        found += f" at byte {at} after decompression"
    else:
        position += at
    record = f"record {int(state[kernels.FAULT_RECORD])} of {_name(batch)}"
    return CorruptRecordError(file=file, position=position, expected=f"{_EXPECTED[fault]}, in {record}", found=found)


def _name(batch: np.void) -> str:
    return f"the batch at offset {int(batch['base_offset'])}"
