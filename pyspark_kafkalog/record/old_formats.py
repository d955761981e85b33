"""Messages of formats 0 and 1 (magic 0 and 1), as brokers before Kafka 0.11 wrote them, converted to record batches.

    offset       int64    of the message; of a compressed message, of the last one in it
    size         int32    bytes after this field
    crc          uint32   CRC-32 of everything after this field
    magic        int8     0 or 1
    attributes   int8     bits 0-2 the codec; bit 3 in format 1: LogAppendTime
    timestamp    int64    only in format 1
    key size     int32    -1: null; then the key
    value size   int32    -1: null; then the value

The value of a compressed message is a sequence of messages. In format 0 they have their own offsets; in format 1 their
offsets count from the first one, and the last one has the offset of the compressed message. If that has LogAppendTime,
its timestamp is that of all. Messages of format 0 have no timestamp (-1), and neither format has headers.

Readers get batches of the present format, converted message by message in plain Python: files this old are read to be
moved elsewhere. Nothing writes these formats.

Source of the rules: org.apache.kafka.common.record.LegacyRecord and AbstractLegacyRecordBatch. LZ4 frames in format 0
have a wrong header checksum, which Kafka ignores there (KAFKA-3160).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, InvalidRecordError
from pyspark_kafkalog.record.codecs.codec import CompressionType, stored_codec
from pyspark_kafkalog.record.header import (
    COMPRESSION_MASK,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    Buffer,
    TimestampType,
    parse_header,
)
from pyspark_kafkalog.record.reference import MAX_DECODED, Record, encode_batch
from pyspark_kafkalog.units import INT64_MAX
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The smallest length of a message of format 0, and of format 1, after the length field.
_SMALLEST_LENGTHS: Final = (14, 22)
#: What is read of a message to know its place: everything before the key.
OLD_HEAD_BYTES: Final = LOG_OVERHEAD_BYTES + 18
#: Converting for one run of batches ends at the message that brings so many bytes.
_CONVERTED_BYTES: Final = 4 << 20

_CRC_BYTES: Final = 4
_OFFSET_AND_SIZE: Final = struct.Struct(">qi")
_CRC_TO_ATTRIBUTES: Final = struct.Struct(">Ibb")
_TIMESTAMP: Final = struct.Struct(">q")
_FIELD_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class OldMessage:
    """One message as stored; of a compressed one `value` holds others. Equal to a batch in Kafka's tools."""

    position: int
    size_bytes: int
    offset: int
    crc: int
    is_valid: bool
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None

    @property
    def compression_bits(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType | None:
        """None for a message of format 0, which has no timestamp."""
        if self.magic == 0:
            return None
        return TimestampType((self.attributes & TIMESTAMP_TYPE_MASK) >> 3)


def is_old(buffer: Buffer, at: int = 0) -> bool:
    """Whether the bytes at `buffer[at:]` have the magic of an older format, and a length that such a message can have.

    Zeros, which a crash leaves behind the last batch, are none.
    """
    if len(buffer) - at <= MAGIC_AT or int(buffer[at + MAGIC_AT]) > 1:
        return False
    length = int.from_bytes(bytes(buffer[at + LENGTH_AT : at + LOG_OVERHEAD_BYTES]), "big", signed=True)
    return length >= _SMALLEST_LENGTHS[int(buffer[at + MAGIC_AT])]


def old_size_bytes(head: Buffer, at: int = 0) -> int:
    """The size of the message whose first bytes are `head[at:]`, for which `is_old` holds."""
    length = bytes(head[at + LENGTH_AT : at + LOG_OVERHEAD_BYTES])
    return LOG_OVERHEAD_BYTES + int.from_bytes(length, "big", signed=True)


def parse_old_head(data: bytes, at: int, *, file_position: int) -> OldMessage:
    """The message at `data[at:]`, which holds it completely, without key and value; `file_position` is its position."""
    offset, length = _OFFSET_AND_SIZE.unpack_from(data, at)
    start = at + LOG_OVERHEAD_BYTES
    crc, magic, attributes = _CRC_TO_ATTRIBUTES.unpack_from(data, start)
    return OldMessage(
        position=file_position,
        size_bytes=LOG_OVERHEAD_BYTES + length,
        offset=offset,
        crc=crc,
        is_valid=zlib.crc32(memoryview(data)[start + _CRC_BYTES : start + length]) == crc,
        magic=magic,
        attributes=attributes,
        timestamp_ms=_TIMESTAMP.unpack_from(data, start + _CRC_TO_ATTRIBUTES.size)[0] if magic else NO_TIMESTAMP,
    )


def parse_old(data: bytes, at: int, *, file: str, file_position: int) -> OldMessage:
    """As `parse_old_head`, with key and value. The CRC is compared, not required.

    Raises CorruptRecordError for sizes that do not fit.
    """
    head = parse_old_head(data, at, file_position=file_position)
    end = at + head.size_bytes
    field_at = at + LOG_OVERHEAD_BYTES + _CRC_TO_ATTRIBUTES.size + (_TIMESTAMP.size if head.magic else 0)
    key, field_at = _field(data, field_at, end, "key", file, file_position)
    value, field_at = _field(data, field_at, end, "value", file, file_position)
    if field_at != end:
        raise _corrupt(file, file_position, "the end of the message after its value", f"{end - field_at} bytes more")
    return replace(head, key=key, value=value)


def inner_messages(message: OldMessage, *, file: str) -> Iterator[OldMessage]:
    """The messages in a compressed one, or itself, with the offsets and timestamps that consumers see.

    Positions are those of the compressed message. Raises CorruptRecordError.
    """
    if not message.compression_bits:
        yield message
        return
    found = list(_stored_inner(message, file))
    base_offset = 0
    if message.magic == 1 and message.offset:  # 0 is that of some versions of librdkafka
        base_offset = message.offset - found[-1].offset
        if base_offset < 0:
            raise _corrupt(
                file,
                message.position,
                f"an offset of {found[-1].offset} or above, the last in the message",
                str(message.offset),
            )
    has_append_time = message.timestamp_type is TimestampType.LOG_APPEND_TIME
    for each in found:
        timestamp_ms = message.timestamp_ms if each.magic == 1 and has_append_time else each.timestamp_ms
        yield replace(
            each,
            offset=base_offset + each.offset,
            attributes=each.attributes & ~TIMESTAMP_TYPE_MASK | (message.attributes & TIMESTAMP_TYPE_MASK),
            timestamp_ms=timestamp_ms,
        )


def _stored_inner(message: OldMessage, file: str) -> Iterator[OldMessage]:
    data = _decompressed(message, file)
    at = count = 0
    while len(data) - at >= LOG_OVERHEAD_BYTES:
        expected = "a message of format 0 or 1 in a compressed one"
        if not is_old(data, at):
            raise _corrupt(file, message.position, expected, f"other bytes, at byte {at} after decompression")
        size_bytes = old_size_bytes(data, at)
        if size_bytes > len(data) - at:
            break  # Kafka's clients take a last message that is not whole for the end
        each = parse_old(data, at, file=file, file_position=message.position)
        if each.compression_bits:
            raise _corrupt(file, message.position, "a message that is not compressed in a compressed one", "another")
        count += 1
        if count > MAX_DECODED:
            raise _corrupt(file, message.position, f"at most {MAX_DECODED} messages in a compressed one", "more")
        yield each
        at += size_bytes
    if not count:
        raise _corrupt(file, message.position, "a message in a compressed one", "none")


def _decompressed(message: OldMessage, file: str) -> bytes:
    position = message.position + LOG_OVERHEAD_BYTES
    codec = stored_codec(message.compression_bits, file=file, position=position + _CRC_BYTES + 1)
    if codec.compression_type is CompressionType.ZSTD or message.value is None:
        expected = "gzip, snappy or lz4, and a value"
        raise _corrupt(file, message.position, expected, f"{codec.name}{'' if message.value else ' without a value'}")
    value = message.value
    if codec.compression_type is CompressionType.LZ4 and message.magic == 0:
        from pyspark_kafkalog.record.codecs.lz4 import with_right_checksum

        value = with_right_checksum(value)
    return bytes(codec.decompress(value, file=file, file_position=position))


def to_batch(message: OldMessage, *, file: str) -> bytes:
    """The message, or those in it, as one uncompressed batch of the present format. Raises CorruptRecordError."""
    _check_crc(message, file)
    records: list[Record] = []
    for each in inner_messages(message, file=file):
        _check_crc(each, file)
        lowest = records[-1].offset + 1 if records else 0
        if not lowest <= each.offset <= max(message.offset, lowest):
            raise _corrupt(file, message.position, f"an offset of {lowest} to {message.offset}", str(each.offset))
        records.append(Record(offset=each.offset, timestamp_ms=each.timestamp_ms, key=each.key, value=each.value))
    has_append_time = message.timestamp_type is TimestampType.LOG_APPEND_TIME
    try:
        return encode_batch(
            records,
            timestamp_type=TimestampType.LOG_APPEND_TIME if has_append_time else TimestampType.CREATE_TIME,
            max_timestamp_ms=message.timestamp_ms if has_append_time else None,
        )
    except InvalidRecordError as error:
        raise _corrupt(file, message.position, "records that a batch can hold", str(error)) from error


def _check_crc(message: OldMessage, file: str) -> None:
    if not message.is_valid:
        raise _corrupt(file, message.position, "a message with its CRC-32", f"another than {message.crc}")


@dataclass(frozen=True, slots=True)
class OldRun:
    """Converted messages. `batches` are those in `data`, with its positions; `stored` has theirs in the file.

    `consumed_bytes` of the file were converted. `fault` is the error of the message behind them; None at a message that
    is not whole, at a batch of the present format, and where enough is converted. All have timestamps, or none has
    (format 0): batches cannot say that records have no type of a timestamp.
    """

    data: NDArray[np.uint8]
    batches: NDArray[np.void]
    stored: NDArray[np.void]
    consumed_bytes: int
    fault: DiskFormatError | None
    has_timestamps: bool


def convert_run(view: NDArray[np.uint8], *, file: str, file_position: int) -> OldRun:
    """Convert the messages of older formats that `view` begins with; it is at byte `file_position` of `file`.

    In `batches` positions count from `file_position`, as if the converted bytes were there.
    """
    data = view.tobytes()
    rows: list[tuple[int, int, bytes]] = []
    at = converted = 0
    fault: DiskFormatError | None = None
    previous = -1
    magic = data[MAGIC_AT]
    while converted < _CONVERTED_BYTES and is_old(data, at) and at + old_size_bytes(data, at) <= len(data):
        if data[at + MAGIC_AT] != magic:
            break
        try:
            message = parse_old(data, at, file=file, file_position=file_position + at)
            batch = to_batch(message, file=file)
            first = int.from_bytes(batch[:8], "big")
            if first <= previous or message.offset >= INT64_MAX:
                raise _corrupt(file, message.position, f"an offset above {previous}", str(first))
        except DiskFormatError as error:
            fault = error
            break
        previous = max(message.offset, first)
        rows.append((file_position + at, message.size_bytes, batch))
        converted += len(batch)
        at += message.size_bytes
    return OldRun(*_tables(rows, file, file_position), at, fault, magic > 0)


def _tables(
    rows: list[tuple[int, int, bytes]], file: str, file_position: int
) -> tuple[NDArray[np.uint8], NDArray[np.void], NDArray[np.void]]:
    import numpy as np

    from pyspark_kafkalog.record.columns import BATCH_DTYPE  # as numpy, few logs have such messages

    batches = np.zeros(len(rows), dtype=BATCH_DTYPE)
    stored = np.zeros(len(rows), dtype=BATCH_DTYPE)
    at = file_position
    for row, (position, size_bytes, batch) in enumerate(rows):
        header = parse_header(batch, 0, file=file, file_position=position)
        for name in BATCH_DTYPE.names or ():
            if name != "position":
                batches[name][row] = getattr(header, name)
        stored[row] = batches[row]
        batches["position"][row] = at
        stored["position"][row], stored["size_bytes"][row] = position, size_bytes
        at += len(batch)
    return np.frombuffer(b"".join(batch for *_, batch in rows), np.uint8), batches, stored


def _field(data: bytes, at: int, end: int, what: str, file: str, file_position: int) -> tuple[bytes | None, int]:
    if at + _FIELD_SIZE.size > end:
        raise _corrupt(file, file_position, f"the size of a {what}", "the end of the message")
    (size,) = _FIELD_SIZE.unpack_from(data, at)
    at += _FIELD_SIZE.size
    if size == -1:
        return None, at
    if not 0 <= size <= end - at:
        raise _corrupt(file, file_position, f"a {what} size of -1 to {end - at}", str(size))
    return data[at : at + size], at + size


def _corrupt(file: str, position: int, expected: str, found: str) -> CorruptRecordError:
    return CorruptRecordError(file=file, position=position, expected=expected, found=found)
