"""Offset and time indexes: layout of entries, limits, lookups, and clean state after a failed call."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from builders.indexes import BASE, ROOM_BYTES, add_entry, offset_index, time_index
from open_files import descriptors, descriptors_before

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.filesystem import FileSystem


def test_new_indexes_are_preallocated_to_whole_entries(tmp_path: Path) -> None:
    for index in (
        offset_index(tmp_path / "0.index", room_bytes=1027),
        time_index(tmp_path / "0.timeindex", room_bytes=1027),
    ):
        assert index.path.read_bytes() == bytes(index.length_bytes)
        assert index.length_bytes == 1027 - 1027 % index.entry_struct.size
        assert index.entries == 0
        index.close()
        assert index.path.stat().st_size == 0


def test_entries_are_written_in_kafkas_layout(tmp_path: Path) -> None:
    with offset_index(tmp_path / "0.index") as offsets, time_index(tmp_path / "0.timeindex") as times:
        add_entry(offsets, BASE + 7, 300)
        times.maybe_append(1_700_000_000_000, BASE + 7)
    assert (tmp_path / "0.index").read_bytes() == struct.pack(">ii", 7, 300)
    assert (tmp_path / "0.timeindex").read_bytes() == struct.pack(">qi", 1_700_000_000_000, 7)


def test_entries_appended_in_bulk_equal_entries_appended_one_by_one(tmp_path: Path) -> None:
    offsets = np.arange(1, 51, dtype=np.int64) * 3 + BASE
    positions = np.arange(1, 51, dtype=np.int64) * 400
    timestamps_ms = np.repeat(np.arange(25, dtype=np.int64) + 5, 2)
    with offset_index(tmp_path / "1.index") as one, time_index(tmp_path / "1.timeindex") as one_time:
        rows = np.stack([offsets, positions, timestamps_ms], axis=1).tolist()
        for offset, position, timestamp_ms in rows:
            add_entry(one, offset, position)
            one_time.maybe_append(timestamp_ms, offset)
    with offset_index(tmp_path / "2.index") as many, time_index(tmp_path / "2.timeindex") as many_time:
        many.append_many(offsets, positions)
        many_time.maybe_append_many(timestamps_ms, offsets)
    assert (tmp_path / "1.index").read_bytes() == (tmp_path / "2.index").read_bytes()
    assert (tmp_path / "1.timeindex").read_bytes() == (tmp_path / "2.timeindex").read_bytes()
    assert (tmp_path / "2.timeindex").stat().st_size == 25 * 12


def test_full_offset_index_refuses_entries(tmp_path: Path) -> None:
    with offset_index(tmp_path / "0.index", room_bytes=16) as index:
        add_entry(index, BASE + 1, 10)
        assert not index.is_full
        add_entry(index, BASE + 2, 20)
        assert index.is_full
        with pytest.raises(ValueError, match="room for 0 more entries"):
            add_entry(index, BASE + 3, 30)
        with pytest.raises(ValueError, match="room for 0 more entries"):
            index.append_many(np.array([BASE + 3]), np.array([30]))
        assert index.entries == 2


def test_time_index_reserves_a_slot_for_closing_entry(tmp_path: Path) -> None:
    with time_index(tmp_path / "0.timeindex", room_bytes=24) as index:
        index.maybe_append(5, BASE)
        assert index.is_full
        with pytest.raises(ValueError, match="full"):
            index.maybe_append(6, BASE + 1)
        with pytest.raises(ValueError, match="no room"):
            index.maybe_append_many(np.array([6]), np.array([BASE + 1]))
        index.maybe_append(6, BASE + 1, skip_full_check=True)
        assert index.last_entry == (6, BASE + 1)


def test_entries_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    with offset_index(tmp_path / "0.index") as offsets:
        add_entry(offsets, BASE + 5, 10)
        with pytest.raises(CorruptIndexError, match="below offset 1005"):
            add_entry(offsets, BASE + 5, 20)
        with pytest.raises(ValueError, match="rise"):
            offsets.append_many(np.array([BASE + 7, BASE + 6]), np.array([20, 30]))
    with time_index(tmp_path / "0.timeindex") as times:
        times.maybe_append(50, BASE + 5)
        for timestamp_ms, offset in ((49, BASE + 6), (51, BASE + 4)):
            with pytest.raises(CorruptIndexError, match="not above"):
                times.maybe_append(timestamp_ms, offset)
        with pytest.raises(ValueError, match="fall"):
            times.maybe_append_many(np.array([60, 59]), np.array([BASE + 7, BASE + 8]))
        times.maybe_append(50, BASE + 6)
        times.maybe_append_many(np.array([50, 50]), np.array([BASE + 7, BASE + 8]))
        assert times.entries == 1


def test_offsets_out_of_reach_of_base_offset_are_refused(tmp_path: Path) -> None:
    with offset_index(tmp_path / "0.index") as offsets, time_index(tmp_path / "0.timeindex") as times:
        for offset in (BASE - 1, BASE + 2**31):
            assert not offsets.can_append_offset(offset)
            with pytest.raises(ValueError, match="out of reach"):
                add_entry(offsets, offset, 10)
            with pytest.raises(ValueError, match="out of reach"):
                times.maybe_append(1, offset)
        assert offsets.can_append_offset(BASE + 2**31 - 1)
        with pytest.raises(ValueError, match="out of reach"):
            offsets.append_many(np.array([BASE, BASE + 2**31]), np.array([1, 2]))
        with pytest.raises(ValueError, match="int32"):
            offsets.append_many(np.array([BASE, BASE + 1]), np.array([1, 2**31]))


def test_trimmed_index_accepts_entries_after_resize(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    with offset_index(path) as index:
        add_entry(index, BASE + 1, 100)
    assert path.stat().st_size == 8
    with offset_index(path) as index:
        assert index.is_full
        index.resize(ROOM_BYTES)
        assert not index.is_full
        add_entry(index, BASE + 2, 200)
        assert index.entries_array().tolist() == [(BASE + 1, 100), (BASE + 2, 200)]
    assert path.stat().st_size == 16


def test_lookup_returns_last_entry_at_or_below_target(tmp_path: Path) -> None:
    with offset_index(tmp_path / "0.index") as offsets, time_index(tmp_path / "0.timeindex") as times:
        assert offsets.lookup(BASE + 100) == (BASE, 0)
        assert times.lookup(100) == (-1, BASE)
        add_entry(offsets, BASE + 10, 77)
        times.maybe_append(50, BASE + 10)
        assert [offsets.lookup(BASE + relative) for relative in (9, 10, 2**40)] == [(BASE, 0)] + [(BASE + 10, 77)] * 2
        assert [times.lookup(at) for at in (49, 50, 2**60)] == [(-1, BASE)] + [(50, BASE + 10)] * 2


def test_lookup_in_garbage_ends_with_offset_not_negative(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for name, kind in (("0.index", OffsetIndex), ("0.timeindex", TimeIndex)):
        (tmp_path / name).write_bytes(rng.bytes(12 * 8 * 1000 + 5))
        with kind.open(tmp_path / name, BASE, max_index_bytes=ROOM_BYTES) as index:
            for target in (-(2**62), 0, BASE, 2**31, 2**62):
                found = index.lookup(target)
                assert (found.offset if isinstance(index, TimeIndex) else min(found)) >= 0


def test_entry_past_the_last_raises_index_error(tmp_path: Path) -> None:
    with offset_index(tmp_path / "0.index") as offsets, time_index(tmp_path / "0.timeindex") as times:
        for index in (offsets, times):
            with pytest.raises(IndexError, match="has 0 entries"):
                index.entry(0)


def test_index_larger_than_kafka_can_map_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    with pytest.raises(CorruptIndexError, match="at most 2147483647"):
        offset_index(path, writable=False)


def test_missing_index_raises_file_not_found_for_reader(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        offset_index(tmp_path / "0.index", writable=False)
    assert not list(tmp_path.iterdir())


class _FailingFileSystem(FileSystem):
    """Fails the call of one name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def pwrite_all(self, fd: int, data: object, position: int) -> None:
        self._maybe_fail("pwrite_all")
        super().pwrite_all(fd, data, position)

    def truncate(self, fd: int, length: int) -> None:
        self._maybe_fail("truncate")
        super().truncate(fd, length)

    def _maybe_fail(self, name: str) -> None:
        if name == self._name:
            raise OSError(28, "No space left on device")


def test_failed_write_adds_no_entry(tmp_path: Path) -> None:
    index = OffsetIndex.open(
        tmp_path / "0.index", BASE, max_index_bytes=64, writable=True, fs=_FailingFileSystem("pwrite_all")
    )
    with pytest.raises(OSError, match="No space"):
        add_entry(index, BASE + 1, 10)
    assert index.entries == 0
    index.close()


def test_failed_preallocation_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = descriptors_before()
    with pytest.raises(OSError, match="No space"):
        OffsetIndex.open(
            tmp_path / "0.index", BASE, max_index_bytes=64, writable=True, fs=_FailingFileSystem("truncate")
        )
    assert descriptors() == before
