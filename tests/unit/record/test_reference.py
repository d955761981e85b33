"""The plain codec: equal to what real brokers and clients wrote, and damage reported."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from builders.record_fixtures import DAMAGED_TAILS, as_expected, decode_log, encode_like, expected_records, kafka_logs

from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, InvalidRecordError, UnsupportedFormatError
from pyspark_kafkalog.record.codecs.codec import CODECS, CompressionType
from pyspark_kafkalog.record.header import (
    ATTRIBUTES_AT,
    CRC_AT,
    LENGTH_AT,
    MAGIC_AT,
    RECORDS_AT,
    RECORDS_COUNT_AT,
    BatchHeader,
    TimestampType,
    crc32c,
)
from pyspark_kafkalog.record.reference import (
    Record,
    RecordBatch,
    decode_batch,
    decode_records,
    encode_batch,
    encode_pairs,
    encode_varint,
    seal,
)


def decode(data: bytes) -> RecordBatch:
    return decode_batch(data, 0, file="00000000000000000000.log", file_position=1000)


def batch_of(*records: Record, **options: object) -> bytes:
    return encode_batch(records, **options)  # type: ignore[arg-type]


def record(offset: int, value: bytes | None = b"v", key: bytes | None = b"k") -> Record:
    return Record(offset=offset, timestamp_ms=1_700_000_000_000 + offset, key=key, value=value)


def with_crc(data: bytes | bytearray) -> bytes:
    """The batch with its CRC made right again."""
    fixed = bytearray(data)
    fixed[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(fixed[ATTRIBUTES_AT:])).to_bytes(4, "big")
    return bytes(fixed)


def batch_with_body(body: bytes, *, count: int, last_offset_delta: int = 100) -> bytes:
    """A batch of offsets 0 to `last_offset_delta` around hand-made records, CRC right."""
    size = RECORDS_AT + len(body)
    return seal(
        BatchHeader(base_offset=0, size_bytes=size, last_offset_delta=last_offset_delta, records_count=count), body
    )


def record_bytes(
    *,
    offset_delta: bytes = b"\x00",
    key: bytes = b"\x01",
    value: bytes = b"\x01",
    headers: bytes = b"\x00",
    size: bytes | None = None,
) -> bytes:
    """A record from the bytes of its fields; key and value default to null."""
    body = b"\x00\x00" + offset_delta + key + value + headers
    return (encode_varint(len(body)) if size is None else size) + body


# --- what Kafka wrote -------------------------------------------------------------------------------------------------


def test_published_example_batch_is_encoded_with_its_size_and_crc() -> None:
    """The first batch of a topic `cars`, shown in many texts on Kafka's log: size 173, crc 386807681."""
    times_ms = (133, 135, 135, 136, 136, 136, 137)
    keys = (2, 5, 6, 10, 11, 12, 15)
    cars = ("BMW", "Chevrolet", "Porsche", "Jaguar", "Volvo", "Land Rover", "Aston Martin")
    records = [
        Record(offset=i, timestamp_ms=1_586_329_540_000 + time, key=str(key).encode(), value=car.encode())
        for i, (time, key, car) in enumerate(zip(times_ms, keys, cars, strict=True))
    ]
    data = encode_batch(records, leader_epoch=0)
    batch = decode(data)
    assert len(data) == batch.header.size_bytes == 173
    assert batch.header.crc == 386807681
    assert batch.records == tuple(records)


def test_uncompressed_batches_are_encoded_to_kafkas_bytes(kafka_fixtures: Path) -> None:
    """So are lz4 batches of Java, whose blocks come from the same library; other batches round-trip by content.

    Those are gzip (another operating system byte in its header), zstd (Java states no content size) and batches that
    librdkafka and kafka-python frame in their own way.
    """
    outcomes: Counter[tuple[str, bool]] = Counter()
    for path in kafka_logs(kafka_fixtures):
        for position, data, batch in decode_log(path):
            stored = decode_records(data[RECORDS_AT:], batch.header, file=str(path), file_position=position)
            encoded = encode_like(batch, stored)
            outcomes[CompressionType(batch.header.compression_bits).name, encoded == data] += 1
            again = decode(encoded)
            assert again.records == batch.records, (path, position)
            ignored = {"size_bytes": 0, "crc": 0}
            assert replace(again.header, **ignored) == replace(batch.header, **ignored), (path, position)
    assert outcomes["NONE", True] > 3000
    assert not outcomes["NONE", False]
    assert outcomes["LZ4", True] > 100


