"""The codecs of record batches: everything after a batch's header is compressed as one piece.

`CODECS` is the only list of codecs: names in settings, options and tools, levels, and the bits of a batch's attributes
come from it. A codec's format is in the module of this package with its name, which has

    compress(data, level) -> bytes                    as Kafka's Java clients do
    decompress(data, limit_bytes) -> uint8 array      raises BadCompressedDataError

The size of the output is bounded before it is allocated: a batch that would decompress to more than
`decompressed_limit_bytes` is corrupt, and so is one whose stored lengths do not match its bytes. Where a broker
decompresses (produce requests, compaction, offsets by time), max.decompressed.message.bytes also limits each record.
Source of the rules: org.apache.kafka.common.record.CompressionType, org.apache.kafka.common.compress, and
org.apache.kafka.common.record.internal.DefaultRecord.readFrom of Kafka 4.4.

A codec's module and its library load on first use, and numpy with them: processes that only plan read uncompressed
metadata, and the options of Spark and of the tools need only names.
"""

from __future__ import annotations

import functools
import importlib
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidRecordError,
    KafkalogError,
    LogDirError,
    UnsupportedFormatError,
)
from pyspark_kafkalog.units import MIB
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyspark_kafkalog.record.header import Buffer

#: Most bytes of the length before a record.
_LENGTH_BYTES_MAX: Final = 5


class CompressionType(IntEnum):
    """Codec bits of a batch's attributes (org.apache.kafka.common.record.CompressionType)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@dataclass(frozen=True, slots=True)
class Levels:
    """The compression levels of a codec: `minimum` to `maximum`, and `default`, which may be outside of them."""

    minimum: int
    maximum: int
    default: int


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec; `levels` is None if it has no levels."""

    compression_type: CompressionType
    levels: Levels | None = None

    @property
    def name(self) -> str:
        """The name in the settings of producers and in tools' output."""
        return self.compression_type.name.lower()

    @property
    def topic_name(self) -> str:
        """The name in a topic's compression.type."""
        return "uncompressed" if self.compression_type is CompressionType.NONE else self.name

    def compress(self, data: Buffer, level: int | None = None) -> bytes:
        """Compress `data` as Kafka's Java clients do; `level` None means the default. Ignored without levels."""
        if self.compression_type is CompressionType.NONE:
            return bytes(data)
        if self.levels is not None and level is None:
            level = self.levels.default
        compressed: bytes = _implementation(self.compression_type).compress(_as_array(data), level)
        return compressed

    def decompress(
        self, data: Buffer, *, file: str, file_position: int, max_bytes: int | None = None
    ) -> NDArray[np.uint8]:
        """Decompress `data`; returns a uint8 array, for codec none a view of `data`.

        `data` starts at byte `file_position` of `file`. Raises CorruptRecordError if it is not of this codec, is
        truncated, has trailing bytes, or decompresses to more than `decompressed_limit_bytes(len(data))`, or than
        `max_bytes`.
        """
        array = _as_array(data)
        if self.compression_type is CompressionType.NONE:
            return array
        try:
            limit_bytes = decompressed_limit_bytes(array.size)
            if max_bytes is not None:
                limit_bytes = min(limit_bytes, max_bytes)
            content: NDArray[np.uint8] = _implementation(self.compression_type).decompress(array, limit_bytes)
        except BadCompressedDataError as error:
            raise CorruptRecordError(
                file=file, position=file_position + error.at, expected=error.expected, found=error.found
            ) from error
        except MemoryError:
            raise LogDirError(
                f"{file} at byte {file_position}: this process lacks memory for {array.size} compressed bytes, "
                f"which become up to {limit_bytes}: give it more"
            ) from None
        return content

    def decompress_records(
        self, data: Buffer, count: int, *, record_max_bytes: int, file: str, file_position: int
    ) -> NDArray[np.uint8]:
        """As `decompress`, for `count` records of at most `record_max_bytes`: ends where such records would end.

        Raises InvalidRecordError for more bytes. The caller checks the size of each record by `check_record_size`.
        """
        max_bytes = records_max_bytes(count, record_max_bytes)
        if max_bytes >= decompressed_limit_bytes(len(data)):
            return self.decompress(data, file=file, file_position=file_position)
        try:
            return self.decompress(data, file=file, file_position=file_position, max_bytes=max_bytes)
        except CorruptRecordError as error:
            raise InvalidRecordError(
                f"a batch of {count} records does not decompress to the at most {max_bytes} bytes that "
                f"{_RECORD_LIMIT}={record_max_bytes} allows: expected {error.expected}, found {error.found}"
            ) from error


