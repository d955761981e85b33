"""Offset and time index: entries, limits, what a crash leaves, and damaged files."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.offset_index import OffsetIndex
from pyspark_kafkalog.storage.time_index import TimeIndex

_BASE = 1000
_ROOM_BYTES = 1024


def _offset_index(path: Path, *, writable: bool = True, room_bytes: int = _ROOM_BYTES) -> OffsetIndex:
    return OffsetIndex.open(path, _BASE, max_index_bytes=room_bytes, writable=writable)


def _time_index(path: Path, *, writable: bool = True, room_bytes: int = _ROOM_BYTES) -> TimeIndex:
    return TimeIndex.open(path, _BASE, max_index_bytes=room_bytes, writable=writable)


def test_new_indexes_are_preallocated_to_whole_entries(tmp_path: Path) -> None:
    for index in (
        _offset_index(tmp_path / "0.index", room_bytes=1027),
        _time_index(tmp_path / "0.timeindex", room_bytes=1027),
    ):
        assert index.path.read_bytes() == bytes(index.length_bytes)
        assert index.length_bytes == 1027 - 1027 % index.entry_struct.size
        assert index.entries == 0
        index.close()
        assert index.path.stat().st_size == 0


def test_entries_go_where_the_format_says(tmp_path: Path) -> None:
    with _offset_index(tmp_path / "0.index") as offsets, _time_index(tmp_path / "0.timeindex") as times:
        offsets.append(_BASE + 7, 300)
        times.maybe_append(1_700_000_000_000, _BASE + 7)
    assert (tmp_path / "0.index").read_bytes() == struct.pack(">ii", 7, 300)
    assert (tmp_path / "0.timeindex").read_bytes() == struct.pack(">qi", 1_700_000_000_000, 7)


def test_many_entries_at_once_are_the_same_as_one_by_one(tmp_path: Path) -> None:
    offsets = np.arange(1, 51, dtype=np.int64) * 3 + _BASE
    positions = np.arange(1, 51, dtype=np.int64) * 400
    timestamps_ms = np.repeat(np.arange(25, dtype=np.int64) + 5, 2)
    with _offset_index(tmp_path / "1.index") as one, _time_index(tmp_path / "1.timeindex") as one_time:
        rows = np.stack([offsets, positions, timestamps_ms], axis=1).tolist()
        for offset, position, timestamp_ms in rows:
            one.append(offset, position)
            one_time.maybe_append(timestamp_ms, offset)
    with _offset_index(tmp_path / "2.index") as many, _time_index(tmp_path / "2.timeindex") as many_time:
        many.append_many(offsets, positions)
        many_time.maybe_append_many(timestamps_ms, offsets)
    assert (tmp_path / "1.index").read_bytes() == (tmp_path / "2.index").read_bytes()
    assert (tmp_path / "1.timeindex").read_bytes() == (tmp_path / "2.timeindex").read_bytes()
    assert (tmp_path / "2.timeindex").stat().st_size == 25 * 12


def test_full_offset_index_takes_no_entry(tmp_path: Path) -> None:
    with _offset_index(tmp_path / "0.index", room_bytes=16) as index:
        index.append(_BASE + 1, 10)
        assert not index.is_full
        index.append(_BASE + 2, 20)
        assert index.is_full
        with pytest.raises(ValueError, match="room for 0 more entries"):
            index.append(_BASE + 3, 30)
        with pytest.raises(ValueError, match="room for 0 more entries"):
            index.append_many(np.array([_BASE + 3]), np.array([30]))
        assert index.entries == 2


def test_time_index_keeps_a_slot_for_the_closing_entry(tmp_path: Path) -> None:
    with _time_index(tmp_path / "0.timeindex", room_bytes=24) as index:
        index.maybe_append(5, _BASE)
        assert index.is_full
        with pytest.raises(ValueError, match="full"):
            index.maybe_append(6, _BASE + 1)
        with pytest.raises(ValueError, match="no room"):
            index.maybe_append_many(np.array([6]), np.array([_BASE + 1]))
        index.maybe_append(6, _BASE + 1, skip_full_check=True)
        assert index.last_entry == (6, _BASE + 1)


def test_entries_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    with _offset_index(tmp_path / "0.index") as offsets:
        offsets.append(_BASE + 5, 10)
        with pytest.raises(CorruptIndexError, match="below offset 1005"):
            offsets.append(_BASE + 5, 20)
        with pytest.raises(ValueError, match="rise"):
            offsets.append_many(np.array([_BASE + 7, _BASE + 6]), np.array([20, 30]))
    with _time_index(tmp_path / "0.timeindex") as times:
        times.maybe_append(50, _BASE + 5)
        for timestamp_ms, offset in ((49, _BASE + 6), (51, _BASE + 4)):
            with pytest.raises(CorruptIndexError, match="not above"):
                times.maybe_append(timestamp_ms, offset)
        with pytest.raises(ValueError, match="fall"):
            times.maybe_append_many(np.array([60, 59]), np.array([_BASE + 7, _BASE + 8]))
        times.maybe_append(50, _BASE + 6)
        times.maybe_append_many(np.array([50, 50]), np.array([_BASE + 7, _BASE + 8]))
        assert times.entries == 1


def test_offsets_out_of_reach_of_the_base_are_refused(tmp_path: Path) -> None:
    with _offset_index(tmp_path / "0.index") as offsets, _time_index(tmp_path / "0.timeindex") as times:
        for offset in (_BASE - 1, _BASE + 2**31):
            assert not offsets.can_append_offset(offset)
            with pytest.raises(ValueError, match="out of reach"):
                offsets.append(offset, 10)
            with pytest.raises(ValueError, match="out of reach"):
                times.maybe_append(1, offset)
        assert offsets.can_append_offset(_BASE + 2**31 - 1)
        with pytest.raises(ValueError, match="out of reach"):
            offsets.append_many(np.array([_BASE, _BASE + 2**31]), np.array([1, 2]))
        with pytest.raises(ValueError, match="int32"):
            offsets.append_many(np.array([_BASE, _BASE + 1]), np.array([1, 2**31]))


def test_trimmed_index_takes_entries_once_extended(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    with _offset_index(path) as index:
        index.append(_BASE + 1, 100)
    assert path.stat().st_size == 8
    with _offset_index(path) as index:
        assert index.is_full
        index.resize(_ROOM_BYTES)
        assert not index.is_full
        index.append(_BASE + 2, 200)
        assert index.entries_array().tolist() == [(_BASE + 1, 100), (_BASE + 2, 200)]
    assert path.stat().st_size == 16


@pytest.mark.parametrize("entries", [0, 1, 2, 3, 63, 127, 128])
def test_zero_tail_after_a_kill_does_not_count(tmp_path: Path, entries: int) -> None:
    path = tmp_path / "0.index"
    index = _offset_index(path)
    for number in range(1, entries + 1):
        index.append(_BASE + number, number * 10)
    index.close_handler()  # as a kill leaves it: not trimmed
    assert path.stat().st_size == _ROOM_BYTES
    for writable in (False, True):
        with _offset_index(path, writable=writable) as again:
            assert again.entries == entries
            assert again.last_offset == _BASE + entries
            again.sanity_check()
    assert path.stat().st_size == entries * 8


def test_first_entry_of_zeros_counts_when_others_follow_or_nothing_does(tmp_path: Path) -> None:
    path = tmp_path / "0.timeindex"
    index = _time_index(path)
    index.maybe_append(0, _BASE)
    index.maybe_append(9, _BASE + 1)
    index.close_handler()
    with _time_index(path, writable=False) as again:
        assert again.entries_array().tolist() == [(0, _BASE), (9, _BASE + 1)]
    path.write_bytes(bytes(12))
    with _time_index(path, writable=False) as again:
        assert again.entries_array().tolist() == [(0, _BASE)]


def test_reader_survives_its_writers_trim_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    writer = _offset_index(path, room_bytes=1 << 20)
    count = 3 * mmap.PAGESIZE // 8
    writer.append_many(np.arange(1, count + 1) + _BASE, np.arange(1, count + 1) * 10)
    reader = _offset_index(path, writable=False)
    writer.truncate_to(_BASE + 2)
    writer.close()
    assert path.stat().st_size == 8
    # A page that is no longer in the file would kill this process here.
    assert reader.lookup(_BASE + count) == (_BASE + count, count * 10)
    assert len(reader.entries_array()) == count
    reader.close()


@pytest.mark.parametrize("entries", [0, 1, 2, 5])
def test_trim_while_a_reader_opens_does_not_mislead_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(b"".join(struct.pack(">ii", number, number * 10) for number in range(1, entries + 1)))
    sizes = {path: _ROOM_BYTES}  # what the reader is told just before the writer trims
    real_fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: _Stat(sizes[path]) if _is(fd, path) else real_fstat(fd))
    with _offset_index(path, writable=False) as index:
        assert index.entries == entries
        assert index.lookup(_BASE + 100) == ((_BASE + entries, entries * 10) if entries else (_BASE, 0))


def test_index_cut_back_while_a_reader_opens_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(struct.pack(">ii", 1, 10))
    monkeypatch.setattr(OffsetIndex, "_count_entries", lambda self, fd: 100)
    with pytest.raises(CorruptIndexError, match="found a shorter one"):
        _offset_index(path, writable=False)


class _Stat:
    def __init__(self, size_bytes: int) -> None:
        self.st_size = size_bytes


def _is(fd: int, path: Path) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}") == str(path)


def test_dropped_entries_do_not_come_back_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    index = _offset_index(path)
    for number in range(1, 20):
        index.append(_BASE + number, number * 10)
    index.truncate_to(_BASE + 5)
    assert index.length_bytes == _ROOM_BYTES
    index.append(_BASE + 50, 500)
    index.close_handler()
    with _offset_index(path, writable=False) as again:
        assert again.entries_array()["offset"].tolist() == [_BASE + number for number in (1, 2, 3, 4, 50)]


def test_truncation_keeps_what_lies_below(tmp_path: Path) -> None:
    with _offset_index(tmp_path / "0.index") as offsets, _time_index(tmp_path / "0.timeindex") as times:
        for number in (10, 20, 30):
            offsets.append(_BASE + number, number)
            times.maybe_append(number, _BASE + number)
        for offset, kept in ((_BASE + 31, 3), (_BASE + 30, 2), (_BASE + 11, 1), (_BASE, 0)):
            offsets.truncate_to(offset)
            times.truncate_to(offset)
            assert (offsets.entries, times.entries) == (kept, kept)
        assert offsets.last_offset == _BASE
        assert times.last_entry == (-1, _BASE)
        times.maybe_append(1, _BASE)
        times.truncate()
        assert times.entries == 0


def test_reset_empties_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(b"\xff" * 77)
    with _offset_index(path) as index:
        index.reset()
        assert index.length_bytes == _ROOM_BYTES
        index.append(_BASE + 1, 5)
    assert path.read_bytes() == struct.pack(">ii", 1, 5)


def test_lookup_finds_the_floor(tmp_path: Path) -> None:
    with _offset_index(tmp_path / "0.index") as offsets, _time_index(tmp_path / "0.timeindex") as times:
        assert offsets.lookup(_BASE + 100) == (_BASE, 0)
        assert times.lookup(100) == (-1, _BASE)
        offsets.append(_BASE + 10, 77)
        times.maybe_append(50, _BASE + 10)
        assert [offsets.lookup(_BASE + relative) for relative in (9, 10, 2**40)] == [(_BASE, 0)] + [
            (_BASE + 10, 77)
        ] * 2
        assert [times.lookup(at) for at in (49, 50, 2**60)] == [(-1, _BASE)] + [(50, _BASE + 10)] * 2


def test_lookup_in_garbage_ends_and_points_nowhere_bad(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for name, kind in (("0.index", OffsetIndex), ("0.timeindex", TimeIndex)):
        (tmp_path / name).write_bytes(rng.bytes(12 * 8 * 1000 + 5))
        with kind.open(tmp_path / name, _BASE, max_index_bytes=_ROOM_BYTES) as index:
            for target in (-(2**62), 0, _BASE, 2**31, 2**62):
                found = index.lookup(target)
                assert (found.offset if isinstance(index, TimeIndex) else min(found)) >= 0


def test_entry_past_the_last_is_an_index_error(tmp_path: Path) -> None:
    with _offset_index(tmp_path / "0.index") as offsets, _time_index(tmp_path / "0.timeindex") as times:
        for index in (offsets, times):
            with pytest.raises(IndexError, match="has 0 entries"):
                index.entry(0)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (struct.pack(">ii", 5, 10)[:7], "7 bytes"),
        (struct.pack(">iiii", 5, 10, 6, 20)[:-1], "15 bytes"),
    ],
)
def test_truncated_offset_index_is_corrupt(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(content)
    with _offset_index(path, writable=False) as index:
        with pytest.raises(CorruptIndexError, match=f"0.index.*{what}"):
            index.sanity_check()
        with pytest.raises(CorruptIndexError, match=what):
            index.check_entries()


@pytest.mark.parametrize("length_bytes", [1, 11, 13, 23])
def test_truncated_time_index_is_corrupt(tmp_path: Path, length_bytes: int) -> None:
    path = tmp_path / "0.timeindex"
    path.write_bytes(struct.pack(">qiqi", 5, 10, 6, 20)[:length_bytes])
    with _time_index(path, writable=False) as index, pytest.raises(CorruptIndexError, match=f"{length_bytes} bytes"):
        index.sanity_check()


def test_offset_below_the_base_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "0.index").write_bytes(struct.pack(">ii", -5, 10))
    (tmp_path / "0.timeindex").write_bytes(struct.pack(">qi", 10, -5))
    with _offset_index(tmp_path / "0.index", writable=False) as index, pytest.raises(CorruptIndexError, match="995"):
        index.sanity_check()
    with _time_index(tmp_path / "0.timeindex", writable=False) as index, pytest.raises(CorruptIndexError, match="995"):
        index.sanity_check()


def test_last_timestamp_before_the_first_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "0.timeindex").write_bytes(struct.pack(">qiqi", 10, 1, 9, 2))
    with (
        _time_index(tmp_path / "0.timeindex", writable=False) as index,
        pytest.raises(CorruptIndexError, match="found 9"),
    ):
        index.sanity_check()


@pytest.mark.parametrize(
    ("entries", "log_size_bytes", "position"),
    [
        ([(1, 10), (1, 20)], None, 8),
        ([(1, 10), (2, 10)], None, 8),
        ([(1, 10), (2, 20), (3, 5)], 100, 16),
        ([(-1, 10)], None, 0),
        ([(1, -10)], None, 0),
        ([(1, 10), (2, 20), (3, 100)], 100, 16),
    ],
)
def test_entries_that_contradict_the_log_are_found(
    tmp_path: Path, entries: list[tuple[int, int]], log_size_bytes: int | None, position: int
) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    with _offset_index(path, writable=False) as index, pytest.raises(CorruptIndexError) as caught:
        index.check_entries(log_size_bytes=log_size_bytes)
    assert caught.value.position == position


@pytest.mark.parametrize("second", [(10, 5), (9, 5), (11, 0)])
def test_time_index_entries_that_do_not_rise_are_found(tmp_path: Path, second: tuple[int, int]) -> None:
    path = tmp_path / "0.timeindex"
    path.write_bytes(struct.pack(">qi", 10, 1) + struct.pack(">qi", *second) + struct.pack(">qi", 20, 9))
    with _time_index(path, writable=False) as index, pytest.raises(CorruptIndexError) as caught:
        index.check_entries()
    assert caught.value.position == 12


def test_index_larger_than_kafka_can_map_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    with pytest.raises(CorruptIndexError, match="at most 2147483647"):
        _offset_index(path, writable=False)


def test_missing_index_is_an_error_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _offset_index(tmp_path / "0.index", writable=False)
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
        tmp_path / "0.index", _BASE, max_index_bytes=64, writable=True, fs=_FailingFileSystem("pwrite_all")
    )
    with pytest.raises(OSError, match="No space"):
        index.append(_BASE + 1, 10)
    assert index.entries == 0
    index.close()


def test_failed_preallocation_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space"):
        OffsetIndex.open(
            tmp_path / "0.index", _BASE, max_index_bytes=64, writable=True, fs=_FailingFileSystem("truncate")
        )
    assert len(os.listdir("/proc/self/fd")) == before


def test_renamed_and_deleted_files_are_where_they_should_be(tmp_path: Path) -> None:
    index = _offset_index(tmp_path / "0.index")
    index.append(_BASE + 1, 10)
    index.flush()
    index.rename_to(tmp_path / "0.index.swap")
    assert index.path.name == "0.index.swap"
    assert index.lookup(_BASE + 5) == (_BASE + 1, 10)
    index.delete_if_there()
    assert not list(tmp_path.iterdir())
