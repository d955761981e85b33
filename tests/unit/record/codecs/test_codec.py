"""Each codec: Kafka's framing, malformed input refused, and bounded output."""

from __future__ import annotations

import gzip
import os
import tracemalloc

import cramjam
import numpy as np
import pytest
import zstandard

from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.record.codecs import lz4 as lz4_frame
from pyspark_kafkalog.record.codecs import snappy as snappy_framing
from pyspark_kafkalog.record.codecs.codec import (
    CODEC_NAMES,
    CODECS,
    CompressionType,
    codec_named,
    decompressed_limit_bytes,
    stored_codec,
)

COMPRESSING = [codec for codec in CompressionType if codec is not CompressionType.NONE]
MIB = 1024 * 1024
TEXT = b"".join(b"order %d, car %d; " % (i, i * i % 97) for i in range(20_000))
CONTENTS = {
    "nothing": b"",
    "one byte": b"x",
    "text of many blocks": TEXT,
    "noise of many blocks": os.urandom(200_000),
    "a block exactly": TEXT[: 64 * 1024],
    "a megabyte of zeros": bytes(MIB),
}


def unpack(codec: CompressionType, data: bytes) -> bytes:
    return CODECS[codec].decompress(data, file="x.log", file_position=1061).tobytes()


def refuse(codec: CompressionType, data: bytes, match: str = "x.log at byte") -> CorruptRecordError:
    with pytest.raises(CorruptRecordError, match=match) as caught:
        unpack(codec, data)
    assert 1061 <= caught.value.position <= 1061 + len(data)
    return caught.value


def lz4_blocks(*blocks: bytes, descriptor: bytes = b"\x60\x40\x82", end: bytes = bytes(4)) -> bytes:
    return lz4_frame.MAGIC + descriptor + b"".join(len(b).to_bytes(4, "little") + b for b in blocks) + end


def lz4_block(content: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(content, store_size=False))


def snappy_framed(*blocks: bytes) -> bytes:
    header = snappy_framing.MAGIC + bytes.fromhex("0000000100000001")
    return header + b"".join(len(b).to_bytes(4, "big") + b for b in blocks)


def test_every_codec_is_found_by_its_names_and_bits() -> None:
    assert list(CODECS) == list(CompressionType)
    for codec in CODECS.values():
        assert codec_named(codec.name) is codec_named(codec.topic_name) is codec
        assert stored_codec(codec.compression_type, file="x.log", position=21) is codec
    assert CODEC_NAMES == ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_unassigned_codec_bits_are_refused_with_their_position(bits: int) -> None:
    with pytest.raises(UnsupportedFormatError, match="codec bits 0 to 4") as caught:
        stored_codec(bits, file="x.log", position=21)
    assert caught.value.position == 21


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_content_round_trips_through_codec(codec: CompressionType, content: bytes) -> None:
    packed = CODECS[codec].compress(content)
    assert unpack(codec, packed) == content
    assert unpack(codec, CODECS[codec].compress(np.frombuffer(content, dtype=np.uint8))) == content
    assert unpack(codec, CODECS[codec].compress(memoryview(content))) == content
    as_array = CODECS[codec].decompress(np.frombuffer(packed, dtype=np.uint8), file="x.log", file_position=0)
    assert as_array.dtype == np.uint8
    assert as_array.tobytes() == content


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        (CompressionType.GZIP, 1, 9),
        (CompressionType.LZ4, 1, 17),
        (CompressionType.LZ4, 9, 12),
        (CompressionType.ZSTD, -5, 19),
    ],
)
def test_higher_level_compresses_smaller(codec: CompressionType, low: int, high: int) -> None:
    fast, small = CODECS[codec].compress(TEXT, low), CODECS[codec].compress(TEXT, high)
    assert len(small) < len(fast)
    assert unpack(codec, fast) == unpack(codec, small) == TEXT


@pytest.mark.parametrize("codec", COMPRESSING)
def test_noise_grows_by_less_than_one_percent(codec: CompressionType) -> None:
    assert len(CODECS[codec].compress(CONTENTS["noise of many blocks"])) < 200_000 * 1.01


@pytest.mark.parametrize("codec", COMPRESSING)
def test_every_truncation_is_refused(codec: CompressionType) -> None:
    packed = CODECS[codec].compress(TEXT[:300])
    for length in range(len(packed)):
        if codec is CompressionType.SNAPPY and length == snappy_framing.FRAME_HEADER_BYTES:
            continue  # a framing header and no block is how nothing looks
        refuse(codec, packed[:length])


