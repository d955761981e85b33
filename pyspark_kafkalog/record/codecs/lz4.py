"""LZ4 frames as Kafka writes and reads them: independent blocks, no dictionary.

    0   04 22 4d 18   magic
    4   flags         bits 7-6 version 1, 5 blocks independent, 4 block checksums, 3 content size, 2 content checksum
    5   block maximum bits 6-4: 4 to 7 for 64 KiB, 256 KiB, 1 MiB, 4 MiB
    6   content size  uint64, only with flag bit 3
    .   checksum      second byte of xxHash32 of flags to content size
    .   blocks: uint32 size, top bit set if stored uncompressed; its bytes; uint32 checksum only with flag bit 4
    .   uint32 0, then uint32 content checksum only with flag bit 2

Little-endian. Java and librdkafka set flags 0x60, kafka-python 0x68. Linked blocks (bit 5 clear) are rejected, as by
Kafka's Lz4BlockInputStream, the source of these rules. Bytes after the end mark are rejected, too; Kafka ignores them.

Frames are written with blocks of 64 KiB, as by Kafka: larger blocks compress JSON by less than 1% more at the same
speed, and hexadecimal text not at all instead of by 7% (benchmarks/lz4_blocks.py).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import cramjam
import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.record.codecs.codec import BadCompressedDataError
from pyspark_kafkalog.record.header import Buffer

MAGIC: Final = b"\x04\x22\x4d\x18"
BLOCK_BYTES: Final = 64 * 1024

_FAST_LEVEL: Final = 9  # Kafka's level for the fast compressor, its default; all other levels use the high compressor
_DESCRIPTOR: Final = b"\x60\x40"
_INDEPENDENT: Final = 0x20
_BLOCK_CHECKSUM: Final = 0x10
_CONTENT_SIZE: Final = 0x08
_CONTENT_CHECKSUM: Final = 0x04
_STORED: Final = 0x80000000
_FRAME_HEADER_BYTES: Final = len(MAGIC) + len(_DESCRIPTOR) + 1
_END_MARK: Final = bytes(4)
#: The header of a frame without options, and the size word of its first block; and another word.
_BLOCK_HEAD: Final = struct.Struct(f"<{_FRAME_HEADER_BYTES}sI")
_WORD: Final = struct.Struct("<I")
_MAX_RATIO: Final = 255  # one byte of an LZ4 block encodes at most 255 bytes
_COMPRESSION_SLACK_BYTES: Final = BLOCK_BYTES // 255 + 16  # what LZ4_compressBound adds to the content's size
_MASK: Final = 0xFFFFFFFF


def compress(data: NDArray[np.uint8], level: int) -> bytes:
    """One frame of 64 KiB blocks as Java writes it, without content size, with only the header's checksum."""
    if level == _FAST_LEVEL:
        return _compress_fast(data)
    blocks = [_compress_block_high(data[at : at + BLOCK_BYTES], level) for at in range(0, data.size, BLOCK_BYTES)]
    return b"".join((_PLAIN_FRAME_HEADER, *blocks, _END_MARK))


