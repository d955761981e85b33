"""Variable-length integers and CRC-32C: Kafka's bytes, and malformed varints refused."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.record import header as crc32c_module
from pyspark_kafkalog.record.header import crc32c
from pyspark_kafkalog.record.reference import (
    MalformedVarintError,
    encode_unsigned_varint,
    encode_varint,
    encode_varlong,
    read_unsigned_varint,
    read_varint,
    read_varlong,
)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
    ],
)
def test_zigzag_varint_has_kafkas_bytes_and_round_trips(value: int, data: str) -> None:
    assert encode_varint(value).hex() == data
    assert read_varint(bytes.fromhex(data), 0, len(data) // 2) == (value, len(data) // 2)


@pytest.mark.parametrize(
    ("value", "data"), [(2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01"), (300, "d804")]
)
def test_zigzag_varlong_has_kafkas_bytes_and_round_trips(value: int, data: str) -> None:
    assert encode_varlong(value).hex() == data
    assert read_varlong(bytes.fromhex(data), 0, len(data) // 2) == (value, len(data) // 2)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1))
def test_varints_amid_other_bytes_round_trip(small: int, big: int, unsigned: int) -> None:
    data = b"\xff" + encode_varint(small) + encode_varlong(big) + encode_unsigned_varint(unsigned) + b"\xff"
    read_small, at = read_varint(data, 1, len(data))
    read_big, at = read_varlong(data, at, len(data))
    read_unsigned, at = read_unsigned_varint(data, at, len(data))
    assert (read_small, read_big, read_unsigned, at) == (small, big, unsigned, len(data) - 1)


def test_varint_longer_than_needed_is_read() -> None:
    assert read_varint(b"\x82\x80\x80\x80\x00", 0, 5) == (1, 5)


def test_bits_beyond_type_are_dropped_as_in_kafka() -> None:
    assert read_varint(b"\xff\xff\xff\xff\x7f", 0, 5) == (-(2**31), 5)
    assert read_varlong(b"\xff" * 9 + b"\x7f", 0, 10) == (-(2**63), 10)


@pytest.mark.parametrize(("read", "longest"), [(read_varint, 5), (read_unsigned_varint, 5), (read_varlong, 10)])
def test_endless_varint_is_refused(read: object, longest: int) -> None:
    with pytest.raises(MalformedVarintError, match=f"at byte 2: expected a varint of at most {longest} bytes"):
        read(b"\xff" * 100, 2, 100)  # type: ignore[operator]


@pytest.mark.parametrize("length", range(5))
def test_truncated_varint_is_refused(length: int) -> None:
    with pytest.raises(MalformedVarintError, match=f"found the end after {length} bytes of it"):
        read_varint(b"\x80" * 4 + b"\x00", 0, length)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, dtype=np.uint8)])
def test_crc_is_right_for_any_buffer(wrap: object) -> None:
    assert crc32c(wrap(b"123456789")) == 0xE3069283  # type: ignore[operator]
    assert crc32c(wrap(b"")) == 0  # type: ignore[operator]


def test_crc_is_right_for_writable_array() -> None:
    assert crc32c(np.zeros(32, dtype=np.uint8)) == 0x8A9136AA


def test_fallback_computes_equal_crc() -> None:
    fallback = crc32c_module._pick_implementation("python")
    assert fallback is not google_crc32c.value
    for data in (b"", b"123456789", bytes(range(256)) * 40):
        assert fallback(data) == crc32c(data)
        assert fallback(np.frombuffer(data, dtype=np.uint8)) == crc32c(data)