@pytest.mark.parametrize("codec", COMPRESSING)
def test_trailing_bytes_are_refused(codec: CompressionType) -> None:
    refuse(codec, CODECS[codec].compress(TEXT[:300]) + b"\x01\x02\x03\x04\x05")


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_of_no_codec_are_refused(codec: CompressionType) -> None:
    refuse(codec, b"\xff" * 100)


# --- what a bomb may cost ---------------------------------------------------------------------------------------------


def bomb(codec: CompressionType) -> bytes:
    """A sound block of `codec` whose content is beyond the limit; built of one small piece, over and over."""
    if codec is CompressionType.GZIP:
        return gzip.compress(bytes(64 * MIB))  # 1029 to 1
    if codec is CompressionType.ZSTD:
        compressor = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
        return b"".join(compressor.compress(bytes(MIB)) for _ in range(64)) + compressor.flush()
    if codec is CompressionType.LZ4:  # 255 to 1 at most, so only the 256 MiB cap stops it
        return lz4_blocks(*[lz4_block(bytes(4 * MIB))] * 65, descriptor=b"\x60\x70\x73")
    return snappy_framed(*[bytes(cramjam.snappy.compress_raw(bytes(MIB)))] * 257)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_block_that_expands_beyond_limit_is_refused_in_bounded_memory(codec: CompressionType) -> None:
    data = bomb(codec)
    limit_bytes = decompressed_limit_bytes(len(data))
    tracemalloc.start()
    try:
        error = refuse(codec, data, "at most")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1.2 * limit_bytes
    assert "at most" in error.expected


LYING = {
    "snappy block that says 4 GiB": (CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 20),
    "framed snappy block that says 4 GiB": (CompressionType.SNAPPY, snappy_framed(b"\xff\xff\xff\xff\x0f" + b"\x00")),
    "framed snappy blocks that add up": (CompressionType.SNAPPY, snappy_framed(*[b"\x80\x80\x80\x08"] * 60)),
    "zstd frame that says 4 GiB": (
        CompressionType.ZSTD,
        bytes.fromhex("28b52ffd") + b"\xe0" + (2**32).to_bytes(8, "little") + b"\x01\x00\x00",
    ),
    "zstd frame that says more than its block holds": (
        CompressionType.ZSTD,
        bytes.fromhex("28b52ffd") + b"\xa0" + (MIB).to_bytes(4, "little") + b"\x09\x00\x00x",
    ),
    "lz4 block that says 2 GiB": (CompressionType.LZ4, lz4_blocks()[:7] + b"\xff\xff\xff\x7f" + bytes(20)),
    "lz4 stored block that says 2 GiB": (CompressionType.LZ4, lz4_blocks()[:7] + b"\xff\xff\xff\xff" + bytes(20)),
    "framed snappy block of negative size": (CompressionType.SNAPPY, snappy_framed() + b"\xff\xff\xff\xff"),
}


@pytest.mark.parametrize(("codec", "data"), LYING.values(), ids=LYING.keys())
def test_wrong_length_is_refused_without_allocating_it(codec: CompressionType, data: bytes) -> None:
    tracemalloc.start()
    try:
        refuse(codec, data)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_limit_grows_with_batch_between_its_bounds() -> None:
    assert decompressed_limit_bytes(10) == 32 * MIB
    assert decompressed_limit_bytes(100_000) == 100_000_000
    assert decompressed_limit_bytes(10**7) == 256 * MIB


# --- gzip -------------------------------------------------------------------------------------------------------------


def test_concatenated_gzip_members_are_one_content() -> None:
    assert unpack(CompressionType.GZIP, gzip.compress(TEXT) + gzip.compress(b"") + gzip.compress(b"more")) == (
        TEXT + b"more"
    )


def test_gzip_data_with_wrong_checksum_is_refused() -> None:
    packed = bytearray(gzip.compress(TEXT))
    packed[-5] ^= 1
    refuse(CompressionType.GZIP, bytes(packed), "expected gzip data")


# --- snappy -----------------------------------------------------------------------------------------------------------


def test_snappy_raw_block_of_librdkafka_is_read() -> None:
    assert unpack(CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_framing_equals_that_of_java() -> None:
    packed = CODECS[CompressionType.SNAPPY].compress(TEXT)
    assert packed[:16].hex() == "82534e41505059000000000100000001"
    size = int.from_bytes(packed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size])) == TEXT[: 32 * 1024]


