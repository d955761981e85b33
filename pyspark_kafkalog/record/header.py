"""The 61-byte header of a record batch, format v2 (magic 2), and the checksum in it.

    0   baseOffset            int64   rewritten by the log when it assigns offsets; outside the CRC
    8   batchLength           int32   bytes after this field
    12  partitionLeaderEpoch  int32   rewritten by the log; outside the CRC
    16  magic                 int8    2
    17  crc                   uint32  CRC-32C of everything from `attributes` to the end of the batch
    21  attributes            int16   bits below
    23  lastOffsetDelta       int32
    27  baseTimestamp         int64   ms; the delete horizon when bit 6 is set
    35  maxTimestamp          int64   ms
    43  producerId            int64   -1: none
    51  producerEpoch         int16
    53  baseSequence          int32
    57  recordsCount          int32
    61  records, compressed as a whole if the codec bits are set

All big-endian. A crash may leave a torn batch at the end of a file: its length extends past the end, or its CRC is
wrong. Source of the rules: org.apache.kafka.common.record.DefaultRecordBatch.

CRC-32C (Castagnoli) is also the checksum of producer snapshots. google-crc32c's C extension computes it; if the wheel
lacks that (its pure Python version is slow), crcmod's does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from mmap import mmap
from typing import Any, Final

import google_crc32c

from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX
from pyspark_kafkalog.values import quick_dataclass

Buffer = Any  # bytes, bytearray, memoryview, mmap or a uint8 array: anything that struct.unpack_from accepts

BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = BASE_OFFSET_AT + 8
LEADER_EPOCH_AT: Final = LENGTH_AT + 4
MAGIC_AT: Final = LEADER_EPOCH_AT + 4
CRC_AT: Final = MAGIC_AT + 1
ATTRIBUTES_AT: Final = CRC_AT + 4
LAST_OFFSET_DELTA_AT: Final = ATTRIBUTES_AT + 2
BASE_TIMESTAMP_AT: Final = LAST_OFFSET_DELTA_AT + 4
MAX_TIMESTAMP_AT: Final = BASE_TIMESTAMP_AT + 8
PRODUCER_ID_AT: Final = MAX_TIMESTAMP_AT + 8
PRODUCER_EPOCH_AT: Final = PRODUCER_ID_AT + 8
BASE_SEQUENCE_AT: Final = PRODUCER_EPOCH_AT + 2
RECORDS_COUNT_AT: Final = BASE_SEQUENCE_AT + 4
RECORDS_AT: Final = RECORDS_COUNT_AT + 4

LOG_OVERHEAD_BYTES: Final = LEADER_EPOCH_AT  # baseOffset and batchLength, which the length does not include
RECORD_BATCH_OVERHEAD_BYTES: Final = RECORDS_AT
MAGIC_V2: Final = 2
_MAX_OFFSET: Final = INT64_MAX - 1  # the offset after it must fit int64, too
_SMALLEST_LEGACY_LENGTH: Final = 14  # a magic 0 message without key and value

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

#: The copy of a commit or of a small snapshot costs less than loading numpy.
_COPIED_BYTES_MAX: Final = 1 << 20

_HEADER = struct.Struct(">qiibIhiqqqhii")
assert _HEADER.size == RECORD_BATCH_OVERHEAD_BYTES


class TimestampType(IntEnum):
    """The clock of a batch's timestamps; Spark's `timestampType` column has the same numbers."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def next_sequence(sequence: int, by: int) -> int:
    """The sequence number `by` after `sequence`, wrapping from 2^31-1 to 0 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + by) & INT32_MAX


@quick_dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """All fields of one batch header; `size_bytes` is batchLength + 12. Timestamps are in ms."""

    base_offset: int
    size_bytes: int
    leader_epoch: int = -1
    magic: int = MAGIC_V2
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    records_count: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return next_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression_bits(self) -> int:
        """The codec number as stored, 0 to 7; 5 to 7 are not assigned to a codec."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & TIMESTAMP_TYPE_MASK) >> 3)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The delete horizon (KIP-534), stored in place of the base timestamp, or None."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_MASK else None

    @classmethod
    def unpack(cls, buffer: Buffer, at: int = 0) -> BatchHeader:
        """The header in the 61 bytes at `buffer[at:]`, without any check; `parse_header` checks it."""
        fields = _HEADER.unpack_from(buffer, at)
        return cls(
            base_offset=fields[0],
            size_bytes=fields[1] + LOG_OVERHEAD_BYTES,
            leader_epoch=fields[2],
            magic=fields[3],
            crc=fields[4],
            attributes=fields[5],
            last_offset_delta=fields[6],
            base_timestamp_ms=fields[7],
            max_timestamp_ms=fields[8],
            producer_id=fields[9],
            producer_epoch=fields[10],
            base_sequence=fields[11],
            records_count=fields[12],
        )

    def pack(self) -> bytes:
        """The header's 61 bytes."""
        return _HEADER.pack(
            self.base_offset,
            self.size_bytes - LOG_OVERHEAD_BYTES,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.records_count,
        )


