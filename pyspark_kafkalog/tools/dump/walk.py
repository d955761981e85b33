"""Iterates over the batches of a log file and the records of a batch as kafka-dump-log does.

The dump shows damaged files, so it is more tolerant than the readers of `record/`: it does not stop at a wrong CRC, an
unknown codec or a magic above 2, and it yields the records before a damaged one. Where Kafka's tool ends with an
exception, this module raises DumpError, after everything that Kafka would have printed. Integers wrap as in Java.

Layout: record batches, one after another (see record/header.py); a crash leaves a torn batch, zeros or garbage at the
end. A record:

    length varint, attributes int8, timestampDelta varlong, offsetDelta varint,
    keyLength varint (-1: null), key, valueLength varint (-1: null), value,
    headerCount varint, then for each: keyLength varint, key, valueLength varint (-1: null), value

Messages of the older formats 0 and 1 (record/old_formats.py) take the place of batches.

Logs that are not in files of their own, objects by URL and batches by partition and offset, are copied to a scratch
file without a name, in the system's directory for such files, which needs room for one segment. Nothing else is
written; the file is gone when the command ends, however it ends. An object is shown as it is stored. Compressed and
encrypted segments of brokers can only be shown by offset, since then they are read as any reader does; so can batches
that are not merged yet, with the offsets that the log gives them.

Source of the rules: FileLogInputStream, FileRecords.slice, DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError, OffsetOutOfRangeError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import is_object_url
from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.record.codecs.codec import CompressionType, stored_codec
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    LOG_OVERHEAD_BYTES,
    MAGIC_AT,
    MAGIC_V2,
    NO_SEQUENCE,
    RECORD_BATCH_OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    TimestampType,
    crc32c,
)
from pyspark_kafkalog.record.old_formats import OldMessage, inner_messages, parse_old, parse_old_head
from pyspark_kafkalog.record.reference import MAX_DECODED, read_varint, read_varlong
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.reader import Extent, LocalFile
from pyspark_kafkalog.tools.dump.java_text import wrap_int32, wrap_int64
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX, MIB

Headers = tuple[tuple[bytes, bytes | None], ...]


class DumpRecord(NamedTuple):
    """One record as stored: offset and timestamp made absolute, header keys and values as bytes.

    `old` is the message of an older format that it is.
    """

    offset: int
    timestamp_ms: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    old: OldMessage | None = None


def increment_sequence(sequence: int, by: int) -> int:
    """DefaultRecordBatch.incrementSequence with Java's wrapping, also for invalid numbers."""
    if sequence > wrap_int32(INT32_MAX - by):
        return wrap_int32(by - wrap_int32(INT32_MAX - sequence) - 1)
    return wrap_int32(sequence + by)


def decrement_sequence(sequence: int, by: int) -> int:
    """DefaultRecordBatch.decrementSequence with Java's wrapping."""
    if sequence < by:
        return wrap_int32(INT32_MAX - wrap_int32(by - sequence) + 1)
    return wrap_int32(sequence - by)


def walk_records(data: bytes, header: BatchHeader) -> Iterator[DumpRecord]:
    """The records in the uncompressed bytes `data` after `header`. Raises ValueError or IndexError at any damage."""
    append_time = header.max_timestamp_ms if header.timestamp_type == TimestampType.LOG_APPEND_TIME else None
    base_offset, base_timestamp_ms, base_sequence = header.base_offset, header.base_timestamp_ms, header.base_sequence
    end = len(data)
    at = 0
    for left in range(header.records_count - 1, -1, -1):
        size, at = read_varint(data, at, end)
        stop = at + size
        if end < stop:
            raise ValueError(f"expected {size} bytes in record payload, but only {end - at} remain")
        delta, at = read_varlong(data, at + 1, end)
        timestamp_ms = base_timestamp_ms + delta if append_time is None else append_time
        delta, at = read_varint(data, at, end)
        offset = base_offset + delta
        sequence = NO_SEQUENCE if base_sequence < 0 else increment_sequence(base_sequence, delta)
        key, at = _bytes(data, at, end)
        value, at = _bytes(data, at, end)
        headers: Headers = ()
        if data[at]:
            headers, at = _headers(data, at, end)
        else:
            at += 1
        if at != stop:
            raise ValueError(f"expected to read {size} bytes in record payload, but instead read {size + at - stop}")
        if not left and at != end:
            raise ValueError("Incorrect declared batch size, records still remaining in file")
        if not (-INT64_MAX <= offset <= INT64_MAX and -INT64_MAX <= timestamp_ms <= INT64_MAX):
            offset, timestamp_ms = wrap_int64(offset), wrap_int64(timestamp_ms)
        yield DumpRecord(offset, timestamp_ms, sequence, key, value, headers)


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size = data[at]
    if size < 0x80:  # most lengths take one byte
        size = (size >> 1) ^ -(size & 1)
        at += 1
    else:
        size, at = read_varint(data, at, end)
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise ValueError(f"a field of {size} bytes reaches past the end of its batch")
    return data[at:stop], stop