def test_concatenated_snappy_streams_are_one_content() -> None:
    assert unpack(CompressionType.SNAPPY, CODECS[CompressionType.SNAPPY].compress(b"one ") * 2) == b"one one "


def test_snappy_framing_of_version_0_is_refused() -> None:
    packed = bytearray(CODECS[CompressionType.SNAPPY].compress(b"one"))
    packed[15] = 0
    assert refuse(CompressionType.SNAPPY, bytes(packed), "framing version 1").position == 1061 + 12


# --- lz4 --------------------------------------------------------------------------------------------------------------


def test_lz4_frame_equals_that_of_java() -> None:
    packed = CODECS[CompressionType.LZ4].compress(TEXT)
    assert packed[:7].hex() == "04224d18604082"
    assert packed[-4:] == bytes(4)
    first = int.from_bytes(packed[7:11], "little")
    assert bytes(cramjam.lz4.decompress_block(packed[11 : 11 + first], output_len=64 * 1024)) == TEXT[: 64 * 1024]
    assert bytes(cramjam.lz4.decompress(packed)) == TEXT


def test_lz4_noise_is_stored_uncompressed() -> None:
    packed = CODECS[CompressionType.LZ4].compress(os.urandom(1000))
    assert packed[7:11] == (1000 | 1 << 31).to_bytes(4, "little")
    with pytest.raises(CorruptRecordError, match="at most 999 bytes"):
        CODECS[CompressionType.LZ4].decompress(packed, file="x", file_position=0, max_bytes=999)


@pytest.mark.parametrize("size", [0, 5, 2**40])
def test_lz4_frame_with_wrong_content_size_is_refused(size: int) -> None:
    descriptor = b"\x68\x40" + size.to_bytes(8, "little")
    checksummed = descriptor + bytes([lz4_frame._descriptor_checksum(descriptor)])
    data = lz4_blocks(lz4_block(b"hello"), descriptor=checksummed)
    if size == 5:
        assert unpack(CompressionType.LZ4, data) == b"hello"
    else:
        refuse(CompressionType.LZ4, data, "a content size of 5")


@pytest.mark.parametrize("content_checksum", [True, False])
def test_lz4_frame_with_checksums_is_read_and_refused_when_damaged(content_checksum: bool) -> None:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=content_checksum, block_linked=False)
    compressor.compress(TEXT)
    packed = bytearray(compressor.finish())
    assert unpack(CompressionType.LZ4, bytes(packed)) == TEXT
    packed[100] ^= 1
    refuse(CompressionType.LZ4, bytes(packed))


def test_lz4_linked_blocks_are_refused_as_by_kafka() -> None:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=True)
    compressor.compress(TEXT)
    assert refuse(CompressionType.LZ4, bytes(compressor.finish()), "independent blocks").position == 1061 + 4


@pytest.mark.parametrize(
    "descriptor", ["604083", "a04082", "614082", "600000", "603082", "60c082", "604182"], ids=lambda text: text
)
def test_lz4_bad_frame_header_is_refused(descriptor: str) -> None:
    refuse(CompressionType.LZ4, lz4_blocks(lz4_block(b"hello"), descriptor=bytes.fromhex(descriptor)))


def test_lz4_block_beyond_maximum_of_frame_is_refused() -> None:
    refuse(CompressionType.LZ4, lz4_blocks(lz4_block(TEXT[: 64 * 1024 + 1])), "at most 65536 bytes")


# --- zstd -------------------------------------------------------------------------------------------------------------


def test_zstd_frame_without_content_size_is_read() -> None:
    for content in CONTENTS.values():
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(content)
        assert unpack(CompressionType.ZSTD, packed) == content


def test_zstd_data_with_wrong_checksum_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
    assert unpack(CompressionType.ZSTD, bytes(packed)) == TEXT
    packed[-1] ^= 1
    refuse(CompressionType.ZSTD, bytes(packed))


def test_concatenated_zstd_frames_are_read_and_skippable_ones_skipped() -> None:
    skippable = bytes.fromhex("5e2a4d18") + (7).to_bytes(4, "little") + b"skipped"
    one = zstandard.ZstdCompressor().compress(b"one ")
    assert unpack(CompressionType.ZSTD, one + skippable + one) == b"one one "
    refuse(CompressionType.ZSTD, one + skippable[:-1])
