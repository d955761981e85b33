"""What the compiled kernels share: types of arrays, raw memory, varints of the record format, and C functions.

Kernels work on addresses, so that one call can take batches of a file buffer and of many decompressed blocks without
copying them together first. Memory access here is not bounds-checked; each kernel compares an address with its given
end before it reads or writes. The varint readers take the end and never read past it.

*C functions* of the dependencies' libraries: their addresses, and intrinsics by which compiled loops call them. One
call for a thousand batches lets other threads run meanwhile, and saves the cost of a thousand calls from Python. Wheels
of zstandard contain libzstd with exported functions, in the extension for cffi; google-crc32c's extension is linked
with libcrc32c. If a wheel is built differently there are no addresses, and callers call Python functions. A wrong
address crashes the process, so addresses come only from this module and are not kept beyond one call.
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
import numpy as np
import zstandard
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

#: Arrays that kernels take: written by them, or only read (`_IN`).
INT16 = types.Array(types.int16, 1, "C")
INT32 = types.Array(types.int32, 1, "C")
INT32_IN = types.Array(types.int32, 1, "C", readonly=True)
INT64 = types.Array(types.int64, 1, "C")
INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
UINT8 = types.Array(types.uint8, 1, "C")
UINT8_IN = types.Array(types.uint8, 1, "C", readonly=True)
UINT32 = types.Array(types.uint32, 1, "C")
UINT32_IN = types.Array(types.uint32, 1, "C", readonly=True)
UINT64 = types.Array(types.uint64, 1, "C")
UINT64_IN = types.Array(types.uint64, 1, "C", readonly=True)

#: Bytes that `copy_with_slack` may write past the end of the copied bytes.
COPY_SLACK_BYTES = 32

#: Address that the varint readers return if the varint is too long or extends past the end.
BAD_VARINT = -1

_BYTE_PTR = ir.IntType(8).as_pointer()
_IS_64_BIT = sys.maxsize > 1 << 32
_WORD = ir.IntType(64)  # pointers and size_t are passed the same way on 64 bits


@intrinsic
def load_byte(typing_context: Any, address: Any) -> Any:
    """The byte at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _BYTE_PTR), align=1)

    return types.uint8(types.int64), generate


@intrinsic
def load_int32(typing_context: Any, address: Any) -> Any:
    """The native int32 at `address`, sign-extended."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()), align=1)
        return builder.sext(loaded, ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def load_int64(typing_context: Any, address: Any) -> Any:
    """The native int64 at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()), align=1)

    return types.int64(types.int64), generate


@intrinsic
def store_int32(typing_context: Any, address: Any, value: Any) -> Any:
    """Store the low 32 bits of an int64 at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        builder.store(builder.trunc(arguments[1], word), builder.inttoptr(arguments[0], word.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def store_byte(typing_context: Any, address: Any, value: Any) -> Any:
    """Store one byte at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _BYTE_PTR), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint8), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the memory at `address` into the cache; any address is safe, as it is not read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [_BYTE_PTR, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_BYTE_PTR], function_type)
        for_reading, keep_in_all_caches, data = word(0), word(3), word(1)
        builder.call(function, [builder.inttoptr(arguments[0], _BYTE_PTR), for_reading, keep_in_all_caches, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _move_32_bytes(typing_context: Any, to: Any, source: Any) -> Any:
    """Copy 32 bytes as one vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), COPY_SLACK_BYTES).as_pointer()
        loaded = builder.load(builder.inttoptr(arguments[1], vector), align=1)
        builder.store(loaded, builder.inttoptr(arguments[0], vector), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def copy_bytes(typing_context: Any, to: Any, source: Any, count: Any) -> Any:
    """Copy exactly `count` bytes (memcpy)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to_at = builder.inttoptr(arguments[0], _BYTE_PTR)
        source_at = builder.inttoptr(arguments[1], _BYTE_PTR)
        cgutils.raw_memcpy(builder, to_at, source_at, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit(nogil=True)
def copy_with_slack(to: int, source: int, count: int, source_end: int) -> None:
    """Copy `count` bytes in whole vectors if the source extends far enough: 3 times as fast as memcpy for 100 bytes.

    The destination needs COPY_SLACK_BYTES beyond `to + count`. No byte at or past `source_end` is read.
    """
    if count > 256 or source + count + COPY_SLACK_BYTES > source_end:
        copy_bytes(to, source, count)
        return
    done = 0
    while done < count:
        _move_32_bytes(to + done, source + done)
        done += COPY_SLACK_BYTES


@njit(nogil=True)
def read_varint(at: int, end: int) -> tuple[int, int]:
    """Zigzag varint of 32 bits at address `at`: (value, address after it), or (0, BAD_VARINT)."""
    result = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(35):
        byte = np.uint64(load_byte(at))
        at += 1
        result |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            low = np.uint32(result)
            return np.int64(np.int32((low >> np.uint32(1)) ^ (~(low & np.uint32(1)) + np.uint32(1)))), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(BAD_VARINT)


@njit(nogil=True)
def read_varlong(at: int, end: int) -> tuple[int, int]:
    """Zigzag varint of 64 bits at address `at`: (value, address after it), or (0, BAD_VARINT)."""
    result = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(load_byte(at))
        at += 1
        result |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64((result >> np.uint64(1)) ^ (~(result & np.uint64(1)) + np.uint64(1))), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(BAD_VARINT)


@njit(nogil=True)
def _unsigned_varint_size(raw: int) -> int:
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@njit(nogil=True)
def varlong_size(value: int) -> int:
    """The number of bytes of `value` as a zigzag varint; the same for 32 and 64 bits."""
    return _unsigned_varint_size(np.uint64((value << 1) ^ (value >> 63)))


@njit(nogil=True)
def write_varlong(at: int, value: int) -> int:
    """Store `value` as a zigzag varint at address `at`; returns the address after it."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw >= np.uint64(0x80):
        store_byte(at, np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80)))
        raw >>= np.uint64(7)
        at += 1
    store_byte(at, np.uint8(raw))
    return at + 1


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