def _headers(data: bytes, at: int, end: int) -> tuple[Headers, int]:
    count, at = read_varint(data, at, end)
    if count < 0:
        raise ValueError(f"Found invalid number of record headers {count}")
    if count > end - at:
        raise ValueError(f"Found invalid number of record headers. {count} is larger than the remaining size")
    if count > MAX_DECODED:  # as Kafka's tool, which runs out of memory
        raise ValueError(f"Found {count} record headers: at most {MAX_DECODED} of one record are printed")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        key, at = _bytes(data, at, end)
        if key is None:
            raise ValueError("Invalid negative header key size")
        value, at = _bytes(data, at, end)
        headers.append((key, value))
    return tuple(headers), at


_PREFIX: Final = struct.Struct(">qiib")  # up to and including magic: Kafka reads it to find the next batch
_SMALLEST_LENGTH: Final = 14  # of a magic 0 record: Kafka checks the length of any magic against this
_READ_AHEAD_BYTES: Final = 1 << 20
_RECORDS_HELD: Final = 1 << 16


class DumpError(KafkalogError):
    """The dump cannot continue; the message is the one line for stderr."""


def open_to_dump(path: str) -> int:
    """A file descriptor to read `path`, or a copy of the object that it is the URL of. Raises DumpError.

    A FIFO at that path does not block.
    """
    if is_object_url(path):
        try:
            return object_copy(path)
        except (KafkalogError, OSError) as error:
            raise DumpError(str(error)) from error
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}") from error


class DumpedBatch:
    """One batch of a log file: its header, and on demand its CRC and its records.

    `old` is the message of an older format that is here in place of a batch; the header then has its fields.
    """

    __slots__ = ("_log", "header", "old", "position", "size_bytes")

    def __init__(
        self, log: LogFile, position: int, size_bytes: int, header: BatchHeader, old: OldMessage | None = None
    ) -> None:
        self.old = old
        self._log = log
        self.position = position
        self.size_bytes = size_bytes
        self.header = header

    @property
    def file(self) -> str:
        return self._log.path

    @property
    def last_offset(self) -> int:
        return wrap_int64(self.header.base_offset + self.header.last_offset_delta)

    @property
    def last_sequence(self) -> int:
        if self.header.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.header.base_sequence, self.header.last_offset_delta)

    def is_valid(self) -> bool:
        """Whether the batch is long enough for its header and its CRC is correct."""
        if self.old is not None:
            return self.old.is_valid
        return self.size_bytes >= RECORD_BATCH_OVERHEAD_BYTES and self.header.crc == self._log.crc_of(self)

    def records(self) -> Iterator[DumpRecord]:
        """The records. Raises DumpError at the first damaged one; a compressed batch yields all records or none.

        A compressed batch of more than 65,536 records is not looked at before: those in front of the damaged record are
        yielded. A few KiB may hold millions of records, and a dump of them would show nothing for a long time.
        """
        header = self.header
        if self.old is not None:
            return self._old_records()
        if self.size_bytes < RECORD_BATCH_OVERHEAD_BYTES:
            raise self.damaged(f"a batch of {self.size_bytes} bytes is too short for its header")
        if header.records_count == 0:
            return iter(())
        if header.records_count < 0:
            raise self.damaged(f"Found invalid record count {header.records_count} in magic v{header.magic} batch")
        stored_bytes = self.size_bytes - RECORD_BATCH_OVERHEAD_BYTES
        stored = self._log.read(self.position + RECORD_BATCH_OVERHEAD_BYTES, stored_bytes)
        if header.compression_bits == CompressionType.NONE:
            return self._walk(stored)
        return self._walk_checked(self._decompress(stored))

    def _old_records(self) -> Iterator[DumpRecord]:
        data = self._log.read(self.position, self.size_bytes)
        try:
            message = parse_old(data, 0, file=self._log.path, file_position=self.position)
            found = list(inner_messages(message, file=self._log.path))
        except KafkalogError as error:
            raise DumpError(str(error)) from error
        return iter(
            [DumpRecord(each.offset, each.timestamp_ms, NO_SEQUENCE, each.key, each.value, (), each) for each in found]
        )

    def _walk_checked(self, data: bytes) -> Iterator[DumpRecord]:
        walk = self._walk(data)
        if self.header.records_count > _RECORDS_HELD:
            return walk
        return iter(list(walk))

    def _decompress(self, stored: bytes) -> bytes:
        at = self.position + RECORD_BATCH_OVERHEAD_BYTES
        try:
            codec = stored_codec(
                self.header.compression_bits, file=self._log.path, position=self.position + ATTRIBUTES_AT
            )
            return bytes(codec.decompress(stored, file=self._log.path, file_position=at))
        except KafkalogError as error:
            raise DumpError(str(error)) from error

    def _walk(self, data: bytes) -> Iterator[DumpRecord]:
        try:
            yield from walk_records(data, self.header)
        except IndexError as error:
            raise self.damaged("a record reaches past the end of its batch") from error
        except ValueError as error:
            raise self.damaged(str(error)) from error

    def damaged(self, what: str) -> DumpError:
        return DumpError(f"{self._log.path} at byte {self.position}: {what}")


