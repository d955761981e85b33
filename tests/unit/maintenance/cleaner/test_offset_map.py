"""The offset map keeps the latest offset of every key and stays within its buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from simulations.cleaner_reference import write_segment
from tiers import examples

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.maintenance.cleaner.kernels_cleaner import HAS_KEY, HAS_VALUE, hash_key
from pyspark_kafkalog.maintenance.cleaner.offset_map import ALL_KEYS, ENTRY_BYTES, KeyShard, OffsetMap
from pyspark_kafkalog.maintenance.cleaner.record_chunks import ChunkReader, IndexedRecords
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.columns import BATCH_DTYPE
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.segment.reader import LocalExtent
from pyspark_kafkalog.units import INT32_MAX

_MASK = (1 << 64) - 1


def _siphash(key: bytes, data: bytes, rounds: tuple[int, int], *, wide: bool) -> bytes:
    """SipHash as its authors describe it, 64 or 128 bits."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    v[1] ^= 0xEE if wide else 0

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & _MASK

    def turn(times: int) -> None:
        for _ in range(times):
            v[0] = (v[0] + v[1]) & _MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & _MASK
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & _MASK
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & _MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        turn(rounds[0])
        v[0] ^= word
    v[2] ^= 0xEE if wide else 0xFF
    turn(rounds[1])
    out = (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    if wide:
        v[1] ^= 0xDD
        turn(rounds[1])
        out += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return out


def test_plain_siphash_matches_reference_vectors() -> None:
    key = bytes(range(16))
    assert _siphash(key, bytes(range(15)), (2, 4), wide=False).hex() == "e545be4961ca29a1"
    assert _siphash(key, b"", (2, 4), wide=True).hex() == "a3817f04ba25a8e66df67214c7550293"


@given(key=st.binary(max_size=300), seed=st.binary(min_size=16, max_size=16))
def test_compiled_hash_matches_plain_hash(key: bytes, seed: bytes) -> None:
    found = hash_key(np.frombuffer(key, np.uint8), np.frombuffer(seed, np.uint64))
    assert np.array(found, np.uint64).tobytes() == _siphash(seed, key, (1, 3), wide=True)


def _records(keys: list[bytes | None], first_offset: int = 0, *, value: bool = True) -> IndexedRecords:
    """Rows as a ChunkReader makes them, for one batch."""
    count = len(keys)
    seed = np.array([3, 4], np.uint64)
    hashes = [hash_key(np.frombuffer(key or b"", np.uint8), seed) for key in keys]
    flags = [(HAS_KEY if key is not None else 0) | (HAS_VALUE if value else 0) for key in keys]
    return IndexedRecords(
        firsts=np.array([0, count], np.int64),
        starts=np.zeros(count, np.int64),
        ends=np.zeros(count, np.int64),
        offsets=np.arange(first_offset, first_offset + count, dtype=np.int64),
        timestamps_ms=np.zeros(count, np.int64),
        hashes=np.array([each[0] for each in hashes], np.uint64),
        second_hashes=np.array([each[1] for each in hashes], np.uint64),
        flags=np.array(flags, np.uint8),
        control_types=np.array([-1], np.int16),
    )


def _kept(offset_map: OffsetMap, records: IndexedRecords, *, tombstones: bool = True) -> list[int]:
    keep = np.ones(records.count, np.uint8)
    offset_map.drop(records, np.array([tombstones], np.uint8), keep)
    kept: list[int] = records.offsets[keep == 1].tolist()
    return kept


_key_lists = st.lists(st.one_of(st.none(), st.integers(0, 60).map(lambda each: b"%d" % each)), max_size=200)


@settings(deadline=None)
@given(keys=_key_lists, slots=st.integers(2, 80))
def test_shards_together_keep_same_records_as_one_map(keys: list[bytes | None], slots: int) -> None:
    records = _records(keys)
    latest = {key: offset for offset, key in enumerate(keys)}
    expected = {offset for offset, key in enumerate(keys) if key is not None and latest[key] == offset}
    offset_map = OffsetMap(ENTRY_BYTES * slots, 0.9)
    left, kept, entries = [ALL_KEYS], set(range(len(keys))), 0
    while left:
        offset_map.clear(left.pop())
        left += offset_map.put(records)
        assert offset_map.entries <= offset_map.entries_max
        entries += offset_map.entries
        offset_map.latest_offset = len(keys) - 1
        kept &= set(_kept(offset_map, records))
    assert kept == expected
    assert entries == len(set(keys) - {None})


@settings(deadline=None)
@given(
    chunks=st.lists(_key_lists, max_size=4), slots=st.integers(2, 200), value=st.booleans(), tombstones=st.booleans()
)
def test_records_from_the_end_are_judged_as_by_a_map_of_all(
    chunks: list[list[bytes | None]], slots: int, value: bool, tombstones: bool
) -> None:
    keys = [key for chunk in chunks for key in chunk]
    whole, from_end = OffsetMap(ENTRY_BYTES * 1000, 0.9), OffsetMap(ENTRY_BYTES * slots, 0.9)
    list(whole.put(_records(keys, value=value)))
    whole.latest_offset = len(keys) - 1
    end_offset = len(keys)
    for chunk in reversed(chunks):
        end_offset -= len(chunk)
        records = _records(chunk, end_offset, value=value)
        keep = np.ones(len(chunk), np.uint8)
        if not from_end.put_and_drop(records, np.array([tombstones], np.uint8), keep):
            assert from_end.entries == from_end.entries_max < len(set(keys) - {None})
            return
        assert records.offsets[keep == 1].tolist() == _kept(whole, records, tombstones=tombstones)
    assert from_end.entries == whole.entries
    list(from_end.put(_records(keys, value=value)))  # in order again: later offsets stay
    assert from_end.entries == whole.entries
    from_end.latest_offset = whole.latest_offset
    assert _kept(from_end, _records(keys)) == _kept(whole, _records(keys))


def test_records_above_latest_offset_of_map_are_kept() -> None:
    offset_map = OffsetMap(ENTRY_BYTES * 10, 0.9)
    assert list(offset_map.put(_records([b"a", b"b", b"a"]))) == []
    offset_map.latest_offset = 2
    assert _kept(offset_map, _records([b"a", b"b", b"a", b"a", None, b"b"])) == [1, 2, 3, 4, 5]


def test_tombstones_are_kept_only_until_their_horizon() -> None:
    offset_map = OffsetMap(ENTRY_BYTES * 10, 0.9)
    list(offset_map.put(_records([b"a", b"b"])))
    offset_map.latest_offset = 1
    assert _kept(offset_map, _records([b"a", b"b"], value=False)) == [0, 1]
    assert _kept(offset_map, _records([b"a", b"b"], value=False), tombstones=False) == []


def test_cleared_map_has_no_keys() -> None:
    offset_map = OffsetMap(ENTRY_BYTES * 10, 0.9)
    list(offset_map.put(_records([b"a", b"b"], first_offset=10)))
    offset_map.clear(KeyShard(1, 1))
    assert (offset_map.entries, offset_map.latest_offset, offset_map.shard) == (0, -1, KeyShard(1, 1))
    offset_map.clear()
    offset_map.latest_offset = 100
    assert _kept(offset_map, _records([b"a", b"b"])) == [0, 1]


def test_buffer_too_small_for_a_key_is_rejected() -> None:
    with pytest.raises(InvalidOptionError, match="holds no key"):
        OffsetMap(ENTRY_BYTES, 0.9)


@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=20),
    compression=st.sampled_from(CompressionType),
)
def test_chunk_rows_match_their_records(tmp_path: Path, keys: list[bytes | None], compression: CompressionType) -> None:
    records = [
        Record(offset=7 + 2 * i, timestamp_ms=i * i, key=key, value=None if i % 3 else b"v" * i)
        for i, key in enumerate(keys)
    ]
    write_segment(tmp_path, 7, [encode_batch(records, compression=compression)], LogConfig())
    seed = np.array([5, 6], np.uint64)
    told: list[int] = []
    reader = ChunkReader(
        extent=LocalExtent(tmp_path, 7),
        start_offset=0,
        limit_offset=None,
        seed=seed,
        before_read=told.append,
        record_max_bytes=INT32_MAX,
    )
    (found,) = [chunk.records for chunk in reader.chunks()]
    assert found.offsets.tolist() == [each.offset for each in records]
    assert found.timestamps_ms.tolist() == [each.timestamp_ms for each in records]
    assert [bool(each & HAS_KEY) for each in found.flags.tolist()] == [key is not None for key in keys]
    assert [bool(each & HAS_VALUE) for each in found.flags.tolist()] == [each.value is not None for each in records]
    for row, key in enumerate(keys):
        if key is not None:
            hashed = hash_key(np.frombuffer(key, np.uint8), seed)
            assert (found.hashes[row], found.second_hashes[row]) == hashed
    assert sum(told) == (tmp_path / "00000000000000000007.log").stat().st_size


