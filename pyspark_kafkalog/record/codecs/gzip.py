"""gzip as Kafka's clients write it: one or more members (RFC 1952).

Source of the rules: org.apache.kafka.common.compress.GzipCompression and java.util.zip.GZIPInputStream, which reads
member after member. Bytes after the last member that do not begin another are an error.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.codecs.codec import BadCompressedDataError
from pyspark_kafkalog.record.header import Buffer

_WINDOW_BITS: Final = 31  # zlib's code for a 32 KiB window with gzip's header and trailer
_PIECE_BYTES: Final = 1024 * 1024


def compress(data: Buffer, level: int) -> bytes:
    """One member by zlib; `level` -1 is zlib's default."""
    member = zlib.compressobj(level, wbits=_WINDOW_BITS)
    return member.compress(data) + member.flush()


def decompress(data: Buffer, limit_bytes: int) -> NDArray[np.uint8]:
    """Decompress all members in turn, as java.util.zip.GZIPInputStream does; other bytes after them are an error."""
    out = bytearray()
    at = 0
    while at < data.size or at == 0:
        at = _inflate_member(memoryview(data), at, out, limit_bytes)
    return np.frombuffer(out, dtype=np.uint8)


def _inflate_member(data: memoryview, member_at: int, out: bytearray, limit_bytes: int) -> int:
    """Append the content of the member at `member_at` to `out`, in bounded pieces; returns the position after it."""
    member = zlib.decompressobj(_WINDOW_BITS)
    at = member_at
    pending: bytes | memoryview = b""
    while not member.eof:
        if not len(pending):
            pending = data[at : at + _PIECE_BYTES]
            at += len(pending)
            if not len(pending):
                raise BadCompressedDataError(at=member_at, expected="a whole gzip member", found="the end of the batch")
        try:
            piece = member.decompress(pending, _PIECE_BYTES)
        except zlib.error as error:
            raise BadCompressedDataError(at=member_at, expected="gzip data", found=str(error)) from error
        if len(out) + len(piece) > limit_bytes:
            raise BadCompressedDataError.over_limit(member_at, limit_bytes)
        out += piece
        pending = member.unconsumed_tail
    return at - len(member.unused_data)
