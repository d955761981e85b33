"""Zstandard as Kafka's clients write it: frames, mostly one, often without the size of their content.

Java and librdkafka compress as a stream, so the frame header does not contain the content's length. The block headers
(3 bytes each: last flag, 2 bits type, 21 bits size) bound its size without decompression. Skippable frames are skipped.
Source of the rules: RFC 8878 and com.github.luben.zstd.ZstdInputStreamNoFinalizer, which reads frame after frame.

Many batches at once are decompressed by kernels/zstd.py, which shares the constants.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from pyspark_kafkalog.record.codecs.codec import BadCompressedDataError
from pyspark_kafkalog.record.header import Buffer

MAGIC = 0xFD2FB528
MAX_BLOCK_BYTES = 128 * 1024
RAW, RUN, COMPRESSED = 0, 1, 2
BLOCK_HEADER_BYTES = 3
CHECKSUM_BYTES = 4

_SKIPPABLE_HEADER_BYTES: Final = 8


class _Contexts(threading.local):
    """The zstd contexts of a thread, compressors by level: they are expensive to create, and not thread-safe."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        found = self.compressors.get(level)
        if found is None:
            found = self.compressors[level] = zstandard.ZstdCompressor(level=level)
        return found


_contexts = _Contexts()


def compress(data: Buffer, level: int) -> bytes:
    """One frame with its content size and no checksum (the batch has one)."""
    return _contexts.compressor(level).compress(data)


def decompress(data: NDArray[np.uint8], limit_bytes: int) -> NDArray[np.uint8]:
    """The content of all frames. The size of each is bounded before it is allocated."""
    parts: list[bytes] = []
    room_bytes = limit_bytes
    at = 0
    while at < data.size or not parts:
        if _is_skippable(data, at):
            at = _skip(data, at)
            continue
        end, most_bytes, content_bytes = _measure_frame(data, at)
        if content_bytes is not None and content_bytes > most_bytes:
            raise BadCompressedDataError(
                at=at, expected=f"a content size of at most {most_bytes}", found=str(content_bytes)
            )
        if content_bytes is not None and content_bytes > room_bytes:
            raise BadCompressedDataError.over_limit(at, limit_bytes)
        part = _decompress_frame(data[at:end], at, min(most_bytes, room_bytes))
        parts.append(part)
        room_bytes -= len(part)
        at = end
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=np.uint8)


def _decompress_frame(frame: Buffer, at: int, room_bytes: int) -> bytes:
    try:
        # 0 would mean "no bound given", so an empty frame gets room for one byte, which stays unused
        return _contexts.decompressor.decompress(frame, max_output_size=max(room_bytes, 1))
    except zstandard.ZstdError as error:
        raise BadCompressedDataError(
            at=at, expected=f"a zstd frame of at most {room_bytes} bytes of content", found=str(error)
        ) from error


def _measure_frame(data: NDArray[np.uint8], at: int) -> tuple[int, int, int | None]:
    """End of the frame at `at`, a bound for its content from its blocks, and its stated content size, if any."""
    head = data[at : at + 18].tobytes()  # the longest frame header
    try:
        frame = zstandard.get_frame_parameters(head)
        at += zstandard.frame_header_size(head)
    except zstandard.ZstdError as error:
        raise BadCompressedDataError(at=at, expected="a zstd frame", found=str(error)) from error
    block_maximum_bytes = min(frame.window_size, MAX_BLOCK_BYTES)
    most_bytes = 0
    last = False
    while not last:
        if at + BLOCK_HEADER_BYTES > data.size:
            raise BadCompressedDataError(at=at, expected="a zstd block header", found="the end of the batch")
        word = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16
        last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        at += BLOCK_HEADER_BYTES
        stored_bytes = 1 if kind == RUN else size
        if kind > COMPRESSED or size > block_maximum_bytes or at + stored_bytes > data.size:
            raise BadCompressedDataError(
                at=at - BLOCK_HEADER_BYTES,
                expected=f"a zstd block of at most {block_maximum_bytes} bytes that ends with the batch",
                found=f"type {kind}, {size} bytes",
            )
        most_bytes += block_maximum_bytes if kind == COMPRESSED else size
        at += stored_bytes
    at += CHECKSUM_BYTES if frame.has_checksum else 0
    if at > data.size:
        raise BadCompressedDataError(at=data.size, expected="a frame checksum", found="the end of the batch")
    return at, most_bytes, None if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN else frame.content_size


def _is_skippable(data: NDArray[np.uint8], at: int) -> bool:
    head = data[at : at + 4].tobytes()
    return len(head) == 4 and head[0] & 0xF0 == 0x50 and head[1:] == b"\x2a\x4d\x18"


def _skip(data: NDArray[np.uint8], at: int) -> int:
    size = int.from_bytes(data[at + 4 : at + _SKIPPABLE_HEADER_BYTES].tobytes(), "little")
    end = at + _SKIPPABLE_HEADER_BYTES + size
    if end > data.size:
        raise BadCompressedDataError(
            at=at, expected=f"a skippable frame of {size} bytes", found=f"{data.size - at - _SKIPPABLE_HEADER_BYTES}"
        )
    return end