def test_records_equal_those_read_by_kafkas_consumer(kafka_fixtures: Path) -> None:
    compared = 0
    for manifest_path in sorted(kafka_fixtures.glob("*/expected/manifest.json")):
        fixture = manifest_path.parent.parent
        manifest = json.loads(manifest_path.read_text())
        for topic in manifest["records"]:
            expected = expected_records(fixture, topic)
            log_starts = {row["partition"]: row["earliest"] for row in manifest["offsets"].get(topic, [])}
            for directory in sorted(fixture.glob(f"{topic}-[0-9]*")):
                partition = int(directory.name.removeprefix(f"{topic}-"))
                log_start = log_starts.get(partition, 0)
                decoded = {
                    found.offset: as_expected(found) | {"timestampType": _type_name(batch)}
                    for path in sorted(directory.glob("*.log"))
                    for _, _, batch in decode_log(path)
                    if not batch.header.is_control
                    for found in batch.records
                    if found.offset >= log_start
                }
                wanted = expected.get(partition, {})
                assert decoded.keys() == wanted.keys(), (fixture.name, topic, partition)
                for offset, row in decoded.items():
                    assert row == {name: wanted[offset][name] for name in row}, (fixture.name, topic, partition, offset)
                compared += len(decoded)
    assert compared > 5000


def _type_name(batch: RecordBatch) -> str:
    return "CreateTime" if batch.header.timestamp_type is TimestampType.CREATE_TIME else "LogAppendTime"


@pytest.mark.parametrize("tail", sorted(DAMAGED_TAILS))
def test_damaged_tail_is_reported_with_its_position(kafka_fixtures: Path, tail: str) -> None:
    path = kafka_fixtures / "unclean" / tail
    begins = DAMAGED_TAILS[tail]
    with pytest.raises(CorruptRecordError) as caught:
        decode_batch(path.read_bytes(), begins, file=str(path), file_position=begins)
    assert caught.value.file == str(path)
    assert begins <= caught.value.position < begins + RECORDS_AT


def test_sequences_wrap_after_the_greatest_int32() -> None:
    data = batch_of(record(0), record(1), record(2), producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert [found.sequence for found in decode(data).records] == [2**31 - 2, 2**31 - 1, 0]


def test_log_append_time_is_timestamp_of_every_record() -> None:
    data = batch_of(record(0), record(1), timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp_ms=99)
    assert [found.timestamp_ms for found in decode(data).records] == [99, 99]


def test_batch_emptied_by_cleaner_has_no_records() -> None:
    data = encode_batch([], base_offset=5, last_offset=9, producer_id=1, producer_epoch=0, base_sequence=3)
    batch = decode(data)
    assert (len(data), batch.records, batch.header.last_offset) == (RECORDS_AT, (), 9)


def test_timestamp_delta_beyond_int64_wraps_as_in_java() -> None:
    data = bytearray(batch_of(Record(offset=0, timestamp_ms=5, key=None, value=None), delete_horizon_ms=7))
    struct.pack_into(">q", data, 27, -(2**63))  # base timestamp
    assert decode(with_crc(data)).records[0].timestamp_ms == 2**63 - 2


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(CompressionType))
def test_flipped_bit_anywhere_under_crc_is_reported(compression: CompressionType) -> None:
    data = batch_of(record(0), record(1, None), record(2, b"value" * 20), compression=compression)
    for at in range(LENGTH_AT, len(data)):
        if LENGTH_AT + 4 <= at < MAGIC_AT:
            continue  # the leader epoch, which the log rewrites, is not under the CRC; nor is the base offset
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(DiskFormatError) as caught:
                decode(bytes(flipped))
            assert caught.value.file == "00000000000000000000.log"
            assert 1000 <= caught.value.position < 1000 + len(data)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_impossible_batch_length_is_reported(size: int) -> None:
    data = bytearray(batch_of(record(0)))
    struct.pack_into(">i", data, LENGTH_AT, size)
    with pytest.raises(CorruptRecordError) as caught:
        decode(bytes(data))
    assert caught.value.position == 1000 + LENGTH_AT
    assert str(size) in caught.value.found or str(size + 12) in caught.value.found


