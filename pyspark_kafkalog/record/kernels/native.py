"""C functions of the dependencies' libraries: their addresses, and intrinsics by which compiled loops call them.

One call for a thousand batches lets other threads run meanwhile, and saves the cost of a thousand calls from Python.
Wheels of zstandard contain libzstd with exported functions, in the extension for cffi; google-crc32c's extension is
linked with libcrc32c. If a wheel is built differently there are no addresses, and callers call Python functions.

A wrong address crashes the process, so addresses come only from this module and are not kept beyond one call.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

import google_crc32c
import zstandard
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_IS_64_BIT = sys.maxsize > 1 << 32
_WORD = ir.IntType(64)  # pointers and size_t are passed the same way on 64 bits


@dataclass(frozen=True, slots=True)
class ZstdLibrary:
    """libzstd, in the version that zstandard uses, and the address of ZSTD_decompressDCtx."""

    library: ctypes.CDLL
    decompress: int

    def new_decompressor(self) -> int:
        """A ZSTD_DCtx for `decompress`, for use by one thread; `free_decompressor` frees it."""
        context: int | None = self.library.ZSTD_createDCtx()
        if not context:
            raise MemoryError("no memory for a zstd context")
        return context

    def free_decompressor(self, context: int) -> None:
        self.library.ZSTD_freeDCtx(context)


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
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        library.ZSTD_freeDCtx.argtypes = (ctypes.c_void_p,)
        return ZstdLibrary(library, _address(library, "ZSTD_decompressDCtx"))
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


@intrinsic
def call_zstd(
    typing_context: Any, function: Any, context: Any, to: Any, room_bytes: Any, source: Any, size_bytes: Any
) -> Any:
    """Call ZSTD_decompressDCtx; returns the bytes written to address `to`, below 0 for an error."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(_WORD, [_WORD] * 5)
        return builder.call(builder.inttoptr(arguments[0], function_type.as_pointer()), arguments[1:])

    return types.int64(*[types.int64] * 6), generate


@intrinsic
def call_crc32c(typing_context: Any, function: Any, source: Any, size_bytes: Any) -> Any:
    """Call crc32c_extend; returns the CRC-32C of the bytes at address `source`, as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        crc = ir.IntType(32)
        function_type = ir.FunctionType(crc, [crc, _WORD, _WORD])
        function = builder.inttoptr(arguments[0], function_type.as_pointer())
        return builder.call(function, [crc(0), arguments[1], arguments[2]])

    return types.uint32(types.int64, types.int64, types.int64), generate
