"""Snappy as Kafka's clients write it.

Java's (xerial's) framing, also the broker's and kafka-python's:

    0   82 53 4e 41 50 50 59 00   magic
    8   int32   version, 1
    12  int32   lowest version that can read it, 1
    16  blocks to the end: int32 compressed size, then that many bytes of raw Snappy

Big-endian. librdkafka writes one raw Snappy block without framing; readers distinguish the two by the magic. A raw
block starts with its decompressed size as an unsigned varint. Source of the rules: org.xerial.snappy's
SnappyInputStream and SnappyOutputStream; the former also reads several framed streams one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import cramjam
import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.codecs.codec import BadCompressedDataError
from pyspark_kafkalog.record.header import Buffer

MAGIC: Final = b"\x82SNAPPY\x00"
VERSION: Final = 1
FRAME_HEADER_BYTES: Final = 16
BLOCK_BYTES: Final = 32 * 1024  # SnappyOutputStream's default

_FRAME_HEADER: Final = MAGIC + VERSION.to_bytes(4, "big") * 2


def compress(data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` in Java's framing, in blocks of 32 KiB; Snappy has no levels."""
    parts: list[bytes] = [_FRAME_HEADER]
    for at in range(0, data.size, BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def decompress(data: Buffer, limit_bytes: int) -> NDArray[np.uint8]:
    """The content of framed or raw Snappy. Sizes are summed and checked before anything is allocated."""
    blocks = list(_split(data))
    sizes = [_content_bytes(data, at, end) for at, end in blocks]
    if sum(sizes) > limit_bytes:
        raise BadCompressedDataError.over_limit(0, limit_bytes)
    out = np.empty(sum(sizes), dtype=np.uint8)  # bounded: limit_bytes, above
    filled = 0
    for (at, end), size in zip(blocks, sizes, strict=True):
        try:
            written = _decompress_block(data[at:end], out[filled : filled + size])
        except cramjam.DecompressionError as error:
            raise BadCompressedDataError(at=at, expected="a Snappy block", found=str(error)) from error
        if written != size:
            raise BadCompressedDataError(at=at, expected=f"{size} bytes of content", found=str(written))
        filled += size
    return out


def content_max_bytes(data: Buffer, *, blocks_max: int) -> int | None:
    """The size of the content, by the blocks' own words; None if there are more than `blocks_max`.

    Raises BadCompressedDataError.
    """
    blocks = list(islice(_split(data), blocks_max + 1))
    return sum(_content_bytes(data, at, end) for at, end in blocks) if len(blocks) <= blocks_max else None


def _decompress_block(block: Buffer, out: Buffer) -> int:
    return int(cramjam.snappy.decompress_raw_into(block, out))


def _split(data: Buffer) -> Iterator[tuple[int, int]]:
    """Start and end of each raw block."""
    if not _is_framed(data, 0):
        yield 0, data.size
        return
    at = 0
    while at < data.size:
        if _is_framed(data, at):
            at += FRAME_HEADER_BYTES
            continue
        size = int.from_bytes(data[at : at + 4].tobytes(), "big", signed=True)
        at += 4
        if size < 0 or at + size > data.size:
            raise BadCompressedDataError(
                at=at - 4, expected=f"a block size of 0 to {max(data.size - at, 0)}", found=str(size)
            )
        yield at, at + size
        at += size


def _is_framed(data: Buffer, at: int) -> bool:
    header = data[at : at + FRAME_HEADER_BYTES].tobytes()
    if len(header) < FRAME_HEADER_BYTES or not header.startswith(MAGIC):
        return False
    lowest_version = int.from_bytes(header[12:], "big", signed=True)
    if lowest_version < VERSION:
        raise BadCompressedDataError(
            at=at + 12, expected=f"Snappy framing version {VERSION} or later", found=str(lowest_version)
        )
    return True


def _content_bytes(data: Buffer, at: int, end: int) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(data[at:end]))
    except cramjam.DecompressionError as error:
        raise BadCompressedDataError(at=at, expected="a Snappy block", found=str(error)) from error
