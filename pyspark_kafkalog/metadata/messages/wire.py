"""Primitive encodings of Kafka's messages, read with every length checked and written to a growing buffer.

Big-endian integers; unsigned varints of at most 5 bytes; strings and bytes with an int16 or int32 length, or, in
flexible versions, with an unsigned varint of length + 1 where 0 is null. Source:
org.apache.kafka.common.protocol.ByteBufferAccessor.
"""

from __future__ import annotations

from pyspark_kafkalog.errors import CorruptRecordError, InvalidRecordError
from pyspark_kafkalog.record.header import Buffer

_VARINT_MAX_BYTES = 5
_INT32_MAX = 0x7FFFFFFF


class MessageReader:
    """A cursor over one message's bytes. `file` and `file_position` (of byte 0) go into errors only."""

    __slots__ = ("at", "data", "end", "file", "file_position")

    def __init__(self, data: Buffer, *, file: str, file_position: int = 0) -> None:
        self.data = bytes(data)
        self.at = 0
        self.end = len(self.data)
        self.file = file
        self.file_position = file_position

    @property
    def remaining(self) -> int:
        return self.end - self.at

    def error(self, *, expected: str, found: str) -> CorruptRecordError:
        """The error to raise for what lies at the cursor."""
        return CorruptRecordError(file=self.file, position=self.file_position + self.at, expected=expected, found=found)

    def advance(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they begin; raises CorruptRecordError when they are not there."""
        at = self.at
        if size < 0 or size > self.end - at:
            raise self.error(expected=f"{what} of {size} bytes", found=f"{self.end - at} bytes left")
        self.at = at + size
        return at

    def take(self, size: int, what: str) -> bytes:
        at = self.advance(size, what)
        return self.data[at : at + size]

    def unsigned_varint(self, what: str) -> int:
        """An unsigned varint of 0 to 2^31-1."""
        at = self.at
        if at < self.end and self.data[at] < 0x80:  # most of them are one byte
            self.at = at + 1
            return self.data[at]
        value = 0
        for shift in range(0, 7 * _VARINT_MAX_BYTES, 7):
            if at >= self.end:
                raise self.error(expected=f"a varint for {what}", found="the end of the message")
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > _INT32_MAX:
                    raise self.error(expected=f"{what} of at most {_INT32_MAX}", found=str(value))
                self.at = at
                return value
        raise self.error(expected=f"a varint of at most {_VARINT_MAX_BYTES} bytes for {what}", found="a longer one")


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Append `value` (0 to 2^31-1) as an unsigned varint."""
    if not 0 <= value <= _INT32_MAX:
        raise InvalidRecordError(f"{value} does not fit an unsigned varint of 31 bits")
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