def parse_header(buffer: Buffer, at: int, *, file: str, file_position: int) -> BatchHeader:
    """Read and check the header at `buffer[at:]`; the batch starts at byte `file_position` of `file`.

    Makes the checks that need only the header: it has 61 bytes, the length can hold a header, magic is 2, offsets and
    record count are not negative, offsets are within int64. The caller checks whether the whole batch fits its file.

    Raises CorruptRecordError, or UnsupportedFormatError for magic 0 and 1.
    """
    available = len(buffer) - at
    if available < RECORD_BATCH_OVERHEAD_BYTES:
        _check_short_header(buffer, at, file=file, file_position=file_position)
        raise CorruptRecordError(
            file=file,
            position=file_position,
            expected=f"a batch header of {RECORD_BATCH_OVERHEAD_BYTES} bytes",
            found=f"{available} bytes",
        )
    header = BatchHeader.unpack(buffer, at)
    batch_length = header.size_bytes - LOG_OVERHEAD_BYTES
    check_length_and_magic(batch_length, header.magic, file=file, file_position=file_position)
    if header.last_offset_delta < 0 or header.base_offset < 0 or header.last_offset > _MAX_OFFSET:
        raise CorruptRecordError(
            file=file,
            position=file_position,
            expected=f"a base offset and a last offset delta of 0 or more, at most {_MAX_OFFSET} together",
            found=f"{header.base_offset} and {header.last_offset_delta}",
        )
    if header.records_count < 0:
        raise CorruptRecordError(
            file=file,
            position=file_position + RECORDS_COUNT_AT,
            expected="a record count of 0 or more",
            found=str(header.records_count),
        )
    return header


def check_length_and_magic(batch_length: int, magic: int, *, file: str, file_position: int) -> None:
    """Raise unless magic is 2 and the length holds a v2 header. Magic is checked first, as old formats are shorter.

    A length too short for any format is corrupt whatever the magic: zero bytes after the last batch are not an old
    format.
    """
    if magic in (0, 1) and batch_length >= _SMALLEST_LEGACY_LENGTH:
        raise UnsupportedFormatError(
            file=file, position=file_position + MAGIC_AT, expected="record format v2 (magic 2)", found=f"magic {magic}"
        )
    smallest = RECORD_BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES
    if batch_length < smallest:
        raise CorruptRecordError(
            file=file,
            position=file_position + LENGTH_AT,
            expected=f"a batch length of at least {smallest}",
            found=str(batch_length),
        )
    if magic != MAGIC_V2:
        raise CorruptRecordError(
            file=file, position=file_position + MAGIC_AT, expected="magic 2", found=f"magic {magic}"
        )


def _check_short_header(buffer: Buffer, at: int, *, file: str, file_position: int) -> None:
    """Raise the specific error for a truncated header if its first 17 bytes show one."""
    if len(buffer) - at > MAGIC_AT:
        batch_length = struct.unpack_from(">i", buffer, at + LENGTH_AT)[0]
        magic = struct.unpack_from(">b", buffer, at + MAGIC_AT)[0]
        check_length_and_magic(batch_length, magic, file=file, file_position=file_position)


def _pick_implementation(google_implementation: str) -> Callable[[Any], int]:
    """google-crc32c's function if it is compiled, else crcmod's."""
    if google_implementation == "c":
        return google_crc32c.value  # type: ignore[no-any-return]
    import crcmod.predefined

    return crcmod.predefined.mkPredefinedCrcFun("crc-32c")  # type: ignore[no-any-return]


_checksum = _pick_implementation(google_crc32c.implementation)


def crc32c(buffer: Buffer) -> int:
    """CRC-32C of the whole buffer (bytes, bytearray, memoryview, mmap or a contiguous uint8 array), 0 to 2^32-1."""
    if isinstance(buffer, (memoryview, bytearray, mmap)):  # the C extension rejects these
        if len(buffer) <= _COPIED_BYTES_MAX:
            return _checksum(bytes(buffer))
        import numpy as np

        buffer = np.frombuffer(buffer, dtype=np.uint8)
    return _checksum(buffer)
