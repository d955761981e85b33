"""Decompression of the zstd frames of many batches in one compiled call, which lets other threads run meanwhile.

Handles only the format that Kafka's clients write: one frame that fills the batch, without a dictionary. Other frames,
bad ones, and all frames if libzstd's functions are not available (kernels/native.py), are left to codecs/zstd.py, which
reports errors and has the same bytes as result. Layout of a frame: RFC 8878.

Worth its code for small batches: reading batches of 16 KiB takes 30% more CPU time without it, batches of 256 KiB up to
7% more (with the data of benchmarks/record_codec.py).
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg, var-annotated"

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from pyspark_kafkalog.record.codecs.zstd import (
    BLOCK_HEADER_BYTES,
    CHECKSUM_BYTES,
    COMPRESSED,
    MAGIC,
    MAX_BLOCK_BYTES,
    RUN,
)
from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.native import (
    INT64,
    INT64_IN,
    UINT32_IN,
    ZstdLibrary,
    call_crc32c,
    call_zstd,
    crc32c_function,
    load_byte,
    zstd_library,
)

#: The bound that `bound_contents` sets for a frame that codecs/zstd.py must handle.
UNKNOWN = -1

_HEADER_BYTES_MAX = 14  # without a dictionary
_BOUND_MAX = 32 << 20  # decompressed size that every batch may have
_WINDOW_LOG_MIN = 10
_WINDOW_BYTES_MAX = (1 << 27) + 1  # libzstd's own limit, which it enforces only for streams
#: Distance from the start of the bytes that a CRC covers to the records.
_COVERED_AT = RECORD_BATCH_OVERHEAD_BYTES - ATTRIBUTES_AT


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


@kernel(types.void(INT64_IN, INT64_IN, INT64))
def bound_contents(addresses, sizes, bounds):
    """Set bounds[i] to the maximum content size of the frame of sizes[i] bytes at addresses[i], or to UNKNOWN."""
    for i in range(len(addresses)):
        bounds[i] = _bound_content(addresses[i], addresses[i] + sizes[i])


@kernel(
    types.UniTuple(types.int64, 3)(
        types.int64, types.int64, types.int64, INT64, INT64, INT64_IN, UINT32_IN, INT64_IN,
        types.int64, types.int64, types.int64, types.int64, types.int64, types.int64,
    )
)  # fmt: skip
def decompress_frames(
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


def bounds_of(addresses: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bound in bytes of the content of each piece of memory; UNKNOWN unless it is one simple frame."""
    bounds = np.empty(len(addresses), np.int64)
    bound_contents(addresses, sizes, bounds)
    return bounds


class _Decompressor:
    """A decompression context, freed with its thread."""

    def __init__(self, library: ZstdLibrary) -> None:
        self.context = library.new_decompressor()
        weakref.finalize(self, library.free_decompressor, self.context)


class _Contexts(threading.local):
    """The decompression context of a thread: it is expensive to create, and not thread-safe."""

    def __init__(self) -> None:
        self.decompressor: _Decompressor | None = None


_contexts = _Contexts()


def _decompress_context(library: ZstdLibrary) -> int:
    if _contexts.decompressor is None:
        _contexts.decompressor = _Decompressor(library)
    return _contexts.decompressor.context


@dataclass(slots=True)
class ZstdBatchDecoder:
    """Compressed batches, one per row; those before `row` have been decompressed.

    `addresses`, `sizes`: of the compressed records, then of the decompressed ones. `bounds` as returned by
    `bounds_of`. `stored_to`: stored bytes of a batch and all before it; decompression stops once they and
    the growth by decompression reach `stop_bytes`. `bound_max`: batches that may be larger are not decompressed to the
    scratch memory, of which `filled` bytes are in use.
    """

    addresses: NDArray[np.int64]
    sizes: NDArray[np.int64]
    bounds: NDArray[np.int64]
    crcs: NDArray[np.uint32]
    stored_to: NDArray[np.int64]
    stop_bytes: int
    bound_max: int
    check_crcs: bool
    row: int = 0
    filled: int = 0
    grown_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.row > 0 and int(self.stored_to[self.row - 1]) + self.grown_bytes >= self.stop_bytes

    @property
    def is_done(self) -> bool:
        return self.row == len(self.addresses) or self.is_full

    def decompress(self, scratch: NDArray[np.uint8]) -> int:
        """Decompress rows into `scratch` in one call, up to a row that this class does not handle.

        Returns how many rows, from `row` on, must be decompressed by other means before the next call.
        """
        library = zstd_library()
        crc32c = crc32c_function() if self.check_crcs else 0
        if library is None or (self.check_crcs and not crc32c):
            return len(self.addresses) - self.row
        if self.bounds[self.row] >= 0:
            first, begin = self.row, address_of(scratch)
            self.row, to, self.grown_bytes = decompress_frames(
                library.decompress,
                _decompress_context(library),
                crc32c,
                self.addresses,
                self.sizes,
                self.bounds,
                self.crcs,
                self.stored_to,
                first,
                begin + self.filled,
                begin + len(scratch),
                self.grown_bytes,
                self.stop_bytes,
                self.bound_max,
            )
            self.filled = to - begin
            if self.row > first:
                return 0
        others = self.bounds[self.row + 1 :] < 0
        return 1 + (len(others) if others.all() else int(others.argmin()))