class LogFile:
    """A log or checkpoint file opened for a dump. The largest batch whose records are read bounds the memory.

    `fd`: where its bytes are, if not in the file `path`; is closed with it.
    """

    def __init__(self, path: str, fd: int | None = None) -> None:
        self.path = path
        self._fd = open_to_dump(path) if fd is None else fd
        self.size_bytes = os.fstat(self._fd).st_size
        self._ahead = b""
        self._ahead_position = 0
        if self.size_bytes > INT32_MAX:
            self.close()
            raise DumpError(
                f"The size of segment {path} ({self.size_bytes}) is larger than the maximum allowed segment size of "
                f"{INT32_MAX}"
            )

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def slice_end(self, position: int, size_bytes: int) -> int:
        """The end of the slice of at most `size_bytes` from `position` on, as in FileRecords.slice."""
        if position < 0:
            raise DumpError(f"Invalid position: {position} in read from {self.path}")
        if position > self.size_bytes:
            raise DumpError(f"Slice from position {position} exceeds end position {self.size_bytes} of {self.path}")
        if size_bytes < 0:
            raise DumpError(f"Invalid size: {size_bytes} in read from {self.path}")
        return min(position + size_bytes, self.size_bytes)

    def batches(self, position: int, end: int) -> Iterator[DumpedBatch]:
        """The batches that are completely within bytes [position, end)."""
        while position < end - _PREFIX.size:
            batch = self.batch_at(position, end)
            if batch is None:
                return
            yield batch
            position += batch.size_bytes

    def batch_at(self, position: int, end: int) -> DumpedBatch | None:
        """The batch at `position`, or None if it ends after `end`. Raises DumpError for an invalid length."""
        if position >= end - _PREFIX.size:
            return None
        _, length, _, magic = _PREFIX.unpack(self.read(position, _PREFIX.size))
        if length < _SMALLEST_LENGTH:
            raise DumpError(
                f"{self.path} at byte {position}: Found record size {length} smaller than minimum record overhead "
                f"({_SMALLEST_LENGTH})"
            )
        if position > end - LOG_OVERHEAD_BYTES - length:
            return None
        if magic in (0, 1):
            return self._old_at(position, length + LOG_OVERHEAD_BYTES)
        if magic < MAGIC_V2:
            raise DumpError(_negative_magic(self.path, position, magic))
        header = BatchHeader.unpack(self.read(position, RECORD_BATCH_OVERHEAD_BYTES))
        return DumpedBatch(self, position, length + LOG_OVERHEAD_BYTES, header)

    def _old_at(self, position: int, size_bytes: int) -> DumpedBatch:
        """The message of an older format at `position`, which the file holds completely."""
        old = parse_old_head(self.read(position, size_bytes), 0, file_position=position)
        header = BatchHeader(
            base_offset=old.offset,
            size_bytes=size_bytes,
            magic=old.magic,
            crc=old.crc,
            attributes=old.attributes,
            base_timestamp_ms=old.timestamp_ms,
            max_timestamp_ms=old.timestamp_ms,
            records_count=1,
        )
        return DumpedBatch(self, position, size_bytes, header, old)

    def read(self, position: int, length: int) -> bytes:
        """Exactly these bytes; small reads come from a block read ahead."""
        at = position - self._ahead_position
        if at < 0 or at + length > len(self._ahead):
            if length >= _READ_AHEAD_BYTES:
                return self._pread(position, length)
            self._ahead = self._pread(position, min(_READ_AHEAD_BYTES, max(self.size_bytes - position, length)))
            self._ahead_position = position
            at = 0
        return self._ahead[at : at + length]

    def _pread(self, position: int, length: int) -> bytes:
        try:
            data = os.pread(self._fd, length, position)  # bounded: a batch within the file
            while len(data) < length:
                more = os.pread(self._fd, length - len(data), position + len(data))  # bounded: a batch within the file
                if not more:
                    raise DumpError(f"{self.path} at byte {position}: unexpected end of file, expected {length} bytes")
                data += more
        except OSError as error:
            raise DumpError(f"{self.path}: {error.strerror}") from error
        return data

    def crc_of(self, batch: DumpedBatch) -> int:
        """CRC-32C from `attributes` to the end of the batch."""
        return crc32c(self.read(batch.position + ATTRIBUTES_AT, batch.size_bytes - ATTRIBUTES_AT))


