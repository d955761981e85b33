"""The codecs of a record batch: everything after its header is compressed as one piece.

    gzip    one or more gzip members
    snappy  Java's framing, or one raw block as librdkafka writes
    lz4     one LZ4 frame of independent blocks
    zstd    one or more zstd frames; Java's and librdkafka's do not say how long the content is

The size of the output is bounded before it is allocated: a batch that would decompress to more than
`decompressed_limit_bytes` is corrupt, and so is one whose stored lengths do not match its bytes. Source of the rules:
org.apache.kafka.common.compress.

Each codec's library loads on first use: processes that only plan read uncompressed metadata.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError
from pyspark_kafkalog.record.header import Buffer, CompressionType


class BadCompressedDataError(KafkalogError, ValueError):
    """Compressed bytes break their format or the size limit; `at` is the position in them."""

    def __init__(self, *, at: int, expected: str, found: str) -> None:
        self.at = at
        self.expected = expected
        self.found = found
        super().__init__(f"at byte {at}: expected {expected}, found {found}")

    @classmethod
    def over_limit(cls, at: int, limit_bytes: int) -> BadCompressedDataError:
        """The error for content longer than a batch of this size may hold."""
        return cls(at=at, expected=f"at most {limit_bytes} bytes after decompression", found="more")


_MIB: Final = 1024 * 1024
_GZIP_WINDOW_BITS: Final = 31  # zlib's code for a 32 KiB window with gzip's header and trailer
_PIECE_BYTES: Final = _MIB
GZIP_DEFAULT_LEVEL: Final = -1


def decompressed_limit_bytes(compressed_bytes: int) -> int:
    """The maximum decompressed size of `compressed_bytes` of a batch."""
    return min(max(1000 * compressed_bytes, 32 * _MIB), 256 * _MIB)


def compress(codec: CompressionType, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` as Kafka's Java clients do; `level` None means the codec's default in Kafka.

    Levels are Kafka's: gzip 1 to 9 or -1, lz4 1 to 17, zstd -131072 to 22; snappy and none have no levels.
    """
    if codec is CompressionType.GZIP:
        return _compress_gzip(data, GZIP_DEFAULT_LEVEL if level is None else level)
    if codec is CompressionType.SNAPPY:
        from pyspark_kafkalog.record.codecs import snappy as snappy_framing

        return snappy_framing.compress(_as_array(data))
    if codec is CompressionType.LZ4:
        from pyspark_kafkalog.record.codecs import lz4 as lz4_frame

        return lz4_frame.compress(_as_array(data), lz4_frame.DEFAULT_LEVEL if level is None else level)
    if codec is CompressionType.ZSTD:
        from pyspark_kafkalog.record.codecs import zstd as zstd_frame

        return zstd_frame.compress(data, zstd_frame.DEFAULT_LEVEL if level is None else level)
    return bytes(data)


def decompress(codec: CompressionType, data: Buffer, *, file: str, file_position: int) -> NDArray[np.uint8]:
    """Decompress `data`; returns a uint8 array, for codec none a view of `data`.

    `data` starts at byte `file_position` of `file`. Raises CorruptRecordError if it is not of that codec, is truncated,
    has trailing bytes, or decompresses to more than `decompressed_limit_bytes(len(data))`.
    """
    array = _as_array(data)
    limit_bytes = decompressed_limit_bytes(array.size)
    try:
        if codec is CompressionType.GZIP:
            return _decompress_gzip(array, limit_bytes)
        if codec is CompressionType.SNAPPY:
            from pyspark_kafkalog.record.codecs import snappy as snappy_framing

            return snappy_framing.decompress(array, limit_bytes)
        if codec is CompressionType.LZ4:
            from pyspark_kafkalog.record.codecs import lz4 as lz4_frame

            return lz4_frame.decompress(array, limit_bytes)
        if codec is CompressionType.ZSTD:
            from pyspark_kafkalog.record.codecs import zstd as zstd_frame

            return zstd_frame.decompress(array, limit_bytes)
    except BadCompressedDataError as error:
        raise CorruptRecordError(
            file=file, position=file_position + error.at, expected=error.expected, found=error.found
        ) from error
    return array


def _as_array(data: Buffer) -> NDArray[np.uint8]:
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)


def _compress_gzip(data: Buffer, level: int) -> bytes:
    member = zlib.compressobj(level, wbits=_GZIP_WINDOW_BITS)
    return member.compress(data) + member.flush()


def _decompress_gzip(data: Buffer, limit_bytes: int) -> NDArray[np.uint8]:
    """Decompress all members in turn, as java.util.zip.GZIPInputStream does; other bytes after them are an error."""
    out = bytearray()
    at = 0
    while at < data.size or at == 0:
        at = _inflate_member(memoryview(data), at, out, limit_bytes)
    return np.frombuffer(out, dtype=np.uint8)


def _inflate_member(data: memoryview, member_at: int, out: bytearray, limit_bytes: int) -> int:
    """Append the content of the member at `member_at` to `out`, in bounded pieces; returns the position after it."""
    member = zlib.decompressobj(_GZIP_WINDOW_BITS)
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
