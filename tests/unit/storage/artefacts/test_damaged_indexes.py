"""Offset and time indexes after a kill, beside a reader and with damage: right entries or a reported error."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from builders.indexes import BASE, ROOM_BYTES, add_entry, offset_index, time_index

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex


@pytest.mark.parametrize("entries", [0, 1, 2, 3, 63, 127, 128])
def test_zero_tail_after_kill_is_not_counted(tmp_path: Path, entries: int) -> None:
    path = tmp_path / "0.index"
    index = offset_index(path)
    for number in range(1, entries + 1):
        add_entry(index, BASE + number, number * 10)
    index.close_handler()  # as a kill leaves it: not trimmed
    assert path.stat().st_size == ROOM_BYTES
    for writable in (False, True):
        with offset_index(path, writable=writable) as again:
            assert again.entries == entries
            assert again.last_offset == BASE + entries
    assert path.stat().st_size == entries * 8


def test_first_entry_of_zeros_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "0.timeindex"
    index = time_index(path)
    index.maybe_append(0, BASE)
    index.maybe_append(9, BASE + 1)
    index.close_handler()
    with time_index(path, writable=False) as again:
        assert again.entries_array().tolist() == [(0, BASE), (9, BASE + 1)]
    path.write_bytes(bytes(12))
    with time_index(path, writable=False) as again:
        assert again.entries_array().tolist() == [(0, BASE)]


def test_reader_survives_its_writers_trim_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    writer = offset_index(path, room_bytes=1 << 20)
    count = 3 * mmap.PAGESIZE // 8
    writer.append_many(np.arange(1, count + 1) + BASE, np.arange(1, count + 1) * 10)
    reader = offset_index(path, writable=False)
    writer.truncate_to(BASE + 2)
    writer.close()
    assert path.stat().st_size == 8
    # A page that is no longer in the file would kill this process here.
    assert reader.lookup(BASE + count) == (BASE + count, count * 10)
    assert len(reader.entries_array()) == count
    reader.close()


@pytest.mark.parametrize("entries", [0, 1, 2, 5])
def test_index_trimmed_while_reader_opens_keeps_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(b"".join(struct.pack(">ii", number, number * 10) for number in range(1, entries + 1)))
    sizes = {path: ROOM_BYTES}  # what the reader is told just before the writer trims
    real_fstat = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: _Stat(sizes[path]) if _is(fd, path) else real_fstat(fd))
    with offset_index(path, writable=False) as index:
        assert index.entries == entries
        assert index.lookup(BASE + 100) == ((BASE + entries, entries * 10) if entries else (BASE, 0))


def test_index_shortened_while_reader_opens_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(struct.pack(">ii", 1, 10))
    monkeypatch.setattr(OffsetIndex, "_count_entries", lambda self, fd: 100)
    with pytest.raises(CorruptIndexError, match="found a shorter one"):
        offset_index(path, writable=False)


class _Stat:
    def __init__(self, size_bytes: int) -> None:
        self.st_size = size_bytes
        self.st_mode = stat.S_IFREG


def _is(fd: int, path: Path) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}") == str(path)


def test_truncated_entries_stay_dropped_after_kill(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    index = offset_index(path)
    for number in range(1, 20):
        add_entry(index, BASE + number, number * 10)
    index.truncate_to(BASE + 5)
    assert index.length_bytes == ROOM_BYTES
    add_entry(index, BASE + 50, 500)
    index.close_handler()
    with offset_index(path, writable=False) as again:
        assert again.entries_array()["offset"].tolist() == [BASE + number for number in (1, 2, 3, 4, 50)]


def test_truncation_keeps_entries_below_offset(tmp_path: Path) -> None:
    with offset_index(tmp_path / "0.index") as offsets, time_index(tmp_path / "0.timeindex") as times:
        for number in (10, 20, 30):
            add_entry(offsets, BASE + number, number)
            times.maybe_append(number, BASE + number)
        for offset, kept in ((BASE + 31, 3), (BASE + 30, 2), (BASE + 11, 1), (BASE, 0)):
            offsets.truncate_to(offset)
            times.truncate_to(offset)
            assert (offsets.entries, times.entries) == (kept, kept)
        assert offsets.last_offset == BASE
        assert times.last_entry == (-1, BASE)


def test_reset_empties_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(b"\xff" * 77)
    with offset_index(path) as index:
        index.reset()
        assert index.length_bytes == ROOM_BYTES
        add_entry(index, BASE + 1, 5)
    assert path.read_bytes() == struct.pack(">ii", 1, 5)