def test_every_truncation_of_batch_is_reported() -> None:
    data = batch_of(record(0), record(1))
    for length in range(len(data)):
        with pytest.raises(CorruptRecordError):
            decode(data[:length])


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_format_is_refused_as_unsupported_not_corrupt(magic: int) -> None:
    data = bytearray(batch_of(record(0)))
    data[MAGIC_AT] = magic
    with pytest.raises(UnsupportedFormatError, match=r"00000000000000000000\.log at byte 1016: .* magic"):
        decode(bytes(data))


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_magic_is_reported_as_corrupt(magic: int) -> None:
    data = bytearray(batch_of(record(0)))
    data[MAGIC_AT] = magic
    with pytest.raises(CorruptRecordError, match="expected magic 2"):
        decode(bytes(data))


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_unknown_codec_bits_are_refused_as_unsupported(bits: int) -> None:
    data = bytearray(batch_of(record(0)))
    data[ATTRIBUTES_AT + 1] = bits
    with pytest.raises(UnsupportedFormatError, match="codec bits"):
        decode(with_crc(data))


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("count", [-1, 0, 1, 2, 4, 2**31 - 1])
def test_wrong_record_count_is_reported(compression: CompressionType, count: int) -> None:
    """The batch has three records: a lower count leaves bytes over, a higher count reaches the end of the batch."""
    data = bytearray(batch_of(record(0), record(1), record(2), compression=compression))
    struct.pack_into(">i", data, RECORDS_COUNT_AT, count)
    with pytest.raises(CorruptRecordError):
        decode(with_crc(data))


BAD_RECORDS = {
    "record size of -1": record_bytes(size=encode_varint(-1)),
    "record size past the end": record_bytes(size=encode_varint(1000)),
    "record size of 2^31-1": record_bytes(size=encode_varint(2**31 - 1)),
    "record size one too small": record_bytes(size=encode_varint(5)),
    "record size one too great": record_bytes(size=encode_varint(7)) + b"\x00",
    "record size of 0": b"\x00",
    "record that ends in its attributes": b"\x02\x00",
    "varint that never ends as size": b"\xff" * 20,
    "varint that never ends as offset delta": record_bytes(offset_delta=b"\xff" * 10),
    "varint that ends in its sixth byte": record_bytes(offset_delta=b"\x80" * 5 + b"\x00"),
    "offset delta of -1": record_bytes(offset_delta=encode_varint(-1)),
    "offset delta beyond the batch": record_bytes(offset_delta=encode_varint(101)),
    "offset delta that does not rise": record_bytes() + record_bytes(),
    "key size of -2": record_bytes(key=encode_varint(-2)),
    "key size past the record": record_bytes(key=encode_varint(3)) + b"abcdef",
    "value size of -2": record_bytes(value=encode_varint(-2)),
    "value size of 2^31-1": record_bytes(value=encode_varint(2**31 - 1)),
    "value size that no int64 holds with it": record_bytes(value=encode_varint(-(2**31))),
    "header count of -1": record_bytes(headers=encode_varint(-1)),
    "header count of 2^31-1": record_bytes(headers=encode_varint(2**31 - 1)),
    "header count one too great": record_bytes(headers=encode_varint(1)),
    "null header key": record_bytes(headers=encode_varint(1) + encode_varint(-1) + encode_varint(-1)),
    "header key past the record": record_bytes(headers=encode_varint(1) + encode_varint(2) + b"a"),
    "header value past the record": record_bytes(headers=encode_varint(1) + b"\x02a" + encode_varint(2) + b"a"),
    "header value size of -2": record_bytes(headers=encode_varint(1) + b"\x02a" + encode_varint(-2)),
    "byte left in the record": record_bytes(headers=b"\x00\x00"),
}