def _batch_table(ranges: list[tuple[int, int]]) -> NDArray[np.void]:
    batches = np.zeros(len(ranges), BATCH_DTYPE)
    batches["base_offset"], batches["last_offset"] = zip(*ranges, strict=True)
    return batches


@given(
    offsets=st.sets(st.integers(100, 400), min_size=1, max_size=20),
    ranges=st.lists(st.tuples(st.integers(80, 420), st.integers(0, 60)), min_size=1, max_size=20),
    marks_max=st.sampled_from([4 << 20, 40, 3]),
)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_with_latest_offset_is_never_unmarked(
    monkeypatch: pytest.MonkeyPatch, offsets: set[int], ranges: list[tuple[int, int]], marks_max: int
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.maintenance.cleaner.offset_map._MARKS_MAX", marks_max)
    offset_map = OffsetMap(1000 * ENTRY_BYTES, 0.9)
    for offset in offsets:
        assert not list(offset_map.put(_records([b"%d" % offset], offset)))
    offset_map.latest_offset = 400
    marks = offset_map.marks(150)
    assert len(marks.bytes) <= marks_max + 1
    batches = _batch_table([(first, first + size) for first, size in ranges])
    for batch, is_unmarked in zip(batches, marks.unmarked(batches).tolist(), strict=True):
        first, last = int(batch["base_offset"]), int(batch["last_offset"])
        is_empty = not any(first <= offset <= last for offset in offsets)
        if is_unmarked:
            assert is_empty
            assert 150 <= first <= last <= 400
        elif marks.shift == 0 and first >= 150 and last <= 400:
            assert not is_empty


def test_map_of_empty_or_enormous_range_marks_only_its_offsets() -> None:
    offset_map = OffsetMap(1000 * ENTRY_BYTES, 0.9)
    assert len(offset_map.marks(0).bytes) == 0
    assert not offset_map.marks(0).unmarked(_batch_table([(0, 5)])).any()
    list(offset_map.put(_records([b"a"], 1 << 61)))
    offset_map.latest_offset = 1 << 62
    found = offset_map.marks(5).unmarked(_batch_table([(5, 9), (1 << 61, 1 << 61), (1 << 60, (1 << 60) + (1 << 31))]))
    assert found.tolist() == [True, False, True]
