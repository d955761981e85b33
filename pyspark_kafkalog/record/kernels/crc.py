"""Compiled loops that check or compute the CRCs of many batches, with the address of crc32c_extend (c_functions.py)."""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, call-arg"

from __future__ import annotations

import numpy as np
from numba import types

from pyspark_kafkalog.record.header import ATTRIBUTES_AT
from pyspark_kafkalog.record.kernels.cache import kernel
from pyspark_kafkalog.record.kernels.call import call_crc32c
from pyspark_kafkalog.record.kernels.scan import BYTES

_INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
_UINT32_IN = types.Array(types.uint32, 1, "C", readonly=True)
_UINT32 = types.Array(types.uint32, 1, "C")


@kernel(types.int64(types.int64, BYTES, _INT64_IN, _INT64_IN, _UINT32_IN))
def find_bad_crc(function, data, starts, sizes, crcs):
    """The first i for which data[starts[i]:][:sizes[i]] is not a batch with CRC crcs[i], -1 if all are."""
    at = np.int64(data.ctypes.data)
    for i in range(len(starts)):
        start, size = starts[i], sizes[i]
        if start < 0 or size < ATTRIBUTES_AT or size > len(data) - start:
            return i
        if call_crc32c(function, at + start + ATTRIBUTES_AT, size - ATTRIBUTES_AT) != crcs[i]:
            return i
    return -1


@kernel(types.void(types.int64, BYTES, _INT64_IN, _INT64_IN, _UINT32))
def compute_crcs(function, data, starts, sizes, crcs):
    """Set crcs[i] to the CRC of the batch data[starts[i]:][:sizes[i]], which `data` holds completely."""
    at = np.int64(data.ctypes.data)
    for i in range(len(starts)):
        crcs[i] = call_crc32c(function, at + starts[i] + ATTRIBUTES_AT, sizes[i] - ATTRIBUTES_AT)