def _negative_magic(path: str, position: int, magic: int) -> str:
    return str(
        CorruptRecordError(file=path, position=position + MAGIC_AT, expected="magic 0 or more", found=f"magic {magic}")
    )


# Logs that are not in files of their own


_COPIED_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Batches from `base_offset` on: of the file `name`, or copied from there to the open file `fd`."""

    name: str
    base_offset: int
    fd: int | None


def object_copy(url: str) -> int:
    """A file descriptor to read a copy of the object. Raises KafkalogError, OSError; OSError if it is too large."""
    folder, _, key = url.rpartition("/")
    store = StoreAddress.parse(folder, {}).open()
    size_bytes = store.head(key).size_bytes
    if size_bytes > INT32_MAX:
        raise OSError(f"{url}: expected at most {INT32_MAX} bytes, found {size_bytes}")
    return _copy(url, size_bytes, lambda start, count: store.get_range(key, ByteRange(start, count)))


def log_at(log_dir: LogDir, topic_partition: TopicPartition, offset: int, *, max_bytes: int) -> StoredLog:
    """The segment with `offset`, or the group of runs; what is not a file is copied up to `max_bytes`.

    Raises UnknownTopicError, OffsetOutOfRangeError, DiskFormatError, ObjectStoreError, OSError.
    """
    from pyspark_kafkalog.storage.log.extent_search import search_from  # loads compiled code

    partition = log_dir.partition(topic_partition.topic, topic_partition.partition)
    start_offset, end_offset = partition.readable_start_offset, partition.high_watermark
    if not start_offset <= offset < end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {topic_partition} cannot be shown: expected one in [{start_offset}, {end_offset})"
        )
    extents = log_dir.reader(topic_partition.topic, topic_partition.partition).extents
    found = search_from(
        extents,
        offset,
        end_offset,
        lambda extent: _stored(extent, max_bytes),
        partition=topic_partition,
        high_watermark=end_offset,
    )
    assert found is not None, "an extent with the offset is stored somewhere"
    return found


def _stored(extent: Extent, max_bytes: int) -> StoredLog:
    """Raises FileNotFoundError if the extent is gone."""
    with contextlib.closing(extent.open()) as source:
        if isinstance(source, LocalFile):
            return StoredLog(source.name, extent.base_offset, None)
        size_bytes = min(source.size_bytes(), max(max_bytes, 0))
        return StoredLog(source.name, extent.base_offset, _copy(source.name, size_bytes, source.read))


def _copy(name: str, size_bytes: int, read: Callable[[int, int], Buffer]) -> int:
    """A file descriptor of a scratch file with the bytes that `read` returns for positions and sizes."""
    with tempfile.TemporaryFile(prefix="kafkalog-dump-") as file:
        position = 0
        while position < size_bytes:
            data = memoryview(read(position, min(_COPIED_BYTES, size_bytes - position)))
            if not len(data):
                raise ShortSourceError(f"{name} at byte {position}: expected {size_bytes} bytes, found no more")
            file.write(data)
            position += len(data)
        file.flush()
        return os.dup(file.fileno())


class ShortSourceError(KafkalogError):
    """An object ended before its size."""