def _compress_fast(data: NDArray[np.uint8]) -> bytes:
    """The frame by the fast compressor, which writes each block to its place; only the frame is copied."""
    blocks_count = -(-data.size // BLOCK_BYTES)
    room_bytes = data.size + blocks_count * (4 + _COMPRESSION_SLACK_BYTES) + _FRAME_HEADER_BYTES + len(_END_MARK)
    out: Buffer = np.empty(room_bytes, np.uint8)
    view, at = memoryview(out.data), _FRAME_HEADER_BYTES
    view[:at] = _PLAIN_FRAME_HEADER
    for start in range(0, data.size, BLOCK_BYTES):
        block: Buffer = data[start : start + BLOCK_BYTES]
        word = size = cramjam.lz4.compress_block_into(block, out[at + 4 :], store_size=False)
        if size >= block.size:
            size, word = block.size, block.size | _STORED
            out[at + 4 : at + 4 + size] = block
        view[at : at + 4] = word.to_bytes(4, "little")
        at += 4 + size
    view[at : at + len(_END_MARK)] = _END_MARK
    return bytes(view[: at + len(_END_MARK)])


def _compress_block_high(block: Buffer, level: int) -> bytes:
    """Size word and bytes of a block, or of its pieces, by the high compressor.

    cramjam's block functions accept a level but ignore it; its frame compressor does not. Each block is therefore
    compressed to a separate frame, of which only the blocks are kept: one, or several if an older cramjam passes the
    data to liblz4 in pieces.
    """
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(block.tobytes())
    frame = bytes(compressor.finish())
    checksum_bytes = 4 if frame[4] & _BLOCK_CHECKSUM else 0
    parts = []
    at = _FRAME_HEADER_BYTES
    while size := int.from_bytes(frame[at : at + 4], "little") & ~_STORED:
        parts.append(frame[at : at + 4 + size])
        at += 4 + size + checksum_bytes
    return b"".join(parts)


def decompress(data: NDArray[np.uint8], limit_bytes: int) -> NDArray[np.uint8]:
    """The frame's content, perhaps a view of `data`. The blocks' sizes are checked before anything is allocated."""
    block_bytes, is_stored = _only_block(data)
    if block_bytes:
        at = _FRAME_HEADER_BYTES + 4
        block = data[at : at + block_bytes]
        if is_stored and block_bytes <= limit_bytes:
            return block
        out = np.empty(min(BLOCK_BYTES, _MAX_RATIO * block_bytes, limit_bytes), dtype=np.uint8)
        return out[: _decompress_block(block, is_stored, out, at)]
    frame = _read_descriptor(data)
    blocks = list(_split(data, frame))
    out = np.empty(min(_most_bytes(blocks, frame), limit_bytes), dtype=np.uint8)  # bounded: limit_bytes, of the caller
    if frame.flags & (_BLOCK_CHECKSUM | _CONTENT_CHECKSUM):
        filled = _decompress_checked(data, out)
    else:
        filled = 0
        for at, end, stored in blocks:
            filled += _decompress_block(data[at:end], stored, out[filled : filled + frame.block_bytes], at)
    if frame.content_bytes is not None and frame.content_bytes != filled:
        raise BadCompressedDataError(at=6, expected=f"a content size of {filled}", found=str(frame.content_bytes))
    return out[:filled]


def with_right_checksum(data: bytes) -> bytes:
    """The frame with the header checksum that it should have: in messages of format 0 Kafka's clients wrote others."""
    checksum_at = 14 if len(data) > 4 and data[4] & _CONTENT_SIZE else 6
    if len(data) <= checksum_at:
        return data
    return data[:checksum_at] + bytes([_descriptor_checksum(data[4:checksum_at])]) + data[checksum_at + 1 :]


def content_max_bytes(data: NDArray[np.uint8], *, blocks_max: int) -> int | None:
    """The most that the frame's content can have, by the sizes of its blocks; None if it has more than `blocks_max`.

    Raises BadCompressedDataError.
    """
    block_bytes, is_stored = _only_block(data)
    if block_bytes:
        return block_bytes if is_stored else min(BLOCK_BYTES, _MAX_RATIO * block_bytes)
    frame = _read_descriptor(data)
    blocks = list(islice(_split(data, frame), blocks_max + 1))
    return _most_bytes(blocks, frame) if len(blocks) <= blocks_max else None


def _most_bytes(blocks: Sequence[_Block], frame: _Descriptor) -> int:
    return sum(end - at if stored else min(frame.block_bytes, _MAX_RATIO * (end - at)) for at, end, stored in blocks)


def _only_block(data: NDArray[np.uint8]) -> tuple[int, bool]:
    """Size of the one block of a frame without options, 0 for any other frame; and whether it is uncompressed.

    Most batches of up to 64 KiB are such frames, and parsing one step by step takes longer than decompressing it.
    """
    size = int(data.size) - _BLOCK_HEAD.size - len(_END_MARK)
    if not 0 < size <= BLOCK_BYTES:
        return 0, False
    header, word = _BLOCK_HEAD.unpack_from(data.data)
    is_only = header == _PLAIN_FRAME_HEADER and word & ~_STORED == size
    if not is_only or _WORD.unpack_from(data.data, data.size - len(_END_MARK))[0]:
        return 0, False
    return size, word != size


@dataclass(frozen=True, slots=True)
class _Descriptor:
    flags: int
    block_bytes: int
    content_bytes: int | None
    blocks_at: int


def _read_descriptor(data: NDArray[np.uint8]) -> _Descriptor:
    head = data[:15].tobytes()
    if len(head) < 7 or not head.startswith(MAGIC):
        raise BadCompressedDataError(at=0, expected=f"an LZ4 frame ({MAGIC.hex()})", found=head[:7].hex() or "nothing")
    flags, block_maximum = head[4], head[5]
    if flags >> 6 != 1 or flags & 0x03 or not flags & _INDEPENDENT:
        raise BadCompressedDataError(
            at=4, expected="LZ4 frame version 1 with independent blocks and no dictionary", found=f"flags {flags:#04x}"
        )
    if block_maximum & 0x8F or block_maximum >> 4 < 4:
        raise BadCompressedDataError(at=5, expected="a block maximum of 0x40 to 0x70", found=f"{block_maximum:#04x}")
    checksum_at = 14 if flags & _CONTENT_SIZE else 6
    if len(head) <= checksum_at:
        raise BadCompressedDataError(at=0, expected="a whole LZ4 frame header", found=f"{len(head)} bytes")
    checksum = _descriptor_checksum(head[4:checksum_at])
    if head[checksum_at] != checksum:
        raise BadCompressedDataError(
            at=checksum_at, expected=f"header checksum {checksum:#04x}", found=f"{head[checksum_at]:#04x}"
        )
    return _Descriptor(
        flags=flags,
        block_bytes=1 << (2 * (block_maximum >> 4) + 8),
        content_bytes=int.from_bytes(head[6:14], "little") if flags & _CONTENT_SIZE else None,
        blocks_at=checksum_at + 1,
    )


#: Start and end of a block's bytes, and whether they are uncompressed.
_Block: TypeAlias = tuple[int, int, bool]


def _split(data: NDArray[np.uint8], frame: _Descriptor) -> Iterator[_Block]:
    """The blocks; the frame must fill `data`."""
    checksum_bytes = 4 if frame.flags & _BLOCK_CHECKSUM else 0
    at = frame.blocks_at
    while True:
        if at + 4 > data.size:
            raise BadCompressedDataError(at=at, expected="an LZ4 block size or end mark", found="the end of the batch")
        word = int.from_bytes(data[at : at + 4].tobytes(), "little")
        size = word & ~_STORED
        at += 4
        if size == 0:
            break
        if size > frame.block_bytes or at + size + checksum_bytes > data.size:
            most = min(frame.block_bytes, max(data.size - at - checksum_bytes, 0))
            raise BadCompressedDataError(at=at - 4, expected=f"a block size of 0 to {most}", found=str(size))
        yield at, at + size, bool(word & _STORED)
        at += size + checksum_bytes
    at += 4 if frame.flags & _CONTENT_CHECKSUM else 0
    if at != data.size:
        raise BadCompressedDataError(at=at, expected="the end of the batch", found=f"{data.size - at} bytes more")


def _decompress_block(block: Buffer, stored: bool, out: Buffer, at: int) -> int:
    """Write one block's content to the start of `out`; returns its size in bytes."""
    expected = f"an LZ4 block of at most {out.size} bytes of content"
    if stored:
        if block.size > out.size:
            raise BadCompressedDataError(at=at, expected=expected, found=f"{block.size} bytes")
        out[: block.size] = block
        return int(block.size)
    try:
        return int(cramjam.lz4.decompress_block_into(block, out, output_len=out.size))
    except cramjam.DecompressionError as error:
        raise BadCompressedDataError(at=at, expected=expected, found=str(error)) from error


def _decompress_checked(data: Buffer, out: Buffer) -> int:
    """Decompress a frame with block or content checksums by liblz4's own frame decoder, which checks them."""
    expected = f"an LZ4 frame of at most {out.size} bytes of content"
    try:
        return int(cramjam.lz4.decompress_into(data, out))
    except cramjam.DecompressionError as error:
        raise BadCompressedDataError(at=0, expected=expected, found=str(error)) from error


@functools.lru_cache(maxsize=64)
def _descriptor_checksum(descriptor: bytes) -> int:
    """Second byte of the xxHash32, seed 0, of fewer than 16 bytes (2, or 10 with a content size)."""
    hashed = (0x165667B1 + len(descriptor)) & _MASK
    whole = len(descriptor) & ~3
    for at in range(0, whole, 4):
        hashed = (hashed + int.from_bytes(descriptor[at : at + 4], "little") * 0xC2B2AE3D) & _MASK
        hashed = _rotate(hashed, 17) * 0x27D4EB2F & _MASK
    for byte in descriptor[whole:]:
        hashed = (hashed + byte * 0x165667B1) & _MASK
        hashed = _rotate(hashed, 11) * 0x9E3779B1 & _MASK
    hashed = (hashed ^ hashed >> 15) * 0x85EBCA77 & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE3D & _MASK
    return (hashed ^ hashed >> 16) >> 8 & 0xFF


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


_PLAIN_FRAME_HEADER: Final = MAGIC + _DESCRIPTOR + bytes([_descriptor_checksum(_DESCRIPTOR)])