#: All codecs by their bits.
CODECS: Final = MappingProxyType(
    {
        codec.compression_type: codec
        for codec in (
            Codec(CompressionType.NONE),
            Codec(CompressionType.GZIP, Levels(1, 9, default=-1)),
            Codec(CompressionType.SNAPPY),
            Codec(CompressionType.LZ4, Levels(1, 17, default=9)),
            Codec(CompressionType.ZSTD, Levels(-131072, 22, default=3)),
        )
    }
)
#: Names of producers' compression.type.
CODEC_NAMES: Final = tuple(codec.name for codec in CODECS.values())
#: Names of topics' compression.type, without `producer`, in Kafka's order.
TOPIC_CODEC_NAMES: Final = ("uncompressed", *reversed(CODEC_NAMES[1:]))
_BY_NAME: Final = MappingProxyType({name: each for each in CODECS.values() for name in (each.name, each.topic_name)})


def codec_named(name: str) -> Codec:
    """The codec with this name of a producer's or a topic's compression.type. Raises KeyError for another name."""
    return _BY_NAME[name]


def stored_codec(bits: int, *, file: str, position: int) -> Codec:
    """The codec with these bits (0 to 7), read from the attributes at byte `position` of `file`.

    Raises UnsupportedFormatError for bits that Kafka has not assigned.
    """
    if bits not in CODECS:
        raise UnsupportedFormatError(
            file=file,
            position=position,
            expected=f"codec bits 0 to {len(CODECS) - 1} ({', '.join(CODEC_NAMES)})",
            found=str(bits),
            advice="check that the file was written by Kafka; no codec of Kafka 4.1 has this number",
        )
    return CODECS[CompressionType(bits)]


class BadCompressedDataError(KafkalogError, ValueError):
    """Compressed bytes break their format or the size limit; `at` is the position in them.

    Raised by the modules of the codecs, which know no file; `Codec.decompress` adds the file.
    """

    def __init__(self, *, at: int, expected: str, found: str) -> None:
        self.at = at
        self.expected = expected
        self.found = found
        super().__init__(f"at byte {at}: expected {expected}, found {found}")

    @classmethod
    def over_limit(cls, at: int, limit_bytes: int) -> BadCompressedDataError:
        """The error for content longer than a batch of this size may hold."""
        return cls(at=at, expected=f"at most {limit_bytes} bytes after decompression", found="more")


#: The configuration of the topic that limits the records of compressed batches.
_RECORD_LIMIT: Final = "max.decompressed.message.bytes"


def check_record_size(size_bytes: int, record_max_bytes: int) -> None:
    """Raise InvalidRecordError for a record of a compressed batch that is larger than the topic allows.

    As in Kafka, the size is that of the record without the field of its length.
    """
    if size_bytes > record_max_bytes:
        raise InvalidRecordError(
            f"a record of {size_bytes} bytes after decompression is larger than {_RECORD_LIMIT}={record_max_bytes}"
        )


def records_max_bytes(count: int, record_max_bytes: int) -> int:
    """Most bytes of `count` records of at most `record_max_bytes`, with their lengths."""
    return max(count, 1) * (record_max_bytes + _LENGTH_BYTES_MAX)


def decompressed_limit_bytes(compressed_bytes: int) -> int:
    """The maximum decompressed size of `compressed_bytes` of a batch."""
    return min(max(1000 * compressed_bytes, 32 * MIB), 256 * MIB)


@functools.cache
def _implementation(compression_type: CompressionType) -> Any:
    return importlib.import_module(f"{__package__}.{CODECS[compression_type].name}")


def _as_array(data: Buffer) -> NDArray[np.uint8]:
    import numpy as np

    return data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
