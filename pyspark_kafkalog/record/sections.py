"""Selects, checks and decompresses batches, to provide the bytes of their records.

Batches that cannot hold a requested record are left out as early as possible: by header; for a time range also by a
scan of the timestamps, before anything is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import UnsupportedFormatError
from pyspark_kafkalog.record.codecs import zstd_frame
from pyspark_kafkalog.record.codecs.codec import decompress
from pyspark_kafkalog.record.codecs.zstd_batches import Unfolding
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.crc32c import crc32c
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    COMPRESSION_MASK,
    CONTROL_MASK,
    RECORD_BATCH_OVERHEAD_BYTES,
    RECORDS_AT,
    TIMESTAMP_TYPE_MASK,
    CompressionType,
)
from pyspark_kafkalog.record.kernels.decode import sections_in_time
from pyspark_kafkalog.record.scan import as_bytes_array, verify_crcs

_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1
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
        first_ms = _MIN_INT64 if min_ms is None else max(min_ms, _MIN_INT64)
        last_ms = _MAX_INT64 if until_ms is None else min(until_ms - 1, _MAX_INT64)
        if last_ms < _MIN_INT64 or first_ms > _MAX_INT64:
            first_ms, last_ms = 0, -1
        return cls(max(start_offset, 0), min(end_offset, _MAX_INT64), first_ms, last_ms)

    @property
    def has_times(self) -> bool:
        return self.first_ms > _MIN_INT64 or self.last_ms < _MAX_INT64


@dataclass(frozen=True, slots=True)
class LogBytes:
    """Part of a log file: `data` (uint8) starts at byte `position` of `file`. `check_crcs`: CRCs are yet unchecked."""

    data: NDArray[np.uint8]
    position: int
    file: str
    check_crcs: bool

    @classmethod
    def of(
        cls, data: NDArray[np.uint8], batches: NDArray[np.void], position: int, file: str, check_crcs: bool
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
        return cls(view, position, file, check_crcs)

    def verify(self, batches: NDArray[np.void]) -> None:
        verify_crcs(self.data, batches, data_position=self.position, file=self.file)


@dataclass(frozen=True, slots=True)
class Sections:
    """The bytes of each batch's records, by address and length; `owners` keeps the memory alive."""

    batches: NDArray[np.void]
    addresses: NDArray[np.int64]
    sizes: NDArray[np.int64]
    owners: list[NDArray[np.uint8]]


def choose_by_header(batches: NDArray[np.void], wanted: Range) -> NDArray[np.void]:
    """`batches` without control batches, and without those whose header rules out requested records."""
    attributes = batches["attributes"]
    chosen = (attributes & CONTROL_MASK) == 0
    chosen &= (batches["records_count"] > 0) | (batches["size_bytes"] > RECORD_BATCH_OVERHEAD_BYTES)
    chosen &= batches["last_offset"] >= wanted.start_offset
    chosen &= batches["base_offset"] < wanted.end_offset
    if wanted.has_times:
        max_timestamps = batches["max_timestamp_ms"]
        chosen &= max_timestamps >= wanted.first_ms
        chosen &= ((attributes & TIMESTAMP_TYPE_MASK) == 0) | (max_timestamps <= wanted.last_ms)
    return np.ascontiguousarray(batches) if chosen.all() else batches[chosen]


def cut_sections(
    log: LogBytes, batches: NDArray[np.void], wanted: Range, *, max_rows: int, max_bytes: int
) -> Iterator[Sections]:
    """Runs of batches of about `max_rows` records or `max_bytes` after decompression, opened one run at a time."""
    rows_to = np.cumsum(batches["records_count"], dtype=np.int64)
    bytes_to = np.cumsum(batches["size_bytes"])
    scratch = None
    if (batches["attributes"] & COMPRESSION_MASK).any():
        scratch = np.empty(max_bytes + _SCRATCH_BATCH_BYTES, np.uint8)
    first = rows = size = 0
    while first < len(batches):
        end = min(
            int(np.searchsorted(rows_to, rows + max_rows, side="right")),
            int(np.searchsorted(bytes_to, size + max_bytes, side="right")),
        )
        sections = open_sections(log, batches[first : max(end, first + 1)], max_bytes=max_bytes, scratch=scratch)
        first += len(sections.batches)
        rows, size = int(rows_to[first - 1]), int(bytes_to[first - 1])
        yield choose_by_time(log, sections, wanted)


