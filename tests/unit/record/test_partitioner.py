"""The partitioner: Java's murmur2, partitions by key hash or round robin, and rows grouped in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.record.columns import BinaryColumn, HeaderColumn, RecordColumns, address_of
from pyspark_kafkalog.record.partitioner import NO_PARTITION, Partitioner, group_rows, murmur2


def plain_murmur2(data: bytes) -> int:
    """The plain twin: 32-bit words, little-endian, masked after each step."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    result = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        result = (result * multiplier & mask) ^ word
    if len(data) > whole:
        result = (result ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    result = (result ^ result >> 13) * multiplier & mask
    return result ^ result >> 15


def binary(values: list[bytes | None]) -> BinaryColumn:
    lengths = [len(value or b"") for value in values]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
    bits = np.packbits(np.array([value is not None for value in values], bool), bitorder="little")
    return BinaryColumn(offsets, data, bits if None in values else None)


def columns(keys: list[bytes | None], values: list[bytes] | None = None) -> RecordColumns:
    return RecordColumns(count=len(keys), keys=binary(keys), values=binary(list(values or [b""] * len(keys))))


def all_rows(source: RecordColumns) -> np.ndarray:
    return np.arange(source.count, dtype=np.int64)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_that_of_java(key: bytes, hashed: int) -> None:
    data = np.frombuffer(key, np.uint8)
    assert murmur2(address_of(data), len(key)) == hashed & 0xFFFFFFFF
    assert plain_murmur2(key) == hashed & 0xFFFFFFFF


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=50), st.integers(1, 100))
def test_keyed_records_go_to_partition_of_their_hash(keys: list[bytes | None], partitions_count: int) -> None:
    source = columns(keys)
    assigned = Partitioner(partitions_count, turn_bytes=1000, first_partition=7).assign(source, all_rows(source))
    for key, partition in zip(keys, assigned, strict=True):
        if key is not None:
            assert partition == (plain_murmur2(key) & 0x7FFFFFFF) % partitions_count
        assert 0 <= partition < partitions_count


def test_empty_key_is_hashed_and_null_key_is_not() -> None:
    source = columns([b"", None, b""])
    assigned = Partitioner(50, turn_bytes=1000, first_partition=3).assign(source, all_rows(source))
    hashed = (plain_murmur2(b"") & 0x7FFFFFFF) % 50
    assert assigned.tolist() == [hashed, 3, hashed]


def test_records_without_key_change_partition_only_when_batch_is_full() -> None:
    source = columns([None] * 10, [b"x" * 88] * 10)
    partitioner = Partitioner(3, turn_bytes=250, first_partition=2)
    assert partitioner.assign(source, all_rows(source)).tolist() == [2, 2, 0, 0, 1, 1, 2, 2, 0, 0]
    assert partitioner.assign(source, all_rows(source))[:3].tolist() == [1, 1, 2]


def test_record_larger_than_turn_bytes_is_assigned() -> None:
    source = columns([None] * 3, [b"x" * 900] * 3)
    assert Partitioner(2, turn_bytes=10).assign(source, all_rows(source)).tolist() == [0, 1, 0]


def test_headers_count_towards_turn_bytes() -> None:
    headers = HeaderColumn(np.array([0, 1, 2], np.int32), binary([b"k", b"k"]), binary([b"v" * 500, None]))
    source = RecordColumns(count=2, values=binary([b"a", b"b"]), headers=headers)
    assert Partitioner(2, turn_bytes=400).assign(source, all_rows(source)).tolist() == [0, 1]


def test_keyed_records_without_hashing_are_spread_over_partitions() -> None:
    source = columns([b"same"] * 4, [b"x" * 100] * 4)
    spread = Partitioner(4, turn_bytes=1, hash_keys=False).assign(source, all_rows(source))
    assert spread.tolist() == [0, 1, 2, 3]


def test_given_partition_stays_and_only_requested_rows_are_assigned() -> None:
    source = columns([b"21", b"foobar", None, b"21"])
    given_partitions = np.array([4, NO_PARTITION], np.int32)
    assigned = Partitioner(5, turn_bytes=100).assign(source, np.array([1, 3], np.int64), given_partitions)
    assert assigned.tolist() == [4, (-973932308 & 0x7FFFFFFF) % 5]
    assert given_partitions.tolist() == [4, NO_PARTITION]


@pytest.mark.parametrize("bad", [5, -2])
def test_partition_out_of_range_is_refused(bad: int) -> None:
    source = columns([b"a"])
    with pytest.raises(InvalidRecordError, match=f"partition {bad}, the topic has partitions 0 to 4"):
        Partitioner(5, turn_bytes=100).assign(source, all_rows(source), np.array([bad], np.int32))


@given(st.lists(st.integers(0, 9), max_size=200))
def test_grouping_keeps_order_within_each_group(groups: list[int]) -> None:
    order, bounds = group_rows(np.array(groups, np.int32), 10)
    assert bounds.tolist() == np.searchsorted(sorted(groups), np.arange(11)).tolist()
    for group in range(10):
        rows = order[bounds[group] : bounds[group + 1]].tolist()
        assert rows == [row for row, each in enumerate(groups) if each == group]
