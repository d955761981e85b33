"""Producer-state snapshots: Kafka's bytes, and damage reported as corrupt."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.record.header import crc32c
from pyspark_kafkalog.storage.artefacts.producer_snapshot import (
    ProducerStateEntry,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    write_snapshot,
)

_ENTRIES = (ProducerStateEntry(7, 2, 40, 100, 3, 1_700_000_000_000, 5, 97), ProducerStateEntry(8))


def _with_crc(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


def test_snapshot_without_producers_is_ten_bytes() -> None:
    assert encode_snapshot(()).hex() == "000148674bc700000000"


def test_unknown_fields_are_written_as_minus_one_and_delta_as_zero() -> None:
    body = struct.pack(">iqhiqiqiq", 1, 8, -1, -1, -1, 0, -1, -1, -1)
    assert encode_snapshot([ProducerStateEntry(8)]) == _with_crc(body)


def test_snapshot_round_trips_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.snapshot"
    write_snapshot(path, _ENTRIES)
    assert read_snapshot(path) == _ENTRIES
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("length_bytes", [0, 1, 5, 9, 10, 55, 56, 101])
def test_truncated_snapshot_is_reported_as_corrupt(tmp_path: Path, length_bytes: int) -> None:
    path = tmp_path / "00000000000000000100.snapshot"
    path.write_bytes(encode_snapshot(_ENTRIES)[:length_bytes])
    with pytest.raises(CorruptIndexError, match=r"00000000000000000100\.snapshot"):
        read_snapshot(path)


@pytest.mark.parametrize("at", range(0, 102, 3))
def test_flipped_bit_is_reported_as_corrupt(at: int) -> None:
    data = bytearray(encode_snapshot(_ENTRIES))
    data[at] ^= 0x10
    with pytest.raises(CorruptIndexError):
        decode_snapshot(bytes(data), file="f")


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1, -(2**31)])
def test_wrong_entry_count_is_reported_as_corrupt_despite_valid_crc(count: int) -> None:
    body = struct.pack(">i", count) + encode_snapshot(_ENTRIES)[10:]
    with pytest.raises(CorruptIndexError, match=r"at byte 6: .*count of entries") as caught:
        decode_snapshot(_with_crc(body), file="f")
    assert str(count) in caught.value.found


@pytest.mark.parametrize("version", [0, 2, -1])
def test_other_snapshot_version_is_refused(version: int) -> None:
    with pytest.raises(CorruptIndexError, match="expected snapshot version 1"):
        decode_snapshot(_with_crc(struct.pack(">i", 0), version), file="f")


def test_huge_snapshot_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "0.snapshot"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(CorruptIndexError, match="at most"):
        read_snapshot(path)


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_ANY_ENTRY = st.builds(
    ProducerStateEntry,
    _signed(64),
    _signed(16),
    _signed(32),
    _signed(64),
    _signed(32),
    _signed(64),
    _signed(32),
    _signed(64),
)


@given(st.lists(_ANY_ENTRY, max_size=20))
def test_any_entries_round_trip(entries: list[ProducerStateEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries), file="f") == tuple(entries)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_reported_as_corrupt(data: bytes) -> None:
    for candidate in (data, _with_crc(data)):
        try:
            entries = decode_snapshot(candidate, file="f")
        except CorruptIndexError:
            continue
        assert encode_snapshot(entries) == candidate
