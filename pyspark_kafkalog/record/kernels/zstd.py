"""Compiled functions for zstd frames of many small batches at once: content bounds, decompression, compression.

Handles only the format that Kafka's clients write: one frame that fills the batch, without a dictionary. All other
frames, and bad ones, are left to zstd_frame.py, which reports errors. Layout of a frame: RFC 8878.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg, var-annotated"

from __future__ import annotations

import numpy as np
from numba import njit, types

from pyspark_kafkalog.record.codecs.zstd_blocks import (
    BLOCK_HEADER_BYTES,
    CHECKSUM_BYTES,
    COMPRESSED,
    MAGIC,
    MAX_BLOCK_BYTES,
    RUN,
)
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.call import call_crc32c, call_zstd
from pyspark_kafkalog.record.kernels.memory import load_byte

#: The bound that `bound_contents` sets for bytes that zstd_frame.py must handle.
UNKNOWN = -1

_HEADER_BYTES_MAX = 14  # without a dictionary
_BOUND_MAX = 32 << 20  # decompressed size that every batch may have
_WINDOW_LOG_MIN = 10
_WINDOW_BYTES_MAX = (1 << 27) + 1  # libzstd's own limit, which it enforces only for streams
#: Distance from the start of the bytes that a CRC covers to the records.
_COVERED_AT = RECORD_BATCH_OVERHEAD_BYTES - ATTRIBUTES_AT

_INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
_INT64 = types.Array(types.int64, 1, "C")
_UINT32_IN = types.Array(types.uint32, 1, "C", readonly=True)


@njit(nogil=True)
def _little_endian(at, size):
    """The unsigned number of `size` bytes at address `at`."""
    result = np.uint64(0)
    for i in range(size):
        result |= np.uint64(load_byte(at + i)) << np.uint64(8 * i)
    return result


@njit(nogil=True)
def _bound_content(at, end):
    """The maximum content size of the frame from `at` to `end`."""
    if end - at < _HEADER_BYTES_MAX or _little_endian(at, 4) != np.uint64(MAGIC):
        return np.int64(UNKNOWN)
    descriptor = np.int64(load_byte(at + 4))
    at += 5
    has_window = descriptor & 0x20 == 0
    if descriptor & 0x0B:  # a dictionary, or a reserved bit
        return np.int64(UNKNOWN)
    block_bytes_max = np.int64(MAX_BLOCK_BYTES)
    if has_window:
        exponent, mantissa = np.int64(load_byte(at)) >> 3, np.int64(load_byte(at)) & 7
        at += 1
        base = np.int64(1) << (exponent + _WINDOW_LOG_MIN)
        window_bytes = base + (base >> 3) * mantissa
        if window_bytes > _WINDOW_BYTES_MAX:
            return np.int64(UNKNOWN)
        block_bytes_max = min(window_bytes, block_bytes_max)
    size_flag = descriptor >> 6
    size_bytes = np.int64(1) << size_flag if size_flag or not has_window else np.int64(0)
    stated = _little_endian(at, size_bytes)
    at += size_bytes
    if size_bytes == 2:
        stated += np.uint64(256)
    if stated > np.uint64(_BOUND_MAX):
        return np.int64(UNKNOWN)
    if not has_window:
        block_bytes_max = min(np.int64(stated), block_bytes_max)
    bound = np.int64(0)
    is_last = False
    while not is_last:
        if end - at < BLOCK_HEADER_BYTES:
            return np.int64(UNKNOWN)
        word = np.int64(_little_endian(at, BLOCK_HEADER_BYTES))
        is_last, kind, size = word & 1 != 0, word >> 1 & 3, word >> 3
        at += BLOCK_HEADER_BYTES + (1 if kind == RUN else size)
        if kind > COMPRESSED or size > block_bytes_max or at > end:
            return np.int64(UNKNOWN)
        bound += block_bytes_max if kind == COMPRESSED else size
    if descriptor & 4:
        at += CHECKSUM_BYTES
    if at != end or bound > _BOUND_MAX or (size_bytes > 0 and stated > np.uint64(bound)):
        return np.int64(UNKNOWN)
    return bound


@kernel(types.void(_INT64_IN, _INT64_IN, _INT64))
def bound_contents(addresses, sizes, bounds):
    """Set bounds[i] to the maximum content size of the frame of sizes[i] bytes at addresses[i], or to UNKNOWN."""
    for i in range(len(addresses)):
        bounds[i] = _bound_content(addresses[i], addresses[i] + sizes[i])


@kernel(
    types.UniTuple(types.int64, 3)(
        types.int64, types.int64, types.int64, _INT64, _INT64, _INT64_IN, _UINT32_IN, _INT64_IN,
        types.int64, types.int64, types.int64, types.int64, types.int64, types.int64,
    )
)  # fmt: skip
def unfold_frames(
    decompress, context, crc32c, addresses, sizes, bounds, crcs, stored_to,
    row, to, room_end, grown_bytes, stop_bytes, bound_max,
):  # fmt: skip
    """Decompress the frames from row `row` on, one after the other, to address `to`, never past `room_end`.

    Sets addresses[i] and sizes[i] to those of the content. Ends before a row that must be handled otherwise: with a
    bound that is UNKNOWN or above `bound_max` or the room left, with a wrong CRC (of the batch whose header precedes
    the frame; not checked if `crc32c` is 0), or with a bad frame. Also ends after the row with which stored_to[i] plus
    the growth of all rows reaches `stop_bytes`. Returns (the row where it ended, address after the output,
    grown_bytes).
    """
    while row < len(addresses):
        bound, address, size = bounds[row], addresses[row], sizes[row]
        if bound < 0 or bound > bound_max or bound > room_end - to:
            break
        if crc32c != 0 and call_crc32c(crc32c, address - _COVERED_AT, size + _COVERED_AT) != crcs[row]:
            break
        length = call_zstd(decompress, context, to, bound, address, size)
        if length < 0 or length > bound:
            break
        addresses[row], sizes[row] = to, length
        to += length
        grown_bytes += length - size
        row += 1
        if stored_to[row - 1] + grown_bytes >= stop_bytes:
            break
    return row, to, grown_bytes


@kernel(types.int64(types.int64, types.int64, types.int64, _INT64_IN, types.int64, _INT64_IN, _INT64))
def compress_bodies(compress, context, source, sizes, to, bounds, compressed_sizes):
    """Compress the batches stored back to back at address `source`, each without its header, to address `to`.

    The output has room for a header and bounds[i] bytes for each. Sets compressed_sizes[i], including the header;
    returns the number of compressed batches, which is lower if compression of one fails.
    """
    for i in range(len(sizes)):
        body, room = source + RECORD_BATCH_OVERHEAD_BYTES, to + RECORD_BATCH_OVERHEAD_BYTES
        length = call_zstd(compress, context, room, bounds[i], body, sizes[i] - RECORD_BATCH_OVERHEAD_BYTES)
        if length < 0:
            return i
        compressed_sizes[i] = RECORD_BATCH_OVERHEAD_BYTES + length
        source += sizes[i]
        to += compressed_sizes[i]
    return len(sizes)