@pytest.mark.parametrize("body", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_malformed_record_with_valid_crc_is_reported(body: bytes, compression: CompressionType) -> None:
    count = 2 if body == BAD_RECORDS["offset delta that does not rise"] else 1
    if compression is CompressionType.NONE:
        data = batch_with_body(body, count=count)
    else:
        packed = CODECS[compression].compress(body)
        header = BatchHeader(
            base_offset=0,
            size_bytes=RECORDS_AT + len(packed),
            attributes=compression,
            last_offset_delta=100,
            records_count=count,
        )
        data = seal(header, packed)
    with pytest.raises(CorruptRecordError) as caught:
        decode(data)
    assert 1000 + RECORDS_AT <= caught.value.position <= 1000 + len(data)


def test_endless_varint_is_reported_as_varint() -> None:
    """25 bytes of record whose timestamp delta has ten bytes and no end."""
    body = encode_varint(24) + b"\x00" + b"\xff" * 23
    with pytest.raises(CorruptRecordError, match="a varint of at most 10 bytes"):
        decode(batch_with_body(body, count=1))


def test_record_built_by_test_helpers_is_read() -> None:
    """The builders of the tests above make valid batches by default."""
    assert decode(batch_with_body(record_bytes(), count=1)).records[0].key is None


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_pairs_are_encoded_as_records_of_one_time(compression: CompressionType) -> None:
    sizes = (0, 1, 63, 64, 127, 128, 255, 256, 8191, 8192, 20_000)
    pairs = [(bytes(size), bytes(size + 1)) for size in sizes] * 30
    pairs += [(b"key", None), (None, b"value")]
    records = [Record(offset=7 + at, timestamp_ms=5, key=key, value=value) for at, (key, value) in enumerate(pairs)]
    found = encode_pairs(pairs, base_offset=7, timestamp_ms=5, compression=compression)
    assert found == encode_batch(records, compression=compression)


@pytest.mark.parametrize(("count", "base_offset", "timestamp_ms"), [(0, 0, 0), (1, -1, 0), (1, 0, -2)])
def test_pairs_that_are_no_batch_are_not_encoded(count: int, base_offset: int, timestamp_ms: int) -> None:
    with pytest.raises(InvalidRecordError):
        encode_pairs([(b"", b"")] * count, base_offset=base_offset, timestamp_ms=timestamp_ms)


# --- records that Kafka would not take --------------------------------------------------------------------------------

REFUSED = {
    "offsets that fall": ([record(1), record(0)], {}),
    "an offset twice": ([record(1), record(1)], {}),
    "a negative offset": ([record(-1)], {}),
    "a negative timestamp": ([Record(offset=0, timestamp_ms=-2, key=None, value=None)], {}),
    "a base offset above the first record": ([record(3)], {"base_offset": 4}),
    "a last offset below the last record": ([record(3)], {"last_offset": 2}),
    "a range wider than int32": ([record(0), record(2**31)], {}),
    "a negative delete horizon": ([record(0)], {"delete_horizon_ms": -1}),
    "no records and no offsets": ([], {}),
    "LogAppendTime without the time": ([record(0)], {"timestamp_type": TimestampType.LOG_APPEND_TIME}),
    "a transaction without a producer": ([record(0)], {"is_transactional": True}),
    "a producer without an epoch": ([record(0)], {"producer_id": 1, "base_sequence": 0}),
    "a producer without a sequence": ([record(0)], {"producer_id": 1, "producer_epoch": 0}),
}


@pytest.mark.parametrize(("records", "options"), REFUSED.values(), ids=REFUSED.keys())
def test_batch_that_kafka_would_refuse_is_not_encoded(records: list[Record], options: dict[str, object]) -> None:
    with pytest.raises(InvalidRecordError):
        encode_batch(records, **options)  # type: ignore[arg-type]