def open_sections(
    log: LogBytes, batches: NDArray[np.void], *, max_bytes: int, scratch: NDArray[np.uint8] | None = None
) -> Sections:
    """Locate the records of each batch in memory, after decompressing compressed batches.

    Ends early, after at least one batch, once batches have grown to `max_bytes` in total. The content of small
    compressed batches is collected in `scratch` (max_bytes + _SCRATCH_BATCH_BYTES, reused by the next run), which
    avoids the page faults of thousands of small arrays.
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
    bounds = np.full(len(compressed), -1)
    is_zstd = compressed_codecs == CompressionType.ZSTD
    bounds[is_zstd] = zstd_frame.bounds_of(addresses[compressed[is_zstd]], sizes[compressed[is_zstd]])
    frames = Unfolding(
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
        rows_count = len(compressed) if scratch is None else frames.take(scratch)
        if rows_count:
            rows = slice(frames.row, frames.row + rows_count)
            _unfold_one_by_one(log, batches[compressed[rows]], compressed_codecs[rows], frames, scratch, owners)
    done = compressed[: frames.row]
    addresses[done], sizes[done] = frames.addresses[: frames.row], frames.sizes[: frames.row]
    taken = int(done[-1]) + 1 if frames.is_full else len(batches)
    return Sections(batches[:taken], addresses[:taken], sizes[:taken], owners)


def _unfold_one_by_one(
    log: LogBytes,
    batches: NDArray[np.void],
    codecs: NDArray[np.int16],
    frames: Unfolding,
    scratch: NDArray[np.uint8] | None,
    owners: list[NDArray[np.uint8]],
) -> None:
    """Decompress the rows of `frames` from its `row` on, which are `batches`, until it is full."""
    data = log.data.data
    first, row, filled, grown_bytes = frames.row, frames.row, frames.filled, frames.grown_bytes
    rows = slice(first, first + len(batches))
    if scratch is not None:
        scratch_at, room = address_of(scratch), scratch.data
    for codec, start, size, crc, total, bound in zip(
        codecs.tolist(),
        (batches["position"] - (log.position - RECORD_BATCH_OVERHEAD_BYTES)).tolist(),
        frames.sizes[rows].tolist(),
        frames.crcs[rows].tolist(),
        frames.stored_to[rows].tolist(),
        frames.bounds[rows].tolist(),
        strict=True,
    ):
        if log.check_crcs and crc32c(log.data[start - RECORDS_AT + ATTRIBUTES_AT : start + size]) != crc:
            log.verify(batches[row - first : row - first + 1])
        records: bytes | memoryview | None = None
        if bound >= 0:
            records = zstd_frame.decompress_bounded(data[start : start + size], bound)
        if records is None:
            records = _decompress(codec, log.data[start : start + size], log.file, log.position + start).data
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


def _decompress(codec: int, compressed: NDArray[np.uint8], file: str, position: int) -> NDArray[np.uint8]:
    if codec > CompressionType.ZSTD:
        raise UnsupportedFormatError(
            file=file,
            position=position - RECORDS_AT + ATTRIBUTES_AT,
            expected="codec bits 0 to 4 (none, gzip, snappy, lz4, zstd)",
            found=str(codec),
            advice="check that the file was written by Kafka; no codec of Kafka 4.1 has this number",
        )
    return decompress(CompressionType(codec), compressed, file=file, file_position=position)


def choose_by_time(log: LogBytes, sections: Sections, wanted: Range) -> Sections:
    """Leave out the sections without records in the time range, then check the CRCs of the remaining uncompressed
    ones."""
    if wanted.has_times:
        selected = np.ones(len(sections.batches), dtype=np.uint8)
        sections_in_time(
            sections.addresses, sections.sizes, sections.batches, wanted.first_ms, wanted.last_ms, selected
        )
        chosen = selected.view(np.bool_)
        sections = Sections(
            sections.batches[chosen], sections.addresses[chosen], sections.sizes[chosen], sections.owners
        )
    if log.check_crcs:
        log.verify(sections.batches[(sections.batches["attributes"] & COMPRESSION_MASK) == 0])
    return sections
