"""Zstandard for many batches in one compiled call that lets other threads run (kernels_zstd.py).

If libzstd's functions are not available (c_functions.py), this module handles no batches, and zstd_frame.py handles
them one by one, with the same bytes as result.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.columns import address_of
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES
from pyspark_kafkalog.record.kernels.native import ZstdLibrary, crc32c_function, zstd_library
from pyspark_kafkalog.record.kernels.zstd import compress_bodies, unfold_frames


class _Decompressor:
    """A decompression context, freed with its thread."""

    def __init__(self, library: ZstdLibrary) -> None:
        self.context = library.new_decompressor()
        weakref.finalize(self, library.free_decompressor, self.context)


class _Compressor:
    """A compression context for one level, freed with its thread."""

    def __init__(self, library: ZstdLibrary, level: int) -> None:
        self.context = library.new_compressor(level)
        weakref.finalize(self, library.free_compressor, self.context)


class _Contexts(threading.local):
    """The contexts of a thread: they are expensive to create, and not thread-safe."""

    def __init__(self) -> None:
        self.decompressor: _Decompressor | None = None
        self.compressors: dict[int, _Compressor] = {}


_contexts = _Contexts()


def _decompress_context(library: ZstdLibrary) -> int:
    if _contexts.decompressor is None:
        _contexts.decompressor = _Decompressor(library)
    return _contexts.decompressor.context


def _compress_context(library: ZstdLibrary, level: int) -> int:
    found = _contexts.compressors.get(level)
    if found is None:
        found = _contexts.compressors[level] = _Compressor(library, level)
    return found.context


@dataclass(slots=True)
class Unfolding:
    """Compressed batches, one per row; those before `row` have been decompressed.

    `addresses`, `sizes`: of the compressed records, then of the decompressed ones. `bounds` as returned by
    `zstd_frame.bounds_of`. `stored_to`: stored bytes of a batch and all before it; decompression stops once they and
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

    def take(self, scratch: NDArray[np.uint8]) -> int:
        """Decompress rows into `scratch` in one call, up to a row that this class does not handle.

        Returns how many rows, from `row` on, must be decompressed by other means before the next call.
        """
        library = zstd_library()
        crc32c = crc32c_function() if self.check_crcs else 0
        if library is None or (self.check_crcs and not crc32c):
            return len(self.addresses) - self.row
        if self.bounds[self.row] >= 0:
            first, begin = self.row, address_of(scratch)
            self.row, to, self.grown_bytes = unfold_frames(
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


def compress_batches(
    plain: NDArray[np.uint8], sizes: NDArray[np.int64], level: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
    """The back-to-back batches in `plain` with their records compressed, and their sizes; None if not supported.

    Frames equal those of `zstd_frame.compress`. The caller writes the headers.
    """
    library = zstd_library()
    if library is None:
        return None
    bodies = sizes - RECORD_BATCH_OVERHEAD_BYTES
    bounds = bodies + (bodies >> 8) + 64  # ZSTD_COMPRESSBOUND, a little rounded up
    out = np.empty(int(bounds.sum()) + RECORD_BATCH_OVERHEAD_BYTES * len(sizes), np.uint8)
    compressed_sizes = np.empty(len(sizes), np.int64)
    done = compress_bodies(
        library.compress,
        _compress_context(library, level),
        address_of(plain),
        sizes,
        address_of(out),
        bounds,
        compressed_sizes,
    )
    return (out[: int(compressed_sizes.sum())], compressed_sizes) if done == len(sizes) else None
