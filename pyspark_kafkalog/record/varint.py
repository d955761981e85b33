"""Kafka's variable-length integers: 7 bits per byte, least significant first; the top bit means that more bytes follow.

    varint          int32, zigzag, at most 5 bytes     lengths, offset deltas, header counts
    varlong         int64, zigzag, at most 10 bytes    timestamp deltas
    unsigned varint uint32, no zigzag, at most 5       compact lengths and tags of flexible messages

Zigzag maps 0, -1, 1, -2 to 0, 1, 2, 3. A value may have more bytes than necessary; bits of the last byte that do not
fit are dropped. Both rules are those of org.apache.kafka.common.utils.ByteUtils.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafkalog.errors import KafkalogError

MAX_VARINT_BYTES: Final = 5
MAX_VARLONG_BYTES: Final = 10

_INT32_MASK: Final = 0xFFFFFFFF
_INT64_MASK: Final = 0xFFFFFFFFFFFFFFFF


class MalformedVarintError(KafkalogError, ValueError):
    """A malformed varint; `at` is its position in the buffer. Callers convert it to an error with a file."""

    def __init__(self, *, at: int, expected: str, found: str) -> None:
        self.at = at
        self.expected = expected
        self.found = found
        super().__init__(f"at byte {at}: expected {expected}, found {found}")


def read_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The int32 at `data[at:end]` and the position after it. Raises MalformedVarintError."""
    raw, at = _read(data, at, end, MAX_VARINT_BYTES)
    raw &= _INT32_MASK
    return (raw >> 1) ^ -(raw & 1), at


def read_varlong(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The int64 at `data[at:end]` and the position after it. Raises MalformedVarintError."""
    raw, at = _read(data, at, end, MAX_VARLONG_BYTES)
    raw &= _INT64_MASK
    return (raw >> 1) ^ -(raw & 1), at


def read_unsigned_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The uint32 at `data[at:end]` and the position after it. Raises MalformedVarintError."""
    raw, at = _read(data, at, end, MAX_VARINT_BYTES)
    return raw & _INT32_MASK, at


def encode_varint(value: int) -> bytes:
    """The bytes of an int32 with zigzag."""
    return _encode((value << 1) ^ (value >> 31))


def encode_varlong(value: int) -> bytes:
    """The bytes of an int64 with zigzag."""
    return _encode((value << 1) ^ (value >> 63))


def encode_unsigned_varint(value: int) -> bytes:
    """The bytes of a uint32."""
    return _encode(value)


def _read(data: bytes | memoryview, at: int, end: int, max_bytes: int) -> tuple[int, int]:
    if at < end and (raw := data[at]) < 0x80:  # most varints have one byte
        return raw, at + 1
    raw = 0
    for taken in range(max_bytes):
        if at + taken >= end:
            raise MalformedVarintError(at=at, expected="a varint", found=f"the end after {taken} bytes of it")
        byte = data[at + taken]
        raw |= (byte & 0x7F) << (7 * taken)
        if byte < 0x80:
            return raw, at + taken + 1
    raise MalformedVarintError(
        at=at, expected=f"a varint of at most {max_bytes} bytes", found=f"{max_bytes} bytes and no end"
    )


def _encode(raw: int) -> bytes:
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
