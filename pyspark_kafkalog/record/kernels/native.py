"""Addresses of C functions of the dependencies' libraries, so that compiled loops can call them.

One call for a thousand batches lets other threads run meanwhile, and avoids the cost of a thousand calls from Python.
Wheels of zstandard contain libzstd with exported functions, in the extension for cffi; google-crc32c's extension is
linked with libcrc32c. If a wheel is built differently there are no addresses, and callers call Python functions.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from dataclasses import dataclass

import google_crc32c
import zstandard

#: Numbers of libzstd's parameters in its stable interface.
_COMPRESSION_LEVEL = 100

_IS_64_BIT = sys.maxsize > 1 << 32


@dataclass(frozen=True, slots=True)
class ZstdLibrary:
    """libzstd, in the version that zstandard uses, and the addresses of the functions that kernels call."""

    library: ctypes.CDLL
    decompress: int
    compress: int

    def new_decompressor(self) -> int:
        """A ZSTD_DCtx for `decompress`, for use by one thread; `free_decompressor` frees it."""
        return _not_null(self.library.ZSTD_createDCtx())

    def free_decompressor(self, context: int) -> None:
        self.library.ZSTD_freeDCtx(context)

    def new_compressor(self, level: int) -> int:
        """A ZSTD_CCtx for `compress`, for use by one thread; `free_compressor` frees it."""
        context = _not_null(self.library.ZSTD_createCCtx())
        self.library.ZSTD_CCtx_setParameter(context, _COMPRESSION_LEVEL, level)
        return context

    def free_compressor(self, context: int) -> None:
        self.library.ZSTD_freeCCtx(context)


def _not_null(context: int | None) -> int:
    if not context:
        raise MemoryError("no memory for a zstd context")
    return context


@functools.cache
def zstd_library() -> ZstdLibrary | None:
    """zstandard's libzstd; None if the wheel does not export its functions, or another libzstd was loaded."""
    spec = importlib.util.find_spec("zstandard._cffi") if _IS_64_BIT else None
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        major, minor, patch = zstandard.ZSTD_VERSION
        if library.ZSTD_versionNumber() != major * 10000 + minor * 100 + patch:
            return None
        for name in ("ZSTD_createDCtx", "ZSTD_createCCtx"):
            getattr(library, name).restype = ctypes.c_void_p
        for name in ("ZSTD_freeDCtx", "ZSTD_freeCCtx"):
            getattr(library, name).argtypes = (ctypes.c_void_p,)
        library.ZSTD_CCtx_setParameter.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        return ZstdLibrary(library, _address(library, "ZSTD_decompressDCtx"), _address(library, "ZSTD_compress2"))
    except (OSError, AttributeError):
        return None


@functools.cache
def crc32c_function() -> int:
    """Address of libcrc32c's crc32c_extend, 0 if it is not available."""
    if google_crc32c.implementation != "c" or not _IS_64_BIT:
        return 0
    try:
        spec = importlib.util.find_spec("google_crc32c._crc32c")
        assert spec is not None
        return _address(ctypes.CDLL(spec.origin), "crc32c_extend")
    except (OSError, AttributeError):
        return 0


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
