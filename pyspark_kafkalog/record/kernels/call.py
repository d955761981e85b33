"""Calls C functions by address from compiled loops; c_functions.py finds the addresses.

A wrong address crashes the process, so addresses come only from there and are not kept beyond one call.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(64)  # pointers and size_t are passed the same way on 64 bits


@intrinsic
def call_zstd(
    typing_context: Any, function: Any, context: Any, to: Any, room_bytes: Any, source: Any, size_bytes: Any
) -> Any:
    """Call ZSTD_decompressDCtx or ZSTD_compress2; returns the bytes written to address `to`, below 0 for an error."""

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
