"""CRC-32C (Castagnoli), the checksum of record batches and producer snapshots.

google-crc32c's C extension computes it; if the wheel lacks that (its pure Python version is slow), crcmod's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np

from pyspark_kafkalog.record.header import Buffer


def _pick_implementation(google_implementation: str) -> Callable[[Any], int]:
    """google-crc32c's function if it is compiled, else crcmod's."""
    if google_implementation == "c":
        return google_crc32c.value  # type: ignore[no-any-return]
    import crcmod.predefined

    return crcmod.predefined.mkPredefinedCrcFun("crc-32c")  # type: ignore[no-any-return]


_checksum = _pick_implementation(google_crc32c.implementation)


def crc32c(buffer: Buffer) -> int:
    """CRC-32C of the whole buffer (bytes, bytearray, memoryview, mmap or a contiguous uint8 array), 0 to 2^32-1."""
    if not isinstance(buffer, (bytes, np.ndarray)):
        buffer = np.frombuffer(buffer, dtype=np.uint8)  # the C extension rejects writable memoryviews
    return _checksum(buffer)
